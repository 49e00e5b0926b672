#include "planner/descend.h"

/* A change must lower the peak by more than rounding does. */
#define LEAST_GAIN 1e-12

/* The best change found so far; p < 0: none. */
typedef struct candidate {
    double peak_limit; /* the changed ranks must stay below this */
    double cost;       /* highest load among the ranks it changes, and the price of its moves */
    int p, q, expert;
} candidate;

static double max2(double a, double b) {
    return a > b ? a : b;
}

/* A change with this peak may be the best one: at most it takes two moves back. */
static bool is_promising(const bl_state *state, const candidate *best, double peak) {
    return peak < best->peak_limit && peak - 2 * state->move_price < best->cost;
}

static void offer_swap(const bl_state *state, int p, int q, double peak, candidate *best) {
    if (!is_promising(state, best, peak) || !bl_state_may_swap(state, p, q))
        return;
    if (state->move_price > 0.0)
        peak += state->move_price * bl_state_swap_moves(state, p, q);
    if (peak < best->cost)
        *best = (candidate){best->peak_limit, peak, p, q, BL_NO_EXPERT};
}

static void offer_replace(const bl_state *state, int p, int expert, double peak, candidate *best) {
    if (!is_promising(state, best, peak) || !bl_state_may_replace(state, p, expert))
        return;
    if (state->move_price > 0.0)
        peak += state->move_price * bl_state_replace_moves(state, p, expert);
    if (peak < best->cost)
        *best = (candidate){best->peak_limit, peak, p, -1, expert};
}

/* Exchange a copy of the busiest rank g for a lighter one, or a hole, of another rank. */
static void try_swaps(const bl_state *state, int g, candidate *best) {
    const double load_g = state->rank_load[g];
    for (int h = 0; h < state->n_ranks; h++) {
        const double load_h = state->rank_load[h];
        if (h == g || !is_promising(state, best, load_h))
            continue;
        for (int p = state->begin[g]; p < state->begin[g + 1]; p++) {
            const double weight = state->weight[p];
            for (int q = state->begin[h]; q < state->begin[h + 1]; q++) {
                const double shift = weight - state->weight[q];
                offer_swap(state, p, q, max2(load_g - shift, load_h + shift), best);
            }
        }
    }
}

/* Highest load among the other holders of slot p's expert when p's copy goes. */
static double raised_peak(const bl_state *state, int p) {
    const int expert = state->expert[p];
    if (expert == BL_NO_EXPERT)
        return 0.0;
    const double raise = state->weight[p] / (state->copies[expert] - 1);
    double peak = 0.0;
    for (int slot = state->head[expert]; slot >= 0; slot = state->next[slot]) {
        if (slot != p)
            peak = max2(peak, state->rank_load[state->rank[slot]] + raise);
    }
    return peak;
}

static bool may_vacate(const bl_state *state, int p) {
    return state->expert[p] == BL_NO_EXPERT || state->copies[state->expert[p]] > 1;
}

/* Put another expert in a slot of the busiest rank. */
static void try_replacing(const bl_state *state, int g, candidate *best) {
    for (int p = state->begin[g]; p < state->begin[g + 1]; p++) {
        if (!may_vacate(state, p))
            continue;
        const double raised = raised_peak(state, p);
        if (!is_promising(state, best, raised))
            continue;
        const double rest = state->rank_load[g] - state->weight[p];
        for (int expert = 0; expert < state->n_experts; expert++) {
            const double added = state->load[expert] / (state->copies[expert] + 1);
            offer_replace(state, p, expert, max2(raised, rest + added), best);
        }
    }
}

/* Give an expert of the busiest rank a copy more, in a slot of another rank. */
static void try_spreading(const bl_state *state, int g, candidate *best) {
    for (int p = 0; p < state->n_slots; p++) {
        const int h = state->rank[p];
        if (h == g || !may_vacate(state, p))
            continue;
        const double rest = state->rank_load[h] - state->weight[p];
        double raised = -1.0; /* not known yet */
        for (int own = state->begin[g]; own < state->begin[g + 1]; own++) {
            const int expert = state->expert[own];
            if (expert == BL_NO_EXPERT || expert == state->expert[p])
                continue;
            const double lighter = state->load[expert] / (state->copies[expert] + 1);
            const double peak =
                max2(rest + lighter, state->rank_load[g] - state->weight[own] + lighter);
            if (!is_promising(state, best, peak))
                continue;
            if (raised < 0.0)
                raised = raised_peak(state, p);
            offer_replace(state, p, expert, max2(peak, raised), best);
        }
    }
}

bl_status bl_descend(bl_state *state, double target, int64_t *steps, bl_change_log *log,
                     bl_error *err) {
    while (state->objective > target && *steps > 0) {
        --*steps;
        const int g = bl_state_busiest(state, 0);
        const double limit = state->rank_load[g] * (1.0 - LEAST_GAIN);
        candidate best = {limit, limit, -1, -1, BL_NO_EXPERT};
        try_swaps(state, g, &best);
        try_replacing(state, g, &best);
        try_spreading(state, g, &best);
        if (best.p < 0)
            break;
        if (best.q >= 0)
            BL_TRY(bl_change_swap(state, best.p, best.q, log, err));
        else
            BL_TRY(bl_change_replace(state, best.p, best.expert, log, err));
    }
    return BL_OK;
}
