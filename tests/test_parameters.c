/* How many weights a model has: against the numbers that the model hubs publish, against a sum by
 * hand, and said not to be told where the config does not tell. */
#include "tests/support/support.h"

#include "core/model.h"

#include <stdio.h>
#include <string.h>

static bl_status parse(const char *text, bl_model *model, bl_error *err) {
    json_t *root;
    const bl_status st = bl_json_parse(text, strlen(text), "test", &root, err);
    if (st < 0)
        return st;
    const bl_status read = bl_model_from_json(root, "test", model, err);
    json_decref(root);
    return read;
}

/* Totals are the sizes of the published checkpoints, value for value. DeepSeek-V3's card says 671 B
 * and 37 B, Kimi K2's 1 T and 32 B, Llama 4's 109 B (with the vision tower) and 17 B. */
static void published_models(void **state) {
    (void)state;
    static const struct {
        const char *file;
        double total, active; /* active to the precision of the cards */
        int n_kv_heads;
    } cases[] = {
        {"aiconfigurator/Qwen--Qwen3-30B-A3B_config.json", 30532122624, 3.35e9, 4},
        {"aiconfigurator/Qwen--Qwen3-30B-A3B-FP8_config.json", 30532122624, 3.35e9, 4},
        {"aiconfigurator/Qwen--Qwen3-235B-A22B_config.json", 235093634560, 22.2e9, 4},
        {"aiconfigurator/deepseek-ai--DeepSeek-V3_config.json", 671026419200, 37.55e9, 0},
        {"aiconfigurator/nvidia--DeepSeek-V3.1-NVFP4_config.json", 671026419200, 37.55e9, 0},
        {"aiconfigurator/mistralai--Mixtral-8x7B-v0.1_config.json", 46702792704, 12.88e9, 8},
        {"aiconfigurator/openai--gpt-oss-20b_config.json", 20914757184, 4.19e9, 8},
        {"aiconfigurator/openai--gpt-oss-120b_config.json", 116829156672, 5.71e9, 8},
        {"moe-lrc/deepseek.config.json", 16375728128, 2.83e9, 16},
        {"moe-lrc/deepseek2.config.json", 15706484224, 2.66e9, 0},
        {"moe-lrc/olmoe.config.json", 6919161856, 1.28e9, 16},
        {"moe-lrc/phi.config.json", 41873153344, 6.64e9, 8},
        {"moe-lrc/qwen.config.json", 14315784192, 2.69e9, 16},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char relative[128];
        bl_model model;
        bl_error err;
        snprintf(relative, sizeof relative, "configs/%s", cases[i].file);
        assert_ok(bl_model_load(bl_test_data(relative), &model, &err));
        assert_string_equal(model.parameters.untold, "");
        if (bl_parameters_total(&model) != cases[i].total)
            fail_msg("%s: %.0f weights", cases[i].file, bl_parameters_total(&model));
        const double active = bl_parameters_active(&model);
        if (active < 0.99 * cases[i].active || active > 1.01 * cases[i].active)
            fail_msg("%s: %.0f active", cases[i].file, active);
        assert_int_equal(model.parameters.n_kv_heads, cases[i].n_kv_heads);
        bl_model_free(&model);
    }
}

static void what_a_config_does_not_tell(void **state) {
    (void)state;
    static const char *const files[] = {
        "aiconfigurator/moonshotai--Kimi-K3_config.json",
        "aiconfigurator/deepseek-ai--DeepSeek-V4-Flash_config.json", "moe-lrc/jamba.config.json",
        "moe-lrc/llamamoe2s.config.json" /* calls itself mixtral, but has an MLP more */};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char relative[128];
        bl_model model;
        bl_error err;
        snprintf(relative, sizeof relative, "configs/%s", files[i]);
        assert_ok(bl_model_load(bl_test_data(relative), &model, &err));
        bl_test_has(model.parameters.untold, "are not known");
        assert_true(bl_parameters_total(&model) == 0 && bl_parameters_active(&model) == 0);
        assert_true(model.parameters.experts > 0 && model.parameters.attention == 0);
        bl_model_free(&model);
    }
}

/* Kimi K3: 92 x 896 experts of 3 x 3072 x 3584 (the latent width). */
static void experts_are_always_told(void **state) {
    (void)state;
    bl_model model;
    bl_error err;
    assert_ok(bl_model_load(bl_test_data("configs/aiconfigurator/moonshotai--Kimi-K3_config.json"),
                            &model, &err));
    assert_true(model.parameters.experts == 92.0 * 896 * 3 * 3072 * 3584);
    bl_model_free(&model);
}

#define SHAPE                                                                  \
    "\"num_hidden_layers\":3,\"num_experts\":4,\"num_experts_per_tok\":2,"     \
    "\"hidden_size\":16,\"moe_intermediate_size\":8,\"intermediate_size\":24," \
    "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"vocab_size\":100,"

/* Layer 0 dense, layers 1 and 2 MoE; heads of 4. */
static void sums_by_hand(void **state) {
    (void)state;
    static const struct {
        const char *keys;
        double experts, shared, router, attention, dense, embedding, norms;
    } cases[] = {
        /* attention: q and o 16x16 each, k and v 16x8 each, two norms of 4 */
        {"\"model_type\":\"qwen3_moe\",\"mlp_only_layers\":[0]", 2 * 4 * 384, 0, 2 * 64,
         3 * (256 + 128 + 128 + 256 + 8), 3 * 16 * 24, 2 * 1600, 7 * 16},
        /* the output matrix is the input table; biases of 16, 8, 8 and 16 */
        {"\"model_type\":\"qwen3_moe\",\"mlp_only_layers\":[0],\"tie_word_embeddings\":true,"
         "\"attention_bias\":true",
         2 * 4 * 384, 0, 2 * 64, 3 * (768 + 8 + 48), 3 * 16 * 24, 1600, 7 * 16},
        /* biases without a key, a shared expert of 20 with its gate of 16 */
        {"\"model_type\":\"qwen2_moe\",\"mlp_only_layers\":[0],"
         "\"shared_expert_intermediate_size\":20",
         2 * 4 * 384, 2 * (3 * 16 * 20 + 16), 2 * 64, 3 * (768 + 32), 3 * 16 * 24, 2 * 1600,
         7 * 16},
        /* norms over all heads only when the key says so */
        {"\"model_type\":\"minimax_m2\",\"moe_layers\":[1,2]", 2 * 4 * 384, 0, 2 * (64 + 4),
         3 * 768, 3 * 16 * 24, 2 * 1600, 7 * 16},
        {"\"model_type\":\"minimax_m2\",\"moe_layers\":[1,2],\"use_qk_norm\":true", 2 * 4 * 384, 0,
         2 * (64 + 4), 3 * (768 + 24), 3 * 16 * 24, 2 * 1600, 7 * 16},
        /* MLA: q 16x6, norm 6, 6x(4x5); kv 16x(7+2), norm 7, 7x(4x(3+4)); o (4x4)x16 */
        {"\"model_type\":\"deepseek_v3\",\"first_k_dense_replace\":1,\"n_shared_experts\":1,"
         "\"q_lora_rank\":6,\"kv_lora_rank\":7,\"qk_nope_head_dim\":3,\"qk_rope_head_dim\":2,"
         "\"v_head_dim\":4,\"topk_method\":\"noaux_tc\"",
         2 * 4 * 384, 2 * 384, 2 * (64 + 4), 3 * (96 + 6 + 120 + 144 + 7 + 196 + 256), 3 * 16 * 24,
         2 * 1600, 7 * 16},
        /* the same without a latent for queries, and without a correction bias */
        {"\"model_type\":\"deepseek_v2\",\"first_k_dense_replace\":1,\"n_shared_experts\":1,"
         "\"q_lora_rank\":null,\"kv_lora_rank\":7,\"qk_nope_head_dim\":3,\"qk_rope_head_dim\":2,"
         "\"v_head_dim\":4",
         2 * 4 * 384, 2 * 384, 2 * 64, 3 * (320 + 144 + 7 + 196 + 256), 3 * 16 * 24, 2 * 1600,
         7 * 16},
        /* an indexer of 2 heads of 3 in one layer of three: 6x6, 16x3, two vectors of 3, 16x2 */
        {"\"model_type\":\"glm_moe_dsa\",\"first_k_dense_replace\":1,\"q_lora_rank\":6,"
         "\"kv_lora_rank\":7,\"qk_nope_head_dim\":3,\"qk_rope_head_dim\":2,\"v_head_dim\":4,"
         "\"index_n_heads\":2,\"index_head_dim\":3,"
         "\"indexer_types\":[\"full\",\"shared\",\"shared\"]",
         2 * 4 * 384, 0, 2 * (64 + 4), 3 * 825 + (36 + 48 + 6 + 32), 3 * 16 * 24, 2 * 1600, 7 * 16},
        /* biases everywhere, a sink per head, router biases; all layers MoE */
        {"\"model_type\":\"gpt_oss\",\"attention_bias\":true", 3 * 4 * (32 * 8 * 3 / 2 + 16 + 16),
         0, 3 * (64 + 4), 3 * (768 + 48 + 4), 0, 2 * 1600, 7 * 16},
        /* norms and output matrix with biases */
        {"\"model_type\":\"phimoe\",\"moe_layers\":[1,2],\"lm_head_bias\":true", 2 * 4 * 384, 0,
         2 * 64, 3 * 768, 3 * 16 * 24, 2 * 1600 + 100, 7 * 32},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[1024];
        bl_model model = {0};
        bl_error err;
        snprintf(text, sizeof text, "{%s%s}", SHAPE, cases[i].keys);
        assert_ok(parse(text, &model, &err));
        const bl_parameters *p = &model.parameters;
        assert_string_equal(p->untold, "");
        if (p->shared != cases[i].shared || p->router != cases[i].router ||
            p->attention != cases[i].attention || p->dense != cases[i].dense ||
            p->embedding != cases[i].embedding || p->norms != cases[i].norms)
            fail_msg("case %zu: %.0f %.0f %.0f %.0f %.0f %.0f", i, p->shared, p->router,
                     p->attention, p->dense, p->embedding, p->norms);
        assert_true(p->experts == cases[i].experts);
        const double rest = cases[i].shared + cases[i].router + cases[i].attention +
                            cases[i].dense + cases[i].embedding + cases[i].norms;
        assert_true(bl_parameters_total(&model) == cases[i].experts + rest);
        assert_true(bl_parameters_active(&model) == cases[i].experts / 2 + rest);
        bl_model_free(&model);
    }
}

static void a_missing_key_is_named(void **state) {
    (void)state;
    bl_model model = {0};
    bl_error err;
    assert_ok(parse("{\"model_type\":\"deepseek_v3\",\"first_k_dense_replace\":0,"
                    "\"num_hidden_layers\":3,\"n_routed_experts\":4,\"num_experts_per_tok\":2,"
                    "\"hidden_size\":16,\"moe_intermediate_size\":8,\"num_attention_heads\":4,"
                    "\"vocab_size\":9}",
                    &model, &err));
    bl_test_has(model.parameters.untold, "kv_lora_rank");
    assert_true(bl_parameters_total(&model) == 0);
    bl_model_free(&model);
    assert_fails(parse("{" SHAPE "\"model_type\":\"qwen3_moe\",\"head_dim\":-1}", &model, &err),
                 BL_ERR_RANGE, "head_dim");
    assert_fails(parse("{" SHAPE "\"model_type\":\"mixtral\",\"head_dim\":\"x\"}", &model, &err),
                 BL_ERR_PARSE, "head_dim");
}

static void model_json_keeps_them(void **state) {
    (void)state;
    static const char *const types[] = {"qwen3_moe", "some\xc3\xa9thing"};
    for (int i = 0; i < 2; i++) {
        char text[512];
        bl_model model = {0}, again = {0};
        bl_error err;
        snprintf(text, sizeof text, "{%s\"moe_layers\":[0,2],\"model_type\":\"%s\"}", SHAPE,
                 types[i]);
        assert_ok(parse(text, &model, &err));
        json_t *form = bl_model_to_json(&model);
        assert_non_null(form);
        assert_ok(bl_model_from_json(form, "again", &again, &err));
        json_decref(form);
        assert_memory_equal(&model.parameters, &again.parameters, sizeof model.parameters);
        bl_model_free(&model);
        bl_model_free(&again);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(published_models),        cmocka_unit_test(what_a_config_does_not_tell),
        cmocka_unit_test(experts_are_always_told), cmocka_unit_test(sums_by_hand),
        cmocka_unit_test(a_missing_key_is_named),  cmocka_unit_test(model_json_keeps_them)};
    return cmocka_run_group_tests_name("parameters", tests, NULL, NULL);
}
