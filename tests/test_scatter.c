/* How far loads scatter between texts: the estimate by hand. */
#include "tests/support/support.h"

#include "planner/scatter.h"

#include <math.h>

/* One pair of texts, and one without load:
 *
 *     loads        mean   mean^(3/2)   halved squared difference   variance / mean^(3/2)
 *     1.5  0.5     1      1            1/2                         1/2
 *     5    3       4      8            2                           1/4
 *     both                9            5/2                         5/18
 *
 * Half of the own variance, and a quarter of the two slopes' sum times the mean^(3/2). */
static void one_pair_by_hand(void **state) {
    (void)state;
    const double load[] = {1.5, 0.5, 0, 5, 3, 0}, weight[] = {0.5, 0.5, 0};
    const double first = 0.25 + (5.0 / 18 + 0.5) / 4, second = 1.0 + (5.0 / 18 + 0.25) / 4 * 8;
    const double expected[] = {first, first, 0, second, second, 0};
    double variance[6];
    bl_error err;
    assert_ok(bl_scatter(load, weight, 2, 3, variance, &err));
    for (int i = 0; i < 6; i++)
        assert_true(fabs(variance[i] - expected[i]) < 1e-12);
}

/* Texts of two kinds: only what differs within a kind counts, and the hotter expert of a kind is
 * thought to scatter more there. */
static void kinds_are_told_apart(void **state) {
    (void)state;
    const double load[] = {4, 4, 1, 1, 1, 1, 4, 4, 2, 2.5, 2, 2.5};
    const double weight[] = {0.25, 0.25, 0.25, 0.25};
    double variance[12];
    bl_error err;
    assert_ok(bl_scatter(load, weight, 3, 4, variance, &err));
    assert_true(variance[0] < variance[8]); /* expert 2 is the one that scatters */
    assert_true(variance[0] > variance[2] && variance[4] < variance[6]);
    assert_true(fabs(variance[8] - variance[10]) < 1e-12);
}

static void a_single_text_tells_nothing(void **state) {
    (void)state;
    const double load[] = {1, 0, 3, 0}, weight[] = {1, 0};
    double variance[] = {9, 9, 9, 9};
    bl_error err;
    assert_ok(bl_scatter(load, weight, 2, 2, variance, &err));
    for (int i = 0; i < 4; i++)
        assert_true(variance[i] == 0.0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_pair_by_hand),
        cmocka_unit_test(kinds_are_told_apart),
        cmocka_unit_test(a_single_text_tells_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
