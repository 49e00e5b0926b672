/*
 * bench_exact.c: exact plans and what GLPK adds to the search (docs/benchmarks.md, row 8).
 *
 *   exact/small        INSTANCES random small layers (copies, uneven slots, masks, groups, fault domains,
 *                      placements in force, limits on moves): in how many GLPK's optimum equals brute
 *                      force and no bound is above it, how far the search is from it, time of one
 *   pairs/ExGxSxN      RUNS random layers of E experts on G ranks of S slots under N load vectors: per
 *                      cent above the bound after search and after GLPK's pairs of ranks, time of both
 */
#include "core/mem.h"
#include "core/progress.h"
#include "planner/solve.h"
#include "tests/support/brute.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define INSTANCES 2000
#define RUNS 10

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void print_row(const char *name, const char *unit, double *values, int n, bool is_mean) {
    double sum = 0.0;
    for (int i = 0; i < n; i++)
        sum += values[i];
    qsort(values, (size_t)n, sizeof *values, by_value);
    printf("%s,%.4f,%s,%d,%.4f,%.4f,%.4f\n", name, is_mean ? sum / n : values[n / 2], unit, n,
           values[0], values[n / 2], values[n - 1]);
    fflush(stdout);
}

static void print_count(const char *name, int count, int of) {
    printf("%s,%d,of %d,%d,,,\n", name, count, of, of);
}

static bl_status solve(const bl_problem *problem, bl_algorithm algorithm, bl_solution *out,
                       double *ms, bl_error *err) {
    bl_solve_options options = BL_SOLVE_OPTIONS_INIT;
    options.algorithm = algorithm;
    const double begin = bl_now_s();
    const bl_status st = bl_solve(problem, &options, out, err);
    *ms = (bl_now_s() - begin) * 1e3;
    return st;
}

static bl_status bench_small(bl_error *err) {
    static double exact_ms[INSTANCES], miss[INSTANCES];
    bl_rng rng;
    bl_rng_seed(&rng, 91);
    int n = 0, equal = 0, bounded = 0, n_miss = 0, within = 0;
    while (n < INSTANCES) {
        bl_random_problem r;
        double ms;
        bl_solution exact, search;
        bl_random_problem_make(&rng, 6, 4, 3, 2, &r);
        bl_random_rules(&rng, &r);
        const double best = bl_brute_best(&r.problem, NULL, NULL);
        if (!isfinite(best) || bl_problem_is_idle(&r.problem))
            continue;
        const bl_status st = solve(&r.problem, BL_ALG_EXACT, &exact, &exact_ms[n], err);
        if (st == BL_ERR_INFEASIBLE)
            continue; /* only with slots left empty, or within few moves */
        BL_TRY(st);
        equal += fabs(exact.score.max_over_mean - best) <= 2e-6 * best;
        bounded += exact.bound.max_over_mean <= best * (1.0 + 1e-9);
        bl_solution_free(&exact);
        n++;
        if (r.problem.current != NULL)
            continue; /* there the search counts moves as well */
        BL_TRY(solve(&r.problem, BL_ALG_SEARCH, &search, &ms, err));
        miss[n_miss] = 100.0 * (search.score.max_over_mean / best - 1.0);
        within += miss[n_miss++] <= 0.5;
        bl_solution_free(&search);
    }
    print_count("exact/small/equal_to_brute_force", equal, n);
    print_count("exact/small/bound_below_optimum", bounded, n);
    print_count("exact/small/search_within_0.5%", within, n_miss);
    print_row("exact/small/search_above_optimum", "%", miss, n_miss, true);
    print_row("exact/small/time", "ms", exact_ms, n, false);
    return BL_OK;
}

typedef struct shape {
    int n_experts, n_ranks, slots, n_scenarios;
} shape;

static bl_status bench_pairs(const shape *s, bl_error *err) {
    double after_search[RUNS], after_pairs[RUNS], search_ms[RUNS], pairs_ms[RUNS];
    double load[16 * 256];
    int slots[64];
    char name[96];
    bl_rng rng;
    bl_rng_seed(&rng, 7);
    for (int rank = 0; rank < s->n_ranks; rank++)
        slots[rank] = s->slots;
    for (int run = 0; run < RUNS; run++) {
        for (int expert = 0; expert < s->n_experts; expert++) {
            const double base = pow(1.0 - bl_rng_unit(&rng), -0.7);
            for (int at = 0; at < s->n_scenarios; at++)
                load[at * s->n_experts + expert] =
                    floor(1000.0 * base * exp(0.6 * (bl_rng_unit(&rng) - 0.5)));
        }
        const bl_problem problem = {.n_experts = s->n_experts,
                                    .n_ranks = s->n_ranks,
                                    .n_scenarios = s->n_scenarios,
                                    .load = load,
                                    .slots_per_rank = slots,
                                    .max_moves = -1};
        bl_solution found;
        BL_TRY(solve(&problem, BL_ALG_SEARCH, &found, &search_ms[run], err));
        after_search[run] = found.gap * 100.0;
        const double bound = found.bound.max_over_mean;
        bl_solution_free(&found);
        BL_TRY(solve(&problem, BL_ALG_AUTO, &found, &pairs_ms[run], err));
        after_pairs[run] = 100.0 * (found.score.max_over_mean / bound - 1.0);
        bl_solution_free(&found);
    }
    static const char *const what[] = {"search/gap", "search/time", "auto/gap", "auto/time"};
    double *const rows[] = {after_search, search_ms, after_pairs, pairs_ms};
    for (int i = 0; i < 4; i++) {
        snprintf(name, sizeof name, "pairs/%dx%dx%dx%d/%s", s->n_experts, s->n_ranks, s->slots,
                 s->n_scenarios, what[i]);
        print_row(name, i % 2 == 0 ? "%" : "ms", rows[i], RUNS, i % 2 == 0);
    }
    return BL_OK;
}

int main(void) {
    static const shape shapes[] = {
        {64, 8, 9, 1}, {32, 8, 5, 4}, {64, 8, 9, 4}, {128, 6, 22, 2}, {256, 32, 9, 6}};
    bl_error err = BL_ERROR_INIT;
    bl_status st = bench_small(&err);
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes && st >= 0; i++)
        st = bench_pairs(&shapes[i], &err);
    if (st < 0)
        fprintf(stderr, "bench_exact: %s\n", err.text);
    return st < 0;
}
