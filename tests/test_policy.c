/* The policy: by the figures of known cases, and against loads that burst, swing and drift. */
#include "tests/support/policy_sim.h"
#include "tests/support/support.h"

#include "core/npy.h"
#include "core/rng.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { EXPERTS = 32, RANKS = 4, SLOTS = 40, WINDOWS = 120 };

/* ---- figures --------------------------------------------------------------------------------- */

/* vllm #50647: mean/max is 0.936 already, a rebalance costs 60 s, the horizon is 100 s: even perfect
 * balance saves 6.4 s. */
static void test_a_move_that_does_not_pay(void **state) {
    (void)state;
    double gain_s;
    const bl_policy_offer offer = {.now = 1 / 0.936,
                                   .after = 1.0,
                                   .experts_s = 1.0,
                                   .step_s = 1.0,
                                   .moves = 100,
                                   .cost_s = 60.0};
    assert_false(bl_policy_pays(&offer, 100.0, 1.0, &gain_s));
    assert_true(fabs(gain_s - 6.4) < 1e-9);
    assert_true(bl_policy_pays(&offer, 1000.0, 1.0, &gain_s));
    assert_true(fabs(gain_s - 64.0) < 1e-9);
    bl_policy_offer cheap = offer;
    cheap.cost_s = 6.3;
    assert_true(bl_policy_pays(&cheap, 100.0, 1.0, &gain_s));
    cheap.after = cheap.now + 0.01;
    cheap.cost_s = 0;
    assert_false(bl_policy_pays(&cheap, 100.0, 1.0, &gain_s));
}

static void test_evidence_noise_and_rest(void **state) {
    (void)state;
    bl_policy p;
    bl_policy_options o = BL_POLICY_OPTIONS_INIT;
    o.rest_s = 100;
    bl_policy_init(&p, &o);
    bl_policy_window_in w = {.seconds = 1, .imbalance = 1.3, .rows_per_rank = 1e6, .n_ranks = 4};
    assert_int_equal(bl_policy_window(&p, &w, 1).verdict, BL_POLICY_WAIT); /* one is no evidence */
    assert_int_equal(bl_policy_window(&p, &w, 2).verdict, BL_POLICY_PLAN);
    w.moving = true; /* says nothing */
    assert_int_equal(bl_policy_window(&p, &w, 3).verdict, BL_POLICY_WAIT);
    w.moving = false;
    w.rows_per_rank = 20; /* sqrt(2 ln 4 / 20) = 0.37: chance explains it */
    assert_int_equal(bl_policy_window(&p, &w, 4).verdict, BL_POLICY_WAIT);
    bl_test_has(bl_policy_window(&p, &w, 5).line, "+ 0.372 of noise");
    w.rows_per_rank = 1e6;
    bl_policy_window(&p, &w, 6);
    assert_int_equal(bl_policy_window(&p, &w, 7).verdict, BL_POLICY_PLAN);
    bl_policy_offer offer = {.now = 1.3,
                             .after = 1.1,
                             .experts_s = 1,
                             .step_s = 2,
                             .moves = 5,
                             .cost_s = 0.1,
                             .duration_s = 1.5};
    assert_int_equal(bl_policy_weigh(&p, &offer, 7).verdict, BL_POLICY_MOVE);
    offer.duration_s = 30; /* longer than the imbalance has lasted */
    bl_test_has(bl_policy_weigh(&p, &offer, 7).line, "perhaps a burst");
    offer.duration_s = 1;
    bl_policy_moved(&p, &offer, true, 8);
    bl_policy_window(&p, &w, 9);
    bl_test_has(bl_policy_window(&p, &w, 10).line, "rest 100.0 s");
}

/* A move that makes it worse for long enough is taken back, and promises count less afterwards. */
static void test_roll_back(void **state) {
    (void)state;
    bl_policy p;
    const bl_policy_options o = BL_POLICY_OPTIONS_INIT;
    bl_policy_init(&p, &o);
    const bl_policy_offer offer = {.now = 1.2, .after = 1.05, .moves = 3};
    bl_policy_moved(&p, &offer, true, 1);
    bl_policy_window_in w = {.seconds = 1, .imbalance = 1.5, .rows_per_rank = 1e6, .n_ranks = 4};
    assert_int_not_equal(bl_policy_window(&p, &w, 2).verdict, BL_POLICY_ROLL_BACK);
    assert_int_not_equal(bl_policy_window(&p, &w, 3).verdict, BL_POLICY_ROLL_BACK);
    const bl_policy_decision d = bl_policy_window(&p, &w, 4);
    assert_int_equal(d.verdict, BL_POLICY_ROLL_BACK);
    bl_test_has(d.line, "predicted 1.050, before 1.200");
    bl_policy_rolled_back(&p, 5);
    assert_true(p.trust <= 0.25);

    /* worse than promised but better than before: it stays */
    bl_policy_init(&p, &o);
    bl_policy_moved(&p, &offer, true, 1);
    w.imbalance = 1.19;
    for (int i = 0; i < 6; i++)
        assert_int_not_equal(bl_policy_window(&p, &w, 2 + i).verdict, BL_POLICY_ROLL_BACK);
    assert_true(p.trust < 0.6);
}

static void watch_steps(bl_policy *p, double before_s, double after_s, double tokens, int n,
                        bl_policy_decision *last) {
    const bl_policy_options o = BL_POLICY_OPTIONS_INIT;
    const bl_policy_offer offer = {.now = 1.2, .after = 1.05, .moves = 3};
    bl_policy_window_in w = {.seconds = 1, .imbalance = 1.04, .rows_per_rank = 1e6, .n_ranks = 4};
    bl_policy_init(p, &o);
    w.tokens = 100;
    for (int i = 0; i < 3; i++) {
        w.step_s = before_s * (1 + 0.1 * i);
        bl_policy_window(p, &w, i);
    }
    bl_policy_moved(p, &offer, true, 3);
    w.tokens = tokens;
    w.step_s = after_s;
    for (int i = 0; i < n; i++)
        *last = bl_policy_window(p, &w, 4 + i);
}

/* Balanced, yet slow: copies may have gone across slow links. */
static void test_roll_back_by_step_time(void **state) {
    (void)state;
    bl_policy p;
    bl_policy_decision d;
    watch_steps(&p, 0.010, 0.019, 110, 5, &d); /* 1.58 times the slowest, 12 ms */
    assert_int_not_equal(d.verdict, BL_POLICY_ROLL_BACK);
    watch_steps(&p, 0.010, 0.019, 110, 6, &d);
    assert_int_equal(d.verdict, BL_POLICY_ROLL_BACK);
    assert_string_equal(d.line, "roll back: step time 19 ms for 6 windows, at most 12 ms before; "
                                "imbalance 1.040, predicted 1.050");
    watch_steps(&p, 0.010, 0.0179, 110, 12, &d); /* 1.49 times */
    assert_int_not_equal(d.verdict, BL_POLICY_ROLL_BACK);
    watch_steps(&p, 0.010, 0.030, 200, 12, &d); /* twice the tokens: says nothing */
    assert_int_not_equal(d.verdict, BL_POLICY_ROLL_BACK);
    watch_steps(&p, 0.010, 0.030, 100, 2, &d);
    bl_policy_overtaken(&p); /* another plan is in force */
    const bl_policy_window_in w = {.seconds = 1,
                                   .imbalance = 1.3,
                                   .rows_per_rank = 1e6,
                                   .n_ranks = 4,
                                   .step_s = 0.03,
                                   .tokens = 100};
    for (int i = 0; i < 12; i++)
        assert_int_not_equal(bl_policy_window(&p, &w, 10 + i).verdict, BL_POLICY_ROLL_BACK);
}

/* ---- sequences ------------------------------------------------------------------------------- */

static double load[WINDOWS][EXPERTS];

/* Topic t makes some experts hot; others are lukewarm. */
static double topic(int t, int expert) {
    return 1000.0 * (1.0 + 6.0 * ((expert * 7 + t * 5) % 11 == 0) + 0.1 * (expert % 3));
}

static bl_policy_case base(void) {
    bl_policy_case c = {.n_experts = EXPERTS,
                        .n_ranks = RANKS,
                        .slots = SLOTS,
                        .load = &load[0][0],
                        .n_windows = WINDOWS,
                        .mode = BL_SIM_POLICY,
                        .policy = BL_POLICY_OPTIONS_INIT,
                        .history = 3,
                        .window_s = 1,
                        .share = 0.5,
                        .cost_s = 0.2,
                        .duration_s = 2};
    c.policy.rest_s = 2;
    c.trace = getenv("BALLAST_POLICY_TRACE") != NULL ? stderr : NULL;
    return c;
}

static void fill(int (*at)(int window)) {
    bl_rng rng;
    bl_rng_seed(&rng, 1);
    for (int w = 0; w < WINDOWS; w++) {
        for (int e = 0; e < EXPERTS; e++)
            load[w][e] = topic(at(w), e) * (0.99 + 0.02 * (double)bl_rng_below(&rng, 1000) / 1000);
    }
}

static int steady(int window) {
    (void)window;
    return 0;
}

/* One topic with a per cent of noise: one move, and then none. */
static void test_steady_load_moves_once(void **state) {
    (void)state;
    fill(steady);
    const bl_policy_case c = base();
    const bl_policy_result r = bl_policy_simulate(&c);
    assert_int_equal(r.moves, 1);
    assert_int_equal(r.rolled_back, 0);
}

static int bursts(int window) {
    return window >= 20 && window % 20 == 0 ? 3 : 0; /* one window of another topic in twenty */
}

/* Bursts shorter than a move move nothing beyond what the steady load has moved. */
static void test_bursts_are_left_alone(void **state) {
    (void)state;
    fill(bursts);
    const bl_policy_case c = base();
    const bl_policy_result r = bl_policy_simulate(&c);
    assert_int_equal(r.moves, 1);
    assert_int_equal(r.rolled_back, 0);
}

static int swings(int window) {
    return window / 2 % 2; /* faster than a move that takes two windows can follow */
}

/* A load that swings faster than moves take effect: it does not chase it. */
static void test_fast_swings_are_not_chased(void **state) {
    (void)state;
    fill(swings);
    bl_policy_case c = base();
    c.cost_s = 1;
    const bl_policy_result r = bl_policy_simulate(&c);
    c.mode = BL_SIM_NEVER;
    const bl_policy_result never = bl_policy_simulate(&c);
    assert_in_range(r.moves, 0, 4);
    assert_true(r.lost_s <= never.lost_s * 1.05);
}

static int days(int window) {
    return window / 30 % 2; /* slow enough to follow */
}

/* Day and night: each of four changes is followed by a move or two, and that pays. */
static void test_days_are_followed(void **state) {
    (void)state;
    fill(days);
    bl_policy_case c = base();
    const bl_policy_result r = bl_policy_simulate(&c);
    c.mode = BL_SIM_NEVER;
    const bl_policy_result never = bl_policy_simulate(&c);
    assert_in_range(r.moves, 2, 8);
    assert_true(r.lost_s < never.lost_s);
}

/* ---- real sequences -------------------------------------------------------------------------- */

/* GLM-5.2's windows: the policy beats never moving and moving at every window, at a price at which
 * copies matter, and does not swing. */
static void test_real_windows(void **state) {
    (void)state;
    bl_error err;
    bl_npy npy;
    const char *path = bl_test_data("routing/glm-5.2/windows_plan.npy");
    if (path == NULL)
        skip();
    assert_ok(bl_npy_load(path, &npy, &err));
    const size_t experts = npy.shape[npy.n_dims - 1], layers = npy.shape[npy.n_dims - 2];
    const size_t windows = npy.n_items / (experts * layers);
    double *loads = calloc(windows * experts, sizeof *loads);
    assert_non_null(loads);
    for (int layer = 5; layer < 75; layer += 30) {
        for (size_t w = 0; w < windows; w++) {
            for (size_t e = 0; e < experts; e++)
                loads[w * experts + e] =
                    bl_npy_real(&npy, (w * layers + (size_t)layer) * experts + e);
        }
        bl_policy_case c = base();
        c.n_experts = (int)experts;
        c.n_ranks = 32;
        c.slots = 288;
        c.load = loads;
        c.n_windows = windows;
        c.window_s = 60;
        c.cost_s = 0;
        c.cost_per_move_s = 0.05;
        c.duration_s = 30;
        c.policy.rest_s = 60;
        const bl_policy_result ours = bl_policy_simulate(&c);
        c.mode = BL_SIM_NEVER;
        const bl_policy_result never = bl_policy_simulate(&c);
        c.mode = BL_SIM_EVERY;
        c.every = 1;
        const bl_policy_result every = bl_policy_simulate(&c);
        print_message("# layer %d, %zu windows: never %.1f s lost; every window %.1f s, %d moves, "
                      "%ld copies; policy %.1f s, %d moves, %ld copies\n",
                      layer, windows, never.lost_s, every.lost_s, every.moves, every.copies,
                      ours.lost_s, ours.moves, ours.copies);
        assert_true(ours.lost_s < never.lost_s);
        assert_true(ours.copies <= every.copies);
        assert_in_range(ours.rolled_back, 0, 1);
    }
    free(loads);
    bl_npy_free(&npy);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_move_that_does_not_pay),
        cmocka_unit_test(test_evidence_noise_and_rest),
        cmocka_unit_test(test_roll_back),
        cmocka_unit_test(test_roll_back_by_step_time),
        cmocka_unit_test(test_steady_load_moves_once),
        cmocka_unit_test(test_bursts_are_left_alone),
        cmocka_unit_test(test_fast_swings_are_not_chased),
        cmocka_unit_test(test_days_are_followed),
        cmocka_unit_test(test_real_windows),
    };
    return cmocka_run_group_tests_name("policy", tests, NULL, NULL);
}
