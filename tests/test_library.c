/* The flat planning call: shapes, tables that agree with each other, anchoring, refusals. */
#include "tests/support/support.h"

#include "ballast_plan.h"
#include "core/rng.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { LAYERS = 3, EXPERTS = 16, SLOTS = 20, RANKS = 4, WIDTH = SLOTS - EXPERTS + 1 };

typedef struct tables {
    int32_t phy2log[LAYERS][SLOTS], log2phy[LAYERS][EXPERTS][WIDTH], logcnt[LAYERS][EXPERTS];
} tables;

static double weight[LAYERS][EXPERTS];
static char text[256];

static void fill(uint64_t seed) {
    bl_rng rng;
    bl_rng_seed(&rng, seed);
    for (int l = 0; l < LAYERS; l++) {
        for (int e = 0; e < EXPERTS; e++)
            weight[l][e] = 1.0 / (1e-3 + bl_rng_unit(&rng));
    }
}

static int rebalance(const int32_t *old, const bl_rebalance_options *options, tables *t) {
    text[0] = '\0';
    return bl_plan_rebalance(&weight[0][0], LAYERS, EXPERTS, SLOTS, RANKS, old, options,
                             &t->phy2log[0][0], &t->log2phy[0][0][0], &t->logcnt[0][0], text,
                             sizeof text);
}

static double worst_rank(const tables *t, int l) {
    double worst = 0.0;
    for (int rank = 0; rank < RANKS; rank++) {
        double sum = 0.0;
        for (int slot = rank * 5; slot < rank * 5 + 5; slot++)
            sum += weight[l][t->phy2log[l][slot]] / t->logcnt[l][t->phy2log[l][slot]];
        worst = sum > worst ? sum : worst;
    }
    return worst;
}

static void tables_agree(void **state) {
    (void)state;
    static tables t;
    fill(3);
    assert_int_equal(rebalance(NULL, NULL, &t), BL_OK);
    for (int l = 0; l < LAYERS; l++) {
        int total = 0;
        for (int e = 0; e < EXPERTS; e++) {
            assert_true(t.logcnt[l][e] >= 1);
            total += t.logcnt[l][e];
            for (int i = 0; i < WIDTH; i++) {
                const int32_t slot = t.log2phy[l][e][i];
                assert_true((slot >= 0) == (i < t.logcnt[l][e]));
                if (slot >= 0)
                    assert_int_equal(t.phy2log[l][slot], e);
                for (int j = 0; j < i && slot >= 0; j++) /* one copy per rank */
                    assert_int_not_equal(t.log2phy[l][e][j] / 5, slot / 5);
            }
        }
        assert_int_equal(total, SLOTS);
        double mean = 0.0;
        for (int e = 0; e < EXPERTS; e++)
            mean += weight[l][e] / RANKS;
        assert_true(worst_rank(&t, l) >= mean - 1e-9);
    }
}

static void greedy_is_beaten_where_it_is_known_to_fail(void **state) {
    (void)state;
    /* Greedy reaches 31; copying the coldest expert reaches 27: {0,2,4} and {1,3,4}. */
    static const double loads[] = {16, 12, 11, 15, 0};
    int32_t slots[6], counts[5];
    assert_int_equal(
        bl_plan_rebalance(loads, 1, 5, 6, 2, NULL, NULL, slots, NULL, counts, text, sizeof text),
        BL_OK);
    double worst = 0.0;
    for (int rank = 0; rank < 2; rank++) {
        double sum = 0.0;
        for (int slot = 3 * rank; slot < 3 * rank + 3; slot++)
            sum += loads[slots[slot]] / counts[slots[slot]];
        worst = sum > worst ? sum : worst;
    }
    assert_true(fabs(worst - 27.0) < 1e-9);
}

static void old_slots_anchor(void **state) {
    (void)state;
    static tables first, second;
    fill(4);
    assert_int_equal(rebalance(NULL, NULL, &first), BL_OK);
    assert_int_equal(rebalance(&first.phy2log[0][0], NULL, &second), BL_OK);
    assert_memory_equal(&first, &second, sizeof first);
    fill(5);
    memset(weight[1], 0, sizeof weight[1]); /* an idle layer stays as it is */
    bl_rebalance_options options = BL_REBALANCE_OPTIONS_INIT;
    options.max_moves = 3;
    options.min_gain = 0.0;
    assert_int_equal(rebalance(&first.phy2log[0][0], &options, &second), BL_OK);
    assert_memory_equal(first.phy2log[1], second.phy2log[1], sizeof first.phy2log[1]);
    for (int l = 0; l < LAYERS; l++) {
        int moves = 0;
        for (int slot = 0; slot < SLOTS; slot++) {
            bool held = false;
            for (int other = slot / 5 * 5; other < slot / 5 * 5 + 5; other++)
                held = held || first.phy2log[l][other] == second.phy2log[l][slot];
            moves += !held;
        }
        assert_true(moves <= 3);
    }
}

static void uneven_ranks(void **state) {
    (void)state;
    /* 5 slots on 2 ranks: 3 and 2. */
    static const double loads[] = {1, 1, 1, 4}; /* the hot one is copied */
    int32_t slots[5];
    assert_int_equal(bl_plan_rebalance(loads, 1, 4, 5, 2, NULL, NULL, slots, NULL, NULL, NULL, 0),
                     BL_OK);
    int held[2][4] = {{0}};
    for (int slot = 0; slot < 5; slot++) {
        assert_in_range(slots[slot], 0, 3);
        assert_int_equal(held[slot >= 3][slots[slot]]++, 0);
    }
    for (int e = 0; e < 4; e++)
        assert_int_equal(held[0][e] + held[1][e], e == 3 ? 2 : 1);
}

static void refusals_leave_the_tables_alone(void **state) {
    (void)state;
    static tables t, untouched;
    memset(&t, 0x55, sizeof t);
    untouched = t;
    fill(6);
    weight[2][3] = NAN;
    assert_true(rebalance(NULL, NULL, &t) < 0);
    bl_test_has(text, "layer 2");
    weight[2][3] = -1.0;
    assert_true(rebalance(NULL, NULL, &t) < 0);
    weight[2][3] = 1.0;
    int32_t old[LAYERS][SLOTS] = {{0}};
    old[1][7] = EXPERTS;
    assert_int_equal(rebalance(&old[0][0], NULL, &t), BL_ERR_RANGE);
    bl_rebalance_options options = BL_REBALANCE_OPTIONS_INIT;
    options.size = 8;
    assert_int_equal(rebalance(NULL, &options, &t), BL_ERR_VERSION);
    assert_memory_equal(&t, &untouched, sizeof t);
    int32_t slots[4];
    static const int bad[][4] = {{0, 2, 4, 2}, {1, 0, 4, 2}, {1, 2, 4, 0}, {1, 2, 0, 1},
                                 {1, 4, 3, 1}, {1, 2, 4, 5}, {1, 1, 4, 2}};
    for (size_t c = 0; c < sizeof bad / sizeof bad[0]; c++)
        assert_true(bl_plan_rebalance(&weight[0][0], bad[c][0], bad[c][1], bad[c][2], bad[c][3],
                                      NULL, NULL, slots, NULL, NULL, text, sizeof text) < 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tables_agree),
        cmocka_unit_test(greedy_is_beaten_where_it_is_known_to_fail),
        cmocka_unit_test(old_slots_anchor),
        cmocka_unit_test(uneven_ranks),
        cmocka_unit_test(refusals_leave_the_tables_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
