/* Drift, half-life, noise and single steps, with values by hand or by brute force. */
#include "tests/support/traces.h"

#include "tracer/stat.h"
#include "tracer/stat_noise.h"
#include "tracer/synth.h"

#include <math.h>
#include <stdlib.h>

static void near(double value, double wanted, double within) {
    if (!(fabs(value - wanted) <= within))
        fail_msg("%.12g where %.12g was wanted", value, wanted);
}

static bl_stat read_stat(const char *path) {
    bl_error err;
    bl_stat stat = {0};
    const bl_stat_options options = BL_STAT_OPTIONS_INIT;
    assert_ok(bl_stat_read(path, &options, &stat, &err));
    return stat;
}

/* Steps of two experts; `of_first` says how many of 10^6 tokens go to the first one. */
static bl_stat two_experts(uint64_t n_steps, uint64_t (*of_first)(uint64_t step)) {
    const char *path = bl_test_temp("two.blt");
    bl_trace_info info = bl_test_info(1, (int[]){0}, 2, 1);
    bl_blt_writer *writer = bl_test_create(path, &info);
    for (uint64_t step = 0; step < n_steps; step++) {
        bl_record record = bl_test_record(step, 0, 0, 2, 1, 1000000, NULL);
        record.counts = (uint64_t[]){of_first(step), 1000000 - of_first(step)};
        bl_test_put(writer, record);
    }
    bl_test_close(writer);
    bl_stat stat = read_stat(path);
    bl_trace_info_free(&info);
    return stat;
}

static uint64_t alternating(uint64_t step) {
    return step % 2 == 0 ? 750000 : 250000;
}

static void distances_by_hand(void **state) {
    (void)state;
    bl_stat stat = two_experts(10, alternating);
    const bl_drift_result *drift = &stat.drift;
    assert_int_equal(drift->n_windows, 10);
    assert_int_equal(drift->window_steps, 1);
    assert_int_equal(drift->n_lags, 3); /* 1, 2, 4 */
    near(drift->lags[0].distance, 0.5, 1e-12);
    near(drift->lags[1].distance, 0.0, 1e-12);
    near(drift->lags[2].distance, 0.0, 1e-12);
    near(drift->step_distance, 0.5, 1e-12);
    /* r(0) = 1 and r(1) = -1: half of the way down is at a quarter of the step. */
    assert_int_equal(drift->half_life, BL_HALF_LIFE_MEASURED);
    near(drift->half_life_steps, 0.25, 1e-3);
    bl_stat_free(&stat);
}

static uint64_t wave(uint64_t step) {
    return 500000 + (uint64_t)(200000.0 * (1.0 + cos(2.0 * acos(-1.0) * (double)step / 24.0))) -
           200000;
}

/* A wave of 24 steps: its correlation at lag h is cos(2 pi h / 24), a half at h = 4. */
static void half_life_of_a_wave(void **state) {
    (void)state;
    bl_stat stat = two_experts(48, wave);
    assert_int_equal(stat.drift.half_life, BL_HALF_LIFE_MEASURED);
    near(stat.drift.half_life_steps, 4.0, 0.4);
    bl_stat_free(&stat);
    stat = two_experts(7, wave);
    assert_int_equal(stat.drift.half_life, BL_HALF_LIFE_NOT_ENOUGH);
    assert_true(isnan(stat.drift.half_life_steps));
    bl_stat_free(&stat);
}

static uint64_t slow(uint64_t step) {
    return 400000 + 2000 * step;
}

/* More steps than windows: neighbours are joined, and the last window counts only when it is full. */
static void windows_are_joined(void **state) {
    (void)state;
    bl_stat stat = two_experts(70, slow);
    assert_int_equal(stat.drift.window_steps, 2);
    assert_int_equal(stat.drift.n_windows, 35);
    /* Window t holds steps 2t and 2t + 1: two windows apart are four steps, 8000 of 10^6. */
    near(stat.drift.lags[1].distance, 0.008, 1e-9);
    assert_int_equal(stat.drift.lags[1].steps, 4);
    bl_stat_free(&stat);
    stat =
        two_experts(1000, alternating); /* 16 steps to a window: 62 full ones, half a one is left */
    assert_int_equal(stat.drift.window_steps, 16);
    assert_int_equal(stat.drift.n_windows, 62);
    near(stat.drift.lags[0].distance, 0.0, 1e-12);
    assert_int_equal(stat.drift.half_life, BL_HALF_LIFE_NO_DRIFT);
    assert_int_equal(stat.steps, 1000);
    bl_stat_free(&stat);
}

static double poisson(double mean, int n) {
    return exp(n * log(mean) - mean - lgamma(n + 1.0));
}

static void noise_by_brute_force(void **state) {
    (void)state;
    const double means[] = {0.05, 0.5, 2.0, 9.0, 60.0};
    for (size_t i = 0; i < sizeof means / sizeof means[0]; i++) {
        double sum = 0.0;
        for (int x = 0; x < 200; x++) {
            for (int y = 0; y < 200; y++)
                sum += poisson(means[i], x) * poisson(means[i], y) * abs(x - y);
        }
        near(bl_noise_difference(means[i]), sum, 1e-5 * sum);
    }
    near(bl_noise_difference(0.0), 0.0, 0.0);
    /* Two experts, half of 100 tokens each: variance 25, so the shares' variances sum to 0.005. */
    const uint64_t count[] = {500, 500};
    near(bl_noise_variance(count, 2, 1000, 100), 0.005, 1e-12);
    near(bl_noise_distance(count, 2, 1000, 100), bl_noise_difference(25.0) / 100.0, 1e-12);
}

/* Independent tokens of a fixed mix differ from step to step by what chance gives, and no more. */
static void no_drift_is_noise(void **state) {
    (void)state;
    bl_error err;
    static int moe[] = {1, 2};
    const bl_model model = {.name = "small",
                            .n_layers = 3,
                            .n_moe_layers = 2,
                            .moe_layers = moe,
                            .n_experts = 32,
                            .top_k = 4};
    bl_synth_options options = BL_SYNTH_OPTIONS_INIT;
    options.n_steps = 64;
    options.drift = 0.0;
    const char *path = bl_test_temp("still.blt");
    assert_ok(bl_synth(&model, &options, path, &err));
    bl_stat stat = read_stat(path);
    near(stat.drift.step_distance / stat.drift.step_noise, 1.0, 0.03);
    near(stat.drift.lags[3].distance / stat.drift.lags[3].noise, 1.0, 0.03);
    assert_int_equal(stat.drift.half_life, BL_HALF_LIFE_NO_DRIFT);
    near(stat.sources.layers[0].distance / stat.sources.layers[0].noise, 1.0, 0.15);
    bl_stat_free(&stat);
    options.drift = 3.0;
    assert_ok(bl_synth(&model, &options, path, &err));
    stat = read_stat(path);
    assert_int_equal(stat.drift.half_life, BL_HALF_LIFE_MEASURED);
    assert_true(stat.drift.half_life_steps > 4 && stat.drift.half_life_steps < 32);
    bl_stat_free(&stat);
}

/* ---- single steps --------------------------------------------------------------------------- */

typedef struct seen {
    int n;
    uint64_t step[64], sum[64];
} seen;

static bl_status note_step(void *user, const bl_step_counts *step, bl_error *err) {
    (void)err;
    seen *s = user;
    s->step[s->n] = step->step;
    s->sum[s->n++] = step->count[0] + step->count[1];
    return BL_OK;
}

static void add_one(bl_open_steps *steps, uint64_t step, int rank) {
    bl_error err;
    uint64_t *row;
    const bl_record record = bl_test_record(step, 0, rank, 2, 1, 1, NULL);
    assert_ok(bl_open_steps_row(steps, &record, 0, &row, &err));
    row[rank]++;
}

/* A rank that lags behind keeps its steps open; one that comes after all are gone is late. */
static void steps_are_whole(void **state) {
    (void)state;
    bl_error err;
    bl_trace_info info = bl_test_info(1, (int[]){0}, 2, 1);
    bl_open_steps *steps;
    seen s = {0};
    assert_ok(bl_trace_info_set_ranks(&info, 2, (int[]){0, 1}, 2, &err));
    assert_ok(bl_open_steps_create(&info, 2, note_step, &s, &steps, &err));
    for (uint64_t step = 0; step < 5; step++)
        add_one(steps, step, 0);
    assert_int_equal(s.n, 0); /* rank 1 has not shown up */
    for (uint64_t step = 0; step < 5; step++)
        add_one(steps, step, 1);
    assert_int_equal(s.n, 4);
    assert_ok(bl_open_steps_finish(steps, &err));
    assert_int_equal(s.n, 5);
    for (int i = 0; i < 5; i++) {
        assert_int_equal(s.step[i], i);
        assert_int_equal(s.sum[i], 2);
    }
    add_one(steps, 2, 0);
    assert_ok(bl_open_steps_finish(steps, &err));
    assert_int_equal(s.n, 6);
    assert_int_equal(bl_open_steps_closed(steps), 5);
    assert_int_equal(bl_open_steps_late(steps), 1);
    bl_open_steps_free(steps);
    bl_trace_info_free(&info);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(distances_by_hand),  cmocka_unit_test(half_life_of_a_wave),
        cmocka_unit_test(windows_are_joined), cmocka_unit_test(noise_by_brute_force),
        cmocka_unit_test(no_drift_is_noise),  cmocka_unit_test(steps_are_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
