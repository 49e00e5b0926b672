/* One budget over many layers, against brute force. */
#include "tests/support/support.h"

#include "core/rng.h"
#include "planner/budget.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { LADDERS = 4, RUNGS = 4 };

static bl_rung rungs[LADDERS][RUNGS];
static bl_ladder ladders[LADDERS];

/* Moves ascend from `least`; gains ascend or not. Concave ladders gain less with every rung. */
static void make_ladders(bl_rng *rng, bool concave, int least) {
    for (int i = 0; i < LADDERS; i++) {
        rungs[i][0] = (bl_rung){least, 0.0};
        for (int r = 1; r < RUNGS; r++) {
            const double gain =
                concave ? 16.0 / (1 << r) * bl_rng_unit(rng) : bl_rng_unit(rng) * 10.0 - 2.0;
            rungs[i][r].moves =
                rungs[i][r - 1].moves + (concave ? 1 : 1 + (int)bl_rng_below(rng, 5));
            rungs[i][r].gain = rungs[i][r - 1].gain + gain;
        }
        for (int r = 2; concave && r < RUNGS; r++) { /* sort the steps downwards */
            const double step = rungs[i][r - 1].gain - rungs[i][r - 2].gain;
            if (rungs[i][r].gain - rungs[i][r - 1].gain > step)
                rungs[i][r].gain = rungs[i][r - 1].gain + step;
        }
        ladders[i] = (bl_ladder){rungs[i], RUNGS};
    }
}

static double value(const int *choice, int64_t *moves) {
    double gain = 0.0;
    *moves = 0;
    for (int i = 0; i < LADDERS; i++) {
        gain += rungs[i][choice[i]].gain;
        *moves += rungs[i][choice[i]].moves;
    }
    return gain;
}

static double brute_force(int64_t budget) {
    double best = -1e300;
    for (int code = 0; code < RUNGS * RUNGS * RUNGS * RUNGS; code++) {
        int choice[LADDERS];
        int64_t moves;
        for (int i = 0, rest = code; i < LADDERS; i++, rest /= RUNGS)
            choice[i] = rest % RUNGS;
        const double gain = value(choice, &moves);
        if (moves <= budget && gain > best)
            best = gain;
    }
    return best;
}

/* Single moves of falling gain: the greedy climb is exact. */
static void concave_ladders_are_solved_exactly(void **state) {
    (void)state;
    bl_error err;
    bl_rng rng;
    bl_rng_seed(&rng, 5);
    for (int trial = 0; trial < 200; trial++) {
        make_ladders(&rng, true, 0);
        for (int64_t budget = 0; budget <= 13; budget++) {
            int choice[LADDERS];
            int64_t moves;
            assert_ok(bl_budget_choose(ladders, LADDERS, budget, choice, &err));
            const double gain = value(choice, &moves), best = brute_force(budget);
            assert_true(moves <= budget);
            assert_true(gain <= best + 1e-9 && gain >= best - 1e-9);
        }
    }
}

/* Any ladders: within the budget, never worse than staying, and on average close to the best. */
static void any_ladders_come_close(void **state) {
    (void)state;
    bl_error err;
    bl_rng rng;
    double got = 0.0, possible = 0.0;
    bl_rng_seed(&rng, 6);
    for (int trial = 0; trial < 200; trial++) {
        make_ladders(&rng, false, 2);
        for (int64_t budget = 8; budget <= 60; budget += 4) {
            int choice[LADDERS];
            int64_t moves;
            assert_ok(bl_budget_choose(ladders, LADDERS, budget, choice, &err));
            const double gain = value(choice, &moves), best = brute_force(budget);
            assert_true(moves <= budget);
            assert_true(gain >= 0.0 && gain <= best + 1e-9);
            if (budget == 60) /* room for everything */
                assert_true(gain >= best - 1e-9);
            got += gain;
            possible += best;
        }
    }
    assert_true(got >= 0.97 * possible);
}

static void what_must_be_must_fit(void **state) {
    (void)state;
    bl_error err;
    bl_rng rng;
    int choice[LADDERS];
    bl_rng_seed(&rng, 7);
    make_ladders(&rng, false, 3);
    assert_fails(bl_budget_choose(ladders, LADDERS, 11, choice, &err), BL_ERR_INFEASIBLE,
                 "need 12 moves");
    assert_ok(bl_budget_choose(ladders, LADDERS, 12, choice, &err));
    for (int i = 0; i < LADDERS; i++)
        assert_int_equal(choice[i], 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(concave_ladders_are_solved_exactly),
        cmocka_unit_test(any_ladders_come_close),
        cmocka_unit_test(what_must_be_must_fit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
