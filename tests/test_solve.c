/* From problem to placement: the cases that greedy gets wrong, anchoring, limits, refusals. */
#include "tests/support/brute.h"
#include "tests/support/support.h"

#include "core/mem.h"
#include "planner/align.h"
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
    for (int slot = 0; slot < bl_layer_n_slots(&out->placement) && problem->max_moves < 0; slot++)
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

/* 256 experts, Pareto(1.3) loads, 32 ranks x 9 slots. */
typedef struct cluster {
    double load[256];
    int slots[32];
    bl_problem problem;
} cluster;

static void make_cluster(uint64_t seed, cluster *c) {
    bl_rng rng;
    bl_rng_seed(&rng, seed);
    for (int expert = 0; expert < 256; expert++)
        c->load[expert] = 1000.0 * pow(1.0 - bl_rng_unit(&rng), -1.0 / 1.3);
    for (int rank = 0; rank < 32; rank++)
        c->slots[rank] = 9;
    c->problem = problem_of(c->load, 256, c->slots, 32);
}

static void test_unchanged_load_moves_nothing(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 10; seed++) {
        cluster c;
        make_cluster(seed, &c);
        bl_solution first, second;
        solve(&c.problem, BL_ALG_AUTO, &first);
        assert_true(first.gap < 0.001);
        c.problem.current = &first.placement;
        solve(&c.problem, BL_ALG_AUTO, &second);
        assert_int_equal(second.moves, 0);
        assert_true(second.kept_current);
        assert_memory_equal(first.placement.expert, second.placement.expert, 288 * sizeof(int32_t));
        bl_solution_free(&second);
        /* Not even with any gain welcome: there is none. */
        c.problem.min_gain = 0.0;
        solve(&c.problem, BL_ALG_AUTO, &second);
        assert_int_equal(second.moves, 0);
        bl_solution_free(&second);
        bl_solution_free(&first);
    }
}

/* Two ranks hold {0, 1} and {2, 3}; {0, 2} and {1, 3} would be level. The excess of rank 0 is what
 * changing gains: 1 - 100 / (100 + excess). */
static void test_a_declined_gain_must_grow(void **state) {
    (void)state;
    bl_error err;
    static const struct {
        double excess, declined;
        bool moves;
    } cases[] = {
        {2.0, 0.0, false},    /* 2.0 % < 3 % */
        {3.3, 0.0, true},     /* 3.2 % */
        {3.3, 0.0196, false}, /* 3.2 % < 1.96 % + 1.5 % */
        {3.8, 0.0196, true},  /* 3.7 % */
        {3.3, 0.01, true},    /* 1 % + 1.5 % is less than 3 % anyway */
        {4.5, 0.04, false},   /* 4.3 % < 4.5 %, the most that is asked */
        {4.9, 0.04, true},
    };
    const int slots[2] = {2, 2}, layer = 3;
    bl_placement current;
    assert_ok(bl_placement_create(2, 4, &layer, 1, slots, &current, &err));
    bl_placement_fill_contiguous(&current);
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        const double half = cases[c].excess / 2;
        const double load[4] = {50 + half, 50 + half, 50 - half, 50 - half};
        bl_problem problem = problem_of(load, 4, slots, 2);
        bl_solution solution;
        problem.current = &current.layers[0];
        problem.declined = cases[c].declined;
        solve(&problem, BL_ALG_AUTO, &solution);
        assert_int_equal(solution.moves > 0, cases[c].moves);
        const double gain = 1.0 - 100.0 / (100.0 + cases[c].excess);
        assert_true(fabs(solution.declined - (cases[c].moves ? 0.0 : gain)) < 1e-9);
        bl_solution_free(&solution);
    }
    bl_placement_free(&current);
}

static void test_noise_moves_nothing(void **state) {
    (void)state;
    int greedy_moves = 0;
    for (uint64_t seed = 1; seed <= 10; seed++) {
        cluster c;
        bl_rng rng;
        make_cluster(seed, &c);
        bl_rng_seed(&rng, seed + 100);
        bl_solution search, greedy, again;
        solve(&c.problem, BL_ALG_AUTO, &search);
        solve(&c.problem, BL_ALG_GREEDY, &greedy);
        for (int expert = 0; expert < 256; expert++)
            c.load[expert] *= 1.0 + 0.01 * (2.0 * bl_rng_unit(&rng) - 1.0);
        c.problem.current = &search.placement;
        solve(&c.problem, BL_ALG_AUTO, &again);
        assert_int_equal(again.moves, 0);
        bl_solution_free(&again);
        c.problem.current = &greedy.placement;
        solve(&c.problem, BL_ALG_GREEDY, &again);
        greedy_moves += again.moves;
        bl_solution_free(&again);
        bl_solution_free(&search);
        bl_solution_free(&greedy);
    }
    assert_true(greedy_moves > 10 * 150); /* the contrast: greedy starts from nothing every time */
}

/* The same for several scenarios, with one of them changed a little. */
static void test_scenarios_unchanged_move_nothing(void **state) {
    (void)state;
    static double load[4 * 256];
    bl_rng rng;
    bl_rng_seed(&rng, 51);
    cluster c;
    for (int s = 0; s < 4; s++) {
        make_cluster(6, &c);
        for (int expert = 0; expert < 256; expert++)
            load[s * 256 + expert] = c.load[expert] * (0.5 + bl_rng_unit(&rng));
    }
    c.problem.load = load;
    c.problem.n_scenarios = 4;
    bl_solution first, second, greedy;
    solve(&c.problem, BL_ALG_GREEDY, &greedy);
    solve(&c.problem, BL_ALG_AUTO, &first);
    assert_true(first.score.max_over_mean < greedy.score.max_over_mean);
    c.problem.current = &first.placement;
    for (int round = 0; round < 2; round++) {
        solve(&c.problem, BL_ALG_AUTO, &second);
        assert_int_equal(second.moves, 0);
        assert_true(second.kept_current);
        bl_solution_free(&second);
        for (int expert = 0; expert < 256; expert++)
            load[256 + expert] *= 1.0 + 0.01 * (2.0 * bl_rng_unit(&rng) - 1.0);
    }
    bl_solution_free(&first);
    bl_solution_free(&greedy);
}

/* Other traffic: more moves allowed, better score; never one move more than allowed. */
static void test_move_limit(void **state) {
    (void)state;
    cluster c, other;
    make_cluster(1, &c);
    make_cluster(2, &other);
    bl_solution now;
    solve(&c.problem, BL_ALG_AUTO, &now);
    other.problem.current = &now.placement;
    static const int limits[] = {0, 1, 2, 5, 20, 100, -1};
    double last = INFINITY, unmoved = 0.0;
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        other.problem.max_moves = limits[i];
        bl_solution found;
        solve(&other.problem, BL_ALG_AUTO, &found);
        assert_int_equal(found.moves, bl_layer_moves(&now.placement, &found.placement));
        if (limits[i] >= 0)
            assert_true(found.moves <= limits[i]);
        assert_true(found.score.max_over_mean <= last);
        last = found.score.max_over_mean;
        if (limits[i] == 0) {
            unmoved = last;
            assert_memory_equal(found.placement.expert, now.placement.expert,
                                288 * sizeof(int32_t));
        }
        bl_solution_free(&found);
    }
    assert_true(unmoved > 1.5 && last < 1.01);
    other.problem.max_moves = 10;
    bl_error err;
    bl_solve_options options = BL_SOLVE_OPTIONS_INIT;
    options.algorithm = BL_ALG_GREEDY;
    bl_solution found;
    assert_fails(bl_solve(&other.problem, &options, &found, &err), BL_ERR_INFEASIBLE,
                 "more than the 10 allowed");
    bl_solution_free(&now);
}

/* Staying copies keep their slots, so that an engine has nothing to do for them. */
static void test_stayers_keep_their_slots(void **state) {
    (void)state;
    cluster c, other;
    make_cluster(1, &c);
    make_cluster(2, &other);
    bl_solution now, next;
    solve(&c.problem, BL_ALG_CONTIGUOUS, &now);
    other.problem.current = &now.placement;
    solve(&other.problem, BL_ALG_AUTO, &next);
    for (int rank = 0; rank < 32; rank++) {
        for (int slot = now.placement.begin[rank]; slot < now.placement.begin[rank + 1]; slot++) {
            if (bl_layer_find(&next.placement, rank, now.placement.expert[slot]) >= 0)
                assert_int_equal(next.placement.expert[slot], now.placement.expert[slot]);
        }
    }
    bl_solution_free(&now);
    bl_solution_free(&next);
}

/* The same rank sets under other rank and slot numbers: laid back without a move. */
static void test_align_relabels(void **state) {
    (void)state;
    bl_error err;
    cluster c;
    make_cluster(3, &c);
    bl_solution now;
    solve(&c.problem, BL_ALG_AUTO, &now);
    bl_layer_placement turned;
    assert_ok(bl_layer_placement_copy(&now.placement, &turned, &err));
    for (int rank = 0; rank < 32; rank++) {
        for (int i = 0; i < 9; i++)
            turned.expert[(rank * 5 + 3) % 32 * 9 + (i * 2 + 1) % 9] =
                now.placement.expert[rank * 9 + i];
    }
    assert_true(bl_layer_moves(&now.placement, &turned) > 200);
    c.problem.current = &now.placement;
    assert_ok(bl_align(&c.problem, &turned, &err));
    assert_memory_equal(turned.expert, now.placement.expert, 288 * sizeof(int32_t));
    bl_layer_placement_free(&turned);
    bl_solution_free(&now);
}

/* A rank is lost: every expert is covered again, by no more moves than there are orphans when that
 * is the limit, and by name when the limit is lower. */
static void test_lost_rank(void **state) {
    (void)state;
    bl_error err;
    cluster c;
    make_cluster(4, &c);
    bl_solution now;
    solve(&c.problem, BL_ALG_AUTO, &now);
    c.slots[7] = 0;
    int orphans = 0;
    for (int slot = 7 * 9; slot < 8 * 9; slot++) {
        int copies = 0;
        for (int rank = 0; rank < 32; rank++)
            copies += bl_layer_find(&now.placement, rank, now.placement.expert[slot]) >= 0;
        orphans += copies == 1;
    }
    assert_true(orphans > 1);
    c.problem.current = &now.placement;
    c.problem.max_moves = orphans;
    bl_solution found;
    solve(&c.problem, BL_ALG_AUTO, &found);
    assert_true(found.moves <= orphans);
    assert_false(found.kept_current);
    assert_int_equal(found.placement.begin[8], found.placement.begin[7]);
    bl_solution_free(&found);
    c.problem.max_moves = orphans - 1;
    const bl_solve_options options = BL_SOLVE_OPTIONS_INIT;
    assert_fails(bl_solve(&c.problem, &options, &found, &err), BL_ERR_INFEASIBLE,
                 "covering every expert");
    c.problem.max_moves = -1;
    solve(&c.problem, BL_ALG_AUTO, &found);
    assert_true(found.score.max_over_mean < 1.01);
    bl_solution_free(&found);
    bl_solution_free(&now);
}

/* Slots taken away and added: what can stay stays. Against random placements in force, even ones
 * with doubles and holes. */
static void test_any_current_placement(void **state) {
    (void)state;
    bl_error err;
    bl_rng rng;
    bl_rng_seed(&rng, 41);
    for (int round = 0; round < 2000; round++) {
        bl_random_problem r;
        bl_random_problem_make(&rng, 9, 6, 6, 2, &r);
        int begin[17] = {0};
        int32_t expert[64];
        for (int rank = 0; rank < r.problem.n_ranks; rank++)
            begin[rank + 1] = begin[rank] + (int)bl_rng_below(&rng, 7);
        for (int slot = 0; slot < begin[r.problem.n_ranks]; slot++)
            expert[slot] = (int32_t)bl_rng_below(&rng, (uint32_t)r.problem.n_experts + 1) - 1;
        const bl_layer_placement current = {.layer = 3,
                                            .epoch = 5,
                                            .n_ranks = r.problem.n_ranks,
                                            .n_experts = r.problem.n_experts,
                                            .begin = begin,
                                            .expert = expert};
        r.problem.current = &current;
        if (bl_rng_below(&rng, 2) == 0)
            r.problem.max_moves = (int)bl_rng_below(&rng, 12);
        bl_solve_options options = BL_SOLVE_OPTIONS_INIT;
        options.algorithm = BL_ALG_SEARCH;
        options.iterations = 500;
        bl_solution found;
        err = BL_ERROR_INIT;
        const bl_status st = bl_solve(&r.problem, &options, &found, &err);
        if (st == BL_ERR_INFEASIBLE) {
            assert_true(r.problem.max_moves >= 0);
            continue;
        }
        if (st < 0)
            fail_msg("round %d: %s", round, err.text);
        assert_ok(bl_layer_placement_check(&found.placement, NULL, &err));
        assert_int_equal(found.placement.epoch, 5);
        for (int rank = 0; rank < r.problem.n_ranks; rank++)
            assert_int_equal(found.placement.begin[rank + 1] - found.placement.begin[rank],
                             r.slots[rank]);
        if (r.problem.max_moves >= 0)
            assert_true(found.moves <= r.problem.max_moves);
        bl_solution_free(&found);
    }
}

/* Sizes that "must divide" elsewhere. */
static void test_sizes_need_not_divide(void **state) {
    (void)state;
    double load[128];
    for (int expert = 0; expert < 128; expert++)
        load[expert] = 100 + expert % 17;
    const int thirty[] = {4, 4, 4, 4, 4, 4, 3, 3}, six[] = {22, 22, 21, 21, 21, 21};
    const bl_problem a = problem_of(load, 30, thirty, 8), b = problem_of(load, 128, six, 6);
    for (int algorithm = BL_ALG_AUTO; algorithm <= BL_ALG_CONTIGUOUS; algorithm++) {
        if (algorithm == BL_ALG_EXACT)
            continue;
        bl_solution found;
        solve(&a, (bl_algorithm)algorithm, &found);
        bl_solution_free(&found);
        solve(&b, (bl_algorithm)algorithm, &found);
        bl_solution_free(&found);
    }
}

static void test_fractions(void **state) {
    (void)state;
    bl_error err;
    cluster c;
    make_cluster(5, &c);
    bl_solution even, shared;
    solve(&c.problem, BL_ALG_GREEDY, &even);
    assert_null(even.share);
    c.problem.rule = BL_RULE_FRACTIONS;
    solve(&c.problem, BL_ALG_GREEDY, &shared);
    assert_memory_equal(even.placement.expert, shared.placement.expert, 288 * sizeof(int32_t));
    assert_true(shared.score.max_over_mean < even.score.max_over_mean);
    double sum[256] = {0};
    for (int slot = 0; slot < 288; slot++) {
        assert_true(shared.share[slot] >= 0.0);
        sum[shared.placement.expert[slot]] += shared.share[slot];
    }
    for (int expert = 0; expert < 256; expert++)
        assert_true(fabs(sum[expert] - 1.0) < 1e-9);
    bl_score score;
    assert_ok(bl_evaluate_shares(&c.problem, &shared.placement, shared.share, &score, &err));
    assert_true(score.max_over_mean == shared.score.max_over_mean);
    bl_solution_free(&even);
    bl_solution_free(&shared);
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

static void permute(const bl_problem *p, const int *to, const double *load, double *out) {
    for (int s = 0; s < p->n_scenarios; s++) {
        for (int expert = 0; expert < p->n_experts; expert++)
            out[s * p->n_experts + to[expert]] = load[s * p->n_experts + expert];
    }
}

/* Who gives experts other ids gets the same placement under these ids, slot by slot, also from a
 * placement in force. Experts of equal load are the same expert. */
static void test_permuted_experts_permute_the_answer(void **state) {
    (void)state;
    bl_error err;
    bl_rng rng;
    bl_rng_seed(&rng, 29);
    for (int round = 0; round < 100; round++) {
        bl_random_problem r;
        bl_random_problem_make(&rng, 16, 6, 5, 3, &r);
        if (bl_problem_is_idle(&r.problem))
            continue;
        int to[16];
        double load[3 * 16];
        for (int expert = 0; expert < r.problem.n_experts; expert++) {
            const int at = (int)bl_rng_below(&rng, (uint32_t)expert + 1);
            to[expert] = to[at];
            to[at] = expert;
        }
        permute(&r.problem, to, r.load, load);
        bl_problem turned = r.problem;
        turned.load = load;
        bl_solve_options options = BL_SOLVE_OPTIONS_INIT;
        options.algorithm = round % 8 != 0 || r.problem.n_experts > 8 ? BL_ALG_SEARCH : BL_ALG_AUTO;
        bl_solution a, b, again, turned_again;
        assert_ok(bl_solve(&r.problem, &options, &a, &err));
        assert_ok(bl_solve(&turned, &options, &b, &err));
        /* From each other's answer, with the loads of one scenario raised. */
        for (int slot = 0; slot < bl_layer_n_slots(&a.placement); slot++) {
            for (int s = 0; s < r.problem.n_scenarios; s++)
                assert_true(r.load[s * r.problem.n_experts + a.placement.expert[slot]] ==
                            load[s * r.problem.n_experts + b.placement.expert[slot]]);
            b.placement.expert[slot] = to[a.placement.expert[slot]];
        }
        r.load[0] = 5 * r.load[0] + 100;
        permute(&r.problem, to, r.load, load);
        r.problem.current = &a.placement;
        turned.current = &b.placement;
        assert_ok(bl_solve(&r.problem, &options, &again, &err));
        assert_ok(bl_solve(&turned, &options, &turned_again, &err));
        assert_int_equal(again.moves, turned_again.moves);
        for (int slot = 0; slot < bl_layer_n_slots(&a.placement); slot++)
            assert_int_equal(to[again.placement.expert[slot]], turned_again.placement.expert[slot]);
        bl_solution_free(&a);
        bl_solution_free(&b);
        bl_solution_free(&again);
        bl_solution_free(&turned_again);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_greedy_gets_wrong),
        cmocka_unit_test(test_permuted_experts_permute_the_answer),
        cmocka_unit_test(test_the_cold_expert_is_replicated),
        cmocka_unit_test(test_idle_layer_stays),
        cmocka_unit_test(test_unchanged_load_moves_nothing),
        cmocka_unit_test(test_a_declined_gain_must_grow),
        cmocka_unit_test(test_noise_moves_nothing),
        cmocka_unit_test(test_scenarios_unchanged_move_nothing),
        cmocka_unit_test(test_move_limit),
        cmocka_unit_test(test_stayers_keep_their_slots),
        cmocka_unit_test(test_align_relabels),
        cmocka_unit_test(test_lost_rank),
        cmocka_unit_test(test_any_current_placement),
        cmocka_unit_test(test_sizes_need_not_divide),
        cmocka_unit_test(test_fractions),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
