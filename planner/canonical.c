#include "planner/canonical.h"

#include "core/mem.h"

#include <limits.h>
#include <stdlib.h>

typedef struct key {
    const bl_problem *problem;
    double sum;
    int slot; /* first that holds it now */
    int expert;
} key;

static int hottest_first(const void *a, const void *b) {
    const key *x = a, *y = b;
    const bl_problem *p = x->problem;
    if (x->sum != y->sum)
        return x->sum < y->sum ? 1 : -1;
    for (int s = 0; s < p->n_scenarios; s++) {
        const double *load = p->load + (size_t)s * (size_t)p->n_experts;
        if (load[x->expert] != load[y->expert])
            return load[x->expert] < load[y->expert] ? 1 : -1;
    }
    if (x->slot != y->slot)
        return x->slot < y->slot ? -1 : 1;
    return (x->expert > y->expert) - (x->expert < y->expert);
}

static int first_slot(const bl_layer_placement *current, int expert) {
    for (int slot = 0; current != NULL && slot < bl_layer_n_slots(current); slot++) {
        if (current->expert[slot] == expert)
            return slot;
    }
    return INT_MAX;
}

static bl_status sort(const bl_problem *problem, int *expert, bl_error *err) {
    const int n = problem->n_experts;
    double *sum = NULL;
    key *keys;
    BL_TRY(BL_CALLOC(keys, n, err));
    const bl_status st = BL_CALLOC(sum, n, err);
    if (st == BL_OK) {
        bl_problem_sum_load(problem, sum);
        for (int e = 0; e < n; e++)
            keys[e] = (key){problem, sum[e], first_slot(problem->current, e), e};
        qsort(keys, (size_t)n, sizeof *keys, hottest_first);
        for (int e = 0; e < n; e++)
            expert[e] = keys[e].expert;
    }
    free(sum);
    free(keys);
    return st;
}

/* The current placement under the new names. */
static bl_status rename_current(const bl_problem *problem, bl_canonical *c, bl_error *err) {
    int *rank_of;
    if (problem->current == NULL)
        return BL_OK;
    BL_TRY(bl_layer_placement_copy(problem->current, &c->current, err));
    BL_TRY(BL_CALLOC(rank_of, problem->n_experts, err));
    for (int e = 0; e < problem->n_experts; e++)
        rank_of[c->expert[e]] = e;
    for (int slot = 0; slot < bl_layer_n_slots(&c->current); slot++) {
        if (c->current.expert[slot] != BL_NO_EXPERT)
            c->current.expert[slot] = rank_of[c->current.expert[slot]];
    }
    free(rank_of);
    c->problem.current = &c->current;
    return BL_OK;
}

static bl_status fill(const bl_problem *problem, bl_canonical *c, bl_error *err) {
    const size_t n = (size_t)problem->n_experts, scenarios = (size_t)problem->n_scenarios;
    BL_TRY(BL_CALLOC(c->expert, n, err));
    BL_TRY(sort(problem, c->expert, err));
    BL_TRY(BL_CALLOC(c->load, n * scenarios, err));
    for (size_t at = 0; at < n * scenarios; at++)
        c->load[at] = problem->load[at / n * n + (size_t)c->expert[at % n]];
    c->problem.load = c->load;
    return rename_current(problem, c, err);
}

bl_status bl_canonical_create(const bl_problem *problem, bl_canonical *out, bl_error *err) {
    *out = (bl_canonical){.problem = *problem};
    if (problem->rules != NULL || problem->sources != NULL || problem->tail > 0.0 ||
        problem->rule == BL_RULE_PER_STEP)
        return BL_OK;
    const bl_status st = fill(problem, out, err);
    if (st < 0)
        bl_canonical_free(out);
    return st;
}

void bl_canonical_free(bl_canonical *canonical) {
    free(canonical->expert);
    free(canonical->load);
    bl_layer_placement_free(&canonical->current);
    *canonical = (bl_canonical){0};
}

void bl_canonical_restore(const bl_canonical *canonical, bl_layer_placement *placement) {
    for (int slot = 0; canonical->expert != NULL && slot < bl_layer_n_slots(placement); slot++) {
        if (placement->expert[slot] != BL_NO_EXPERT)
            placement->expert[slot] = canonical->expert[placement->expert[slot]];
    }
}
