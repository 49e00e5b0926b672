/* The evaluator against values computed by hand. */
#include "tests/support/support.h"

#include "planner/evaluate.h"
#include "planner/shares.h"

#include <math.h>
#include <string.h>

#define NEAR(a, b) assert_true(fabs((a) - (b)) <= 1e-12 * (1.0 + fabs(b)))

/* Ranks of at most 4 slots each, experts[] through the ranks. */
static bl_layer_placement place(int n_ranks, int *begin, int n_experts, int32_t *expert) {
    return (bl_layer_placement){
        .layer = 3, .n_ranks = n_ranks, .n_experts = n_experts, .begin = begin, .expert = expert};
}

static void test_even(void **state) {
    (void)state;
    bl_error err;
    /* rank 0: experts 0, 1; rank 1: experts 0, 2; expert 0 counts half on each. */
    const double load[] = {8, 1, 3};
    const int slots[] = {2, 2};
    int begin[] = {0, 2, 4};
    int32_t expert[] = {0, 1, 0, 2};
    const bl_layer_placement pl = place(2, begin, 3, expert);
    const bl_problem problem = {.n_experts = 3,
                                .n_ranks = 2,
                                .n_scenarios = 1,
                                .load = load,
                                .slots_per_rank = slots,
                                .max_moves = -1};
    bl_score score;
    assert_ok(bl_evaluate(&problem, &pl, &score, &err));
    NEAR(score.max_over_mean, 7.0 / 6.0);
    NEAR(score.worst, 7.0 / 6.0);
}

static void test_scenarios_weigh_by_load(void **state) {
    (void)state;
    bl_error err;
    /* No copies: loads (3, 1) then (10, 30): imbalances 1.5 and 1.5; then a level one of weight 4.
     */
    const double load[] = {3, 1, 10, 30, 2, 2, 0, 0};
    const int slots[] = {1, 1};
    int begin[] = {0, 1, 2};
    int32_t expert[] = {0, 1};
    const bl_layer_placement pl = place(2, begin, 2, expert);
    const bl_problem problem = {.n_experts = 2,
                                .n_ranks = 2,
                                .n_scenarios = 4, /* the last one is idle and weighs nothing */
                                .load = load,
                                .slots_per_rank = slots,
                                .max_moves = -1};
    bl_score score;
    assert_ok(bl_evaluate(&problem, &pl, &score, &err));
    NEAR(score.max_over_mean, (4 * 1.5 + 40 * 1.5 + 4 * 1.0) / 48.0);
    NEAR(score.worst, 1.5);
}

static void test_masked_rank_and_hole(void **state) {
    (void)state;
    bl_error err;
    /* Rank 1 is masked: the mean is over ranks 0 and 2. Rank 2 has a hole. */
    const double load[] = {6, 2};
    const int slots[] = {1, 0, 2};
    int begin[] = {0, 1, 1, 3};
    int32_t expert[] = {0, 1, BL_NO_EXPERT};
    const bl_layer_placement pl = place(3, begin, 2, expert);
    const bl_problem problem = {.n_experts = 2,
                                .n_ranks = 3,
                                .n_scenarios = 1,
                                .load = load,
                                .slots_per_rank = slots,
                                .max_moves = -1};
    bl_score score;
    assert_ok(bl_evaluate(&problem, &pl, &score, &err));
    NEAR(score.max_over_mean, 1.5);
}

static void test_zero_load(void **state) {
    (void)state;
    bl_error err;
    const double load[] = {0, 0};
    const int slots[] = {1, 1};
    int begin[] = {0, 1, 2};
    int32_t expert[] = {0, 1};
    const bl_layer_placement pl = place(2, begin, 2, expert);
    const bl_problem problem = {.n_experts = 2,
                                .n_ranks = 2,
                                .n_scenarios = 1,
                                .load = load,
                                .slots_per_rank = slots,
                                .max_moves = -1};
    bl_score score;
    assert_ok(bl_evaluate(&problem, &pl, &score, &err));
    NEAR(score.max_over_mean, 1.0);
    NEAR(score.worst, 1.0);
    const double none[] = {0, 0}, some[] = {3, 1};
    NEAR(bl_imbalance(none, slots, 2), 1.0);
    NEAR(bl_imbalance(some, slots, 2), 1.5);
}

static void test_given_shares(void **state) {
    (void)state;
    bl_error err;
    const double load[] = {8, 1, 3}, share[] = {0.625, 1, 0.375, 1};
    const int slots[] = {2, 2};
    int begin[] = {0, 2, 4};
    int32_t expert[] = {0, 1, 0, 2};
    const bl_layer_placement pl = place(2, begin, 3, expert);
    bl_problem problem = {.n_experts = 3,
                          .n_ranks = 2,
                          .n_scenarios = 1,
                          .load = load,
                          .slots_per_rank = slots,
                          .max_moves = -1};
    bl_score score;
    assert_ok(bl_evaluate_shares(&problem, &pl, share, &score, &err));
    NEAR(score.max_over_mean, 1.0);
    /* Levelling finds exactly these shares. */
    double found[4];
    assert_ok(bl_shares_level(&pl, load, found, &err));
    for (int slot = 0; slot < 4; slot++)
        NEAR(found[slot], share[slot]);
    problem.rule = BL_RULE_FRACTIONS;
    assert_ok(bl_evaluate(&problem, &pl, &score, &err));
    NEAR(score.max_over_mean, 1.0);
}

static void test_levelling_reaches_the_cut(void **state) {
    (void)state;
    bl_error err;
    /* Expert 0 on ranks 0, 1; expert 1 on ranks 1, 2; expert 2 alone on rank 3. Ranks 0..2 can
     * level at (9 + 3) / 3 = 4 only by a chain: 4 of expert 0 on rank 0 needs 5 on rank 1. What
     * cannot leave ranks 0 and 1 is 9: level 4.5 there, 3 on rank 2. */
    const double load[] = {9, 3, 1};
    int begin[] = {0, 1, 3, 4, 5};
    int32_t expert[] = {0, 0, 1, 1, 2};
    const bl_layer_placement pl = place(4, begin, 3, expert);
    double share[5], rank_load[4];
    assert_ok(bl_shares_level(&pl, load, share, &err));
    bl_rank_loads(&pl, share, load, rank_load);
    assert_true(fabs(rank_load[0] - 4.5) < 1e-6);
    assert_true(fabs(rank_load[1] - 4.5) < 1e-6);
    assert_true(fabs(rank_load[2] - 3.0) < 1e-6);
    NEAR(rank_load[3], 1.0);
}

static void test_refusals(void **state) {
    (void)state;
    bl_error err;
    const double load[] = {1, 2};
    const int slots[] = {1, 1};
    int begin[] = {0, 1, 2};
    int32_t expert[] = {0, 1};
    const bl_layer_placement pl = place(2, begin, 2, expert);
    bl_problem problem = {.n_experts = 2,
                          .n_ranks = 2,
                          .n_scenarios = 1,
                          .load = load,
                          .slots_per_rank = slots,
                          .rule = BL_RULE_NEAREST,
                          .max_moves = -1};
    bl_score score;
    assert_fails(bl_evaluate(&problem, &pl, &score, &err), BL_ERR_UNSUPPORTED, "nearest");
    problem.rule = BL_RULE_EVEN;
    problem.n_experts = 3;
    assert_fails(bl_evaluate(&problem, &pl, &score, &err), BL_ERR_SHAPE, "3 and 2");
}

static void test_problem_check(void **state) {
    (void)state;
    bl_error err;
    double load[] = {1, 2, 3, 4};
    int slots[] = {2, 2};
    bl_problem problem = {.layer = 17,
                          .n_experts = 4,
                          .n_ranks = 2,
                          .n_scenarios = 1,
                          .load = load,
                          .slots_per_rank = slots,
                          .max_moves = -1};
    assert_ok(bl_problem_check(&problem, &err));
    slots[1] = 1;
    assert_fails(bl_problem_check(&problem, &err), BL_ERR_INFEASIBLE,
                 "1 more are needed, 2 on every");
    assert_int_equal(err.layer, 17);
    slots[1] = 5;
    assert_fails(bl_problem_check(&problem, &err), BL_ERR_INFEASIBLE, "rank 1 has 5 slots");
    slots[1] = -1;
    assert_fails(bl_problem_check(&problem, &err), BL_ERR_RANGE, "rank 1");
    slots[0] = slots[1] = 0;
    assert_fails(bl_problem_check(&problem, &err), BL_ERR_INFEASIBLE, "no rank");
    slots[0] = slots[1] = 2;
    const double bad[] = {-1, NAN, INFINITY, 1e200};
    for (int i = 0; i < 4; i++) {
        load[2] = bad[i];
        assert_fails(bl_problem_check(&problem, &err), BL_ERR_RANGE, "not a count");
        assert_int_equal(err.expert, 2);
    }
    load[2] = 3;
    problem.max_moves = -2;
    assert_fails(bl_problem_check(&problem, &err), BL_ERR_RANGE, "max_moves");
    problem.max_moves = -1;
    problem.min_gain = NAN;
    assert_fails(bl_problem_check(&problem, &err), BL_ERR_RANGE, "min_gain");
    problem.min_gain = 0;
    problem.n_scenarios = 0;
    assert_fails(bl_problem_check(&problem, &err), BL_ERR_SHAPE, "0 scenarios");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_even),
        cmocka_unit_test(test_scenarios_weigh_by_load),
        cmocka_unit_test(test_masked_rank_and_hole),
        cmocka_unit_test(test_zero_load),
        cmocka_unit_test(test_given_shares),
        cmocka_unit_test(test_levelling_reaches_the_cut),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_problem_check),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
