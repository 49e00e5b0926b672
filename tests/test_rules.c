/* Rules about nodes and fault domains: what can be kept, and that everybody keeps it. */
#include "tests/support/brute.h"
#include "tests/support/support.h"

#include "planner/exact.h"
#include "planner/solve.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const double six[] = {60, 50, 40, 30, 20, 10};

static bl_problem problem_of(const double *load, int n_experts, const int *slots, int n_ranks,
                             const bl_rules *rules) {
    return (bl_problem){.layer = 3,
                        .n_experts = n_experts,
                        .n_ranks = n_ranks,
                        .n_scenarios = 1,
                        .load = load,
                        .slots_per_rank = slots,
                        .max_moves = -1,
                        .rules = rules};
}

static void test_refusals_say_what_is_missing(void **state) {
    (void)state;
    bl_error err;
    const int slots[] = {3, 3, 3, 3}, domain[] = {0, 0, 1, 1};
    int least[] = {2, 2, 2, 2, 2, 2};
    const bl_rules rules = {NULL, domain, least};
    bl_problem problem = problem_of(six, 6, slots, 4, &rules);
    assert_ok(bl_problem_check(&problem, &err)); /* 12 slots, 6 in each domain */
    least[4] = 3;
    assert_fails(bl_problem_check(&problem, &err), BL_ERR_INFEASIBLE, "only 2 of them");
    assert_int_equal(err.expert, 4);
    least[4] = 2;
    const int few[] = {3, 3, 3, 2};
    problem.slots_per_rank = few;
    assert_fails(bl_problem_check(&problem, &err), BL_ERR_INFEASIBLE,
                 "need 12 copies there, and the slots take 11; 1 more");
    /* Rank 2 is dead: the domain of ranks 2 and 3 has three slots left. */
    const int dead[] = {5, 5, 0, 3};
    problem.slots_per_rank = dead;
    assert_fails(bl_problem_check(&problem, &err), BL_ERR_INFEASIBLE, "take 9; 3 more");

    uint64_t bits[] = {0x07, 0x07, 0x38, 0x38};
    const bl_holds may = {1, bits};
    const bl_rules nodes = {&may, NULL, NULL};
    problem = problem_of(six, 6, slots, 4, &nodes);
    assert_ok(bl_problem_check(&problem, &err));
    bits[3] = 0x30;
    assert_fails(bl_problem_check(&problem, &err), BL_ERR_INFEASIBLE,
                 "rank 3 has 3 slots, but may");
    bits[3] = 0x3c;
    bits[0] = bits[1] = 0x0e;
    assert_fails(bl_problem_check(&problem, &err), BL_ERR_INFEASIBLE, "only 0 of them");
    assert_int_equal(err.expert, 0);
}

static void test_check_names_the_expert(void **state) {
    (void)state;
    bl_error err;
    const int slots[] = {2, 2, 2, 2}, domain[] = {0, 0, 1, 1}, least[] = {1, 2, 1, 1};
    int begin[] = {0, 2, 4, 6, 8};
    int32_t expert[] = {0, 1, 1, 2, 3, 0, 2, 3};
    const bl_rules rules = {NULL, domain, least};
    const bl_problem problem = problem_of(six, 4, slots, 4, &rules);
    const bl_layer_placement pl = {3, 0, 4, 4, begin, expert};
    assert_fails(bl_rules_check(&problem, &pl, &err), BL_ERR_INFEASIBLE, "in 1 fault domains");
    assert_int_equal(err.expert, 1);
    expert[5] = 1;
    expert[2] = 0;
    assert_ok(bl_rules_check(&problem, &pl, &err));
}

/* Two nodes of two ranks, experts 0-2 on one, 3-5 on the other. By hand: node 0 carries 150, 75 on
 * each rank at best, and {60, 25 of 50} | {40, 25 of 50 } misses 75: the best is 85 | 65 over
 * copies of 1, or {60+20}|{50+20} = 80 | 70 over copies of 2, or 30+50 | 30+40. */
static void test_groups_by_hand(void **state) {
    (void)state;
    const int slots[] = {2, 2, 2, 2};
    uint64_t bits[] = {0x07, 0x07, 0x38, 0x38};
    const bl_holds may = {1, bits};
    const bl_rules rules = {&may, NULL, NULL};
    const bl_problem problem = problem_of(six, 6, slots, 4, &rules);
    bl_error err;
    for (int algorithm = BL_ALG_AUTO; algorithm <= BL_ALG_EXACT; algorithm++) {
        bl_solve_options options = BL_SOLVE_OPTIONS_INIT;
        options.algorithm = (bl_algorithm)algorithm;
        bl_solution found;
        assert_ok(bl_solve(&problem, &options, &found, &err));
        assert_true(fabs(found.score.max_over_mean * 210 / 4 - 80) < 1e-9);
        assert_true(found.bound.max_over_mean * 210 / 4 > 75 - 1e-9);
        bl_solution_free(&found);
    }
}

/* Every expert of a hot pair in both of two racks, from a placement that has both in one. */
static void test_repair_moves_little(void **state) {
    (void)state;
    bl_error err;
    const double load[] = {10, 10, 10, 10, 10, 10};
    const int slots[] = {2, 2, 2, 2}, domain[] = {0, 0, 1, 1}, least[] = {2, 1, 1, 1, 1, 1};
    int begin[] = {0, 2, 4, 6, 8};
    int32_t expert[] = {0, 1, 0, 2, 3, 4, 5, 4};
    const bl_layer_placement current = {3, 0, 4, 6, begin, expert};
    const bl_rules rules = {NULL, domain, least};
    bl_problem problem = problem_of(load, 6, slots, 4, &rules);
    problem.current = &current;
    problem.min_gain = 0.5;
    bl_solve_options options = BL_SOLVE_OPTIONS_INIT;
    options.algorithm = BL_ALG_SEARCH;
    bl_solution found;
    problem.max_moves = 1;
    assert_ok(bl_solve(&problem, &options, &found, &err));
    assert_int_equal(found.moves, 1);
    assert_ok(bl_rules_check(&problem, &found.placement, &err));
    bl_solution_free(&found);
    problem.max_moves = 0;
    assert_fails(bl_solve(&problem, &options, &found, &err), BL_ERR_INFEASIBLE, "takes 1 moves");
}

/* brute = exact >= bound, and the search keeps the rules, over thousands of instances of every
 * kind: copies, uneven slots, masks, groups, fault domains, old placements, limits on moves. */
static void test_against_brute_force(void **state) {
    (void)state;
    bl_error err;
    bl_rng rng;
    bl_rng_seed(&rng, 51);
    const int rounds = 3000;
    int solved = 0, infeasible = 0, ruled = 0, within = 0, compared = 0, missed = 0, proven = 0;
    double worst = 0.0;
    for (int round = 0; round < rounds; round++) {
        bl_random_problem r;
        bl_random_problem_make(&rng, 6, 4, 3, 2, &r);
        bl_random_rules(&rng, &r);
        const double best = bl_brute_best(&r.problem, NULL, NULL);
        bl_solve_options options = BL_SOLVE_OPTIONS_INIT;
        options.algorithm = BL_ALG_EXACT;
        bl_solution exact, search;
        const bl_status st = bl_solve(&r.problem, &options, &exact, &err);
        if (!isfinite(best)) {
            assert_int_equal(st, BL_ERR_INFEASIBLE);
            infeasible++;
            continue;
        }
        if (st == BL_ERR_INFEASIBLE) { /* only with slots left empty, or within few moves */
            assert_true(bl_problem_may_have_holes(&r.problem) || r.problem.max_moves >= 0);
            missed += bl_problem_check(&r.problem, NULL) >= 0;
            continue;
        }
        assert_int_equal(st, BL_OK);
        solved++;
        ruled += r.problem.rules != NULL;
        proven += exact.proven_by_milp;
        if (!bl_problem_is_idle(&r.problem) && fabs(exact.score.max_over_mean - best) > 2e-6 * best)
            fail_msg("round %d: exact %.9f, brute force %.9f", round, exact.score.max_over_mean,
                     best);
        assert_true(exact.bound.max_over_mean <= best * (1 + 1e-12));
        options.algorithm = BL_ALG_SEARCH;
        assert_ok(bl_solve(&r.problem, &options, &search, &err));
        assert_ok(bl_rules_check(&r.problem, &search.placement, &err));
        assert_true(search.score.max_over_mean >= best * (1 - 1e-12));
        if (r.problem.current == NULL && !bl_problem_is_idle(&r.problem)) {
            const double miss = search.score.max_over_mean / best - 1.0;
            compared++;
            within += miss <= 0.005;
            worst = fmax(worst, miss);
        }
        bl_solution_free(&exact);
        bl_solution_free(&search);
    }
    printf("# rules: %d solved (%d with rules, %d proven by GLPK), %d infeasible, %d not started; "
           "search within 0.5 %% in %d of %d, worst %.2f %%\n",
           solved, ruled, proven, infeasible, missed, within, compared, 100 * worst);
    assert_true(solved > 1900 && ruled > 600 && proven > 1100 && missed <= 2);
    assert_true(within >= compared - 2);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refusals_say_what_is_missing),
        cmocka_unit_test(test_check_names_the_expert),
        cmocka_unit_test(test_groups_by_hand),
        cmocka_unit_test(test_repair_moves_little),
        cmocka_unit_test(test_against_brute_force),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
