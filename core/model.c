#include "core/model.h"

#include "core/io.h"
#include "core/mem.h"
#include "core/model_source.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Far above any config.json; a file beyond it is something else. */
#define MAX_CONFIG_BYTES ((size_t)64 << 20)

#define KEYS(...) ((const char *const[]){__VA_ARGS__, NULL})
#define EXPERT_KEYS KEYS("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts")
#define TOP_K_KEYS                                                                     \
    KEYS("num_experts_per_tok", "num_experts_per_token", "experts_per_token", "moe_k", \
         "moe_top_k", "moe_topk", "top_k_experts", "num_selects", "router_topk")

/* Types with something that their config leaves unsaid. Others need explicit keys. */
static const bl_family FAMILIES[] = {
    {.type = "mixtral", .all_moe = true, .width_key = "intermediate_size"},
    {.type = "gpt_oss", .all_moe = true, .width_key = "intermediate_size", .fused_bias = true},
    {.type = "olmoe", .all_moe = true, .width_key = "intermediate_size"},
    {.type = "minimax", .all_moe = true, .width_key = "intermediate_size"},
    {.type = "minimax_m2", .all_moe = true, .width_key = "intermediate_size"},
    {.type = "phimoe", .all_moe = true, .width_key = "intermediate_size"},
    {.type = "grinmoe", .all_moe = true, .width_key = "intermediate_size"},
    {.type = "granitemoe", .all_moe = true, .width_key = "intermediate_size"},
    {.type = "granitemoeshared", .all_moe = true, .width_key = "intermediate_size"},
    {.type = "granitemoehybrid", .all_moe = true, .width_key = "intermediate_size"},
    {.type = "xverse", .all_moe = true, .width_key = "intermediate_size"},
    {.type = "minicpm", .all_moe = true, .width_key = "intermediate_size"},
    {.type = "hunyuan_v1_moe", .all_moe = true},
    {.type = "yuan", .all_moe = true, .width_key = "ffn_hidden_size"},
    {.type = "dbrx", .all_moe = true, .width_key = "ffn_hidden_size"},
    {.type = "llama_moe", .all_moe = true},
    {.type = "jetmoe", .all_moe = true, .width_key = "ffn_hidden_size"},
    {.type = "deepseek_v4", .all_moe = true},
    {.type = "gemma4_text", .all_moe = true},
    {.type = "qwen2_moe", .all_moe = true},
    {.type = "qwen3_moe", .all_moe = true},
    {.type = "qwen3_next", .all_moe = true},
    {.type = "qwen3_vl_moe_text", .all_moe = true},
    {.type = "qwen3_5_moe_text", .all_moe = true},
    {.type = "llama4_text", .width_key = "intermediate_size", .n_shared = 1},
    {.type = "jamba", .width_key = "intermediate_size"},
    {.type = "openmoe", .width_key = "intermediate_size"},
    {.type = "ernie4_5_moe"},
    {.type = "nemotron_h", .plain = true},
};
#define N_FAMILIES (sizeof FAMILIES / sizeof *FAMILIES)

/* ---- getters over many names -------------------------------------------------------------- */

const json_t *bl_source_get(const bl_model_source *source, const char *key) {
    const json_t *value = json_object_get(source->shape, key);
    if (value == NULL || json_is_null(value))
        value = json_object_get(source->experts, key);
    return value == NULL || json_is_null(value) ? NULL : value;
}

bool bl_source_has(const bl_model_source *source, const char *key) {
    return bl_source_get(source, key) != NULL;
}

/* The one integer that a list repeats for every decoder layer; NULL when it is no such list. */
static const json_t *repeated(const bl_model_source *source, const json_t *list) {
    const json_t *layers = bl_source_get(source, "num_hidden_layers");
    const json_t *first = json_array_get(list, 0);
    if (first == NULL || (json_int_t)json_array_size(list) != json_integer_value(layers))
        return NULL;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *item = json_array_get(list, i);
        if (!json_is_integer(item) || json_integer_value(item) != json_integer_value(first))
            return NULL;
    }
    return first;
}

static bl_status value_of(const bl_model_source *source, const char *key, int64_t min, int64_t max,
                          int64_t *out, bl_error *err) {
    const json_t *value = bl_source_get(source, key);
    if (json_is_array(value) && repeated(source, value) != NULL)
        value = repeated(source, value);
    if (!json_is_integer(value))
        return bl_fail_at(err, BL_ERR_PARSE, bl_at(source->file), "%s is not an integer%s", key,
                          json_is_array(value) ? ", nor the same one for every decoder layer" : "");
    const int64_t number = json_integer_value(value);
    if (number < min || number > max)
        return bl_fail_at(err, BL_ERR_RANGE, bl_at(source->file),
                          "%s is %lld, but must be in [%lld, %lld]", key, (long long)number,
                          (long long)min, (long long)max);
    *out = number;
    return BL_OK;
}

static bl_status find_int(const bl_model_source *source, const char *const *keys, int64_t min,
                          int64_t max, const char **found, int64_t *out, bl_error *err) {
    *found = NULL;
    for (; *keys != NULL; keys++) {
        int64_t value = 0;
        if (!bl_source_has(source, *keys))
            continue;
        BL_TRY(value_of(source, *keys, min, max, &value, err));
        if (*found != NULL && value != *out)
            return bl_fail_at(err, BL_ERR_MODEL, bl_at(source->file), "%s is %lld, but %s is %lld",
                              *found, (long long)*out, *keys, (long long)value);
        *found = *keys;
        *out = value;
    }
    return BL_OK;
}

bl_status bl_source_int(const bl_model_source *source, const char *const *keys, int64_t min,
                        int64_t max, int *out, bl_error *err) {
    const char *found;
    int64_t value = 0;
    BL_TRY(find_int(source, keys, min, max, &found, &value, err));
    if (found == NULL)
        return bl_fail_at(err, BL_ERR_MODEL, bl_at(source->file), "key \"%s\" is missing%s%s",
                          keys[0], keys[1] != NULL ? ", and so are its other names, such as " : "",
                          keys[1] != NULL ? keys[1] : "");
    *out = (int)value;
    return BL_OK;
}

bl_status bl_source_int_or(const bl_model_source *source, const char *const *keys, int64_t min,
                           int64_t max, int fallback, int *out, bl_error *err) {
    const char *found;
    int64_t value = 0;
    BL_TRY(find_int(source, keys, min, max, &found, &value, err));
    *out = found != NULL ? (int)value : fallback;
    return BL_OK;
}

/* ---- where things are --------------------------------------------------------------------- */

static const char *string_of(const json_t *object, const char *key) {
    const char *text = json_string_value(json_object_get(object, key));
    return text != NULL ? text : "";
}

/* Names go to terminals and into other files: printable ASCII only. `out` is terminated. */
static void keep_printable(const char *text, size_t length, char *out) {
    for (size_t i = 0; i < length; i++)
        out[i] = text[i] >= ' ' && text[i] <= '~' ? text[i] : '?';
    out[length] = '\0';
}

/* "model_type", or the architecture of configs without one: MiniCPMForCausalLM is minicpm. */
static void find_type(const json_t *shape, char *out, size_t room) {
    static const char ending[] = "ForCausalLM";
    const char *type = string_of(shape, "model_type");
    size_t length = strlen(type);
    const bool named = length > 0;
    if (!named) {
        const json_t *first = json_array_get(json_object_get(shape, "architectures"), 0);
        type = json_is_string(first) ? json_string_value(first) : "";
        length = strlen(type);
        const size_t end = sizeof ending - 1;
        if (length > end && strcmp(type + length - end, ending) == 0)
            length -= end;
    }
    length = length < room ? length : room - 1;
    keep_printable(type, length, out);
    for (size_t i = 0; i < length && !named; i++)
        out[i] = (char)tolower((unsigned char)out[i]);
}

static const bl_family *find_family(const char *type) {
    for (size_t f = 0; f < N_FAMILIES; f++) {
        if (strcmp(type, FAMILIES[f].type) == 0)
            return &FAMILIES[f];
    }
    return NULL;
}

static const json_t *find_shape(const json_t *root) {
    const char *const nested[] = {"text_config", "language_config", "llm_config"};
    for (size_t i = 0; i < sizeof nested / sizeof *nested; i++) {
        const json_t *inner = json_object_get(root, nested[i]);
        if (json_is_object(inner) && json_object_get(root, "num_hidden_layers") == NULL)
            return inner;
    }
    return root;
}

/* The quantization object of the config, or of the hf_quant_config.json beside it. */
static const json_t *find_quant(const json_t *root, const json_t *shape, const json_t *beside) {
    const json_t *quant = json_object_get(root, "quantization_config");
    if (!json_is_object(quant))
        quant = json_object_get(shape, "quantization_config");
    if (!json_is_object(quant))
        quant = json_object_get(beside, "quantization");
    return json_is_object(quant) ? quant : NULL;
}

/* "name" of a model.json; otherwise of the file: X of X/config.json, X.config.json, X_config.json
 * or X.json; otherwise the type. */
static bl_status read_name(const bl_model_source *source, bl_model *model, bl_error *err) {
    const char *name;
    BL_TRY(bl_json_string_or(source->root, "name", "", source->file, &name, err));
    size_t length = strlen(name);
    if (length == 0 && source->file != NULL) {
        static const char *const endings[] = {"/config.json", "/model.json", ".config.json",
                                              "_config.json", ".json"};
        name = source->file;
        length = strlen(name);
        for (size_t i = 0; i < sizeof endings / sizeof *endings; i++) {
            const size_t end = strlen(endings[i]);
            if (length > end && strcmp(name + length - end, endings[i]) == 0) {
                length -= end;
                break;
            }
        }
        for (size_t at = length; at > 0; at--) {
            if (name[at - 1] == '/') {
                name += at;
                length -= at;
                break;
            }
        }
        if (length == 0 || strcmp(source->file, "config.json") == 0 || name[0] == '.') {
            name = model->type[0] != '\0' ? model->type : "model";
            length = strlen(name);
        }
    }
    if (length >= sizeof model->name)
        length = sizeof model->name - 1;
    keep_printable(name, length, model->name);
    return BL_OK;
}

/* ---- reading ------------------------------------------------------------------------------ */

static bl_status read_experts(const bl_model_source *source, bl_model *model, bl_error *err) {
    bool any = false;
    for (const char *const *key = EXPERT_KEYS; *key != NULL; key++)
        any = any || bl_source_has(source, *key);
    const json_t *block = json_object_get(source->shape, "enable_moe_block");
    if (!any || json_is_false(block))
        return bl_fail_at(err, BL_ERR_MODEL, bl_at(source->file),
                          "not a Mixture-of-Experts model: no num_experts, n_routed_experts, "
                          "num_local_experts or moe_num_experts");
    BL_TRY(bl_source_int(source, EXPERT_KEYS, 2, BL_MAX_EXPERTS, &model->n_experts, err));
    BL_TRY(bl_source_int(source, TOP_K_KEYS, 1, model->n_experts, &model->top_k, err));
    BL_TRY(bl_source_int_or(source, KEYS("n_group", "num_expert_group"), 1, model->n_experts, 1,
                            &model->n_groups, err));
    BL_TRY(bl_source_int_or(source, KEYS("topk_group"), 1, model->n_groups, model->n_groups,
                            &model->top_groups, err));
    if (model->n_experts % model->n_groups != 0)
        return bl_fail_at(err, BL_ERR_MODEL, bl_at(source->file),
                          "%d experts do not divide into %d groups", model->n_experts,
                          model->n_groups);
    const int per_group = model->n_experts / model->n_groups;
    if (model->top_k > model->top_groups * per_group)
        return bl_fail_at(err, BL_ERR_MODEL, bl_at(source->file),
                          "top-%d cannot be picked from %d groups of %d experts", model->top_k,
                          model->top_groups, per_group);
    return BL_OK;
}

static bl_status read_shared(const bl_model_source *source, bl_model *model, bl_error *err) {
    int width;
    BL_TRY(bl_source_int_or(source,
                            KEYS("shared_expert_intermediate_size", "shared_intermediate_size"), 0,
                            BL_MAX_WIDTH, 0, &width, err));
    const int known = source->family != NULL ? source->family->n_shared : 0;
    return bl_source_int_or(source,
                            KEYS("n_shared_experts", "num_shared_experts", "num_shared_expert",
                                 "moe_num_shared_experts"),
                            0, 1024, width > 0 ? 1 : known, &model->n_shared_experts, err);
}

static bl_status read_mtp(const bl_model_source *source, bl_model *model, bl_error *err) {
    int modules, each;
    bool used;
    BL_TRY(bl_json_bool_or(source->shape, "use_mtp", true, source->file, &used, err));
    BL_TRY(bl_source_int_or(source, KEYS("num_mtp_modules"), 0, 64, 0, &modules, err));
    BL_TRY(bl_source_int_or(source, KEYS("mtp_transformer_layers"), 0, 64, 1, &each, err));
    return bl_source_int_or(source, KEYS("num_nextn_predict_layers", "mtp_num_hidden_layers"), 0,
                            4096, used ? modules * each : 0, &model->n_mtp_layers, err);
}

/* LLaMA-MoE: "size_experts" lists the width of every expert of every layer; they must be equal. */
static bl_status read_listed_width(const bl_model_source *source, int *out, bl_error *err) {
    const json_t *layers;
    BL_TRY(bl_json_array(source->shape, "size_experts", source->file, &layers, err));
    const json_int_t width = json_integer_value(json_array_get(json_array_get(layers, 0), 0));
    for (size_t layer = 0; layer < json_array_size(layers); layer++) {
        const json_t *experts = json_array_get(layers, layer);
        for (size_t e = 0; e < json_array_size(experts); e++) {
            const json_t *item = json_array_get(experts, e);
            if (!json_is_integer(item) || json_integer_value(item) != width)
                return bl_fail_at(err, BL_ERR_MODEL, bl_at_expert(source->file, (int)layer, (int)e),
                                  "size_experts: experts of different sizes are not supported");
        }
    }
    if (width < 1 || width > BL_MAX_WIDTH)
        return bl_fail_at(err, BL_ERR_RANGE, bl_at(source->file),
                          "size_experts is %lld, but must be in [1, %d]", (long long)width,
                          BL_MAX_WIDTH);
    *out = (int)width;
    return BL_OK;
}

static bl_status read_widths(const bl_model_source *source, bl_model *model, bl_error *err) {
    const bl_family *family = source->family;
    const char *width = "moe_intermediate_size";
    if (family != NULL && family->width_key != NULL && !bl_source_has(source, width))
        width = family->width_key;
    BL_TRY(bl_source_int(source, KEYS("hidden_size", "n_embd", "d_model"), 1, BL_MAX_WIDTH,
                         &model->hidden_size, err));
    if (!bl_source_has(source, width) && bl_source_has(source, "size_experts"))
        BL_TRY(read_listed_width(source, &model->moe_intermediate_size, err));
    else
        BL_TRY(bl_source_int(source, KEYS(width), 1, BL_MAX_WIDTH, &model->moe_intermediate_size,
                             err));
    return bl_source_int_or(source, KEYS("routed_expert_hidden_size", "moe_latent_size"), 1,
                            BL_MAX_WIDTH, model->hidden_size, &model->expert_hidden_size, err);
}

static bl_status read_model(const bl_model_source *source, bl_model *model, bl_error *err) {
    bool both_sides;
    BL_TRY(
        bl_json_bool_or(source->root, "is_encoder_decoder", false, source->file, &both_sides, err));
    if (both_sides)
        return bl_fail_at(err, BL_ERR_MODEL, bl_at(source->file),
                          "an encoder-decoder model: only decoder layers can be named");
    const char *type = string_of(source->root, "model_type");
    const size_t length = strlen(type), room = sizeof model->type - 1;
    keep_printable(type, length < room ? length : room, model->type);
    BL_TRY(read_name(source, model, err));
    BL_TRY(read_experts(source, model, err));
    BL_TRY(bl_source_int(source, KEYS("num_hidden_layers", "num_layers", "n_layer", "n_layers"), 1,
                         BL_MAX_LAYERS, &model->n_layers, err));
    BL_TRY(read_widths(source, model, err));
    BL_TRY(read_shared(source, model, err));
    BL_TRY(read_mtp(source, model, err));
    BL_TRY(bl_model_read_layers(source, model, err));
    BL_TRY(bl_model_read_bytes(source, model, err));
    return bl_model_read_parameters(source, model, err);
}

static bl_status read_root(const json_t *root, const json_t *beside, const char *file,
                           bl_model *out, bl_error *err) {
    if (!json_is_object(root))
        return bl_fail_at(err, BL_ERR_PARSE, bl_at(file), "a model config must be a JSON object");
    const json_t *shape = find_shape(root);
    const json_t *experts = json_object_get(shape, "moe_config");
    char type[64];
    find_type(shape, type, sizeof type);
    const bl_model_source source = {
        .root = root,
        .shape = shape,
        .experts = experts != NULL ? experts : json_object_get(shape, "ffn_config"),
        .quant = find_quant(root, shape, beside),
        .type = type,
        .family = find_family(type),
        .file = file};
    bl_model model = {0};
    const bl_status st = read_model(&source, &model, err);
    if (st < 0)
        bl_model_free(&model);
    else
        *out = model;
    return st;
}

bl_status bl_model_from_json(const json_t *root, const char *file, bl_model *out, bl_error *err) {
    return read_root(root, NULL, file, out, err);
}

/* Python writes NaN and Infinity, which are not JSON. No shape key has such a value, so they become
 * empty strings, of the same length with the blanks behind. */
static void blank_python_numbers(char *text) {
    static const char *const words[] = {"-Infinity", "Infinity", "NaN"};
    bool quoted = false;
    for (char *at = text; *at != '\0'; at++) {
        if (quoted && *at == '\\' && at[1] != '\0')
            at++;
        else if (*at == '"')
            quoted = !quoted;
        for (size_t w = 0; !quoted && w < sizeof words / sizeof *words; w++) {
            const size_t length = strlen(words[w]);
            if (strncmp(at, words[w], length) == 0) {
                memset(at, ' ', length);
                at[0] = at[1] = '"';
                at += length - 1;
                break;
            }
        }
    }
}

static bl_status parse_root(const char *path, json_t **root_p, bl_error *err) {
    char *text;
    size_t bytes;
    BL_TRY(bl_read_file(path, MAX_CONFIG_BYTES, &text, &bytes, err));
    blank_python_numbers(text);
    const bl_status st = bl_json_parse(text, bytes, path, root_p, err);
    free(text);
    return st;
}

/* hf_quant_config.json beside [X_]config.json, when there is one. */
static bl_status load_beside(const char *path, json_t **root_p, bl_error *err) {
    static const char ending[] = "config.json";
    const size_t length = strlen(path), end = sizeof ending - 1;
    char beside[4096];
    if (length < end || length + 16 > sizeof beside || strcmp(path + length - end, ending) != 0)
        return BL_OK;
    snprintf(beside, sizeof beside, "%.*shf_quant_config.json", (int)(length - end), path);
    if (access(beside, R_OK) != 0)
        return BL_OK;
    return parse_root(beside, root_p, err);
}

bl_status bl_model_load(const char *path, bl_model *out, bl_error *err) {
    char inside[4096];
    struct stat info;
    if (stat(path, &info) == 0 && S_ISDIR(info.st_mode)) {
        const size_t length = strlen(path);
        const bool slash = length > 0 && path[length - 1] == '/';
        if (snprintf(inside, sizeof inside, "%s%sconfig.json", path, slash ? "" : "/") >=
            (int)sizeof inside)
            return bl_fail_at(err, BL_ERR_IO, bl_at(path), "the path is too long");
        path = inside;
    }
    json_t *root = NULL, *beside = NULL;
    bl_status st = parse_root(path, &root, err);
    if (st == BL_OK)
        st = load_beside(path, &beside, err);
    if (st == BL_OK)
        st = read_root(root, beside, path, out, err);
    json_decref(beside);
    json_decref(root);
    return st;
}

/* ---- the rest ----------------------------------------------------------------------------- */

void bl_model_free(bl_model *model) {
    free(model->moe_layers);
    *model = (bl_model){0};
}

bl_status bl_model_copy(const bl_model *model, bl_model *out, bl_error *err) {
    int *layers;
    BL_TRY(BL_CALLOC(layers, model->n_moe_layers, err));
    memcpy(layers, model->moe_layers, (size_t)model->n_moe_layers * sizeof *layers);
    *out = *model;
    out->moe_layers = layers;
    return BL_OK;
}

static json_t *layers_to_json(const bl_model *model) {
    json_t *list = json_array();
    for (int i = 0; i < model->n_moe_layers; i++)
        json_array_append_new(list, json_integer(model->moe_layers[i]));
    return list;
}

static json_t *bundle_to_json(const bl_model *model) {
    json_t *list = json_array();
    for (int i = 0; i < model->n_bundle; i++) {
        const bl_bundle_tensor *tensor = &model->bundle[i];
        json_array_append_new(list,
                              json_pack("{s:s, s:I, s:I, s:I}", "name", tensor->name, "rows",
                                        (json_int_t)tensor->rows, "cols", (json_int_t)tensor->cols,
                                        "bytes", (json_int_t)tensor->bytes));
    }
    return list;
}

json_t *bl_model_to_json(const bl_model *model) {
    return json_pack(
        "{s:s, s:s, s:i, s:i, s:o, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:s, s:o, "
        "s:I, s:I, s:f, s:o}",
        "name", model->name, "model_type", model->type, "num_hidden_layers", model->n_layers,
        "num_nextn_predict_layers", model->n_mtp_layers, "moe_layers", layers_to_json(model),
        "num_experts", model->n_experts, "num_experts_per_tok", model->top_k, "n_group",
        model->n_groups, "topk_group", model->top_groups, "n_shared_experts",
        model->n_shared_experts, "hidden_size", model->hidden_size, "moe_intermediate_size",
        model->moe_intermediate_size, "routed_expert_hidden_size", model->expert_hidden_size,
        "weight_format", bl_weight_format_name(model->weight_format), "bundle",
        bundle_to_json(model), "dispatch_bytes_per_row", (json_int_t)model->dispatch_bytes_per_row,
        "combine_bytes_per_row", (json_int_t)model->combine_bytes_per_row, "kv_bytes_per_token",
        model->kv_bytes_per_token, "parameters", bl_parameters_to_json(&model->parameters));
}

int bl_model_moe_index(const bl_model *model, int layer) {
    int low = 0, high = model->n_moe_layers;
    while (low < high) {
        const int middle = low + (high - low) / 2;
        if (model->moe_layers[middle] < layer)
            low = middle + 1;
        else
            high = middle;
    }
    return low < model->n_moe_layers && model->moe_layers[low] == layer ? low : -1;
}

bl_digest bl_model_digest(const bl_model *model) {
    bl_digest none = {""};
    bl_hasher *hasher = bl_hasher_new();
    if (hasher == NULL)
        return none;
    bl_hasher_add_int(hasher, model->n_layers);
    bl_hasher_add_int(hasher, model->n_moe_layers);
    for (int i = 0; i < model->n_moe_layers; i++)
        bl_hasher_add_int(hasher, model->moe_layers[i]);
    bl_hasher_add_int(hasher, model->n_experts);
    bl_hasher_add_int(hasher, model->top_k);
    return bl_hasher_finish(hasher);
}
