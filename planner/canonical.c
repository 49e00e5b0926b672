#include "planner/canonical.h"

#include "core/mem.h"
#include "planner/timed.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

/* ---- the order of experts ---------------------------------------------------------------------*/

typedef struct key {
    const bl_problem *problem;
    double sum;
    int slot; /* first that holds it now */
    int expert;
} key;

/* More first. */
static int compare(double x, double y) {
    return (x < y) - (x > y);
}

static int by_rules(const key *x, const key *y) {
    const bl_problem *p = x->problem;
    const bl_rules *rules = p->rules;
    if (rules == NULL)
        return 0;
    int order = compare(bl_rules_least(rules, x->expert), bl_rules_least(rules, y->expert));
    for (int rank = 0; rank < p->n_ranks && order == 0 && rules->may != NULL; rank++)
        order = compare(bl_holds_has(rules->may, rank, x->expert),
                        bl_holds_has(rules->may, rank, y->expert));
    return order;
}

static int by_sources(const key *x, const key *y) {
    const bl_sources *sources = x->problem->sources;
    int order = 0;
    for (int group = 0; sources != NULL && group < sources->n_groups; group++) {
        for (int source = 0; source < sources->n_sources && order == 0; source++) {
            const double *load = bl_sources_load(sources, group, source);
            order = compare(load[x->expert], load[y->expert]);
        }
    }
    return order;
}

/* 0: nothing but names tells them apart. */
static int by_load(const key *x, const key *y) {
    const bl_problem *p = x->problem;
    int order = compare(x->sum, y->sum);
    for (int s = 0; s < p->n_scenarios && order == 0; s++) {
        const double *load = p->load + (size_t)s * (size_t)p->n_experts;
        order = compare(load[x->expert], load[y->expert]);
    }
    if (order == 0)
        order = by_rules(x, y);
    return order != 0 ? order : by_sources(x, y);
}

static int hottest_first(const void *a, const void *b) {
    const key *x = a, *y = b;
    const int order = by_load(x, y);
    if (order != 0)
        return order;
    return x->slot != y->slot ? (x->slot > y->slot) - (x->slot < y->slot)
                              : (x->expert > y->expert) - (x->expert < y->expert);
}

/* First slot of every expert, INT_MAX without one. */
static void note_slots(const bl_layer_placement *current, key *keys) {
    for (int slot = 0; current != NULL && slot < bl_layer_n_slots(current); slot++) {
        const int expert = current->expert[slot];
        if (expert != BL_NO_EXPERT && keys[expert].slot == INT_MAX)
            keys[expert].slot = slot;
    }
}

static bl_status make_keys(const bl_problem *problem, key *keys, bl_error *err) {
    double *sum;
    BL_TRY(BL_CALLOC(sum, problem->n_experts, err));
    bl_problem_sum_load(problem, sum);
    for (int e = 0; e < problem->n_experts; e++)
        keys[e] = (key){problem, sum[e], INT_MAX, e};
    free(sum);
    return BL_OK;
}

/* place[expert]: how many different loads are heavier. Experts that tie have the same. */
static void note_places(key *keys, int n, int *place) {
    qsort(keys, (size_t)n, sizeof *keys, hottest_first);
    for (int i = 0, at = 0; i < n; i++) {
        at = i > 0 && by_load(&keys[i - 1], &keys[i]) != 0 ? i : at;
        place[keys[i].expert] = at;
    }
}

static int by_expert(const void *a, const void *b) {
    const key *x = a, *y = b;
    return (x->expert > y->expert) - (x->expert < y->expert);
}

/* ---- the order of ranks -----------------------------------------------------------------------*/

static bool ports_alike(const bl_problem *problem, int rank, int other) {
    if (problem->timed == NULL)
        return true;
    const bl_cost_rates *r = bl_cost_rates_of(problem->timed->cost);
    bool alike = r->apart[rank] == r->apart[other] && r->weights_s[rank] == r->weights_s[other] &&
                 r->row_s[rank] == r->row_s[other] && r->in_s[rank] == r->in_s[other] &&
                 r->out_s[rank] == r->out_s[other] &&
                 bl_cost_attention_s(problem->timed->cost, rank, 1.0) ==
                     bl_cost_attention_s(problem->timed->cost, other, 1.0);
    for (int level = 0; level < r->n_groupings && alike; level++)
        alike = r->port_of[level * r->n_ranks + rank] == r->port_of[level * r->n_ranks + other];
    return alike;
}

static bool are_alike(const bl_problem *problem, int rank, int other) {
    return bl_rules_alike(problem, rank, other) &&
           (problem->node == NULL || problem->node[rank] == problem->node[other]) &&
           ports_alike(problem, rank, other);
}

/* What a rank holds, as the places of its experts. */
typedef struct content {
    const int *place;
    int n, rank;
} content;

static int ascending(const void *a, const void *b) {
    return (*(const int *)a > *(const int *)b) - (*(const int *)a < *(const int *)b);
}

static int by_content(const void *a, const void *b) {
    const content *x = a, *y = b;
    for (int i = 0; i < x->n && i < y->n; i++) {
        if (x->place[i] != y->place[i])
            return x->place[i] < y->place[i] ? -1 : 1;
    }
    if (x->n != y->n)
        return x->n > y->n ? -1 : 1;
    return (x->rank > y->rank) - (x->rank < y->rank);
}

/* Sorted places of every rank's experts; holes count as the last. */
static void take_contents(const bl_layer_placement *current, const int *place, int *places,
                          content *contents) {
    for (int rank = 0; rank < current->n_ranks; rank++) {
        const int begin = current->begin[rank], n = current->begin[rank + 1] - begin;
        for (int i = begin; i < begin + n; i++)
            places[i] = current->expert[i] != BL_NO_EXPERT ? place[current->expert[i]] : INT_MAX;
        qsort(places + begin, (size_t)n, sizeof *places, ascending);
        contents[rank] = (content){places + begin, n, rank};
    }
}

/* order[rank]: whose content stands there. Classes of ranks that are alike, one after another. */
static void sort_classes(const bl_problem *problem, const content *contents, content *class,
                         bool *done, int *order) {
    for (int first = 0; first < problem->n_ranks; first++) {
        int n = 0, at = 0;
        for (int rank = first; rank < problem->n_ranks && !done[first]; rank++) {
            if (!done[rank] && are_alike(problem, first, rank))
                class[n++] = contents[rank];
        }
        qsort(class, (size_t)n, sizeof *class, by_content);
        for (int rank = first; rank < problem->n_ranks && at < n; rank++) {
            if (done[rank] || !are_alike(problem, first, rank))
                continue;
            order[rank] = class[at++].rank;
        }
        for (int i = 0; i < n; i++)
            done[class[i].rank] = true;
    }
}

static bl_status sort_ranks(const bl_problem *problem, const int *place, int *order,
                            bl_error *err) {
    const bl_layer_placement *current = problem->current;
    int *places = NULL;
    content *contents = NULL;
    bool *done = NULL;
    const size_t n = (size_t)problem->n_ranks;
    bl_status st;
    BL_TRY_GOTO(st, BL_CALLOC(places, bl_layer_n_slots(current), err), end);
    BL_TRY_GOTO(st, BL_CALLOC(contents, 2 * n, err), end);
    BL_TRY_GOTO(st, BL_CALLOC(done, n, err), end);
    take_contents(current, place, places, contents);
    sort_classes(problem, contents, contents + n, done, order);
end:
    free(places);
    free(contents);
    free(done);
    return st;
}

/* ---- the sorted problem -----------------------------------------------------------------------*/

/* The current placement on the new ranks, under the old names. */
static bl_status exchange_ranks(const bl_problem *problem, bl_canonical *c, bl_error *err) {
    const bl_layer_placement *from = problem->current;
    BL_TRY(bl_layer_placement_copy(from, &c->current, err));
    for (int rank = 0, at = 0; rank < from->n_ranks; rank++) {
        const int begin = from->begin[c->rank[rank]], end = from->begin[c->rank[rank] + 1];
        c->current.begin[rank] = at;
        for (int slot = begin; slot < end; slot++)
            c->current.expert[at++] = from->expert[slot];
    }
    c->problem.current = &c->current;
    return BL_OK;
}

static bl_status rename_rules(const bl_rules *rules, const bl_problem *problem, bl_canonical *c,
                              bl_error *err) {
    c->rules = *rules;
    c->problem.rules = &c->rules;
    if (rules->may != NULL) {
        BL_TRY(bl_holds_create(problem->n_ranks, problem->n_experts, &c->may, err));
        c->rules.may = &c->may;
    }
    if (rules->least != NULL) {
        BL_TRY(BL_CALLOC(c->least, problem->n_experts, err));
        c->rules.least = c->least;
    }
    for (int e = 0; e < problem->n_experts; e++) {
        if (rules->least != NULL)
            c->least[e] = rules->least[c->expert[e]];
        for (int rank = 0; rank < problem->n_ranks && rules->may != NULL; rank++) {
            if (bl_holds_has(rules->may, rank, c->expert[e]))
                bl_holds_set(&c->may, rank, e);
        }
    }
    return BL_OK;
}

static bl_status rename_sources(const bl_sources *from, const int *new_id, bl_canonical *c,
                                bl_error *err) {
    const size_t n = (size_t)from->n_experts;
    const size_t cells = (size_t)from->n_groups * (size_t)from->n_sources * n;
    c->sources = *from;
    c->sources.load = NULL;
    c->sources.id = NULL;
    c->problem.sources = &c->sources;
    BL_TRY(BL_CALLOC(c->sources.load, cells, err));
    for (size_t at = 0; at < cells; at++)
        c->sources.load[at] = from->load[at / n * n + (size_t)c->expert[at % n]];
    if (from->n_tokens == 0)
        return BL_OK;
    const size_t ids = from->n_tokens * (size_t)from->k;
    BL_TRY(BL_CALLOC(c->sources.id, ids, err));
    for (size_t i = 0; i < ids; i++)
        c->sources.id[i] = from->id[i] >= 0 ? new_id[from->id[i]] : from->id[i];
    return BL_OK;
}

static void rename_placement(bl_layer_placement *placement, const int *name) {
    for (int slot = 0; slot < bl_layer_n_slots(placement); slot++) {
        if (placement->expert[slot] != BL_NO_EXPERT)
            placement->expert[slot] = name[placement->expert[slot]];
    }
}

static bl_status rename_all(const bl_problem *problem, const int *new_id, bl_canonical *c,
                            bl_error *err) {
    const size_t n = (size_t)problem->n_experts, cells = n * (size_t)problem->n_scenarios;
    BL_TRY(BL_CALLOC(c->load, cells, err));
    for (size_t at = 0; at < cells; at++)
        c->load[at] = problem->load[at / n * n + (size_t)c->expert[at % n]];
    c->problem.load = c->load;
    if (c->problem.current != NULL)
        rename_placement(&c->current, new_id);
    if (problem->rules != NULL)
        BL_TRY(rename_rules(problem->rules, problem, c, err));
    return problem->sources != NULL ? rename_sources(problem->sources, new_id, c, err) : BL_OK;
}

static bl_status fill(const bl_problem *problem, key *keys, int *scratch, bl_canonical *c,
                      bl_error *err) {
    const int n = problem->n_experts;
    for (int rank = 0; rank < problem->n_ranks; rank++)
        c->rank[rank] = rank;
    BL_TRY(make_keys(problem, keys, err));
    if (problem->current != NULL) {
        note_places(keys, n, scratch);
        if (problem->sources == NULL)
            BL_TRY(sort_ranks(problem, scratch, c->rank, err));
        BL_TRY(exchange_ranks(problem, c, err));
        qsort(keys, (size_t)n, sizeof *keys, by_expert);
        note_slots(&c->current, keys);
    }
    qsort(keys, (size_t)n, sizeof *keys, hottest_first);
    for (int e = 0; e < n; e++) {
        c->expert[e] = keys[e].expert;
        scratch[keys[e].expert] = e;
    }
    return rename_all(problem, scratch, c, err);
}

bl_status bl_canonical_create(const bl_problem *problem, bl_canonical *out, bl_error *err) {
    const size_t n = (size_t)problem->n_experts;
    key *keys = NULL;
    int *scratch = NULL;
    bl_status st;
    *out = (bl_canonical){.problem = *problem};
    BL_TRY_GOTO(st, BL_CALLOC(out->expert, n, err), end);
    BL_TRY_GOTO(st, BL_CALLOC(out->rank, problem->n_ranks, err), end);
    BL_TRY_GOTO(st, BL_CALLOC(keys, n, err), end);
    BL_TRY_GOTO(st, BL_CALLOC(scratch, n, err), end);
    st = fill(problem, keys, scratch, out, err);
end:
    free(keys);
    free(scratch);
    if (st < 0)
        bl_canonical_free(out);
    return st;
}

void bl_canonical_free(bl_canonical *canonical) {
    free(canonical->expert);
    free(canonical->rank);
    free(canonical->load);
    free(canonical->least);
    free(canonical->sources.load);
    free(canonical->sources.id);
    bl_holds_free(&canonical->may);
    bl_layer_placement_free(&canonical->current);
    *canonical = (bl_canonical){0};
}

/* ---- and back ---------------------------------------------------------------------------------*/

bl_status bl_canonical_restore(const bl_canonical *canonical, bl_layer_placement *placement,
                               double *share, bl_error *err) {
    bl_layer_placement sorted;
    double *shares = NULL;
    const size_t n = (size_t)bl_layer_n_slots(placement);
    BL_TRY(bl_layer_placement_copy(placement, &sorted, err));
    const bl_status st = BL_CALLOC(shares, n + 1, err);
    if (st >= 0 && share != NULL)
        memcpy(shares, share, n * sizeof *share);
    for (int rank = 0; rank < placement->n_ranks && st >= 0; rank++) {
        const int from = sorted.begin[rank], to = sorted.begin[canonical->rank[rank]];
        for (int i = 0; i < sorted.begin[rank + 1] - from; i++) {
            placement->expert[to + i] = sorted.expert[from + i];
            if (share != NULL)
                share[to + i] = shares[from + i];
        }
    }
    rename_placement(placement, canonical->expert);
    free(shares);
    bl_layer_placement_free(&sorted);
    return st;
}
