#include "planner/robust.h"

#include "core/mem.h"
#include "core/progress.h"
#include "planner/scatter.h"
#include "planner/state.h"

#include <math.h>
#include <string.h>

#define BETA 16.0
/* Proposals between looks at the clock, the temperature and the interrupt flag. */
#define STRIDE 256
#define PROPOSALS_PER_SLOT 6250
/* From a placement in force: half of them at a tenth of the heat find what pays for its moves (GLM-5.2's
 * drifting windows are held as well, in as many moves), so that asking twice costs little. */
#define PRICED_PART 0.5
#define LEAST_PROPOSALS 10000
#define EASY_SCENARIOS 32
/* Temperatures, as parts of the cost: one change makes the more of it, the fewer slots there are. */
#define HOTTEST_PER_SLOT 0.2
#define HOTTEST_PRICED_PER_SLOT 0.02
#define COLDEST_PER_SLOT 0.003
/* Temperatures above the least that are never taken: once in ten million. */
#define NEVER 16.0
/* Looking for a copy of several. */
#define SPARE_TRIES 8
/* Rows of scenarios are padded to multiples of so many, and loops over them are written so that a
 * compiler sees it and needs nothing but vector instructions: LANES * blocks, and pointers that do
 * not overlap. In floats, whose rounding is a thousandth of the lowest temperature. */
#define LANES 8
/* A rank's charges add up to no more than this, so that the sum of 8th powers is still a float. */
#define MOST_CHARGE 1e4

typedef struct robust {
    bl_state state; /* of all loads in one scenario: who is where, what is allowed, moves */
    bl_rng *rng;
    double move_price;
    int n_scenarios;
    size_t blocks, width; /* n_scenarios, padded, in LANES and in floats */
    int n_worst;          /* scenarios that count, the worst; 0: all, by weight */
    double *weight;       /* [n_scenarios] part of all load */
    float *load;          /* [n_experts][width] in mean rank loads */
    float *noise;         /* [n_experts][width] charge of an only copy */
    float *copy;          /* [n_experts][width] what a copy adds to its rank's value now */
    float *value;         /* [n_ranks][width] load and charge */
    float *power;         /* [n_ranks][width] */
    float *sum;           /* [width] of power over ranks */
    float *after;         /* [width] the same after a proposal */
    float *root;          /* [width] */
    float *worst;         /* [n_worst] highest roots, descending */
    float *lighter;       /* [width] what copies of the new expert add less once it has one more */
    float *heavier;       /* [width] what those of the old one add more once it has one less */
    float *exchange;      /* [width] the new one's copy in place of the old one's */
    float *none;          /* [width] 0 */
    int32_t *best;        /* [n_slots] the cheapest placement seen */
    double cost, best_cost;
} robust;

static float *row(const robust *r, float *of, int index) {
    return of + (size_t)index * r->width;
}

/* ---- scenarios ------------------------------------------------------------------------------ */

/* load[n_experts][n_scenarios] in mean rank loads, and weights; the number of scenarios with
 * load. */
static int normalise(const bl_problem *problem, double *load, double *weight) {
    const double active = bl_problem_active_ranks(problem);
    const double all = bl_problem_total_load(problem);
    int n_loaded = 0;
    for (int s = 0; s < problem->n_scenarios; s++) {
        const double *from = problem->load + (size_t)s * (size_t)problem->n_experts;
        double total = 0.0;
        for (int e = 0; e < problem->n_experts; e++)
            total += from[e];
        weight[s] = total / all;
        n_loaded += total > 0.0;
        for (int e = 0; e < problem->n_experts; e++)
            load[(size_t)e * (size_t)problem->n_scenarios + (size_t)s] =
                total > 0.0 ? from[e] / total * active : 0.0;
    }
    return n_loaded;
}

static void take_over(robust *r, const double *load, const double *weight, const double *variance) {
    const double most = MOST_CHARGE / r->state.n_slots;
    memcpy(r->weight, weight, (size_t)r->n_scenarios * sizeof *weight);
    for (int e = 0; e < r->state.n_experts; e++) {
        const size_t from = (size_t)e * (size_t)r->n_scenarios;
        for (int s = 0; s < r->n_scenarios; s++) {
            row(r, r->load, e)[s] = (float)load[from + (size_t)s];
            row(r, r->noise, e)[s] = (float)fmin(BETA / 2.0 * variance[from + (size_t)s], most);
        }
    }
}

static bl_status fill(const bl_problem *problem, robust *r, bl_error *err) {
    const size_t cells = (size_t)problem->n_experts * (size_t)problem->n_scenarios;
    double *load = NULL, *variance = NULL, *weight = NULL;
    bl_status st;
    BL_TRY_GOTO(st, BL_CALLOC(load, cells, err), done);
    BL_TRY_GOTO(st, BL_CALLOC(variance, cells, err), done);
    BL_TRY_GOTO(st, BL_CALLOC(weight, problem->n_scenarios, err), done);
    const int n_loaded = normalise(problem, load, weight);
    r->n_worst = problem->tail < 1.0 ? (int)ceil(problem->tail * n_loaded) : 0;
    BL_TRY_GOTO(st,
                bl_scatter(load, weight, problem->n_experts, problem->n_scenarios, variance, err),
                done);
    take_over(r, load, weight, variance);
done:
    free(load);
    free(variance);
    free(weight);
    return st;
}

/* ---- the cost ------------------------------------------------------------------------------- */

/* x^8 and its root. */
static float raise(float x) {
    const float square = x * x, fourth = square * square;
    return fourth * fourth;
}

static float lower(float x) {
    return sqrtf(sqrtf(sqrtf(x > 0.0F ? x : 0.0F)));
}

/* The mean of the n_worst highest of root[]. */
static double worst_mean(const robust *r) {
    int n = 0;
    for (int s = 0; s < r->n_scenarios; s++) {
        if (n == r->n_worst && r->root[s] <= r->worst[n - 1])
            continue;
        int to = n < r->n_worst ? n++ : n - 1;
        for (; to > 0 && r->worst[to - 1] < r->root[s]; to--)
            r->worst[to] = r->worst[to - 1];
        r->worst[to] = r->root[s];
    }
    double mean = 0.0;
    for (int i = 0; i < n; i++)
        mean += (double)r->worst[i] / n;
    return mean;
}

static void take_roots(size_t blocks, const float *restrict sum, float *restrict root) {
    for (size_t s = 0; s < LANES * blocks; s++)
        root[s] = lower(sum[s]);
}

static double cost_of(robust *r, const float *sum, int moves) {
    double mean = 0.0;
    take_roots(r->blocks, sum, r->root);
    if (r->n_worst > 0) {
        mean = worst_mean(r);
    } else {
        for (int s = 0; s < r->n_scenarios; s++)
            mean += r->weight[s] * (double)r->root[s];
    }
    return mean + r->move_price * moves;
}

/* out = share * load + cubed * noise */
static void blend(size_t blocks, float share, const float *restrict load, float cubed,
                  const float *restrict noise, float *restrict out) {
    for (size_t s = 0; s < LANES * blocks; s++)
        out[s] = share * load[s] + cubed * noise[s];
}

/* What one copy of `expert` adds to its rank's value when it is one of `copies`. */
static void weigh_copy(const robust *r, int expert, int copies, float *out) {
    const float share = 1.0F / (float)copies;
    blend(r->blocks, share, row(r, r->load, expert), share * share * share,
          row(r, r->noise, expert), out);
}

static void add(size_t blocks, const float *restrict from, float *restrict to) {
    for (size_t s = 0; s < LANES * blocks; s++)
        to[s] += from[s];
}

static void raise_all(size_t blocks, const float *restrict value, float *restrict power) {
    for (size_t s = 0; s < LANES * blocks; s++)
        power[s] = raise(value[s]);
}

static void weigh_rank(robust *r, int rank) {
    const bl_state *state = &r->state;
    float *value = row(r, r->value, rank);
    memset(value, 0, r->width * sizeof *value);
    for (int slot = state->begin[rank]; slot < state->begin[rank + 1]; slot++) {
        if (state->expert[slot] != BL_NO_EXPERT)
            add(r->blocks, row(r, r->copy, state->expert[slot]), value);
    }
    raise_all(r->blocks, value, row(r, r->power, rank));
}

/* Sums anew, so that rounding does not pile up. */
static void settle(robust *r) {
    memset(r->sum, 0, r->width * sizeof *r->sum);
    for (int rank = 0; rank < r->state.n_ranks; rank++)
        add(r->blocks, row(r, r->power, rank), r->sum);
    r->cost = cost_of(r, r->sum, r->state.moves);
}

static void keep_best(robust *r) {
    if (r->cost >= r->best_cost)
        return;
    r->best_cost = r->cost;
    memcpy(r->best, r->state.expert, (size_t)r->state.n_slots * sizeof *r->best);
}

/* ---- proposals ------------------------------------------------------------------------------ */

/* after += (value + more - less)^8 - power. `more` and `less` are read only, and may be one. */
static void shift(size_t blocks, const float *value, const float *power, const float *more,
                  const float *less, float *restrict after) {
    for (size_t s = 0; s < LANES * blocks; s++)
        after[s] += raise(value[s] + more[s] - less[s]) - power[s];
}

/* In after[], rank's value becomes value + more - less. */
static void change_rank(const robust *r, int rank, const float *more, const float *less) {
    shift(r->blocks, row(r, r->value, rank), row(r, r->power, rank), more, less, r->after);
}

static bool is_accepted(robust *r, double cost, double temperature) {
    const double worse = cost - r->cost;
    return worse <= 0.0 ||
           (worse < NEVER * temperature && bl_rng_unit(r->rng) < exp(-worse / temperature));
}

/* The proposal has become the placement: its ranks have been weighed. */
static void accept(robust *r, double cost) {
    float *const sum = r->sum;
    r->sum = r->after;
    r->after = sum;
    r->cost = cost;
    keep_best(r);
}

static int random_slot(robust *r) {
    return (int)bl_rng_below(r->rng, (uint32_t)r->state.n_slots);
}

static const float *copy_of(const robust *r, int expert) {
    return expert != BL_NO_EXPERT ? row(r, r->copy, expert) : r->none;
}

static void propose_swap(robust *r, double temperature) {
    bl_state *state = &r->state;
    const int p = random_slot(r), q = random_slot(r);
    if (!bl_state_may_swap(state, p, q))
        return;
    const float *a = copy_of(r, state->expert[p]), *b = copy_of(r, state->expert[q]);
    memcpy(r->after, r->sum, r->width * sizeof *r->after);
    change_rank(r, state->rank[p], b, a);
    change_rank(r, state->rank[q], a, b);
    const double cost = cost_of(r, r->after, state->moves + bl_state_swap_moves(state, p, q));
    if (!is_accepted(r, cost, temperature))
        return;
    bl_state_swap(state, p, q);
    weigh_rank(r, state->rank[p]);
    weigh_rank(r, state->rank[q]);
    accept(r, cost);
}

/* heavier, lighter and exchange for a copy of `old` (or a hole) that becomes one of `new`. */
static void weigh_change(robust *r, int old, int new) {
    const int copies = r->state.copies[new];
    const float *now = copy_of(r, old);
    weigh_copy(r, new, copies + 1, r->lighter);
    if (old != BL_NO_EXPERT)
        weigh_copy(r, old, r->state.copies[old] - 1, r->heavier);
    for (size_t s = 0; s < r->width; s++) {
        r->exchange[s] = r->lighter[s] - now[s];
        r->lighter[s] = row(r, r->copy, new)[s] - r->lighter[s];
        r->heavier[s] -= now[s];
    }
}

/* after[], once slot p holds `new`. Ranks that hold both experts change once, by both. */
static void change_holders(robust *r, int p, int old, int new) {
    const bl_state *state = &r->state;
    memcpy(r->after, r->sum, r->width * sizeof *r->after);
    change_rank(r, state->rank[p], r->exchange, r->none);
    for (int slot = state->head[new]; slot >= 0; slot = state->next[slot]) {
        const int rank = state->rank[slot];
        const bool both = old != BL_NO_EXPERT && bl_holds_has(&state->holds, rank, old);
        change_rank(r, rank, both ? r->heavier : r->none, r->lighter);
    }
    if (old == BL_NO_EXPERT)
        return;
    for (int slot = state->head[old]; slot >= 0; slot = state->next[slot]) {
        if (slot != p && !bl_holds_has(&state->holds, state->rank[slot], new))
            change_rank(r, state->rank[slot], r->heavier, r->none);
    }
}

static void weigh_ranks_of(robust *r, int expert) {
    if (expert == BL_NO_EXPERT)
        return;
    const bl_state *state = &r->state;
    for (int slot = state->head[expert]; slot >= 0; slot = state->next[slot])
        weigh_rank(r, state->rank[slot]);
}

/* A slot whose content can be spared, where one is found soon. */
static int spare_slot(robust *r) {
    int slot = 0;
    for (int tries = 0; tries < SPARE_TRIES; tries++) {
        slot = random_slot(r);
        const int expert = r->state.expert[slot];
        if (expert == BL_NO_EXPERT || r->state.copies[expert] > 1)
            break;
    }
    return slot;
}

static void propose_replace(robust *r, double temperature) {
    bl_state *state = &r->state;
    const int p = spare_slot(r), old = state->expert[p];
    const int new = (int)bl_rng_below(r->rng, (uint32_t)state->n_experts);
    if (!bl_state_may_replace(state, p, new))
        return;
    weigh_change(r, old, new);
    change_holders(r, p, old, new);
    const double cost = cost_of(r, r->after, state->moves + bl_state_replace_moves(state, p, new));
    if (!is_accepted(r, cost, temperature))
        return;
    bl_state_replace(state, p, new);
    weigh_copy(r, new, state->copies[new], row(r, r->copy, new));
    if (old != BL_NO_EXPERT)
        weigh_copy(r, old, state->copies[old], row(r, r->copy, old));
    weigh_ranks_of(r, new); /* slot p among them */
    weigh_ranks_of(r, old);
    accept(r, cost);
}

/* ---- life ----------------------------------------------------------------------------------- */

static void robust_free(robust *r) {
    bl_state_free(&r->state);
    float *const floats[] = {r->load,    r->noise,   r->copy,    r->value, r->power,
                             r->sum,     r->after,   r->root,    r->worst, r->none,
                             r->lighter, r->heavier, r->exchange};
    for (size_t i = 0; i < sizeof floats / sizeof *floats; i++)
        free(floats[i]);
    free(r->weight);
    free(r->best);
}

static bl_status allocate(robust *r, bl_error *err) {
    const size_t n_experts = (size_t)r->state.n_experts, n_ranks = (size_t)r->state.n_ranks;
    BL_TRY(BL_CALLOC(r->load, n_experts * r->width, err));
    BL_TRY(BL_CALLOC(r->noise, n_experts * r->width, err));
    BL_TRY(BL_CALLOC(r->copy, n_experts * r->width, err));
    BL_TRY(BL_CALLOC(r->value, n_ranks * r->width, err));
    BL_TRY(BL_CALLOC(r->power, n_ranks * r->width, err));
    BL_TRY(BL_CALLOC(r->weight, r->n_scenarios, err));
    float **const rows[] = {&r->sum,  &r->after,   &r->root,    &r->worst,
                            &r->none, &r->lighter, &r->heavier, &r->exchange};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        BL_TRY(BL_CALLOC(*rows[i], r->width, err));
    return BL_CALLOC(r->best, r->state.n_slots, err);
}

/* The state knows one scenario, of all loads: it is asked for no scores. */
static bl_status make_state(const bl_problem *problem, const bl_layer_placement *placement,
                            bl_state *state, bl_error *err) {
    double *sum;
    BL_TRY(BL_CALLOC(sum, problem->n_experts, err));
    bl_problem_sum_load(problem, sum);
    bl_problem one = *problem;
    one.n_scenarios = 1;
    one.load = sum;
    const bl_status st = bl_state_create(&one, placement, state, err);
    free(sum);
    return st;
}

/* Ready at `placement`; the caller frees it, whatever comes back. */
static bl_status robust_create(const bl_problem *problem, const bl_layer_placement *placement,
                               double move_price, robust *r, bl_error *err) {
    const size_t n = (size_t)problem->n_scenarios;
    *r = (robust){.move_price = move_price,
                  .n_scenarios = problem->n_scenarios,
                  .blocks = (n + LANES - 1) / LANES,
                  .width = (n + LANES - 1) / LANES * LANES};
    BL_TRY(make_state(problem, placement, &r->state, err));
    BL_TRY(allocate(r, err));
    BL_TRY(fill(problem, r, err));
    for (int e = 0; e < problem->n_experts; e++)
        weigh_copy(r, e, r->state.copies[e], row(r, r->copy, e));
    for (int rank = 0; rank < problem->n_ranks; rank++)
        weigh_rank(r, rank);
    settle(r);
    r->best_cost = r->cost;
    memcpy(r->best, r->state.expert, (size_t)r->state.n_slots * sizeof *r->best);
    return BL_OK;
}

bl_status bl_robust_cost(const bl_problem *problem, const bl_layer_placement *placement,
                         double *out, bl_error *err) {
    robust r;
    const bl_status st = robust_create(problem, placement, 0.0, &r, err);
    if (st >= 0)
        *out = r.cost;
    robust_free(&r);
    return st;
}

/* ---- the schedule --------------------------------------------------------------------------- */

/* Beyond EASY_SCENARIOS a proposal's time is paid for with fewer proposals. */
static int64_t default_proposals(const robust *r) {
    const int scenarios = r->n_scenarios;
    int64_t n = (int64_t)r->state.n_slots * PROPOSALS_PER_SLOT;
    if (scenarios > EASY_SCENARIOS)
        n = n * EASY_SCENARIOS / scenarios;
    if (r->move_price > 0.0)
        n = (int64_t)(PRICED_PART * (double)n);
    return n < LEAST_PROPOSALS ? LEAST_PROPOSALS : n;
}

static bl_status anneal(robust *r, const bl_robust_options *options) {
    const int64_t proposals = options->proposals > 0 ? options->proposals : default_proposals(r);
    const double hottest = r->move_price > 0.0 ? HOTTEST_PRICED_PER_SLOT : HOTTEST_PER_SLOT;
    const double cooling = log(COLDEST_PER_SLOT / hottest);
    const double start = hottest / r->state.n_slots * r->cost;
    const bool has_spares = r->state.n_slots > r->state.n_experts;
    const double begin = options->time_s > 0.0 ? bl_now_s() : 0.0;
    for (int64_t n = 0;; n += STRIDE) {
        if (bl_interrupted())
            return BL_LIMIT;
        const double done = options->time_s > 0.0 ? (bl_now_s() - begin) / options->time_s
                                                  : (double)n / (double)proposals;
        if (done >= 1.0)
            return BL_OK;
        const double temperature = start * exp(cooling * done);
        for (int i = 0; i < STRIDE; i++) {
            if (has_spares && bl_rng_below(r->rng, 4) == 0)
                propose_replace(r, temperature);
            else
                propose_swap(r, temperature);
        }
        settle(r);
    }
}

bl_status bl_robust_search(const bl_problem *problem, const bl_robust_options *options, bl_rng *rng,
                           bl_layer_placement *placement, bl_error *err) {
    const double price = problem->current != NULL ? options->move_price : 0.0;
    robust r;
    bl_status st = robust_create(problem, placement, price, &r, err);
    if (st >= 0) {
        r.rng = rng;
        st = anneal(&r, options);
        memcpy(placement->expert, r.best, (size_t)r.state.n_slots * sizeof *r.best);
    }
    robust_free(&r);
    return st;
}
