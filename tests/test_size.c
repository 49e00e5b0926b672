/* Bytes per rank, KV cache left and remedies for what does not divide, by hand. */
#include "tests/support/support.h"

#include "planner/size.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static bl_model load(const char *relative) {
    bl_model model;
    bl_error err;
    assert_ok(bl_model_load(bl_test_data(relative), &model, &err));
    return model;
}

/* 32 layers of `experts` experts of 8 x 16, of a type that is not known. */
static bl_model make(int experts) {
    char text[512];
    json_t *root;
    bl_model model;
    bl_error err;
    snprintf(text, sizeof text,
             "{\"name\":\"m\",\"num_hidden_layers\":2,\"moe_layers\":[0,1],\"num_experts\":%d,"
             "\"num_experts_per_tok\":2,\"hidden_size\":16,\"moe_intermediate_size\":8}",
             experts);
    assert_ok(bl_json_parse(text, strlen(text), "test", &root, &err));
    assert_ok(bl_model_from_json(root, "test", &model, &err));
    json_decref(root);
    return model;
}

#define QWEN "configs/aiconfigurator/Qwen--Qwen3-30B-A3B_config.json"

static void qwen_on_eight_h100(void **state) {
    (void)state;
    bl_model model = load(QWEN);
    bl_topology topology;
    bl_layout layout = BL_LAYOUT_INIT;
    bl_size size;
    bl_error err;
    assert_int_equal(model.expert_bytes, 9437184);
    assert_true(bl_model_weights_bytes(&model) == 61064245248.0);
    assert_ok(bl_topology_open("hgx-h100", &topology, &err));
    assert_ok(bl_size_of(&model, &topology, &layout, &size, &err));
    assert_int_equal(size.ranks, 8);
    assert_int_equal(size.dp, 8);
    assert_int_equal(size.binding.slots, 16);
    assert_true(size.slot_bytes == 48 * 9437184.0);
    assert_true(size.binding.experts == 7247757312.0);
    assert_true(size.binding.rest == 3082186752.0);
    assert_true(size.binding.left == 61670055936.0); /* 0.9 x 80 GB less both */
    assert_true(size.kv_bytes_per_token == 98304);
    assert_true(size.kv_tokens == 627340);
    assert_true(size.fits && !size.over_share);
    /* Everything once per rank but the experts, which are there once. */
    assert_true(size.resident_parameters == 28991029248.0 + 8 * 1541093376.0);

    /* 8 copies and 3 spare buffers: one slot more, three bundles of one layer. */
    layout.redundant_auto = true;
    layout.spares = 3;
    assert_ok(bl_size_of(&model, &topology, &layout, &size, &err));
    assert_int_equal(size.redundant, 8);
    assert_true(size.binding.spares == 3 * 9437184.0);
    assert_true(size.binding.left == 61670055936.0 - 51 * 9437184.0);
    assert_true(size.kv_tokens == 622444); /* 627340 and a quarter, less 4896 */
    bl_topology_free(&topology);
    bl_model_free(&model);
}

static void tensor_parallelism(void **state) {
    (void)state;
    bl_model model = load(QWEN);
    bl_layout layout = BL_LAYOUT_INIT;
    bl_size size;
    bl_error err;
    layout.tp = 4;
    layout.dp = 2;
    assert_ok(bl_size_of(&model, NULL, &layout, &size, &err));
    assert_int_equal(size.ranks, 8);
    assert_true(size.binding.rest == 789719040.0); /* attention and embedding over 4 */
    assert_true(size.kv_bytes_per_token == 98304 / 4);
    assert_true(isnan(size.kv_tokens) && isnan(size.binding.left)); /* no topology, no memory */
    /* 4 key-value heads on 8 ranks: each is there twice. */
    layout.tp = 8;
    layout.dp = 0;
    assert_ok(bl_size_of(&model, NULL, &layout, &size, &err));
    assert_int_equal(size.dp, 1);
    assert_true(size.kv_bytes_per_token == 98304 / 4);
    /* 8 ranks, experts over 4: each is cut in two, so a rank holds half of 32 slots. */
    layout.ep = 4;
    assert_ok(bl_size_of(&model, NULL, &layout, &size, &err));
    assert_int_equal(size.binding.slots, 32);
    assert_true(size.binding.experts == 32 * 48 * 9437184.0 / 2);
    assert_true(size.slot_bytes == 48 * 9437184.0 / 2);
    bl_model_free(&model);
}

static void latents_are_whole_on_every_rank(void **state) {
    (void)state;
    bl_model model = load("configs/aiconfigurator/deepseek-ai--DeepSeek-V3_config.json");
    bl_layout layout = BL_LAYOUT_INIT;
    bl_size size;
    bl_error err;
    layout.tp = 8;
    assert_ok(bl_size_of(&model, NULL, &layout, &size, &err));
    assert_true(size.kv_bytes_per_token == 61 * 576 * 2);
    layout.tp = 1;
    layout.dp = 32;
    assert_ok(bl_size_of(&model, NULL, &layout, &size, &err));
    /* One slot in all 58 layers: 44 040 192 bytes and 3 x 896 scales of 4 bytes, 2.55 GB. */
    assert_true(size.slot_bytes == 58 * (44040192.0 + 10752));
    bl_model_free(&model);
}

static void remedies(void **state) {
    (void)state;
    static const struct {
        int experts, ranks, redundant, slots, fullest, lightest; /* of R = 0 */
    } cases[] = {{256, 3, 2, 86, 86, 85}, {384, 36, 12, 11, 11, 10}, {60, 8, 4, 8, 8, 7},
                 {30, 8, 2, 4, 4, 3},     {128, 6, 4, 22, 22, 21},   {256, 32, 0, 8, 8, 8}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        bl_model model = make(cases[i].experts);
        bl_layout layout = BL_LAYOUT_INIT;
        bl_size size;
        bl_error err;
        layout.ep = cases[i].ranks;
        assert_ok(bl_size_of(&model, NULL, &layout, &size, &err));
        assert_int_equal(size.uneven, cases[i].redundant != 0);
        assert_int_equal(size.even_redundant, cases[i].redundant);
        assert_int_equal(size.binding.slots, cases[i].fullest);
        assert_int_equal(size.lightest.slots, cases[i].lightest);
        assert_false(size.rest_told);
        assert_true(size.resident_parameters == 0);
        assert_true(size.weights_bytes == cases[i].experts * 2.0 * 768);
        for (int n = 0; n < 2; n++) {
            assert_ok(bl_size_remedy(&model, NULL, &layout, n, &size, &err));
            assert_int_equal(size.redundant, cases[i].redundant + n * cases[i].ranks);
            assert_int_equal(size.binding.slots, cases[i].slots + n);
            assert_int_equal(size.lightest.slots, cases[i].slots + n);
            assert_false(size.uneven);
        }
        bl_model_free(&model);
    }
}

/* Ranks of different memory: the one with least left binds, not the one that holds most. */
static void the_smallest_rank_binds(void **state) {
    (void)state;
    bl_model model = load(QWEN);
    bl_topology topology;
    bl_layout layout = BL_LAYOUT_INIT;
    bl_size size;
    bl_error err;
    assert_ok(bl_topology_open("hgx-h100", &topology, &err));
    bl_device devices[2] = {topology.devices[0], topology.devices[0]};
    snprintf(devices[1].name, sizeof devices[1].name, "small");
    devices[1].memory_bytes.value = 20e9;
    bl_device *old = topology.devices;
    topology.devices = devices;
    topology.n_devices = 2;
    topology.device[5] = 1;
    assert_ok(bl_size_of(&model, &topology, &layout, &size, &err));
    assert_int_equal(size.binding.rank, 5);
    assert_true(size.binding.left == 18e9 - 10329944064.0);
    assert_true(size.kv_tokens == 78023); /* 7 670 055 936 / 98 304 */
    assert_true(size.fits);
    devices[1].memory_bytes.value = 10e9;
    assert_ok(bl_size_of(&model, &topology, &layout, &size, &err));
    assert_false(size.fits);
    assert_true(size.over_share); /* 7.25 GB of experts, 0.7 of 10 GB for them */
    assert_true(size.kv_tokens == 0 && size.binding.left < 0);
    topology.devices = old;
    bl_topology_free(&topology);
    bl_model_free(&model);
}

/* Kimi K3 tells its experts and not its attention: 57 slots x 92 layers of 17.5 MB are told. */
static void what_is_not_told_is_not_guessed(void **state) {
    (void)state;
    bl_model model = load("configs/aiconfigurator/moonshotai--Kimi-K3_config.json");
    bl_topology topology;
    bl_layout layout = BL_LAYOUT_INIT;
    bl_size size;
    bl_error err;
    assert_ok(bl_topology_open("hgx-h200:nodes=2", &topology, &err));
    assert_ok(bl_size_of(&model, &topology, &layout, &size, &err));
    assert_int_equal(size.binding.slots, 56);
    assert_true(size.binding.experts == 56.0 * 92 * (double)model.expert_bytes);
    assert_true(isnan(size.binding.left) && isnan(size.kv_tokens) && size.fits);
    bl_topology_free(&topology);
    assert_ok(bl_topology_open("hgx-h200", &topology, &err)); /* 112 slots: 181 GB on 141 GB */
    assert_ok(bl_size_of(&model, &topology, &layout, &size, &err));
    assert_false(size.fits);
    bl_topology_free(&topology);
    bl_model_free(&model);
}

static void contradictions(void **state) {
    (void)state;
    bl_model model = load(QWEN);
    bl_topology topology;
    bl_size size;
    bl_error err;
    assert_ok(bl_topology_open("hgx-h100", &topology, &err));
    static const struct {
        int tp, dp, ep;
        int64_t redundant;
        double share;
        bl_status status;
        const char *part;
    } cases[] = {
        {3, 0, 0, 0, 0.9, BL_ERR_INFEASIBLE, "8 ranks do not divide by tp 3"},
        {0, 16, 0, 0, 0.9, BL_ERR_INFEASIBLE, "8 ranks do not divide by dp 16"},
        {4, 4, 0, 0, 0.9, BL_ERR_INFEASIBLE, "needs 16 ranks, but topology hgx-h100 has 8"},
        {2, 3, 4, 0, 0.9, BL_ERR_INFEASIBLE, "ep 4 does not divide the 6 ranks"},
        {6, 1, 0, 0, 0.9, BL_ERR_INFEASIBLE, "do not divide over tp 6; tp 4 would do"},
        {0, 0, 2, 129, 0.9, BL_ERR_INFEASIBLE, "at most 128 slots per rank"},
        {0, 0, 0, 0, 0, BL_ERR_USAGE, "share of memory"},
        {0, 0, 0, 0, NAN, BL_ERR_USAGE, "share of memory"},
        {60000, 60000, 0, 0, 0.9, BL_ERR_RANGE, "more than 65536 ranks"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const bl_layout layout = {.tp = cases[i].tp,
                                  .dp = cases[i].dp,
                                  .ep = cases[i].ep,
                                  .redundant = cases[i].redundant,
                                  .memory_share = cases[i].share};
        assert_fails(bl_size_of(&model, &topology, &layout, &size, &err), cases[i].status,
                     cases[i].part);
    }
    bl_topology_free(&topology);
    bl_model_free(&model);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(qwen_on_eight_h100),
                                       cmocka_unit_test(tensor_parallelism),
                                       cmocka_unit_test(latents_are_whole_on_every_rank),
                                       cmocka_unit_test(remedies),
                                       cmocka_unit_test(the_smallest_rank_binds),
                                       cmocka_unit_test(what_is_not_told_is_not_guessed),
                                       cmocka_unit_test(contradictions)};
    return cmocka_run_group_tests_name("size", tests, NULL, NULL);
}
