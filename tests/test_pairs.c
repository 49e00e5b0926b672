/* Two slots per rank: pairing, and how many copies there are to pair. */
#include "tests/support/brute.h"
#include "tests/support/support.h"

#include "planner/bounds.h"
#include "planner/evaluate.h"
#include "planner/greedy.h"
#include "planner/pairs.h"

#include <math.h>

static void make(bl_rng *rng, int n_experts, int n_ranks, bl_random_problem *r) {
    for (int expert = 0; expert < n_experts; expert++)
        r->load[expert] = floor(10.0 / (0.05 + bl_rng_unit(rng)));
    for (int rank = 0; rank < n_ranks; rank++)
        r->slots[rank] = 2;
    r->problem = (bl_problem){.n_experts = n_experts,
                              .n_ranks = n_ranks,
                              .n_scenarios = 1,
                              .load = r->load,
                              .slots_per_rank = r->slots,
                              .max_moves = -1};
}

static void test_applies(void **state) {
    (void)state;
    bl_rng rng;
    bl_random_problem r;
    bl_rng_seed(&rng, 1);
    make(&rng, 6, 4, &r);
    assert_true(bl_pairs_applies(&r.problem));
    r.slots[1] = 0;                             /* masked */
    assert_false(bl_pairs_applies(&r.problem)); /* no spare slot left to choose for */
    r.slots[1] = 3;
    assert_false(bl_pairs_applies(&r.problem));
}

/* Against brute force. The fold does not see that two copies of one expert meet in its middle, which
 * packing then mends; with so few experts that happens often. */
static void test_against_brute_force(void **state) {
    (void)state;
    bl_error err;
    bl_rng rng;
    bl_rng_seed(&rng, 2);
    int optimal = 0;
    double worst = 0.0;
    const int rounds = 200;
    for (int round = 0; round < rounds; round++) {
        bl_random_problem r;
        make(&rng, 5 + round % 3, 4 + round % 2, &r);
        const double best = bl_brute_best(&r.problem, NULL, NULL);
        const double unit = bl_problem_total_load(&r.problem) / r.problem.n_ranks;
        bl_layer_placement pl;
        bl_score score;
        assert_ok(bl_pairs(&r.problem, unit, 2000, &rng, &pl, &err));
        assert_ok(bl_layer_placement_check(&pl, NULL, &err));
        assert_ok(bl_evaluate(&r.problem, &pl, &score, &err));
        const double off = score.max_over_mean / best - 1.0;
        assert_true(off > -1e-12);
        optimal += off < 1e-9;
        worst = fmax(worst, off);
        bl_layer_placement_free(&pl);
    }
    printf("# pairs: optimum in %d of %d, worst %.2f %%\n", optimal, rounds, worst * 100);
    assert_true(optimal >= rounds * 3 / 4);
}

/* 256 experts, 32 spare slots: clearly below greedy, and the bound clearly above the mean. */
static void test_large(void **state) {
    (void)state;
    bl_error err;
    bl_rng rng;
    bl_rng_seed(&rng, 3);
    static double load[256];
    static int slots[144];
    double greedy_gap = 0.0, pairs_gap = 0.0;
    for (int rank = 0; rank < 144; rank++)
        slots[rank] = 2;
    for (int round = 0; round < 5; round++) {
        for (int expert = 0; expert < 256; expert++)
            load[expert] = 1000.0 * exp(2.0 * (bl_rng_unit(&rng) + bl_rng_unit(&rng) - 1.0));
        const bl_problem problem = {.n_experts = 256,
                                    .n_ranks = 144,
                                    .n_scenarios = 1,
                                    .load = load,
                                    .slots_per_rank = slots,
                                    .max_moves = -1};
        bl_bound bound;
        bl_score greedy, pairs;
        bl_layer_placement pl;
        const double unit = bl_problem_total_load(&problem) / 144;
        assert_ok(bl_bound_of(&problem, &bound, &err));
        assert_ok(bl_greedy(&problem, &pl, &err));
        assert_ok(bl_evaluate(&problem, &pl, &greedy, &err));
        bl_layer_placement_free(&pl);
        assert_ok(bl_pairs(&problem, bound.max_over_mean * unit, 3000, &rng, &pl, &err));
        assert_ok(bl_layer_placement_check(&pl, NULL, &err));
        assert_ok(bl_evaluate(&problem, &pl, &pairs, &err));
        bl_layer_placement_free(&pl);
        assert_true(pairs.max_over_mean >= bound.max_over_mean);
        greedy_gap += greedy.max_over_mean / bound.max_over_mean - 1.0;
        pairs_gap += pairs.max_over_mean / bound.max_over_mean - 1.0;
    }
    printf("# gaps of greedy and pairs: %.2f %%, %.2f %%\n", greedy_gap * 20, pairs_gap * 20);
    assert_true(pairs_gap < greedy_gap * 0.75 && pairs_gap < 5 * 0.015);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_applies),
        cmocka_unit_test(test_against_brute_force),
        cmocka_unit_test(test_large),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
