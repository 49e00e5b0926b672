#include "planner/flow.h"

#include "core/mem.h"
#include "core/split_step.h"

#include <math.h>
#include <stdlib.h>

/* Whole loads up to this total are rows as they are. */
#define SCALED_TOTAL 0x1p42

double bl_flow_rows(const double *load, int n_experts, uint64_t *rows) {
    double total = 0.0;
    bool whole = true;
    for (int expert = 0; expert < n_experts; expert++) {
        total += load[expert];
        whole = whole && load[expert] == floor(load[expert]);
    }
    const bool as_is = whole && total <= SCALED_TOTAL;
    for (int expert = 0; expert < n_experts; expert++) /* a part first: no overflow */
        rows[expert] = (uint64_t)(as_is ? load[expert] : load[expert] / total * SCALED_TOTAL + 0.5);
    if (total <= 0.0)
        return 0.0;
    return as_is ? 1.0 : SCALED_TOTAL / total;
}

bl_status bl_flow_evaluate(const bl_problem *problem, const bl_layer_placement *placement,
                           bl_score *out, bl_error *err) {
    const int active = bl_problem_active_ranks(problem);
    bl_step_split *split = NULL;
    uint64_t *rows;
    BL_TRY(BL_CALLOC(rows, problem->n_experts, err));
    bl_status st = bl_step_split_create(placement, &split, err);
    double all_busiest = 0.0, all_total = 0.0;
    bl_score score = {1.0, 1.0};
    for (int s = 0; s < problem->n_scenarios && st >= 0; s++) {
        const double *load = problem->load + (size_t)s * (size_t)problem->n_experts;
        const double scale = bl_flow_rows(load, problem->n_experts, rows);
        bl_step_split_result result;
        if (scale <= 0.0)
            continue;
        st = bl_step_split_solve(split, rows, 0.0, &result, err);
        if (st < 0)
            break;
        all_busiest += (double)result.busiest / scale;
        all_total += (double)result.rows / scale;
        score.worst = fmax(score.worst, (double)result.busiest * active / (double)result.rows);
    }
    if (all_total > 0.0)
        score.max_over_mean = all_busiest * active / all_total;
    bl_step_split_free(split);
    free(rows);
    if (st >= 0)
        *out = score;
    return st;
}
