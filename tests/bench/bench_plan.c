/*
 * bench_plan.c: quality and time of planning on the load planned on (design rows 1 and 5).
 *
 * GLM-5.2's seven domains, 75 MoE layers x 256 experts, even split. A row is the mean and the
 * largest gap to the bound over the layers, the mean score, and the time of planning all layers one
 * after another on one thread: the least, median and largest of REPEATS runs. Prints CSV; without
 * the data it prints one "skipped" row.
 */
#include "core/json.h"
#include "core/mem.h"
#include "core/progress.h"
#include "planner/solve.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define REPEATS 5

static const char *const domains[] = {"books",   "chat", "code_instruct", "news",
                                      "science", "web",  "wiki"};

typedef struct loads {
    int n_layers, n_experts;
    double *load; /* [n_layers][n_experts] */
} loads;

typedef struct shape {
    int n_ranks, slots;
} shape;

static const shape shapes[] = {{32, 9}, {64, 5}, {144, 2}};

static bl_status read_loads(const char *path, loads *out, bl_error *err) {
    json_t *root;
    BL_TRY(bl_json_load(path, &root, err));
    const json_t *rows;
    bl_status st = bl_json_array(root, "load", path, &rows, err);
    loads made = {.n_layers = (int)json_array_size(rows)};
    made.n_experts = (int)json_array_size(json_array_get(rows, 0));
    if (st == BL_OK)
        st = BL_CALLOC(made.load, (size_t)made.n_layers * (size_t)made.n_experts, err);
    for (int layer = 0; layer < made.n_layers && st == BL_OK; layer++) {
        for (int expert = 0; expert < made.n_experts; expert++)
            made.load[layer * made.n_experts + expert] = json_number_value(
                json_array_get(json_array_get(rows, (size_t)layer), (size_t)expert));
    }
    json_decref(root);
    *out = made;
    return st;
}

typedef struct result {
    double gap, worst_gap, score, ms;
} result;

static bl_status plan_all(const loads *in, shape on, bl_algorithm algorithm, result *out,
                          bl_error *err) {
    int slots[512];
    for (int rank = 0; rank < on.n_ranks; rank++)
        slots[rank] = on.slots;
    bl_solve_options options = BL_SOLVE_OPTIONS_INIT;
    options.algorithm = algorithm;
    result sum = {0};
    for (int layer = 0; layer < in->n_layers; layer++) {
        const bl_problem problem = {.layer = layer,
                                    .n_experts = in->n_experts,
                                    .n_ranks = on.n_ranks,
                                    .n_scenarios = 1,
                                    .load = in->load + layer * in->n_experts,
                                    .slots_per_rank = slots,
                                    .rule = BL_RULE_EVEN,
                                    .max_moves = -1};
        bl_solution solution;
        const double begin = bl_now_s();
        BL_TRY(bl_solve(&problem, &options, &solution, err));
        sum.ms += (bl_now_s() - begin) * 1e3;
        sum.gap += solution.gap / in->n_layers;
        sum.score += solution.score.max_over_mean / in->n_layers;
        if (solution.gap > sum.worst_gap)
            sum.worst_gap = solution.gap;
        bl_solution_free(&solution);
    }
    *out = sum;
    return BL_OK;
}

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static bl_status bench_domain(const char *root, const char *domain, bl_error *err) {
    char path[512];
    snprintf(path, sizeof path, "%s/routing/glm-5.2/%s.load.json", root, domain);
    if (access(path, R_OK) != 0) {
        printf("plan,%s,,,skipped: %s is not there,,,,,\n", domain, path);
        return BL_OK;
    }
    loads in;
    BL_TRY(read_loads(path, &in, err));
    static const bl_algorithm algorithms[] = {BL_ALG_GREEDY, BL_ALG_SEARCH};
    bl_status st = BL_OK;
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes && st >= 0; s++) {
        for (size_t a = 0; a < 2 && st >= 0; a++) {
            result r = {0};
            double ms[REPEATS];
            for (int repeat = 0; repeat < REPEATS && st >= 0; repeat++) {
                st = plan_all(&in, shapes[s], algorithms[a], &r, err);
                ms[repeat] = r.ms;
            }
            qsort(ms, REPEATS, sizeof *ms, by_value);
            printf("plan,%s,%dx%d,%s,%.4f,%.4f,%.5f,%.2f,%.2f,%.2f\n", domain, shapes[s].n_ranks,
                   shapes[s].slots, bl_algorithm_names[algorithms[a]], r.gap * 100,
                   r.worst_gap * 100, r.score, ms[0], ms[REPEATS / 2], ms[REPEATS - 1]);
        }
    }
    free(in.load);
    return st;
}

int main(void) {
    const char *root = getenv("BALLAST_TEST_DATA");
    bl_error err = BL_ERROR_INIT;
    printf("bench,domain,ranks x slots,algorithm,mean gap %%,worst gap %%,mean max/mean,"
           "ms least,ms median,ms largest\n");
    for (size_t d = 0; d < sizeof domains / sizeof *domains; d++) {
        if (bench_domain(root != NULL ? root : "../shared/data", domains[d], &err) < 0) {
            fprintf(stderr, "bench_plan: %s\n", err.text);
            return 1;
        }
        fflush(stdout);
    }
    return 0;
}
