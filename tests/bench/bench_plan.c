/*
 * bench_plan.c: quality and time of planning, on the load planned on (docs/benchmarks.md).
 *
 * GLM-5.2's seven domains, 75 MoE layers x 256 experts, even split, on three clusters, by greedy, by the
 * hierarchical policy (8 groups, as DeepSeek-V3 has them, and nodes of 8 ranks; where groups do not
 * divide over nodes it is the global one) and by search. Two rows each: the gap to the bound in per cent (value: the mean over the layers; min,
 * median, max over the layers), and the time of planning all layers one after another on one thread
 * in milliseconds (value: the median of REPEATS runs). The bound is the planner's own and the same
 * for all. One domain is planned on five further clusters, once. Without the data a note on standard error says so and nothing is printed.
 */
#include "core/json.h"
#include "core/mem.h"
#include "core/progress.h"
#include "planner/solve.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define REPEATS 5
#define MAX_LAYERS 256
#define GROUPS 8
#define RANKS_PER_NODE 8

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
/* One slot more than holds the experts where they divide; 128 x 2 has no copies. */
static const shape further[] = {{8, 33}, {16, 17}, {72, 4}, {128, 3}, {128, 2}};

static bl_status read_loads(const char *path, loads *out, bl_error *err) {
    json_t *root;
    BL_TRY(bl_json_load(path, &root, err));
    const json_t *rows;
    bl_status st = bl_json_array(root, "load", path, &rows, err);
    loads made = {.n_layers = (int)json_array_size(rows)};
    made.n_experts = (int)json_array_size(json_array_get(rows, 0));
    if (st == BL_OK && made.n_layers > MAX_LAYERS)
        st = bl_fail(err, BL_ERR_RANGE, "%s: %d layers", path, made.n_layers);
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
    double gap[MAX_LAYERS]; /* per cent, by layer */
    double ms;              /* all layers */
} result;

static bl_status plan_all(const loads *in, shape on, bl_algorithm algorithm, result *out,
                          bl_error *err) {
    int slots[512], node[512];
    for (int rank = 0; rank < on.n_ranks; rank++) {
        slots[rank] = on.slots;
        node[rank] = rank / RANKS_PER_NODE;
    }
    bl_solve_options options = BL_SOLVE_OPTIONS_INIT;
    options.algorithm = algorithm;
    out->ms = 0.0;
    for (int layer = 0; layer < in->n_layers; layer++) {
        const bl_problem problem = {.layer = layer,
                                    .n_experts = in->n_experts,
                                    .n_ranks = on.n_ranks,
                                    .n_scenarios = 1,
                                    .load = in->load + layer * in->n_experts,
                                    .slots_per_rank = slots,
                                    .rule = BL_RULE_EVEN,
                                    .max_moves = -1,
                                    .n_groups = GROUPS,
                                    .node = node};
        bl_solution solution;
        const double begin = bl_now_s();
        BL_TRY(bl_solve(&problem, &options, &solution, err));
        out->ms += (bl_now_s() - begin) * 1e3;
        out->gap[layer] = solution.gap * 100;
        bl_solution_free(&solution);
    }
    return BL_OK;
}

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void print_row(const char *domain, shape on, bl_algorithm algorithm, const char *what,
                      const char *unit, double *values, int n, bool is_mean) {
    double sum = 0.0;
    for (int i = 0; i < n; i++)
        sum += values[i];
    qsort(values, (size_t)n, sizeof *values, by_value);
    printf("plan/%s/%dx%d/%s/%s,%.4f,%s,%d,%.4f,%.4f,%.4f\n", domain, on.n_ranks, on.slots,
           bl_algorithm_names[algorithm], what, is_mean ? sum / n : values[n / 2], unit, n,
           values[0], values[n / 2], values[n - 1]);
}

static bl_status bench_case(const loads *in, const char *domain, shape on, int repeats,
                            bl_algorithm algorithm, bl_error *err) {
    static result r;
    double ms[REPEATS];
    for (int repeat = 0; repeat < repeats; repeat++) {
        BL_TRY(plan_all(in, on, algorithm, &r, err));
        ms[repeat] = r.ms;
    }
    print_row(domain, on, algorithm, "gap", "%", r.gap, in->n_layers, true);
    print_row(domain, on, algorithm, "time", "ms", ms, repeats, false);
    fflush(stdout);
    return BL_OK;
}

static bl_status bench_shape(const loads *in, const char *domain, shape on, int repeats,
                             bl_error *err) {
    static const bl_algorithm algorithms[] = {BL_ALG_GREEDY, BL_ALG_GREEDY_HIERARCHICAL,
                                              BL_ALG_SEARCH};
    for (size_t a = 0; a < sizeof algorithms / sizeof *algorithms; a++)
        BL_TRY(bench_case(in, domain, on, repeats, algorithms[a], err));
    return BL_OK;
}

static bl_status bench_domain(const char *root, const char *domain, bool is_first, bl_error *err) {
    char path[512];
    snprintf(path, sizeof path, "%s/routing/glm-5.2/%s.load.json", root, domain);
    if (access(path, R_OK) != 0) {
        fprintf(stderr, "bench_plan: skipped %s: no %s\n", domain, path);
        return BL_OK;
    }
    loads in;
    BL_TRY(read_loads(path, &in, err));
    bl_status st = BL_OK;
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes && st >= 0; s++)
        st = bench_shape(&in, domain, shapes[s], REPEATS, err);
    for (size_t s = 0; s < sizeof further / sizeof *further && st >= 0 && is_first; s++)
        st = bench_shape(&in, domain, further[s], 1, err);
    free(in.load);
    return st;
}

int main(void) {
    const char *root = getenv("BALLAST_TEST_DATA");
    bl_error err = BL_ERROR_INIT;
    for (size_t d = 0; d < sizeof domains / sizeof *domains; d++) {
        if (bench_domain(root != NULL ? root : "../shared/data", domains[d], d == 0, &err) < 0) {
            fprintf(stderr, "bench_plan: %s\n", err.text);
            return 1;
        }
    }
    return 0;
}
