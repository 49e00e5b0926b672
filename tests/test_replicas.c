/* A budget of slots over layers: GLPK, dynamic programming and trying all agree. */
#include "tests/support/support.h"

#include "core/rng.h"
#include "planner/replicas.h"

#include <math.h>
#include <stdio.h>

enum { LAYERS = 40, RUNGS = 6, BUDGET = 120 };

typedef struct instance {
    bl_rung rungs[LAYERS][RUNGS];
    bl_ladder ladders[LAYERS];
    int n, budget;
} instance;

static void make(bl_rng *rng, int max_layers, instance *in) {
    in->n = 1 + (int)bl_rng_below(rng, (uint32_t)max_layers);
    in->budget = (int)bl_rng_below(rng, (uint32_t)(in->n * 3));
    for (int l = 0; l < in->n; l++) {
        const int n_rungs = 1 + (int)bl_rng_below(rng, RUNGS);
        int slots = 0;
        double gain = 0.0;
        for (int r = 0; r < n_rungs; r++) {
            in->rungs[l][r] = (bl_rung){slots, gain};
            slots += 1 + (int)bl_rng_below(rng, 2);
            gain += floor(100.0 * bl_rng_unit(rng)) - (bl_rng_below(rng, 8) == 0 ? 60.0 : 0.0);
        }
        in->ladders[l] = (bl_ladder){in->rungs[l], n_rungs};
    }
}

static double brute(const instance *in, int layer, int left) {
    if (layer == in->n)
        return 0.0;
    double best = -INFINITY;
    for (int r = 0; r < in->ladders[layer].n_rungs; r++) {
        const bl_rung *rung = &in->rungs[layer][r];
        if (rung->moves <= left)
            best = fmax(best, rung->gain + brute(in, layer + 1, left - rung->moves));
    }
    return best;
}

/* best[b]: the most that the layers so far gain with at most b slots. */
static double dynamic(const instance *in) {
    double best[BUDGET + 1] = {0.0};
    for (int l = 0; l < in->n; l++) {
        for (int b = in->budget; b >= 0; b--) {
            double most = -INFINITY;
            for (int r = 0; r < in->ladders[l].n_rungs; r++) {
                if (in->rungs[l][r].moves <= b)
                    most = fmax(most, in->rungs[l][r].gain + best[b - in->rungs[l][r].moves]);
            }
            best[b] = most;
        }
    }
    return best[in->budget];
}

static double chosen(const instance *in, double *climbed) {
    bl_error err;
    int choice[LAYERS], greedy[LAYERS];
    bool proven;
    assert_ok(bl_replicas_choose(in->ladders, in->n, in->budget, choice, &proven, &err));
    assert_ok(bl_budget_choose(in->ladders, in->n, in->budget, greedy, &err));
    assert_true(proven);
    double gain = 0.0;
    int slots = 0;
    *climbed = 0.0;
    for (int l = 0; l < in->n; l++) {
        gain += in->rungs[l][choice[l]].gain;
        slots += in->rungs[l][choice[l]].moves;
        *climbed += in->rungs[l][greedy[l]].gain;
    }
    assert_true(slots <= in->budget);
    return gain;
}

static void test_equals_brute_force(void **state) {
    (void)state;
    bl_rng rng;
    bl_rng_seed(&rng, 81);
    int better = 0;
    for (int round = 0; round < 400; round++) {
        instance in;
        make(&rng, 6, &in);
        double climbed;
        const double gain = chosen(&in, &climbed), best = brute(&in, 0, in.budget);
        assert_true(fabs(gain - best) < 1e-3);
        assert_true(fabs(dynamic(&in) - best) < 1e-9);
        better += gain > climbed + 1e-3;
    }
    printf("# replicas: GLPK better than the climb in %d of 400\n", better);
    assert_true(better > 20);
}

static void test_equals_dynamic_programming(void **state) {
    (void)state;
    bl_rng rng;
    bl_rng_seed(&rng, 82);
    for (int round = 0; round < 60; round++) {
        instance in;
        make(&rng, LAYERS, &in);
        double climbed;
        assert_true(fabs(chosen(&in, &climbed) - dynamic(&in)) < 1e-3);
    }
}

static void test_too_small_a_budget(void **state) {
    (void)state;
    bl_error err;
    const bl_rung rungs[] = {{3, 0.0}, {4, 1.0}};
    const bl_ladder ladder = {rungs, 2};
    int choice;
    bool proven;
    assert_fails(bl_replicas_choose(&ladder, 1, 2, &choice, &proven, &err), BL_ERR_INFEASIBLE, "3");
    assert_ok(bl_replicas_choose(&ladder, 1, 3, &choice, &proven, &err));
    assert_int_equal(choice, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_equals_brute_force),
        cmocka_unit_test(test_equals_dynamic_programming),
        cmocka_unit_test(test_too_small_a_budget),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
