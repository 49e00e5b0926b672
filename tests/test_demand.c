/* Phases and requests of a trace, by hand. */
#include "tests/support/support.h"
#include "tests/support/traces.h"

#include "cli/phases.h"
#include "tracer/demand.h"

#include <math.h>
#include <string.h>

static int32_t ids[200];

static void put(bl_blt_writer *writer, uint64_t step, int rank, bl_phase phase, uint64_t n_tokens,
                unsigned flags) {
    for (int layer = 3; layer <= 4; layer++) {
        bl_record record = bl_test_record(step, layer, rank, 4, 1, n_tokens, ids);
        record.phase = phase;
        record.flags = flags;
        bl_test_put(writer, record);
    }
}

/* Three ranks: prefill of 30 and 60 tokens (rank 2 has none), decode of 10, 10, 10 and of 10 + 5
 * micro-batched, 10, 5, and a dummy step of 100. */
static void write_mixed(const char *path) {
    bl_error err;
    bl_trace_info info = bl_test_info(2, (int[]){3, 4}, 4, 1);
    assert_ok(bl_trace_info_set_ranks(&info, 3, (int[]){0, 1, 2}, 3, &err));
    bl_blt_writer *writer = bl_test_create(path, &info);
    put(writer, 7, 0, BL_PHASE_PREFILL, 30, 0);
    put(writer, 7, 1, BL_PHASE_PREFILL, 60, 0);
    for (int rank = 0; rank < 3; rank++)
        put(writer, 8, rank, BL_PHASE_DECODE, 10, 0);
    put(writer, 9, 0, BL_PHASE_DECODE, 10, 0);
    put(writer, 9, 1, BL_PHASE_DECODE, 10, 0);
    put(writer, 9, 2, BL_PHASE_DECODE, 5, 0);
    put(writer, 9, 0, BL_PHASE_DECODE, 5, 0);
    put(writer, 10, 1, BL_PHASE_DECODE, 100, BL_RECORD_DUMMY);
    bl_test_close(writer);
    bl_trace_info_free(&info);
}

static void phases_by_hand(void **state) {
    (void)state;
    bl_error err;
    bl_demand requests;
    const char *path = bl_test_temp("mixed.blt");
    write_mixed(path);
    assert_ok(bl_demand_read(&path, 1, 0, INT64_MAX, &requests, &err));
    assert_int_equal(requests.n_phases, 2);
    assert_int_equal(requests.n_ranks, 3);
    const bl_demand_phase *prefill = &requests.phases[BL_PHASE_PREFILL];
    const bl_demand_phase *decode = &requests.phases[BL_PHASE_DECODE];
    assert_int_equal(prefill->tokens, 90);
    assert_int_equal(prefill->steps, 1);
    assert_true(prefill->known && fabs(prefill->mean - 2.0) < 1e-12); /* 60 / 30 */
    assert_int_equal(decode->tokens, 60);
    assert_int_equal(decode->steps, 2);
    assert_true(fabs(decode->mean - 1.25) < 1e-12); /* 1 and 15 / 10 */
    assert_true(fabs(decode->max - 1.5) < 1e-12 && fabs(decode->p95 - 1.475) < 1e-12);
    assert_int_equal(requests.all.tokens, 150);
    int phases[BL_N_PHASES];
    assert_int_equal(bl_phases_of(&requests, -1, phases), 2);
    assert_int_equal(phases[0], BL_PHASE_PREFILL);
    assert_int_equal(bl_phases_of(&requests, BL_PHASE_DECODE, phases), 1);
    assert_int_equal(phases[0], BL_PHASE_DECODE);
    assert_int_equal(bl_phases_of(&requests, BL_PHASE_ALL, phases), 2);
    assert_ok(bl_demand_read(&path, 1, 1, 2, &requests, &err));
    assert_int_equal(requests.n_phases, 1);
    assert_int_equal(requests.phases[BL_PHASE_DECODE].tokens, 30);
    /* Twice the same trace: the steps of the second follow those of the first. */
    const char *const both[] = {path, path};
    assert_ok(bl_demand_read(both, 2, 3, 6, &requests, &err));
    assert_int_equal(requests.all.tokens, 120);
}

static void summed_sources_are_not_known(void **state) {
    (void)state;
    bl_error err;
    bl_demand requests;
    bl_trace_info info = bl_test_info(2, (int[]){3, 4}, 4, 1);
    const char *path = bl_test_temp("summed.blt");
    bl_blt_writer *writer = bl_test_create(path, &info);
    put(writer, 0, BL_ALL_RANKS, BL_PHASE_UNKNOWN, 40, 0);
    bl_test_close(writer);
    bl_trace_info_free(&info);
    assert_ok(bl_demand_read(&path, 1, 0, INT64_MAX, &requests, &err));
    assert_int_equal(requests.n_ranks, 0);
    assert_int_equal(requests.phases[BL_PHASE_UNKNOWN].tokens, 40);
    assert_false(requests.phases[BL_PHASE_UNKNOWN].known);
}

static void choices_are_the_phases(void **state) {
    (void)state;
    for (int p = 0; p < BL_N_PHASES; p++)
        assert_string_equal(bl_phase_choices[p], bl_phase_names[p]);
    assert_string_equal(bl_phase_choices[BL_PHASE_ALL], "all");
    assert_int_equal(bl_phase_filter(BL_PHASE_ALL), -1);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(phases_by_hand),
                                       cmocka_unit_test(summed_sources_are_not_known),
                                       cmocka_unit_test(choices_are_the_phases)};
    return cmocka_run_group_tests_name("requests", tests, NULL, NULL);
}
