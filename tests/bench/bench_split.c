/*
 * bench_split.c: the per-step split: its time (design row 15) and what it gains (row 3).
 *
 * GLM-5.2's drifting windows, 75 MoE layers x 256 experts on 32 ranks x 9 slots. Plans are made
 * from windows_plan t, its sub-windows being the scenarios (greedy plans on their sum); 24 steps of
 * 256 tokens per rank for each plan are drawn multinomially (seed 1) from windows_score t + 1, other
 * texts. "imbalance" rows are the mean and the 95th percentile of max/mean over all steps, layers
 * and windows. Times are of one split of one layer, over BATCHES batches of such steps. Prints CSV;
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
#define BATCHES 15
#define TIMED_STEPS 400

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
    bl_rule rule; /* planned and split under */
    bool on_even; /* split per step, but planned for the even rule */
    double *imbalance;
    size_t n;
    double plan_s;
} way;

static bl_status split_step(const way *w, const bl_layer_placement *placement, bl_step_split *split,
                            const uint64_t *count, double *imbalance, bl_error *err) {
    if (w->rule == BL_RULE_PER_STEP) {
        bl_step_split_result result;
        BL_TRY(bl_step_split_solve(split, count, 0.0, &result, err));
        *imbalance = (double)result.busiest * RANKS / ROWS;
        return BL_OK;
    }
    double share[RANKS * SLOTS_PER_RANK], load[EXPERTS], rank_load[RANKS];
    int slots[RANKS];
    bl_copies copies;
    BL_TRY(bl_copies_of(placement, &copies, err));
    bl_split_even_shares(placement, &copies, share);
    bl_copies_free(&copies);
    for (int e = 0; e < EXPERTS; e++)
        load[e] = (double)count[e];
    for (int rank = 0; rank < RANKS; rank++)
        slots[rank] = SLOTS_PER_RANK;
    bl_rank_loads(placement, share, load, rank_load);
    *imbalance = bl_imbalance(rank_load, slots, RANKS);
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
    bl_step_split *split = NULL;
    bl_status st = bl_step_split_create(&solution.placement, &split, err);
    for (int step = 0; step < STEPS && st >= 0; step++)
        st = split_step(w, &solution.placement, split, counts + step * EXPERTS,
                        &w->imbalance[w->n++], err);
    bl_step_split_free(split);
    bl_solution_free(&solution);
    return st;
}

/* ---- time of a split --------------------------------------------------------------------------*/

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static bl_status time_split(const windows *in, way *w, double slack, const char *what,
                            bl_error *err) {
    double load[EXPERTS], us[BATCHES];
    uint64_t *counts;
    bl_solution solution;
    bl_step_split *split = NULL;
    alias a;
    bl_rng rng;
    bl_rng_seed(&rng, 1);
    BL_TRY(BL_CALLOC(counts, TIMED_STEPS * EXPERTS, err));
    window_sum(&in->plan, 0, 37, load);
    bl_status st = plan_with(w, load, 1, &solution, err);
    window_sum(&in->score, 1, 37, load);
    alias_make(load, &a);
    for (int step = 0; step < TIMED_STEPS; step++)
        draw_step(&a, &rng, counts + step * EXPERTS);
    if (st >= 0)
        st = bl_step_split_create(&solution.placement, &split, err);
    for (int batch = 0; batch < BATCHES && st >= 0; batch++) {
        bl_step_split_result result;
        const double begin = bl_now_s();
        for (int step = 0; step < TIMED_STEPS && st >= 0; step++)
            st = bl_step_split_solve(split, counts + step * EXPERTS, slack, &result, err);
        us[batch] = (bl_now_s() - begin) * 1e6 / TIMED_STEPS;
    }
    qsort(us, BATCHES, sizeof *us, by_value);
    if (st >= 0)
        printf("split one step (%s; %s),%.3f,us,%d,%.3f,%.3f,%.3f\n", what, w->name,
               us[BATCHES / 2], BATCHES, us[0], us[BATCHES / 2], us[BATCHES - 1]);
    bl_step_split_free(split);
    bl_solution_free(&solution);
    free(counts);
    return st;
}

/* ---- all together -----------------------------------------------------------------------------*/

static void print_way(way *w) {
    double sum = 0.0;
    for (size_t i = 0; i < w->n; i++)
        sum += w->imbalance[i];
    qsort(w->imbalance, w->n, sizeof *w->imbalance, by_value);
    printf("imbalance mean (%s),%.4f,max/mean,%zu,%.4f,%.4f,%.4f\n", w->name, sum / (double)w->n,
           w->n, w->imbalance[0], w->imbalance[w->n / 2], w->imbalance[w->n - 1]);
    printf("imbalance p95 (%s),%.4f,max/mean,%zu,,,\n", w->name,
           bl_quantile(w->imbalance, w->n, 0.95), w->n);
    printf("plan one layer (%s),%.3f,ms,%zu,,,\n", w->name,
           w->plan_s * 1e3 / (double)(w->n / STEPS), w->n / STEPS);
}

static bl_status run_windows(const windows *in, way *ways, size_t n_ways, size_t stride,
                             bl_error *err) {
    uint64_t counts[STEPS * EXPERTS];
    double scenarios[8 * EXPERTS];
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
            for (size_t sub = 0; sub < in->plan.shape[1]; sub++) {
                for (size_t e = 0; e < EXPERTS; e++)
                    scenarios[sub * EXPERTS + e] =
                        bl_npy_real(&in->plan, item_at(&in->plan, window, sub, layer) + e);
            }
            for (size_t i = 0; i < n_ways; i++)
                BL_TRY(run_layer(&ways[i], scenarios, (int)in->plan.shape[1], counts, err));
        }
    }
    return BL_OK;
}

static bl_status bench(const windows *in, bl_error *err) {
    way ways[] = {
        {.name = "greedy; even", .algorithm = BL_ALG_GREEDY, .rule = BL_RULE_EVEN},
        {.name = "greedy; split",
         .algorithm = BL_ALG_GREEDY,
         .rule = BL_RULE_PER_STEP,
         .on_even = true},
        {.name = "search; split", .algorithm = BL_ALG_SEARCH, .rule = BL_RULE_PER_STEP},
    };
    const size_t n_ways = sizeof ways / sizeof *ways;
    const char *text = getenv("BALLAST_BENCH_WINDOWS");
    const int stride = text != NULL && atoi(text) > 0 ? atoi(text) : 1;
    const size_t samples = in->plan.shape[0] * in->plan.shape[2] * STEPS;
    bl_status st = BL_OK;
    for (size_t i = 0; i < n_ways && st >= 0; i++)
        st = BL_CALLOC(ways[i].imbalance, samples, err);
    for (size_t i = 1; i < n_ways && st >= 0; i++) {
        st = time_split(in, &ways[i], 0.0, "exact", err);
        if (st >= 0)
            st = time_split(in, &ways[i], 0.01, "within 1 %", err);
        ways[i].plan_s = 0.0;
    }
    if (st >= 0)
        st = run_windows(in, ways, n_ways, (size_t)stride, err);
    for (size_t i = 0; i < n_ways; i++) {
        if (st >= 0)
            print_way(&ways[i]);
        free(ways[i].imbalance);
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
