/*
 * What an expert weighs and what a token costs: weight format, bundle, row and KV bytes.
 */
#include "core/model_source.h"

#include <stdio.h>
#include <string.h>

#define KEYS(...) ((const char *const[]){__VA_ARGS__, NULL})

static const char *const format_names[BL_N_WEIGHT_FORMATS] = {[BL_WEIGHTS_BF16] = "bf16",
                                                              [BL_WEIGHTS_F32] = "f32",
                                                              [BL_WEIGHTS_FP8_BLOCK] = "fp8-block",
                                                              [BL_WEIGHTS_NVFP4] = "nvfp4",
                                                              [BL_WEIGHTS_MXFP4] = "mxfp4",
                                                              [BL_WEIGHTS_INT4] = "int4",
                                                              [BL_WEIGHTS_FP8] = "fp8"};

const char *bl_weight_format_name(bl_weight_format format) {
    return format_names[format];
}

bool bl_weight_format_parse(const char *name, bl_weight_format *out) {
    for (int f = 0; f < BL_N_WEIGHT_FORMATS; f++) {
        if (strcmp(name, format_names[f]) == 0) {
            *out = (bl_weight_format)f;
            return true;
        }
    }
    return false;
}

/* ---- weight format ------------------------------------------------------------------------ */

static const char *text_of(const json_t *object, const char *key) {
    const char *text = json_string_value(json_object_get(object, key));
    return text != NULL ? text : "";
}

static bool is_pair(const json_t *list, int64_t a, int64_t b) {
    return json_array_size(list) == 2 && json_integer_value(json_array_get(list, 0)) == a &&
           json_integer_value(json_array_get(list, 1)) == b;
}

/* The one entry of compressed-tensors' config_groups: its "weights"; NULL when there are several.
 */
static const json_t *group_weights(const json_t *quant) {
    const json_t *groups = json_object_get(quant, "config_groups");
    if (json_object_size(groups) != 1)
        return NULL;
    const json_t *group = json_object_iter_value(json_object_iter((json_t *)groups));
    return json_object_get(group, "weights");
}

/* Format of compressed-tensors; -1 when it is none of ours. */
static int compressed_format(const json_t *quant) {
    const char *format = text_of(quant, "format");
    const json_t *weights = group_weights(quant);
    if (strcmp(format, "mxfp4-pack-quantized") == 0)
        return BL_WEIGHTS_MXFP4;
    if (strcmp(format, "nvfp4-pack-quantized") == 0)
        return BL_WEIGHTS_NVFP4;
    if (strcmp(format, "pack-quantized") == 0 &&
        json_integer_value(json_object_get(weights, "num_bits")) == 4 &&
        json_integer_value(json_object_get(weights, "group_size")) == 32)
        return BL_WEIGHTS_INT4;
    if (strcmp(format, "float-quantized") == 0 &&
        strcmp(text_of(weights, "strategy"), "block") == 0)
        return is_pair(json_object_get(weights, "block_structure"), 128, 128) ? BL_WEIGHTS_FP8_BLOCK
                                                                              : -1;
    if (strcmp(format, "float-quantized") == 0 &&
        strcmp(text_of(weights, "strategy"), "tensor") == 0)
        return BL_WEIGHTS_FP8;
    return -1;
}

static int quantized_format(const json_t *quant) {
    const char *method = text_of(quant, "quant_method"), *algo = text_of(quant, "quant_algo");
    const json_t *block = json_object_get(quant, "weight_block_size");
    if (strcmp(algo, "NVFP4") == 0)
        return BL_WEIGHTS_NVFP4;
    if (strcmp(algo, "FP8") == 0)
        return BL_WEIGHTS_FP8;
    if (strcmp(method, "mxfp4") == 0)
        return BL_WEIGHTS_MXFP4;
    if (strcmp(method, "fp8") == 0 && (block == NULL || json_is_null(block)))
        return BL_WEIGHTS_FP8;
    if (strcmp(method, "fp8") == 0)
        return is_pair(block, 128, 128) ? BL_WEIGHTS_FP8_BLOCK : -1;
    if (strcmp(method, "compressed-tensors") == 0)
        return compressed_format(quant);
    return -1;
}

static bl_status named_format(const bl_model_source *source, const char *name,
                              bl_weight_format *out, bl_error *err) {
    if (bl_weight_format_parse(name, out))
        return BL_OK;
    return bl_fail_at(err, BL_ERR_MODEL, bl_at(source->file),
                      "weight_format \"%.32s\" is none of bf16, f32, fp8, fp8-block, nvfp4, "
                      "mxfp4, int4",
                      name);
}

/* dtype of the shape, else of the whole; bf16 when nothing is said. */
static bl_status plain_format(const bl_model_source *source, bl_weight_format *out, bl_error *err) {
    const json_t *where[] = {source->shape, source->root};
    const char *const keys[] = {"dtype", "torch_dtype"};
    const char *dtype = "";
    for (int i = 0; i < 4 && dtype[0] == '\0'; i++)
        dtype = text_of(where[i / 2], keys[i % 2]);
    const bool half =
        dtype[0] == '\0' || strcmp(dtype, "bfloat16") == 0 || strcmp(dtype, "float16") == 0;
    if (!half && strcmp(dtype, "float32") != 0)
        return bl_fail_at(err, BL_ERR_MODEL, bl_at(source->file),
                          "dtype \"%.32s\" is not known; add \"weight_format\"", dtype);
    *out = half ? BL_WEIGHTS_BF16 : BL_WEIGHTS_F32;
    return BL_OK;
}

static bl_status read_format(const bl_model_source *source, bl_weight_format *out, bl_error *err) {
    const char *name;
    BL_TRY(bl_json_string_or(source->shape, "weight_format", "", source->file, &name, err));
    if (name[0] != '\0')
        return named_format(source, name, out, err);
    /* DeepSeek-V4 keeps its experts in another format than the rest. */
    if (strcmp(text_of(source->shape, "expert_dtype"), "fp4") == 0) {
        *out = BL_WEIGHTS_MXFP4;
        return BL_OK;
    }
    if (source->quant == NULL)
        return plain_format(source, out, err);
    const int format = quantized_format(source->quant);
    if (format < 0)
        return bl_fail_at(err, BL_ERR_MODEL, bl_at(source->file),
                          "quantization (method \"%.24s\", algorithm \"%.24s\", format \"%.24s\") "
                          "is not known; add \"weight_format\" or a \"bundle\"",
                          text_of(source->quant, "quant_method"),
                          text_of(source->quant, "quant_algo"), text_of(source->quant, "format"));
    *out = (bl_weight_format)format;
    return BL_OK;
}

/* ---- bundle ------------------------------------------------------------------------------- */

static size_t ceil_div(size_t a, size_t b) {
    return (a + b - 1) / b;
}

static void add_tensor(bl_model *model, const char *name, const char *part, size_t rows,
                       size_t cols, size_t bytes) {
    bl_bundle_tensor *tensor = &model->bundle[model->n_bundle++];
    snprintf(tensor->name, sizeof tensor->name, "%s%s", name, part);
    tensor->rows = rows;
    tensor->cols = cols;
    tensor->bytes = bytes;
    model->expert_bytes += bytes;
}

/* One weight matrix with the scales of its format: at most four tensors. */
static void add_matrix(bl_model *model, const char *name, size_t rows, size_t cols) {
    switch (model->weight_format) {
    case BL_WEIGHTS_BF16:
        add_tensor(model, name, "", rows, cols, 2 * rows * cols);
        break;
    case BL_WEIGHTS_F32:
        add_tensor(model, name, "", rows, cols, 4 * rows * cols);
        break;
    case BL_WEIGHTS_FP8_BLOCK: {
        const size_t block_rows = ceil_div(rows, 128), block_cols = ceil_div(cols, 128);
        add_tensor(model, name, "", rows, cols, rows * cols);
        add_tensor(model, name, ".scale", block_rows, block_cols, 4 * block_rows * block_cols);
        break;
    }
    case BL_WEIGHTS_FP8:
        add_tensor(model, name, "", rows, cols, rows * cols);
        add_tensor(model, name, ".scale", 1, 1, 4);
        add_tensor(model, name, ".input_scale", 1, 1, 4);
        break;
    case BL_WEIGHTS_NVFP4:
        add_tensor(model, name, "", rows, cols, rows * ceil_div(cols, 2));
        add_tensor(model, name, ".scale", rows, ceil_div(cols, 16), rows * ceil_div(cols, 16));
        add_tensor(model, name, ".global_scale", 1, 1, 4);
        add_tensor(model, name, ".input_scale", 1, 1, 4);
        break;
    case BL_WEIGHTS_MXFP4:
        add_tensor(model, name, "", rows, cols, rows * ceil_div(cols, 2));
        add_tensor(model, name, ".scale", rows, ceil_div(cols, 32), rows * ceil_div(cols, 32));
        break;
    case BL_WEIGHTS_INT4:
        add_tensor(model, name, "", rows, cols, rows * ceil_div(cols, 2));
        add_tensor(model, name, ".scale", rows, ceil_div(cols, 32), 2 * rows * ceil_div(cols, 32));
        break;
    }
}

static void make_bundle(const bl_model_source *source, bl_model *model) {
    const size_t in = (size_t)model->expert_hidden_size;
    const size_t mid = (size_t)model->moe_intermediate_size;
    if (source->family != NULL && source->family->fused_bias) {
        const size_t value = model->weight_format == BL_WEIGHTS_F32 ? 4 : 2;
        add_matrix(model, "gate_up_proj", 2 * mid, in);
        add_tensor(model, "gate_up_proj", ".bias", 1, 2 * mid, value * 2 * mid);
        add_matrix(model, "down_proj", in, mid);
        add_tensor(model, "down_proj", ".bias", 1, in, value * in);
        return;
    }
    if (source->family == NULL || !source->family->plain)
        add_matrix(model, "gate_proj", mid, in);
    add_matrix(model, "up_proj", mid, in);
    add_matrix(model, "down_proj", in, mid);
}

/* "bundle": [{"name", "rows", "cols", "bytes"}], for formats we do not know. */
static bl_status read_bundle(const bl_model_source *source, bl_model *model, bl_error *err) {
    const json_t *list;
    BL_TRY(bl_json_array(source->shape, "bundle", source->file, &list, err));
    if (json_array_size(list) < 1 || json_array_size(list) > BL_MAX_BUNDLE)
        return bl_fail_at(err, BL_ERR_RANGE, bl_at(source->file),
                          "bundle has %zu tensors, but must have 1 to %d", json_array_size(list),
                          BL_MAX_BUNDLE);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *item = json_array_get(list, i);
        const char *name;
        int64_t rows, cols, bytes;
        BL_TRY(bl_json_string(item, "name", source->file, &name, err));
        BL_TRY(bl_json_int(item, "rows", 1, INT32_MAX, source->file, &rows, err));
        BL_TRY(bl_json_int(item, "cols", 1, INT32_MAX, source->file, &cols, err));
        BL_TRY(bl_json_int(item, "bytes", 1, INT64_C(1) << 40, source->file, &bytes, err));
        if (name[0] == '\0' || strlen(name) >= sizeof model->bundle[0].name)
            return bl_fail_at(err, BL_ERR_RANGE, bl_at(source->file),
                              "bundle[%zu]: name must have 1 to 31 characters", i);
        add_tensor(model, name, "", (size_t)rows, (size_t)cols, (size_t)bytes);
    }
    return BL_OK;
}

/* A row of activations: fp8 with a float32 scale per 128 values where the weights are fp8 (DeepEP's
 * dispatch), otherwise 16 bits; float32 models stay float32. */
static bl_status read_row_bytes(const bl_model_source *source, bl_model *model, bl_error *err) {
    const size_t width = (size_t)model->expert_hidden_size;
    const bool fp8 =
        model->weight_format == BL_WEIGHTS_FP8 || model->weight_format == BL_WEIGHTS_FP8_BLOCK;
    const size_t value = model->weight_format == BL_WEIGHTS_F32 ? 4 : 2;
    const size_t dispatch = fp8 ? width + 4 * ceil_div(width, 128) : value * width;
    int64_t bytes;
    BL_TRY(bl_json_int_or(source->shape, "dispatch_bytes_per_row", 1, INT32_MAX, (int64_t)dispatch,
                          source->file, &bytes, err));
    model->dispatch_bytes_per_row = (size_t)bytes;
    BL_TRY(bl_json_int_or(source->shape, "combine_bytes_per_row", 1, INT32_MAX,
                          (int64_t)(value * width), source->file, &bytes, err));
    model->combine_bytes_per_row = (size_t)bytes;
    return BL_OK;
}

/* ---- KV cache ----------------------------------------------------------------------------- */

/* Layers whose cache grows with every token: not those with a window, a state or compression.
 * -1 when the config does not tell. */
static int count_words(const json_t *types) {
    static const char *const growing[] = {"full_attention", "deepseek_sparse_attention",
                                          "attention"};
    static const char *const bounded[] = {"sliding_attention",
                                          "chunked_attention",
                                          "linear_attention",
                                          "mamba",
                                          "conv",
                                          "moe",
                                          "mlp"};
    int layers = 0;
    for (size_t i = 0; i < json_array_size(types); i++) {
        const char *word = json_string_value(json_array_get(types, i));
        bool known = false;
        for (size_t w = 0; word != NULL && w < sizeof growing / sizeof *growing; w++) {
            const bool is_it = strcmp(word, growing[w]) == 0;
            layers += is_it;
            known = known || is_it;
        }
        for (size_t w = 0; word != NULL && w < sizeof bounded / sizeof *bounded; w++)
            known = known || strcmp(word, bounded[w]) == 0;
        if (!known)
            return -1;
    }
    return layers;
}

static int count_letter(const char *text, char letter) {
    int n = 0;
    for (; *text != '\0'; text++)
        n += *text == letter;
    return n;
}

/* MiniMax: 1 is full attention, 0 a state. */
static int count_ones(const json_t *types) {
    int n = 0;
    for (size_t i = 0; i < json_array_size(types); i++)
        n += json_integer_value(json_array_get(types, i)) == 1;
    return n;
}

static bl_status growing_layers(const bl_model_source *source, int n_layers, int *out,
                                bl_error *err) {
    const json_t *shape = source->shape;
    const json_t *linear = json_object_get(shape, "linear_attn_config");
    int every, offset;
    *out = n_layers;
    if (bl_source_has(source, "compress_ratios") ||
        bl_source_has(source, "attention_projection_size"))
        *out = -1;
    else if (json_is_array(json_object_get(shape, "layer_types")))
        *out = count_words(json_object_get(shape, "layer_types"));
    else if (json_is_array(json_object_get(shape, "layers_block_type")))
        *out = count_words(json_object_get(shape, "layers_block_type"));
    else if (bl_source_has(source, "hybrid_override_pattern"))
        *out = count_letter(text_of(shape, "hybrid_override_pattern"), '*');
    else if (json_is_array(json_object_get(linear, "full_attn_layers")))
        *out = (int)json_array_size(json_object_get(linear, "full_attn_layers"));
    else if (json_is_array(json_object_get(shape, "attn_type_list")))
        *out = count_ones(json_object_get(shape, "attn_type_list"));
    else if (bl_source_has(source, "full_attention_interval")) {
        BL_TRY(
            bl_source_int(source, KEYS("full_attention_interval"), 1, BL_MAX_LAYERS, &every, err));
        *out = n_layers / every;
    } else if (bl_source_has(source, "attn_layer_period")) {
        BL_TRY(bl_source_int(source, KEYS("attn_layer_period"), 1, BL_MAX_LAYERS, &every, err));
        BL_TRY(bl_source_int_or(source, KEYS("attn_layer_offset"), 0, every - 1, 0, &offset, err));
        *out = n_layers > offset ? (n_layers - offset - 1) / every + 1 : 0;
    }
    return BL_OK;
}

/* Keys of the lightning indexer (DeepSeek sparse attention): fp8 with a float32 scale per 128. */
static bl_status indexer_bytes(const bl_model_source *source, int layers, double *out,
                               bl_error *err) {
    int width;
    BL_TRY(bl_source_int_or(source, KEYS("index_head_dim"), 0, BL_MAX_WIDTH, 0, &width, err));
    const json_t *types = json_object_get(source->shape, "indexer_types");
    if (json_is_array(types)) {
        layers = 0;
        for (size_t i = 0; i < json_array_size(types); i++) {
            const char *word = json_string_value(json_array_get(types, i));
            layers += word != NULL && strcmp(word, "full") == 0;
        }
    }
    *out = (double)layers * (double)((size_t)width + 4 * ceil_div((size_t)width, 128));
    return BL_OK;
}

/* Values that one layer keeps of a token; 0 when the config does not tell. */
static bl_status cached_values(const bl_model_source *source, const bl_model *model, double *out,
                               bl_error *err) {
    int rank, rope, heads, kv_heads, head_dim;
    *out = 0;
    BL_TRY(bl_source_int_or(source, KEYS("kv_lora_rank"), 0, BL_MAX_WIDTH, 0, &rank, err));
    BL_TRY(bl_source_int_or(source, KEYS("qk_rope_head_dim"), 0, BL_MAX_WIDTH, 0, &rope, err));
    if (rank > 0) {
        *out = rank + rope;
        return BL_OK;
    }
    BL_TRY(bl_source_int_or(source, KEYS("num_attention_heads", "n_head"), 1, BL_MAX_WIDTH, 0,
                            &heads, err));
    if (heads == 0)
        return BL_OK;
    BL_TRY(bl_source_int_or(source, KEYS("num_key_value_heads"), 1, BL_MAX_WIDTH, heads, &kv_heads,
                            err));
    BL_TRY(bl_source_int_or(source, KEYS("num_global_key_value_heads"), 1, BL_MAX_WIDTH, kv_heads,
                            &kv_heads, err));
    BL_TRY(bl_source_int_or(source, KEYS("head_dim", "kv_channels"), 1, BL_MAX_WIDTH,
                            model->hidden_size / heads, &head_dim, err));
    BL_TRY(bl_source_int_or(source, KEYS("global_head_dim"), 1, BL_MAX_WIDTH, head_dim, &head_dim,
                            err));
    *out = 2.0 * kv_heads * head_dim;
    return BL_OK;
}

static bl_status read_kv(const bl_model_source *source, bl_model *model, bl_error *err) {
    int layers;
    double values, indexer;
    BL_TRY(growing_layers(source, model->n_layers, &layers, err));
    BL_TRY(cached_values(source, model, &values, err));
    BL_TRY(indexer_bytes(source, layers, &indexer, err));
    const json_t *scheme = json_object_get(source->quant, "kv_cache_scheme");
    const bool fp8 = json_integer_value(json_object_get(scheme, "num_bits")) == 8 ||
                     strcmp(text_of(source->quant, "kv_cache_quant_algo"), "FP8") == 0;
    const bool told = layers >= 0 && values > 0;
    const double bytes = told ? layers * values * (fp8 ? 1 : 2) + indexer : 0;
    return bl_json_real_or(source->shape, "kv_bytes_per_token", 0, 1e12, bytes, source->file,
                           &model->kv_bytes_per_token, err);
}

bl_status bl_model_read_bytes(const bl_model_source *source, bl_model *model, bl_error *err) {
    if (bl_source_has(source, "bundle")) {
        const char *name;
        BL_TRY(bl_json_string_or(source->shape, "weight_format", "bf16", source->file, &name, err));
        BL_TRY(named_format(source, name, &model->weight_format, err));
        BL_TRY(read_bundle(source, model, err));
    } else {
        BL_TRY(read_format(source, &model->weight_format, err));
        make_bundle(source, model);
    }
    BL_TRY(read_row_bytes(source, model, err));
    return read_kv(source, model, err);
}
