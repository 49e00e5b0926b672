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
    int load_layers[LAYERS];
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
        w->load_layers[l] = l + 3;
        w->usable[l] = true;
        w->why[l] = "its counts do not add up";
        for (size_t s = 0; s < MAX_STEPS; s++) {
            for (int e = 0; e < EXPERTS; e++)
                row_of(w, s, l)[e] = 10 + bl_rng_below(&rng, 20) + (e == l ? 200u : 0u);
        }
    }
    for (size_t s = 0; s < MAX_STEPS; s++)
        w->step_id[s] = s;
    static const char text[] =
        "{\"name\":\"toy\",\"num_hidden_layers\":9,\"moe_layers\":[3,4,5,6,7,8],"
        "\"num_experts\":16,\"num_experts_per_tok\":2,\"hidden_size\":8,"
        "\"moe_intermediate_size\":8}";
    json_t *root;
    assert_ok(bl_json_parse(text, sizeof text - 1, "toy", &root, &err));
    assert_ok(bl_model_from_json(root, "toy", &w->model, &err));
    json_decref(root);
    w->model.expert_bytes = 1000;
    w->model.kv_bytes_per_token = 100;
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
    /* The driver is under test here; GLPK has its own. */
    w->options.solve.algorithm = BL_ALG_SEARCH;
    w->options.compare = true;
    return w;
}

static void world_free(world *w) {
    bl_model_free(&w->model);
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

/* Busiest ranks of all blocks of `block` steps over level ones, from the slots alone. */
static double score_by_hand(world *w, const bl_layer_placement *layer, int row, size_t block) {
    double peaks = 0.0, total = 0.0;
    for (size_t from = 0; from < w->loads.n_steps; from += block) {
        double busiest = 0.0;
        for (int rank = 0; rank < RANKS; rank++) {
            double load = 0.0;
            for (int slot = layer->begin[rank]; slot < layer->begin[rank + 1]; slot++) {
                int copies = 0;
                for (int g = 0; g < RANKS; g++)
                    copies += bl_layer_find(layer, g, layer->expert[slot]) >= 0;
                for (size_t s = from; s < from + block && s < w->loads.n_steps; s++)
                    load += (double)row_of(w, s, row)[layer->expert[slot]] / copies;
            }
            busiest = load > busiest ? load : busiest;
            total += load;
        }
        peaks += busiest;
    }
    return RANKS * peaks / total;
}

static void scores_are_those_of_single_steps(void **state) {
    (void)state;
    world *w = world_new(7);
    bl_plan plan;
    planned(w, &plan);
    for (int l = 0; l < LAYERS; l++)
        assert_true(fabs(score_by_hand(w, &plan.placement.layers[l], l, 1) -
                         plan.layers[l].score.max_over_mean) < 1e-9);
    bl_plan_free(&plan);
    w->options.max_scenarios = 3; /* blocks of 3, 3 and 1 */
    planned(w, &plan);
    for (int l = 0; l < LAYERS; l++)
        assert_true(fabs(score_by_hand(w, &plan.placement.layers[l], l, 3) -
                         plan.layers[l].score.max_over_mean) < 1e-9);
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

/* "over" in words, and what a plan made with it says of itself. */
static void objective_over_steps(void **state) {
    (void)state;
    bl_error err;
    bl_objective_over over;
    assert_ok(bl_over_parse("mean", &over, &err));
    assert_int_equal(over.kind, BL_OVER_MEAN);
    assert_ok(bl_over_parse("p95", &over, &err));
    assert_int_equal(over.kind, BL_OVER_P95);
    assert_ok(bl_over_parse("cvar:0.75", &over, &err));
    assert_int_equal(over.kind, BL_OVER_CVAR);
    assert_true(fabs(over.level - 0.75) < 1e-12);
    static const char *const wrong[] = {"",         "cvar",      "cvar:", "cvar:1", "cvar:-0.1",
                                        "cvar:nan", "cvar:0.5x", "max",   "mean "};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        assert_fails(bl_over_parse(wrong[i], &over, &err), BL_ERR_USAGE, "cvar:A");

    world *w = world_new(7);
    bl_plan plan;
    w->options.over = over;
    planned(w, &plan);
    assert_string_equal(json_string_value(provenance(&plan, "over")), "cvar:0.75");
    assert_true(json_is_true(provenance(&plan, "robust")));
    bl_plan_free(&plan);
    w->options.max_scenarios = 3; /* too few to be a sample */
    planned(w, &plan);
    assert_true(json_is_false(provenance(&plan, "robust")));
    bl_plan_free(&plan);
    w->options.max_scenarios = BL_MAX_SCENARIOS;
    w->options.over.kind = BL_OVER_SAMPLE;
    const double sample = planned(w, &plan).score.mean;
    assert_string_equal(json_string_value(provenance(&plan, "over")), "sample");
    bl_plan_free(&plan);
    w->options.over.kind = BL_OVER_MEAN;
    const double mean = planned(w, &plan).score.mean;
    assert_true(sample <= mean); /* on the very steps planned on */
    bl_plan_free(&plan);
    world_free(w);
}

/* A half-life far below a step leaves the last step alone. */
static void old_steps_count_less(void **state) {
    (void)state;
    world *w = world_new(2);
    bl_plan both, last;
    w->options.solve.algorithm = BL_ALG_GREEDY;
    w->options.half_life = 1.0 / 64.0;
    planned(w, &both);
    assert_true(fabs(json_real_value(provenance(&both, "half_life")) - 1.0 / 64.0) < 1e-12);
    w->options.half_life = 0.0;
    memset(row_of(w, 0, 0), 0, LAYERS * EXPERTS * sizeof *w->count);
    planned(w, &last);
    for (int l = 0; l < LAYERS; l++)
        assert_true(fabs(both.layers[l].score.max_over_mean - last.layers[l].score.max_over_mean) <
                    1e-9);
    bl_plan_free(&both);
    bl_plan_free(&last);
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
    w->loads.digest[0] = 'f'; /* another trace */
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

static void fractions_are_carried_and_level(void **state) {
    (void)state;
    world *w = world_new(3);
    bl_plan even, plan;
    planned(w, &even);
    w->options.rule = BL_RULE_FRACTIONS;
    planned(w, &plan);
    assert_int_equal(plan.rule, BL_RULE_FRACTIONS);
    json_t *root = bl_plan_to_json(&plan);
    bl_plan back;
    bl_error err;
    assert_ok(bl_plan_from_json(root, "fractions", &back, &err)); /* they sum to 1 */
    json_decref(root);
    for (int l = 0; l < LAYERS; l++) {
        assert_non_null(plan.layers[l].share);
        assert_true(plan.layers[l].score.max_over_mean <=
                    even.layers[l].score.max_over_mean + 0.01);
    }
    bl_plan_free(&back);
    bl_plan_free(&plan);
    bl_plan_free(&even);
    world_free(w);
}

/* ---- real loads -------------------------------------------------------------------------------*/

enum { GLM_LAYERS = 75, GLM_EXPERTS = 256, GLM_RANKS = 32 };

typedef struct glm {
    bl_model model;
    bl_loads loads;
    bl_capacity capacity;
    bl_planning_options options;
} glm;

/* One domain of GLM-5.2 as a trace of one step, 32 ranks of 9 slots. */
static void glm_load(const char *domain, glm *g) {
    bl_error err;
    char name[64];
    json_t *root;
    const json_t *rows;
    *g = (glm){0};
    assert_ok(bl_model_load(bl_test_data("configs/aiconfigurator/zai-org--GLM-5.2_config.json"),
                            &g->model, &err));
    snprintf(name, sizeof name, "routing/glm-5.2/%s.load.json", domain);
    assert_ok(bl_json_load(bl_test_data(name), &root, &err));
    assert_ok(bl_json_array(root, "load", name, &rows, &err));
    assert_int_equal(json_array_size(rows), GLM_LAYERS);
    assert_int_equal(g->model.n_moe_layers, GLM_LAYERS);
    g->loads = (bl_loads){.n_steps = 1,
                          .n_layers = GLM_LAYERS,
                          .n_experts = GLM_EXPERTS,
                          .top_k = 8,
                          .layers = g->model.moe_layers,
                          .usable = calloc(GLM_LAYERS, sizeof(bool)),
                          .step_id = calloc(1, sizeof(uint64_t)),
                          .count = calloc(GLM_LAYERS * GLM_EXPERTS, sizeof(uint64_t))};
    for (int l = 0; l < GLM_LAYERS; l++) {
        const json_t *row = json_array_get(rows, (size_t)l);
        g->loads.usable[l] = true;
        for (size_t e = 0; e < GLM_EXPERTS; e++)
            g->loads.count[(size_t)l * GLM_EXPERTS + e] =
                (uint64_t)json_number_value(json_array_get(row, e));
    }
    json_decref(root);
    const bl_capacity_request request = {
        .n_experts = GLM_EXPERTS, .n_ranks = GLM_RANKS, .slots = 288, .redundant = -1};
    assert_ok(bl_capacity_of(&request, &g->capacity, &err));
    g->options = BL_PLANNING_OPTIONS_INIT;
    g->options.capacity = g->capacity;
    g->options.n_ranks = GLM_RANKS;
    g->options.n_threads = 2;
    g->options.compare = true;
}

static void glm_free(glm *g) {
    bl_capacity_free(&g->capacity);
    free(g->loads.usable);
    free(g->loads.step_id);
    free(g->loads.count);
    bl_model_free(&g->model);
}

static bl_planning_summary glm_plan(glm *g, bl_plan *plan) {
    bl_error err;
    bl_planning_summary summary;
    assert_ok(bl_planning_run(&g->loads, &g->model, NULL, &g->options, NULL, plan, &summary, &err));
    return summary;
}

static void real_loads_are_within_a_tenth_of_a_per_cent(void **state) {
    (void)state;
    static const char *const domains[] = {"books",   "chat", "code_instruct", "news",
                                          "science", "web",  "wiki"};
    for (size_t d = 0; d < sizeof domains / sizeof domains[0]; d++) {
        glm g;
        bl_plan plan;
        bl_error err;
        glm_load(domains[d], &g);
        const bl_planning_summary s = glm_plan(&g, &plan);
        assert_ok(bl_placement_check(&plan.placement, NULL, &err));
        printf("# %s: greedy %.4f, plan %.5f, bound %.5f\n", domains[d], s.greedy.mean,
               s.score.mean, s.bound.mean);
        assert_true(s.gap.mean <= 0.001);
        assert_true(s.greedy.mean >= 1.004);
        bl_plan_free(&plan);
        glm_free(&g);
    }
}

static void noise_on_real_loads_moves_nothing(void **state) {
    (void)state;
    glm g;
    bl_plan current, plan;
    bl_rng rng;
    bl_rng_seed(&rng, 9);
    glm_load("chat", &g);
    glm_plan(&g, &current);
    g.options.current = &current;
    assert_int_equal(glm_plan(&g, &plan).moves, 0);
    assert_string_equal(plan.digest.hex, current.digest.hex);
    bl_plan_free(&plan);
    for (size_t i = 0; i < GLM_LAYERS * GLM_EXPERTS; i++)
        g.loads.count[i] =
            (uint64_t)((double)g.loads.count[i] * (0.99 + 0.02 * bl_rng_unit(&rng)) + 0.5);
    const bl_planning_summary s = glm_plan(&g, &plan);
    assert_int_equal(s.moves, 0);
    assert_true(s.score.mean < 1.02);
    bl_plan_free(&plan);
    bl_plan_free(&current);
    glm_free(&g);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_plan_of_all_layers),
        cmocka_unit_test(scores_are_those_of_single_steps),
        cmocka_unit_test(threads_and_repeats_give_the_same_plan),
        cmocka_unit_test(long_traces_become_blocks),
        cmocka_unit_test(idle_and_missing_layers_keep_their_place),
        cmocka_unit_test(a_layer_absent_from_the_trace_is_listed),
        cmocka_unit_test(broken_traces_are_refused_by_name),
        cmocka_unit_test(current_must_match),
        cmocka_unit_test(unchanged_load_moves_nothing),
        cmocka_unit_test(objective_over_steps),
        cmocka_unit_test(old_steps_count_less),
        cmocka_unit_test(move_budget_is_kept_over_all_layers),
        cmocka_unit_test(masked_rank_holds_nothing),
        cmocka_unit_test(fractions_are_carried_and_level),
        cmocka_unit_test(real_loads_are_within_a_tenth_of_a_per_cent),
        cmocka_unit_test(noise_on_real_loads_moves_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
