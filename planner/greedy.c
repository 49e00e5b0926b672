#include "planner/greedy.h"

#include "planner/holds.h"
#include "planner/replicate.h"

#include <assert.h>
#include <string.h>

typedef struct item {
    double load; /* of one copy */
    int expert;
} item;

typedef struct packing {
    const bl_rules *rules;
    const double *load; /* [n_experts] of the expert, over all its copies */
    int *copies;
    bl_layer_placement *placement;
    bl_holds holds;
    int *used;         /* [n_ranks] slots filled */
    double *rank_load; /* [n_ranks] */
} packing;

static int longest_first(const void *a, const void *b) {
    const item *x = a, *y = b;
    if (x->load != y->load)
        return x->load < y->load ? 1 : -1;
    return (x->expert > y->expert) - (x->expert < y->expert);
}

static int room(const packing *p, int rank) {
    return p->placement->begin[rank + 1] - p->placement->begin[rank] - p->used[rank];
}

static void put(packing *p, int rank, int expert) {
    p->placement->expert[p->placement->begin[rank] + p->used[rank]++] = expert;
    p->rank_load[rank] += p->load[expert] / p->copies[expert];
    bl_holds_set(&p->holds, rank, expert);
}

static bool may_put(const packing *p, int rank, int expert) {
    return !bl_holds_has(&p->holds, rank, expert) && bl_rules_may(p->rules, rank, expert);
}

/* Least loaded rank with room that may take the expert, or -1; only in a domain without it as long
 * as it needs more of them. */
static int place_for(const packing *p, int expert) {
    bl_domain_count here = {.least = bl_rules_least(p->rules, expert)};
    for (int rank = 0; here.least > 1 && rank < p->placement->n_ranks; rank++) {
        if (bl_holds_has(&p->holds, rank, expert))
            bl_domain_count_add(&here, p->rules->domain[rank]);
    }
    int best = -1;
    for (int rank = 0; rank < p->placement->n_ranks; rank++) {
        bl_domain_count after = here;
        if (here.n > 0 && here.n < here.least)
            bl_domain_count_add(&after, p->rules->domain[rank]);
        else
            after.n++;
        if (room(p, rank) > 0 && may_put(p, rank, expert) && after.n > here.n &&
            (best < 0 || p->rank_load[rank] < p->rank_load[best]))
            best = rank;
    }
    return best;
}

/* The corner: every rank with room holds `expert`. Move some copy f from a full rank without
 * `expert` to a rank with room and without f, and put `expert` in its place: the exchange that
 * leaves the lower peak. False when there is none. */
static bool exchange(packing *p, int expert) {
    const bl_layer_placement *pl = p->placement;
    const double mine = p->load[expert] / p->copies[expert];
    int best_slot = -1, best_from = -1, best_to = -1;
    double best_peak = 0.0;
    for (int to = 0; to < pl->n_ranks; to++) {
        if (room(p, to) == 0)
            continue;
        for (int from = 0; from < pl->n_ranks; from++) {
            if (!may_put(p, from, expert))
                continue;
            for (int slot = pl->begin[from]; slot < pl->begin[from] + p->used[from]; slot++) {
                const int other = pl->expert[slot];
                if (!may_put(p, to, other))
                    continue;
                const double theirs = p->load[other] / p->copies[other];
                const double there = p->rank_load[to] + theirs;
                const double here = p->rank_load[from] - theirs + mine;
                const double peak = there > here ? there : here;
                if (best_slot < 0 || peak < best_peak) {
                    best_slot = slot;
                    best_from = from;
                    best_to = to;
                    best_peak = peak;
                }
            }
        }
    }
    if (best_slot < 0)
        return false;
    const int other = pl->expert[best_slot];
    put(p, best_to, other);
    pl->expert[best_slot] = expert;
    p->rank_load[best_from] += mine - p->load[other] / p->copies[other];
    bl_holds_unset(&p->holds, best_from, other);
    bl_holds_set(&p->holds, best_from, expert);
    return true;
}

/* Fill the slots whose copy found no place with the hottest experts their rank lacks. */
static void fill(packing *p) {
    const bl_layer_placement *pl = p->placement;
    for (int rank = 0; rank < pl->n_ranks; rank++) {
        while (room(p, rank) > 0) {
            int best = -1;
            for (int expert = 0; expert < pl->n_experts; expert++) {
                if (may_put(p, rank, expert) && (best < 0 || p->load[expert] * p->copies[best] >
                                                                 p->load[best] * p->copies[expert]))
                    best = expert;
            }
            assert(best >= 0); /* a rank may hold as many experts as it has slots */
            p->copies[best]++;
            put(p, rank, best);
        }
    }
}

static void pack_items(packing *p, const item *items, int n_items) {
    for (int i = 0; i < n_items; i++) {
        const int expert = items[i].expert;
        const int rank = place_for(p, expert);
        if (rank >= 0)
            put(p, rank, expert);
        else if (!exchange(p, expert))
            p->copies[expert]--;
    }
}

/* Where one after another led to breaking a rule: keep what can be kept, and leave holes. */
static bl_status repack(const bl_problem *problem, packing *p, bl_error *err) {
    bl_layer_placement *pl = p->placement;
    BL_TRY(bl_rules_repair(problem, p->load, pl, err));
    memset(p->holds.bits, 0, p->holds.words * (size_t)pl->n_ranks * sizeof *p->holds.bits);
    bl_holds_add(&p->holds, pl);
    for (int expert = 0; expert < pl->n_experts; expert++)
        p->copies[expert] = 0;
    for (int rank = 0; rank < pl->n_ranks; rank++) {
        p->used[rank] = 0;
        while (room(p, rank) > 0 && pl->expert[pl->begin[rank] + p->used[rank]] != BL_NO_EXPERT)
            p->copies[pl->expert[pl->begin[rank] + p->used[rank]++]]++;
    }
    return BL_OK;
}

bl_status bl_pack(const bl_problem *problem, const double *load, int *copies,
                  bl_layer_placement *out, bl_error *err) {
    bl_layer_placement made = {0};
    BL_TRY(bl_problem_empty_placement(problem, &made, err));
    packing p = {.rules = problem->rules, .load = load, .copies = copies, .placement = &made};
    item *items = NULL;
    bl_status st;
    BL_TRY_GOTO(st, bl_holds_create(problem->n_ranks, problem->n_experts, &p.holds, err), done);
    BL_TRY_GOTO(st, BL_CALLOC(p.used, problem->n_ranks, err), done);
    BL_TRY_GOTO(st, BL_CALLOC(p.rank_load, problem->n_ranks, err), done);
    BL_TRY_GOTO(st, BL_CALLOC(items, bl_layer_n_slots(&made), err), done);
    int n_items = 0;
    for (int expert = 0; expert < problem->n_experts; expert++) {
        for (int copy = 0; copy < copies[expert]; copy++)
            items[n_items++] = (item){load[expert] / copies[expert], expert};
    }
    qsort(items, (size_t)n_items, sizeof *items, longest_first);
    pack_items(&p, items, n_items);
    if (bl_rules_check(problem, &made, NULL) < 0)
        BL_TRY_GOTO(st, repack(problem, &p, err), done);
    fill(&p);
    *out = made;
    made = (bl_layer_placement){0};
done:
    bl_layer_placement_free(&made);
    bl_holds_free(&p.holds);
    free(p.used);
    free(p.rank_load);
    free(items);
    return st;
}

bl_status bl_greedy(const bl_problem *problem, bl_layer_placement *out, bl_error *err) {
    const int n_experts = problem->n_experts;
    double *sum = NULL;
    int *copies = NULL;
    bl_status st;
    BL_TRY_GOTO(st, BL_CALLOC(sum, n_experts, err), done);
    BL_TRY_GOTO(st, BL_CALLOC(copies, n_experts, err), done);
    bl_problem_sum_load(problem, sum);
    BL_TRY_GOTO(st,
                bl_replicate(sum, n_experts, bl_problem_n_slots(problem),
                             problem->rules != NULL && problem->rules->domain != NULL
                                 ? problem->rules->least
                                 : NULL,
                             bl_problem_active_ranks(problem), copies, NULL, NULL, err),
                done);
    BL_TRY_GOTO(st, bl_pack(problem, sum, copies, out, err), done);
done:
    free(sum);
    free(copies);
    return st;
}
