/* The meter: ranks' counts add up to windows, in whatever order they are told. */
#include "tests/support/support.h"

#include "rebalancer/meter.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { RANKS = 3, LAYERS = 2, EXPERTS = 4, WINDOW = 2 };

static const int layers[LAYERS] = {1, 4};
static bl_meter *meters[RANKS];
static const bool all_live[RANKS] = {true, true, true};

static int set_up(void **state) {
    (void)state;
    bl_error err;
    for (int r = 0; r < RANKS; r++)
        assert_ok(bl_meter_create(r, RANKS, layers, LAYERS, EXPERTS, WINDOW, &meters[r], &err));
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    for (int r = 0; r < RANKS; r++)
        bl_meter_free(meters[r]);
    return 0;
}

/* A step in which rank r routes r + 1 tokens to expert r of layer 1 and to expert 3 of layer 4, and
 * computes `rows` of them in each layer; true when it closed a window. */
static bool step(int r, uint64_t number, int rows, bool moving, const unsigned char **data,
                 size_t *bytes) {
    const int32_t here[LAYERS] = {rows, 2 * rows};
    for (int token = 0; token <= r; token++) {
        bl_meter_route(meters[r], 1, (const int32_t[]){r, -1}, 2); /* -1: an empty slot */
        bl_meter_route(meters[r], 4, (const int32_t[]){3}, 1);
        bl_meter_route(meters[r], 2, (const int32_t[]){0}, 1); /* not a layer of this meter */
    }
    return bl_meter_end_step(meters[r],
                             &(bl_meter_step){.step = number,
                                              .tokens = (uint64_t)r + 1,
                                              .all_tokens = 6,
                                              .moving = moving,
                                              .step_ns = 1000 * number,
                                              .experts_ns = 10 * ((uint64_t)r + 1),
                                              .rows = here},
                             data, bytes);
}

static void tell(int r, const unsigned char *data, size_t bytes, const bool *living) {
    bl_error err;
    assert_ok(bl_meter_hear(meters[0], r, data, bytes, living, &err));
}

static void test_ranks_add_up(void **state) {
    (void)state;
    const unsigned char *data;
    size_t bytes;
    const bl_meter_step empty = {.step = 4, .rows = (const int32_t[]){0, 0}};
    assert_int_equal(bl_meter_window(meters[0]).number, 0);
    for (int r = RANKS - 1; r >= 0; r--) {
        assert_false(step(r, 3, 4 + 2 * r, false, &data, &bytes));
        assert_false(bl_meter_end_step(meters[r], &empty, &data, &bytes)); /* of no window */
        assert_true(step(r, 5, 4 + 2 * r, r == 0, &data, &bytes));
        assert_true(bl_meter_is_report(data, bytes));
        tell(r, data, bytes, all_live);
        tell(r, data, bytes, all_live); /* twice: it counts once */
        assert_int_equal(bl_meter_window(meters[0]).number, r == 0 ? 1 : 0);
    }
    const bl_window w = bl_meter_window(meters[0]);
    const uint32_t counts[] = {2, 4, 6, 0, 0, 0, 0, 12}, rows[] = {8, 12, 16, 16, 24, 32};
    assert_memory_equal(w.count, counts, sizeof counts);
    assert_memory_equal(w.rows, rows, sizeof rows);
    assert_int_equal(w.tokens, 12);
    assert_int_equal(w.n_steps, 2);
    assert_int_equal(w.first_step, 3);
    assert_int_equal(w.last_step, 5);
    assert_true(w.moving);
    assert_int_equal(w.step_ns, 8000);
    assert_int_equal(w.longest_ns, 5000);
    assert_int_equal(w.experts_ns, 60);                             /* the rank that had most */
    assert_true(fabs(bl_window_imbalance(&w) - 4.0 / 3.0) < 1e-12); /* 16 of a mean of 12 */
}

/* A rank that is lost does not keep the others' windows back, nor count as one without rows. */
static void test_a_lost_rank_is_not_waited_for(void **state) {
    (void)state;
    const unsigned char *data;
    size_t bytes;
    const bool living[RANKS] = {true, true, false};
    for (int r = 0; r < 2; r++) {
        step(r, 1, 4 + 2 * r, false, &data, &bytes);
        assert_true(step(r, 2, 4 + 2 * r, false, &data, &bytes));
        tell(r, data, bytes, living);
    }
    const bl_window w = bl_meter_window(meters[0]);
    assert_int_equal(w.number, 1);
    assert_false(w.told[2]);
    assert_true(fabs(bl_window_imbalance(&w) - 1.2) < 1e-12); /* 12 of a mean of 10 */
}

static void test_what_is_no_report(void **state) {
    (void)state;
    bl_error err;
    const unsigned char *data;
    size_t bytes;
    step(1, 1, 1, false, &data, &bytes);
    assert_true(step(1, 2, 1, false, &data, &bytes));
    unsigned char *copy = malloc(bytes);
    assert_non_null(copy);
    for (size_t cut = 0; cut < bytes; cut += 7) {
        memcpy(copy, data, bytes);
        assert_fails(bl_meter_hear(meters[0], 1, copy, cut, all_live, &err), BL_ERR_PARSE,
                     "no report");
    }
    memcpy(copy, data, bytes);
    copy[4]++; /* layers */
    assert_fails(bl_meter_hear(meters[0], 1, copy, bytes, all_live, &err), BL_ERR_PARSE, "");
    memcpy(copy, data, bytes);
    assert_fails(bl_meter_hear(meters[0], RANKS, copy, bytes, all_live, &err), BL_ERR_PARSE, "");
    copy[0] = 'X';
    assert_false(bl_meter_is_report(copy, bytes));
    free(copy);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_ranks_add_up, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_a_lost_rank_is_not_waited_for, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_what_is_no_report, set_up, tear_down),
    };
    return cmocka_run_group_tests_name("meter", tests, NULL, NULL);
}
