/* Statistics of a trace, with values by hand. */
#include "tests/support/support.h"

#include "tracer/blt.h"
#include "tracer/ledger.h"
#include "tracer/stat.h"
#include "tracer/steps.h"

#include <math.h>

static const int32_t golden[] = {0, 2, 0, 2, 0, 1, 1, 3}; /* rows 3, 2, 2, 1 */

static void write_trace(const char *path) {
    bl_error err;
    bl_trace_info info;
    bl_blt_writer *writer;
    assert_ok(bl_trace_info_create("hand", (int[]){3, 4}, 2, 4, 2, "test", &info, &err));
    assert_ok(bl_blt_create(path, &info, false, &writer, &err));
    const int32_t with_empty[] = {0, -1, 2, 3};
    for (int step = 0; step < 3; step++) {
        for (int layer = 3; layer <= 4; layer++) {
            const bool last = step == 2;
            if (last && layer == 4) /* the last step lacks layer 4 */
                continue;
            const bl_record record = {.step = (uint64_t)step * 10,
                                      .layer = layer,
                                      .phase = last ? BL_PHASE_PREFILL : BL_PHASE_DECODE,
                                      .n_ids = 4,
                                      .k = 2,
                                      .n_tokens = last ? 2 : 4,
                                      .ids = last ? with_empty : golden};
            assert_ok(bl_blt_write(writer, &record, &err));
        }
    }
    const bl_record dummy = {.step = 20,
                             .layer = 3,
                             .rank = 1,
                             .phase = BL_PHASE_DECODE,
                             .flags = BL_RECORD_DUMMY,
                             .n_ids = 4,
                             .k = 2,
                             .n_tokens = 4,
                             .dropped = 5,
                             .ids = golden};
    assert_ok(bl_blt_write(writer, &dummy, &err));
    assert_ok(bl_blt_close(writer, &err));
    bl_trace_info_free(&info);
}

static void near(double value, double wanted, double within) {
    if (!(fabs(value - wanted) <= within))
        fail_msg("%.12g where %.12g was wanted", value, wanted);
}

static void by_hand(void **state) {
    (void)state;
    bl_error err;
    bl_stat stat;
    const char *path = bl_test_temp("hand.blt");
    write_trace(path);
    bl_stat_options options = BL_STAT_OPTIONS_INIT;
    assert_ok(bl_stat_read(path, &options, &stat, &err));
    assert_int_equal(stat.steps, 3);
    assert_int_equal(stat.tokens, 10);
    assert_int_equal(stat.phases[BL_PHASE_DECODE].tokens, 8);
    assert_int_equal(stat.phases[BL_PHASE_PREFILL].tokens, 2);
    assert_int_equal(stat.records, 6);
    assert_int_equal(stat.dummy_records, 1);
    assert_int_equal(stat.dropped, 5);
    assert_true(stat.complete);
    const bl_stat_layer *three = &stat.layers[0], *four = &stat.layers[1];
    assert_int_equal(three->layer, 3);
    assert_int_equal(three->experts.assignments, 8 + 8 + 3);
    assert_int_equal(three->experts.empty, 1);
    assert_int_equal(three->experts.tokens, 10);
    assert_int_equal(three->dummy_tokens, 4);
    assert_true(three->conserved);
    /* 3 2 2 1 twice, and 0 _ 2 3 */
    assert_int_equal(bl_stat_count(&stat, 0, 0), 7);
    assert_int_equal(bl_stat_count(&stat, 0, 3), 3);
    assert_int_equal(three->experts.n_hottest, 4);
    assert_int_equal(three->experts.hottest[0], 0);
    assert_int_equal(three->experts.hottest[1], 2);
    assert_int_equal(three->experts.hottest[3], 3);
    near(three->experts.max_over_mean, 7.0 / (19.0 / 4), 1e-12);
    assert_int_equal(four->experts.assignments, 16);
    assert_int_equal(four->dummy_tokens, 0);
    assert_false(four->conserved);
    bl_test_has(four->why, "step 20, rank 0: 0 tokens where other layers saw 2");
    assert_int_equal(four->experts.n_idle, 0);
    /* 6 4 4 2 of 16: ln 16 - (6 ln 6 + 8 ln 4 + 2 ln 2) / 16 */
    const double entropy = log(16) - (6 * log(6) + 8 * log(4) + 2 * log(2)) / 16;
    near(four->experts.entropy, entropy / log(4), 1e-12);
    near(four->experts.effective, exp(entropy), 1e-9);
    const bl_expert_figures *prefill = &stat.phases[BL_PHASE_PREFILL].layers[0];
    assert_int_equal(prefill->assignments, 3);
    assert_int_equal(prefill->n_idle, 1);
    near(prefill->max_over_mean, 4.0 / 3, 1e-12);
    bl_stat_free(&stat);
}

static void one_phase_some_steps(void **state) {
    (void)state;
    bl_error err;
    bl_stat stat;
    const char *path = bl_test_temp("hand.blt");
    write_trace(path);
    bl_stat_options options = BL_STAT_OPTIONS_INIT;
    options.phase = BL_PHASE_DECODE;
    assert_ok(bl_stat_read(path, &options, &stat, &err));
    assert_int_equal(stat.tokens, 8);
    assert_int_equal(stat.steps, 2);
    assert_true(stat.layers[1].conserved);
    near(stat.layers[1].experts.max_over_mean, 1.5, 1e-12);
    bl_stat_free(&stat);
    options.phase = BL_PHASE_VERIFY;
    assert_fails(bl_stat_read(path, &options, &stat, &err), BL_ERR_CONSERVATION, "phase");
    options = BL_STAT_OPTIONS_INIT;
    options.first_step = 1; /* steps 10 and 20 */
    options.end_step = 3;
    assert_ok(bl_stat_read(path, &options, &stat, &err));
    assert_int_equal(stat.steps, 2);
    assert_int_equal(stat.layers[0].experts.tokens, 6);
    assert_int_equal(stat.dummy_records, 1);
    bl_stat_free(&stat);
    options.first_step = 3;
    options.end_step = 9;
    assert_fails(bl_stat_read(path, &options, &stat, &err), BL_ERR_RANGE, "has 3 steps");
}

/* What a trace without load holds instead is said. */
static void nothing_to_tell(void **state) {
    (void)state;
    bl_error err;
    bl_stat stat;
    bl_trace_info info;
    bl_blt_writer *writer;
    const bl_stat_options options = BL_STAT_OPTIONS_INIT;
    const char *path = bl_test_temp("nothing.blt");
    assert_ok(bl_trace_info_create("hand", (int[]){3}, 1, 4, 2, "test", &info, &err));
    bl_record record = {.layer = 3, .phase = BL_PHASE_DECODE, .n_ids = 4, .k = 2, .ids = golden};
    assert_ok(bl_blt_create(path, &info, false, &writer, &err));
    assert_ok(bl_blt_close(writer, &err));
    assert_fails(bl_stat_read(path, &options, &stat, &err), BL_ERR_CONSERVATION,
                 "nothing can be concluded");
    assert_ok(bl_blt_create(path, &info, false, &writer, &err));
    assert_ok(bl_blt_write(writer, &record, &err));
    assert_ok(bl_blt_close(writer, &err));
    assert_fails(bl_stat_read(path, &options, &stat, &err), BL_ERR_CONSERVATION,
                 "its 1 records are of steps without any");
    record.n_tokens = 4;
    record.flags = BL_RECORD_DUMMY;
    assert_ok(bl_blt_create(path, &info, false, &writer, &err));
    assert_ok(bl_blt_write(writer, &record, &err));
    assert_ok(bl_blt_close(writer, &err));
    assert_fails(bl_stat_read(path, &options, &stat, &err), BL_ERR_CONSERVATION,
                 "all of its 1 records are of dummy steps");
    bl_trace_info_free(&info);
}

/* 58 layers expected, only one has counts: the others are unusable by name. */
static void one_layer_of_many(void **state) {
    (void)state;
    bl_error err;
    bl_stat stat;
    bl_trace_info info;
    bl_blt_writer *writer;
    int layers[58];
    for (int l = 0; l < 58; l++)
        layers[l] = l + 3;
    const bl_stat_options options = BL_STAT_OPTIONS_INIT;
    const char *path = bl_test_temp("one.blt");
    assert_ok(bl_trace_info_create("hand", layers, 58, 4, 2, "test", &info, &err));
    assert_ok(bl_blt_create(path, &info, false, &writer, &err));
    const bl_record record = {
        .layer = 3, .phase = BL_PHASE_DECODE, .n_ids = 4, .k = 2, .n_tokens = 4, .ids = golden};
    assert_ok(bl_blt_write(writer, &record, &err));
    assert_ok(bl_blt_close(writer, &err));
    assert_ok(bl_stat_read(path, &options, &stat, &err));
    assert_true(stat.layers[0].conserved);
    for (int l = 1; l < 58; l++) {
        assert_false(stat.layers[l].conserved);
        bl_test_has(stat.layers[l].why, "no records");
        assert_true(isnan(stat.layers[l].experts.entropy));
    }
    bl_stat_free(&stat);
    bl_trace_info_free(&info);
}

static void usual_values(void **state) {
    (void)state;
    uint64_t a[] = {10, 20, 20, 10, 20}, b[] = {0, 0, 0, 7}, c[] = {3, 5}, d[] = {0, 0};
    assert_int_equal(bl_usual_value(a, 5), 20);
    assert_int_equal(bl_usual_value(b, 4), 7);
    assert_int_equal(bl_usual_value(c, 2), 5);
    assert_int_equal(bl_usual_value(d, 2), 0);
}

/* Micro-batches of one step add up; ranks that interleave are kept apart. */
static void ledger_over_ranks_and_micro_batches(void **state) {
    (void)state;
    bl_error err;
    bl_trace_info info;
    bl_ledger *ledger;
    assert_ok(bl_trace_info_create("m", (int[]){0, 1}, 2, 4, 2, "test", &info, &err));
    assert_ok(bl_ledger_create(&info, &ledger, &err));
    for (uint64_t step = 0; step < 3; step++) {
        for (int part = 0; part < 2; part++) {
            for (int rank = 0; rank < 2; rank++) {
                for (int layer = 0; layer < 2; layer++) {
                    const uint64_t tokens = 5 + (uint64_t)part + (uint64_t)rank;
                    const bl_record record = {.step = step,
                                              .layer = layer,
                                              .rank = rank,
                                              .phase = BL_PHASE_MIXED,
                                              .k = 2,
                                              .n_tokens = tokens};
                    assert_ok(bl_ledger_add(ledger, &record, tokens * 2, &err));
                }
            }
        }
    }
    bl_ledger_finish(ledger);
    assert_null(bl_ledger_why_bad(ledger, 0));
    assert_null(bl_ledger_why_bad(ledger, 1));
    assert_int_equal(bl_ledger_tokens(ledger), 3 * (5 + 6 + 6 + 7));
    bl_ledger_free(ledger);
    bl_trace_info_free(&info);
}

static void step_sets(void **state) {
    (void)state;
    bl_error err;
    bl_steps steps = {0};
    const uint64_t order[] = {5, 3, 4, 100, 5, 2, 101, 99, UINT64_MAX, 0};
    for (size_t i = 0; i < sizeof order / sizeof order[0]; i++)
        assert_ok(bl_steps_add(&steps, 0, order[i], &err));
    assert_ok(bl_steps_add(&steps, 1, 0, &err));
    assert_int_equal(steps.n, 5); /* 0, 2..5, 99..101, max, run 1 */
    assert_int_equal(bl_steps_number(&steps), 10);
    const uint64_t ascending[] = {0, 2, 3, 4, 5, 99, 100, 101, UINT64_MAX};
    for (uint64_t i = 0; i < 9; i++) {
        uint64_t position = 0, step = 0;
        uint32_t run = 7;
        assert_true(bl_steps_position(&steps, 0, ascending[i], &position));
        assert_int_equal(position, i);
        bl_steps_at(&steps, i, &run, &step);
        assert_int_equal(run, 0);
        assert_true(step == ascending[i]);
    }
    uint64_t position = 0;
    assert_true(bl_steps_position(&steps, 1, 0, &position));
    assert_int_equal(position, 9);
    assert_false(bl_steps_position(&steps, 0, 1, &position));
    assert_false(bl_steps_position(&steps, 2, 0, &position));
    bl_steps_free(&steps);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(by_hand),         cmocka_unit_test(one_phase_some_steps),
        cmocka_unit_test(nothing_to_tell), cmocka_unit_test(one_layer_of_many),
        cmocka_unit_test(usual_values),    cmocka_unit_test(ledger_over_ranks_and_micro_batches),
        cmocka_unit_test(step_sets),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
