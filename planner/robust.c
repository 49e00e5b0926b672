#include "planner/robust.h"

#include "core/mem.h"
#include "core/progress.h"
#include "planner/state.h"

#include <math.h>
#include <string.h>

#define BETA 16.0
/* Proposals between looks at the clock, the temperature and the interrupt flag. */
#define STRIDE 256
#define PROPOSALS_PER_SLOT 1400
#define LEAST_PROPOSALS 10000
#define EASY_SCENARIOS 32
/* Temperatures, as parts of the cost: one change makes the more of it, the fewer slots there are.
 * From a current placement: hotter, copies are moved before their price is felt. */
#define HOTTEST_PER_SLOT 0.3
#define HOTTEST_PRICED_PER_SLOT 0.1
#define COLDEST_PER_SLOT 0.003

/* What a proposal makes of one rank: parts of two experts' loads and a charge come on top. */
typedef struct touch {
    int rank;
    double part_old, part_new, charge;
} touch;

typedef struct robust {
    bl_state state;
    bl_rng *rng;
    double move_price;
    int n_worst;     /* scenarios that count, the worst; 0: all, by weight */
    double *inverse; /* [n_scenarios] 1 / mean rank load; 0 without load */
    double *weight;  /* [n_scenarios] part of all load */
    double *noise;   /* [n_experts] charge of an only copy */
    double *charge;  /* [n_ranks] */
    double *power;   /* [n_ranks][n_scenarios] */
    double *sum;     /* [n_scenarios] of power over ranks */
    double *after;   /* [n_scenarios] the same after a proposal */
    double *worst;   /* [n_worst] highest y, descending */
    touch *touched;  /* [n_ranks] */
    int *position;   /* [n_ranks] in `touched`, or -1 */
    int32_t *best;   /* [n_slots] the cheapest placement seen */
    double cost, best_cost;
    int n_touched;
} robust;

static size_t at(const robust *r, int row, int scenario) {
    return (size_t)row * (size_t)r->state.n_scenarios + (size_t)scenario;
}

/* x^8 and its root. */
static double raise(double x) {
    const double square = x * x, fourth = square * square;
    return fourth * fourth;
}

static double lower(double x) {
    return sqrt(sqrt(sqrt(x > 0.0 ? x : 0.0)));
}

/* ---- the noise of experts ------------------------------------------------------------------- */

/* Squared distance between two scenarios, each in its own mean rank loads. */
static double distance(const robust *r, int s, int t) {
    double sum = 0.0;
    for (int e = 0; e < r->state.n_experts; e++) {
        const double d =
            r->state.load[at(r, e, s)] * r->inverse[s] - r->state.load[at(r, e, t)] * r->inverse[t];
        sum += d * d;
    }
    return sum;
}

/* The scenario with load that is most like `s`; -1: none. */
static int nearest(const robust *r, int s) {
    int found = -1;
    double least = INFINITY;
    for (int t = 0; t < r->state.n_scenarios; t++) {
        if (t == s || r->inverse[t] <= 0.0)
            continue;
        const double d = distance(r, s, t);
        if (d < least) {
            least = d;
            found = t;
        }
    }
    return found;
}

static void weigh_scenarios(const bl_problem *problem, robust *r) {
    const double active = bl_problem_active_ranks(problem);
    const double total = bl_problem_total_load(problem);
    int n_loaded = 0;
    for (int s = 0; s < problem->n_scenarios; s++) {
        double load = 0.0;
        for (int e = 0; e < problem->n_experts; e++)
            load += problem->load[(size_t)s * (size_t)problem->n_experts + (size_t)e];
        r->inverse[s] = load > 0.0 ? active / load : 0.0;
        r->weight[s] = load / total;
        n_loaded += load > 0.0;
    }
    r->n_worst = problem->tail < 1.0 ? (int)ceil(problem->tail * n_loaded) : 0;
}

static void estimate_noise(robust *r) {
    for (int s = 0; s < r->state.n_scenarios; s++) {
        const int t = r->inverse[s] > 0.0 ? nearest(r, s) : -1;
        for (int e = 0; e < r->state.n_experts && t >= 0; e++) {
            const double d = r->state.load[at(r, e, s)] * r->inverse[s] -
                             r->state.load[at(r, e, t)] * r->inverse[t];
            r->noise[e] += BETA / 2.0 * r->weight[s] * d * d / 2.0;
        }
    }
}

/* ---- the cost ------------------------------------------------------------------------------- */

static double worst_mean(const robust *r, const double *sum) {
    int n = 0;
    for (int s = 0; s < r->state.n_scenarios; s++) {
        if (n == r->n_worst && sum[s] <= r->worst[n - 1])
            continue;
        int to = n < r->n_worst ? n++ : n - 1;
        for (; to > 0 && r->worst[to - 1] < sum[s]; to--)
            r->worst[to] = r->worst[to - 1];
        r->worst[to] = sum[s];
    }
    double mean = 0.0;
    for (int i = 0; i < n; i++)
        mean += lower(r->worst[i]) / n;
    return mean;
}

static double cost_of(const robust *r, const double *sum, int moves) {
    double cost = r->move_price * moves;
    if (r->n_worst > 0)
        return cost + worst_mean(r, sum);
    for (int s = 0; s < r->state.n_scenarios; s++)
        cost += r->weight[s] * lower(sum[s]);
    return cost;
}

static void charge_rank(robust *r, int rank) {
    const bl_state *state = &r->state;
    double charge = 0.0;
    for (int slot = state->begin[rank]; slot < state->begin[rank + 1]; slot++) {
        const int e = state->expert[slot];
        if (e != BL_NO_EXPERT)
            charge += r->noise[e] / ((double)state->copies[e] * state->copies[e]);
    }
    r->charge[rank] = charge;
    for (int s = 0; s < state->n_scenarios; s++)
        r->power[at(r, rank, s)] =
            r->inverse[s] > 0.0 ? raise(state->rank_load[at(r, rank, s)] * r->inverse[s] + charge)
                                : 0.0;
}

static void settle(robust *r) {
    memset(r->sum, 0, (size_t)r->state.n_scenarios * sizeof *r->sum);
    for (int rank = 0; rank < r->state.n_ranks; rank++) {
        for (int s = 0; s < r->state.n_scenarios; s++)
            r->sum[s] += r->power[at(r, rank, s)];
    }
    r->cost = cost_of(r, r->sum, r->state.moves);
    if (r->cost >= r->best_cost)
        return;
    r->best_cost = r->cost;
    memcpy(r->best, r->state.expert, (size_t)r->state.n_slots * sizeof *r->best);
}

/* ---- proposals ------------------------------------------------------------------------------ */

static touch *touch_rank(robust *r, int rank) {
    if (r->position[rank] < 0) {
        r->position[rank] = r->n_touched;
        r->touched[r->n_touched++] = (touch){.rank = rank};
    }
    return &r->touched[r->position[rank]];
}

/* A copy of the old (or new) expert on `rank` weighs 1 / before of it and will weigh 1 / after; 0
 * copies: there is none. */
static void touch_copy(robust *r, int rank, int expert, bool is_new, int before, int after) {
    const double was = before > 0 ? 1.0 / before : 0.0, will = after > 0 ? 1.0 / after : 0.0;
    touch *t = touch_rank(r, rank);
    *(is_new ? &t->part_new : &t->part_old) += will - was;
    t->charge += (will * will - was * was) * r->noise[expert];
}

/* Sums after the touched ranks have changed, and the cost; forgets what was touched but for the
 * list of ranks. */
static double score_touched(robust *r, int old, int new, int moves) {
    const bl_state *state = &r->state;
    const int n = state->n_scenarios;
    const double *load_old = state->load + at(r, old < 0 ? 0 : old, 0);
    const double *load_new = state->load + at(r, new < 0 ? 0 : new, 0);
    memcpy(r->after, r->sum, (size_t)n * sizeof *r->after);
    for (int i = 0; i < r->n_touched; i++) {
        const touch *t = &r->touched[i];
        const double *load = state->rank_load + at(r, t->rank, 0);
        const double *power = r->power + at(r, t->rank, 0);
        const double charge = r->charge[t->rank] + t->charge;
        for (int s = 0; s < n; s++) {
            const double x = load[s] + t->part_old * load_old[s] + t->part_new * load_new[s];
            if (r->inverse[s] > 0.0)
                r->after[s] += raise(x * r->inverse[s] + charge) - power[s];
        }
        r->position[t->rank] = -1;
    }
    return cost_of(r, r->after, moves);
}

static bool is_accepted(robust *r, double cost, double temperature) {
    const double worse = cost - r->cost;
    return worse <= 0.0 || bl_rng_unit(r->rng) < exp(-worse / temperature);
}

static void refresh(robust *r) {
    for (int i = 0; i < r->n_touched; i++)
        charge_rank(r, r->touched[i].rank);
    settle(r);
}

static int random_slot(robust *r) {
    return (int)bl_rng_below(r->rng, (uint32_t)r->state.n_slots);
}

static void propose_swap(robust *r, double temperature) {
    bl_state *state = &r->state;
    const int p = random_slot(r), q = random_slot(r);
    if (!bl_state_may_swap(state, p, q))
        return;
    const int a = state->expert[p], b = state->expert[q];
    const int g = state->rank[p], h = state->rank[q];
    r->n_touched = 0;
    if (a != BL_NO_EXPERT) {
        touch_copy(r, g, a, false, state->copies[a], 0);
        touch_copy(r, h, a, false, 0, state->copies[a]);
    }
    if (b != BL_NO_EXPERT) {
        touch_copy(r, h, b, true, state->copies[b], 0);
        touch_copy(r, g, b, true, 0, state->copies[b]);
    }
    const double cost = score_touched(r, a, b, state->moves + bl_state_swap_moves(state, p, q));
    if (!is_accepted(r, cost, temperature))
        return;
    bl_state_swap(state, p, q);
    refresh(r);
}

static void propose_replace(robust *r, double temperature) {
    bl_state *state = &r->state;
    const int p = random_slot(r), old = state->expert[p];
    const int new = (int)bl_rng_below(r->rng, (uint32_t)state->n_experts);
    if (!bl_state_may_replace(state, p, new))
        return;
    r->n_touched = 0;
    if (old != BL_NO_EXPERT) {
        const int copies = state->copies[old];
        for (int slot = state->head[old]; slot >= 0; slot = state->next[slot])
            touch_copy(r, state->rank[slot], old, false, copies, slot == p ? 0 : copies - 1);
    }
    const int copies = state->copies[new];
    for (int slot = state->head[new]; slot >= 0; slot = state->next[slot])
        touch_copy(r, state->rank[slot], new, true, copies, copies + 1);
    touch_copy(r, state->rank[p], new, true, 0, copies + 1);
    const double cost =
        score_touched(r, old, new, state->moves + bl_state_replace_moves(state, p, new));
    if (!is_accepted(r, cost, temperature))
        return;
    bl_state_replace(state, p, new);
    refresh(r);
}

/* ---- life ----------------------------------------------------------------------------------- */

static void robust_free(robust *r) {
    bl_state_free(&r->state);
    free(r->inverse);
    free(r->weight);
    free(r->noise);
    free(r->charge);
    free(r->power);
    free(r->sum);
    free(r->after);
    free(r->worst);
    free(r->touched);
    free(r->position);
    free(r->best);
}

static bl_status allocate(robust *r, bl_error *err) {
    const bl_state *state = &r->state;
    BL_TRY(BL_CALLOC(r->inverse, state->n_scenarios, err));
    BL_TRY(BL_CALLOC(r->weight, state->n_scenarios, err));
    BL_TRY(BL_CALLOC(r->noise, state->n_experts, err));
    BL_TRY(BL_CALLOC(r->charge, state->n_ranks, err));
    BL_TRY(BL_CALLOC(r->power, (size_t)state->n_ranks * (size_t)state->n_scenarios, err));
    BL_TRY(BL_CALLOC(r->sum, state->n_scenarios, err));
    BL_TRY(BL_CALLOC(r->after, state->n_scenarios, err));
    BL_TRY(BL_CALLOC(r->worst, state->n_scenarios, err));
    BL_TRY(BL_CALLOC(r->touched, state->n_ranks, err));
    BL_TRY(BL_CALLOC(r->position, state->n_ranks, err));
    return BL_CALLOC(r->best, state->n_slots, err);
}

/* Ready at `placement`; the caller frees it, whatever comes back. */
static bl_status robust_create(const bl_problem *problem, const bl_layer_placement *placement,
                               double move_price, robust *r, bl_error *err) {
    *r = (robust){.move_price = move_price, .best_cost = INFINITY};
    BL_TRY(bl_state_create(problem, placement, &r->state, err));
    BL_TRY(allocate(r, err));
    weigh_scenarios(problem, r);
    estimate_noise(r);
    for (int rank = 0; rank < problem->n_ranks; rank++) {
        r->position[rank] = -1;
        charge_rank(r, rank);
    }
    settle(r);
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
    const int scenarios = r->state.n_scenarios;
    int64_t n = (int64_t)r->state.n_slots * PROPOSALS_PER_SLOT;
    if (scenarios > EASY_SCENARIOS)
        n = n * EASY_SCENARIOS / scenarios;
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
