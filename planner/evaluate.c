#include "planner/evaluate.h"

#include "core/mem.h"
#include "planner/flow.h"
#include "planner/shares.h"

#include <stdlib.h>
#include <string.h>

void bl_rank_loads(const bl_layer_placement *placement, const double *share, const double *load,
                   double *rank_load) {
    for (int rank = 0; rank < placement->n_ranks; rank++) {
        double sum = 0.0;
        for (int slot = placement->begin[rank]; slot < placement->begin[rank + 1]; slot++) {
            const int32_t expert = placement->expert[slot];
            if (expert != BL_NO_EXPERT)
                sum += share[slot] * load[expert];
        }
        rank_load[rank] = sum;
    }
}

/* Largest load, sum of loads and number of the ranks that have slots. */
static double busiest(const double *rank_load, const int *slots_per_rank, int n_ranks,
                      double *total, int *active) {
    double most = 0.0;
    *total = 0.0;
    *active = 0;
    for (int rank = 0; rank < n_ranks; rank++) {
        if (slots_per_rank[rank] <= 0)
            continue;
        *total += rank_load[rank];
        *active += 1;
        if (rank_load[rank] > most)
            most = rank_load[rank];
    }
    return most;
}

double bl_imbalance(const double *rank_load, const int *slots_per_rank, int n_ranks) {
    double total;
    int active;
    const double most = busiest(rank_load, slots_per_rank, n_ranks, &total, &active);
    return total > 0.0 ? most * active / total : 1.0;
}

static bl_status same_shape(const bl_problem *problem, const bl_layer_placement *placement,
                            bl_error *err) {
    if (placement->n_ranks == problem->n_ranks && placement->n_experts == problem->n_experts)
        return BL_OK;
    return bl_fail_at(err, BL_ERR_SHAPE, bl_at_layer(NULL, problem->layer),
                      "a placement of %d experts on %d ranks cannot be scored on a problem of %d "
                      "and %d",
                      placement->n_experts, placement->n_ranks, problem->n_experts,
                      problem->n_ranks);
}

bl_status bl_evaluate_shares(const bl_problem *problem, const bl_layer_placement *placement,
                             const double *share, bl_score *out, bl_error *err) {
    BL_TRY(same_shape(problem, placement, err));
    double *rank_load;
    BL_TRY(BL_CALLOC(rank_load, problem->n_ranks, err));
    double all_busiest = 0.0, all_total = 0.0;
    bl_score score = {1.0, 1.0};
    for (int s = 0; s < problem->n_scenarios; s++) {
        double total;
        int active;
        bl_rank_loads(placement, share, problem->load + (size_t)s * (size_t)problem->n_experts,
                      rank_load);
        const double most =
            busiest(rank_load, problem->slots_per_rank, problem->n_ranks, &total, &active);
        all_busiest += most * active;
        all_total += total;
        if (total > 0.0 && most * active / total > score.worst)
            score.worst = most * active / total;
    }
    if (all_total > 0.0)
        score.max_over_mean = all_busiest / all_total;
    free(rank_load);
    *out = score;
    return BL_OK;
}

bl_status bl_evaluate(const bl_problem *problem, const bl_layer_placement *placement, bl_score *out,
                      bl_error *err) {
    BL_TRY(same_shape(problem, placement, err));
    if (problem->rule == BL_RULE_PER_STEP)
        return bl_flow_evaluate(problem, placement, out, err);
    double *share;
    BL_TRY(BL_CALLOC(share, bl_layer_n_slots(placement), err));
    bl_status st = bl_shares_of(problem, placement, share, err);
    if (st == BL_OK)
        st = bl_evaluate_shares(problem, placement, share, out, err);
    free(share);
    return st;
}
