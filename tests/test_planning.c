/* The driver over all layers: scenarios, idle and missing layers, the move budget, provenance. */
#include "tests/support/support.h"

#include "core/rng.h"
#include "planner/planning.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LAYERS = 6, EXPERTS = 16, RANKS = 4, MAX_STEPS = 200 };

typedef struct world {
    bl_model model;
    bl_topology topology;
    bl_loads loads;
    bl_capacity capacity;
    bl_planning_options options;
    int moe_layers[LAYERS], load_layers[LAYERS];
    bool usable[LAYERS];
    char *why[LAYERS];
    uint64_t step_id[MAX_STEPS];
    uint64_t *count; /* [MAX_STEPS][LAYERS][EXPERTS] */
} world;

static uint64_t *row_of(world *w, size_t step, int row) {
    return w->count + (step * LAYERS + (size_t)row) * EXPERTS;
}

/* Layers 3..8 of 9, skewed loads that differ by layer and step. */
static world *world_new(size_t n_steps) {
    bl_error err;
    world *w = calloc(1, sizeof *w);
    assert_non_null(w);
    w->count = calloc(MAX_STEPS * LAYERS * EXPERTS, sizeof *w->count);
    assert_non_null(w->count);
    bl_topology whole = {0};
    assert_ok(bl_topology_open("hgx-h100", &whole, &err));
    assert_ok(bl_topology_take(&whole, RANKS, &w->topology, &err));
    bl_topology_free(&whole);
    bl_rng rng;
    bl_rng_seed(&rng, 11);
    for (int l = 0; l < LAYERS; l++) {
        w->moe_layers[l] = w->load_layers[l] = l + 3;
        w->usable[l] = true;
        w->why[l] = "its counts do not add up";
        for (size_t s = 0; s < MAX_STEPS; s++) {
            for (int e = 0; e < EXPERTS; e++)
                row_of(w, s, l)[e] = 10 + bl_rng_below(&rng, 20) + (e == l ? 200u : 0u);
        }
    }
    for (size_t s = 0; s < MAX_STEPS; s++)
        w->step_id[s] = s;
    w->model = (bl_model){.name = "toy",
                          .n_layers = 9,
                          .n_moe_layers = LAYERS,
                          .moe_layers = w->moe_layers,
                          .n_experts = EXPERTS,
                          .top_k = 2,
                          .expert_bytes = 1000,
                          .kv_bytes_per_token = 100};
    w->loads = (bl_loads){.n_steps = n_steps,
                          .n_layers = LAYERS,
                          .n_experts = EXPERTS,
                          .top_k = 2,
                          .layers = w->load_layers,
                          .usable = w->usable,
                          .why = w->why,
                          .step_id = w->step_id,
                          .count = w->count,
                          .digest = "00112233445566778899aabbccddeeff"};
    const bl_capacity_request request = {
        .n_experts = EXPERTS, .n_ranks = RANKS, .slots = 20, .redundant = -1};
    assert_ok(bl_capacity_of(&request, &w->capacity, &err));
    w->options = BL_PLANNING_OPTIONS_INIT;
    w->options.capacity = w->capacity;
    w->options.n_ranks = RANKS;
    w->options.compare = true;
    return w;
}

static void world_free(world *w) {
    bl_topology_free(&w->topology);
    bl_capacity_free(&w->capacity);
    free(w->count);
    free(w);
}

static bl_status run(world *w, bl_plan *plan, bl_planning_summary *summary, bl_error *err) {
    return bl_planning_run(&w->loads, &w->model, &w->topology, &w->options, NULL, plan, summary,
                           err);
}

static bl_planning_summary planned(world *w, bl_plan *plan) {
    bl_error err;
    bl_planning_summary summary;
    assert_ok(run(w, plan, &summary, &err));
    return summary;
}

static const json_t *provenance(const bl_plan *plan, const char *key) {
    const json_t *value = json_object_get(plan->provenance, key);
    if (value == NULL)
        fail_msg("provenance has no %s", key);
    return value;
}

static void a_plan_of_all_layers(void **state) {
    (void)state;
    bl_error err;
    world *w = world_new(4);
    bl_plan plan;
    const bl_planning_summary s = planned(w, &plan);
    assert_ok(bl_placement_check(&plan.placement, NULL, &err));
    assert_int_equal(plan.placement.n_layers, LAYERS);
    assert_int_equal(plan.placement.layers[5].layer, 8);
    assert_int_equal(plan.epoch, 0);
    assert_int_equal(s.n_layers, LAYERS);
    assert_int_equal(s.n_idle, 0);
    assert_int_equal(s.replicas, 4);
    assert_int_equal(s.replica_bytes, 4 * 1000 * LAYERS);
    assert_int_equal(s.rank_bytes, 1000 * LAYERS); /* 5 slots instead of 4 */
    assert_true(fabs(s.kv_tokens_lost - 60.0) < 1e-9);
    assert_true(s.bound.mean <= s.score.mean && s.score.mean <= s.greedy.mean + 1e-12);
    assert_true(s.score.mean < s.before.mean);
    assert_true(s.moves > 0); /* from the start layout */
    double gaps = 0.0;
    for (int l = 0; l < LAYERS; l++) {
        assert_true(plan.layers[l].scored);
        gaps += plan.layers[l].gap / LAYERS;
    }
    assert_true(fabs(gaps - s.gap.mean) < 1e-12);
    assert_string_equal(json_string_value(provenance(&plan, "objective")), "tokens");
    assert_string_equal(json_string_value(provenance(&plan, "rule")), "even");
    assert_string_equal(json_string_value(provenance(&plan, "trace")), w->loads.digest);
    assert_string_equal(json_string_value(provenance(&plan, "topology")), w->topology.name);
    int64_t first, end;
    assert_true(bl_plan_steps(&plan, &first, &end));
    assert_true(first == 0 && end == 4);
    bl_plan_free(&plan);
    world_free(w);
}

static void threads_and_repeats_give_the_same_plan(void **state) {
    (void)state;
    world *w = world_new(3);
    char *texts[3];
    for (int i = 0; i < 3; i++) {
        bl_plan plan;
        w->options.n_threads = i + 1;
        planned(w, &plan);
        json_t *root = bl_plan_to_json(&plan);
        texts[i] = json_dumps(root, 0);
        json_decref(root);
        bl_plan_free(&plan);
    }
    assert_string_equal(texts[0], texts[1]);
    assert_string_equal(texts[0], texts[2]);
    for (int i = 0; i < 3; i++)
        free(texts[i]);
    world_free(w);
}

static void long_traces_become_blocks(void **state) {
    (void)state;
    world *w = world_new(130);
    bl_plan plan;
    w->options.solve.algorithm = BL_ALG_GREEDY;
    w->options.first_step = 0;
    bl_planning_summary s = planned(w, &plan);
    assert_int_equal(s.steps_per_scenario, 3); /* 130 steps in at most 64 blocks */
    assert_int_equal(json_integer_value(provenance(&plan, "scenarios")), 44);
    assert_int_equal(json_integer_value(provenance(&plan, "steps_per_scenario")), 3);
    bl_plan_free(&plan);
    w->options.max_scenarios = 1;
    s = planned(w, &plan);
    assert_int_equal(s.steps_per_scenario, 130);
    /* One scenario: the score is that of the summed load. */
    double rank_load[RANKS] = {0};
    const bl_layer_placement *layer = &plan.placement.layers[0];
    for (int rank = 0; rank < RANKS; rank++) {
        for (int slot = layer->begin[rank]; slot < layer->begin[rank + 1]; slot++) {
            int copies = 0;
            for (int g = 0; g < RANKS; g++)
                copies += bl_layer_find(layer, g, layer->expert[slot]) >= 0;
            for (size_t step = 0; step < 130; step++)
                rank_load[rank] += (double)row_of(w, step, 0)[layer->expert[slot]] / copies;
        }
    }
    assert_true(fabs(bl_imbalance(rank_load, w->capacity.slots_per_rank, RANKS) -
                     plan.layers[0].score.max_over_mean) < 1e-9);
    bl_plan_free(&plan);
    world_free(w);
}

static void idle_and_missing_layers_keep_their_place(void **state) {
    (void)state;
    bl_error err;
    world *w = world_new(2);
    bl_plan plan, current;
    bl_planning_summary s = planned(w, &current);
    memset(row_of(w, 0, 1), 0, EXPERTS * sizeof *w->count); /* layer 4 idle */
    memset(row_of(w, 1, 1), 0, EXPERTS * sizeof *w->count);
    w->load_layers[0] = 2; /* not a MoE layer of this model */
    assert_fails(run(w, &plan, &s, &err), BL_ERR_MODEL, "not a MoE layer");
    assert_int_equal(err.layer, 2);
    w->load_layers[0] = 3;

    w->options.current = &current;
    s = planned(w, &plan);
    assert_string_equal(plan.layers[1].bound.kind, "idle");
    assert_true(plan.layers[1].score.max_over_mean == 1.0 && plan.layers[1].gap == 0.0);
    assert_int_equal(bl_layer_moves(&current.placement.layers[1], &plan.placement.layers[1]), 0);
    assert_int_equal(json_integer_value(json_array_get(provenance(&plan, "idle_layers"), 0)), 4);
    bl_plan_free(&plan);
    w->options.strict = true;
    assert_fails(run(w, &plan, &s, &err), BL_ERR_CONSERVATION, "without --strict");
    assert_int_equal(err.layer, 4);
    bl_plan_free(&current);
    world_free(w);
}

static void a_layer_absent_from_the_trace_is_listed(void **state) {
    (void)state;
    world *w = world_new(2);
    bl_plan plan;
    w->loads.n_layers = LAYERS - 1;
    uint64_t *packed = calloc(2 * (LAYERS - 1) * EXPERTS, sizeof *packed);
    assert_non_null(packed);
    for (size_t s = 0; s < 2; s++)
        memcpy(packed + s * (LAYERS - 1) * EXPERTS, row_of(w, s, 0),
               (LAYERS - 1) * EXPERTS * sizeof *packed);
    w->loads.count = packed;
    const bl_planning_summary s = planned(w, &plan);
    assert_int_equal(s.n_missing, 1);
    assert_int_equal(s.n_idle, 1);
    assert_int_equal(json_integer_value(json_array_get(provenance(&plan, "missing_layers"), 0)), 8);
    assert_int_equal(json_array_size(provenance(&plan, "idle_layers")), 0);
    /* Without a current placement: the start layout. */
    assert_int_equal(plan.placement.layers[5].expert[0], 0);
    bl_plan_free(&plan);
    free(packed);
    world_free(w);
}

static void broken_traces_are_refused_by_name(void **state) {
    (void)state;
    bl_error err;
    bl_plan plan;
    bl_planning_summary s;
    world *w = world_new(2);
    w->usable[2] = false;
    assert_fails(run(w, &plan, &s, &err), BL_ERR_CONSERVATION, "counts do not add up");
    assert_int_equal(err.layer, 5);
    w->usable[2] = true;
    for (int l = 1; l < LAYERS; l++) { /* only layer 3 has counts */
        memset(row_of(w, 0, l), 0, EXPERTS * sizeof *w->count);
        memset(row_of(w, 1, l), 0, EXPERTS * sizeof *w->count);
    }
    assert_fails(run(w, &plan, &s, &err), BL_ERR_CONSERVATION, "only 1 of the 6 MoE layers");
    w->loads.n_steps = 0;
    assert_fails(run(w, &plan, &s, &err), BL_ERR_CONSERVATION, "traffic");
    w->loads.n_steps = 2;
    w->loads.n_experts = 8;
    assert_fails(run(w, &plan, &s, &err), BL_ERR_MODEL, "of 8 experts");
    world_free(w);
}

static void current_must_match(void **state) {
    (void)state;
    bl_error err;
    world *w = world_new(2);
    bl_plan plan, current;
    bl_planning_summary s = planned(w, &current);
    w->options.current = &current;
    current.model_name[0] = 'T';
    assert_fails(run(w, &plan, &s, &err), BL_ERR_MODEL, "is for Toy");
    current.model_name[0] = 't';
    w->options.n_ranks = 3;
    assert_fails(run(w, &plan, &s, &err), BL_ERR_SHAPE, "for 4 ranks, not for 3");
    w->options.n_ranks = RANKS;
    current.placement.layers[5].layer = 99;
    assert_fails(run(w, &plan, &s, &err), BL_ERR_MODEL, "not in the current placement");
    assert_int_equal(err.layer, 8);
    current.placement.layers[5].layer = 8;
    bl_plan_free(&current);
    world_free(w);
}

static void unchanged_load_moves_nothing(void **state) {
    (void)state;
    world *w = world_new(2);
    bl_plan plan, current;
    planned(w, &current);
    current.epoch = 4;
    w->options.current = &current;
    const bl_planning_summary s = planned(w, &plan);
    assert_int_equal(s.moves, 0);
    assert_true(s.current_given);
    assert_int_equal(plan.epoch, 4);
    assert_string_equal(plan.digest.hex, current.digest.hex);
    bl_plan_free(&plan);
    bl_plan_free(&current);
    world_free(w);
}

/* Loads of every layer turned round: all layers want to move. */
static void move_budget_is_kept_over_all_layers(void **state) {
    (void)state;
    bl_error err;
    world *w = world_new(2);
    bl_plan plan, current;
    planned(w, &current);
    for (size_t step = 0; step < 2; step++) {
        for (int l = 0; l < LAYERS; l++) {
            uint64_t *row = row_of(w, step, l);
            for (int e = 0; e < EXPERTS / 2; e++) {
                const uint64_t kept = row[e];
                row[e] = row[EXPERTS - 1 - e];
                row[EXPERTS - 1 - e] = kept;
            }
        }
    }
    w->options.current = &current;
    bl_planning_summary s = planned(w, &plan);
    const int64_t wanted = s.moves;
    const double free_score = s.score.mean, before = s.before.mean;
    assert_int_equal(plan.epoch, 1);
    bl_plan_free(&plan);
    assert_true(wanted >= LAYERS);
    const int64_t budgets[] = {0, 1, wanted / 2, wanted};
    double last = before + 1e-12;
    for (size_t b = 0; b < 4; b++) {
        w->options.max_moves = budgets[b];
        s = planned(w, &plan);
        int64_t moves = 0;
        for (int l = 0; l < LAYERS; l++)
            moves += bl_layer_moves(&current.placement.layers[l], &plan.placement.layers[l]);
        assert_int_equal(moves, s.moves);
        assert_true(moves <= budgets[b]);
        assert_ok(bl_placement_check(&plan.placement, NULL, &err));
        assert_true(s.score.mean <= last);
        last = s.score.mean + 1e-12;
        bl_plan_free(&plan);
    }
    assert_true(fabs(last - 1e-12 - free_score) < 1e-12);
    bl_plan_free(&current);
    world_free(w);
}

static void masked_rank_holds_nothing(void **state) {
    (void)state;
    bl_error err;
    world *w = world_new(2);
    bl_plan plan;
    const bool masked[RANKS] = {false, true, false, false};
    const bl_capacity_request request = {
        .n_experts = EXPERTS, .n_ranks = RANKS, .slots = 24, .redundant = -1, .masked = masked};
    bl_capacity_free(&w->capacity);
    assert_ok(bl_capacity_of(&request, &w->capacity, &err));
    w->options.capacity = w->capacity;
    planned(w, &plan);
    for (int l = 0; l < LAYERS; l++) {
        const int *begin = plan.placement.layers[l].begin;
        assert_int_equal(begin[1], begin[2]);
        assert_int_equal(begin[4], 18);
    }
    assert_int_equal(json_integer_value(json_array_get(provenance(&plan, "masked_ranks"), 0)), 1);
    bl_plan_free(&plan);
    world_free(w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_plan_of_all_layers),
        cmocka_unit_test(threads_and_repeats_give_the_same_plan),
        cmocka_unit_test(long_traces_become_blocks),
        cmocka_unit_test(idle_and_missing_layers_keep_their_place),
        cmocka_unit_test(a_layer_absent_from_the_trace_is_listed),
        cmocka_unit_test(broken_traces_are_refused_by_name),
        cmocka_unit_test(current_must_match),
        cmocka_unit_test(unchanged_load_moves_nothing),
        cmocka_unit_test(move_budget_is_kept_over_all_layers),
        cmocka_unit_test(masked_rank_holds_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
