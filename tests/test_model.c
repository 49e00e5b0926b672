/* Model: which layers are MoE, what an expert weighs, what is refused, for every family of config.
 */
#include "tests/support/support.h"

#include "core/model.h"

#include <stdlib.h>
#include <string.h>

static bl_status parse(const char *text, bl_model *model, bl_error *err) {
    json_t *root;
    bl_status st = bl_json_parse(text, strlen(text), "test", &root, err);
    if (st < 0)
        return st;
    st = bl_model_from_json(root, "test", model, err);
    json_decref(root);
    return st;
}

/* "1 3 5": the MoE layers of a model, in words. */
static const char *layers_of(const bl_model *model) {
    static char text[256];
    size_t used = 0;
    text[0] = '\0';
    for (int i = 0; i < model->n_moe_layers && used < sizeof text - 16; i++)
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%d", i > 0 ? " " : "",
                                 model->moe_layers[i]);
    return text;
}

#define SHAPE                                                              \
    "\"num_hidden_layers\":6,\"num_experts\":8,\"num_experts_per_tok\":2," \
    "\"hidden_size\":64,\"moe_intermediate_size\":32,\"intermediate_size\":32"

static void every_way_of_naming_layers(void **state) {
    (void)state;
    static const struct {
        const char *keys, *layers;
    } cases[] = {
        {"\"moe_layers\":[1,4]", "1 4"},
        {"\"first_k_dense_replace\":1", "1 2 3 4 5"},
        {"\"first_k_dense_replace\":1,\"moe_layer_freq\":2", "2 4"},
        {"\"first_k_dense_replace\":0,\"moe_layer_freq\":3", "0 3"},
        {"\"moe_layer_freq\":[0,1,1,0,0,1]", "1 2 5"},
        {"\"decoder_sparse_step\":2,\"mlp_only_layers\":[3]", "1 5"},
        {"\"decoder_sparse_step\":1,\"mlp_only_layers\":[]", "0 1 2 3 4 5"},
        {"\"mlp_only_layers\":[0,5]", "1 2 3 4"},
        {"\"model_type\":\"qwen3_moe\"", "0 1 2 3 4 5"},
        {"\"model_type\":\"mixtral\"", "0 1 2 3 4 5"},
        {"\"model_type\":\"gpt_oss\"", "0 1 2 3 4 5"},
        {"\"interleave_moe_layer_step\":2", "1 3 5"},
        {"\"expert_layer_period\":2,\"expert_layer_offset\":1", "1 3 5"},
        {"\"expert_layer_period\":4,\"expert_layer_offset\":2", "2"},
        {"\"moe_layer_interval\":1,\"moe_layer_start_index\":1,\"moe_layer_end_index\":4",
         "1 2 3 4"},
        {"\"model_type\":\"openmoe\",\"moe_layer_interval\":3", "2 5"},
        {"\"moe_layer_interval\":1", "0 1 2 3 4 5"},
        {"\"moe_layer_start_index\":2", "2 3 4 5"},
        {"\"num_dense_layers\":4", "4 5"},
        {"\"hybrid_override_pattern\":\"MEM*-E\"", "1 5"},
        {"\"layers_block_type\":[\"mamba\",\"moe\",\"attention\",\"moe\",\"mamba\",\"moe\"]",
         "1 3 5"},
        {"\"moe_layers_enum\":\"2,3,5\"", "2 3 5"},
        {"\"mlp_layer_types\":[\"dense\",\"dense\",\"sparse\",\"sparse\",\"hash_moe\",\"moe\"]",
         "2 3 4 5"},
        {"\"mlp_layer_types\":[\"dense\",\"sparse\",\"sparse\",\"sparse\",\"sparse\",\"sparse\"],"
         "\"first_k_dense_replace\":1",
         "1 2 3 4 5"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[512];
        bl_error err;
        bl_model model = {0};
        snprintf(text, sizeof text, "{%s,%s}", SHAPE, cases[i].keys);
        assert_ok(parse(text, &model, &err));
        assert_string_equal(layers_of(&model), cases[i].layers);
        for (int layer = -1; layer < 7; layer++) {
            const int at = bl_model_moe_index(&model, layer);
            if (at >= 0)
                assert_int_equal(model.moe_layers[at], layer);
        }
        assert_int_equal(bl_model_moe_index(&model, model.moe_layers[0]), 0);
        bl_model_free(&model);
    }
}

static void what_cannot_be_told_is_refused(void **state) {
    (void)state;
    static const struct {
        const char *text;
        bl_status status;
        const char *part;
    } cases[] = {
        {"[]", BL_ERR_PARSE, "JSON object"},
        {"{}", BL_ERR_MODEL, "not a Mixture-of-Experts model"},
        {"{" SHAPE "}", BL_ERR_MODEL, "cannot tell which decoder layers are MoE"},
        {"{" SHAPE ",\"model_type\":\"new_thing\"}", BL_ERR_MODEL, "moe_layers"},
        {"{" SHAPE ",\"moe_layers\":[]}", BL_ERR_MODEL, "none of the 6 decoder layers"},
        {"{" SHAPE ",\"moe_layers\":[1,1]}", BL_ERR_MODEL, "moe_layers[1] is 1 after 1"},
        {"{" SHAPE ",\"moe_layers\":[4,1]}", BL_ERR_MODEL, "must ascend"},
        {"{" SHAPE ",\"moe_layers\":[6]}", BL_ERR_RANGE, "outside the 6 decoder layers"},
        {"{" SHAPE ",\"moe_layers\":[-1]}", BL_ERR_RANGE, "moe_layers[0] is -1"},
        {"{" SHAPE ",\"moe_layers\":[1.5]}", BL_ERR_PARSE, "not an integer"},
        {"{" SHAPE ",\"moe_layers\":5}", BL_ERR_PARSE, "moe_layers"},
        {"{" SHAPE ",\"moe_layer_freq\":1}", BL_ERR_MODEL, "first_k_dense_replace"},
        {"{" SHAPE ",\"first_k_dense_replace\":7}", BL_ERR_RANGE, "first_k_dense_replace"},
        {"{" SHAPE ",\"first_k_dense_replace\":6}", BL_ERR_MODEL, "none of the 6"},
        {"{" SHAPE ",\"first_k_dense_replace\":1,\"decoder_sparse_step\":1}", BL_ERR_MODEL,
         "disagree"},
        {"{" SHAPE ",\"moe_layer_interval\":2}", BL_ERR_MODEL, "moe_layer_interval"},
        {"{" SHAPE ",\"moe_layers\":[1],\"n_shared_experts\":[1,1,1,1,1,2]}", BL_ERR_PARSE,
         "the same one for every decoder layer"},
        {"{" SHAPE ",\"moe_layers\":[1],\"n_shared_experts\":[1,1]}", BL_ERR_PARSE,
         "n_shared_experts is not an integer"},
        {"{" SHAPE ",\"decoder_sparse_step\":0}", BL_ERR_RANGE, "decoder_sparse_step"},
        {"{" SHAPE ",\"mlp_only_layers\":[9]}", BL_ERR_MODEL, "mlp_only_layers"},
        {"{" SHAPE ",\"hybrid_override_pattern\":\"ME\"}", BL_ERR_MODEL, "2 letters for 6"},
        {"{" SHAPE ",\"mlp_layer_types\":[\"sparse\"]}", BL_ERR_MODEL, "1 entries for 6"},
        {"{" SHAPE ",\"mlp_layer_types\":[1,2,3,4,5,6]}", BL_ERR_PARSE, "not a string"},
        {"{" SHAPE ",\"moe_layers_enum\":\"1,x\"}", BL_ERR_MODEL, "comma-separated"},
        {"{" SHAPE ",\"moe_layers_enum\":\"1,77\"}", BL_ERR_MODEL, "comma-separated"},
        {"{" SHAPE ",\"moe_layer_freq\":[1,2,0,0,0,0]}", BL_ERR_PARSE, "neither 0 nor 1"},
        {"{" SHAPE ",\"n_routed_experts\":16,\"moe_layers\":[1]}", BL_ERR_MODEL,
         "num_experts is 8, but n_routed_experts is 16"},
        {"{" SHAPE ",\"moe_layers\":[1],\"n_group\":3}", BL_ERR_MODEL, "into 3 groups"},
        {"{" SHAPE ",\"moe_layers\":[1],\"n_group\":8,\"topk_group\":1}", BL_ERR_MODEL,
         "cannot be picked from 1 groups of 1"},
        {"{" SHAPE ",\"moe_layers\":[1],\"n_group\":2,\"topk_group\":3}", BL_ERR_RANGE,
         "topk_group"},
        {"{" SHAPE ",\"moe_layers\":[1],\"is_encoder_decoder\":true}", BL_ERR_MODEL,
         "encoder-decoder"},
        {"{" SHAPE ",\"moe_layers\":[1],\"weight_format\":\"fp7\"}", BL_ERR_MODEL, "\"fp7\""},
        {"{" SHAPE ",\"moe_layers\":[1],\"dtype\":\"int3\"}", BL_ERR_MODEL, "\"int3\""},
        {"{" SHAPE ",\"moe_layers\":[1],\"quantization_config\":{\"quant_method\":\"magic\"}}",
         BL_ERR_MODEL, "\"magic\""},
        {"{" SHAPE ",\"moe_layers\":[1],\"quantization_config\":{\"quant_method\":\"fp8\","
         "\"weight_block_size\":[64,64]}}",
         BL_ERR_MODEL, "weight_format"},
        {"{" SHAPE ",\"moe_layers\":[1],\"bundle\":[]}", BL_ERR_RANGE, "bundle"},
        {"{" SHAPE ",\"moe_layers\":[1],\"bundle\":[{\"name\":\"\",\"rows\":1,\"cols\":1,"
         "\"bytes\":2}]}",
         BL_ERR_RANGE, "1 to 31 characters"},
        {"{" SHAPE ",\"moe_layers\":[1],\"bundle\":[{\"name\":\"w\",\"rows\":1,\"cols\":1,"
         "\"bytes\":-2}]}",
         BL_ERR_RANGE, "bytes"},
        /* hostile sizes */
        {"{\"num_hidden_layers\":6,\"num_experts\":1000000000,\"num_experts_per_tok\":2}",
         BL_ERR_RANGE, "num_experts"},
        {"{\"num_hidden_layers\":6,\"num_experts\":-8,\"num_experts_per_tok\":2}", BL_ERR_RANGE,
         "num_experts"},
        {"{\"num_hidden_layers\":6,\"num_experts\":8,\"num_experts_per_tok\":9}", BL_ERR_RANGE,
         "num_experts_per_tok"},
        {"{\"num_hidden_layers\":6,\"num_experts\":8,\"num_experts_per_tok\":0}", BL_ERR_RANGE,
         "num_experts_per_tok"},
        {"{\"num_hidden_layers\":6,\"num_experts\":\"8\",\"num_experts_per_tok\":2}", BL_ERR_PARSE,
         "num_experts"},
        {"{\"num_hidden_layers\":6,\"num_experts\":8}", BL_ERR_MODEL, "num_experts_per_tok"},
        {"{\"num_experts\":8,\"num_experts_per_tok\":2}", BL_ERR_MODEL, "num_hidden_layers"},
        {"{\"num_hidden_layers\":2000000000,\"num_experts\":8,\"num_experts_per_tok\":2}",
         BL_ERR_RANGE, "num_hidden_layers"},
        {"{\"num_hidden_layers\":6,\"num_experts\":8,\"num_experts_per_tok\":2,"
         "\"moe_layers\":[1],\"hidden_size\":4611686018427387904}",
         BL_ERR_RANGE, "hidden_size"},
        {"{\"num_hidden_layers\":6,\"num_experts\":8,\"num_experts_per_tok\":2,"
         "\"moe_layers\":[1],\"hidden_size\":64}",
         BL_ERR_MODEL, "moe_intermediate_size"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        bl_error err;
        bl_model model = {0};
        assert_fails(parse(cases[i].text, &model, &err), cases[i].status, cases[i].part);
        assert_null(model.moe_layers);
    }
}

/* 64 wide, 32 deep: three matrices of 2048 values; by hand. */
static void bundles_of_every_format(void **state) {
    (void)state;
    static const struct {
        const char *keys;
        int n_bundle;
        size_t expert, dispatch, combine;
    } cases[] = {
        {"\"moe_layers\":[1]", 3, 12288, 128, 128},
        {"\"moe_layers\":[1],\"torch_dtype\":\"float32\"", 3, 24576, 256, 256},
        {"\"moe_layers\":[1],\"weight_format\":\"fp8-block\"", 6, 6144 + 3 * 4, 64 + 4, 128},
        {"\"moe_layers\":[1],\"weight_format\":\"fp8\"", 9, 6144 + 3 * 8, 64 + 4, 128},
        {"\"moe_layers\":[1],\"weight_format\":\"nvfp4\"", 12, 3072 + 384 + 3 * 8, 128, 128},
        {"\"moe_layers\":[1],\"weight_format\":\"mxfp4\"", 6, 3072 + 192, 128, 128},
        {"\"moe_layers\":[1],\"weight_format\":\"int4\"", 6, 3072 + 384, 128, 128},
        {"\"moe_layers\":[1],\"moe_latent_size\":16", 3, 3 * 16 * 32 * 2, 32, 32},
        /* fused gate and up with biases: 4096 + 2048 values and 64 + 64 biases */
        {"\"model_type\":\"gpt_oss\"", 4, 2 * (6144 + 128), 128, 128},
        /* no gate */
        {"\"model_type\":\"nemotron_h\",\"moe_layers\":[1]", 2, 8192, 128, 128},
        {"\"moe_layers\":[1],\"dispatch_bytes_per_row\":72,\"combine_bytes_per_row\":99", 3, 12288,
         72, 99},
        {"\"moe_layers\":[1],\"bundle\":[{\"name\":\"w\",\"rows\":3,\"cols\":5,\"bytes\":7},"
         "{\"name\":\"s\",\"rows\":1,\"cols\":1,\"bytes\":4}]",
         2, 11, 128, 128},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[512];
        bl_error err;
        bl_model model = {0};
        snprintf(text, sizeof text, "{%s,%s}", SHAPE, cases[i].keys);
        assert_ok(parse(text, &model, &err));
        assert_int_equal(model.n_bundle, cases[i].n_bundle);
        assert_int_equal(model.expert_bytes, cases[i].expert);
        assert_int_equal(model.dispatch_bytes_per_row, cases[i].dispatch);
        assert_int_equal(model.combine_bytes_per_row, cases[i].combine);
        size_t sum = 0;
        for (int t = 0; t < model.n_bundle; t++)
            sum += model.bundle[t].bytes;
        assert_int_equal(sum, model.expert_bytes);
        bl_model_free(&model);
    }
}

static void names_and_shapes_of_tensors(void **state) {
    (void)state;
    static const struct {
        const char *keys;
        int at;
        const char *name;
        size_t rows, cols, bytes;
    } cases[] = {
        {"\"weight_format\":\"bf16\"", 2, "down_proj", 64, 32, 4096},
        {"\"weight_format\":\"fp8-block\"", 1, "gate_proj.scale", 1, 1, 4},
        {"\"weight_format\":\"fp8-block\",\"moe_latent_size\":300", 1, "gate_proj.scale", 1, 3, 12},
        {"\"weight_format\":\"nvfp4\"", 0, "gate_proj", 32, 64, 1024},
        {"\"weight_format\":\"nvfp4\"", 1, "gate_proj.scale", 32, 4, 128},
        {"\"weight_format\":\"nvfp4\"", 6, "up_proj.global_scale", 1, 1, 4},
        {"\"weight_format\":\"nvfp4\"", 11, "down_proj.input_scale", 1, 1, 4},
        {"\"weight_format\":\"mxfp4\"", 5, "down_proj.scale", 64, 1, 64},
        {"\"weight_format\":\"int4\"", 3, "up_proj.scale", 32, 2, 128},
        {"\"model_type\":\"gpt_oss\"", 1, "gate_up_proj.bias", 1, 64, 128},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[512];
        bl_error err;
        bl_model model = {0};
        snprintf(text, sizeof text, "{%s,\"moe_layers\":[1],%s}", SHAPE, cases[i].keys);
        assert_ok(parse(text, &model, &err));
        const bl_bundle_tensor *tensor = &model.bundle[cases[i].at];
        assert_string_equal(tensor->name, cases[i].name);
        assert_int_equal(tensor->rows, cases[i].rows);
        assert_int_equal(tensor->cols, cases[i].cols);
        assert_int_equal(tensor->bytes, cases[i].bytes);
        bl_model_free(&model);
    }
}

/* 6 layers, 4 heads of 16, 2 of them for keys and values. */
static void kv_cache_of_every_kind(void **state) {
    (void)state;
    static const struct {
        const char *keys;
        double bytes;
    } cases[] = {
        {"\"num_attention_heads\":4,\"num_key_value_heads\":2", 6 * 2 * 2 * 16 * 2},
        {"\"num_attention_heads\":4", 6 * 2 * 4 * 16 * 2},
        {"\"num_attention_heads\":4,\"head_dim\":32", 6 * 2 * 4 * 32 * 2},
        {"\"kv_lora_rank\":512,\"qk_rope_head_dim\":64", 6 * 576 * 2},
        {"\"kv_lora_rank\":512,\"qk_rope_head_dim\":64,\"index_head_dim\":128",
         6 * (576 * 2 + 132)},
        {"\"num_attention_heads\":4,\"layer_types\":[\"full_attention\",\"sliding_attention\","
         "\"full_attention\",\"linear_attention\",\"sliding_attention\",\"sliding_attention\"]",
         2 * 2 * 4 * 16 * 2},
        {"\"num_attention_heads\":4,\"full_attention_interval\":3", 2 * 2 * 4 * 16 * 2},
        {"\"num_attention_heads\":4,\"attn_layer_period\":4,\"attn_layer_offset\":1",
         2 * 2 * 4 * 16 * 2},
        {"\"num_attention_heads\":4,\"layer_types\":[\"strange\"]", 0},
        {"\"num_attention_heads\":4,\"compress_ratios\":[4,4,4,4,4,4]", 0},
        {"\"kv_bytes_per_token\":12.5", 12.5},
        {"\"num_attention_heads\":4,\"quantization_config\":{\"quant_algo\":\"FP8\","
         "\"kv_cache_scheme\":{\"num_bits\":8}}",
         6 * 2 * 4 * 16},
        {"\"topk_group\":1", 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[512];
        bl_error err;
        bl_model model = {0};
        snprintf(text, sizeof text, "{%s,\"moe_layers\":[1],%s}", SHAPE, cases[i].keys);
        assert_ok(parse(text, &model, &err));
        assert_true(model.kv_bytes_per_token == cases[i].bytes);
        bl_model_free(&model);
    }
}

static void json_form_round_trips(void **state) {
    (void)state;
    bl_error err;
    bl_model first = {0}, second = {0}, third = {0};
    assert_ok(parse("{" SHAPE ",\"name\":\"tiny\",\"model_type\":\"gpt_oss\",\"n_group\":4,"
                    "\"topk_group\":2,\"num_nextn_predict_layers\":1,\"moe_layers\":[2,3,5],"
                    "\"quantization_config\":{\"quant_method\":\"mxfp4\"},"
                    "\"num_attention_heads\":4}",
                    &first, &err));
    json_t *root = bl_model_to_json(&first);
    assert_non_null(root);
    assert_ok(bl_model_from_json(root, NULL, &second, &err));
    json_decref(root);
    assert_ok(bl_model_copy(&second, &third, &err));
    assert_string_equal(third.name, "tiny");
    assert_string_equal(third.type, "gpt_oss");
    assert_string_equal(layers_of(&third), "2 3 5");
    assert_int_equal(third.n_mtp_layers, 1);
    assert_int_equal(third.n_groups, 4);
    assert_int_equal(third.top_groups, 2);
    assert_int_equal(third.weight_format, BL_WEIGHTS_MXFP4);
    assert_int_equal(third.n_bundle, first.n_bundle);
    assert_memory_equal(third.bundle, first.bundle, sizeof first.bundle);
    assert_int_equal(third.expert_bytes, first.expert_bytes);
    assert_true(third.kv_bytes_per_token == first.kv_bytes_per_token);
    assert_string_equal(bl_model_digest(&third).hex, bl_model_digest(&first).hex);
    bl_model_free(&first);
    bl_model_free(&second);
    bl_model_free(&third);
}

static void digest_depends_on_routing_only(void **state) {
    (void)state;
    static const struct {
        const char *keys;
        bool same;
    } cases[] = {{"\"moe_layers\":[1,2],\"name\":\"other\"", true},
                 {"\"moe_layers\":[1,2],\"weight_format\":\"fp8\"", true},
                 {"\"moe_layers\":[1,3]", false},
                 {"\"moe_layers\":[1,2,3]", false}};
    bl_error err;
    bl_model base = {0};
    assert_ok(parse("{" SHAPE ",\"moe_layers\":[1,2]}", &base, &err));
    const bl_digest digest = bl_model_digest(&base);
    assert_int_equal(strlen(digest.hex), 32);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[512];
        bl_model model = {0};
        snprintf(text, sizeof text, "{%s,%s}", SHAPE, cases[i].keys);
        assert_ok(parse(text, &model, &err));
        assert_int_equal(strcmp(bl_model_digest(&model).hex, digest.hex) == 0, cases[i].same);
        bl_model_free(&model);
    }
    bl_model_free(&base);
}

/* Shapes of families whose configs are not in the shared data; widths and counts as published. */
static void other_families(void **state) {
    (void)state;
    static const struct {
        const char *text, *layers;
        int n_experts, top_k, n_shared;
        size_t expert;
    } cases[] = {
        /* DBRX: the experts' keys in an object of their own */
        {"{\"model_type\":\"dbrx\",\"d_model\":64,\"n_layers\":2,\"ffn_config\":{"
         "\"moe_num_experts\":16,\"moe_top_k\":4,\"ffn_hidden_size\":32}}",
         "0 1", 16, 4, 0, 12288},
        /* ERNIE 4.5 */
        {"{\"model_type\":\"ernie4_5_moe\",\"num_hidden_layers\":6,\"moe_num_experts\":8,"
         "\"moe_k\":2,\"moe_layer_start_index\":1,\"moe_layer_end_index\":4,"
         "\"moe_layer_interval\":2,\"moe_num_shared_experts\":2,\"hidden_size\":64,"
         "\"moe_intermediate_size\":32}",
         "1 3", 8, 2, 2, 12288},
        /* Hunyuan: one entry for every layer */
        {"{\"model_type\":\"hunyuan_v1_moe\",\"num_hidden_layers\":3,\"num_experts\":8,"
         "\"moe_topk\":[2,2,2],\"moe_intermediate_size\":[32,32,32],"
         "\"num_shared_expert\":[1,1,1],\"hidden_size\":64}",
         "0 1 2", 8, 2, 1, 12288},
        /* LLaMA-MoE: a width for every expert */
        {"{\"model_type\":\"llama_moe\",\"num_hidden_layers\":2,\"num_experts\":2,"
         "\"num_selects\":1,\"size_experts\":[[32,32],[32,32]],\"hidden_size\":64}",
         "0 1", 2, 1, 0, 12288},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        bl_error err;
        bl_model model = {0};
        assert_ok(parse(cases[i].text, &model, &err));
        assert_string_equal(layers_of(&model), cases[i].layers);
        assert_int_equal(model.n_experts, cases[i].n_experts);
        assert_int_equal(model.top_k, cases[i].top_k);
        assert_int_equal(model.n_shared_experts, cases[i].n_shared);
        assert_int_equal(model.expert_bytes, cases[i].expert);
        bl_model_free(&model);
    }
    bl_error err;
    bl_model model = {0};
    assert_fails(parse("{\"model_type\":\"llama_moe\",\"num_hidden_layers\":2,\"num_experts\":2,"
                       "\"num_selects\":1,\"size_experts\":[[32,32],[32,31]],\"hidden_size\":64}",
                       &model, &err),
                 BL_ERR_MODEL, "different sizes");
    assert_int_equal(err.layer, 1);
    assert_int_equal(err.expert, 1);
}

static void names_and_files(void **state) {
    (void)state;
    bl_error err;
    bl_model model = {0};
    assert_ok(bl_model_load(bl_test_write("Tiny_config.json",
                                          "{" SHAPE ",\"moe_layers\":[1],\"a\":Infinity,"
                                          "\"b\":[-Infinity,NaN],\"c\":\"NaN \\\" Infinity\"}"),
                            &model, &err));
    assert_string_equal(model.name, "Tiny");
    bl_model_free(&model);
    /* nested, and the quantization beside it */
    bl_test_write("N_hf_quant_config.json",
                  "{\"quantization\":{\"quant_algo\":\"NVFP4\",\"kv_cache_quant_algo\":\"FP8\"}}");
    assert_ok(bl_model_load(bl_test_write("N_config.json",
                                          "{\"model_type\":\"outer\",\"text_config\":{" SHAPE
                                          ",\"moe_layers\":[1],\"num_attention_heads\":4}}"),
                            &model, &err));
    assert_string_equal(model.type, "outer");
    assert_int_equal(model.weight_format, BL_WEIGHTS_NVFP4);
    assert_true(model.kv_bytes_per_token == 6 * 2 * 4 * 16);
    bl_model_free(&model);
    assert_ok(
        parse("{" SHAPE ",\"moe_layers\":[1],\"name\":\"a\\u001b[31m\\u00e9\"}", &model, &err));
    assert_string_equal(model.name, "a?[31m??");
    bl_model_free(&model);
    assert_fails(bl_model_load("/nowhere/config.json", &model, &err), BL_ERR_IO, "cannot open");
    assert_fails(bl_model_load(bl_test_write("bad.json", "{\"num_experts\":8,"), &model, &err),
                 BL_ERR_PARSE, "column");
    bl_model_free(&model); /* a zeroed model is fine */
}

#define AI "configs/aiconfigurator/"
#define LRC "configs/moe-lrc/"

/* Layers, experts and bytes of public models; bytes by hand from the widths and the format. */
static const struct {
    const char *file;
    int n_moe, first, n_experts, top_k, n_shared, n_mtp, n_groups;
    size_t expert_bytes;
    const char *refusal;
} PUBLIC[] = {
    {AI "deepseek-ai--DeepSeek-V3_config.json", 58, 3, 256, 8, 1, 1, 8, 44040192 + 10752, NULL},
    {AI "deepseek-ai--DeepSeek-V3.2_config.json", 58, 3, 256, 8, 1, 1, 8, 44050944, NULL},
    {AI "deepseek-ai--DeepSeek-R1_config.json", 58, 3, 256, 8, 1, 1, 8, 44050944, NULL},
    {AI "nvidia--DeepSeek-V3.1-NVFP4_config.json", 58, 3, 256, 8, 1, 1, 8, 24772608 + 24, NULL},
    {AI "deepseek-ai--DeepSeek-V4-Flash_config.json", 43, 0, 256, 6, 1, 1, 1, 13369344, NULL},
    {AI "moonshotai--Kimi-K2-Instruct_config.json", 60, 1, 384, 8, 1, 0, 1, 44050944, NULL},
    {AI "moonshotai--Kimi-K3_config.json", 92, 1, 896, 16, 2, 0, 1, 17547264, NULL},
    {AI "zai-org--GLM-5.2_config.json", 75, 3, 256, 8, 1, 1, 1, 75497472, NULL},
    {AI "nvidia--GLM-5.2-NVFP4_config.json", 75, 3, 256, 8, 1, 1, 1, 21233664 + 24, NULL},
    {"configs/reap/glm.config.json", 45, 1, 128, 8, 1, 1, 1, 34603008, NULL},
    {AI "Qwen--Qwen3-30B-A3B_config.json", 48, 0, 128, 8, 0, 0, 1, 9437184, NULL},
    {AI "Qwen--Qwen3-30B-A3B-FP8_config.json", 48, 0, 128, 8, 0, 0, 1, 4718592 + 1152, NULL},
    {AI "Qwen--Qwen3-235B-A22B_config.json", 94, 0, 128, 8, 0, 0, 1, 37748736, NULL},
    {AI "Qwen--Qwen3.5-397B-A17B_config.json", 60, 0, 512, 10, 1, 1, 1, 25165824, NULL},
    {AI "nvidia--Qwen3.5-397B-A17B-NVFP4_config.json", 60, 0, 512, 10, 1, 1, 1, 7077912, NULL},
    {AI "openai--gpt-oss-20b_config.json", 24, 0, 32, 4, 0, 0, 1, 13236480, NULL},
    {AI "openai--gpt-oss-120b_config.json", 36, 0, 128, 4, 0, 0, 1, 13236480, NULL},
    {AI "mistralai--Mixtral-8x7B-v0.1_config.json", 32, 0, 8, 2, 0, 0, 1, 352321536, NULL},
    {AI "MiniMaxAI--MiniMax-M2.5_config.json", 62, 0, 256, 8, 0, 3, 1, 14159232, NULL},
    {AI "stepfun-ai--Step-3.7-Flash_config.json", 42, 3, 288, 8, 1, 3, 1, 31457280, NULL},
    {AI "google--gemma-4-26B-A4B_config.json", 30, 0, 128, 8, 0, 0, 1, 11894784, NULL},
    {AI "meta-llama--Llama-4-Maverick-17B-128E-Instruct_config.json", 24, 1, 128, 1, 1, 0, 1,
     251658240, NULL},
    {AI "meta-llama--Llama-4-Scout-17B-16E-Instruct_config.json", 48, 0, 16, 1, 1, 0, 1, 251658240,
     NULL},
    {AI "nvidia--NVIDIA-Nemotron-3-Nano-30B-A3B-BF16_config.json", 23, 1, 128, 6, 1, 0, 1, 19955712,
     NULL},
    {AI "nvidia--NVIDIA-Nemotron-3-Nano-30B-A3B-NVFP4_config.json", 23, 1, 128, 6, 1, 0, 1,
     5612544 + 16, NULL},
    {AI "nvidia--NVIDIA-Nemotron-3-Super-120B-A12B-FP8_config.json", 40, 1, 512, 22, 1, 1, 1,
     5505024 + 16, NULL},
    {LRC "deepseek.config.json", 27, 1, 64, 6, 2, 0, 1, 17301504, NULL},
    {LRC "deepseek2.config.json", 26, 1, 64, 6, 2, 0, 1, 17301504, NULL},
    {LRC "grin.config.json", 32, 0, 16, 2, 0, 0, 1, 157286400, NULL},
    {LRC "jamba.config.json", 16, 1, 16, 2, 0, 0, 1, 352321536, NULL},
    {LRC "jetmoe.config.json", 24, 0, 8, 2, 0, 0, 1, 69206016, NULL},
    {LRC "jetmoechat.config.json", 24, 0, 8, 2, 0, 0, 1, 69206016, NULL},
    {LRC "jetmoesft.config.json", 24, 0, 8, 2, 0, 0, 1, 69206016, NULL},
    {LRC "llamamoe2.config.json", 32, 0, 8, 2, 0, 0, 1, 44040192, NULL},
    {LRC "llamamoe2s.config.json", 32, 0, 7, 1, 0, 0, 1, 44040192, NULL},
    {LRC "mixtral.config.json", 32, 0, 8, 2, 0, 0, 1, 352321536, NULL},
    {LRC "olmoe.config.json", 16, 0, 64, 8, 0, 0, 1, 25165824, NULL},
    {LRC "olmoedpo.config.json", 16, 0, 64, 8, 0, 0, 1, 12582912, NULL},
    {LRC "olmoeins.config.json", 16, 0, 64, 8, 0, 0, 1, 12582912, NULL},
    {LRC "olmoesft.config.json", 16, 0, 64, 8, 0, 0, 1, 12582912, NULL},
    {LRC "openmoe.config.json", 4, 5, 32, 2, 0, 0, 1, 201326592, NULL},
    {LRC "phi.config.json", 32, 0, 16, 2, 0, 0, 1, 157286400, NULL},
    {LRC "powermoe.config.json", 32, 0, 40, 8, 0, 0, 1, 9437184, NULL},
    {LRC "qwen.config.json", 24, 0, 60, 4, 1, 0, 1, 17301504, NULL},
    {LRC "qwen2.config.json", 28, 0, 64, 8, 1, 0, 1, 55050240, NULL},
    {LRC "qwen3.config.json", 48, 0, 128, 8, 0, 0, 1, 9437184, NULL},
    {LRC "xverse.config.json", 28, 0, 64, 6, 2, 0, 1, 26542080, NULL},
    {"tiny-moe/config.json", 6, 0, 32, 4, 0, 0, 1, 49152, NULL},
    {LRC "llamamoe.config.json", 32, 0, 16, 4, 0, 0, 1, 16908288, NULL},
    {LRC "llamamoes.config.json", 32, 0, 16, 4, 0, 0, 1, 16908288, NULL},
    {LRC "minicpm.config.json", 40, 0, 8, 2, 0, 0, 1, 79626240, NULL},
    {LRC "yuan.config.json", 24, 0, 32, 2, 0, 0, 1, 100663296, NULL},
    {LRC "nllb.config.json", .refusal = "encoder-decoder"},
    {LRC "switch.config.json", .refusal = "encoder-decoder"},
    {AI "nvidia--GLM-5.2-NVFP4_hf_quant_config.json", .refusal = "not a Mixture-of-Experts"},
};

static void public_configs(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof PUBLIC / sizeof *PUBLIC; i++) {
        bl_error err;
        bl_model model = {0};
        const char *path = bl_test_data(PUBLIC[i].file);
        if (PUBLIC[i].refusal != NULL) {
            assert_fails(bl_model_load(path, &model, &err), BL_ERR_MODEL, PUBLIC[i].refusal);
            continue;
        }
        assert_ok(bl_model_load(path, &model, &err));
        print_message("# %s\n", model.name);
        assert_int_equal(model.n_moe_layers, PUBLIC[i].n_moe);
        assert_int_equal(model.moe_layers[0], PUBLIC[i].first);
        assert_int_equal(model.n_experts, PUBLIC[i].n_experts);
        assert_int_equal(model.top_k, PUBLIC[i].top_k);
        assert_int_equal(model.n_shared_experts, PUBLIC[i].n_shared);
        assert_int_equal(model.n_mtp_layers, PUBLIC[i].n_mtp);
        assert_int_equal(model.n_groups, PUBLIC[i].n_groups);
        assert_int_equal(model.expert_bytes, PUBLIC[i].expert_bytes);
        bl_model_free(&model);
    }
}

/* KV bytes per token as published or by hand: DeepSeek-V3 61 x 576 x 2; GLM-4.5-Air 46 x 2 x 8 x
 * 128 x 2; gpt-oss-20b 12 of 24 layers x 2 x 8 x 64 x 2; Kimi K3 24 of 93 layers x 576 x 2. */
static void public_kv_bytes(void **state) {
    (void)state;
    static const struct {
        const char *file;
        double bytes;
    } cases[] = {{AI "deepseek-ai--DeepSeek-V3_config.json", 70272},
                 {"configs/reap/glm.config.json", 188416},
                 {AI "openai--gpt-oss-20b_config.json", 24576},
                 {AI "moonshotai--Kimi-K3_config.json", 27648},
                 {AI "nvidia--DeepSeek-V3.1-NVFP4_config.json", 35136},
                 {AI "deepseek-ai--DeepSeek-V3.2_config.json", 70272 + 61 * 132},
                 {AI "nvidia--NVIDIA-Nemotron-3-Nano-30B-A3B-BF16_config.json", 6144},
                 {AI "deepseek-ai--DeepSeek-V4-Flash_config.json", 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        bl_error err;
        bl_model model = {0};
        assert_ok(bl_model_load(bl_test_data(cases[i].file), &model, &err));
        assert_true(model.kv_bytes_per_token == cases[i].bytes);
        bl_model_free(&model);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_way_of_naming_layers),
                                       cmocka_unit_test(what_cannot_be_told_is_refused),
                                       cmocka_unit_test(bundles_of_every_format),
                                       cmocka_unit_test(names_and_shapes_of_tensors),
                                       cmocka_unit_test(kv_cache_of_every_kind),
                                       cmocka_unit_test(json_form_round_trips),
                                       cmocka_unit_test(digest_depends_on_routing_only),
                                       cmocka_unit_test(other_families),
                                       cmocka_unit_test(names_and_files),
                                       cmocka_unit_test(public_configs),
                                       cmocka_unit_test(public_kv_bytes)};
    return cmocka_run_group_tests_name("model", tests, NULL, NULL);
}
