#include "planner/flow_search.h"

#include "core/mem.h"
#include "core/progress.h"
#include "core/rng.h"
#include "core/split_step.h"
#include "planner/holds.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Loads drawn around the scenarios, and how. Chosen on windows put together from GLM-5.2's shards _00
 * to _03, planned on half of the texts and scored on steps of the other half; fewer or tamer samples
 * over-fit, and the more so the longer the search. */
#define SAMPLES 64
#define WIDEN 1.5 /* Gaussian weights of the scenarios' deviations, in their own spread */
/* The logarithm of each expert's own noise has this variance: a constant, and part of the square of
 * its scatter over the scenarios by its mean. */
#define NOISE 0.2
#define OWN 0.5
#define MOST_NOISE 1.2  /* its standard deviation at the most */
#define LEAST_PART 0.25 /* of an expert's mean load is left before its noise */
/* Rows of a sample: finer than any temperature. */
#define SAMPLE_ROWS 0x1p24

#define DEFAULT_PROPOSALS_PER_SLOT 40
#define LEAST_DEFAULT_PROPOSALS 2000
#define REPLACE_PERCENT 40 /* of the proposals, where there are spare slots */
#define STRIDE 64          /* proposals between looks at the clock and the interrupt flag */
/* Temperatures at the start and the end, in max/mean. */
#define HOTTEST 0.002
#define COLDEST 0.0001

/* The cut that binds a sample. */
typedef struct sample_cut {
    double cost; /* what it demands of the sample */
    int n_ranks;
} sample_cut;

typedef struct flow_state {
    const bl_problem *problem;
    bl_rng rng;
    bl_step_split *split;
    int n_samples, n_slots;
    size_t words;                  /* of a set of ranks */
    uint64_t *count;               /* [n_samples][n_experts] */
    double *unit;                  /* [n_samples] what one row per rank adds to the cost */
    sample_cut *cut, *new_cut;     /* [n_samples] of the placement; of the proposal */
    uint64_t *in_cut, *new_in_cut; /* [n_samples][words] their ranks */
    double *least;                 /* [n_samples] what a sample costs at least after the proposal */
    int *order;                    /* [n_samples] in which they are solved */
    const int *begin;              /* [n_ranks + 1]; borrowed */
    int32_t *expert, *best;        /* [n_slots] now; at the least cost seen */
    int *rank;                     /* [n_slots] */
    int *copies;                   /* [n_experts] */
    bl_holds holders, home;        /* [n_experts][n_ranks] who holds an expert: now; in force */
    int moves, max_moves;
    double move_price;
    double cost, best_cost; /* mean of max/mean over the samples, plus the price of the moves */
} flow_state;

/* ---- samples ----------------------------------------------------------------------------------*/

/* Standard normal, Box and Muller. */
static double normal(bl_rng *rng) {
    const double u = 1.0 - bl_rng_unit(rng);
    return sqrt(-2.0 * log(u)) * cos(6.283185307179586 * bl_rng_unit(rng));
}

/* What samples are drawn around. */
typedef struct basis {
    int n;          /* scenarios with load */
    double *part;   /* [n][n_experts] as parts of their totals */
    double *weight; /* [n] totals as parts of all load */
    double *mean;   /* [n_experts] */
    double *noise;  /* [n_experts] standard deviation of the logarithm */
} basis;

static void normalise(const bl_problem *problem, basis *b) {
    const int n_experts = problem->n_experts;
    const double all = bl_problem_total_load(problem);
    for (int s = 0; s < problem->n_scenarios; s++) {
        const double *load = problem->load + (size_t)s * (size_t)n_experts;
        double total = 0.0;
        for (int e = 0; e < n_experts; e++)
            total += load[e];
        if (total <= 0.0)
            continue;
        b->weight[b->n] = total / all;
        for (int e = 0; e < n_experts; e++) {
            b->part[(size_t)b->n * (size_t)n_experts + (size_t)e] = load[e] / total;
            b->mean[e] += b->weight[b->n] * (load[e] / total);
        }
        b->n++;
    }
}

static void measure_noise(int n_experts, basis *b) {
    for (int e = 0; e < n_experts; e++) {
        double variance = 0.0;
        for (int s = 0; s < b->n; s++) {
            const double d = b->part[(size_t)s * (size_t)n_experts + (size_t)e] - b->mean[e];
            variance += b->weight[s] * d * d * b->n / (b->n > 1 ? b->n - 1 : 1);
        }
        const double scatter = b->mean[e] > 0.0 ? sqrt(variance) / b->mean[e] : 0.0;
        b->noise[e] = fmin(sqrt(NOISE * NOISE + OWN * OWN * scatter * scatter), MOST_NOISE);
    }
}

static void draw_sample(flow_state *fs, const basis *b, double *load) {
    const int n_experts = fs->problem->n_experts, n = b->n;
    memcpy(load, b->mean, (size_t)n_experts * sizeof *load);
    for (int s = 0; s < n && n > 1; s++) {
        const double times = WIDEN * normal(&fs->rng) * sqrt(b->weight[s] * n / (n - 1));
        for (int e = 0; e < n_experts; e++)
            load[e] += times * (b->part[(size_t)s * (size_t)n_experts + (size_t)e] - b->mean[e]);
    }
    for (int e = 0; e < n_experts; e++)
        load[e] = fmax(load[e], LEAST_PART * b->mean[e]) * exp(b->noise[e] * normal(&fs->rng));
}

static void keep_sample(flow_state *fs, int sample, const double *load) {
    const int n_experts = fs->problem->n_experts;
    uint64_t *count = fs->count + (size_t)sample * (size_t)n_experts;
    double total = 0.0, rows = 0.0;
    for (int e = 0; e < n_experts; e++)
        total += load[e];
    for (int e = 0; e < n_experts; e++) {
        count[e] = (uint64_t)(load[e] / total * SAMPLE_ROWS + 0.5);
        rows += (double)count[e];
    }
    fs->unit[sample] = bl_problem_active_ranks(fs->problem) / rows / fs->n_samples;
}

static bl_status draw_samples(flow_state *fs, bl_error *err) {
    const size_t n_experts = (size_t)fs->problem->n_experts;
    basis b = {0};
    double *load = NULL;
    bl_status st;
    BL_TRY_GOTO(st, BL_CALLOC(b.part, (size_t)fs->problem->n_scenarios * n_experts, err), done);
    BL_TRY_GOTO(st, BL_CALLOC(b.weight, fs->problem->n_scenarios, err), done);
    BL_TRY_GOTO(st, BL_CALLOC(b.mean, n_experts, err), done);
    BL_TRY_GOTO(st, BL_CALLOC(b.noise, n_experts, err), done);
    BL_TRY_GOTO(st, BL_CALLOC(load, n_experts, err), done);
    normalise(fs->problem, &b);
    measure_noise((int)n_experts, &b);
    for (int sample = 0; sample < fs->n_samples; sample++) {
        draw_sample(fs, &b, load);
        keep_sample(fs, sample, load);
    }
done:
    free(b.part);
    free(b.weight);
    free(b.mean);
    free(b.noise);
    free(load);
    return st;
}

/* ---- scoring a proposal -----------------------------------------------------------------------*/

/* Add to least[] what an expert's rows weigh in the cuts that bind now, or take it away. An expert
 * weighs in a cut when all its copies are within. */
static void charge(flow_state *fs, int expert, double sign) {
    if (expert == BL_NO_EXPERT)
        return;
    const uint64_t *holders = fs->holders.bits + (size_t)expert * fs->words;
    const uint64_t *cut = fs->in_cut, *count = fs->count + expert;
    for (int s = 0; s < fs->n_samples; s++, cut += fs->words, count += fs->problem->n_experts) {
        uint64_t outside = 0;
        for (size_t i = 0; i < fs->words; i++)
            outside |= holders[i] & ~cut[i];
        if (outside == 0)
            fs->least[s] += sign * (double)*count * fs->unit[s] / fs->cut[s].n_ranks;
    }
}

/* Solve one sample and note the cut that binds it. */
static bl_status solve_sample(flow_state *fs, int sample, bl_error *err) {
    const uint64_t *count = fs->count + (size_t)sample * (size_t)fs->problem->n_experts;
    uint64_t *bits = fs->new_in_cut + (size_t)sample * fs->words;
    bl_step_split_result result;
    const int *cut;
    BL_TRY(bl_step_split_solve(fs->split, count, 0.0, &result, err));
    const int n = bl_step_split_cut(fs->split, &cut);
    fs->new_cut[sample] = (sample_cut){(double)result.bound * fs->unit[sample], n};
    memset(bits, 0, fs->words * sizeof *bits);
    for (int i = 0; i < n; i++)
        bits[cut[i] / 64] |= UINT64_C(1) << (cut[i] % 64);
    return BL_OK;
}

/* What spoilt this proposal may spoil the next one: look at that sample first. */
static void bring_forward(flow_state *fs, int at) {
    const int sample = fs->order[at];
    memmove(fs->order + 1, fs->order, (size_t)at * sizeof *fs->order);
    fs->order[0] = sample;
}

/* Cost of the experts that stand in the slots, or infinity as soon as it is known to be above
 * `most`: least[] stands for the samples that are not solved yet. */
static bl_status score(flow_state *fs, double most, double *cost, bl_error *err) {
    double sum = fs->move_price * fs->moves;
    *cost = INFINITY;
    for (int s = 0; s < fs->n_samples; s++)
        sum += fs->least[s];
    if (sum > most)
        return BL_OK;
    bl_step_split_set(fs->split, fs->expert);
    int worst = 0;
    double most_added = 0.0;
    for (int i = 0; i < fs->n_samples; i++) {
        const int s = fs->order[i];
        BL_TRY(solve_sample(fs, s, err));
        const double added = fs->new_cut[s].cost - fs->least[s];
        if (added > most_added) {
            most_added = added;
            worst = i;
        }
        sum += added;
        if (sum > most) {
            bring_forward(fs, worst);
            return BL_OK;
        }
    }
    *cost = sum;
    return BL_OK;
}

/* The proposal becomes the placement. */
static void accept(flow_state *fs, double cost) {
    sample_cut *const cut = fs->cut;
    uint64_t *const in_cut = fs->in_cut;
    fs->cut = fs->new_cut;
    fs->in_cut = fs->new_in_cut;
    fs->new_cut = cut;
    fs->new_in_cut = in_cut;
    fs->cost = cost;
    if (cost < fs->best_cost) {
        fs->best_cost = cost;
        memcpy(fs->best, fs->expert, (size_t)fs->n_slots * sizeof *fs->best);
    }
}

/* ---- changes ----------------------------------------------------------------------------------*/

static int is_away(const flow_state *fs, int rank, int expert) {
    return fs->problem->current != NULL && expert != BL_NO_EXPERT &&
           !bl_holds_has(&fs->home, expert, rank);
}

/* Put an expert (or nothing) into a slot. */
static void put(flow_state *fs, int slot, int expert) {
    const int rank = fs->rank[slot], old = fs->expert[slot];
    if (old != BL_NO_EXPERT) {
        bl_holds_unset(&fs->holders, old, rank);
        fs->copies[old]--;
    }
    if (expert != BL_NO_EXPERT) {
        bl_holds_set(&fs->holders, expert, rank);
        fs->copies[expert]++;
    }
    fs->moves += is_away(fs, rank, expert) - is_away(fs, rank, old);
    fs->expert[slot] = (int32_t)expert;
}

static bool may_hold(const flow_state *fs, int rank, int expert) {
    return expert == BL_NO_EXPERT || (!bl_holds_has(&fs->holders, expert, rank) &&
                                      bl_rules_may(fs->problem->rules, rank, expert));
}

/* Is the expert in as many domains as it must be? */
static bool keeps_domains(const flow_state *fs, int expert) {
    if (expert == BL_NO_EXPERT || bl_rules_least(fs->problem->rules, expert) < 2)
        return true;
    bl_domain_count count = {.least = bl_rules_least(fs->problem->rules, expert)};
    for (int rank = 0; rank < fs->problem->n_ranks; rank++) {
        if (bl_holds_has(&fs->holders, expert, rank))
            bl_domain_count_add(&count, fs->problem->rules->domain[rank]);
    }
    return count.n >= count.least;
}

/* Slot p gets another expert; with q >= 0, in exchange with slot q. */
typedef struct change {
    int p, q, old_expert, new_expert;
} change;

static int random_slot(flow_state *fs) {
    return (int)bl_rng_below(&fs->rng, (uint32_t)fs->n_slots);
}

/* A slot of a rank in a cut that binds: where a change can help. */
static int binding_slot(flow_state *fs) {
    const uint32_t sample = bl_rng_below(&fs->rng, (uint32_t)fs->n_samples);
    const uint64_t *cut = fs->in_cut + sample * fs->words;
    int left = (int)bl_rng_below(&fs->rng, (uint32_t)fs->cut[sample].n_ranks), rank = -1;
    while (left >= 0) {
        rank++;
        left -= (int)(cut[rank / 64] >> (rank % 64) & 1);
    }
    const int slots = fs->begin[rank + 1] - fs->begin[rank];
    return fs->begin[rank] + (int)bl_rng_below(&fs->rng, (uint32_t)slots);
}

static bool propose_swap(flow_state *fs, change *c) {
    c->p = bl_rng_below(&fs->rng, 2) == 0 ? random_slot(fs) : binding_slot(fs);
    c->q = random_slot(fs);
    c->old_expert = fs->expert[c->p];
    c->new_expert = fs->expert[c->q];
    return fs->rank[c->p] != fs->rank[c->q] && c->old_expert != c->new_expert &&
           may_hold(fs, fs->rank[c->q], c->old_expert) &&
           may_hold(fs, fs->rank[c->p], c->new_expert);
}

/* Half of the time an expert of a cut gets a copy elsewhere, else any expert anywhere. */
static bool propose_replace(flow_state *fs, change *c) {
    c->p = random_slot(fs);
    c->q = -1;
    c->old_expert = fs->expert[c->p];
    c->new_expert = bl_rng_below(&fs->rng, 2) == 0
                        ? fs->expert[binding_slot(fs)]
                        : (int)bl_rng_below(&fs->rng, (uint32_t)fs->problem->n_experts);
    return c->new_expert != BL_NO_EXPERT &&
           (c->old_expert == BL_NO_EXPERT || fs->copies[c->old_expert] > 1) &&
           may_hold(fs, fs->rank[c->p], c->new_expert);
}

static void apply(flow_state *fs, const change *c, bool back) {
    put(fs, c->p, BL_NO_EXPERT);
    if (c->q >= 0)
        put(fs, c->q, back ? c->new_expert : c->old_expert);
    put(fs, c->p, back ? c->old_expert : c->new_expert);
}

static bl_status propose(flow_state *fs, double temperature, bl_error *err) {
    change c;
    const bool has_spares = fs->n_slots > fs->problem->n_experts;
    const bool legal = has_spares && bl_rng_below(&fs->rng, 100) < REPLACE_PERCENT
                           ? propose_replace(fs, &c)
                           : propose_swap(fs, &c);
    if (!legal)
        return BL_OK;
    const int moves = fs->moves;
    for (int s = 0; s < fs->n_samples; s++)
        fs->least[s] = fs->cut[s].cost;
    charge(fs, c.old_expert, -1.0);
    charge(fs, c.new_expert, -1.0);
    apply(fs, &c, false);
    charge(fs, c.old_expert, 1.0);
    charge(fs, c.new_expert, 1.0);
    /* Metropolis: accepted when the cost is at most this. */
    const double most = fs->cost - temperature * log(1.0 - bl_rng_unit(&fs->rng));
    double cost = INFINITY;
    if ((fs->moves <= fs->max_moves || fs->moves <= moves) && keeps_domains(fs, c.old_expert) &&
        keeps_domains(fs, c.new_expert))
        BL_TRY(score(fs, most, &cost, err));
    if (cost <= most)
        accept(fs, cost);
    else
        apply(fs, &c, true);
    return BL_OK;
}

/* ---- the schedule -----------------------------------------------------------------------------*/

static bl_status anneal(flow_state *fs, const bl_flow_search_options *options, bl_error *err) {
    const double begin = options->time_s > 0.0 ? bl_now_s() : 0.0;
    const int64_t usual = (int64_t)fs->n_slots * DEFAULT_PROPOSALS_PER_SLOT;
    int64_t proposals = usual > LEAST_DEFAULT_PROPOSALS ? usual : LEAST_DEFAULT_PROPOSALS;
    if (options->proposals > 0)
        proposals = options->proposals;
    const double cooling = log(COLDEST / HOTTEST);
    double cost;
    fs->best_cost = INFINITY;
    BL_TRY(score(fs, INFINITY, &cost, err));
    accept(fs, cost);
    for (int64_t at = 0;; at += STRIDE) {
        if (bl_interrupted())
            return BL_LIMIT;
        const double done = options->time_s > 0.0 ? (bl_now_s() - begin) / options->time_s
                                                  : (double)at / (double)proposals;
        if (done >= 1.0)
            return BL_OK;
        const double temperature = HOTTEST * exp(cooling * done);
        for (int i = 0; i < STRIDE; i++)
            BL_TRY(propose(fs, temperature, err));
    }
}

static bl_status allocate(flow_state *fs, const bl_layer_placement *placement, bl_error *err) {
    const size_t samples = (size_t)fs->n_samples;
    const int ranks = fs->problem->n_ranks, experts = fs->problem->n_experts;
    BL_TRY(bl_holds_create(experts, ranks, &fs->holders, err));
    BL_TRY(bl_holds_create(experts, ranks, &fs->home, err));
    fs->words = fs->holders.words;
    BL_TRY(BL_CALLOC(fs->count, samples * (size_t)experts, err));
    BL_TRY(BL_CALLOC(fs->unit, samples, err));
    BL_TRY(BL_CALLOC(fs->order, samples, err));
    for (int s = 0; s < fs->n_samples; s++)
        fs->order[s] = s;
    BL_TRY(BL_CALLOC(fs->cut, samples, err));
    BL_TRY(BL_CALLOC(fs->new_cut, samples, err));
    BL_TRY(BL_CALLOC(fs->in_cut, samples * fs->words, err));
    BL_TRY(BL_CALLOC(fs->new_in_cut, samples * fs->words, err));
    BL_TRY(BL_CALLOC(fs->least, samples, err));
    BL_TRY(BL_CALLOC(fs->expert, fs->n_slots, err));
    BL_TRY(BL_CALLOC(fs->best, fs->n_slots, err));
    BL_TRY(BL_CALLOC(fs->rank, fs->n_slots, err));
    BL_TRY(BL_CALLOC(fs->copies, experts, err));
    return bl_step_split_create(placement, &fs->split, err);
}

static void release(flow_state *fs) {
    bl_step_split_free(fs->split);
    bl_holds_free(&fs->holders);
    bl_holds_free(&fs->home);
    free(fs->count);
    free(fs->unit);
    free(fs->order);
    free(fs->cut);
    free(fs->new_cut);
    free(fs->in_cut);
    free(fs->new_in_cut);
    free(fs->least);
    free(fs->expert);
    free(fs->best);
    free(fs->rank);
    free(fs->copies);
}

static void note_home(flow_state *fs, const bl_layer_placement *current) {
    for (int rank = 0; rank < current->n_ranks; rank++) {
        for (int slot = current->begin[rank]; slot < current->begin[rank + 1]; slot++) {
            if (current->expert[slot] != BL_NO_EXPERT)
                bl_holds_set(&fs->home, current->expert[slot], rank);
        }
    }
}

static void start_at(flow_state *fs, const bl_layer_placement *placement) {
    if (fs->problem->current != NULL)
        note_home(fs, fs->problem->current);
    for (int rank = 0; rank < placement->n_ranks; rank++) {
        for (int slot = fs->begin[rank]; slot < fs->begin[rank + 1]; slot++) {
            fs->rank[slot] = rank;
            fs->expert[slot] = BL_NO_EXPERT;
            put(fs, slot, placement->expert[slot]);
        }
    }
}

bl_status bl_flow_search(const bl_problem *problem, const bl_flow_search_options *options,
                         bl_layer_placement *placement, bl_error *err) {
    flow_state fs = {.problem = problem,
                     .n_samples = SAMPLES,
                     .n_slots = bl_layer_n_slots(placement),
                     .begin = placement->begin,
                     .max_moves = problem->max_moves >= 0 ? problem->max_moves : INT_MAX,
                     .move_price = problem->current != NULL ? options->move_price : 0.0};
    bl_rng_seed(&fs.rng, options->seed);
    bl_status st = allocate(&fs, placement, err);
    if (st >= 0)
        st = draw_samples(&fs, err);
    if (st >= 0) {
        start_at(&fs, placement);
        st = anneal(&fs, options, err);
    }
    if (st >= 0)
        memcpy(placement->expert, fs.best, (size_t)fs.n_slots * sizeof *fs.best);
    release(&fs);
    return st;
}
