/* Moves, bytes and modelled seconds between placements, and the modelled time of a layer; values
 * worked out by hand. */
#include "tests/support/support.h"

#include "core/json.h"
#include "planner/cost.h"
#include "planner/diff.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Two nodes of two ranks: 100 B/s and 1 s inside, 10 B/s and 2 s between, one port each. */
static bl_topology two_nodes(void) {
    static const char text[] =
        "{\"format\":\"ballast-topology\",\"version\":1,\"name\":\"toy\",\"description\":\"\","
        "\"devices\":[{\"name\":\"d\",\"memory_bytes\":{\"value\":1e9,\"source\":\"assumed\"},"
        "\"memory_bytes_per_s\":{\"value\":36,\"source\":\"assumed\"},"
        "\"expert_share\":{\"value\":0.5,\"source\":\"assumed\"},"
        "\"flop_per_s\":{\"bf16\":{\"value\":72,\"source\":\"assumed\"}}}],"
        "\"levels\":[{\"name\":\"node\",\"latency_s\":{\"value\":1,\"source\":\"assumed\"},"
        "\"message_s\":{\"value\":0,\"source\":\"assumed\"},"
        "\"out_bytes_per_s\":{\"value\":100,\"source\":\"assumed\"},"
        "\"in_bytes_per_s\":{\"value\":100,\"source\":\"assumed\"},"
        "\"ports\":{\"value\":1,\"source\":\"assumed\"}},"
        "{\"name\":\"cluster\",\"latency_s\":{\"value\":2,\"source\":\"assumed\"},"
        "\"message_s\":{\"value\":0,\"source\":\"assumed\"},"
        "\"out_bytes_per_s\":{\"value\":10,\"source\":\"assumed\"},"
        "\"in_bytes_per_s\":{\"value\":10,\"source\":\"assumed\"},"
        "\"ports\":{\"value\":1,\"source\":\"assumed\"}}],\"shape\":[2,2]}";
    bl_error err;
    json_t *root;
    bl_topology topology = {0};
    assert_ok(bl_json_parse(text, sizeof text - 1, "toy", &root, &err));
    assert_ok(bl_topology_from_json(root, NULL, NULL, "toy", &topology, &err));
    json_decref(root);
    return topology;
}

/* One layer on ranks of two slots each. */
static bl_placement placement_of(const int32_t *experts, int n_ranks, int n_experts) {
    bl_error err;
    const int layer = 5;
    int slots[8];
    bl_placement placement;
    for (int rank = 0; rank < n_ranks; rank++)
        slots[rank] = 2;
    assert_ok(bl_placement_create(n_ranks, n_experts, &layer, 1, slots, &placement, &err));
    memcpy(placement.layers[0].expert, experts, sizeof *experts * 2 * (size_t)n_ranks);
    return placement;
}

static void check_diff(const int32_t *from, const int32_t *to, int64_t moves, double seconds) {
    bl_error err;
    bl_topology topology = two_nodes();
    bl_placement a = placement_of(from, 4, 4), b = placement_of(to, 4, 4);
    bl_diff diff;
    assert_ok(bl_diff_of(&a, &b, 100, &topology, &diff, &err));
    assert_int_equal(diff.moves, moves);
    assert_int_equal(diff.bytes, 100 * moves);
    assert_int_equal(diff.n_layers, 1);
    assert_int_equal(diff.layer[0], 5);
    assert_int_equal(diff.layer_moves[0], moves);
    assert_true(fabs(diff.seconds - seconds) < 1e-9);
    bl_diff_free(&diff);
    bl_placement_free(&a);
    bl_placement_free(&b);
    bl_topology_free(&topology);
}

static void moves_take_the_nearest_source(void **state) {
    (void)state;
    static const int32_t from[] = {0, 1, 2, 3, 0, 2, 1, 3};
    static const int32_t to[] = {0, 2, 1, 3, 0, 1, 3, 1};
    /* Rank 0 gets expert 2 from rank 1, rank 1 gets 1 from rank 0, rank 2 gets 1 from rank 3: each
     * link carries 100 B at 100 B/s. Slot order on rank 3 is no move. */
    check_diff(from, to, 3, 1.0 + 1.0);
}

static void copies_between_nodes_share_the_port(void **state) {
    (void)state;
    static const int32_t from[] = {0, -1, 1, -1, 2, -1, 3, -1};
    static const int32_t to[] = {0, 2, 1, 3, 2, -1, 3, -1};
    /* Two bundles leave node 1 by its one port of 10 B/s. */
    check_diff(from, to, 2, 20.0 + 2.0);
}

static void unchanged_and_dropped_copies_are_free(void **state) {
    (void)state;
    static const int32_t from[] = {0, 1, 2, 3, 0, 2, 1, 3};
    static const int32_t to[] = {1, 0, 3, 2, 2, -1, -1, 1};
    check_diff(from, from, 0, 0.0);
    check_diff(from, to, 0, 0.0);
}

static void what_a_diff_needs(void **state) {
    (void)state;
    bl_error err;
    bl_topology topology = two_nodes();
    static const int32_t from[] = {0, 1, 0, 1, 2, 3, 2, 3};
    static const int32_t to[] = {0, 1, 0, 1, 0, 1, 2, 3};
    bl_placement a = placement_of(from, 4, 4), b = placement_of(to, 4, 4);
    bl_diff diff;
    /* Experts 0 and 1 both enter rank 2 at 10 B/s. */
    assert_ok(bl_diff_of(&a, &b, 10, &topology, &diff, &err));
    assert_int_equal(diff.moves, 2);
    assert_true(fabs(diff.seconds - (2.0 + 2.0)) < 1e-9);
    bl_diff_free(&diff);
    assert_ok(bl_diff_of(&a, &b, 10, NULL, &diff, &err));
    assert_true(isnan(diff.seconds));
    bl_diff_free(&diff);
    topology.n_ranks = 3;
    assert_fails(bl_diff_of(&a, &b, 10, &topology, &diff, &err), BL_ERR_SHAPE, "3 ranks, but 4");
    topology.n_ranks = 4;
    bl_placement_free(&a);
    bl_placement_free(&b);
    bl_topology_free(&topology);
}

static void layer_time_by_hand(void **state) {
    (void)state;
    bl_error err;
    bl_topology topology = two_nodes();
    const bl_model model = {.name = "m",
                            .n_experts = 4,
                            .hidden_size = 2,
                            .moe_intermediate_size = 3,
                            .expert_bytes = 36,
                            .dispatch_bytes_per_row = 4,
                            .combine_bytes_per_row = 8};
    static const int32_t experts[] = {0, 1, 2, 3};
    bl_placement placement = placement_of(experts, 2, 4);
    bl_cost *cost;
    assert_ok(bl_cost_create(&model, &topology, 2, &cost, &err));
    /* Reading an expert takes 1 s, a row 36 / 72 = 0.5 s. Rank 0: max(1, 0.5) + max(1, 2) = 3 s;
     * rank 1: a copy used with probability a half, 0.5 s. Half of rank 0's 5 rows cross at 100 B/s:
     * 0.1 s there, 0.2 s back. Two exchanges of 1 s latency. */
    const double slot_rows[] = {1, 4, 0.5, 0}, rank_rows[] = {5, 0.5};
    const double seconds = bl_cost_layer_s(cost, &placement.layers[0], slot_rows, rank_rows);
    assert_true(fabs(seconds - (2.0 + 0.1 + 0.2 + 3.0)) < 1e-12);
    /* Counts of 4 experts, 16 B from the other rank at 100 B/s, one exchange of 1 s latency. */
    assert_true(fabs(bl_cost_counts_s(cost, 4) - 1.16) < 1e-12);
    bl_cost_free(cost);
    bl_placement_free(&placement);

    /* Four ranks: rank 0's 8 rows, two from each rank; four of them (32 B) enter its node by the
     * one port of 10 B/s, and so take 3.2 s; 6.4 s back. */
    static const int32_t all[] = {0, 1, 2, 3, 0, 1, 2, 3};
    placement = placement_of(all, 4, 4);
    assert_ok(bl_cost_create(&model, &topology, 4, &cost, &err));
    const double four_slots[] = {8, 0, 0, 0, 0, 0, 0, 0}, four_ranks[] = {8, 0, 0, 0};
    const double in_rank = 8 * 4 * (0.25 / 100 + 0.5 / 10), in_node = 8 * 4 * 0.5 / 10;
    assert_true(in_rank > in_node); /* the rank's own port is as slow and serves its peer too */
    const double want = 2 * 2.0 + in_rank + 2 * in_rank + 4.0;
    assert_true(fabs(bl_cost_layer_s(cost, &placement.layers[0], four_slots, four_ranks) - want) <
                1e-12);
    /* Spread over both ranks of the node, the node's port decides. */
    const double spread[] = {4, 0, 4, 0, 0, 0, 0, 0}, spread_ranks[] = {4, 4, 0, 0};
    const double spread_want = 2 * 2.0 + in_node + 2 * in_node + 2.0;
    assert_true(fabs(bl_cost_layer_s(cost, &placement.layers[0], spread, spread_ranks) -
                     spread_want) < 1e-12);
    bl_cost_free(cost);
    assert_fails(bl_cost_create(&model, &topology, 5, &cost, &err), BL_ERR_SHAPE, "4 ranks");
    const bl_model unsized = {.name = "m"};
    assert_fails(bl_cost_create(&unsized, &topology, 2, &cost, &err), BL_ERR_MODEL, "sizes of m");
    bl_placement_free(&placement);
    bl_topology_free(&topology);
}

/* What travels is known: 3 rows from rank 0 to 1 and 1 back; then rows between nodes. */
static void known_traffic_by_hand(void **state) {
    (void)state;
    bl_error err;
    bl_topology topology = two_nodes();
    const bl_model model = {.name = "m",
                            .n_experts = 4,
                            .hidden_size = 2,
                            .moe_intermediate_size = 3,
                            .expert_bytes = 36,
                            .dispatch_bytes_per_row = 4,
                            .combine_bytes_per_row = 8};
    static const int32_t experts[] = {0, 1, 2, 3}, all[] = {0, 1, 2, 3, 0, 1, 2, 3};
    bl_placement placement = placement_of(experts, 2, 4);
    bl_cost *cost;
    double scratch[64];
    assert_ok(bl_cost_create(&model, &topology, 2, &cost, &err));
    assert_true(bl_cost_scratch(cost) <= 64);
    const double slot_rows[] = {1, 4, 0.5, 0};
    const double dispatch[] = {7, 3, 1, 9}, combine[] = {7, 1, 3, 9}; /* own rows cross nothing */
    const double want = 2.0 + 3 * 4 / 100.0 + 3 * 8 / 100.0 + 3.0;
    assert_true(fabs(bl_cost_traffic_s(cost, &placement.layers[0], slot_rows, dispatch, combine,
                                       1.0, scratch) -
                     want) < 1e-12);
    assert_true(fabs(bl_cost_traffic_s(cost, &placement.layers[0], slot_rows, dispatch, combine,
                                       10.0, scratch) -
                     (2.0 + 10 * (0.12 + 0.24) + 3.0)) < 1e-12);
    bl_cost_free(cost);
    bl_placement_free(&placement);
    /* 5 rows each from 0 to 2 and from 1 to 3 leave their node by one port of 10 B/s. */
    placement = placement_of(all, 4, 4);
    assert_ok(bl_cost_create(&model, &topology, 4, &cost, &err));
    assert_true(bl_cost_scratch(cost) <= 64);
    double across[16] = {0}, none[16] = {0}, idle[8] = {0};
    across[0 * 4 + 2] = across[1 * 4 + 3] = 5;
    assert_true(
        fabs(bl_cost_traffic_s(cost, &placement.layers[0], idle, across, none, 1.0, scratch) -
             (2 * 2.0 + 10 * 4 / 10.0)) < 1e-12);
    bl_cost_free(cost);
    bl_placement_free(&placement);
    bl_topology_free(&topology);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(moves_take_the_nearest_source),
        cmocka_unit_test(copies_between_nodes_share_the_port),
        cmocka_unit_test(unchanged_and_dropped_copies_are_free),
        cmocka_unit_test(what_a_diff_needs),
        cmocka_unit_test(known_traffic_by_hand),
        cmocka_unit_test(layer_time_by_hand),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
