/* Plans for texts not seen: the cost by hand, the search against all placements, unseen loads. */
#include "tests/support/support.h"

#include "core/npy.h"
#include "planner/robust.h"
#include "planner/solve.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { EXPERTS = 48, RANKS = 8, SLOTS = 7, SEEN = 12, UNSEEN = 40 };

static bl_problem problem_of(const double *load, int n_scenarios, int n_experts, int n_ranks,
                             const int *slots) {
    return (bl_problem){.n_experts = n_experts,
                        .n_ranks = n_ranks,
                        .n_scenarios = n_scenarios,
                        .load = load,
                        .slots_per_rank = slots,
                        .rule = BL_RULE_EVEN,
                        .max_moves = -1,
                        .tail = 1.0};
}

static bl_layer_placement placed(const bl_problem *problem, const int32_t *expert) {
    bl_error err;
    bl_layer_placement made;
    assert_ok(bl_problem_empty_placement(problem, &made, &err));
    memcpy(made.expert, expert, (size_t)bl_problem_n_slots(problem) * sizeof *expert);
    return made;
}

static double cost_of(const bl_problem *problem, const bl_layer_placement *placement) {
    bl_error err;
    double cost = 0.0;
    assert_ok(bl_robust_cost(problem, placement, &cost, &err));
    return cost;
}

/* Two experts on two ranks, three scenarios of mean rank loads 2, 2 and 4, and one without load:
 *
 *     loads        in mean rank loads   nearest        squared differences
 *     0:  3, 1     1.5  0.5             2              1/16, 1/16
 *     1:  1, 3     0.5  1.5             2              9/16, 9/16
 *     2:  5, 3     1.25 0.75            0              1/16, 1/16
 *
 * With weights 1/4, 1/4, 1/2 the halved differences average (1 + 9 + 2) / 128 = 3/32 for both. Means
 * of the pairs are 11/8 and 5/8 in scenarios 0 and 2, 7/8 and 9/8 in 1. */
static const double three[] = {3, 1, 1, 3, 5, 3, 0, 0};

static double norm(double a, double b) {
    return pow(pow(a, 8) + pow(b, 8), 1.0 / 8.0);
}

/* The charge of an only copy: 16 / 2 times the variance estimated. */
static double charge(int expert, int scenario) {
    const double often[] = {pow(11.0 / 8, 1.5), pow(5.0 / 8, 1.5)};
    const double once[] = {pow(7.0 / 8, 1.5), pow(9.0 / 8, 1.5)};
    const double growth[] = {0.75 * often[0] + 0.25 * once[0], 0.75 * often[1] + 0.25 * once[1]};
    const double slope = 3.0 / 16 / (growth[0] + growth[1]) + 3.0 / 32 / growth[expert];
    return 8.0 * (3.0 / 64 + slope / 4 * (scenario == 1 ? once[expert] : often[expert]));
}

static bool is_near(double a, double b) {
    return fabs(a - b) < 1e-6 * b; /* floats within */
}

static void cost_by_hand(void **state) {
    (void)state;
    const int slots[] = {1, 1}, wide[] = {2, 2};
    bl_problem problem = problem_of(three, 4, 2, 2, slots);
    bl_layer_placement apart = placed(&problem, (const int32_t[]){0, 1});
    const double y0 = norm(1.5 + charge(0, 0), 0.5 + charge(1, 0));
    const double y1 = norm(0.5 + charge(0, 1), 1.5 + charge(1, 1));
    const double y2 = norm(1.25 + charge(0, 2), 0.75 + charge(1, 2));
    assert_true(is_near(cost_of(&problem, &apart), y0 / 4 + y1 / 4 + y2 / 2));
    problem.tail = 0.5; /* of three with load: the worst two */
    assert_true(is_near(cost_of(&problem, &apart), (y0 + y1) / 2));
    problem.tail = 0.01;
    assert_true(is_near(cost_of(&problem, &apart), fmax(y0, y1)));
    bl_layer_placement_free(&apart);
    /* Everything everywhere: level ranks, each with an eighth of both charges. */
    problem = problem_of(three, 4, 2, 2, wide);
    bl_layer_placement both = placed(&problem, (const int32_t[]){0, 1, 0, 1});
    double mean = 0.0;
    for (int s = 0; s < 3; s++) {
        const double value = 1.0 + (charge(0, s) + charge(1, s)) / 8;
        mean += norm(value, value) * (s == 2 ? 0.5 : 0.25);
    }
    assert_true(is_near(cost_of(&problem, &both), mean));
    bl_layer_placement_free(&both);
}

/* ---- the search against all placements --------------------------------------------------- */

typedef struct brute {
    const bl_problem *problem;
    bl_layer_placement placement;
    double best;
} brute;

/* Every content of the slots from `slot` on; those that break a hard rule are passed over. */
static void look_at_all(brute *b, int slot) {
    bl_layer_placement *p = &b->placement;
    if (slot < bl_layer_n_slots(p)) {
        for (int32_t e = 0; e < b->problem->n_experts; e++) {
            p->expert[slot] = e;
            look_at_all(b, slot + 1);
        }
    } else if (bl_layer_placement_check(p, NULL, NULL) == BL_OK) {
        b->best = fmin(b->best, cost_of(b->problem, p));
    }
}

static void tiny_instances_are_solved(void **state) {
    (void)state;
    static const int shapes[][3] = {{3, 1, 2}, {2, 2, 1}, {2, 2, 2}};
    bl_error err;
    bl_rng rng;
    bl_rng_seed(&rng, 5);
    for (int round = 0; round < 24; round++) {
        double load[5 * 4];
        for (int i = 0; i < 20; i++)
            load[i] = bl_rng_below(&rng, 30);
        load[0] += 1.0;
        bl_problem problem = problem_of(load, 5, 4, 3, shapes[round % 3]);
        problem.tail = round % 2 == 0 ? 1.0 : 0.4;
        brute b = {.problem = &problem, .best = INFINITY};
        assert_ok(bl_problem_empty_placement(&problem, &b.placement, &err));
        look_at_all(&b, 0);
        bl_solution solution;
        assert_ok(bl_solve(&problem, &BL_SOLVE_OPTIONS_INIT, &solution, &err));
        const double found = cost_of(&problem, &solution.placement);
        if (found > b.best * (1 + 1e-6))
            fail_msg("round %d: found %.9f, best %.9f", round, found, b.best);
        bl_solution_free(&solution);
        bl_layer_placement_free(&b.placement);
    }
}

/* ---- unseen loads ------------------------------------------------------------------------- */

/* A world of experts of much the same mean, a sixth of which run hot now and then; and topics, each
 * with its own experts. */
typedef struct world {
    double mean[4][EXPERTS];
    bool bursts[EXPERTS];
} world;

static void world_make(bl_rng *rng, world *w) {
    for (int e = 0; e < EXPERTS; e++) {
        w->bursts[e] = e % 6 == 0;
        for (int topic = 0; topic < 4; topic++)
            w->mean[topic][e] = 50.0 + 100.0 * bl_rng_unit(rng) * bl_rng_unit(rng);
    }
}

static void texts_draw(bl_rng *rng, const world *w, int n, double *load) {
    for (int s = 0; s < n; s++) {
        for (int e = 0; e < EXPERTS; e++) {
            const double factor = w->bursts[e] ? (bl_rng_below(rng, 3) == 0 ? 5.0 : 0.5) : 1.0;
            load[s * EXPERTS + e] =
                floor(w->mean[s % 4][e] * factor * (0.8 + 0.4 * bl_rng_unit(rng)));
        }
    }
}

static void slots_fill(int *slots) {
    for (int rank = 0; rank < RANKS; rank++)
        slots[rank] = SLOTS;
}

/* Mean over texts not seen of max/mean. */
static double unseen_score(const bl_layer_placement *placement, const double *load,
                           const int *slots) {
    bl_error err;
    const bl_problem problem = problem_of(load, UNSEEN, EXPERTS, RANKS, slots);
    bl_score score;
    assert_ok(bl_evaluate(&problem, placement, &score, &err));
    return score.max_over_mean;
}

static void regularised_plans_hold_better(void **state) {
    enum { ROUNDS = 12 };
    (void)state;
    bl_error err;
    int slots[RANKS], better = 0;
    double robust = 0.0, exact = 0.0;
    slots_fill(slots);
    for (int round = 0; round < ROUNDS; round++) {
        bl_rng rng;
        bl_rng_seed(&rng, 100 + (uint64_t)round);
        world w;
        static double seen[SEEN * EXPERTS], unseen[UNSEEN * EXPERTS];
        world_make(&rng, &w);
        texts_draw(&rng, &w, SEEN, seen);
        texts_draw(&rng, &w, UNSEEN, unseen);
        double score[2];
        for (int tail = 0; tail < 2; tail++) {
            bl_problem problem = problem_of(seen, SEEN, EXPERTS, RANKS, slots);
            problem.tail = tail;
            bl_solution solution;
            assert_ok(bl_solve(&problem, &BL_SOLVE_OPTIONS_INIT, &solution, &err));
            score[tail] = unseen_score(&solution.placement, unseen, slots);
            bl_solution_free(&solution);
        }
        exact += score[0] / ROUNDS;
        robust += score[1] / ROUNDS;
        better += score[1] < score[0];
    }
    print_message("# unseen texts: exact %.4f, robust %.4f, better in %d of %d\n", exact, robust,
                  better, ROUNDS);
    assert_true(better >= 8 && robust < exact - 0.01);
}

static void replan(const bl_problem *problem, const double *load, const bl_layer_placement *current,
                   int max_moves, bl_solution *out) {
    bl_error err;
    bl_problem again = *problem;
    again.load = load;
    again.current = current;
    again.max_moves = max_moves;
    again.min_gain = BL_ROBUST_MIN_GAIN;
    assert_ok(bl_solve(&again, &BL_SOLVE_OPTIONS_INIT, out, &err));
}

static void noise_moves_nothing_and_drift_keeps_the_budget(void **state) {
    (void)state;
    bl_error err;
    int slots[RANKS];
    static double seen[SEEN * EXPERTS], noisy[SEEN * EXPERTS], other[SEEN * EXPERTS];
    slots_fill(slots);
    for (int round = 0; round < 5; round++) {
        bl_rng rng;
        bl_rng_seed(&rng, 7 + (uint64_t)round);
        world w, drifted;
        world_make(&rng, &w);
        texts_draw(&rng, &w, SEEN, seen);
        for (int i = 0; i < SEEN * EXPERTS; i++)
            noisy[i] = seen[i] * (0.99 + 0.02 * bl_rng_unit(&rng));
        world_make(&rng, &drifted);
        texts_draw(&rng, &drifted, SEEN, other);
        const bl_problem problem = problem_of(seen, SEEN, EXPERTS, RANKS, slots);
        bl_solution first, next;
        assert_ok(bl_solve(&problem, &BL_SOLVE_OPTIONS_INIT, &first, &err));
        replan(&problem, noisy, &first.placement, -1, &next);
        assert_int_equal(next.moves, 0);
        bl_solution_free(&next);
        replan(&problem, other, &first.placement, 6, &next);
        assert_in_range(next.moves, 1, 6);
        bl_problem after = problem;
        after.load = other;
        assert_true(cost_of(&after, &next.placement) < cost_of(&after, &first.placement));
        bl_solution_free(&next);
        bl_solution_free(&first);
    }
}

/* ---- drift -------------------------------------------------------------------------------- */

enum { WINDOWS = 10, PARTS = 6 };

/* A window: sub-windows whose texts move on through the topics, half a topic per window. */
static void window_draw(bl_rng *rng, const world *w, int at, double *load) {
    memset(load, 0, (size_t)PARTS * EXPERTS * sizeof *load);
    for (int part = 0; part < PARTS; part++) {
        for (int text = 0; text < 8; text++) {
            const int topic = (at + (int)bl_rng_below(rng, 2)) / 2 % 4;
            for (int e = 0; e < EXPERTS; e++) {
                const double factor = w->bursts[e] && bl_rng_below(rng, 3) == 0 ? 3.0 : 1.0;
                load[part * EXPERTS + e] += w->mean[topic][e] * factor;
            }
        }
    }
}

/* Plan on window t, score on t + 1, start from the plan before: better than planning each window
 * afresh as engines do, with fewer moves. */
static void drift_is_followed_with_few_moves(void **state) {
    (void)state;
    bl_error err;
    int slots[RANKS], moves[2] = {0, 0};
    double mean[2] = {0.0, 0.0};
    static double load[WINDOWS + 1][PARTS * EXPERTS];
    bl_rng rng;
    world w;
    slots_fill(slots);
    bl_rng_seed(&rng, 11);
    world_make(&rng, &w);
    for (int at = 0; at <= WINDOWS; at++)
        window_draw(&rng, &w, at, load[at]);
    for (int robust = 0; robust < 2; robust++) {
        bl_solution now = {0};
        for (int at = 0; at < WINDOWS; at++) {
            bl_problem problem = problem_of(load[at], PARTS, EXPERTS, RANKS, slots);
            bl_solve_options options = BL_SOLVE_OPTIONS_INIT;
            options.algorithm = robust ? BL_ALG_SEARCH : BL_ALG_GREEDY;
            problem.tail = robust;
            problem.min_gain = BL_ROBUST_MIN_GAIN;
            problem.current = robust && at > 0 ? &now.placement : NULL;
            bl_solution next;
            assert_ok(bl_solve(&problem, &options, &next, &err));
            if (at > 0)
                moves[robust] += bl_layer_moves(&now.placement, &next.placement);
            bl_solution_free(&now);
            now = next;
            bl_problem then = problem_of(load[at + 1], PARTS, EXPERTS, RANKS, slots);
            bl_score score;
            assert_ok(bl_evaluate(&then, &now.placement, &score, &err));
            mean[robust] += score.max_over_mean / WINDOWS;
        }
        bl_solution_free(&now);
    }
    print_message("# drift: greedy %.4f in %d moves, robust %.4f in %d\n", mean[0], moves[0],
                  mean[1], moves[1]);
    assert_true(mean[1] < mean[0] - 0.01 && moves[1] * 10 < moves[0] * 7);
}

/* ---- real texts --------------------------------------------------------------------------- */

/* GLM-5.2's shards, as in tests/bench/bench_heldout.c, on a few layers. */
enum { SHARDS = 56, LAYERS = 75, ROUTED = 256, DEVICES = 32 };

static void shards_of(const bl_npy *npy, int layer, int half, double *load) {
    int n = 0;
    for (int shard = 0; shard < SHARDS; shard++) {
        if (shard % 8 / 4 != half)
            continue;
        for (int e = 0; e < ROUTED; e++)
            load[n * ROUTED + e] =
                bl_npy_real(npy, (size_t)(shard * LAYERS + layer) * ROUTED + (size_t)e);
        n++;
    }
}

/* Mean of max/mean over single shards, each counting alike. */
static double shards_score(const bl_layer_placement *placement, const double *load,
                           const int *slots) {
    bl_error err;
    double sum = 0.0;
    for (int shard = 0; shard < SHARDS / 2; shard++) {
        const bl_problem one = problem_of(load + shard * ROUTED, 1, ROUTED, DEVICES, slots);
        bl_score score;
        assert_ok(bl_evaluate(&one, placement, &score, &err));
        sum += score.max_over_mean / (SHARDS / 2);
    }
    return sum;
}

static void real_texts_are_held_better(void **state) {
    (void)state;
    bl_error err;
    bl_npy npy;
    assert_ok(bl_npy_load(bl_test_data("routing/glm-5.2/shards.npy"), &npy, &err));
    static double seen[SHARDS / 2 * ROUTED], unseen[SHARDS / 2 * ROUTED];
    int slots[DEVICES];
    double mean[2] = {0.0, 0.0};
    for (int rank = 0; rank < DEVICES; rank++)
        slots[rank] = 9;
    for (int layer = 4; layer < LAYERS; layer += 10) {
        shards_of(&npy, layer, 0, seen);
        shards_of(&npy, layer, 1, unseen);
        for (int robust = 0; robust < 2; robust++) {
            bl_problem problem = problem_of(seen, SHARDS / 2, ROUTED, DEVICES, slots);
            bl_solve_options options = BL_SOLVE_OPTIONS_INIT;
            options.algorithm = robust ? BL_ALG_SEARCH : BL_ALG_GREEDY;
            bl_solution solution;
            assert_ok(bl_solve(&problem, &options, &solution, &err));
            mean[robust] += shards_score(&solution.placement, unseen, slots) / 8;
            bl_solution_free(&solution);
        }
    }
    bl_npy_free(&npy);
    print_message("# shards not seen: greedy %.4f, robust %.4f\n", mean[0], mean[1]);
    assert_true(mean[1] < 0.85 * mean[0]);
}

static void same_seed_same_plan(void **state) {
    (void)state;
    bl_error err;
    int slots[RANKS];
    bl_rng rng;
    world w;
    static double seen[SEEN * EXPERTS];
    slots_fill(slots);
    bl_rng_seed(&rng, 3);
    world_make(&rng, &w);
    texts_draw(&rng, &w, SEEN, seen);
    const bl_problem problem = problem_of(seen, SEEN, EXPERTS, RANKS, slots);
    bl_solution one, two;
    assert_ok(bl_solve(&problem, &BL_SOLVE_OPTIONS_INIT, &one, &err));
    assert_ok(bl_solve(&problem, &BL_SOLVE_OPTIONS_INIT, &two, &err));
    assert_memory_equal(one.placement.expert, two.placement.expert,
                        RANKS * SLOTS * sizeof *one.placement.expert);
    bl_solution_free(&one);
    bl_solution_free(&two);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cost_by_hand),
        cmocka_unit_test(tiny_instances_are_solved),
        cmocka_unit_test(regularised_plans_hold_better),
        cmocka_unit_test(noise_moves_nothing_and_drift_keeps_the_budget),
        cmocka_unit_test(drift_is_followed_with_few_moves),
        cmocka_unit_test(real_texts_are_held_better),
        cmocka_unit_test(same_seed_same_plan),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
