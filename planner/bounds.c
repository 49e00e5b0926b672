#include "planner/bounds.h"

#include "core/mem.h"
#include "planner/packing.h"
#include "planner/replicate.h"

#include <math.h>
#include <stdlib.h>

static bl_packing_shape shape_of(int n_experts, const int *slots_per_rank, int n_ranks) {
    bl_packing_shape shape = {.n_experts = n_experts, .least_slots = n_experts};
    for (int rank = 0; rank < n_ranks; rank++) {
        if (slots_per_rank[rank] == 0)
            continue;
        shape.active_ranks++;
        shape.n_slots += slots_per_rank[rank];
        if (slots_per_rank[rank] < shape.least_slots)
            shape.least_slots = slots_per_rank[rank];
    }
    return shape;
}

bl_status bl_bounds_of_load(const double *load, int n_experts, const int *slots_per_rank,
                            int n_ranks, bl_rule rule, bl_load_bounds *out, bl_error *err) {
    const bl_packing_shape shape = shape_of(n_experts, slots_per_rank, n_ranks);
    int *copies;
    BL_TRY(BL_CALLOC(copies, n_experts, err));
    bl_load_bounds bounds = {0};
    const bl_status st = bl_replicate(load, n_experts, shape.n_slots, shape.active_ranks, copies,
                                      &bounds.slot, &bounds.slot_is_width, err);
    free(copies);
    BL_TRY(st);
    for (int expert = 0; expert < n_experts; expert++)
        bounds.mean += load[expert];
    bounds.mean /= shape.active_ranks;
    BL_TRY(bl_packing_lonely(load, &shape, &bounds.packing, err));
    if (rule == BL_RULE_EVEN) {
        const double known = fmax(bounds.mean, fmax(bounds.slot, bounds.packing));
        double higher;
        BL_TRY(bl_packing_big_small(load, &shape, known, &higher, err));
        if (higher > known)
            bounds.packing = higher;
    }
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
                                      problem->rule, &bounds, err),
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
                                      problem->rule, &bounds, err),
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
