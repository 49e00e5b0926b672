#include "planner/rules.h"

#include "planner/problem.h"

#include <stdlib.h>
#include <string.h>

/* The flow of the header, with every expert's units laid out one after another. */
typedef struct layout {
    const bl_problem *problem;
    int n_domains;
    int *domain;       /* [n_ranks]; one for all where no rule asks */
    int *at;           /* [n_experts][n_domains] rank that holds the expert's unit, or -1 */
    int *units;        /* [n_experts] units placed */
    int *used;         /* [n_ranks] */
    double *rank_load; /* [n_ranks] of what is placed */
    double *load;      /* [n_experts] of one copy; NULL: all alike */
    /* breadth-first search over ranks: who comes to this rank in place of whom */
    int *from_expert, *from_rank, *queue;
} layout;

static int *at(const layout *l, int expert, int domain) {
    return &l->at[(size_t)expert * (size_t)l->n_domains + (size_t)domain];
}

static bool holds(const layout *l, int rank, int expert) {
    return *at(l, expert, l->domain[rank]) == rank;
}

/* May the expert have a unit on this rank, if its unit on `without` (or none: -1) went? */
static bool may_take(const layout *l, int rank, int expert, int without) {
    const int held = *at(l, expert, l->domain[rank]);
    return l->problem->slots_per_rank[rank] > 0 && bl_rules_may(l->problem->rules, rank, expert) &&
           (held < 0 || (held == without && held != rank));
}

static void place(layout *l, int rank, int expert) {
    *at(l, expert, l->domain[rank]) = rank;
    l->used[rank]++;
    l->units[expert]++;
    l->rank_load[rank] += l->load != NULL ? l->load[expert] : 1.0;
}

static void displace(layout *l, int rank, int expert) {
    *at(l, expert, l->domain[rank]) = -1;
    l->used[rank]--;
    l->units[expert]--;
    l->rank_load[rank] -= l->load != NULL ? l->load[expert] : 1.0;
}

/* The least loaded rank with room that may take a unit, or -1. */
static int direct_place(const layout *l, int expert) {
    int best = -1;
    for (int rank = 0; rank < l->problem->n_ranks; rank++) {
        if (l->used[rank] < l->problem->slots_per_rank[rank] && may_take(l, rank, expert, -1) &&
            (best < 0 || l->rank_load[rank] < l->rank_load[best]))
            best = rank;
    }
    return best;
}

/* Walk back from a rank with room: each expert on the way comes to the rank it can move to. */
static void shift_back(layout *l, int rank) {
    while (rank >= 0) {
        const int expert = l->from_expert[rank], from = l->from_rank[rank];
        if (from >= 0)
            displace(l, from, expert);
        place(l, rank, expert);
        rank = from;
    }
}

/* Ranks that `expert` could go to, seen from rank `from` (-1: from nowhere), not visited before. */
static void visit(layout *l, int expert, int from, int *n_queued) {
    for (int rank = 0; rank < l->problem->n_ranks; rank++) {
        if (l->from_expert[rank] >= 0 || !may_take(l, rank, expert, from))
            continue;
        l->from_expert[rank] = expert;
        l->from_rank[rank] = from;
        l->queue[(*n_queued)++] = rank;
    }
}

/* One unit more for an expert, others making room. */
static bool augment(layout *l, int expert) {
    const int direct = direct_place(l, expert);
    if (direct >= 0) {
        place(l, direct, expert);
        return true;
    }
    int n_queued = 0;
    for (int rank = 0; rank < l->problem->n_ranks; rank++)
        l->from_expert[rank] = -1;
    visit(l, expert, -1, &n_queued);
    for (int i = 0; i < n_queued; i++) {
        const int rank = l->queue[i];
        if (l->used[rank] < l->problem->slots_per_rank[rank]) {
            shift_back(l, rank);
            return true;
        }
        for (int other = 0; other < l->problem->n_experts; other++) {
            if (other != expert && holds(l, rank, other))
                visit(l, other, rank, &n_queued);
        }
    }
    return false;
}

static void layout_free(layout *l) {
    free(l->domain);
    free(l->at);
    free(l->units);
    free(l->used);
    free(l->rank_load);
    free(l->from_expert);
    free(l->from_rank);
    free(l->queue);
}

static bl_status layout_create(const bl_problem *problem, layout *out, bl_error *err) {
    const int *domain = problem->rules != NULL ? problem->rules->domain : NULL;
    layout l = {.problem = problem, .n_domains = 1};
    bl_status st;
    BL_TRY_GOTO(st, BL_CALLOC(l.domain, problem->n_ranks, err), failed);
    for (int rank = 0; rank < problem->n_ranks && domain != NULL; rank++) {
        l.domain[rank] = domain[rank];
        l.n_domains = domain[rank] >= l.n_domains ? domain[rank] + 1 : l.n_domains;
    }
    const size_t cells = (size_t)problem->n_experts * (size_t)l.n_domains;
    BL_TRY_GOTO(st, BL_CALLOC(l.at, cells, err), failed);
    BL_TRY_GOTO(st, BL_CALLOC(l.units, problem->n_experts, err), failed);
    BL_TRY_GOTO(st, BL_CALLOC(l.used, problem->n_ranks, err), failed);
    BL_TRY_GOTO(st, BL_CALLOC(l.rank_load, problem->n_ranks, err), failed);
    BL_TRY_GOTO(st, BL_CALLOC(l.from_expert, problem->n_ranks, err), failed);
    BL_TRY_GOTO(st, BL_CALLOC(l.from_rank, problem->n_ranks, err), failed);
    BL_TRY_GOTO(st, BL_CALLOC(l.queue, problem->n_ranks, err), failed);
    for (size_t cell = 0; cell < cells; cell++)
        l.at[cell] = -1;
    *out = l;
    return BL_OK;
failed:
    layout_free(&l);
    return st;
}

/* ---- can they be kept? ------------------------------------------------------------------------*/

/* Different domains that may hold the expert. */
static int domains_for(const layout *l, int expert) {
    bl_domain_count count = {.least = BL_MOST_DOMAINS};
    for (int rank = 0; rank < l->problem->n_ranks; rank++) {
        if (l->problem->slots_per_rank[rank] > 0 && bl_rules_may(l->problem->rules, rank, expert))
            bl_domain_count_add(&count, l->domain[rank]);
    }
    return count.n;
}

static bl_status check_values(const bl_problem *problem, bl_error *err) {
    const bl_rules *rules = problem->rules;
    for (int rank = 0; rank < problem->n_ranks && rules->domain != NULL; rank++) {
        if (rules->domain[rank] < 0 || rules->domain[rank] >= problem->n_ranks)
            return bl_fail_at(err, BL_ERR_RANGE, bl_at_layer(NULL, problem->layer),
                              "rank %d is in fault domain %d", rank, rules->domain[rank]);
    }
    for (int expert = 0; expert < problem->n_experts; expert++) {
        const int least = bl_rules_least(rules, expert);
        if (least < 1 || least > BL_MOST_DOMAINS)
            return bl_fail_at(err, BL_ERR_RANGE, bl_at_expert(NULL, problem->layer, expert),
                              "must be in %d fault domains: give 1 to %d", least, BL_MOST_DOMAINS);
    }
    return BL_OK;
}

static bl_status check_ranks(const bl_problem *problem, bl_error *err) {
    for (int rank = 0; rank < problem->n_ranks; rank++) {
        int may = 0;
        for (int expert = 0; expert < problem->n_experts; expert++)
            may += bl_rules_may(problem->rules, rank, expert);
        if (may < problem->slots_per_rank[rank])
            return bl_fail_at(err, BL_ERR_INFEASIBLE, bl_at_layer(NULL, problem->layer),
                              "rank %d has %d slots, but may hold only %d experts; give it fewer "
                              "slots",
                              rank, problem->slots_per_rank[rank], may);
    }
    return BL_OK;
}

bl_status bl_rules_check_problem(const bl_problem *problem, bl_error *err) {
    if (problem->rules == NULL)
        return BL_OK;
    BL_TRY(check_values(problem, err));
    BL_TRY(check_ranks(problem, err));
    layout l;
    BL_TRY(layout_create(problem, &l, err));
    int64_t wanted = 0, placed = 0;
    int short_of = -1, can = 0;
    for (int expert = 0; expert < problem->n_experts; expert++) {
        const int least = bl_rules_least(problem->rules, expert);
        wanted += least;
        while (l.units[expert] < least && augment(&l, expert))
            placed++;
        if (l.units[expert] < least && short_of < 0) {
            short_of = expert;
            can = domains_for(&l, expert);
        }
    }
    layout_free(&l);
    if (short_of < 0)
        return BL_OK;
    const int least = bl_rules_least(problem->rules, short_of);
    const bl_where where = bl_at_expert(NULL, problem->layer, short_of);
    if (can < least)
        return bl_fail_at(err, BL_ERR_INFEASIBLE, where,
                          "must be in %d fault domains, but only %d of them have a rank with slots "
                          "that may hold it",
                          least, can);
    return bl_fail_at(err, BL_ERR_INFEASIBLE, where,
                      "cannot be in %d fault domains: all experts together need %lld copies there, "
                      "and the slots take %lld; %lld more slots are needed",
                      least, (long long)wanted, (long long)placed, (long long)(wanted - placed));
}

bl_status bl_rules_check(const bl_problem *problem, const bl_layer_placement *placement,
                         bl_error *err) {
    const bl_rules *rules = problem->rules;
    if (rules == NULL)
        return BL_OK;
    bl_domain_count *counts;
    BL_TRY(BL_CALLOC(counts, problem->n_experts, err));
    for (int expert = 0; expert < problem->n_experts; expert++)
        counts[expert].least = bl_rules_least(rules, expert);
    bl_status st = BL_OK;
    for (int rank = 0; rank < problem->n_ranks && st == BL_OK; rank++) {
        for (int slot = placement->begin[rank]; slot < placement->begin[rank + 1]; slot++) {
            const int32_t expert = placement->expert[slot];
            if (expert == BL_NO_EXPERT)
                continue;
            bl_domain_count_add(&counts[expert], rules->domain != NULL ? rules->domain[rank] : 0);
            if (!bl_rules_may(rules, rank, expert))
                st = bl_fail_at(err, BL_ERR_INFEASIBLE, bl_at_expert(NULL, problem->layer, expert),
                                "is on rank %d, which may not hold it", rank);
        }
    }
    for (int expert = 0; expert < problem->n_experts && st == BL_OK; expert++) {
        if (counts[expert].n < counts[expert].least)
            st = bl_fail_at(err, BL_ERR_INFEASIBLE, bl_at_expert(NULL, problem->layer, expert),
                            "is in %d fault domains, and must be in %d", counts[expert].n,
                            counts[expert].least);
    }
    free(counts);
    return st;
}

/* ---- ranks that are alike ---------------------------------------------------------------------*/

static int ranks_in_domain_of(const bl_problem *problem, int rank) {
    int n = 0;
    for (int other = 0; other < problem->n_ranks; other++)
        n += problem->rules->domain[other] == problem->rules->domain[rank];
    return n;
}

bool bl_rules_alike(const bl_problem *problem, int rank, int other) {
    if (problem->slots_per_rank[rank] != problem->slots_per_rank[other])
        return false;
    const bl_rules *rules = problem->rules;
    if (rules == NULL)
        return true;
    if (rules->may != NULL && memcmp(rules->may->bits + (size_t)rank * rules->may->words,
                                     rules->may->bits + (size_t)other * rules->may->words,
                                     rules->may->words * sizeof *rules->may->bits) != 0)
        return false;
    return rules->domain == NULL || rules->domain[rank] == rules->domain[other] ||
           (ranks_in_domain_of(problem, rank) == 1 && ranks_in_domain_of(problem, other) == 1);
}

/* ---- repair -----------------------------------------------------------------------------------*/

typedef struct hot {
    double load;
    int expert;
} hot;

static int hottest_first(const void *a, const void *b) {
    const hot *x = a, *y = b;
    if (x->load != y->load)
        return x->load < y->load ? 1 : -1;
    return (x->expert > y->expert) - (x->expert < y->expert);
}

/* Count the copies that are there as units, as far as an expert needs them. */
static void keep_units(layout *l, const bl_layer_placement *placement) {
    for (int rank = 0; rank < placement->n_ranks; rank++) {
        for (int slot = placement->begin[rank]; slot < placement->begin[rank + 1]; slot++) {
            const int32_t expert = placement->expert[slot];
            if (expert != BL_NO_EXPERT && may_take(l, rank, expert, -1) &&
                l->units[expert] < bl_rules_least(l->problem->rules, expert))
                place(l, rank, expert);
        }
    }
}

/* The copies beyond the units that may stay where they are, hottest ones first. */
static void keep_others(layout *l, const hot *order, bl_holds *before, bl_holds *after) {
    const bl_problem *problem = l->problem;
    for (int i = 0; i < problem->n_experts; i++) {
        const int expert = order[i].expert;
        for (int rank = 0; rank < problem->n_ranks; rank++) {
            if (!bl_holds_has(before, rank, expert) || bl_holds_has(after, rank, expert) ||
                !bl_rules_may(problem->rules, rank, expert) ||
                l->used[rank] >= problem->slots_per_rank[rank])
                continue;
            bl_holds_set(after, rank, expert);
            l->used[rank]++;
        }
    }
}

static void write_back(const bl_holds *after, bl_layer_placement *placement) {
    for (int rank = 0; rank < placement->n_ranks; rank++) {
        int slot = placement->begin[rank];
        for (int expert = 0; expert < placement->n_experts; expert++) {
            if (bl_holds_has(after, rank, expert))
                placement->expert[slot++] = expert;
        }
        while (slot < placement->begin[rank + 1])
            placement->expert[slot++] = BL_NO_EXPERT;
    }
}

static bl_status lay_out(layout *l, const hot *order, bl_layer_placement *placement,
                         bl_error *err) {
    const bl_problem *problem = l->problem;
    keep_units(l, placement);
    for (int i = 0; i < problem->n_experts; i++) {
        const int expert = order[i].expert;
        while (l->units[expert] < bl_rules_least(problem->rules, expert)) {
            if (!augment(l, expert))
                return bl_fail_at(err, BL_ERR_INFEASIBLE,
                                  bl_at_expert(NULL, problem->layer, expert),
                                  "finds no slot that the rules allow");
        }
    }
    bl_holds before = {0}, after = {0};
    bl_status st = bl_holds_create(problem->n_ranks, problem->n_experts, &before, err);
    if (st == BL_OK)
        st = bl_holds_create(problem->n_ranks, problem->n_experts, &after, err);
    if (st == BL_OK) {
        bl_holds_add(&before, placement);
        for (int rank = 0; rank < problem->n_ranks; rank++) {
            for (int expert = 0; expert < problem->n_experts; expert++) {
                if (holds(l, rank, expert))
                    bl_holds_set(&after, rank, expert);
            }
        }
        keep_others(l, order, &before, &after);
        write_back(&after, placement);
    }
    bl_holds_free(&before);
    bl_holds_free(&after);
    return st;
}

bl_status bl_rules_repair(const bl_problem *problem, const double *load,
                          bl_layer_placement *placement, bl_error *err) {
    layout l;
    hot *order = NULL;
    double *share = NULL;
    BL_TRY(layout_create(problem, &l, err));
    bl_status st;
    BL_TRY_GOTO(st, BL_CALLOC(order, problem->n_experts, err), done);
    BL_TRY_GOTO(st, BL_CALLOC(share, problem->n_experts, err), done);
    for (int expert = 0; expert < problem->n_experts; expert++) {
        share[expert] = load[expert] / bl_rules_least(problem->rules, expert);
        order[expert] = (hot){share[expert], expert};
    }
    qsort(order, (size_t)problem->n_experts, sizeof *order, hottest_first);
    l.load = share;
    st = lay_out(&l, order, placement, err);
done:
    free(order);
    free(share);
    layout_free(&l);
    return st;
}
