/*
 * bench_split.c: the per-step split: its time, and what it gains (docs/benchmarks.md).
 *
 * GLM-5.2's drifting windows, 75 MoE layers x 256 experts on 32 ranks x 9 slots. Plans are made
 * from windows_plan up to t: the search's scenarios are the sub-windows of the last WINDOWS_BACK, each
 * window counting WINDOW_DECAY of the one after it; greedy plans on the sum of window t. 24 steps of
 * 256 tokens per rank for each plan are drawn multinomially (seed 1) from windows_score t + 1, other
 * texts. "hindsight" plans on the windows that the steps are drawn from: what can be had at all. "imbalance" rows are the mean and the 95th percentile of max/mean over all steps, layers
 * and windows. Times of a split are one sample per plan: its steps, REPEATS times over. Prints CSV;
 * without the data it prints one "skipped" row. BALLAST_BENCH_WINDOWS=N: every N-th window only.
 */
#include "core/mem.h"
#include "core/npy.h"
#include "core/progress.h"
#include "core/rng.h"
#include "core/split_step.h"
#include "planner/evaluate.h"
#include "planner/replay.h"
#include "planner/solve.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define RANKS 32
#define SLOTS_PER_RANK 9
#define EXPERTS 256
#define TOP_K 8
#define TOKENS_PER_RANK 256
#define ROWS (TOKENS_PER_RANK * RANKS * TOP_K)
#define STEPS 24
#define REPEATS 5
#define WINDOWS_BACK 4
#define WINDOW_DECAY 0.6
#define MOST_PARTS 8 /* sub-windows of a window */

typedef struct windows {
    bl_npy plan, score; /* [window][sub-window][layer][expert] */
} windows;

static size_t item_at(const bl_npy *npy, size_t window, size_t sub, size_t layer) {
    return ((window * npy->shape[1] + sub) * npy->shape[2] + layer) * npy->shape[3];
}

static void window_sum(const bl_npy *npy, size_t window, size_t layer, double *load) {
    for (size_t e = 0; e < EXPERTS; e++) {
        load[e] = 0.0;
        for (size_t sub = 0; sub < npy->shape[1]; sub++)
            load[e] += bl_npy_real(npy, item_at(npy, window, sub, layer) + e);
    }
}

/* ---- drawing steps ----------------------------------------------------------------------------*/

/* Walker's alias method: a draw picks a column evenly, then its own expert or its alias. */
typedef struct alias {
    double own[EXPERTS];
    int other[EXPERTS];
} alias;

static void alias_make(const double *load, alias *a) {
    double total = 0.0, scaled[EXPERTS];
    int small[EXPERTS], large[EXPERTS], n_small = 0, n_large = 0;
    for (int e = 0; e < EXPERTS; e++)
        total += load[e];
    for (int e = 0; e < EXPERTS; e++) {
        scaled[e] = load[e] * EXPERTS / total;
        a->own[e] = 1.0;
        a->other[e] = e;
        if (scaled[e] < 1.0)
            small[n_small++] = e;
        else
            large[n_large++] = e;
    }
    while (n_small > 0 && n_large > 0) {
        const int s = small[--n_small], l = large[n_large - 1];
        a->own[s] = scaled[s];
        a->other[s] = l;
        scaled[l] -= 1.0 - scaled[s];
        if (scaled[l] < 1.0)
            small[n_small++] = large[--n_large];
    }
}

static void draw_step(const alias *a, bl_rng *rng, uint64_t *count) {
    memset(count, 0, EXPERTS * sizeof *count);
    for (int row = 0; row < ROWS; row++) {
        const double at = bl_rng_unit(rng) * EXPERTS;
        const int column = (int)at;
        count[at - column < a->own[column] ? column : a->other[column]]++;
    }
}

/* ---- one way of planning and splitting --------------------------------------------------------*/

typedef struct way {
    const char *name;
    bl_algorithm algorithm;
    bl_rule rule;      /* planned and split under */
    bool on_even;      /* split per step, but planned for the even rule */
    size_t back;       /* windows looked back on */
    bool hindsight;    /* planned on the window scored on */
    double *imbalance; /* [n] of each step */
    size_t n;
    double *exact_us, *fast_us; /* [n_plans] time of one split, mean over the steps of a plan */
    double worst_fast; /* largest busiest rank of a fast split over that of the exact one */
    size_t n_plans;
    double plan_s;
} way;

static bl_status score_even(way *w, const bl_layer_placement *placement, const uint64_t *counts,
                            bl_error *err) {
    double share[RANKS * SLOTS_PER_RANK], load[EXPERTS], rank_load[RANKS];
    int slots[RANKS];
    bl_copies copies;
    BL_TRY(bl_copies_of(placement, &copies, err));
    bl_split_even_shares(placement, &copies, share);
    bl_copies_free(&copies);
    for (int rank = 0; rank < RANKS; rank++)
        slots[rank] = SLOTS_PER_RANK;
    for (int step = 0; step < STEPS; step++) {
        for (int e = 0; e < EXPERTS; e++)
            load[e] = (double)counts[step * EXPERTS + e];
        bl_rank_loads(placement, share, load, rank_load);
        w->imbalance[w->n++] = bl_imbalance(rank_load, slots, RANKS);
    }
    return BL_OK;
}

/* Split all steps, several times over; *us is the time of one split. */
static bl_status split_all(bl_step_split *split, const uint64_t *counts, double slack,
                           uint64_t *busiest, double *us, bl_error *err) {
    const double begin = bl_now_s();
    for (int repeat = 0; repeat < REPEATS; repeat++) {
        for (int step = 0; step < STEPS; step++) {
            bl_step_split_result result;
            BL_TRY(bl_step_split_solve(split, counts + step * EXPERTS, slack, &result, err));
            busiest[step] = result.busiest;
        }
    }
    *us = (bl_now_s() - begin) * 1e6 / (STEPS * REPEATS);
    return BL_OK;
}

static bl_status score_split(way *w, const bl_layer_placement *placement, const uint64_t *counts,
                             bl_error *err) {
    uint64_t exact[STEPS], fast[STEPS];
    bl_step_split *split;
    BL_TRY(bl_step_split_create(placement, &split, err));
    bl_status st = split_all(split, counts, 0.0, exact, &w->exact_us[w->n_plans], err);
    if (st >= 0)
        st = split_all(split, counts, 0.01, fast, &w->fast_us[w->n_plans], err);
    bl_step_split_free(split);
    BL_TRY(st);
    for (int step = 0; step < STEPS; step++) {
        const double ratio = (double)fast[step] / (double)exact[step];
        w->worst_fast = ratio > w->worst_fast ? ratio : w->worst_fast;
        w->imbalance[w->n++] = (double)exact[step] * RANKS / ROWS;
    }
    return BL_OK;
}

static bl_status plan_with(way *w, const double *load, int n_scenarios, bl_solution *solution,
                           bl_error *err) {
    int slots[RANKS];
    for (int rank = 0; rank < RANKS; rank++)
        slots[rank] = SLOTS_PER_RANK;
    const bl_problem problem = {.n_experts = EXPERTS,
                                .n_ranks = RANKS,
                                .n_scenarios = n_scenarios,
                                .load = load,
                                .slots_per_rank = slots,
                                .rule = w->on_even ? BL_RULE_EVEN : w->rule,
                                .max_moves = -1};
    bl_solve_options options = BL_SOLVE_OPTIONS_INIT;
    options.algorithm = w->algorithm;
    const double begin = bl_now_s();
    const bl_status st = bl_solve(&problem, &options, solution, err);
    w->plan_s += bl_now_s() - begin;
    return st;
}

static bl_status run_layer(way *w, const double *load, int n_scenarios, const uint64_t *counts,
                           bl_error *err) {
    bl_solution solution;
    BL_TRY(plan_with(w, load, n_scenarios, &solution, err));
    const bl_status st = w->rule == BL_RULE_PER_STEP
                             ? score_split(w, &solution.placement, counts, err)
                             : score_even(w, &solution.placement, counts, err);
    w->n_plans++;
    bl_solution_free(&solution);
    return st;
}

/* ---- all together -----------------------------------------------------------------------------*/

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void print_times(const way *w, const char *what, double *us) {
    const size_t n = w->n_plans;
    qsort(us, n, sizeof *us, by_value);
    printf("split one step (%s; %s),%.3f,us,%zu,%.3f,%.3f,%.3f\n", what, w->name, us[n / 2], n,
           us[0], us[n / 2], us[n - 1]);
}

static void print_way(way *w) {
    const size_t n = w->n;
    double sum = 0.0;
    for (size_t i = 0; i < n; i++)
        sum += w->imbalance[i];
    qsort(w->imbalance, n, sizeof *w->imbalance, by_value);
    printf("imbalance mean (%s),%.4f,max/mean,%zu,%.4f,%.4f,%.4f\n", w->name, sum / (double)n, n,
           w->imbalance[0], w->imbalance[n / 2], w->imbalance[n - 1]);
    printf("imbalance p95 (%s),%.4f,max/mean,%zu,,,\n", w->name, bl_quantile(w->imbalance, n, 0.95),
           n);
    printf("plan one layer (%s),%.3f,ms,%zu,,,\n", w->name, w->plan_s * 1e3 / (double)w->n_plans,
           w->n_plans);
    if (w->rule != BL_RULE_PER_STEP)
        return;
    print_times(w, "exact", w->exact_us);
    print_times(w, "within 1 %", w->fast_us);
    printf("within 1 %% over exact; the worst (%s),%.5f,ratio,%zu,,,\n", w->name, w->worst_fast, n);
}

/* Sub-windows as scenarios; returns how many. */
static int fill_scenarios(const windows *in, const way *w, size_t window, size_t layer,
                          double *scenarios) {
    const bl_npy *npy = w->hindsight ? &in->score : &in->plan;
    const size_t last = w->hindsight ? window + 1 : window;
    double weight = 1.0;
    int n = 0;
    for (size_t back = 0; back < w->back && back <= last; back++, weight *= WINDOW_DECAY) {
        for (size_t sub = 0; sub < npy->shape[1] && sub < MOST_PARTS; sub++, n++) {
            const size_t from = item_at(npy, last - back, sub, layer);
            for (size_t e = 0; e < EXPERTS; e++)
                scenarios[(size_t)n * EXPERTS + e] = weight * bl_npy_real(npy, from + e);
        }
    }
    return n;
}

static bl_status run_windows(const windows *in, way *ways, size_t n_ways, size_t stride,
                             bl_error *err) {
    uint64_t counts[STEPS * EXPERTS];
    double scenarios[WINDOWS_BACK * MOST_PARTS * EXPERTS];
    bl_rng rng;
    bl_rng_seed(&rng, 1);
    for (size_t window = 0; window + 1 < in->plan.shape[0]; window += stride) {
        for (size_t layer = 0; layer < in->plan.shape[2]; layer++) {
            double load[EXPERTS];
            alias a;
            window_sum(&in->score, window + 1, layer, load);
            alias_make(load, &a);
            for (int step = 0; step < STEPS; step++)
                draw_step(&a, &rng, counts + step * EXPERTS);
            for (size_t i = 0; i < n_ways; i++) {
                const int n = fill_scenarios(in, &ways[i], window, layer, scenarios);
                BL_TRY(run_layer(&ways[i], scenarios, n, counts, err));
            }
        }
    }
    return BL_OK;
}

static bl_status bench(const windows *in, bl_error *err) {
    way ways[] = {
        {.name = "greedy; even", .algorithm = BL_ALG_GREEDY, .rule = BL_RULE_EVEN, .back = 1},
        {.name = "greedy; split",
         .algorithm = BL_ALG_GREEDY,
         .rule = BL_RULE_PER_STEP,
         .on_even = true,
         .back = 1},
        {.name = "search; split",
         .algorithm = BL_ALG_SEARCH,
         .rule = BL_RULE_PER_STEP,
         .back = WINDOWS_BACK},
        {.name = "hindsight; split",
         .algorithm = BL_ALG_SEARCH,
         .rule = BL_RULE_PER_STEP,
         .back = 1,
         .hindsight = true},
    };
    const size_t n_ways = sizeof ways / sizeof *ways;
    const char *text = getenv("BALLAST_BENCH_WINDOWS");
    const int stride = text != NULL && atoi(text) > 0 ? atoi(text) : 1;
    const size_t plans = in->plan.shape[0] * in->plan.shape[2];
    bl_status st = BL_OK;
    for (size_t i = 0; i < n_ways && st >= 0; i++) {
        st = BL_CALLOC(ways[i].imbalance, plans * STEPS, err);
        if (st >= 0)
            st = BL_CALLOC(ways[i].exact_us, plans, err);
        if (st >= 0)
            st = BL_CALLOC(ways[i].fast_us, plans, err);
    }
    if (st >= 0)
        st = run_windows(in, ways, n_ways, (size_t)stride, err);
    for (size_t i = 0; i < n_ways; i++) {
        if (st >= 0)
            print_way(&ways[i]);
        free(ways[i].imbalance);
        free(ways[i].exact_us);
        free(ways[i].fast_us);
    }
    return st;
}

int main(void) {
    const char *root = getenv("BALLAST_TEST_DATA");
    bl_error err = BL_ERROR_INIT;
    windows in = {0};
    char plan[512], score[512];
    root = root != NULL ? root : "../shared/data";
    snprintf(plan, sizeof plan, "%s/routing/glm-5.2/windows_plan.npy", root);
    snprintf(score, sizeof score, "%s/routing/glm-5.2/windows_score.npy", root);
    if (access(plan, R_OK) != 0 || access(score, R_OK) != 0) {
        printf("per-step split (skipped: %s is not there),,,,,,\n", plan);
        return 0;
    }
    bl_status st = bl_npy_load(plan, &in.plan, &err);
    if (st >= 0)
        st = bl_npy_load(score, &in.score, &err);
    if (st >= 0)
        st = bench(&in, &err);
    bl_npy_free(&in.plan);
    bl_npy_free(&in.score);
    if (st < 0)
        fprintf(stderr, "bench_split: %s\n", err.text);
    return st < 0;
}
