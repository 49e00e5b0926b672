/* Clusters of 8 to 144 ranks, two slots per rank included, on real loads: every plan is a valid one,
 * as near to its bound as docs/benchmarks.md says. */
#include "tests/support/support.h"

#include "core/json.h"
#include "core/mem.h"
#include "planner/solve.h"

#include <stdio.h>
#include <stdlib.h>

static const struct {
    int n_ranks, slots;
    double most; /* mean gap */
} shapes[] = {{8, 33, 6e-4},   {16, 17, 6e-4},   {32, 9, 6e-4},  {64, 5, 1e-3},
              {72, 4, 1.5e-3}, {128, 3, 2.5e-3}, {144, 2, 0.02}, {128, 2, 1e-3}};

/* A row of a load file; every seventh layer is enough. */
static void read_layer(const json_t *rows, size_t layer, double *load) {
    const json_t *row = json_array_get(rows, layer);
    assert_int_equal(json_array_size(row), 256);
    for (size_t expert = 0; expert < 256; expert++)
        load[expert] = json_number_value(json_array_get(row, expert));
}

static void test_all_shapes(void **state) {
    (void)state;
    bl_error err;
    const char *path = bl_test_data("routing/glm-5.2/chat.load.json");
    json_t *file;
    assert_ok(bl_json_load(path, &file, &err));
    const json_t *rows = json_object_get(file, "load");
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        int slots[144], n = 0;
        double load[256], gap = 0.0;
        for (int rank = 0; rank < shapes[s].n_ranks; rank++)
            slots[rank] = shapes[s].slots;
        for (size_t layer = 0; layer < json_array_size(rows); layer += 7, n++) {
            read_layer(rows, layer, load);
            const bl_problem problem = {.layer = (int)layer,
                                        .n_experts = 256,
                                        .n_ranks = shapes[s].n_ranks,
                                        .n_scenarios = 1,
                                        .load = load,
                                        .slots_per_rank = slots,
                                        .max_moves = -1};
            const bl_solve_options options = BL_SOLVE_OPTIONS_INIT;
            bl_solution found, greedy;
            bl_solve_options plain = options;
            plain.algorithm = BL_ALG_GREEDY;
            assert_ok(bl_solve(&problem, &options, &found, &err));
            assert_ok(bl_solve(&problem, &plain, &greedy, &err));
            assert_ok(bl_layer_placement_check(&found.placement, NULL, &err));
            assert_int_equal(bl_layer_n_slots(&found.placement),
                             shapes[s].n_ranks * shapes[s].slots);
            for (int slot = 0; slot < bl_layer_n_slots(&found.placement); slot++)
                assert_true(found.placement.expert[slot] != BL_NO_EXPERT);
            assert_true(found.score.max_over_mean <= greedy.score.max_over_mean);
            gap += found.gap;
            bl_solution_free(&found);
            bl_solution_free(&greedy);
        }
        printf("# %d ranks x %d: mean gap %.3f %%\n", shapes[s].n_ranks, shapes[s].slots,
               100.0 * gap / n);
        assert_true(gap / n <= shapes[s].most);
    }
    json_decref(file);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_all_shapes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
