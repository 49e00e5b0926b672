/* Two ranks laid out anew by GLPK: optimal where two ranks are all there is, never worse elsewhere. */
#include "tests/support/brute.h"
#include "tests/support/support.h"

#include "planner/greedy.h"
#include "planner/neighbour.h"
#include "planner/solve.h"

#include <math.h>
#include <stdio.h>

/* On two ranks a pair is the whole problem. */
static void test_two_ranks_are_optimal(void **state) {
    (void)state;
    bl_error err;
    bl_rng rng;
    bl_rng_seed(&rng, 71);
    int asked = 0, improved = 0;
    for (int round = 0; round < 300; round++) {
        bl_random_problem r;
        bl_random_problem_make(&rng, 10, 2, 8, 3, &r);
        if (bl_problem_active_ranks(&r.problem) < 2 || bl_problem_is_idle(&r.problem))
            continue;
        bl_layer_placement pl = {0};
        assert_ok(bl_greedy(&r.problem, &pl, &err));
        bl_score before, after;
        assert_ok(bl_evaluate(&r.problem, &pl, &before, &err));
        const bl_neighbour_options options = {.pairs = 8};
        bl_neighbour_result result;
        assert_ok(bl_neighbours(&r.problem, &options, &pl, &result, &err));
        assert_ok(bl_layer_placement_check(&pl, NULL, &err));
        assert_ok(bl_evaluate(&r.problem, &pl, &after, &err));
        const double best = bl_brute_best(&r.problem, NULL, NULL);
        if (fabs(after.max_over_mean - best) > 3e-6 * best)
            fail_msg("round %d: %.9f, brute force %.9f", round, after.max_over_mean, best);
        assert_int_equal(result.proven, result.asked);
        asked += result.asked;
        improved += after.max_over_mean < before.max_over_mean * (1 - 1e-9);
        bl_layer_placement_free(&pl);
    }
    printf("# pairs on two ranks: %d asked, greedy improved %d times\n", asked, improved);
    assert_true(improved > 50);
}

static double cost(const bl_problem *problem, const bl_layer_placement *pl, double price) {
    bl_error err;
    bl_score score;
    assert_ok(bl_evaluate(problem, pl, &score, &err));
    return score.max_over_mean +
           (problem->current != NULL ? price * bl_layer_moves(problem->current, pl) : 0.0);
}

/* Rules and moves are kept, and cost never rises, whatever the search left. */
static void test_never_worse(void **state) {
    (void)state;
    bl_error err;
    bl_rng rng;
    bl_rng_seed(&rng, 72);
    int improved = 0, tried = 0;
    for (int round = 0; round < 600; round++) {
        bl_random_problem r;
        bl_random_problem_make(&rng, 12, 5, 5, 4, &r);
        bl_random_rules(&rng, &r);
        bl_solve_options options = BL_SOLVE_OPTIONS_INIT;
        options.algorithm = BL_ALG_SEARCH;
        options.iterations = 1; /* leaves something to improve */
        bl_solution found;
        if (bl_problem_is_idle(&r.problem) || bl_solve(&r.problem, &options, &found, &err) < 0)
            continue;
        const double price = 1e-3, before = cost(&r.problem, &found.placement, price);
        const bl_neighbour_options pairs = {
            .pairs = 6, .max_nodes = 300, .target = found.bound.max_over_mean, .move_price = price};
        bl_neighbour_result result;
        assert_ok(bl_neighbours(&r.problem, &pairs, &found.placement, &result, &err));
        assert_ok(bl_layer_placement_check(&found.placement, NULL, &err));
        assert_ok(bl_rules_check(&r.problem, &found.placement, &err));
        const double after = cost(&r.problem, &found.placement, price);
        assert_true(after <= before * (1 + 1e-12));
        assert_true((result.improved > 0) == (after < before * (1 - 1e-9)));
        if (r.problem.current != NULL && r.problem.max_moves >= 0)
            assert_true(bl_layer_moves(&r.current, &found.placement) <= r.problem.max_moves);
        tried++;
        improved += result.improved > 0;
        bl_solution_free(&found);
    }
    printf("# pairs: %d of %d poor placements improved\n", improved, tried);
    assert_true(tried > 300 && improved > 100);
}

/* Several load vectors at once are where the search leaves most. The same answer every time. */
static void test_improves_what_the_search_leaves(void **state) {
    (void)state;
    bl_error err;
    static double load[4 * 32];
    int slots[8], improved = 0;
    for (int rank = 0; rank < 8; rank++)
        slots[rank] = 5;
    bl_rng rng;
    bl_rng_seed(&rng, 73);
    for (int round = 0; round < 5; round++) {
        for (int expert = 0; expert < 32; expert++) {
            const double base = pow(1.0 - bl_rng_unit(&rng), -0.7);
            for (int s = 0; s < 4; s++)
                load[s * 32 + expert] = floor(1000.0 * base * (0.7 + 0.6 * bl_rng_unit(&rng)));
        }
        const bl_problem problem = {.n_experts = 32,
                                    .n_ranks = 8,
                                    .n_scenarios = 4,
                                    .load = load,
                                    .slots_per_rank = slots,
                                    .max_moves = -1,
                                    .min_gain = BL_MIN_GAIN_DEFAULT};
        bl_solve_options options = BL_SOLVE_OPTIONS_INIT;
        bl_solution search, automatic, again;
        options.algorithm = BL_ALG_SEARCH;
        assert_ok(bl_solve(&problem, &options, &search, &err));
        options.algorithm = BL_ALG_AUTO;
        assert_ok(bl_solve(&problem, &options, &automatic, &err));
        assert_ok(bl_solve(&problem, &options, &again, &err));
        assert_true(automatic.score.max_over_mean <= search.score.max_over_mean);
        assert_true(automatic.phases.searched == search.score.max_over_mean);
        assert_memory_equal(automatic.placement.expert, again.placement.expert,
                            (size_t)bl_layer_n_slots(&again.placement) * sizeof(int32_t));
        improved += automatic.improved_by_milp;
        bl_solution_free(&search);
        bl_solution_free(&automatic);
        bl_solution_free(&again);
    }
    printf("# improved %d of 5\n", improved);
    assert_true(improved >= 2);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_two_ranks_are_optimal),
        cmocka_unit_test(test_never_worse),
        cmocka_unit_test(test_improves_what_the_search_leaves),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
