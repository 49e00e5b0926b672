/*
 * timed_search.c: simulated annealing over the changes of state.h, scored in time.
 *
 * A copy's time is not proportional to its rows, so ranks are summed up in rows and in seconds. A
 * proposal touches the ranks that hold the two experts it changes; of all other ranks the sums
 * stand. To be scored, the highest rank of every scenario is looked for anew: O(ranks x scenarios)
 * additions and comparisons, a few microseconds.
 *
 * In decode many ranks are equally slow and a change of one of them lowers no maximum. So the search
 * counts, beside T, a part of the 8-norm of the ranks' seconds, which falls with every rank that is
 * relieved. The best placement is chosen by T alone.
 */
#include "planner/timed.h"

#include "core/mem.h"
#include "core/progress.h"
#include "core/rng.h"
#include "planner/state.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define STRIDE 128
#define PROPOSALS_PER_SLOT 400
#define LEAST_PROPOSALS 20000
#define EASY_SCENARIOS 8
/* Temperatures, as parts of T: one change makes the more of it, the fewer slots there are. */
#define HOTTEST_PER_SLOT 0.3
/* Few slots have few ways round a barrier: hotter, and it takes no time. */
#define FEW_SLOTS 32
#define HOTTEST_PER_FEW 1.5
#define GENTLE_PER_SLOT 0.02 /* also where moves have a price */
#define COLDEST_PER_SLOT 0.002
#define NORM_PART 0.25

typedef struct timed_search {
    const bl_problem *problem;
    const bl_cost_rates *rates;
    bl_state state;
    bl_rng rng;
    double move_price; /* seconds */
    int n_scenarios, n_worst;
    double *rows;             /* [n_experts][n_scenarios] of one step */
    double *attention;        /* [n_ranks][n_scenarios] seconds, the same under every placement */
    double *rank_rows;        /* [n_ranks][n_scenarios] */
    double *rank_s;           /* [n_ranks][n_scenarios], attention included */
    double *new_rows, *new_s; /* [n_ranks][n_scenarios] of the touched ranks */
    bool *is_touched;         /* [n_ranks] */
    int *touched;             /* [n_touched] */
    int n_touched;
    double *port_rows;                                 /* [ports shared][n_scenarios] scratch */
    double *in_s, *out_s, *slowest_s, *norm, *total_s; /* [n_scenarios] scratch */
    int *busiest;                                      /* [n_scenarios] slowest rank */
    int32_t *best;                                     /* [n_slots] */
    double value, best_value, cost; /* T of the state, of the best, and what annealing sees */
} timed_search;

static size_t at(const timed_search *t, int row, int scenario) {
    return (size_t)row * (size_t)t->n_scenarios + (size_t)scenario;
}

/* ---- scoring -------------------------------------------------------------------------------- */

static const double *seen_rows(const timed_search *t, int rank) {
    return (t->is_touched[rank] ? t->new_rows : t->rank_rows) + at(t, rank, 0);
}

static const double *seen_s(const timed_search *t, int rank) {
    return (t->is_touched[rank] ? t->new_s : t->rank_s) + at(t, rank, 0);
}

static void raise_to(double *most, const double *values, double factor, int n) {
    for (int i = 0; i < n; i++) {
        const double value = values[i] * factor;
        most[i] = value > most[i] ? value : most[i];
    }
}

static void rank_ports(timed_search *t) {
    const int n = t->n_scenarios;
    for (int i = 0; i < n; i++)
        t->in_s[i] = t->out_s[i] = t->slowest_s[i] = t->norm[i] = 0.0;
    for (int g = 0; g < t->rates->n_ranks; g++) {
        const double *rows = seen_rows(t, g), *s = seen_s(t, g);
        raise_to(t->in_s, rows, t->rates->in_s[g], n);
        raise_to(t->out_s, rows, t->rates->out_s[g], n);
        raise_to(t->slowest_s, s, 1.0, n);
    }
}

static void shared_ports(timed_search *t) {
    const bl_cost_rates *r = t->rates;
    const int n = t->n_scenarios, n_shared = r->n_ports - r->n_ranks;
    memset(t->port_rows, 0, at(t, n_shared, 0) * sizeof *t->port_rows);
    for (int level = 0; level < r->n_groupings; level++) {
        for (int g = 0; g < r->n_ranks; g++) {
            const int port = r->port_of[(size_t)level * (size_t)r->n_ranks + (size_t)g];
            double *into = t->port_rows + at(t, port - r->n_ranks, 0);
            const double *rows = seen_rows(t, g);
            for (int i = 0; i < n; i++)
                into[i] += rows[i];
        }
    }
    for (int port = 0; port < n_shared; port++) {
        const double *rows = t->port_rows + at(t, port, 0);
        raise_to(t->in_s, rows, r->in_s[r->n_ranks + port], n);
        raise_to(t->out_s, rows, r->out_s[r->n_ranks + port], n);
    }
}

static double raise(double x) {
    const double square = x * x, fourth = square * square;
    return fourth * fourth;
}

/* Mean over scenarios of the 8-norm of what ranks take, each against the slowest. */
static double norm_of(timed_search *t) {
    double mean = 0.0;
    for (int g = 0; g < t->rates->n_ranks; g++) {
        const double *s = seen_s(t, g);
        for (int i = 0; i < t->n_scenarios; i++)
            t->norm[i] += t->slowest_s[i] > 0.0 ? raise(s[i] / t->slowest_s[i]) : 0.0;
    }
    for (int i = 0; i < t->n_scenarios; i++)
        mean += t->problem->timed->weight[i] * t->slowest_s[i] *
                sqrt(sqrt(sqrt(t->norm[i] / t->rates->n_ranks)));
    return mean;
}

static int descending(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x < y) - (x > y);
}

/* T as it would be after the touched ranks have changed; *cost is what annealing goes by. */
static double score(timed_search *t, int moves, double *cost) {
    double value = 0.0;
    rank_ports(t);
    shared_ports(t);
    for (int i = 0; i < t->n_scenarios; i++) {
        t->total_s[i] = bl_cost_total_s(t->rates, t->in_s[i], t->out_s[i], t->slowest_s[i]);
        value += t->problem->timed->weight[i] * t->total_s[i];
    }
    if (t->n_worst > 0) {
        value = 0.0;
        qsort(t->total_s, (size_t)t->n_scenarios, sizeof *t->total_s, descending);
        for (int i = 0; i < t->n_worst; i++)
            value += t->total_s[i] / t->n_worst;
    }
    value += t->move_price * moves;
    *cost = value + NORM_PART * norm_of(t);
    return value;
}

/* ---- sums of ranks -------------------------------------------------------------------------- */

static void sum_rank(timed_search *t, int rank) {
    const bl_state *state = &t->state;
    double *rows = t->rank_rows + at(t, rank, 0), *s = t->rank_s + at(t, rank, 0);
    memset(rows, 0, (size_t)t->n_scenarios * sizeof *rows);
    memcpy(s, t->attention + at(t, rank, 0), (size_t)t->n_scenarios * sizeof *s);
    for (int slot = state->begin[rank]; slot < state->begin[rank + 1]; slot++) {
        const int expert = state->expert[slot];
        if (expert == BL_NO_EXPERT)
            continue;
        for (int i = 0; i < t->n_scenarios; i++) {
            const double n = t->rows[at(t, expert, i)] / state->copies[expert];
            rows[i] += n;
            s[i] += bl_cost_copy_s(t->rates, rank, n);
        }
    }
}

static void untouch(timed_search *t) {
    for (int i = 0; i < t->n_touched; i++)
        t->is_touched[t->touched[i]] = false;
    t->n_touched = 0;
}

/* After a change: nothing touched, all sums right. */
static void settle(timed_search *t) {
    for (int i = 0; i < t->n_touched; i++)
        sum_rank(t, t->touched[i]);
    untouch(t);
    t->value = score(t, t->state.moves, &t->cost);
    for (int i = 0; i < t->n_scenarios; i++)
        t->busiest[i] = 0;
    for (int g = 1; g < t->rates->n_ranks; g++) {
        for (int i = 0; i < t->n_scenarios; i++) {
            if (t->rank_s[at(t, g, i)] > t->rank_s[at(t, t->busiest[i], i)])
                t->busiest[i] = g;
        }
    }
    if (t->value < t->best_value) {
        t->best_value = t->value;
        memcpy(t->best, t->state.expert, (size_t)t->state.n_slots * sizeof *t->best);
    }
}

static void touch(timed_search *t, int rank) {
    if (t->is_touched[rank])
        return;
    t->is_touched[rank] = true;
    t->touched[t->n_touched++] = rank;
    memcpy(t->new_rows + at(t, rank, 0), t->rank_rows + at(t, rank, 0),
           (size_t)t->n_scenarios * sizeof *t->new_rows);
    memcpy(t->new_s + at(t, rank, 0), t->rank_s + at(t, rank, 0),
           (size_t)t->n_scenarios * sizeof *t->new_s);
}

/* A copy of `expert` on `rank`, one of `before`, becomes one of `after`; 0: it is not there. */
static void edit(timed_search *t, int rank, int expert, int before, int after) {
    if (expert == BL_NO_EXPERT)
        return;
    touch(t, rank);
    const double *rows = t->rows + at(t, expert, 0);
    double *new_rows = t->new_rows + at(t, rank, 0), *new_s = t->new_s + at(t, rank, 0);
    const double was = before > 0 ? 1.0 / before : 0.0, will = after > 0 ? 1.0 / after : 0.0;
    for (int i = 0; i < t->n_scenarios; i++) {
        new_rows[i] += rows[i] * (will - was);
        new_s[i] += bl_cost_copy_s(t->rates, rank, rows[i] * will) -
                    bl_cost_copy_s(t->rates, rank, rows[i] * was);
    }
}

/* ---- proposals ------------------------------------------------------------------------------ */

static bool is_accepted(timed_search *t, int moves, double temperature) {
    double cost;
    score(t, moves, &cost);
    const double worse = cost - t->cost;
    return worse <= 0.0 || bl_rng_unit(&t->rng) < exp(-worse / temperature);
}

/* Any slot; half of the time one of a rank that is slowest in some scenario. */
static int random_slot(timed_search *t) {
    const bl_state *state = &t->state;
    if (bl_rng_below(&t->rng, 2) == 0)
        return (int)bl_rng_below(&t->rng, (uint32_t)state->n_slots);
    const int g = t->busiest[bl_rng_below(&t->rng, (uint32_t)t->n_scenarios)];
    const int slots = state->begin[g + 1] - state->begin[g];
    return slots > 0 ? state->begin[g] + (int)bl_rng_below(&t->rng, (uint32_t)slots)
                     : (int)bl_rng_below(&t->rng, (uint32_t)state->n_slots);
}

static void propose_swap(timed_search *t, double temperature) {
    bl_state *state = &t->state;
    const int p = random_slot(t), q = (int)bl_rng_below(&t->rng, (uint32_t)state->n_slots);
    if (!bl_state_may_swap(state, p, q))
        return;
    const int a = state->expert[p], b = state->expert[q];
    const int g = state->rank[p], h = state->rank[q];
    const int of_a = a != BL_NO_EXPERT ? state->copies[a] : 0;
    const int of_b = b != BL_NO_EXPERT ? state->copies[b] : 0;
    edit(t, g, a, of_a, 0);
    edit(t, h, a, 0, of_a);
    edit(t, h, b, of_b, 0);
    edit(t, g, b, 0, of_b);
    if (!is_accepted(t, state->moves + bl_state_swap_moves(state, p, q), temperature)) {
        untouch(t);
        return;
    }
    bl_state_swap(state, p, q);
    settle(t);
}

static void propose_replace(timed_search *t, double temperature) {
    bl_state *state = &t->state;
    const int p = random_slot(t), old = state->expert[p];
    const int new = (int)bl_rng_below(&t->rng, (uint32_t)state->n_experts);
    if (!bl_state_may_replace(state, p, new))
        return;
    for (int slot = old != BL_NO_EXPERT ? state->head[old] : -1; slot >= 0;
         slot = state->next[slot])
        edit(t, state->rank[slot], old, state->copies[old], slot == p ? 0 : state->copies[old] - 1);
    for (int slot = state->head[new]; slot >= 0; slot = state->next[slot])
        edit(t, state->rank[slot], new, state->copies[new], state->copies[new] + 1);
    edit(t, state->rank[p], new, 0, state->copies[new] + 1);
    if (!is_accepted(t, state->moves + bl_state_replace_moves(state, p, new), temperature)) {
        untouch(t);
        return;
    }
    bl_state_replace(state, p, new);
    settle(t);
}

/* ---- life ----------------------------------------------------------------------------------- */

static void search_free(timed_search *t) {
    bl_state_free(&t->state);
    free(t->rows);
    free(t->attention);
    free(t->rank_rows);
    free(t->rank_s);
    free(t->new_rows);
    free(t->new_s);
    free(t->is_touched);
    free(t->touched);
    free(t->port_rows);
    free(t->in_s);
    free(t->out_s);
    free(t->slowest_s);
    free(t->norm);
    free(t->total_s);
    free(t->busiest);
    free(t->best);
}

static bl_status allocate(timed_search *t, bl_error *err) {
    const size_t n = (size_t)t->n_scenarios, ranks = (size_t)t->rates->n_ranks;
    const size_t shared = (size_t)(t->rates->n_ports - t->rates->n_ranks);
    BL_TRY(BL_CALLOC(t->rows, (size_t)t->state.n_experts * n, err));
    BL_TRY(BL_CALLOC(t->attention, ranks * n, err));
    BL_TRY(BL_CALLOC(t->rank_rows, ranks * n, err));
    BL_TRY(BL_CALLOC(t->rank_s, ranks * n, err));
    BL_TRY(BL_CALLOC(t->new_rows, ranks * n, err));
    BL_TRY(BL_CALLOC(t->new_s, ranks * n, err));
    BL_TRY(BL_CALLOC(t->is_touched, ranks, err));
    BL_TRY(BL_CALLOC(t->touched, ranks, err));
    BL_TRY(BL_CALLOC(t->port_rows, shared * n, err));
    BL_TRY(BL_CALLOC(t->in_s, n, err));
    BL_TRY(BL_CALLOC(t->out_s, n, err));
    BL_TRY(BL_CALLOC(t->slowest_s, n, err));
    BL_TRY(BL_CALLOC(t->norm, n, err));
    BL_TRY(BL_CALLOC(t->total_s, n, err));
    BL_TRY(BL_CALLOC(t->busiest, n, err));
    return BL_CALLOC(t->best, t->state.n_slots, err);
}

static void fill(timed_search *t) {
    const bl_problem *p = t->problem;
    for (int s = 0; s < t->n_scenarios; s++) {
        double total = 0.0;
        for (int e = 0; e < p->n_experts; e++) {
            const double rows =
                p->timed->scale[s] * p->load[(size_t)s * (size_t)p->n_experts + (size_t)e];
            t->rows[at(t, e, s)] = rows;
            total += rows;
        }
        const double tokens = t->rates->overlap ? total / t->rates->top_k / t->rates->n_ranks : 0.0;
        for (int g = 0; g < p->n_ranks; g++)
            t->attention[at(t, g, s)] = bl_cost_attention_s(p->timed->cost, g, tokens);
    }
    for (int g = 0; g < p->n_ranks; g++)
        sum_rank(t, g);
}

/* Ready at `placement`; the caller frees it, whatever comes back. */
static bl_status search_create(const bl_problem *problem, const bl_timed_search_options *options,
                               const bl_layer_placement *placement, timed_search *t,
                               bl_error *err) {
    const double tail = problem->tail;
    *t = (timed_search){.problem = problem,
                        .rates = bl_cost_rates_of(problem->timed->cost),
                        .n_scenarios = problem->n_scenarios,
                        .best_value = INFINITY};
    t->n_worst = tail > 0.0 && tail < 1.0 ? (int)ceil(tail * problem->n_scenarios) : 0;
    bl_rng_seed(&t->rng, options->seed);
    BL_TRY(bl_state_create(problem, placement, &t->state, err));
    BL_TRY(allocate(t, err));
    fill(t);
    settle(t);
    if (problem->current != NULL) {
        t->move_price = options->move_price * t->value;
        t->best_value = INFINITY;
        settle(t);
    }
    return BL_OK;
}

static int64_t default_proposals(const timed_search *t) {
    int64_t n = (int64_t)t->state.n_slots * PROPOSALS_PER_SLOT;
    if (t->n_scenarios > EASY_SCENARIOS)
        n = n * EASY_SCENARIOS / t->n_scenarios;
    return n < LEAST_PROPOSALS ? LEAST_PROPOSALS : n;
}

static bl_status anneal(timed_search *t, const bl_timed_search_options *options) {
    const int64_t proposals = options->proposals > 0 ? options->proposals : default_proposals(t);
    const double hot = t->state.n_slots > FEW_SLOTS ? HOTTEST_PER_SLOT : HOTTEST_PER_FEW;
    const double hottest = t->move_price > 0.0 || options->gentle ? GENTLE_PER_SLOT : hot;
    const double cooling = log(COLDEST_PER_SLOT / hottest);
    const double start = hottest / t->state.n_slots * t->cost;
    const bool has_spares = t->state.n_slots > t->state.n_experts;
    const double begin = options->time_s > 0.0 ? bl_now_s() : 0.0;
    for (int64_t n = 0;; n += STRIDE) {
        if (bl_interrupted())
            return BL_LIMIT;
        const double done = options->time_s > 0.0 ? (bl_now_s() - begin) / options->time_s
                                                  : (double)n / (double)proposals;
        if (done >= 1.0 || t->best_value <= options->target_s)
            return BL_OK;
        const double temperature = start * exp(cooling * done);
        for (int i = 0; i < STRIDE; i++) {
            if (has_spares && bl_rng_below(&t->rng, 3) == 0)
                propose_replace(t, temperature);
            else
                propose_swap(t, temperature);
        }
    }
}

bl_status bl_timed_search(const bl_problem *problem, const bl_timed_search_options *options,
                          bl_layer_placement *placement, bl_error *err) {
    timed_search t;
    bl_status st = search_create(problem, options, placement, &t, err);
    if (st >= 0) {
        st = anneal(&t, options);
        memcpy(placement->expert, t.best, (size_t)t.state.n_slots * sizeof *t.best);
    }
    search_free(&t);
    return st;
}
