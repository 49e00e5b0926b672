/* Known constants in, the same constants out: with noise, with outliers, and not where the
 * measurements cannot tell them. */
#include "tests/support/support.h"

#include "core/fit.h"
#include "core/rng.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

#define N 400

static bool near(double value, double expected, double part) {
    return fabs(value - expected) <= part * fabs(expected);
}

/* 2 us a row, 5 us an expert, 1 us every time: three unknowns, no noise, six kinds of measurements. */
static void exact_figures_give_exact_costs(void **state) {
    (void)state;
    static const double kinds[6][3] = {{10, 10, 1}, {20, 10, 1}, {40, 12, 1},
                                       {12, 3, 1},  {80, 16, 1}, {7, 7, 1}};
    double x[48 * 3], y[48];
    for (int i = 0; i < 48; i++) {
        for (int j = 0; j < 3; j++)
            x[3 * i + j] = kinds[i % 6][j];
        y[i] = 2 * x[3 * i] + 5 * x[3 * i + 1] + 1;
    }
    bl_fit fit;
    bl_error err;
    assert_ok(bl_fit_costs(x, y, 48, 3, &fit, &err));
    const double expected[3] = {2, 5, 1};
    for (int j = 0; j < 3; j++) {
        assert_int_equal(fit.term[j].verdict, BL_FIT_TOLD);
        assert_true(near(fit.term[j].value, expected[j], 1e-6));
    }
    const double other[3] = {100, 20, 1};
    assert_true(near(bl_fit_at(&fit, other), 301, 1e-6));
}

/* Noise of 10 % on every measurement, and every fifth is longer by 3000, as if the processor had been
 * taken away; least squares would be off by several times the costs. */
static void outliers_do_not_pull(void **state) {
    (void)state;
    static double x[N * 2], y[N];
    bl_rng rng;
    bl_rng_seed(&rng, 7);
    for (int i = 0; i < N; i++) {
        x[2 * i] = 1 + bl_rng_below(&rng, 60);
        x[2 * i + 1] = 1 + bl_rng_below(&rng, 12);
        y[i] = (3 * x[2 * i] + 8 * x[2 * i + 1]) * (0.9 + 0.2 * bl_rng_unit(&rng));
        y[i] += i % 5 == 0 ? 3000 : 0;
    }
    bl_fit fit;
    bl_error err;
    assert_ok(bl_fit_costs(x, y, N, 2, &fit, &err));
    assert_int_equal(fit.term[0].verdict, BL_FIT_TOLD);
    assert_int_equal(fit.term[1].verdict, BL_FIT_TOLD);
    assert_true(near(fit.term[0].value, 3, 0.05));
    assert_true(near(fit.term[1].value, 8, 0.1));
    assert_true(fabs(fit.term[0].value - 3) < 4 * fit.term[0].error);
}

/* One in twenty has five hundred rows and takes three times its due, as prompts do that everybody waits
 * for. Summed up these errors outweigh all others; counted in parts of the work they do not. */
static void large_measurements_do_not_pull(void **state) {
    (void)state;
    double x[200 * 2], y[200];
    for (int i = 0; i < 200; i++) {
        const bool large = i % 20 == 0;
        x[2 * i] = large ? 500 : 1 + i % 7;
        x[2 * i + 1] = 1;
        y[i] = (2 * x[2 * i] + 10) * (large ? 3 : 1);
    }
    bl_fit fit;
    bl_error err;
    assert_ok(bl_fit_costs(x, y, 200, 2, &fit, &err));
    assert_true(near(fit.term[0].value, 2, 1e-6) && near(fit.term[1].value, 10, 1e-6));
}

/* y = 7 x0, and x1 would like a negative cost: y falls with it as far as noise goes. */
static void no_cost_is_negative(void **state) {
    (void)state;
    double x[40 * 2], y[40];
    for (int i = 0; i < 40; i++) {
        x[2 * i] = 10 + i % 8;
        x[2 * i + 1] = i % 5;
        y[i] = 7 * x[2 * i] - 0.5 * x[2 * i + 1];
    }
    bl_fit fit;
    bl_error err;
    assert_ok(bl_fit_costs(x, y, 40, 2, &fit, &err));
    assert_true(fit.term[1].value == 0.0 && fit.term[1].verdict == BL_FIT_TOLD);
    assert_true(near(fit.term[0].value, 7, 0.02));
}

/* x1 = x0 throughout: the sum of both costs is 3, whoever has it, and x0 is the more important. x3 is
 * twice the constant x2. x4 never happens. */
static void what_cannot_be_told_is_left_out(void **state) {
    (void)state;
    double x[60 * 5], y[60];
    for (int i = 0; i < 60; i++) {
        double *at = x + 5 * i;
        at[0] = at[1] = 1 + i % 10;
        at[2] = 1;
        at[3] = 2;
        at[4] = 0;
        y[i] = 1 * at[0] + 2 * at[1] + 4;
    }
    bl_fit fit;
    bl_error err;
    assert_ok(bl_fit_costs(x, y, 60, 5, &fit, &err));
    static const bl_fit_verdict expected[5] = {BL_FIT_TOLD, BL_FIT_TIED, BL_FIT_TOLD, BL_FIT_TIED,
                                               BL_FIT_ABSENT};
    for (int j = 0; j < 5; j++)
        assert_int_equal(fit.term[j].verdict, expected[j]);
    assert_true(near(fit.term[0].value, 3, 1e-6) && fit.term[1].value == 0.0);
    assert_true(near(fit.term[2].value, 4, 1e-6) && fit.term[3].value == 0.0);
}

/* x1 is x0 but for a little: enough to be told in clean figures, not under noise that is as large as
 * everything it explains. */
static void noise_decides_what_is_told(void **state) {
    (void)state;
    double x[80 * 2], y[80], noisy[80];
    bl_rng rng;
    bl_rng_seed(&rng, 3);
    for (int i = 0; i < 80; i++) {
        x[2 * i] = 10 + i % 10;
        x[2 * i + 1] = x[2 * i] + (i % 3 - 1);
        y[i] = 2 * x[2 * i] + 1 * x[2 * i + 1];
        noisy[i] = y[i] * (0.4 + 1.2 * bl_rng_unit(&rng));
    }
    bl_fit fit;
    bl_error err;
    assert_ok(bl_fit_costs(x, y, 80, 2, &fit, &err));
    assert_true(near(fit.term[0].value, 2, 1e-6) && near(fit.term[1].value, 1, 1e-6));
    assert_ok(bl_fit_costs(x, noisy, 80, 2, &fit, &err));
    assert_int_equal(fit.term[0].verdict, BL_FIT_TOLD);
    assert_int_equal(fit.term[1].verdict, BL_FIT_NOISY);
    assert_true(fit.term[1].value == 0.0);
    assert_true(near(fit.term[0].value, 3, 0.15));
}

static void too_little_and_nonsense_are_refused(void **state) {
    (void)state;
    double x[16] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}, y[16] = {0};
    bl_fit fit;
    bl_error err = BL_ERROR_INIT;
    assert_int_equal(bl_fit_costs(x, y, 7, 1, &fit, &err), BL_ERR_RANGE);
    assert_non_null(strstr(err.text, "7 measurements"));
    assert_ok(bl_fit_costs(x, y, 16, 1, &fit, &err)); /* it took no time at all */
    assert_true(fit.term[0].value == 0.0);
    y[11] = NAN;
    err = BL_ERROR_INIT;
    assert_int_equal(bl_fit_costs(x, y, 16, 1, &fit, &err), BL_ERR_RANGE);
    assert_non_null(strstr(err.text, "measurement 11"));
}

/* Errors 10, 20, 0 and 50 %; the pair that was not measured does not count. */
static void predictions_are_compared_by_hand(void **state) {
    (void)state;
    const double measured[] = {10, 20, 30, 0, 40}, predicted[] = {11, 16, 30, 5, 60};
    bl_fit_errors e;
    bl_error err;
    assert_ok(bl_fit_compare(predicted, measured, 5, &e, &err));
    assert_int_equal(e.n, 4);
    assert_true(e.measured == 30 && e.predicted == 30);
    assert_true(e.measured_p95 == 40 && e.predicted_p95 == 60);
    assert_true(near(e.median_error, 0.2, 1e-12) && near(e.p95_error, 0.5, 1e-12));
    assert_true(near(e.total_error, 0.17, 1e-12)); /* 117 of 100 */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exact_figures_give_exact_costs),
        cmocka_unit_test(outliers_do_not_pull),
        cmocka_unit_test(large_measurements_do_not_pull),
        cmocka_unit_test(no_cost_is_negative),
        cmocka_unit_test(what_cannot_be_told_is_left_out),
        cmocka_unit_test(noise_decides_what_is_told),
        cmocka_unit_test(too_little_and_nonsense_are_refused),
        cmocka_unit_test(predictions_are_compared_by_hand),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
