/* Replay: metrics by hand, the plan's own steps left out, the verdict. */
#include "tests/support/support.h"

#include "core/json.h"
#include "core/rng.h"
#include "planner/planning.h"
#include "planner/replay.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_STEPS 64

/* Loads held in static arrays: two layers (4, 5) of two experts. */
static int layers[2] = {4, 5};
static bool usable[2];
static char *why[2] = {"its counts do not add up", "its counts do not add up"};
static uint64_t step_id[MAX_STEPS];
static uint64_t count[MAX_STEPS][2][2];

static bl_loads loads_of(size_t n_steps) {
    bl_loads loads = {.n_steps = n_steps,
                      .n_layers = 2,
                      .n_experts = 2,
                      .top_k = 1,
                      .layers = layers,
                      .usable = usable,
                      .why = why,
                      .step_id = step_id,
                      .count = &count[0][0][0]};
    snprintf(loads.digest, sizeof loads.digest, "%s", "00112233445566778899aabbccddeeff");
    usable[0] = usable[1] = true;
    for (size_t s = 0; s < n_steps; s++)
        step_id[s] = s;
    return loads;
}

static void fill(uint64_t a, uint64_t b) {
    for (size_t s = 0; s < MAX_STEPS; s++) {
        for (size_t l = 0; l < 2; l++) {
            count[s][l][0] = a;
            count[s][l][1] = b;
        }
    }
}

#define SLOTS_APART "[[0],[1]]"
#define SLOTS_BOTH "[[0,1],[0,1]]"
#define SLOTS_PILED "[[0,1],[-1,-1]]"

/* A plan with the same slots in layers 4 and 5; `provenance` as JSON. */
static bl_plan plan_of(const char *slots, const char *provenance) {
    char text[2048];
    bl_error err;
    bl_plan plan = {0};
    json_t *root;
    snprintf(text, sizeof text,
             "{\"format\":\"ballast-plan\",\"version\":1,\"model\":{\"name\":\"toy\",\"experts\":2,"
             "\"top_k\":1,\"num_hidden_layers\":6,\"moe_layers\":[4,5],\"num_experts\":2,"
             "\"num_experts_per_tok\":1,\"hidden_size\":64,\"moe_intermediate_size\":64},"
             "\"ranks\":2,\"layers\":[{\"layer\":4,\"slots\":%s},{\"layer\":5,\"slots\":%s}],"
             "\"provenance\":%s}",
             slots, slots, provenance);
    assert_ok(bl_json_parse(text, strlen(text), "plan", &root, &err));
    assert_ok(bl_plan_from_json(root, "plan", &plan, &err));
    json_decref(root);
    return plan;
}

static bl_topology topology_of(void) {
    bl_error err;
    bl_topology whole = {0}, two = {0};
    assert_ok(bl_topology_open("hgx-h100", &whole, &err));
    assert_ok(bl_topology_take(&whole, 2, &two, &err));
    bl_topology_free(&whole);
    return two;
}

static const char *const names[] = {"a", "b"};

static bl_replay_options options_of(const bl_plan *plans, int n) {
    return (bl_replay_options){.plans = plans,
                               .names = names,
                               .n_plans = n,
                               .end_step = INT64_MAX,
                               .dwell_steps = BL_REPLAY_DWELL_STEPS,
                               .seed = 1};
}

static void metrics_by_hand(void **state) {
    (void)state;
    bl_error err;
    bl_loads loads = loads_of(2);
    bl_topology topology = topology_of();
    bl_plan plan = plan_of(SLOTS_APART, "{}");
    bl_replay_options options = options_of(&plan, 1);
    bl_replay replay;
    /* (layer x rank) [[100,200],[100,200]] is 0.75: mean 150 / max 200. */
    fill(100, 200);
    assert_ok(bl_replay_run(&loads, &topology, &options, &replay, &err));
    assert_int_equal(replay.n_steps, 2);
    assert_true(fabs(replay.plans[0].balancedness - 0.75) < 1e-12);
    assert_true(fabs(replay.plans[0].mean - 4.0 / 3.0) < 1e-12);
    assert_true(fabs(replay.plans[0].max - 4.0 / 3.0) < 1e-12);
    bl_replay_free(&replay);
    /* Samples 1, 1.5, 2 and one idle layer, which is left out. */
    count[0][0][0] = 5, count[0][0][1] = 5;
    count[0][1][0] = 10, count[0][1][1] = 30;
    count[1][0][0] = 0, count[1][0][1] = 7;
    count[1][1][0] = 0, count[1][1][1] = 0;
    assert_ok(bl_replay_run(&loads, &topology, &options, &replay, &err));
    const bl_replay_score *score = &replay.plans[0];
    assert_true(fabs(score->mean - 1.5) < 1e-12);
    assert_true(fabs(score->p50 - 1.5) < 1e-12);
    assert_true(fabs(score->p95 - 1.95) < 1e-12);
    assert_true(fabs(score->p99 - 1.99) < 1e-12);
    assert_true(fabs(score->max - 2.0) < 1e-12);
    assert_true(fabs(score->balancedness - (1 + 2.0 / 3 + 0.5) / 3) < 1e-12);
    assert_true(replay.modelled && score->step_us_mean > 0.0);
    bl_replay_free(&replay);
    bl_plan_free(&plan);
    bl_topology_free(&topology);
}

/* Figures of single layers, times at another operating point, and a floor that is 1 without noise. */
static void layers_noise_and_operating_point(void **state) {
    (void)state;
    bl_error err;
    bl_loads loads = loads_of(8);
    bl_topology topology = topology_of();
    bl_plan plan = plan_of(SLOTS_APART, "{}");
    bl_replay_options options = options_of(&plan, 1);
    bl_replay replay;
    fill(100, 300);
    for (int s = 0; s < 8; s++)
        count[s][1][0] = 300; /* layer 5 is level */
    assert_ok(bl_replay_run(&loads, &topology, &options, &replay, &err));
    assert_int_equal(replay.plans[0].n_layers, 2);
    assert_true(fabs(replay.plans[0].layers[0].mean - 1.5) < 1e-12);
    assert_true(fabs(replay.plans[0].layers[1].p99 - 1.0) < 1e-12);
    assert_true(fabs(replay.noise_mean - 1.0) < 1e-12); /* uneven, but always in the same way */
    const double recorded = replay.plans[0].step_us_mean;
    bl_replay_free(&replay);
    options.tokens_per_rank = 1e6;
    assert_ok(bl_replay_run(&loads, &topology, &options, &replay, &err));
    assert_true(replay.plans[0].step_us_mean > 1.1 * recorded);
    bl_replay_free(&replay);
    /* 1/4 and 3/4 of the rows in turns: from one step to the next one expert gains half of all, which
     * makes 1 of a mean rank load on its rank, over the root of 2. */
    for (int s = 0; s < 8; s++) {
        for (int l = 0; l < 2; l++) {
            count[s][l][0] = s % 2 == 0 ? 100 : 300;
            count[s][l][1] = s % 2 == 0 ? 300 : 100;
        }
    }
    assert_ok(bl_replay_run(&loads, &topology, &options, &replay, &err));
    assert_true(fabs(replay.noise_mean - (1.0 + sqrt(0.5))) < 1e-12);
    assert_true(fabs(replay.noise_p95 - replay.noise_mean) < 1e-12);
    bl_replay_free(&replay);
    bl_plan_free(&plan);
    bl_topology_free(&topology);
}

/* vllm #50647: balance is 0.936, a move costs 60 s and there are 100 s left to serve: at most 6.4 s
 * can be won, so nothing moves. */
static void good_balance_is_left_alone(void **state) {
    (void)state;
    bl_error err;
    bl_loads loads = loads_of(20);
    bl_topology topology = topology_of();
    bl_plan plan = plan_of(SLOTS_BOTH, "{}"), base = plan_of(SLOTS_APART, "{}");
    bl_replay_options options = options_of(&plan, 1);
    options.baseline = BL_BASELINE_PLAN;
    options.baseline_plan = &base;
    options.baseline_name = "now";
    bl_replay replay;
    fill(468, 532);
    for (int s = 0; s < 20; s++)
        count[s][1][0] = 532, count[s][1][1] = 468;
    /* Two layers, a bundle of 64 x 64 x 3 bf16 weights each into either rank. */
    topology.levels[1].in_bytes_per_s.value = topology.levels[1].out_bytes_per_s.value =
        2 * 3 * 64 * 64 * 2 / 60.0;
    assert_ok(bl_replay_run(&loads, &topology, &options, &replay, &err));
    assert_true(fabs(replay.baseline.balancedness - 500.0 / 532) < 1e-12);
    options.dwell_steps = 100e6 / replay.baseline.step_us_mean;
    bl_replay_free(&replay);
    assert_ok(bl_replay_run(&loads, &topology, &options, &replay, &err));
    assert_true(fabs(replay.plans[0].migration_s - 60.0) < 0.1);
    assert_true(replay.plans[0].saved_us >= 0.0 && replay.plans[0].mean == 1.0);
    assert_int_equal(replay.plans[0].verdict, BL_VERDICT_NOT_WORTH_IT);
    bl_replay_free(&replay);
    bl_plan_free(&plan);
    bl_plan_free(&base);
    bl_topology_free(&topology);
}

static void masked_ranks_do_not_count(void **state) {
    (void)state;
    bl_error err;
    bl_loads loads = loads_of(1);
    bl_topology topology = topology_of();
    bl_plan plan = plan_of("[[0,1],[]]", "{}");
    bl_replay_options options = options_of(&plan, 1);
    bl_replay replay;
    fill(100, 200);
    assert_ok(bl_replay_run(&loads, &topology, &options, &replay, &err));
    assert_true(fabs(replay.plans[0].mean - 1.0) < 1e-12);
    bl_replay_free(&replay);
    bl_plan_free(&plan);
    bl_topology_free(&topology);
}

/* Every step is split anew. The baseline on the same slots is split in the same way. */
static void per_step_is_split_anew(void **state) {
    (void)state;
    bl_error err;
    bl_loads loads = loads_of(2);
    bl_topology topology = topology_of();
    bl_plan plan = plan_of("[[0,1],[1]]", "{}");
    bl_replay_options options = options_of(&plan, 1);
    bl_replay even, split;
    fill(100, 200);
    count[1][0][0] = 301;
    count[1][0][1] = 0;
    count[1][1][0] = 0;
    count[1][1][1] = 301;
    assert_ok(bl_replay_run(&loads, &topology, &options, &even, &err));
    plan.rule = BL_RULE_PER_STEP;
    assert_ok(bl_replay_run(&loads, &topology, &options, &split, &err));
    /* 150 and 150 twice; 301 and 0; 150 and 151 */
    assert_true(fabs(split.plans[0].max - 2.0) < 1e-12);
    assert_true(fabs(split.plans[0].mean - (1.0 + 1.0 + 2.0 + 302.0 / 301.0) / 4.0) < 1e-12);
    assert_true(split.plans[0].mean < even.plans[0].mean);
    assert_true(split.baseline.mean <= even.baseline.mean);
    bl_replay_free(&even);
    bl_replay_free(&split);
    count[0][0][0] = UINT64_C(1) << 60;
    assert_fails(bl_replay_run(&loads, &topology, &options, &split, &err), BL_ERR_RANGE, "2^44");
    bl_plan_free(&plan);
    bl_topology_free(&topology);
}

static void fractions_are_applied(void **state) {
    (void)state;
    bl_error err;
    bl_loads loads = loads_of(1);
    bl_topology topology = topology_of();
    bl_plan plan = plan_of("[[0,1],[1]]", "{}");
    double share[] = {1.0, 0.25, 0.75};
    for (int l = 0; l < 2; l++) {
        plan.layers[l].share = malloc(sizeof share);
        assert_non_null(plan.layers[l].share);
        memcpy(plan.layers[l].share, share, sizeof share);
    }
    plan.rule = BL_RULE_FRACTIONS;
    bl_replay_options options = options_of(&plan, 1);
    bl_replay replay;
    fill(100, 200); /* 100 + 50 and 150 */
    assert_ok(bl_replay_run(&loads, &topology, &options, &replay, &err));
    assert_true(fabs(replay.plans[0].mean - 1.0) < 1e-12);
    bl_replay_free(&replay);
    bl_plan_free(&plan);
    bl_topology_free(&topology);
}

static void own_steps_are_left_out(void **state) {
    (void)state;
    bl_error err;
    static const struct {
        const char *provenance;
        int64_t first, end;
        size_t scored, left_out;
        const char *phase;
    } cases[] = {
        {"{\"trace\":\"00112233445566778899aabbccddeeff\",\"steps\":[2,6]}", 0, INT64_MAX, 6, 4,
         NULL},
        {"{\"trace\":\"00112233445566778899aabbccddeeff\",\"steps\":[2,6]}", 3, 6, 0, 3, NULL},
        {"{\"trace\":\"00112233445566778899aabbccddeeff\",\"steps\":[2,6]}", 5, 8, 2, 1, NULL},
        {"{\"trace\":\"00112233445566778899aabbccddeeff\"}", 0, INT64_MAX, 0, 10, NULL},
        {"{\"trace\":\"ffffffffffffffffffffffffffffffff\",\"steps\":[2,6]}", 0, INT64_MAX, 10, 0,
         NULL},
        {"{}", 4, 9, 5, 0, NULL},
        {"{\"trace\":\"00112233445566778899aabbccddeeff\",\"steps\":[2,6],\"phase\":\"all\"}", 0,
         INT64_MAX, 6, 4, "decode"},
        {"{\"trace\":\"00112233445566778899aabbccddeeff\",\"steps\":[2,6],\"phase\":\"decode\"}", 0,
         INT64_MAX, 6, 4, "decode"},
        {"{\"trace\":\"00112233445566778899aabbccddeeff\",\"steps\":[2,6],\"phase\":\"decode\"}", 0,
         INT64_MAX, 6, 4, NULL},
        {"{\"trace\":\"00112233445566778899aabbccddeeff\",\"steps\":[2,6],\"phase\":\"decode\"}", 0,
         INT64_MAX, 10, 0, "prefill"},
    };
    bl_loads loads = loads_of(10);
    bl_topology topology = topology_of();
    fill(100, 200);
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        bl_plan plan = plan_of(SLOTS_APART, cases[c].provenance);
        bl_replay_options options = options_of(&plan, 1);
        bl_replay replay;
        options.first_step = cases[c].first;
        options.end_step = cases[c].end;
        options.phase = cases[c].phase;
        assert_ok(bl_replay_run(&loads, &topology, &options, &replay, &err));
        assert_int_equal(replay.n_steps, cases[c].scored);
        assert_int_equal(replay.n_left_out, cases[c].left_out);
        if (cases[c].scored == 0) {
            assert_int_equal(replay.verdict, BL_VERDICT_NOT_ENOUGH_EVIDENCE);
            assert_true(isnan(replay.plans[0].mean));
        }
        bl_replay_free(&replay);
        bl_plan_free(&plan);
    }
    bl_topology_free(&topology);
}

/* A baseline that piles all on one rank; the plan that spreads saves in every step. */
static void verdicts(void **state) {
    (void)state;
    bl_error err;
    bl_topology topology = topology_of();
    bl_plan plans[2] = {plan_of(SLOTS_PILED, "{}"), plan_of(SLOTS_BOTH, "{}")};
    bl_plan piled = plan_of(SLOTS_PILED, "{}");
    bl_replay_options options = options_of(plans, 2);
    bl_replay replay;
    options.baseline = BL_BASELINE_PLAN;
    options.baseline_plan = &piled;
    options.baseline_name = "piled";
    fill(1000000, 2000000);
    bl_loads loads = loads_of(5);
    assert_ok(bl_replay_run(&loads, &topology, &options, &replay, &err));
    assert_int_equal(replay.best, 1);
    assert_int_equal(replay.verdict, BL_VERDICT_RECOMMEND);
    assert_int_equal(replay.plans[0].verdict, BL_VERDICT_NOT_WORTH_IT);
    assert_int_equal(replay.plans[0].moves, 0);
    assert_int_equal(replay.plans[1].moves, 4);
    assert_int_equal(replay.plans[1].move_bytes, 4 * 3 * 64 * 64 * 2);
    assert_true(replay.plans[1].saved_us > 0.0);
    /* Every step is the same, so there is no spread to be careful about. */
    assert_true(fabs(replay.plans[1].saved_us_low - replay.plans[1].saved_us) < 1e-6);
    const double saved = replay.plans[1].saved_us, cost_us = 1e6 * replay.plans[1].migration_s;
    bl_replay_free(&replay);

    options.dwell_steps = 0.99 * cost_us / saved; /* too short to pay the move back */
    assert_ok(bl_replay_run(&loads, &topology, &options, &replay, &err));
    assert_int_equal(replay.plans[1].verdict, BL_VERDICT_NOT_WORTH_IT);
    bl_replay_free(&replay);
    options.dwell_steps = 1.01 * cost_us / saved;
    assert_ok(bl_replay_run(&loads, &topology, &options, &replay, &err));
    assert_int_equal(replay.plans[1].verdict, BL_VERDICT_RECOMMEND);
    bl_replay_free(&replay);

    loads = loads_of(4); /* one step too few */
    options.dwell_steps = 1e12;
    assert_ok(bl_replay_run(&loads, &topology, &options, &replay, &err));
    assert_int_equal(replay.verdict, BL_VERDICT_NOT_ENOUGH_EVIDENCE);
    assert_true(isnan(replay.plans[1].saved_us_low));
    bl_replay_free(&replay);
    bl_plan_free(&plans[0]);
    bl_plan_free(&plans[1]);
    bl_plan_free(&piled);
    bl_topology_free(&topology);
}

static void baselines(void **state) {
    (void)state;
    bl_error err;
    bl_topology topology = topology_of();
    bl_plan plan =
        plan_of("[[1],[0]]", "{\"trace\":\"00112233445566778899aabbccddeeff\",\"steps\":[0,2]}");
    bl_replay_options options = options_of(&plan, 1);
    bl_replay replay;
    bl_loads loads = loads_of(8);
    fill(100, 300);
    assert_ok(bl_replay_run(&loads, &topology, &options, &replay, &err));
    assert_string_equal(replay.baseline.name, "contiguous");
    assert_int_equal(replay.plans[0].moves, 4); /* from [[0],[1]] in two layers */
    assert_int_equal(replay.n_steps, 6);
    bl_replay_free(&replay);
    options.baseline = BL_BASELINE_GREEDY;
    assert_ok(bl_replay_run(&loads, &topology, &options, &replay, &err));
    assert_string_equal(replay.baseline.name, "greedy");
    assert_true(fabs(replay.baseline.mean - 1.5) < 1e-12);
    bl_replay_free(&replay);
    json_object_del(plan.provenance, "trace");
    assert_fails(bl_replay_run(&loads, &topology, &options, &replay, &err), BL_ERR_STATE,
                 "not made from this trace");
    bl_plan_free(&plan);
    bl_topology_free(&topology);
}

static void refusals(void **state) {
    (void)state;
    bl_error err;
    bl_topology topology = topology_of();
    bl_loads loads = loads_of(2);
    bl_plan plan = plan_of(SLOTS_APART, "{}");
    bl_replay_options options = options_of(&plan, 1);
    bl_replay replay;
    fill(1, 1);
    usable[1] = false;
    assert_fails(bl_replay_run(&loads, &topology, &options, &replay, &err), BL_ERR_CONSERVATION,
                 "counts do not add up");
    assert_int_equal(err.layer, 5);
    usable[1] = true;
    layers[1] = 7;
    assert_fails(bl_replay_run(&loads, &topology, &options, &replay, &err), BL_ERR_MODEL,
                 "not in the plan");
    assert_int_equal(err.layer, 7);
    layers[1] = 5;
    loads.n_experts = 3;
    assert_fails(bl_replay_run(&loads, &topology, &options, &replay, &err), BL_ERR_MODEL,
                 "2 experts per layer");
    loads.n_experts = 2;
    plan.rule = BL_RULE_NEAREST;
    assert_fails(bl_replay_run(&loads, &topology, &options, &replay, &err), BL_ERR_UNSUPPORTED,
                 "where tokens come from");
    plan.rule = BL_RULE_EVEN;
    plan.model.expert_bytes = 0; /* no times, but the balance is scored */
    assert_ok(bl_replay_run(&loads, &topology, &options, &replay, &err));
    assert_false(replay.modelled);
    assert_true(isnan(replay.plans[0].step_us_mean) && replay.plans[0].mean == 1.0);
    assert_int_equal(replay.verdict, BL_VERDICT_NOT_ENOUGH_EVIDENCE);
    bl_replay_free(&replay);
    bl_plan_free(&plan);
    bl_topology_free(&topology);
}

/* With independent values the 5 % bound lies 1.645 standard errors below the mean. */
static void bootstrap_bound(void **state) {
    (void)state;
    enum { N = 400 };
    static double values[N];
    bl_error err;
    bl_rng rng;
    double low, again, sum = 0.0, squares = 0.0;
    bl_rng_seed(&rng, 7);
    for (int i = 0; i < N; i++) {
        values[i] = 10.0 + bl_rng_unit(&rng);
        sum += values[i];
        squares += values[i] * values[i];
    }
    const double mean = sum / N, error = sqrt((squares / N - mean * mean) / N);
    assert_ok(bl_bootstrap_low(values, N, 1, &low, &err));
    assert_true(low < mean - 1.3 * error && low > mean - 2.0 * error);
    assert_ok(bl_bootstrap_low(values, N, 1, &again, &err));
    assert_true(low == again);
    /* Long runs of equal values are few independent ones: the bound must be lower. */
    for (int i = 0; i < N; i++)
        values[i] = 10.0 + (i / 20 % 2);
    assert_ok(bl_bootstrap_low(values, N, 1, &low, &err));
    assert_true(low < 10.5 - 2.0 * 1.645 * 0.5 / 20.0);
}

static void quantiles(void **state) {
    (void)state;
    static const double values[] = {1, 2, 4, 8};
    assert_true(bl_quantile(values, 4, 0.0) == 1);
    assert_true(bl_quantile(values, 4, 1.0) == 8);
    assert_true(bl_quantile(values, 4, 0.5) == 3);
    assert_true(bl_quantile(values, 1, 0.95) == 1);
}

/* A plan under which every layer gets the placement of the layer three further on: what happens when
 * rows of MoE layers are taken for decoder layers. Contiguous would be no worse. */
static void a_shifted_plan_is_exposed(void **state) {
    (void)state;
    enum { L = 75, E = 256, RANKS = 32 };
    bl_error err;
    bl_model model;
    json_t *root;
    const json_t *rows;
    bool all_usable[L];
    uint64_t first_step = 0, *counts = calloc(L * E, sizeof *counts);
    assert_non_null(counts);
    assert_ok(bl_model_load(bl_test_data("configs/aiconfigurator/zai-org--GLM-5.2_config.json"),
                            &model, &err));
    assert_ok(bl_json_load(bl_test_data("routing/glm-5.2/chat.load.json"), &root, &err));
    assert_ok(bl_json_array(root, "load", "chat", &rows, &err));
    for (size_t l = 0; l < L; l++) {
        all_usable[l] = true;
        for (size_t e = 0; e < E; e++)
            counts[l * E + e] =
                (uint64_t)json_number_value(json_array_get(json_array_get(rows, l), e));
    }
    json_decref(root);
    const bl_loads loads = {.n_steps = 1,
                            .n_layers = L,
                            .n_experts = E,
                            .top_k = 8,
                            .layers = model.moe_layers,
                            .usable = all_usable,
                            .step_id = &first_step,
                            .count = counts};
    const bl_capacity_request request = {
        .n_experts = E, .n_ranks = RANKS, .slots = 288, .redundant = -1};
    bl_capacity capacity;
    assert_ok(bl_capacity_of(&request, &capacity, &err));
    bl_planning_options planning = BL_PLANNING_OPTIONS_INIT;
    planning.capacity = capacity;
    planning.n_ranks = RANKS;
    bl_plan plans[2];
    bl_planning_summary summary;
    bl_topology topology;
    assert_ok(bl_planning_run(&loads, &model, NULL, &planning, NULL, &plans[0], &summary, &err));
    bl_placement shifted;
    assert_ok(bl_placement_copy(&plans[0].placement, &shifted, &err));
    for (int l = 0; l < L; l++)
        memcpy(shifted.layers[l].expert, plans[0].placement.layers[(l + 3) % L].expert,
               288 * sizeof(int32_t));
    assert_ok(bl_plan_create(&model, &shifted, &plans[1], &err));
    assert_ok(bl_topology_open("hgx-h100:nodes=4", &topology, &err));
    const bl_replay_options options = options_of(plans, 2);
    bl_replay replay;
    /* plans[0] would leave its own step out: its trace has no digest here */
    json_object_del(plans[0].provenance, "trace");
    assert_ok(bl_replay_run(&loads, &topology, &options, &replay, &err));
    printf("# balancedness: plan %.3f, shifted %.3f, start layout %.3f\n",
           replay.plans[0].balancedness, replay.plans[1].balancedness,
           replay.baseline.balancedness);
    assert_true(replay.plans[0].balancedness > 0.99);
    assert_true(replay.plans[1].balancedness < 0.65);
    /* Replayed on what it was planned on, a plan scores what its file says. */
    double mean = 0.0;
    for (int l = 0; l < L; l++)
        mean += plans[0].layers[l].score.max_over_mean / L;
    assert_true(fabs(mean - replay.plans[0].mean) < 1e-9);
    bl_replay_free(&replay);
    bl_plan_free(&plans[0]);
    bl_plan_free(&plans[1]);
    bl_capacity_free(&capacity);
    bl_topology_free(&topology);
    bl_model_free(&model);
    free(counts);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(metrics_by_hand),
        cmocka_unit_test(layers_noise_and_operating_point),
        cmocka_unit_test(good_balance_is_left_alone),
        cmocka_unit_test(masked_ranks_do_not_count),
        cmocka_unit_test(per_step_is_split_anew),
        cmocka_unit_test(fractions_are_applied),
        cmocka_unit_test(own_steps_are_left_out),
        cmocka_unit_test(verdicts),
        cmocka_unit_test(baselines),
        cmocka_unit_test(refusals),
        cmocka_unit_test(bootstrap_bound),
        cmocka_unit_test(quantiles),
        cmocka_unit_test(a_shifted_plan_is_exposed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
