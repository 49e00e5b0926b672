/* Source ranks of loads, and single tokens: order, sample, refusals. */
#include "tests/support/support.h"

#include "tests/support/traces.h"

#include <stdlib.h>
#include <string.h>

static bl_loads read_with(const char *path, bl_loads_sources sources, size_t most_tokens) {
    bl_error err;
    bl_loads loads = {0};
    bl_loads_options options = BL_LOADS_OPTIONS_INIT;
    options.sources = sources;
    options.most_tokens = most_tokens;
    assert_ok(bl_loads_read(&path, 1, NULL, &options, &loads, &err));
    return loads;
}

/* Rank 1 before rank 0, step 2 without tokens (a dummy), an empty slot in step 3. */
static const char *write_ranks(void) {
    const char *path = bl_test_temp("ranks.blt");
    const int32_t one[] = {0, 1, 2, 3}, two[] = {3, 1}, three[] = {2, BL_EMPTY_SLOT};
    bl_trace_info info = bl_test_info(1, (int[]){3}, 4, 2);
    bl_blt_writer *writer = bl_test_create(path, &info);
    bl_test_put(writer, bl_test_record(0, 3, 1, 4, 2, 1, two));
    bl_test_put(writer, bl_test_record(0, 3, 0, 4, 2, 2, one));
    bl_test_put(writer, bl_test_record(1, 3, 1, 4, 2, 1, three));
    bl_record dummy = bl_test_record(2, 3, 0, 4, 2, 2, one);
    dummy.flags = BL_RECORD_DUMMY;
    bl_test_put(writer, dummy);
    bl_test_put(writer, bl_test_record(3, 3, 0, 4, 2, 1, two));
    bl_test_close(writer);
    bl_trace_info_free(&info);
    return path;
}

static void check_source(const bl_loads *loads, size_t step, int source, const uint32_t *want) {
    const uint32_t *row = bl_loads_source_row(loads, step, 0, source);
    for (int expert = 0; expert < loads->n_experts; expert++)
        assert_int_equal(row[expert], want[expert]);
}

static void counts_apart_by_source(void **state) {
    (void)state;
    bl_loads loads = read_with(write_ranks(), BL_SOURCES_REQUIRED, 0);
    assert_int_equal(loads.n_sources, 2);
    assert_int_equal(loads.n_steps, 3);
    assert_int_equal(loads.sample.most, 0);
    check_source(&loads, 0, 0, (uint32_t[]){1, 1, 1, 1});
    check_source(&loads, 0, 1, (uint32_t[]){0, 1, 0, 1});
    check_source(&loads, 1, 0, (uint32_t[]){0, 0, 0, 0});
    check_source(&loads, 1, 1, (uint32_t[]){0, 0, 1, 0});
    check_source(&loads, 2, 0, (uint32_t[]){0, 1, 0, 1}); /* the dummy step before it is absent */
    for (size_t step = 0; step < loads.n_steps; step++) {
        for (int expert = 0; expert < 4; expert++)
            assert_int_equal(bl_loads_row(&loads, step, 0)[expert],
                             bl_loads_source_row(&loads, step, 0, 0)[expert] +
                                 bl_loads_source_row(&loads, step, 0, 1)[expert]);
    }
    bl_loads_free(&loads);
}

static void tokens_in_order(void **state) {
    (void)state;
    bl_loads loads = read_with(write_ranks(), BL_SOURCES_NONE, 100);
    const bl_token_layer *layer = &loads.sample.layers[0];
    assert_null(loads.source_count);
    assert_int_equal(layer->n, 5);
    assert_int_equal(layer->n_seen, 5);
    const uint64_t steps[] = {0, 0, 0, 1, 3};
    const int32_t sources[] = {0, 0, 1, 1, 0};
    const int32_t ids[] = {0, 1, 2, 3, 3, 1, 2, BL_EMPTY_SLOT, 3, 1};
    for (size_t i = 0; i < 5; i++) {
        assert_int_equal(layer->step[i], steps[i]);
        assert_int_equal(layer->source[i], sources[i]);
        assert_memory_equal(bl_token_ids(&loads.sample, 0, i), ids + 2 * i, 2 * sizeof *ids);
    }
    bl_loads_free(&loads);
}

static void sums_over_ranks_are_refused_by_name(void **state) {
    (void)state;
    bl_error err;
    bl_loads loads = {0};
    const char *path = bl_test_temp("summed.blt");
    bl_trace_info info = bl_test_info(1, (int[]){3}, 4, 2);
    bl_blt_writer *writer = bl_test_create(path, &info);
    bl_test_put(writer, bl_test_record(0, 3, 0, 4, 2, 4, bl_test_golden));
    bl_test_put(writer, bl_test_record(7, 3, BL_ALL_RANKS, 4, 2, 4, bl_test_golden));
    bl_test_close(writer);
    bl_trace_info_free(&info);
    bl_loads_options options = BL_LOADS_OPTIONS_INIT;
    options.sources = BL_SOURCES_REQUIRED;
    assert_fails(bl_loads_read(&path, 1, NULL, &options, &loads, &err), BL_ERR_UNSUPPORTED,
                 "layer 3, step 7 are summed over ranks");
    bl_test_has(err.file, "summed.blt");
    loads = read_with(path, BL_SOURCES_IF_TOLD, 0);
    assert_null(loads.source_count);
    assert_int_equal(loads.n_sources, 0);
    bl_test_has(loads.sources_why, "does not say where tokens come from");
    bl_loads_free(&loads);
}

enum { RANKS = 4, STEPS = 5, PER_RECORD = 500, LAYERS = 2 };

/* Token i of a record is (i, 1000 + i mod 24), so that a token can be known again. */
static void write_many(const char *path, int first_rank, int rank_step) {
    bl_trace_info info = bl_test_info(LAYERS, (int[]){0, 1}, 1024, 2);
    bl_blt_writer *writer = bl_test_create(path, &info);
    static int32_t ids[2 * PER_RECORD];
    for (int i = 0; i < PER_RECORD; i++) {
        ids[2 * i] = i;
        ids[2 * i + 1] = 1000 + i % 24;
    }
    for (int step = 0; step < STEPS; step++) {
        for (int i = 0; i < RANKS; i++) {
            const int rank = first_rank + i * rank_step;
            for (int layer = 0; layer < LAYERS; layer++)
                bl_test_put(writer,
                            bl_test_record((uint64_t)step, layer, rank, 1024, 2, PER_RECORD, ids));
        }
    }
    bl_test_close(writer);
    bl_trace_info_free(&info);
}

static void a_sample_is_bounded_and_the_same_each_time(void **state) {
    (void)state;
    enum { MOST = 300, ALL = RANKS * STEPS * PER_RECORD };
    const char *forth = bl_test_temp("forth.blt"), *back = bl_test_temp("back.blt");
    write_many(forth, 0, 1);
    write_many(back, RANKS - 1, -1);
    bl_loads a = read_with(forth, BL_SOURCES_NONE, MOST),
             b = read_with(back, BL_SOURCES_NONE, MOST);
    for (int l = 0; l < LAYERS; l++) {
        const bl_token_layer *x = &a.sample.layers[l], *y = &b.sample.layers[l];
        assert_int_equal(x->n_seen, ALL);
        assert_in_range(x->n, MOST / 4, MOST);
        assert_int_equal(x->n, y->n);
        assert_memory_equal(x->step, y->step, x->n * sizeof *x->step);
        assert_memory_equal(x->source, y->source, x->n * sizeof *x->source);
        assert_memory_equal(x->id, y->id, 2 * x->n * sizeof *x->id);
        assert_memory_equal(x->id, a.sample.layers[0].id, 2 * x->n * sizeof *x->id);
        /* no step, rank or place is preferred: each step's fifth within five standard deviations */
        size_t of_step[STEPS] = {0}, low_half = 0;
        for (size_t i = 0; i < x->n; i++) {
            of_step[x->step[i]]++;
            low_half += x->id[2 * i] < PER_RECORD / 2;
        }
        for (int s = 0; s < STEPS; s++)
            assert_in_range(of_step[s], x->n / 5 - 35, x->n / 5 + 35);
        assert_in_range(low_half, x->n / 2 - 45, x->n / 2 + 45);
    }
    bl_loads_free(&a);
    bl_loads_free(&b);
}

static void counts_alone_have_no_tokens(void **state) {
    (void)state;
    bl_error err;
    const char *path = bl_test_temp("counts.blt");
    const uint64_t counts[] = {1, 2, 3, 2};
    bl_trace_info info = bl_test_info(1, (int[]){0}, 4, 2);
    bl_blt_writer *writer = bl_test_create(path, &info);
    bl_record record = bl_test_record(0, 0, 2, 4, 2, 4, NULL);
    record.counts = counts;
    assert_ok(bl_blt_write(writer, &record, &err));
    bl_test_close(writer);
    bl_trace_info_free(&info);
    bl_loads loads = read_with(path, BL_SOURCES_REQUIRED, 10);
    assert_int_equal(loads.n_sources, 3);
    check_source(&loads, 0, 2, (uint32_t[]){1, 2, 3, 2});
    assert_int_equal(loads.sample.layers[0].n, 0);
    assert_int_equal(loads.sample.layers[0].n_seen, 0);
    bl_loads_free(&loads);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(counts_apart_by_source),
        cmocka_unit_test(tokens_in_order),
        cmocka_unit_test(sums_over_ranks_are_refused_by_name),
        cmocka_unit_test(a_sample_is_bounded_and_the_same_each_time),
        cmocka_unit_test(counts_alone_have_no_tokens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
