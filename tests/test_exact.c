/* The MILP door and the exact plans behind it, against brute force. */
#include "tests/support/brute.h"
#include "tests/support/support.h"

#include "planner/exact.h"
#include "planner/solve.h"

#include <math.h>
#include <pthread.h>
#include <string.h>

/* max 5a + 4b + 3c, 2a + 3b + c <= 5, 4a + b + 2c <= 11, 3a + 4b + 2c <= 8, binaries: a, b -> 9. */
static void knapsack(bl_milp *milp, double most) {
    bl_error err;
    static const double value[] = {5, 4, 3};
    static const double weight[3][3] = {{2, 3, 1}, {4, 1, 2}, {3, 4, 2}};
    static const double limit[] = {5, 11, 8};
    int column;
    *milp = (bl_milp){0};
    for (int j = 0; j < 3; j++)
        assert_ok(bl_milp_add_column(milp, (bl_milp_column){0, 1, -value[j], true}, &column, &err));
    for (int i = 0; i < 3; i++) {
        assert_ok(bl_milp_add_row(milp, -INFINITY, limit[i], &err));
        for (int j = 0; j < 3; j++)
            assert_ok(bl_milp_add_entry(milp, j, weight[i][j], &err));
    }
    assert_ok(bl_milp_add_row(milp, -INFINITY, most, &err));
    for (int j = 0; j < 3; j++)
        assert_ok(bl_milp_add_entry(milp, j, -value[j], &err));
}

static void test_door(void **state) {
    (void)state;
    bl_error err;
    bl_milp milp;
    bl_milp_result result;
    double x[4];
    const bl_milp_limits none = {0, 0.0};
    assert_string_equal(bl_milp_solver(), "GLPK");

    knapsack(&milp, INFINITY);
    assert_ok(bl_milp_solve(&milp, &none, x, &result, &err));
    assert_int_equal(result.outcome, BL_MILP_OPTIMAL);
    assert_true(fabs(result.objective + 9) < 1e-9 && fabs(result.bound + 9) < 1e-9);
    assert_true(x[0] == 1.0 && x[1] == 1.0 && x[2] == 0.0);
    bl_milp_free(&milp);

    knapsack(&milp, -10); /* better than 9 does not exist */
    assert_ok(bl_milp_solve(&milp, &none, x, &result, &err));
    assert_int_equal(result.outcome, BL_MILP_INFEASIBLE);
    bl_milp_free(&milp);

    /* A continuous column and an equality: minimise t, t >= 3 a, a = 1. */
    milp = (bl_milp){0};
    int t, a;
    assert_ok(bl_milp_add_column(&milp, (bl_milp_column){0, INFINITY, 1, false}, &t, &err));
    assert_ok(bl_milp_add_column(&milp, (bl_milp_column){0, 1, 0, true}, &a, &err));
    assert_ok(bl_milp_add_row(&milp, 0, INFINITY, &err));
    assert_ok(bl_milp_add_entry(&milp, t, 1, &err));
    assert_ok(bl_milp_add_entry(&milp, a, -3, &err));
    assert_ok(bl_milp_add_row(&milp, 1, 1, &err));
    assert_ok(bl_milp_add_entry(&milp, a, 1, &err));
    assert_ok(bl_milp_solve(&milp, &none, x, &result, &err));
    assert_int_equal(result.outcome, BL_MILP_OPTIMAL);
    assert_true(fabs(x[t] - 3) < 1e-9);
    bl_milp_free(&milp);
}

/* GLPK aborts the process on a bad call unless it is caught; the next call must work. */
static void test_faults_are_caught(void **state) {
    (void)state;
    bl_error err;
    bl_milp milp;
    bl_milp_result result;
    double x[3];
    const bl_milp_limits none = {0, 0.0};
    for (int round = 0; round < 3; round++) {
        knapsack(&milp, INFINITY);
        assert_ok(bl_milp_add_entry(&milp, 0, 1, &err)); /* column 0 twice in one row */
        assert_fails(bl_milp_solve(&milp, &none, x, &result, &err), BL_ERR_SOLVER, "GLPK");
        bl_milp_free(&milp);
        knapsack(&milp, INFINITY);
        assert_ok(bl_milp_solve(&milp, &none, x, &result, &err));
        assert_int_equal(result.outcome, BL_MILP_OPTIMAL);
        bl_milp_free(&milp);
    }
}

static void solve(const bl_problem *problem, bl_algorithm algorithm, bl_solution *out) {
    bl_error err;
    bl_solve_options options = BL_SOLVE_OPTIONS_INIT;
    options.algorithm = algorithm;
    assert_ok(bl_solve(problem, &options, out, &err));
    assert_ok(bl_layer_placement_check(&out->placement, NULL, &err));
}

/* Optimum 196.667 with copies 4, 3, 1, 3, 1, 1, 1, 2 (or others of the same height): greedy 232. */
static void test_proves_what_greedy_gets_wrong(void **state) {
    (void)state;
    static const struct {
        double load[8];
        int n_experts, n_ranks, slots;
        double optimum;
    } cases[] = {
        {{8, 8, 8, 8}, 4, 4, 2, 8},
        {{16, 12, 11, 15, 0}, 5, 2, 3, 27},
        {{600, 560, 120, 120, 20, 10, 10, 10}, 8, 8, 2, 590.0 / 3.0},
    };
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        int slots[8];
        double total = 0.0;
        for (int rank = 0; rank < cases[c].n_ranks; rank++)
            slots[rank] = cases[c].slots;
        for (int expert = 0; expert < cases[c].n_experts; expert++)
            total += cases[c].load[expert];
        const bl_problem problem = {.n_experts = cases[c].n_experts,
                                    .n_ranks = cases[c].n_ranks,
                                    .n_scenarios = 1,
                                    .load = cases[c].load,
                                    .slots_per_rank = slots,
                                    .max_moves = -1};
        for (int algorithm = BL_ALG_AUTO; algorithm <= BL_ALG_EXACT; algorithm++) {
            bl_solution found;
            solve(&problem, (bl_algorithm)algorithm, &found);
            assert_true(fabs(found.score.max_over_mean * total / cases[c].n_ranks -
                             cases[c].optimum) < 1e-9);
            if (algorithm == BL_ALG_EXACT)
                assert_true(found.gap == 0.0);
            bl_solution_free(&found);
        }
    }
}

/* brute = exact >= every bound, over copies, uneven slots, masked ranks, several scenarios. */
static void test_against_brute_force(void **state) {
    (void)state;
    bl_error err;
    bl_rng rng;
    bl_rng_seed(&rng, 31);
    int proven = 0, improved = 0, auto_optimal = 0;
    const int rounds = 1200;
    for (int round = 0; round < rounds; round++) {
        bl_random_problem r;
        bl_random_problem_make(&rng, 6, 4, 3, 2, &r);
        const double best = bl_brute_best(&r.problem, NULL, NULL);
        bl_bound bound;
        assert_ok(bl_bound_of(&r.problem, &bound, &err));
        assert_true(bound.max_over_mean <= best * (1 + 1e-12));
        bl_solution exact, automatic;
        solve(&r.problem, BL_ALG_EXACT, &exact);
        if (fabs(exact.score.max_over_mean - best) > 2e-6 * best)
            fail_msg("round %d: exact %.9f, brute force %.9f", round, exact.score.max_over_mean,
                     best);
        assert_true(exact.bound.max_over_mean <= best * (1 + 1e-12));
        assert_true(exact.proven_by_milp || exact.gap <= 2 * BL_EXACT_GAIN);
        assert_true(exact.proven_by_milp == (strcmp(exact.bound.kind, "exact") == 0));
        proven += exact.proven_by_milp;
        improved += exact.improved_by_milp;
        solve(&r.problem, BL_ALG_AUTO, &automatic);
        assert_true(automatic.bound.max_over_mean <= best * (1 + 1e-12));
        auto_optimal += automatic.score.max_over_mean <= best * (1 + BL_EXACT_GAIN + 3e-4);
        bl_solution_free(&exact);
        bl_solution_free(&automatic);
    }
    printf("# exact: %d of %d proven, %d better than the search\n", proven, rounds, improved);
    assert_true(proven > 500 && improved > 0);
    assert_int_equal(auto_optimal, rounds);
}

/* Handed a poor placement, the exact model finds the optimum by itself. */
static void test_from_a_poor_placement(void **state) {
    (void)state;
    bl_error err;
    bl_rng rng;
    bl_rng_seed(&rng, 32);
    const bl_milp_limits none = {0, 0.0};
    for (int round = 0; round < 100; round++) {
        bl_random_problem r;
        bl_random_problem_make(&rng, 6, 4, 3, 2, &r);
        if (bl_problem_is_idle(&r.problem))
            continue;
        bl_solution poor;
        bl_score score;
        bl_exact_result result;
        solve(&r.problem, BL_ALG_CONTIGUOUS, &poor);
        const double best = bl_brute_best(&r.problem, NULL, NULL);
        assert_ok(bl_exact(&r.problem, poor.score.max_over_mean, 1.0, &none, &poor.placement,
                           &result, &err));
        assert_ok(bl_layer_placement_check(&poor.placement, NULL, &err));
        assert_ok(bl_evaluate(&r.problem, &poor.placement, &score, &err));
        assert_true(result.proven);
        assert_true(fabs(score.max_over_mean - best) <= 2e-6 * best);
        assert_int_equal(result.improved,
                         poor.score.max_over_mean > best * (1 + 2 * BL_EXACT_GAIN));
        bl_solution_free(&poor);
    }
}

/* Renaming experts, or ranks of equal size, changes nothing but names. */
static void test_permutations(void **state) {
    (void)state;
    bl_rng rng;
    bl_rng_seed(&rng, 33);
    for (int round = 0; round < 100; round++) {
        bl_random_problem r;
        bl_random_problem_make(&rng, 6, 4, 3, 1, &r);
        bl_solution a, b;
        solve(&r.problem, BL_ALG_EXACT, &a);
        bl_random_problem turned = r;
        turned.problem.load = turned.load;
        turned.problem.slots_per_rank = turned.slots;
        for (int expert = 0; expert < r.problem.n_experts; expert++)
            turned.load[expert] = r.load[(expert + 1) % r.problem.n_experts];
        for (int rank = 0; rank < r.problem.n_ranks; rank++)
            turned.slots[rank] = r.slots[r.problem.n_ranks - 1 - rank];
        solve(&turned.problem, BL_ALG_EXACT, &b);
        assert_true(fabs(a.score.max_over_mean - b.score.max_over_mean) <=
                    2e-6 * a.score.max_over_mean);
        bl_solution_free(&a);
        bl_solution_free(&b);
    }
}

static void make_hard(double *load, int *slots, bl_problem *problem) {
    bl_rng rng;
    bl_rng_seed(&rng, 34);
    for (int expert = 0; expert < 24; expert++)
        load[expert] = floor(10 + 1000 * bl_rng_unit(&rng));
    for (int rank = 0; rank < 6; rank++)
        slots[rank] = 5;
    *problem = (bl_problem){.n_experts = 24,
                            .n_ranks = 6,
                            .n_scenarios = 1,
                            .load = load,
                            .slots_per_rank = slots,
                            .max_moves = -1};
}

/* Out of nodes or out of time: the best known placement comes back, and says that it is not proven. */
static void test_limits(void **state) {
    (void)state;
    bl_error err = BL_ERROR_INIT;
    double load[24];
    int slots[6];
    bl_problem problem;
    make_hard(load, slots, &problem);
    bl_solve_options options = BL_SOLVE_OPTIONS_INIT;
    options.algorithm = BL_ALG_EXACT;
    options.time_s = 0.05;
    bl_solution found;
    assert_int_equal(bl_solve(&problem, &options, &found, &err), BL_LIMIT);
    assert_ok(bl_layer_placement_check(&found.placement, NULL, &err));
    assert_false(found.proven_by_milp);
    assert_true(found.gap >= 0.0 && found.gap < 0.01);

    const bl_milp_limits few = {.max_nodes = 3};
    bl_exact_result result;
    assert_ok(
        bl_exact(&problem, found.score.max_over_mean, 1.0, &few, &found.placement, &result, &err));
    assert_false(result.proven);
    assert_ok(bl_layer_placement_check(&found.placement, NULL, &err));
    bl_solution_free(&found);
}

static void test_refusals(void **state) {
    (void)state;
    bl_error err;
    static double load[256];
    int slots[32];
    for (int expert = 0; expert < 256; expert++)
        load[expert] = expert + 1;
    for (int rank = 0; rank < 32; rank++)
        slots[rank] = 9;
    bl_problem problem = {.layer = 7,
                          .n_experts = 256,
                          .n_ranks = 32,
                          .n_scenarios = 1,
                          .load = load,
                          .slots_per_rank = slots,
                          .max_moves = -1};
    bl_solve_options options = BL_SOLVE_OPTIONS_INIT;
    options.algorithm = BL_ALG_EXACT;
    bl_solution found;
    assert_fails(bl_solve(&problem, &options, &found, &err), BL_ERR_UNSUPPORTED, "too many");
    assert_int_equal(err.layer, 7);
    problem.rule = BL_RULE_FRACTIONS;
    assert_fails(bl_solve(&problem, &options, &found, &err), BL_ERR_UNSUPPORTED, "fractions");
}

typedef struct job {
    double score[6];
} job;

static void *work(void *context) {
    job *j = context;
    bl_rng rng;
    bl_rng_seed(&rng, 35);
    for (int round = 0; round < 6; round++) {
        bl_random_problem r;
        bl_random_problem_make(&rng, 8, 4, 4, 1, &r);
        bl_solve_options options = BL_SOLVE_OPTIONS_INIT;
        options.algorithm = BL_ALG_EXACT;
        bl_solution found;
        if (bl_solve(&r.problem, &options, &found, NULL) < 0)
            return NULL;
        j->score[round] = found.score.max_over_mean;
        bl_solution_free(&found);
    }
    return NULL;
}

static void test_threads(void **state) {
    (void)state;
    job jobs[3] = {0};
    pthread_t thread[2];
    for (int t = 0; t < 2; t++)
        assert_int_equal(pthread_create(&thread[t], NULL, work, &jobs[t]), 0);
    work(&jobs[2]);
    for (int t = 0; t < 2; t++)
        pthread_join(thread[t], NULL);
    for (int round = 0; round < 6; round++) {
        assert_true(jobs[0].score[round] >= 1.0);
        assert_true(jobs[0].score[round] == jobs[1].score[round]);
        assert_true(jobs[0].score[round] == jobs[2].score[round]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_door),
        cmocka_unit_test(test_faults_are_caught),
        cmocka_unit_test(test_proves_what_greedy_gets_wrong),
        cmocka_unit_test(test_against_brute_force),
        cmocka_unit_test(test_from_a_poor_placement),
        cmocka_unit_test(test_permutations),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
