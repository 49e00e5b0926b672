/*
 * bench_heldout.c: planning for texts that the plan has not seen (docs/benchmarks.md, "held out",
 * and its time).
 *
 * shards   GLM-5.2, 56 shards of seven domains: planned on _00 to _03 of each (28 scenarios),
 *          scored on _04 to _07, even split. Value: mean max/mean over layers and shards. In place of the
 *          median stands the mean over layers of the worst shard, between its least and largest;
 *          the _median row is the mean over layers of the median shard. The time is of one thread,
 *          all layers. The last rows say with how many redundant slots robust plans hold as well
 *          as greedy's with 128.
 * windows  a drifting mix: plan t from windows_plan[<= t], score on windows_score[t + 1]. Greedy
 *          looks at window t and knows no plan before; robust looks at the sub-windows of the last
 *          WINDOWS_BACK and starts from the plan before. Moves as the engine counts them: copies on
 *          ranks that did not hold their expert.
 * noise    every load of the first (last) plan's scenarios changed by up to 1 per cent, planned
 *          again from it. After the last one, gains that stayed below the threshold before may cross it.
 *
 * greedy: what engines do today, on the summed loads. exact: the mean over exactly these scenarios.
 * robust: planner/robust.h, its mean; robust_cvar: its worst quarter.
 *
 * The scores are those of the evaluator. BALLAST_BENCH_LAYERS=N looks at every Nth layer only; the
 * rows in the documentation are of all. Without the data a note on standard error says so.
 */
#include "core/mem.h"
#include "core/npy.h"
#include "core/progress.h"
#include "core/rng.h"
#include "planner/robust.h"
#include "planner/solve.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define RANKS 32
/* For the hierarchical policy: groups as DeepSeek-V3 has them. */
#define GROUPS 8
#define RANKS_PER_NODE 8
#define MOST_SCENARIOS 64
/* Windows a re-plan looks back on, each counting so much of the one after it. */
#define WINDOWS_BACK 4
#define WINDOW_DECAY 0.6
#define REPLAN_MOVES 40
#define REPLAN_GAIN BL_ROBUST_MIN_GAIN

typedef struct tally {
    double sum, median_sum, worst_sum, least_worst, most_worst, ms, moves;
    int n, n_layers, n_replans;
} tally;

typedef struct bench {
    bl_npy plan, score; /* the same array for shards */
    size_t n_layers, n_experts, stride;
    int slots[RANKS], node[RANKS];
    double *load; /* [MOST_SCENARIOS][n_experts] */
    double *held; /* [n_experts] */
} bench;

/* `redundant` slots more than experts, laid evenly over the ranks. */
static void set_slots(bench *b, int redundant) {
    const int slots = (int)b->n_experts + redundant;
    for (int rank = 0; rank < RANKS; rank++)
        b->slots[rank] = slots / RANKS + (rank < slots % RANKS);
    for (int rank = 0; rank < RANKS; rank++)
        b->node[rank] = rank / RANKS_PER_NODE;
}

static bl_problem problem_of(const bench *b, const double *load, int n_scenarios) {
    return (bl_problem){.n_experts = (int)b->n_experts,
                        .n_ranks = RANKS,
                        .n_scenarios = n_scenarios,
                        .load = load,
                        .slots_per_rank = b->slots,
                        .rule = BL_RULE_EVEN,
                        .max_moves = -1,
                        .n_groups = GROUPS,
                        .node = b->node};
}

/* Adds row `row` of an array of [row][layer][expert], times `factor`. */
static void add_row(const bl_npy *npy, const bench *b, size_t row, size_t layer, double factor,
                    double *into) {
    const size_t from = (row * b->n_layers + layer) * b->n_experts;
    for (size_t e = 0; e < b->n_experts; e++)
        into[e] += factor * bl_npy_real(npy, from + e);
}

static bl_status score_one(const bench *b, const bl_layer_placement *placement, double *out,
                           bl_error *err) {
    const bl_problem problem = problem_of(b, b->held, 1);
    bl_score score;
    BL_TRY(bl_evaluate(&problem, placement, &score, err));
    *out = score.max_over_mean;
    return BL_OK;
}

static bl_status solve(const bl_problem *problem, bl_algorithm algorithm, tally *t,
                       bl_solution *out, bl_error *err) {
    bl_solve_options options = BL_SOLVE_OPTIONS_INIT;
    options.algorithm = algorithm;
    const double begin = bl_now_s();
    const bl_status st = bl_solve(problem, &options, out, err);
    t->ms += (bl_now_s() - begin) * 1e3;
    return st;
}

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* ---- shards -----------------------------------------------------------------------------------*/

static void count_layer(tally *t, double *value, int n) {
    qsort(value, (size_t)n, sizeof *value, by_value);
    for (int i = 0; i < n; i++)
        t->sum += value[i];
    const double worst = value[n - 1];
    t->n += n;
    t->median_sum += (value[n / 2] + value[(n - 1) / 2]) / 2.0;
    t->worst_sum += worst;
    t->least_worst = t->n_layers == 0 ? worst : fmin(t->least_worst, worst);
    t->most_worst = fmax(t->most_worst, worst);
    t->n_layers++;
}

static bl_status shards_layer(bench *b, size_t layer, bl_algorithm algorithm, double tail, tally *t,
                              bl_error *err) {
    const size_t n_shards = b->plan.shape[0];
    int n = 0;
    memset(b->load, 0, MOST_SCENARIOS * b->n_experts * sizeof *b->load);
    for (size_t shard = 0; shard < n_shards; shard++) {
        if (shard % 8 < 4 && n < MOST_SCENARIOS)
            add_row(&b->plan, b, shard, layer, 1.0, b->load + (size_t)n++ * b->n_experts);
    }
    bl_problem problem = problem_of(b, b->load, n);
    problem.tail = tail;
    bl_solution solution;
    BL_TRY(solve(&problem, algorithm, t, &solution, err));
    double value[MOST_SCENARIOS];
    int n_held = 0;
    bl_status st = BL_OK;
    for (size_t shard = 0; shard < n_shards && n_held < MOST_SCENARIOS && st >= 0; shard++) {
        if (shard % 8 < 4)
            continue;
        memset(b->held, 0, b->n_experts * sizeof *b->held);
        add_row(&b->score, b, shard, layer, 1.0, b->held);
        st = score_one(b, &solution.placement, &value[n_held++], err);
    }
    bl_solution_free(&solution);
    if (st >= 0)
        count_layer(t, value, n_held);
    return st;
}

static bl_status bench_shards(bench *b, const char *name, int redundant, bl_algorithm algorithm,
                              double tail, double *mean, bl_error *err) {
    tally t = {0};
    set_slots(b, redundant);
    for (size_t layer = 0; layer < b->n_layers; layer += b->stride)
        BL_TRY(shards_layer(b, layer, algorithm, tail, &t, err));
    printf("heldout_shards_%d_redundant_%s,%.4f,max/mean,%d,%.4f,%.4f,%.4f\n", redundant, name,
           t.sum / t.n, t.n, t.least_worst, t.worst_sum / t.n_layers, t.most_worst);
    printf("heldout_shards_%d_redundant_%s_median,%.4f,max/mean,%d,,,\n", redundant, name,
           t.median_sum / t.n_layers, t.n_layers);
    printf("heldout_shards_%d_redundant_%s_time,%.0f,ms,1,,,\n", redundant, name, t.ms);
    fflush(stdout);
    *mean = t.sum / t.n;
    return BL_OK;
}

/* The fewest redundant slots, in steps of 8, with which robust plans hold as well as greedy's. */
static bl_status bench_redundant(bench *b, double greedy, bl_error *err) {
    for (int redundant = 8; redundant <= RANKS; redundant += 8) {
        double mean;
        BL_TRY(bench_shards(b, "robust", redundant, BL_ALG_SEARCH, 1.0, &mean, err));
        if (mean <= greedy) {
            printf("heldout_shards_redundant_as_greedy_128,%d,slots,1,,,\n", redundant);
            return BL_OK;
        }
    }
    return BL_OK;
}

/* ---- windows ----------------------------------------------------------------------------------*/

typedef struct way {
    const char *name;
    bl_algorithm algorithm;
    double tail;
    bool anchored; /* re-plans start from the plan before */
} way;

/* The scenarios of a plan at window `t`: one window for those that look at one, else the
 * sub-windows of the last few. */
static int fill_windows(bench *b, size_t layer, size_t t, bool look_back) {
    const size_t parts = b->plan.shape[1];
    int n = 0;
    memset(b->load, 0, MOST_SCENARIOS * b->n_experts * sizeof *b->load);
    for (size_t back = 0; back < (look_back ? WINDOWS_BACK : 1) && back <= t; back++) {
        for (size_t part = 0; part < parts; part++) {
            add_row(&b->plan, b, (t - back) * parts + part, layer, pow(WINDOW_DECAY, (double)back),
                    b->load + (size_t)n * b->n_experts);
            n += look_back;
        }
    }
    return look_back ? n : 1;
}

/* `declined` is what the plan in force remembers (bl_problem). */
static bl_status plan_window(bench *b, const way *w, int n, const bl_layer_placement *current,
                             double declined, tally *t, bl_solution *out, bl_error *err) {
    bl_problem problem = problem_of(b, b->load, n);
    problem.tail = w->tail;
    problem.current = w->anchored ? current : NULL;
    problem.max_moves = problem.current != NULL ? REPLAN_MOVES : -1;
    problem.min_gain = REPLAN_GAIN;
    problem.declined = declined;
    return solve(&problem, w->algorithm, t, out, err);
}

/* Take over the new plan, and count what had to travel. */
static void take_over(bl_solution *next, bl_layer_placement *current, tally *t) {
    if (current->expert != NULL) {
        t->moves += bl_layer_moves(current, &next->placement);
        t->n_replans++;
    }
    bl_layer_placement_free(current);
    *current = next->placement;
    next->placement = (bl_layer_placement){0};
    bl_solution_free(next);
}

static bl_status noisy_replan(bench *b, const way *w, int n, const bl_layer_placement *current,
                              double declined, tally *noise, bl_error *err) {
    bl_rng rng;
    bl_rng_seed(&rng, (uint64_t)noise->n_replans);
    for (size_t i = 0; i < (size_t)n * b->n_experts; i++)
        b->load[i] *= 0.99 + 0.02 * bl_rng_unit(&rng);
    bl_solution again;
    BL_TRY(plan_window(b, w, n, current, declined, noise, &again, err));
    noise->moves += bl_layer_moves(current, &again.placement);
    noise->n_replans++;
    bl_solution_free(&again);
    return BL_OK;
}

/* noise[0]: after the first plan, noise[1]: after the last. */
static bl_status windows_layer(bench *b, size_t layer, const way *w, tally *t, tally noise[2],
                               bl_error *err) {
    const size_t n_windows = b->plan.shape[0], parts = b->plan.shape[1];
    bl_layer_placement current = {0};
    double declined = 0.0;
    bl_status st = BL_OK;
    for (size_t at = 0; at + 1 < n_windows && st >= 0; at++) {
        const int n = fill_windows(b, layer, at, w->tail > 0.0);
        bl_solution next;
        st =
            plan_window(b, w, n, current.expert != NULL ? &current : NULL, declined, t, &next, err);
        if (st < 0)
            break;
        declined = next.declined;
        take_over(&next, &current, t);
        double value = 0.0;
        memset(b->held, 0, b->n_experts * sizeof *b->held);
        for (size_t part = 0; part < parts; part++)
            add_row(&b->score, b, (at + 1) * parts + part, layer, 1.0, b->held);
        st = score_one(b, &current, &value, err);
        t->sum += value;
        t->n++;
        if (st >= 0 && (at == 0 || at + 2 == n_windows))
            st = noisy_replan(b, w, n, &current, declined, &noise[at > 0], err);
    }
    bl_layer_placement_free(&current);
    return st;
}

static bl_status bench_windows(bench *b, int redundant, const way *w, bl_error *err) {
    tally t = {0}, noise[2] = {0};
    set_slots(b, redundant);
    for (size_t layer = 0; layer < b->n_layers; layer += b->stride)
        BL_TRY(windows_layer(b, layer, w, &t, noise, err));
    printf("heldout_windows_%d_redundant_%s,%.4f,max/mean,%d,,,\n", redundant, w->name, t.sum / t.n,
           t.n);
    printf("heldout_windows_%d_redundant_%s_moves,%.2f,per layer and re-plan,%d,,,\n", redundant,
           w->name, t.moves / t.n_replans, t.n_replans);
    for (int last = 0; last < 2; last++)
        printf("heldout_windows_%d_redundant_%s_noise_%s_moves,%.2f,per layer,%d,,,\n", redundant,
               w->name, last ? "last" : "first", noise[last].moves / noise[last].n_replans,
               noise[last].n_replans);
    fflush(stdout);
    return BL_OK;
}

/* ---- all --------------------------------------------------------------------------------------*/

static bl_status open_array(const char *root, const char *name, bl_npy *out, bl_error *err) {
    char path[512];
    snprintf(path, sizeof path, "%s/routing/glm-5.2/%s.npy", root, name);
    return bl_npy_load(path, out, err);
}

static bl_status prepare(bench *b, int layer_axis, bl_error *err) {
    const char *stride = getenv("BALLAST_BENCH_LAYERS");
    b->stride = stride != NULL && atoi(stride) > 0 ? (size_t)atoi(stride) : 1;
    b->n_layers = b->plan.shape[layer_axis];
    b->n_experts = b->plan.shape[layer_axis + 1];
    BL_TRY(BL_CALLOC(b->load, MOST_SCENARIOS * b->n_experts, err));
    return BL_CALLOC(b->held, b->n_experts, err);
}

static void bench_free(bench *b) {
    free(b->load);
    free(b->held);
}

static bl_status all_shards(const char *root, bl_error *err) {
    bench b = {0};
    BL_TRY(open_array(root, "shards", &b.plan, err));
    b.score = b.plan;
    bl_status st = prepare(&b, 1, err);
    double mean;
    if (st >= 0)
        st = bench_shards(&b, "greedy", 32, BL_ALG_GREEDY, 0.0, &mean, err);
    if (st >= 0)
        st = bench_shards(&b, "hierarchical", 32, BL_ALG_GREEDY_HIERARCHICAL, 0.0, &mean, err);
    if (st >= 0)
        st = bench_shards(&b, "exact", 32, BL_ALG_SEARCH, 0.0, &mean, err);
    if (st >= 0)
        st = bench_shards(&b, "robust", 32, BL_ALG_SEARCH, 1.0, &mean, err);
    if (st >= 0)
        st = bench_shards(&b, "robust_cvar", 32, BL_ALG_SEARCH, 0.25, &mean, err);
    if (st >= 0)
        st = bench_shards(&b, "greedy", 128, BL_ALG_GREEDY, 0.0, &mean, err);
    if (st >= 0)
        st = bench_redundant(&b, mean, err);
    bench_free(&b);
    bl_npy_free(&b.plan);
    return st;
}

static bl_status all_windows(const char *root, bl_error *err) {
    static const way greedy = {"greedy", BL_ALG_GREEDY, 0.0, false};
    static const way robust = {"robust", BL_ALG_SEARCH, 1.0, true};
    bench b = {0};
    BL_TRY(open_array(root, "windows_plan", &b.plan, err));
    bl_status st = open_array(root, "windows_score", &b.score, err);
    if (st >= 0)
        st = prepare(&b, 2, err);
    if (st >= 0)
        st = bench_windows(&b, 32, &greedy, err);
    if (st >= 0)
        st = bench_windows(&b, 32, &robust, err);
    if (st >= 0)
        st = bench_windows(&b, 128, &greedy, err);
    bench_free(&b);
    bl_npy_free(&b.score);
    bl_npy_free(&b.plan);
    return st;
}

int main(void) {
    const char *root = getenv("BALLAST_TEST_DATA");
    bl_error err = BL_ERROR_INIT;
    root = root != NULL ? root : "../shared/data";
    if (access(root, R_OK) != 0) {
        fprintf(stderr, "bench_heldout: skipped: %s is not there\n", root);
        return 0;
    }
    if (all_shards(root, &err) < 0 || all_windows(root, &err) < 0) {
        fprintf(stderr, "bench_heldout: %s\n", err.text);
        return 1;
    }
    return 0;
}
