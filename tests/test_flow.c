/* Plans for the per-step split: scores against all cuts, search, moves, robustness. */
#include "tests/support/brute.h"
#include "tests/support/support.h"

#include "planner/flow.h"
#include "planner/flow_search.h"
#include "planner/greedy.h"
#include "planner/solve.h"

#include <math.h>
#include <string.h>

#define NEAR(a, b) assert_true(fabs((a) - (b)) <= 1e-9 * (1.0 + fabs(b)))

static bool is_on(const bl_layer_placement *placement, int rank, int expert) {
    return bl_layer_find(placement, rank, expert) >= 0;
}

/* The score by definition: per scenario the largest load of the experts wholly within a set of
 * ranks, over the size of the set. Whole rows when `whole`. */
static double score_by_cuts(const bl_problem *problem, const bl_layer_placement *placement,
                            bool whole) {
    double busiest = 0.0, total = 0.0;
    for (int s = 0; s < problem->n_scenarios; s++) {
        const double *load = problem->load + s * problem->n_experts;
        double largest = 0.0;
        for (unsigned set = 1; set < 1u << problem->n_ranks; set++) {
            double sum = 0.0;
            int size = 0;
            for (int rank = 0; rank < problem->n_ranks; rank++)
                size += (set >> rank & 1) && problem->slots_per_rank[rank] > 0;
            for (int expert = 0; expert < problem->n_experts; expert++) {
                bool within = true;
                for (int rank = 0; rank < problem->n_ranks; rank++)
                    within = within && ((set >> rank & 1) || !is_on(placement, rank, expert));
                sum += within ? load[expert] : 0.0;
            }
            if (size > 0)
                largest = fmax(largest, whole ? ceil(sum / size) : sum / size);
        }
        busiest += largest;
        for (int expert = 0; expert < problem->n_experts; expert++)
            total += load[expert];
    }
    return total > 0.0 ? busiest * bl_problem_active_ranks(problem) / total : 1.0;
}

static void test_rows(void **state) {
    (void)state;
    uint64_t rows[3];
    const double whole[] = {3, 0, 5}, part[] = {0.5, 0.25, 0.25}, none[] = {0, 0, 0};
    const double tiny[] = {1e-310, 1e-310, 0}, huge[] = {1e100, 0, 1e100};
    NEAR(bl_flow_rows(whole, 3, rows), 1.0);
    assert_true(rows[0] == 3 && rows[1] == 0 && rows[2] == 5);
    NEAR(bl_flow_rows(part, 3, rows), 0x1p42);
    assert_true(rows[0] == UINT64_C(1) << 41 && rows[2] == UINT64_C(1) << 40);
    assert_true(bl_flow_rows(none, 3, rows) == 0.0 && rows[0] == 0);
    bl_flow_rows(tiny, 3, rows);
    assert_true(rows[0] == UINT64_C(1) << 41 && rows[2] == 0);
    bl_flow_rows(huge, 3, rows);
    assert_true(rows[0] == UINT64_C(1) << 41 && rows[1] == 0);
}

/* On greedy's and the search's placements of random problems: the score is that of the largest
 * cuts, never above the even split's, and the bound is below it (bl_solve checks that). */
static void test_scores_equal_cuts(void **state) {
    (void)state;
    bl_error err;
    bl_rng rng;
    bl_rng_seed(&rng, 7);
    for (int round = 0; round < 300; round++) {
        bl_random_problem random;
        bl_random_problem_make(&rng, 10, 5, 5, 3, &random);
        bl_problem *problem = &random.problem;
        const bool whole = round % 2 == 0;
        for (int at = 0; at < problem->n_scenarios * problem->n_experts && !whole; at++)
            random.load[at] /= 7.0;
        problem->rule = BL_RULE_PER_STEP;
        bl_solve_options options = BL_SOLVE_OPTIONS_INIT;
        options.algorithm = round % 3 == 0 ? BL_ALG_GREEDY : BL_ALG_AUTO;
        options.iterations = 200;
        bl_solution found, again;
        bl_score even;
        assert_ok(bl_solve(problem, &options, &found, &err));
        NEAR(found.score.max_over_mean, score_by_cuts(problem, &found.placement, whole));
        assert_true(found.score.worst >= found.score.max_over_mean - 1e-9 && found.gap >= 0.0 &&
                    found.share == NULL);
        assert_ok(bl_solve(problem, &options, &again, &err));
        assert_memory_equal(found.placement.expert, again.placement.expert,
                            (size_t)bl_layer_n_slots(&found.placement) * sizeof(int32_t));
        if (!whole) {
            problem->rule = BL_RULE_EVEN;
            assert_ok(bl_evaluate(problem, &found.placement, &even, &err));
            assert_true(even.max_over_mean >= found.score.max_over_mean - 1e-9);
        }
        bl_solution_free(&found);
        bl_solution_free(&again);
    }
}

/* 64 experts on 8 ranks x 9: a skewed load, and others that stray from it. */
#define RANKS 8
#define EXPERTS 64
static void skewed(bl_rng *rng, const double *around, double noise, double *load) {
    for (int e = 0; e < EXPERTS; e++) {
        const double straying = exp(noise * (bl_rng_unit(rng) + bl_rng_unit(rng) - 1.0) * 2.4);
        load[e] = floor((around != NULL ? around[e] : 2000.0 / (1 + e % 16)) * straying);
    }
}

static double score_elsewhere(const bl_problem *problem, const bl_layer_placement *placement) {
    bl_error err;
    bl_rng rng;
    bl_rng_seed(&rng, 99);
    double load[20 * EXPERTS];
    for (int s = 0; s < 20; s++)
        skewed(&rng, problem->load, 0.25, load + s * EXPERTS);
    bl_problem other = *problem;
    other.load = load;
    other.n_scenarios = 20;
    bl_score score;
    assert_ok(bl_flow_evaluate(&other, placement, &score, &err));
    return score.max_over_mean;
}

static void test_search_is_robust(void **state) {
    (void)state;
    bl_error err;
    bl_rng rng;
    bl_rng_seed(&rng, 3);
    double load[EXPERTS];
    int slots[RANKS];
    skewed(&rng, NULL, 0.1, load);
    for (int rank = 0; rank < RANKS; rank++)
        slots[rank] = 9;
    const bl_problem problem = {.n_experts = EXPERTS,
                                .n_ranks = RANKS,
                                .n_scenarios = 1,
                                .load = load,
                                .slots_per_rank = slots,
                                .rule = BL_RULE_PER_STEP,
                                .max_moves = -1};
    bl_solve_options options = BL_SOLVE_OPTIONS_INIT;
    bl_solution greedy, found;
    options.algorithm = BL_ALG_GREEDY;
    assert_ok(bl_solve(&problem, &options, &greedy, &err));
    options.algorithm = BL_ALG_SEARCH;
    assert_ok(bl_solve(&problem, &options, &found, &err));
    assert_true(found.score.max_over_mean < 1.01);
    const double before = score_elsewhere(&problem, &greedy.placement) - 1.0;
    const double after = score_elsewhere(&problem, &found.placement) - 1.0;
    if (!(after < 0.7 * before))
        fail_msg("imbalance elsewhere: greedy %g, search %g", before, after);
    bl_solution_free(&greedy);
    bl_solution_free(&found);
}

static void test_moves(void **state) {
    (void)state;
    bl_error err;
    bl_rng rng;
    bl_rng_seed(&rng, 5);
    double load[EXPERTS], drifted[EXPERTS];
    int slots[RANKS];
    skewed(&rng, NULL, 0.1, load);
    for (int rank = 0; rank < RANKS; rank++)
        slots[rank] = 9;
    bl_problem problem = {.n_experts = EXPERTS,
                          .n_ranks = RANKS,
                          .n_scenarios = 1,
                          .load = load,
                          .slots_per_rank = slots,
                          .rule = BL_RULE_PER_STEP,
                          .max_moves = -1,
                          .min_gain = 0.01};
    bl_solve_options options = BL_SOLVE_OPTIONS_INIT;
    options.iterations = 500;
    bl_solution first, next;
    assert_ok(bl_solve(&problem, &options, &first, &err));
    problem.current = &first.placement;
    assert_ok(bl_solve(&problem, &options, &next, &err)); /* unchanged: nothing moves */
    assert_int_equal(next.moves, 0);
    assert_true(next.kept_current);
    bl_solution_free(&next);
    skewed(&rng, load, 0.2, drifted);
    for (int e = 0; e < 16; e++)
        drifted[e] = load[15 - e]; /* what was cold is hot */
    problem.load = drifted;
    for (problem.max_moves = 0; problem.max_moves <= 12; problem.max_moves += 4) {
        bl_score before;
        assert_ok(bl_evaluate(&problem, &first.placement, &before, &err));
        assert_ok(bl_solve(&problem, &options, &next, &err));
        assert_true(next.moves <= problem.max_moves);
        assert_true(next.score.max_over_mean <= before.max_over_mean);
        assert_true(problem.max_moves < 12 || next.score.max_over_mean < before.max_over_mean);
        bl_solution_free(&next);
    }
    bl_solution_free(&first);
}

static void test_exact_is_refused(void **state) {
    (void)state;
    bl_error err;
    const double load[] = {1, 2, 3};
    const int slots[] = {2, 2};
    const bl_problem problem = {.n_experts = 3,
                                .n_ranks = 2,
                                .n_scenarios = 1,
                                .load = load,
                                .slots_per_rank = slots,
                                .rule = BL_RULE_PER_STEP,
                                .max_moves = -1};
    bl_solve_options options = BL_SOLVE_OPTIONS_INIT;
    options.algorithm = BL_ALG_EXACT;
    bl_solution found;
    assert_fails(bl_solve(&problem, &options, &found, &err), BL_ERR_UNSUPPORTED, "per-step");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows),
        cmocka_unit_test(test_scores_equal_cuts),
        cmocka_unit_test(test_search_is_robust),
        cmocka_unit_test(test_moves),
        cmocka_unit_test(test_exact_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
