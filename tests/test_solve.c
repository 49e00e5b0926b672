/* From problem to placement: the cases that greedy gets wrong, anchoring, limits, refusals. */
#include "tests/support/brute.h"
#include "tests/support/support.h"

#include "core/mem.h"
#include "planner/solve.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void solve(const bl_problem *problem, bl_algorithm algorithm, bl_solution *out) {
    bl_error err;
    bl_solve_options options = BL_SOLVE_OPTIONS_INIT;
    options.algorithm = algorithm;
    assert_ok(bl_solve(problem, &options, out, &err));
    assert_ok(bl_layer_placement_check(&out->placement, NULL, &err));
    for (int slot = 0; slot < bl_layer_n_slots(&out->placement); slot++)
        assert_true(out->placement.expert[slot] != BL_NO_EXPERT);
    assert_true(out->score.max_over_mean >= out->bound.max_over_mean);
}

static double peak(const bl_solution *solution, const bl_problem *problem) {
    double total = 0.0;
    for (int expert = 0; expert < problem->n_experts; expert++)
        total += problem->load[expert];
    return solution->score.max_over_mean * total / bl_problem_active_ranks(problem);
}

static bl_problem problem_of(const double *load, int n_experts, const int *slots, int n_ranks) {
    return (bl_problem){.layer = 3,
                        .n_experts = n_experts,
                        .n_ranks = n_ranks,
                        .n_scenarios = 1,
                        .load = load,
                        .slots_per_rank = slots,
                        .rule = BL_RULE_EVEN,
                        .max_moves = -1,
                        .min_gain = BL_MIN_GAIN_DEFAULT};
}

/* Cases that greedy gets wrong; the optima are from brute force. */
static void test_greedy_gets_wrong(void **state) {
    (void)state;
    static const struct {
        double load[8];
        int n_experts, n_ranks, slots;
        double greedy, optimum;
    } cases[] = {
        {{8, 8, 8, 8}, 4, 4, 2, 8, 8},
        {{16, 12, 11, 15, 0}, 5, 2, 3, 31, 27},
        {{600, 560, 120, 120, 20, 10, 10, 10}, 8, 8, 2, 232, 590.0 / 3.0},
    };
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        int slots[8];
        for (int rank = 0; rank < cases[c].n_ranks; rank++)
            slots[rank] = cases[c].slots;
        const bl_problem problem =
            problem_of(cases[c].load, cases[c].n_experts, slots, cases[c].n_ranks);
        bl_solution greedy, search;
        solve(&problem, BL_ALG_GREEDY, &greedy);
        solve(&problem, BL_ALG_SEARCH, &search);
        assert_true(fabs(peak(&greedy, &problem) - cases[c].greedy) < 1e-9);
        assert_true(fabs(peak(&search, &problem) - cases[c].optimum) < 1e-9);
        bl_solution_free(&greedy);
        bl_solution_free(&search);
    }
}

/* Ranks {0, 2, 4} and {1, 3, 4}: the cold expert is the one with two copies. */
static void test_the_cold_expert_is_replicated(void **state) {
    (void)state;
    const double load[] = {16, 12, 11, 15, 0};
    const int slots[] = {3, 3};
    const bl_problem problem = problem_of(load, 5, slots, 2);
    bl_solution found;
    solve(&problem, BL_ALG_AUTO, &found);
    for (int rank = 0; rank < 2; rank++)
        assert_true(bl_layer_find(&found.placement, rank, 4) >= 0);
    assert_int_equal(bl_layer_find(&found.placement, 0, 0) >= 0,
                     bl_layer_find(&found.placement, 0, 2) >= 0);
    bl_solution_free(&found);
}

static void test_idle_layer_stays(void **state) {
    (void)state;
    const double load[8] = {0};
    const int slots[] = {4, 4, 4, 4};
    bl_problem problem = problem_of(load, 8, slots, 4);
    bl_solution first, second;
    solve(&problem, BL_ALG_CONTIGUOUS, &first);
    for (int algorithm = BL_ALG_AUTO; algorithm <= BL_ALG_CONTIGUOUS; algorithm++) {
        solve(&problem, (bl_algorithm)algorithm, &second);
        assert_memory_equal(first.placement.expert, second.placement.expert,
                            16 * sizeof *first.placement.expert);
        assert_true(second.score.max_over_mean == 1.0 && second.gap == 0.0);
        bl_solution_free(&second);
    }
    /* Another placement in force is kept, whatever it is. */
    const int32_t other[] = {7, 6, 5, 4, 3, 2, 1, 0, 0, 1, 2, 3, 4, 5, 6, 7};
    memcpy(first.placement.expert, other, sizeof other);
    problem.current = &first.placement;
    for (int algorithm = BL_ALG_AUTO; algorithm <= BL_ALG_CONTIGUOUS; algorithm++) {
        solve(&problem, (bl_algorithm)algorithm, &second);
        assert_memory_equal(second.placement.expert, other, sizeof other);
        assert_int_equal(second.moves, 0);
        assert_true(second.kept_current);
        bl_solution_free(&second);
    }
    bl_solution_free(&first);
}

static void test_refusals(void **state) {
    (void)state;
    bl_error err;
    const double load[] = {1, 2, 3};
    const int slots[] = {1, 1};
    bl_problem problem = problem_of(load, 3, slots, 2);
    bl_solve_options options = BL_SOLVE_OPTIONS_INIT;
    bl_solution found;
    assert_fails(bl_solve(&problem, &options, &found, &err), BL_ERR_INFEASIBLE, "1 more");
    const int enough[] = {2, 2};
    problem.slots_per_rank = enough;
    problem.rule = BL_RULE_NEAREST;
    assert_fails(bl_solve(&problem, &options, &found, &err), BL_ERR_UNSUPPORTED, "nearest");
    options.algorithm = (bl_algorithm)17;
    problem.rule = BL_RULE_EVEN;
    assert_fails(bl_solve(&problem, &options, &found, &err), BL_ERR_USAGE, "17");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_greedy_gets_wrong),
        cmocka_unit_test(test_the_cold_expert_is_replicated),
        cmocka_unit_test(test_idle_layer_stays),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
