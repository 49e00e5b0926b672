#include "planner/anneal.h"

#include "core/progress.h"

#include <math.h>
#include <string.h>

/* Proposals between looks at the clock, the temperature and the interrupt flag. */
#define STRIDE 256

/* The three highest ranks of one scenario. */
typedef struct top {
    double load[3];
    int rank[3]; /* -1: fewer ranks */
} top;

typedef struct annealer {
    bl_state *state;
    bl_rng *rng;
    top *tops;     /* [n_scenarios] */
    int32_t *best; /* [n_slots] the cheapest placement seen */
    double best_cost;
    bool has_spares; /* some expert has several copies, or there are holes */
    /* Ranks changed by a replacement, with what they gain: part_old[i] of the old expert's load and
     * part_new[i] of the new one's. */
    int *touched;                /* [n_ranks] */
    double *part_old, *part_new; /* [n_ranks], by position in `touched` */
    int *position;               /* [n_ranks] in `touched`, or -1 */
    int n_touched;
} annealer;

static void find_tops(annealer *an) {
    const bl_state *state = an->state;
    for (int s = 0; s < state->n_scenarios; s++) {
        top *t = &an->tops[s];
        bl_state_three_busiest(state, s, t->rank);
        for (int i = 0; i < 3; i++)
            t->load[i] =
                t->rank[i] < 0
                    ? -1.0
                    : state->rank_load[(size_t)t->rank[i] * (size_t)state->n_scenarios + (size_t)s];
    }
}

static double max2(double a, double b) {
    return a > b ? a : b;
}

/* ---- exact scores of proposals -------------------------------------------------------------- */

static double objective_after_swap(const annealer *an, int p, int q) {
    const bl_state *state = an->state;
    const int scenarios = state->n_scenarios, g = state->rank[p], h = state->rank[q];
    const int a = state->expert[p], b = state->expert[q];
    const double *load_g = state->rank_load + (size_t)g * (size_t)scenarios;
    const double *load_h = state->rank_load + (size_t)h * (size_t)scenarios;
    /* A hole weighs nothing: any expert's loads times 0. */
    const double part_a = a == BL_NO_EXPERT ? 0.0 : 1.0 / state->copies[a];
    const double part_b = b == BL_NO_EXPERT ? 0.0 : 1.0 / state->copies[b];
    const double *load_a = state->load + (size_t)(a < 0 ? 0 : a) * (size_t)scenarios;
    const double *load_b = state->load + (size_t)(b < 0 ? 0 : b) * (size_t)scenarios;
    double sum = 0.0;
    for (int s = 0; s < scenarios; s++) {
        const double shift = load_a[s] * part_a - load_b[s] * part_b;
        const double peak = max2(load_g[s] - shift, load_h[s] + shift);
        const top *t = &an->tops[s];
        int at = 0;
        while (at < 2 && (t->rank[at] == g || t->rank[at] == h))
            at++;
        sum += max2(peak, t->load[at]);
    }
    return sum;
}

static void touch(annealer *an, int rank, double part_old, double part_new) {
    int at = an->position[rank];
    if (at < 0) {
        at = an->n_touched++;
        an->position[rank] = at;
        an->touched[at] = rank;
        an->part_old[at] = an->part_new[at] = 0.0;
    }
    an->part_old[at] += part_old;
    an->part_new[at] += part_new;
}

static void touch_for_replace(annealer *an, int p, int expert) {
    const bl_state *state = an->state;
    const int old = state->expert[p];
    an->n_touched = 0;
    if (old != BL_NO_EXPERT) {
        const int copies = state->copies[old];
        touch(an, state->rank[p], -1.0 / copies, 0.0);
        for (int slot = state->head[old]; slot >= 0; slot = state->next[slot]) {
            if (slot != p)
                touch(an, state->rank[slot], 1.0 / (copies - 1) - 1.0 / copies, 0.0);
        }
    }
    const int copies = state->copies[expert];
    touch(an, state->rank[p], 0.0, 1.0 / (copies + 1));
    for (int slot = state->head[expert]; slot >= 0; slot = state->next[slot])
        touch(an, state->rank[slot], 0.0, 1.0 / (copies + 1) - 1.0 / copies);
}

static bool is_touched(int rank, const void *context) {
    return ((const int *)context)[rank] >= 0;
}

/* Largest load of the ranks that are not touched. */
static double untouched_peak(const annealer *an, int scenario) {
    const top *t = &an->tops[scenario];
    for (int at = 0; at < 3; at++) {
        if (t->rank[at] < 0 || an->position[t->rank[at]] < 0)
            return t->load[at];
    }
    return bl_state_busiest_but(an->state, scenario, is_touched, an->position);
}

static double objective_after_replace(annealer *an, int p, int expert) {
    const bl_state *state = an->state;
    const size_t scenarios = (size_t)state->n_scenarios;
    const int old = state->expert[p];
    const double *load_old = state->load + (size_t)(old < 0 ? 0 : old) * scenarios;
    const double *load_new = state->load + (size_t)expert * scenarios;
    touch_for_replace(an, p, expert);
    double sum = 0.0;
    for (size_t s = 0; s < scenarios; s++) {
        double peak = untouched_peak(an, (int)s);
        for (int i = 0; i < an->n_touched; i++) {
            const double load = state->rank_load[(size_t)an->touched[i] * scenarios + s] +
                                an->part_old[i] * load_old[s] + an->part_new[i] * load_new[s];
            peak = max2(peak, load);
        }
        sum += peak;
    }
    for (int i = 0; i < an->n_touched; i++)
        an->position[an->touched[i]] = -1;
    return sum;
}

/* ---- proposals ------------------------------------------------------------------------------ */

static int random_slot(annealer *an) {
    return (int)bl_rng_below(an->rng, (uint32_t)an->state->n_slots);
}

/* A slot of the busiest rank of some scenario: where a change can help. */
static int critical_slot(annealer *an) {
    const bl_state *state = an->state;
    const int rank = an->tops[bl_rng_below(an->rng, (uint32_t)state->n_scenarios)].rank[0];
    const int slots = state->begin[rank + 1] - state->begin[rank];
    if (slots == 0)
        return random_slot(an); /* an idle scenario may name a masked rank */
    return state->begin[rank] + (int)bl_rng_below(an->rng, (uint32_t)slots);
}

static bool is_accepted(annealer *an, double cost, double temperature) {
    const double worse = cost - bl_state_cost(an->state);
    return worse <= 0.0 || bl_rng_unit(an->rng) < exp(-worse / temperature);
}

static void keep_best(annealer *an) {
    const double cost = bl_state_cost(an->state);
    if (cost >= an->best_cost)
        return;
    an->best_cost = cost;
    memcpy(an->best, an->state->expert, (size_t)an->state->n_slots * sizeof *an->best);
}

static void propose_swap(annealer *an, double temperature) {
    bl_state *state = an->state;
    const int p = bl_rng_below(an->rng, 2) == 0 ? critical_slot(an) : random_slot(an);
    const int q = random_slot(an);
    if (!bl_state_may_swap(state, p, q))
        return;
    double cost = objective_after_swap(an, p, q) + state->move_price * state->moves;
    if (state->move_price > 0.0)
        cost += state->move_price * bl_state_swap_moves(state, p, q);
    if (!is_accepted(an, cost, temperature))
        return;
    bl_state_swap(state, p, q);
    find_tops(an);
    keep_best(an);
}

/* Half of the time a busiest rank's expert gets a copy elsewhere, half of the time a random slot
 * (or one of a busiest rank) gets a random expert. */
static void propose_replace(annealer *an, double temperature) {
    bl_state *state = an->state;
    int p = random_slot(an), expert;
    if (bl_rng_below(an->rng, 2) == 0) {
        expert = state->expert[critical_slot(an)];
    } else {
        expert = (int)bl_rng_below(an->rng, (uint32_t)state->n_experts);
        if (bl_rng_below(an->rng, 2) == 0)
            p = critical_slot(an);
    }
    if (expert == BL_NO_EXPERT || !bl_state_may_replace(state, p, expert))
        return;
    double cost = objective_after_replace(an, p, expert) + state->move_price * state->moves;
    if (state->move_price > 0.0)
        cost += state->move_price * bl_state_replace_moves(state, p, expert);
    if (!is_accepted(an, cost, temperature))
        return;
    bl_state_replace(state, p, expert);
    find_tops(an);
    keep_best(an);
}

/* ---- the schedule --------------------------------------------------------------------------- */

static bl_status run(annealer *an, const bl_anneal_options *options) {
    const double hottest = options->hottest * an->state->objective;
    const double cooling = log(options->coldest / options->hottest);
    const double begin = options->time_s > 0.0 ? bl_now_s() : 0.0;
    for (int64_t at = 0; an->best_cost > options->target; at += STRIDE) {
        if (bl_interrupted())
            return BL_LIMIT;
        const double done = options->time_s > 0.0 ? (bl_now_s() - begin) / options->time_s
                                                  : (double)at / (double)options->proposals;
        if (done >= 1.0)
            break;
        const double temperature = hottest * exp(cooling * done);
        for (int i = 0; i < STRIDE; i++) {
            if (an->has_spares && bl_rng_below(an->rng, 4) == 0)
                propose_replace(an, temperature);
            else
                propose_swap(an, temperature);
        }
    }
    return BL_OK;
}

static bl_status allocate(annealer *an, bl_error *err) {
    const bl_state *state = an->state;
    BL_TRY(BL_CALLOC(an->tops, state->n_scenarios, err));
    BL_TRY(BL_CALLOC(an->best, state->n_slots, err));
    BL_TRY(BL_CALLOC(an->touched, state->n_ranks, err));
    BL_TRY(BL_CALLOC(an->part_old, state->n_ranks, err));
    BL_TRY(BL_CALLOC(an->part_new, state->n_ranks, err));
    return BL_CALLOC(an->position, state->n_ranks, err);
}

bl_status bl_anneal(bl_state *state, const bl_anneal_options *options, bl_rng *rng, bl_error *err) {
    annealer an = {.state = state,
                   .rng = rng,
                   .best_cost = INFINITY,
                   .has_spares = state->n_slots > state->n_experts};
    bl_status st = allocate(&an, err);
    if (st == BL_OK) {
        for (int rank = 0; rank < state->n_ranks; rank++)
            an.position[rank] = -1;
        find_tops(&an);
        keep_best(&an);
        st = run(&an, options);
        bl_state_reset(state, an.best);
    }
    free(an.tops);
    free(an.best);
    free(an.touched);
    free(an.part_old);
    free(an.part_new);
    free(an.position);
    return st;
}
