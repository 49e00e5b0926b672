/* Groups of experts on nodes: the best choice against trying all, and EPLB's hierarchical policy. */
#include "tests/support/support.h"

#include "core/rng.h"
#include "planner/groups.h"
#include "planner/solve.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* The example in EPLB's README: 12 experts in 4 groups, 16 slots, 2 nodes of 4 ranks. */
static void test_eplb_example(void **state) {
    (void)state;
    static const double load[2][12] = {{90, 132, 40, 61, 104, 165, 39, 4, 73, 56, 183, 86},
                                       {20, 107, 104, 64, 19, 197, 187, 157, 172, 86, 16, 27}};
    static const int32_t expected[2][16] = {{5, 6, 5, 7, 8, 4, 3, 4, 10, 9, 10, 2, 0, 1, 11, 1},
                                            {7, 10, 6, 8, 6, 11, 8, 9, 2, 4, 5, 1, 5, 0, 3, 1}};
    const int slots[] = {2, 2, 2, 2, 2, 2, 2, 2}, node[] = {0, 0, 0, 0, 1, 1, 1, 1};
    bl_error err;
    for (int l = 0; l < 2; l++) {
        const bl_problem problem = {.layer = l,
                                    .n_experts = 12,
                                    .n_ranks = 8,
                                    .n_scenarios = 1,
                                    .load = load[l],
                                    .slots_per_rank = slots,
                                    .max_moves = -1,
                                    .n_groups = 4,
                                    .node = node};
        bl_solve_options options = BL_SOLVE_OPTIONS_INIT;
        options.algorithm = BL_ALG_GREEDY_HIERARCHICAL;
        bl_solution found;
        assert_ok(bl_solve(&problem, &options, &found, &err));
        assert_memory_equal(found.placement.expert, expected[l], sizeof expected[l]);
        bl_solution_free(&found);
    }
}

/* Groups that do not divide over the nodes, or a node that lost too many slots: the global policy. */
static void test_falls_back_to_global(void **state) {
    (void)state;
    static const double load[] = {9, 8, 7, 6, 5, 4, 3, 2};
    const int node[] = {0, 0, 1, 1};
    static const struct {
        int n_groups, slots[4];
    } cases[] = {{1, {3, 3, 3, 3}}, {3, {3, 3, 3, 3}}, {2, {5, 5, 3, 0}}};
    bl_error err;
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        const bl_problem problem = {.n_experts = 8,
                                    .n_ranks = 4,
                                    .n_scenarios = 1,
                                    .load = load,
                                    .slots_per_rank = cases[c].slots,
                                    .max_moves = -1,
                                    .n_groups = cases[c].n_groups,
                                    .node = node};
        bl_solve_options options = BL_SOLVE_OPTIONS_INIT;
        bl_solution global, hierarchical;
        options.algorithm = BL_ALG_GREEDY;
        assert_ok(bl_solve(&problem, &options, &global, &err));
        options.algorithm = BL_ALG_GREEDY_HIERARCHICAL;
        assert_ok(bl_solve(&problem, &options, &hierarchical, &err));
        assert_memory_equal(global.placement.expert, hierarchical.placement.expert,
                            (size_t)bl_layer_n_slots(&global.placement) * sizeof(int32_t));
        bl_solution_free(&global);
        bl_solution_free(&hierarchical);
    }
}

typedef struct instance {
    double load[3 * 16];
    int slots[9], node[9];
    bl_problem problem;
} instance;

static void make(bl_rng *rng, instance *in) {
    const int n_nodes = 2 + (int)bl_rng_below(rng, 2), per_node = 2 + (int)bl_rng_below(rng, 2);
    const int n_groups = n_nodes + (int)bl_rng_below(rng, 3), size = 2;
    const int n_scenarios = 1 + (int)bl_rng_below(rng, 3);
    for (int at = 0; at < n_scenarios * n_groups * size; at++)
        in->load[at] = (double)(1 + bl_rng_below(rng, 60));
    for (int rank = 0; rank < n_nodes * per_node; rank++) {
        in->node[rank] = rank / per_node;
        in->slots[rank] = 2 * n_groups / (n_nodes * per_node) + (int)bl_rng_below(rng, 3);
    }
    in->problem = (bl_problem){.n_experts = n_groups * size,
                               .n_ranks = n_nodes * per_node,
                               .n_scenarios = n_scenarios,
                               .load = in->load,
                               .slots_per_rank = in->slots,
                               .max_moves = -1,
                               .n_groups = n_groups,
                               .node = in->node};
}

/* Sum over scenarios of the heaviest node's load per rank, or INFINITY when it does not fit. */
static double worth(const bl_problem *p, const int *node_of) {
    double sum = 0.0;
    for (int s = 0; s < p->n_scenarios; s++) {
        double most = 0.0;
        for (int node = 0; node <= p->node[p->n_ranks - 1]; node++) {
            double load = 0.0;
            int ranks = 0, slots = 0, experts = 0, largest = 0;
            for (int rank = 0; rank < p->n_ranks; rank++) {
                if (p->node[rank] != node)
                    continue;
                ranks += p->slots_per_rank[rank] > 0;
                slots += p->slots_per_rank[rank];
                largest = p->slots_per_rank[rank] > largest ? p->slots_per_rank[rank] : largest;
            }
            for (int expert = 0; expert < p->n_experts; expert++) {
                if (node_of[expert / 2] != node)
                    continue;
                experts++;
                load += p->load[s * p->n_experts + expert];
            }
            if (experts > slots || experts < largest)
                return INFINITY;
            if (ranks > 0)
                most = fmax(most, load / ranks);
        }
        sum += most;
    }
    return sum;
}

static double best_of_all(const bl_problem *p, int *node_of, int group) {
    if (group == p->n_groups)
        return worth(p, node_of);
    double best = INFINITY;
    for (int node = 0; node <= p->node[p->n_ranks - 1]; node++) {
        node_of[group] = node;
        best = fmin(best, best_of_all(p, node_of, group + 1));
    }
    return best;
}

static void test_choice_against_all(void **state) {
    (void)state;
    bl_error err;
    bl_rng rng;
    bl_rng_seed(&rng, 61);
    int solved = 0, infeasible = 0;
    for (int round = 0; round < 500; round++) {
        instance in;
        int node_of[BL_MAX_GROUPS];
        bl_groups groups;
        make(&rng, &in);
        const double best = best_of_all(&in.problem, node_of, 0);
        const bl_status st = bl_groups_choose(&in.problem, &groups, &err);
        if (!isfinite(best)) {
            assert_int_equal(st, BL_ERR_INFEASIBLE);
            infeasible++;
            continue;
        }
        assert_int_equal(st, BL_OK);
        assert_true(groups.proven);
        assert_true(fabs(worth(&in.problem, groups.node_of) - best) <= 2e-6 * best);
        solved++;

        /* The whole layer, planned with these nodes: groups are whole and the bound holds. */
        bl_holds may;
        assert_ok(bl_groups_rule(&in.problem, &groups, &may, &err));
        const bl_rules rules = {&may, NULL, NULL};
        in.problem.rules = &rules;
        bl_solve_options options = BL_SOLVE_OPTIONS_INIT;
        options.algorithm = BL_ALG_SEARCH;
        bl_solution found;
        assert_ok(bl_solve(&in.problem, &options, &found, &err));
        for (int rank = 0; rank < in.problem.n_ranks; rank++) {
            for (int slot = found.placement.begin[rank]; slot < found.placement.begin[rank + 1];
                 slot++)
                assert_int_equal(groups.node_of[found.placement.expert[slot] / 2], in.node[rank]);
        }
        double total = 0.0;
        for (int at = 0; at < in.problem.n_scenarios * in.problem.n_experts; at++)
            total += in.load[at];
        assert_true(found.bound.max_over_mean * total / bl_problem_active_ranks(&in.problem) >=
                    (in.problem.n_scenarios == 1 ? best : 0) * (1 - 1e-9));
        bl_solution_free(&found);
        bl_holds_free(&may);
    }
    printf("# groups: %d solved, %d infeasible\n", solved, infeasible);
    assert_true(solved > 250 && infeasible > 20);
}

/* Nodes in force stay unless another choice is better by min_gain. */
static void test_nodes_in_force_stay(void **state) {
    (void)state;
    bl_error err;
    /* Groups of 10, 9, 8, 7 on two nodes: {10, 7} | {9, 8} are 17 and 17, in force are 19 and 15. */
    const double load[] = {5, 5, 5, 4, 4, 4, 4, 3};
    const int slots[] = {4, 4}, node[] = {0, 1};
    int begin[] = {0, 4, 8};
    int32_t expert[] = {0, 1, 2, 3, 4, 5, 6, 7};
    const bl_layer_placement current = {0, 0, 2, 8, begin, expert};
    bl_problem problem = {.n_experts = 8,
                          .n_ranks = 2,
                          .n_scenarios = 1,
                          .load = load,
                          .slots_per_rank = slots,
                          .max_moves = -1,
                          .current = &current,
                          .n_groups = 4,
                          .node = node};
    bl_groups groups;
    problem.min_gain = 0.2;
    assert_ok(bl_groups_choose(&problem, &groups, &err));
    assert_true(groups.node_of[0] == 0 && groups.node_of[1] == 0 && groups.node_of[2] == 1);
    problem.min_gain = 0.03;
    assert_ok(bl_groups_choose(&problem, &groups, &err));
    assert_true(groups.node_of[0] == groups.node_of[3] && groups.node_of[1] == groups.node_of[2]);
}

static void test_refusals(void **state) {
    (void)state;
    bl_error err;
    const double load[] = {1, 1, 1, 1, 1, 1, 1, 1};
    const int slots[] = {3, 3, 3}, node[] = {0, 1, 2};
    bl_problem problem = {.n_experts = 8,
                          .n_ranks = 3,
                          .n_scenarios = 1,
                          .load = load,
                          .slots_per_rank = slots,
                          .max_moves = -1,
                          .n_groups = 2,
                          .node = node};
    bl_groups groups;
    assert_fails(bl_groups_choose(&problem, &groups, &err), BL_ERR_INFEASIBLE,
                 "2 groups of experts cannot be kept whole on 3 nodes: 1 nodes would hold nothing");
    problem.n_groups = 4;
    assert_fails(bl_groups_choose(&problem, &groups, &err), BL_ERR_INFEASIBLE,
                 "1 more slots on every node would do");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_eplb_example),       cmocka_unit_test(test_falls_back_to_global),
        cmocka_unit_test(test_choice_against_all), cmocka_unit_test(test_nodes_in_force_stay),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
