/* What recorders and metrics got wrong elsewhere, as statistics must have it; numbers name reports. */
#include "tests/support/traces.h"

#include "tracer/stat.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static bl_stat read_stat(const char *path) {
    bl_error err;
    bl_stat stat = {0};
    const bl_stat_options options = BL_STAT_OPTIONS_INIT;
    assert_ok(bl_stat_read(path, &options, &stat, &err));
    return stat;
}

/* Rows 0 1, 2 -, - - of which two are valid: counts 1 1 1 (vllm 38128). */
static void empty_slots(void **state) {
    (void)state;
    const char *path = bl_test_temp("empty.blt");
    bl_trace_info info = bl_test_info(1, (int[]){0}, 3, 2);
    bl_blt_writer *writer = bl_test_create(path, &info);
    bl_test_put(writer, bl_test_record(0, 0, 0, 3, 2, 2, (int32_t[]){0, 1, 2, -1, -1, -1}));
    bl_test_close(writer);
    bl_stat stat = read_stat(path);
    for (int expert = 0; expert < 3; expert++)
        assert_int_equal(bl_stat_count(&stat, 0, expert), 1);
    assert_int_equal(stat.layers[0].experts.empty, 1);
    assert_int_equal(stat.layers[0].experts.padding_rows, 0);
    assert_true(stat.layers[0].conserved);
    bl_stat_free(&stat);
    bl_trace_info_free(&info);
}

/* Two ranks of 10 tokens, top-2: every layer sums to 40, or is flagged (vllm 21883). */
static void layers_sum_to_40(void **state) {
    (void)state;
    int32_t ids[20];
    for (int i = 0; i < 20; i++)
        ids[i] = i % 8;
    const char *path = bl_test_temp("forty.blt");
    bl_trace_info info = bl_test_info(2, (int[]){3, 4}, 8, 2);
    bl_blt_writer *writer = bl_test_create(path, &info);
    for (int rank = 0; rank < 2; rank++) {
        bl_test_put(writer, bl_test_record(0, 3, rank, 8, 2, 10, ids));
        if (rank == 0) /* the layer above counts one rank only */
            bl_test_put(writer, bl_test_record(0, 4, rank, 8, 2, 10, ids));
    }
    bl_test_close(writer);
    bl_stat stat = read_stat(path);
    assert_int_equal(stat.layers[0].experts.assignments, 40);
    assert_true(stat.layers[0].conserved);
    assert_int_equal(stat.layers[1].experts.assignments, 20);
    assert_false(stat.layers[1].conserved);
    bl_test_has(stat.layers[1].why, "rank 1: 0 tokens where other layers saw 10");
    bl_stat_free(&stat);
    bl_trace_info_free(&info);
}

static void write_rank(const char *dir, const char *model, int rank, int n_ranks) {
    bl_error err;
    char path[300];
    bl_trace_info info;
    assert_ok(bl_trace_info_create(model, (int[]){0}, 1, 4, 1, "test", &info, &err));
    assert_ok(bl_trace_info_set_ranks(&info, n_ranks, &rank, 1, &err));
    snprintf(path, sizeof path, "%s/%d.blt", dir, rank);
    bl_blt_writer *writer = bl_test_create(path, &info);
    bl_test_put(writer, bl_test_record(0, 0, rank, 4, 1, 2, (int32_t[]){0, 1}));
    bl_test_close(writer);
    bl_trace_info_free(&info);
}

/* Four ranks' files, one is missing (sgl 5275). */
static void a_rank_is_missing(void **state) {
    (void)state;
    char dir[256];
    snprintf(dir, sizeof dir, "%s", bl_test_temp("four"));
    assert_int_equal(mkdir(dir, 0700), 0);
    for (int rank = 0; rank < 4; rank++) {
        if (rank != 2)
            write_rank(dir, "m", rank, 4);
    }
    bl_stat stat = read_stat(dir);
    assert_false(stat.complete);
    bl_test_has(stat.notes, "incomplete: rank 2");
    assert_int_equal(stat.layers[0].experts.assignments, 6);
    assert_int_equal(stat.sources.n_sources, 3);
    bl_stat_free(&stat);
}

/* Two models, both with a layer 0, are not one trace (vllm 48622). */
static void two_models(void **state) {
    (void)state;
    bl_error err;
    bl_stat stat;
    char dir[256], path[300];
    const bl_stat_options options = BL_STAT_OPTIONS_INIT;
    snprintf(dir, sizeof dir, "%s", bl_test_temp("models"));
    assert_int_equal(mkdir(dir, 0700), 0);
    write_rank(dir, "target", 0, 2);
    bl_trace_info draft = bl_test_info(1, (int[]){0}, 8, 1);
    assert_ok(bl_trace_info_set_ranks(&draft, 2, (int[]){1}, 1, &err));
    snprintf(path, sizeof path, "%s/1.blt", dir);
    bl_blt_writer *writer = bl_test_create(path, &draft);
    bl_test_put(writer, bl_test_record(0, 0, 1, 8, 1, 2, (int32_t[]){0, 7}));
    bl_test_close(writer);
    assert_fails(bl_stat_read(dir, &options, &stat, &err), BL_ERR_MODEL, "of 8 experts");
    bl_trace_info_free(&draft);
}

/* The last expert is an expert, not padding, whatever the width of ids (prime-rl 3051). */
static void the_last_expert(void **state) {
    (void)state;
    const int sizes[] = {256, 512, 65536};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        const int n = sizes[i];
        const char *path = bl_test_temp("last.blt");
        const int32_t ids[] = {n - 1, 0, n - 1, -1, -1, -1, 255, n - 2};
        bl_trace_info info = bl_test_info(1, (int[]){0}, n, 2);
        bl_blt_writer *writer = bl_test_create(path, &info);
        bl_test_put(writer, bl_test_record(0, 0, 0, n, 2, n == 256 ? 3 : 4, ids));
        bl_test_close(writer);
        bl_stat stat = read_stat(path);
        assert_int_equal(bl_stat_count(&stat, 0, n - 1), 2);
        assert_int_equal(bl_stat_count(&stat, 0, 255), n == 256 ? 2 : 1);
        assert_int_equal(stat.layers[0].experts.empty, 3);
        assert_int_equal(stat.layers[0].experts.padding_rows, 1);
        assert_int_equal(stat.layers[0].experts.hottest[0], n - 1);
        /* Pairs of 65536 experts do not fit, and that is said instead of counted. */
        assert_int_equal(stat.pairs.coactivation_state,
                         n == 65536 ? BL_PAIRS_TOO_LARGE : BL_PAIRS_KNOWN);
        bl_stat_free(&stat);
        bl_trace_info_free(&info);
    }
}

/* A step in which one rank has nothing to do, and a dummy rank, leave what the others did as it is
 * (sgl 35766, vllm 43547). */
static void idle_ranks(void **state) {
    (void)state;
    const char *path = bl_test_temp("idle.blt");
    bl_trace_info info = bl_test_info(1, (int[]){0}, 4, 1);
    bl_blt_writer *writer = bl_test_create(path, &info);
    for (uint64_t step = 0; step < 5; step++) {
        bl_test_put(writer, bl_test_record(step, 0, 0, 4, 1, 2, (int32_t[]){1, 2}));
        bl_test_put(writer, bl_test_record(step, 0, 1, 4, 1, 0, NULL));
        bl_record dummy = bl_test_record(step, 0, 2, 4, 1, 3, (int32_t[]){0, 0, 0});
        dummy.flags = BL_RECORD_DUMMY;
        bl_test_put(writer, dummy);
    }
    bl_test_close(writer);
    bl_stat stat = read_stat(path);
    assert_int_equal(stat.steps, 5);
    assert_int_equal(stat.tokens, 10);
    assert_int_equal(stat.late_steps, 0);
    assert_int_equal(bl_stat_count(&stat, 0, 0), 0);
    assert_int_equal(bl_stat_count(&stat, 0, 1), 5);
    assert_int_equal(stat.layers[0].dummy_tokens, 15);
    assert_int_equal(stat.sources.n_sources, 1); /* the others sent nothing */
    bl_stat_free(&stat);
    bl_trace_info_free(&info);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(empty_slots),       cmocka_unit_test(layers_sum_to_40),
        cmocka_unit_test(a_rank_is_missing), cmocka_unit_test(two_models),
        cmocka_unit_test(the_last_expert),   cmocka_unit_test(idle_ranks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
