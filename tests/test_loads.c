/* Loads of a trace: conservation, directories of files, several traces, the model. */
#include "tests/support/support.h"

#include "tests/support/traces.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- conservation -------------------------------------------------------------------------- */

/* 2 ranks x 10 tokens x k = 2: a layer that holds 20 instead of 40 is named; with both parts it is
 * not. */
static void a_missing_part_is_named(void **state) {
    (void)state;
    bl_trace_info info = bl_test_info(2, (int[]){3, 4}, 4, 2);
    int32_t ids[20];
    for (int i = 0; i < 20; i++)
        ids[i] = i % 4;
    const char *path = bl_test_temp("part.blt");
    bl_blt_writer *writer = bl_test_create(path, &info);
    for (int rank = 0; rank < 2; rank++) {
        bl_test_put(writer, bl_test_record(0, 3, rank, 4, 2, 10, ids));
        if (rank == 0)
            bl_test_put(writer, bl_test_record(0, 4, rank, 4, 2, 10, ids));
    }
    bl_test_close(writer);
    bl_loads loads = bl_test_loads(path);
    assert_int_equal(loads.tokens, 20);
    assert_true(loads.usable[0]);
    assert_false(loads.usable[1]);
    bl_test_has(loads.why[1], "step 0, rank 1: 0 tokens where other layers saw 10");
    bl_loads_free(&loads);
    bl_trace_info_free(&info);
}

static void counts_that_do_not_add_up_are_named(void **state) {
    (void)state;
    bl_error err;
    bl_trace_info info = bl_test_info(3, (int[]){0, 1, 2}, 4, 2);
    const uint64_t good[] = {10, 4, 5, 1}, bad[] = {10, 4, 5, 2};
    const char *path = bl_test_temp("sums.blt");
    bl_blt_writer *writer = bl_test_create(path, &info);
    for (int layer = 0; layer < 3; layer++) {
        bl_record record = bl_test_record(0, layer, BL_ALL_RANKS, 4, 2, 10, NULL);
        record.counts = layer == 1 ? bad : good;
        assert_ok(bl_blt_write(writer, &record, &err));
    }
    bl_test_close(writer);
    bl_loads loads = bl_test_loads(path);
    assert_true(loads.usable[0]);
    assert_false(loads.usable[1]);
    assert_true(loads.usable[2]);
    bl_test_has(loads.why[1], "counts sum to 21, but tokens * k - empty is 20");
    bl_loads_free(&loads);
    bl_trace_info_free(&info);
}

/* 58 layers are expected, only layer 0 has counts. */
static void one_layer_of_many(void **state) {
    (void)state;
    int layers[58];
    for (int l = 0; l < 58; l++)
        layers[l] = l;
    bl_trace_info info = bl_test_info(58, layers, 4, 2);
    const char *path = bl_test_temp("one.blt");
    bl_blt_writer *writer = bl_test_create(path, &info);
    bl_test_put(writer, bl_test_record(0, 0, 0, 4, 2, 4, bl_test_golden));
    bl_test_close(writer);
    bl_loads loads = bl_test_loads(path);
    assert_true(loads.usable[0]);
    for (int l = 1; l < 58; l++) {
        assert_false(loads.usable[l]);
        bl_test_has(loads.why[l], "no records");
    }
    bl_loads_free(&loads);
    bl_trace_info_free(&info);
}

static void no_traffic_is_an_error(void **state) {
    (void)state;
    bl_trace_info info = bl_test_info(1, (int[]){0}, 4, 2);
    const char *path = bl_test_temp("none.blt");
    bl_test_close(bl_test_create(path, &info));
    bl_test_loads_fail(path, BL_ERR_CONSERVATION, "no tokens");
    bl_blt_writer *writer = bl_test_create(path, &info);
    bl_test_put(writer, bl_test_record(0, 0, 0, 4, 2, 0, NULL));
    bl_record dummy = bl_test_record(1, 0, 0, 4, 2, 4, bl_test_golden);
    dummy.flags = BL_RECORD_DUMMY;
    bl_test_put(writer, dummy);
    bl_test_close(writer);
    bl_test_loads_fail(path, BL_ERR_CONSERVATION, "no tokens");
    bl_trace_info_free(&info);
}

/* Steps 0..5 of two layers and two ranks, a chunk for each step, with a map and counts in between.
 */
static void write_small(const char *path) {
    bl_error err;
    bl_trace_info info = bl_test_info(2, (int[]){0, 1}, 4, 2);
    assert_ok(bl_trace_info_set_ranks(&info, 2, (int[]){0, 1}, 2, &err));
    bl_blt_writer *writer = bl_test_create(path, &info);
    const uint64_t counts[] = {2, 2, 3, 1};
    for (uint64_t step = 0; step < 6; step++) {
        for (int rank = 0; rank < 2; rank++) {
            for (int layer = 0; layer < 2; layer++) {
                bl_record record = bl_test_record(step, layer, rank, 4, 2, 4, bl_test_golden);
                if (step == 3) {
                    record.ids = NULL;
                    record.counts = counts;
                }
                bl_test_put(writer, record);
            }
        }
        assert_ok(bl_blt_flush(writer, &err));
    }
    bl_test_close(writer);
    bl_trace_info_free(&info);
}

/* ---- directories and several traces --------------------------------------------------------- */

static void write_rank_file(const char *path, int rank, int n_ranks, int n_experts) {
    bl_error err;
    bl_trace_info info = bl_test_info(1, (int[]){0}, n_experts, 2);
    assert_ok(bl_trace_info_set_ranks(&info, n_ranks, &rank, 1, &err));
    bl_blt_writer *writer = bl_test_create(path, &info);
    bl_test_put(writer, bl_test_record(0, 0, rank, n_experts, 2, 4, bl_test_golden));
    bl_test_close(writer);
    bl_trace_info_free(&info);
}

static void a_directory_is_one_trace(void **state) {
    (void)state;
    bl_error err;
    char dir[512], path[600];
    snprintf(dir, sizeof dir, "%s", bl_test_temp("ranks"));
    char command[600];
    snprintf(command, sizeof command, "mkdir '%s'", dir);
    assert_int_equal(system(command), 0);
    bl_test_loads_fail(dir, BL_ERR_IO, "no .blt file");
    for (int rank = 0; rank < 4; rank++) {
        if (rank == 2)
            continue;
        snprintf(path, sizeof path, "%s/rank%d.blt", dir, rank);
        write_rank_file(path, rank, 4, 4);
    }
    bl_loads loads = bl_test_loads(dir);
    assert_false(loads.complete);
    bl_test_has(loads.notes, "incomplete: rank 2");
    assert_int_equal(loads.n_steps, 1);
    bl_test_row(&loads, 0, 0, (const uint64_t[]){9, 6, 6, 3});
    bl_loads_free(&loads);
    snprintf(path, sizeof path, "%s/rank2.blt", dir);
    write_rank_file(path, 2, 4, 4);
    loads = bl_test_loads(dir);
    assert_true(loads.complete);
    assert_string_equal(loads.notes, "");
    bl_loads_free(&loads);
    snprintf(path, sizeof path, "%s/more.blt", dir);
    write_rank_file(path, 2, 4, 4);
    bl_test_loads_fail(dir, BL_ERR_STATE, "two files hold rank 2");
    write_rank_file(path, 2, 4, 8); /* another model with a layer 0 */
    bl_test_loads_fail(dir, BL_ERR_MODEL, "experts");
    (void)err;
}

static void several_traces_follow_one_another(void **state) {
    (void)state;
    bl_error err;
    const char *a = bl_test_temp("a.blt"), *b = bl_test_temp("b.blt");
    write_small(a);
    bl_test_write_golden(b);
    const char *mixed[] = {a, b};
    bl_loads loads = {0};
    bl_loads_options options = BL_LOADS_OPTIONS_INIT;
    assert_fails(bl_loads_read(mixed, 2, NULL, &options, &loads, &err), BL_ERR_MODEL, "MoE layers");
    const char *twice[] = {a, a};
    options.first_step = 5;
    options.end_step = 7;
    assert_ok(bl_loads_read(twice, 2, NULL, &options, &loads, &err));
    assert_int_equal(loads.trace_steps, 12);
    assert_int_equal(loads.n_steps, 2);
    assert_int_equal(loads.step_id[1], 6);
    assert_memory_equal(bl_loads_row(&loads, 0, 0), bl_loads_row(&loads, 1, 0), 4 * 8);
    bl_loads_free(&loads);
}

static void a_model_must_fit(void **state) {
    (void)state;
    bl_error err;
    const char *path = bl_test_temp("fit.blt");
    write_small(path); /* layers 0 and 1, top-2 of 4 */
    bl_loads loads = {0};
    const bl_loads_options options = BL_LOADS_OPTIONS_INIT;
    bl_model model = {.name = "m",
                      .n_layers = 4,
                      .n_moe_layers = 3,
                      .moe_layers = (int[]){0, 1, 3},
                      .n_experts = 4,
                      .top_k = 2};
    assert_ok(bl_loads_read(&path, 1, &model, &options, &loads, &err));
    assert_int_equal(loads.n_layers, 3);
    assert_true(loads.usable[1]);
    assert_false(loads.usable[2]);
    bl_test_has(loads.why[2], "does not have this layer");
    bl_loads_free(&loads);
    model.moe_layers = (int[]){1, 2, 3};
    assert_fails(bl_loads_read(&path, 1, &model, &options, &loads, &err), BL_ERR_MODEL,
                 "not an MoE layer");
    model.n_experts = 8;
    assert_fails(bl_loads_read(&path, 1, &model, &options, &loads, &err), BL_ERR_MODEL,
                 "top-2 of 8");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_missing_part_is_named),
        cmocka_unit_test(counts_that_do_not_add_up_are_named),
        cmocka_unit_test(one_layer_of_many),
        cmocka_unit_test(no_traffic_is_an_error),
        cmocka_unit_test(a_directory_is_one_trace),
        cmocka_unit_test(several_traces_follow_one_another),
        cmocka_unit_test(a_model_must_fit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
