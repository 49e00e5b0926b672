#include "planner/bounds.h"

#include "core/mem.h"
#include "planner/replicate.h"

#include <math.h>
#include <stdlib.h>

static int ascending(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The packing bound. sorted[n_experts] ascending, before[i] = the sum of the i smallest; `spare`
 * slots beyond the experts; `least_slots` on the active rank with fewest. */
static double packing_bound(const double *sorted, const double *before, int n_experts, int spare,
                            int least_slots, int max_copies) {
    double best = 0.0;
    for (int expert = 0; expert < n_experts; expert++) {
        double least = INFINITY;
        for (int r = 1; r <= spare + 1 && r <= max_copies; r++) {
            const int lonely = least_slots + r - 2 - spare; /* below n_experts, as spare >= r - 1 */
            double beside = 0.0;
            if (lonely > 0)
                beside = expert < lonely ? before[lonely + 1] - sorted[expert] : before[lonely];
            least = fmin(least, sorted[expert] / r + beside);
        }
        best = fmax(best, least);
    }
    return best;
}

static bl_status packing_of(const double *load, int n_experts, int spare, int least_slots,
                            int max_copies, double *out, bl_error *err) {
    double *sorted, *before;
    BL_TRY(BL_CALLOC(sorted, 2 * n_experts + 1, err));
    before = sorted + n_experts;
    for (int expert = 0; expert < n_experts; expert++)
        sorted[expert] = load[expert];
    qsort(sorted, (size_t)n_experts, sizeof *sorted, ascending);
    for (int expert = 0; expert < n_experts; expert++)
        before[expert + 1] = before[expert] + sorted[expert];
    *out = packing_bound(sorted, before, n_experts, spare, least_slots, max_copies);
    free(sorted);
    return BL_OK;
}

bl_status bl_bounds_of_load(const double *load, int n_experts, const int *slots_per_rank,
                            int n_ranks, bl_load_bounds *out, bl_error *err) {
    int active = 0, n_slots = 0, least_slots = n_experts;
    for (int rank = 0; rank < n_ranks; rank++) {
        if (slots_per_rank[rank] == 0)
            continue;
        active++;
        n_slots += slots_per_rank[rank];
        if (slots_per_rank[rank] < least_slots)
            least_slots = slots_per_rank[rank];
    }
    int *copies;
    BL_TRY(BL_CALLOC(copies, n_experts, err));
    bl_load_bounds bounds = {0};
    const bl_status st = bl_replicate(load, n_experts, n_slots, active, copies, &bounds.slot,
                                      &bounds.slot_is_width, err);
    free(copies);
    BL_TRY(st);
    for (int expert = 0; expert < n_experts; expert++)
        bounds.mean += load[expert];
    bounds.mean /= active;

    /* With as many spare slots as a rank has slots, no rank needs to be full of lonely experts. */
    const int spare = n_slots - n_experts;
    if (spare < least_slots)
        BL_TRY(packing_of(load, n_experts, spare, least_slots, active, &bounds.packing, err));
    *out = bounds;
    return BL_OK;
}

/* What one scenario, or the sum of them, contributes. */
typedef struct best_bound {
    double load;
    const char *kind;
} best_bound;

static best_bound best_of(const bl_load_bounds *bounds) {
    best_bound best = {bounds->mean, "mean"};
    if (bounds->slot > best.load)
        best = (best_bound){bounds->slot, bounds->slot_is_width ? "max" : "slot"};
    if (bounds->packing > best.load)
        best = (best_bound){bounds->packing, "packing"};
    return best;
}

bl_status bl_bound_of(const bl_problem *problem, bl_bound *out, bl_error *err) {
    const int n_experts = problem->n_experts;
    double *sum;
    BL_TRY(BL_CALLOC(sum, n_experts, err));
    bl_status st = BL_OK;
    bl_load_bounds bounds;
    const double total = bl_problem_total_load(problem);
    bl_problem_sum_load(problem, sum);
    double apart = 0.0, largest = -1.0;
    const char *kind = "mean"; /* of the scenario that adds most */
    for (int s = 0; s < problem->n_scenarios; s++) {
        const double *load = problem->load + (size_t)s * (size_t)n_experts;
        BL_TRY_GOTO(st,
                    bl_bounds_of_load(load, n_experts, problem->slots_per_rank, problem->n_ranks,
                                      &bounds, err),
                    done);
        const best_bound best = best_of(&bounds);
        apart += best.load;
        if (best.load > largest) {
            largest = best.load;
            kind = best.kind;
        }
    }
    bl_bound bound = {1.0, "mean"};
    if (total > 0.0) {
        BL_TRY_GOTO(st,
                    bl_bounds_of_load(sum, n_experts, problem->slots_per_rank, problem->n_ranks,
                                      &bounds, err),
                    done);
        const best_bound together = best_of(&bounds);
        if (together.load > apart)
            bound = (bl_bound){together.load, together.kind};
        else
            bound = (bl_bound){apart, kind};
        bound.max_over_mean *= bl_problem_active_ranks(problem) / total;
        bound.max_over_mean = fmax(bound.max_over_mean, 1.0);
    }
    *out = bound;
done:
    free(sum);
    return st;
}
