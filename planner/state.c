#include "planner/state.h"

#include <limits.h>
#include <string.h>

static size_t row(const bl_state *state, int index) {
    return (size_t)index * (size_t)state->n_scenarios;
}

/* ---- chains of an expert's copies ----------------------------------------------------------- */

static void link_copy(bl_state *state, int slot, int expert) {
    state->expert[slot] = expert;
    state->next[slot] = -1;
    if (expert == BL_NO_EXPERT)
        return;
    state->next[slot] = state->head[expert];
    state->head[expert] = slot;
    state->copies[expert]++;
    bl_holds_set(&state->holds, state->rank[slot], expert);
    state->moves += !bl_holds_has(&state->home, state->rank[slot], expert);
}

static void unlink_copy(bl_state *state, int slot) {
    const int expert = state->expert[slot];
    if (expert == BL_NO_EXPERT)
        return;
    int *from = &state->head[expert];
    while (*from != slot)
        from = &state->next[*from];
    *from = state->next[slot];
    state->copies[expert]--;
    bl_holds_unset(&state->holds, state->rank[slot], expert);
    state->moves -= !bl_holds_has(&state->home, state->rank[slot], expert);
}

/* ---- loads ---------------------------------------------------------------------------------- */

static void weigh_copies(bl_state *state, int expert) {
    double sum = 0.0;
    for (int s = 0; s < state->n_scenarios; s++)
        sum += state->load[row(state, expert) + (size_t)s];
    for (int slot = state->head[expert]; slot >= 0; slot = state->next[slot])
        state->weight[slot] = sum / state->copies[expert];
}

static void load_rank(bl_state *state, int rank) {
    double *into = state->rank_load + row(state, rank);
    memset(into, 0, (size_t)state->n_scenarios * sizeof *into);
    for (int slot = state->begin[rank]; slot < state->begin[rank + 1]; slot++) {
        const int expert = state->expert[slot];
        if (expert == BL_NO_EXPERT)
            continue;
        const double *load = state->load + row(state, expert);
        const double share = 1.0 / state->copies[expert];
        for (int s = 0; s < state->n_scenarios; s++)
            into[s] += load[s] * share;
    }
}

static double *node_of(const bl_state *state, int node) {
    return state->most + row(state, node);
}

static void compare_children(bl_state *state, int node) {
    const double *left = node_of(state, 2 * node), *right = node_of(state, 2 * node + 1);
    double *into = node_of(state, node);
    for (int s = 0; s < state->n_scenarios; s++)
        into[s] = left[s] > right[s] ? left[s] : right[s];
}

/* Load a rank anew and tell those above. */
static void reload_rank(bl_state *state, int rank) {
    load_rank(state, rank);
    for (int node = (state->n_leaves + rank) / 2; node > 0; node /= 2)
        compare_children(state, node);
}

static void load_ranks_of(bl_state *state, int expert) {
    for (int slot = state->head[expert]; slot >= 0; slot = state->next[slot])
        reload_rank(state, state->rank[slot]);
}

static void sum_objective(bl_state *state) {
    const double *most = node_of(state, 1);
    double sum = 0.0;
    for (int s = 0; s < state->n_scenarios; s++)
        sum += most[s];
    state->objective = sum;
}

/* ---- life ----------------------------------------------------------------------------------- */

static bl_status allocate(const bl_problem *problem, bl_state *state, bl_error *err) {
    const size_t scenarios = (size_t)state->n_scenarios;
    BL_TRY(BL_CALLOC(state->expert, state->n_slots, err));
    BL_TRY(BL_CALLOC(state->rank, state->n_slots, err));
    BL_TRY(BL_CALLOC(state->next, state->n_slots, err));
    BL_TRY(BL_CALLOC(state->weight, state->n_slots, err));
    BL_TRY(BL_CALLOC(state->copies, state->n_experts, err));
    BL_TRY(BL_CALLOC(state->head, state->n_experts, err));
    BL_TRY(BL_CALLOC(state->load, (size_t)state->n_experts * scenarios, err));
    for (state->n_leaves = 1; state->n_leaves < state->n_ranks;)
        state->n_leaves *= 2;
    BL_TRY(BL_CALLOC(state->most, 2 * (size_t)state->n_leaves * scenarios, err));
    for (size_t i = row(state, state->n_leaves + state->n_ranks);
         i < row(state, 2 * state->n_leaves); i++)
        state->most[i] = -1.0;
    state->rank_load = node_of(state, state->n_leaves);
    BL_TRY(bl_holds_create(problem->n_ranks, problem->n_experts, &state->holds, err));
    return bl_holds_create(problem->n_ranks, problem->n_experts, &state->home, err);
}

void bl_state_reset(bl_state *state, const int32_t *expert) {
    for (int slot = 0; slot < state->n_slots; slot++)
        unlink_copy(state, slot);
    for (int slot = 0; slot < state->n_slots; slot++) {
        link_copy(state, slot, expert[slot]);
        state->weight[slot] = 0.0;
    }
    for (int e = 0; e < state->n_experts; e++)
        weigh_copies(state, e);
    for (int rank = 0; rank < state->n_ranks; rank++)
        load_rank(state, rank);
    for (int node = state->n_leaves - 1; node > 0; node--)
        compare_children(state, node);
    sum_objective(state);
}

static void fill(const bl_problem *problem, const bl_layer_placement *placement, bl_state *state) {
    for (int s = 0; s < state->n_scenarios; s++) {
        for (int expert = 0; expert < state->n_experts; expert++)
            state->load[row(state, expert) + (size_t)s] =
                problem->load[(size_t)s * (size_t)state->n_experts + (size_t)expert];
    }
    if (problem->current != NULL)
        bl_holds_add(&state->home, problem->current);
    for (int expert = 0; expert < state->n_experts; expert++)
        state->head[expert] = -1;
    for (int rank = 0; rank < state->n_ranks; rank++) {
        for (int slot = placement->begin[rank]; slot < placement->begin[rank + 1]; slot++) {
            state->rank[slot] = rank;
            state->expert[slot] = BL_NO_EXPERT;
        }
    }
    bl_state_reset(state, placement->expert);
}

bl_status bl_state_create(const bl_problem *problem, const bl_layer_placement *placement,
                          bl_state *out, bl_error *err) {
    bl_state made = {.n_experts = problem->n_experts,
                     .n_ranks = problem->n_ranks,
                     .n_slots = bl_layer_n_slots(placement),
                     .n_scenarios = problem->n_scenarios,
                     .begin = placement->begin,
                     .rules = problem->rules,
                     .max_moves = problem->current != NULL && problem->max_moves >= 0
                                      ? problem->max_moves
                                      : INT_MAX};
    const bl_status st = allocate(problem, &made, err);
    if (st < 0) {
        bl_state_free(&made);
        return st;
    }
    fill(problem, placement, &made);
    *out = made;
    return BL_OK;
}

void bl_state_free(bl_state *state) {
    free(state->expert);
    free(state->rank);
    free(state->next);
    free(state->weight);
    free(state->copies);
    free(state->head);
    free(state->load);
    free(state->most);
    bl_holds_free(&state->holds);
    bl_holds_free(&state->home);
    *state = (bl_state){0};
}

/* From a node to the first of its leaves with its load. Siblings passed by are added to list[*n], if there is
 * one. */
static int leaf_of(const bl_state *state, int node, int scenario, int *list, int *n) {
    while (node < state->n_leaves) {
        const double load = node_of(state, node)[scenario];
        const int child = node_of(state, 2 * node)[scenario] == load ? 2 * node : 2 * node + 1;
        if (list != NULL)
            list[(*n)++] = child ^ 1;
        node = child;
    }
    return node;
}

int bl_state_busiest(const bl_state *state, int scenario) {
    return leaf_of(state, 1, scenario, NULL, NULL) - state->n_leaves;
}

/* Number of a node's first leaf. */
static int first_leaf(const bl_state *state, int node) {
    while (node < state->n_leaves)
        node *= 2;
    return node;
}

void bl_state_three_busiest(const bl_state *state, int scenario, int rank[3]) {
    int list[3 * 32] = {1}, n = 1; /* what is left, as subtrees; at most 32 on each way down */
    for (int i = 0; i < 3; i++) {
        int best = -1;
        for (int at = 0; at < n; at++) {
            const double load = node_of(state, list[at])[scenario];
            const double most = best >= 0 ? node_of(state, list[best])[scenario] : -1.0;
            if (load > most || (load == most && best >= 0 &&
                                first_leaf(state, list[at]) < first_leaf(state, list[best])))
                best = at;
        }
        rank[i] = -1;
        if (best < 0)
            continue;
        const int node = list[best];
        list[best] = list[--n];
        rank[i] = leaf_of(state, node, scenario, list, &n) - state->n_leaves;
    }
}

/* The larger of `most` and what is below a node. */
static double busiest_below(const bl_state *state, int node, int scenario, double most,
                            bl_state_skip skip, const void *context) {
    if (node_of(state, node)[scenario] <= most)
        return most;
    if (node >= state->n_leaves)
        return skip(node - state->n_leaves, context) ? most : node_of(state, node)[scenario];
    const int left = 2 * node;
    const bool right_first = node_of(state, left + 1)[scenario] > node_of(state, left)[scenario];
    most = busiest_below(state, left + right_first, scenario, most, skip, context);
    return busiest_below(state, left + !right_first, scenario, most, skip, context);
}

double bl_state_busiest_but(const bl_state *state, int scenario, bl_state_skip skip,
                            const void *context) {
    return busiest_below(state, 1, scenario, 0.0, skip, context);
}

void bl_state_store(const bl_state *state, bl_layer_placement *placement) {
    memcpy(placement->expert, state->expert, (size_t)state->n_slots * sizeof *state->expert);
}

/* ---- changes -------------------------------------------------------------------------------- */

/* 1 when `expert` on `rank` is a copy that travelled; a hole is none. */
static int is_move(const bl_state *state, int rank, int expert) {
    return expert != BL_NO_EXPERT && !bl_holds_has(&state->home, rank, expert);
}

int bl_state_swap_moves(const bl_state *state, int p, int q) {
    const int g = state->rank[p], h = state->rank[q];
    const int a = state->expert[p], b = state->expert[q];
    return is_move(state, h, a) + is_move(state, g, b) - is_move(state, g, a) -
           is_move(state, h, b);
}

int bl_state_replace_moves(const bl_state *state, int p, int expert) {
    const int g = state->rank[p];
    return is_move(state, g, expert) - is_move(state, g, state->expert[p]);
}

/* Would `expert` still be in as many domains as it must, if its copy in slot `without` went and one
 * on rank `with` came (-1: none comes)? */
static bool keeps_domains(const bl_state *state, int expert, int without, int with) {
    if (expert == BL_NO_EXPERT || bl_rules_least(state->rules, expert) < 2)
        return true;
    const int *domain = state->rules->domain;
    bl_domain_count count = {.least = bl_rules_least(state->rules, expert)};
    if (with >= 0)
        bl_domain_count_add(&count, domain[with]);
    for (int slot = state->head[expert]; slot >= 0; slot = state->next[slot]) {
        if (slot != without)
            bl_domain_count_add(&count, domain[state->rank[slot]]);
    }
    return count.n >= count.least;
}

/* What problem->rules says about two slots exchanging their experts. */
static bool rules_allow_swap(const bl_state *state, int p, int q) {
    const int g = state->rank[p], h = state->rank[q];
    const int a = state->expert[p], b = state->expert[q];
    return (a == BL_NO_EXPERT || bl_rules_may(state->rules, h, a)) &&
           (b == BL_NO_EXPERT || bl_rules_may(state->rules, g, b)) &&
           keeps_domains(state, a, p, h) && keeps_domains(state, b, q, g);
}

bool bl_state_may_swap(const bl_state *state, int p, int q) {
    const int g = state->rank[p], h = state->rank[q];
    const int a = state->expert[p], b = state->expert[q];
    if (g == h || a == b || (a != BL_NO_EXPERT && bl_holds_has(&state->holds, h, a)) ||
        (b != BL_NO_EXPERT && bl_holds_has(&state->holds, g, b)))
        return false;
    if (state->rules != NULL && !rules_allow_swap(state, p, q))
        return false;
    return state->max_moves == INT_MAX ||
           state->moves + bl_state_swap_moves(state, p, q) <= state->max_moves;
}

bool bl_state_may_replace(const bl_state *state, int p, int expert) {
    const int a = state->expert[p];
    if (bl_holds_has(&state->holds, state->rank[p], expert) ||
        (a != BL_NO_EXPERT && state->copies[a] < 2))
        return false;
    if (state->rules != NULL &&
        !(bl_rules_may(state->rules, state->rank[p], expert) && keeps_domains(state, a, p, -1)))
        return false;
    return state->max_moves == INT_MAX ||
           state->moves + bl_state_replace_moves(state, p, expert) <= state->max_moves;
}

void bl_state_swap(bl_state *state, int p, int q) {
    const int a = state->expert[p], b = state->expert[q];
    const double weight = state->weight[p];
    unlink_copy(state, p);
    unlink_copy(state, q);
    link_copy(state, p, b);
    link_copy(state, q, a);
    state->weight[p] = state->weight[q];
    state->weight[q] = weight;
    reload_rank(state, state->rank[p]);
    reload_rank(state, state->rank[q]);
    sum_objective(state);
}

void bl_state_replace(bl_state *state, int p, int expert) {
    const int old = state->expert[p];
    unlink_copy(state, p);
    link_copy(state, p, expert);
    state->weight[p] = 0.0;
    reload_rank(state, state->rank[p]);
    if (old != BL_NO_EXPERT) {
        weigh_copies(state, old);
        load_ranks_of(state, old);
    }
    if (expert != BL_NO_EXPERT) {
        weigh_copies(state, expert);
        load_ranks_of(state, expert);
    }
    sum_objective(state);
}
