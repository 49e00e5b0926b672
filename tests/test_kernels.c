/* The engine's arithmetic: values by hand, orders of summation, and exp against the C library. */
#include "tests/support/support.h"

#include "core/rng.h"
#include "runtime/kernels.h"

#include <float.h>
#include <math.h>
#include <string.h>

static uint16_t bf16(float value) { /* exact for the small numbers used here */
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return (uint16_t)(bits >> 16);
}

static void bf16_is_the_upper_half(void **state) {
    (void)state;
    assert_true(bl_bf16_to_float(0x3f80) == 1.0f);
    assert_true(bl_bf16_to_float(0xc040) == -3.0f);
    assert_true(bl_bf16_to_float(0x0000) == 0.0f);
    assert_true(bl_bf16_to_float(0x7f80) == INFINITY);
    assert_true(bl_bf16_to_float(0x0001) > 0.0f); /* denormal */
    assert_true(isnan(bl_bf16_to_float(0x7fc0)));
}

static void exp_is_within_one_unit(void **state) {
    (void)state;
    double worst = 0;
    for (float x = -87.0f; x < 88.7f; x += 0.0137f) {
        const double want = exp((double)x), got = (double)bl_exp(x);
        const double error = fabs(got - want) / (want * (double)FLT_EPSILON);
        if (error > worst)
            worst = error;
    }
    assert_true(worst <= 1.0);
    assert_true(bl_exp(0.0f) == 1.0f);
    assert_true(bl_exp(-200.0f) == 0.0f && bl_exp(-INFINITY) == 0.0f);
    assert_true(bl_exp(200.0f) == INFINITY && bl_exp(INFINITY) == INFINITY);
    assert_true(bl_exp(-103.0f) > 0.0f); /* denormal */
    assert_true(isnan(bl_exp(NAN)));
}

static void matmul_by_hand(void **state) {
    (void)state;
    const uint16_t w[2 * 3] = {bf16(1), bf16(2), bf16(3), bf16(-1), bf16(0.5f), bf16(4)};
    const float x[2 * 3] = {1, 10, 100, 2, -2, 0.25f};
    float y[4];
    bl_matmul(w, 2, 3, x, 2, y);
    assert_true(y[0] == 321.0f && y[1] == 404.0f && y[2] == -1.25f && y[3] == -2.0f);
}

/* The order of summation, written out: lanes ascending, then upper half onto lower half. */
static float slow_dot(const uint16_t *w, const float *x, size_t n) {
    volatile float lane[8] = {0};
    for (size_t i = 0; i < n; i++) {
        const volatile float product = bl_bf16_to_float(w[i]) * x[i];
        lane[i % 8] = lane[i % 8] + product;
    }
    const volatile float a = lane[0] + lane[4], b = lane[1] + lane[5], c = lane[2] + lane[6],
                         d = lane[3] + lane[7];
    const volatile float even = a + c, odd = b + d;
    return even + odd;
}

static void order_of_summation_is_as_written(void **state) {
    (void)state;
    bl_rng rng;
    uint16_t w[131] = {0};
    float x[131] = {0};
    bl_rng_seed(&rng, 7);
    for (size_t n = 0; n <= 131; n++) {
        for (size_t i = 0; i < n; i++) {
            w[i] = bf16((float)(bl_rng_unit(&rng) - 0.5));
            x[i] = (float)(bl_rng_unit(&rng) * 1e3 - 500);
        }
        float y;
        bl_matmul(w, 1, n, x, 1, &y);
        const float want = slow_dot(w, x, n);
        assert_memory_equal(&y, &want, sizeof y);
    }
}

static void rows_do_not_see_their_neighbours(void **state) {
    (void)state;
    enum { HIDDEN = 24, INNER = 12, ROWS = 5 };
    bl_rng rng;
    uint16_t w[3 * HIDDEN * INNER];
    float x[ROWS * HIDDEN], together[ROWS * INNER], alone[INNER];
    bl_rng_seed(&rng, 11);
    for (size_t i = 0; i < sizeof w / sizeof w[0]; i++)
        w[i] = bf16((float)(bl_rng_unit(&rng) - 0.5));
    for (size_t i = 0; i < ROWS * HIDDEN; i++)
        x[i] = (float)(bl_rng_unit(&rng) - 0.5);
    bl_matmul(w, INNER, HIDDEN, x, ROWS, together);
    for (size_t row = 0; row < ROWS; row++) {
        bl_matmul(w, INNER, HIDDEN, x + row * HIDDEN, 1, alone);
        assert_memory_equal(together + row * INNER, alone, sizeof alone);
    }
}

static void rms_norm_by_hand(void **state) {
    (void)state;
    const float x[4] = {1, -1, 7, 7}; /* mean square 25 */
    const uint16_t weight[4] = {bf16(1), bf16(1), bf16(5), bf16(10)};
    float out[4];
    bl_rms_norm(x, weight, 4, 0.0f, out);
    const float want[4] = {0.2f, -0.2f, 7.0f, 14.0f};
    for (int i = 0; i < 4; i++)
        assert_true(fabsf(out[i] - want[i]) <= 1e-6f * fabsf(want[i]));
}

static void rope_rotates_pairs_half_a_head_apart(void **state) {
    (void)state;
    const double pi = acos(-1.0);
    float angles[4], head[4] = {1, 0, 0, 2};
    bl_rope_angles(100.0, 4, 3, angles); /* 3 * 100^0 and 3 * 100^-0.5 */
    assert_true(fabs((double)angles[0] - cos(3.0)) < 1e-7);
    assert_true(fabs((double)angles[1] - cos(0.3)) < 1e-7);
    assert_true(fabs((double)angles[2] - sin(3.0)) < 1e-7);
    assert_true(fabs((double)angles[3] - sin(0.3)) < 1e-7);
    for (int i = 0; i < 2; i++) { /* a quarter turn: (a, b) -> (-b, a) */
        angles[i] = (float)cos(pi / 2);
        angles[2 + i] = 1.0f;
    }
    bl_rope(head, 4, angles);
    assert_true(fabsf(head[0]) < 1e-6f && fabsf(head[2] - 1.0f) < 1e-6f);
    assert_true(fabsf(head[1] + 2.0f) < 1e-6f && fabsf(head[3]) < 1e-6f);
}

static void attention_by_hand(void **state) {
    (void)state;
    /* head_dim 4, so the scale is 1/2; scores 0 and ln 3, weights 1/4 and 3/4 */
    const float query[4] = {2, 0, 0, 0}, ln3 = logf(3.0f);
    const float keys[8] = {0, 9, 9, 9, ln3, 0, 0, 0};
    const float values[8] = {4, 0, 8, 1, 0, 4, 8, 1};
    const float want[4] = {1, 3, 8, 1};
    float scratch[2], out[4];
    bl_attend(query, keys, values, 2, 4, 4, scratch, out);
    for (int i = 0; i < 4; i++)
        assert_true(fabsf(out[i] - want[i]) < 1e-5f);
    bl_attend(query, keys, values, 1, 4, 4, scratch, out); /* causal: the second does not exist */
    for (int i = 0; i < 4; i++)
        assert_true(out[i] == values[i]);
}

static void router_takes_the_largest_and_breaks_ties_low(void **state) {
    (void)state;
    const float logits[5] = {0, logf(4.0f), logf(2.0f), logf(4.0f), 0}; /* exp: 1 4 2 4 1 */
    int32_t ids[5];
    float weights[5];
    assert_true(bl_route(logits, 5, 3, true, ids, weights));
    assert_int_equal(ids[0], 1);
    assert_int_equal(ids[1], 3);
    assert_int_equal(ids[2], 2);
    assert_true(fabsf(weights[0] - 0.4f) < 1e-6f && fabsf(weights[2] - 0.2f) < 1e-6f);
    assert_true(bl_route(logits, 5, 3, false, ids, weights)); /* softmax over all 12 */
    assert_true(fabsf(weights[0] - 4.0f / 12) < 1e-6f && fabsf(weights[2] - 2.0f / 12) < 1e-6f);
    assert_true(bl_route(logits, 5, 5, true, ids, weights)); /* all of them, each once */
    assert_int_equal(ids[3], 0);
    assert_int_equal(ids[4], 4);
}

static void router_refuses_nan_with_valid_ids(void **state) {
    (void)state;
    const float cases[][3] = {{NAN, 1, 2}, {1, INFINITY, 2}, {NAN, NAN, NAN}, {0, 0, -INFINITY}};
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        int32_t ids[2] = {-7, -7};
        float weights[2];
        assert_false(bl_route(cases[c], 3, 2, true, ids, weights));
        assert_true(ids[0] >= 0 && ids[0] < 3 && ids[1] >= 0 && ids[1] < 3 && ids[0] != ids[1]);
    }
}

static void expert_by_hand(void **state) {
    (void)state;
    /* hidden 2, inner 1: gate 1*x0, up 2*x1, down [3, -1] */
    const uint16_t bundle[6] = {bf16(1), bf16(0), bf16(0), bf16(2), bf16(3), bf16(-1)};
    const float x[2] = {1.5f, 2.0f};
    const float middle = 1.5f / (1.0f + expf(-1.5f)) * 4.0f;
    float scratch[2], y[2];
    bl_expert(bundle, 2, 1, x, scratch, y);
    assert_true(fabsf(y[0] - 3 * middle) < 1e-5f && fabsf(y[1] + middle) < 1e-5f);
    const float zero[2] = {0, 5}; /* silu(0) = 0 */
    bl_expert(bundle, 2, 1, zero, scratch, y);
    assert_true(y[0] == 0.0f && y[1] == 0.0f);
    const float cold[2] = {-300, 5}; /* exp(300) overflows, silu(-300) is still 0 */
    bl_expert(bundle, 2, 1, cold, scratch, y);
    assert_true(y[0] == 0.0f && y[1] == 0.0f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bf16_is_the_upper_half),
        cmocka_unit_test(exp_is_within_one_unit),
        cmocka_unit_test(matmul_by_hand),
        cmocka_unit_test(order_of_summation_is_as_written),
        cmocka_unit_test(rows_do_not_see_their_neighbours),
        cmocka_unit_test(rms_norm_by_hand),
        cmocka_unit_test(rope_rotates_pairs_half_a_head_apart),
        cmocka_unit_test(attention_by_hand),
        cmocka_unit_test(router_takes_the_largest_and_breaks_ties_low),
        cmocka_unit_test(router_refuses_nan_with_valid_ids),
        cmocka_unit_test(expert_by_hand),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
