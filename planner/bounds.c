#include "planner/bounds.h"

#include "core/mem.h"
#include "planner/packing.h"
#include "planner/replicate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

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
                            int n_ranks, const int *least, bl_rule rule, bl_load_bounds *out,
                            bl_error *err) {
    const bl_packing_shape shape = shape_of(n_experts, slots_per_rank, n_ranks);
    int *copies;
    BL_TRY(BL_CALLOC(copies, n_experts, err));
    bl_load_bounds bounds = {0};
    const bl_status st = bl_replicate(load, n_experts, shape.n_slots, least, shape.active_ranks,
                                      copies, &bounds.slot, &bounds.slot_is_width, err);
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

/* ---- parts that have nothing to do with each other --------------------------------------------*/

typedef struct parts {
    const bl_problem *problem;
    bool may_have_holes;
    int n;
    int *of_rank, *of_expert; /* [n_ranks], [n_experts]; -1 for a rank without slots */
    /* of the part at hand */
    double *load;
    int *slots, *least;
} parts;

static void parts_free(parts *p) {
    free(p->of_rank);
    free(p->of_expert);
    free(p->load);
    free(p->slots);
    free(p->least);
}

/* Everything that hangs together with a rank, found by going to and fro. */
static void flood(parts *p, int first) {
    const bl_problem *problem = p->problem;
    p->of_rank[first] = p->n;
    for (bool grown = true; grown;) {
        grown = false;
        for (int rank = 0; rank < problem->n_ranks; rank++) {
            if (problem->slots_per_rank[rank] == 0)
                continue;
            for (int expert = 0; expert < problem->n_experts; expert++) {
                int *a = &p->of_rank[rank], *b = &p->of_expert[expert];
                if ((*a == p->n) == (*b == p->n) || !bl_rules_may(problem->rules, rank, expert))
                    continue;
                *a = *b = p->n;
                grown = true;
            }
        }
    }
    p->n++;
}

static bl_status find_parts(const bl_problem *problem, parts *p, bl_error *err) {
    p->problem = problem;
    p->may_have_holes = bl_problem_may_have_holes(problem);
    BL_TRY(BL_CALLOC(p->of_rank, problem->n_ranks, err));
    BL_TRY(BL_CALLOC(p->of_expert, problem->n_experts, err));
    BL_TRY(BL_CALLOC(p->load, problem->n_experts, err));
    BL_TRY(BL_CALLOC(p->slots, problem->n_ranks, err));
    BL_TRY(BL_CALLOC(p->least, problem->n_experts, err));
    const bool whole = problem->rules == NULL || problem->rules->may == NULL;
    for (int rank = 0; rank < problem->n_ranks; rank++)
        p->of_rank[rank] = whole && problem->slots_per_rank[rank] > 0 ? 0 : -1;
    for (int expert = 0; expert < problem->n_experts; expert++)
        p->of_expert[expert] = whole ? 0 : -1;
    p->n = whole;
    for (int rank = 0; rank < problem->n_ranks && !whole; rank++) {
        if (problem->slots_per_rank[rank] > 0 && p->of_rank[rank] < 0)
            flood(p, rank);
    }
    return BL_OK;
}

/* The bound of one load vector: the largest of its parts'. */
static bl_status bound_of_load(parts *p, const double *load, best_bound *out, bl_error *err) {
    const bl_problem *problem = p->problem;
    *out = (best_bound){-1.0, "mean"};
    for (int part = 0; part < p->n; part++) {
        int n_ranks = 0, n_experts = 0;
        for (int rank = 0; rank < problem->n_ranks; rank++) {
            if (p->of_rank[rank] == part)
                p->slots[n_ranks++] = problem->slots_per_rank[rank];
        }
        for (int expert = 0; expert < problem->n_experts; expert++) {
            if (p->of_expert[expert] != part)
                continue;
            p->least[n_experts] = bl_rules_least(problem->rules, expert);
            p->load[n_experts++] = load[expert];
        }
        bl_load_bounds bounds;
        BL_TRY(bl_bounds_of_load(p->load, n_experts, p->slots, n_ranks, p->least, problem->rule,
                                 &bounds, err));
        if (!p->may_have_holes) {
            const bl_packing_shape shape = shape_of(n_experts, p->slots, n_ranks);
            double untouched;
            BL_TRY(bl_packing_untouched(p->load, &shape, &untouched, err));
            bounds.packing = fmax(bounds.packing, untouched);
            if (problem->rule == BL_RULE_EVEN) {
                double crowded;
                BL_TRY(bl_packing_crowded(p->load, p->least, &shape, &crowded, err));
                bounds.packing = fmax(bounds.packing, crowded);
            }
        }
        best_bound best = best_of(&bounds);
        if (p->n > 1 && strcmp(best.kind, "mean") == 0)
            best.kind = "groups";
        if (best.load > out->load)
            *out = best;
    }
    return BL_OK;
}

bl_status bl_bound_of(const bl_problem *problem, bl_bound *out, bl_error *err) {
    const int n_experts = problem->n_experts;
    double *sum = NULL;
    parts p = {0};
    best_bound best;
    bl_status st;
    BL_TRY_GOTO(st, find_parts(problem, &p, err), done);
    BL_TRY_GOTO(st, BL_CALLOC(sum, n_experts, err), done);
    const double total = bl_problem_total_load(problem);
    bl_problem_sum_load(problem, sum);
    double apart = 0.0, largest = -1.0;
    const char *kind = "mean"; /* of the scenario that adds most */
    for (int s = 0; s < problem->n_scenarios; s++) {
        const double *load = problem->load + (size_t)s * (size_t)n_experts;
        BL_TRY_GOTO(st, bound_of_load(&p, load, &best, err), done);
        apart += best.load;
        if (best.load > largest) {
            largest = best.load;
            kind = best.kind;
        }
    }
    bl_bound bound = {1.0, "mean"};
    if (total > 0.0) {
        BL_TRY_GOTO(st, bound_of_load(&p, sum, &best, err), done);
        bound = best.load > apart ? (bl_bound){best.load, best.kind} : (bl_bound){apart, kind};
        bound.max_over_mean *= bl_problem_active_ranks(problem) / total;
        bound.max_over_mean = fmax(bound.max_over_mean, 1.0);
    }
    *out = bound;
done:
    free(sum);
    parts_free(&p);
    return st;
}
