/* Plans by source: rules nearest, fixed and local, and few rows between nodes. */
#include "tests/support/support.h"

#include "core/rng.h"
#include "planner/share_search.h"
#include "planner/solve.h"
#include "planner/traffic.h"
#include "planner/traffic_plan.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { RANKS = 4, MOST_EXPERTS = 8, MOST_SCENARIOS = 3, MOST_TOKENS = 400 };

/* A layer on ranks 0, 1 | 2, 3, built from tokens. */
typedef struct layer {
    int node[RANKS], slots[RANKS];
    bl_sites sites;
    bl_sources sources;
    double load[MOST_SCENARIOS * MOST_EXPERTS];
    double by_source[MOST_SCENARIOS * RANKS * MOST_EXPERTS];
    size_t first[MOST_SCENARIOS + 1];
    int32_t source[MOST_TOKENS], id[MOST_TOKENS * 2];
    uint64_t step[MOST_TOKENS];
    double scale[MOST_SCENARIOS];
    bl_problem problem;
} layer;

static void wire(layer *x, int n_experts, int n_scenarios, int slots_per_rank, bl_rule rule) {
    for (int rank = 0; rank < RANKS; rank++) {
        x->node[rank] = rank / 2;
        x->slots[rank] = slots_per_rank;
    }
    for (int s = 0; s < n_scenarios; s++)
        x->scale[s] = 1.0;
    x->sites = (bl_sites){RANKS, 2, 1, x->node, x->node};
    x->sources = (bl_sources){.layer = 7,
                              .n_groups = n_scenarios,
                              .n_sources = RANKS,
                              .n_experts = n_experts,
                              .k = 2,
                              .load = x->by_source,
                              .whole = true,
                              .weight = 1.0,
                              .first = x->first,
                              .source = x->source,
                              .step = x->step,
                              .id = x->id,
                              .scale = x->scale};
    x->problem = (bl_problem){.layer = 7,
                              .n_experts = n_experts,
                              .n_ranks = RANKS,
                              .n_scenarios = n_scenarios,
                              .load = x->load,
                              .slots_per_rank = x->slots,
                              .rule = rule,
                              .max_moves = -1,
                              .sources = &x->sources,
                              .sites = &x->sites,
                              .few_remote = true};
}

/* Tokens of scenario s; called for ascending scenarios. */
static void add_token(layer *x, int scenario, int source, int a, int b) {
    const size_t n = x->sources.n_tokens++;
    const int experts = x->problem.n_experts;
    x->source[n] = source;
    x->step[n] = (uint64_t)scenario;
    x->id[2 * n] = a;
    x->id[2 * n + 1] = b;
    for (int s = scenario + 1; s <= x->sources.n_groups; s++)
        x->first[s] = n + 1;
    for (int i = 0; i < 2; i++) {
        x->load[scenario * experts + (i == 0 ? a : b)] += 1.0;
        x->by_source[(scenario * RANKS + source) * experts + (i == 0 ? a : b)] += 1.0;
    }
}

/* Source ranks in turn, each with an inclination. */
static void fill(layer *x, bl_rng *rng, int per_rank) {
    for (int s = 0; s < x->sources.n_groups; s++) {
        for (int source = 0; source < RANKS; source++) {
            for (int i = 0; i < per_rank; i++) {
                const uint32_t n = (uint32_t)x->problem.n_experts;
                int a = (int)(bl_rng_below(rng, n) * bl_rng_unit(rng));
                int b = (int)bl_rng_below(rng, n);
                a = (a + source / 2 * 2) % (int)n;
                if (b == a)
                    b = (b + 1) % (int)n;
                add_token(x, s, source, a, b);
            }
        }
    }
}

static double remote_of(const layer *x, const bl_layer_placement *placement) {
    bl_error err;
    double out;
    assert_ok(bl_share_crossing(&x->problem, placement, &out, &err));
    return out;
}

static bl_solution solved(const layer *x) {
    bl_error err;
    bl_solve_options options = BL_SOLVE_OPTIONS_INIT;
    bl_solution solution = {0};
    options.iterations = 4000;
    assert_ok(bl_solve(&x->problem, &options, &solution, &err));
    assert_true(solution.gap >= 0.0);
    return solution;
}

/* Tokens of node A use only experts 0 and 1: they live on A, under every rule. */
static void experts_live_where_their_tokens_are_born(void **state) {
    (void)state;
    const bl_rule rules[] = {BL_RULE_EVEN, BL_RULE_NEAREST, BL_RULE_FIXED, BL_RULE_LOCAL};
    for (int r = 0; r < 4; r++) {
        for (int dispatch = BL_DISPATCH_ASSIGNMENT; dispatch <= BL_DISPATCH_DEDUP_NODE;
             dispatch++) {
            static layer x;
            x = (layer){0};
            wire(&x, 4, 1, 1, rules[r]);
            x.problem.dispatch = dispatch;
            for (int i = 0; i < 40; i++)
                add_token(&x, 0, i / 10, i < 20 ? 0 : 2, i < 20 ? 1 : 3);
            bl_solution solution = solved(&x);
            for (int rank = 0; rank < RANKS; rank++)
                assert_int_equal(solution.placement.expert[rank] / 2, rank / 2);
            assert_true(fabs(solution.score.max_over_mean - 1.0) < 1e-9);
            bl_solution_free(&solution);
        }
    }
}

/* By allgather every placement costs the same, so nothing is given up for it. */
static void allgather_moves_nothing(void **state) {
    (void)state;
    bl_error err;
    static layer x;
    bl_rng rng;
    bl_rng_seed(&rng, 2);
    x = (layer){0};
    wire(&x, 6, 2, 2, BL_RULE_EVEN);
    fill(&x, &rng, 20);
    x.problem.dispatch = BL_DISPATCH_ALLGATHER;
    bl_traffic_plan_result result;
    const bl_traffic_plan_options options = {.seed = 1};
    bl_solution solution = solved(&x), again = solved(&x);
    assert_ok(bl_traffic_plan(&x.problem, &options, &again.placement, &result, &err));
    assert_false(result.tried);
    assert_memory_equal(solution.placement.expert, again.placement.expert, 8 * sizeof(int32_t));
    bl_solution_free(&solution);
    bl_solution_free(&again);
}

/* ---- against every placement ------------------------------------------------------------------- */

typedef struct brute {
    layer *x;
    bl_layer_placement placement;
    double limit;
    double best_score, best_crossing;
} brute;

static void try_slot(brute *b, int slot) {
    bl_error err;
    if (slot == bl_layer_n_slots(&b->placement)) {
        bl_score score;
        if (bl_layer_placement_check(&b->placement, NULL, NULL) < 0)
            return;
        assert_ok(bl_evaluate(&b->x->problem, &b->placement, &score, &err));
        b->best_score = fmin(b->best_score, score.max_over_mean);
        if (score.max_over_mean <= b->limit + 1e-9)
            b->best_crossing = fmin(b->best_crossing, remote_of(b->x, &b->placement));
        return;
    }
    /* slots of a rank ascend: their order does not matter */
    const bool inner = slot % b->x->slots[0] != 0;
    for (int e = inner ? b->placement.expert[slot - 1] + 1 : 0; e < b->x->problem.n_experts; e++) {
        b->placement.expert[slot] = e;
        try_slot(b, slot + 1);
    }
}

static brute by_force(layer *x, double limit) {
    bl_error err;
    brute b = {.x = x, .limit = limit, .best_score = INFINITY, .best_crossing = INFINITY};
    assert_ok(bl_problem_empty_placement(&x->problem, &b.placement, &err));
    try_slot(&b, 0);
    bl_layer_placement_free(&b.placement);
    return b;
}

static void searches_reach_the_best(void **state) {
    (void)state;
    bl_error err;
    bl_rng rng;
    bl_rng_seed(&rng, 41);
    const bl_rule rules[] = {BL_RULE_EVEN, BL_RULE_NEAREST, BL_RULE_FIXED};
    int n_balanced = 0, n_short = 0;
    for (int round = 0; round < 9; round++) {
        static layer x;
        bl_score score;
        bl_layer_placement placement;
        x = (layer){0};
        wire(&x, 5, 2, 2, rules[round % 3]);
        fill(&x, &rng, 12);
        const brute balance = by_force(&x, INFINITY);
        const brute crossing = by_force(&x, balance.best_score * 1.05);
        assert_ok(bl_problem_empty_placement(&x.problem, &placement, &err));
        for (int slot = 0; slot < 8; slot++)
            placement.expert[slot] = slot % 5;
        bl_share_options options = {.aim = BL_AIM_BALANCE, .seed = 1, .proposals = 6000};
        assert_ok(bl_share_search(&x.problem, &options, &placement, &err));
        assert_ok(bl_evaluate(&x.problem, &placement, &score, &err));
        assert_true(score.max_over_mean >= balance.best_score - 1e-9);
        n_balanced += score.max_over_mean <= balance.best_score + 1e-9;
        options.aim = BL_AIM_CROSSING;
        options.limit = balance.best_score * 1.05;
        assert_ok(bl_share_search(&x.problem, &options, &placement, &err));
        assert_ok(bl_evaluate(&x.problem, &placement, &score, &err));
        assert_true(score.max_over_mean <= options.limit + 1e-6);
        const double reached = remote_of(&x, &placement);
        assert_true(reached >= crossing.best_crossing - 1e-9);
        n_short += reached <= crossing.best_crossing + 1e-9;
        bl_layer_placement_free(&placement);
    }
    /* Eight slots are rugged: one in ten ends beside the best. */
    assert_in_range(n_balanced, 7, 9);
    assert_in_range(n_short, 7, 9);
}

/* The search's books agree with the evaluator's: crossing is what the meter counts. */
static void crossing_is_what_the_meter_counts(void **state) {
    (void)state;
    bl_error err;
    bl_rng rng;
    bl_rng_seed(&rng, 43);
    static layer x;
    x = (layer){0};
    wire(&x, 6, 3, 2, BL_RULE_NEAREST);
    fill(&x, &rng, 10);
    bl_solution solution = solved(&x);
    const bl_rule rules[] = {BL_RULE_EVEN, BL_RULE_NEAREST, BL_RULE_FIXED};
    for (int r = 0; r < 3; r++) {
        double rows = 0.0, all = 0.0, slot_rows[8];
        bl_source_split *split;
        bl_traffic traffic;
        x.problem.rule = rules[r];
        assert_ok(bl_source_split_create(&solution.placement, rules[r], NULL, &x.sites, RANKS,
                                         &split, &err));
        assert_ok(bl_traffic_create(NULL, &x.sites, BL_DISPATCH_ASSIGNMENT, BL_DISPATCH_ASSIGNMENT,
                                    &traffic, &err));
        for (int s = 0; s < 3; s++)
            assert_ok(bl_source_split_rows(split, &x.sources, s, slot_rows, &traffic, &err));
        for (int i = 0; i < RANKS * RANKS; i++) {
            all += traffic.dispatch[i];
            rows += i / RANKS / 2 != i % RANKS / 2 ? traffic.dispatch[i] : 0.0;
        }
        assert_true(fabs(remote_of(&x, &solution.placement) - rows / all) < 1e-12);
        bl_source_split_free(split);
        bl_traffic_free(&traffic);
    }
    bl_solution_free(&solution);
}

/* From a placement in force: nothing moves for traffic, and the limit on moves is kept. */
static void moves_keep_within_their_limit(void **state) {
    (void)state;
    bl_rng rng;
    bl_rng_seed(&rng, 47);
    static layer x;
    x = (layer){0};
    wire(&x, 6, 2, 2, BL_RULE_NEAREST);
    fill(&x, &rng, 25);
    bl_solution first = solved(&x);
    x.problem.current = &first.placement;
    x.problem.min_gain = 0.03;
    bl_solution same = solved(&x);
    assert_int_equal(same.moves, 0);
    assert_true(same.kept_current);
    bl_solution_free(&same);
    for (int i = 0; i < 2 * 6; i++) /* other traffic */
        x.load[i] += i % 6 == 2 ? 40 : 0;
    for (int i = 0; i < 2 * RANKS * 6; i++)
        x.by_source[i] += i % 6 == 2 ? 10 : 0;
    x.problem.max_moves = 1;
    bl_solution next = solved(&x);
    assert_in_range(next.moves, 0, 1);
    bl_solution_free(&next);
    bl_solution_free(&first);
}

/* Both nodes pick experts 0, 1 and 2, 3 in pairs; node A `more` times of 200 the pair that is on B now. All is
 * level, so moves are for traffic alone: exchanging the pairs saves 2 - 200 / more of what crosses. */
static void a_placement_in_force_is_changed_for_much_less_traffic(void **state) {
    (void)state;
    const bl_rule rules[] = {BL_RULE_EVEN, BL_RULE_NEAREST, BL_RULE_FIXED, BL_RULE_LOCAL};
    const struct {
        int more, max_moves, moves;
    } cases[] = {{105, -1, 4}, {101, -1, 0}, {105, 1, 0}, {105, 3, 2}, {200, -1, 4}};
    for (int c = 0; c < 4 * 5; c++) {
        const int at = c % 5;
        static layer x;
        bl_error err;
        x = (layer){0};
        wire(&x, 4, 1, 1, rules[c / 5]);
        for (int i = 0; i < 400; i++) {
            const bool far = i % 200 < cases[at].more, on_b = i >= 200;
            const int first = far != on_b ? 2 : 0;
            add_token(&x, 0, (on_b ? 2 : 0) + i % 2, first, first + 1);
        }
        bl_placement current;
        assert_ok(bl_placement_create(RANKS, 4, &x.problem.layer, 1, x.slots, &current, &err));
        bl_placement_fill_contiguous(&current);
        x.problem.current = &current.layers[0];
        x.problem.max_moves = cases[at].max_moves;
        x.problem.min_gain = 0.03;
        bl_solution solution = solved(&x);
        assert_int_equal(solution.moves, cases[at].moves);
        assert_int_equal(solution.kept_current, cases[at].moves == 0);
        assert_true(fabs(solution.score.max_over_mean - 1.0) < 1e-9);
        if (cases[at].moves == 4)
            assert_true(solution.placement.expert[0] >= 2 && solution.placement.expert[1] >= 2);
        bl_solution_free(&solution);
        bl_placement_free(&current);
    }
}

static void without_sources_it_is_refused(void **state) {
    (void)state;
    bl_error err;
    const bl_rule rules[] = {BL_RULE_NEAREST, BL_RULE_FIXED, BL_RULE_LOCAL};
    for (int r = 0; r < 3; r++) {
        static layer x;
        x = (layer){0};
        wire(&x, 4, 1, 1, rules[r]);
        add_token(&x, 0, 0, 0, 1);
        x.problem.sources = NULL;
        bl_solve_options options = BL_SOLVE_OPTIONS_INIT;
        bl_solution solution;
        assert_fails(bl_solve(&x.problem, &options, &solution, &err), BL_ERR_UNSUPPORTED,
                     bl_rule_names[rules[r]]);
        bl_test_has(err.text, "the rank a token is born on");
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(experts_live_where_their_tokens_are_born),
        cmocka_unit_test(allgather_moves_nothing),
        cmocka_unit_test(searches_reach_the_best),
        cmocka_unit_test(crossing_is_what_the_meter_counts),
        cmocka_unit_test(moves_keep_within_their_limit),
        cmocka_unit_test(a_placement_in_force_is_changed_for_much_less_traffic),
        cmocka_unit_test(without_sources_it_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
