/*
 * How many weights a model has. Routed experts follow from the bundle; the rest follows from the
 * config where the type is one of FAMILIES, whose layers are known tensor by tensor. Of others it
 * is said that they are not told: a guess would go into memory plans as if it were a figure.
 */
#include "core/model_source.h"

#include <stdio.h>
#include <string.h>

#define KEYS(...) ((const char *const[]){__VA_ARGS__, NULL})

/* What the attention and the layers around it consist of. */
enum {
    MLA = 1 << 0,          /* latent attention; otherwise query groups */
    QKV_BIAS = 1 << 1,     /* biases on query, key and value, always */
    BIAS_KEY = 1 << 2,     /* "attention_bias": biases on query, key, value and output */
    QKV_BIAS_KEY = 1 << 3, /* "attention_bias": biases on query, key and value */
    HEAD_NORM = 1 << 4,    /* queries and keys are normed head by head */
    FULL_NORM = 1 << 5,    /* queries and keys are normed over all heads */
    NORM_KEY = 1 << 6,     /* the norm is there only with "use_qk_norm" */
    SINKS = 1 << 7,        /* one learnt sink for each head */
    NORM_BIAS = 1 << 8,    /* the layers' norms have biases */
    ROUTER_BIAS = 1 << 9,  /* one value for each expert */
    SHARED_GATE = 1 << 10, /* one row that gates the shared experts */
    INDEXER = 1 << 11      /* DeepSeek sparse attention picks positions first */
};

static const struct parameter_family {
    const char *type;
    unsigned parts;
} FAMILIES[] = {{"mixtral", 0},
                {"qwen2_moe", QKV_BIAS | SHARED_GATE},
                {"qwen3_moe", BIAS_KEY | HEAD_NORM},
                {"qwen3_vl_moe_text", BIAS_KEY | HEAD_NORM},
                {"olmoe", BIAS_KEY | FULL_NORM},
                {"phimoe", BIAS_KEY | NORM_BIAS},
                {"grinmoe", BIAS_KEY | NORM_BIAS},
                {"granitemoe", BIAS_KEY},
                {"xverse", 0},
                {"glm4_moe", QKV_BIAS_KEY | HEAD_NORM | NORM_KEY | ROUTER_BIAS},
                {"minimax_m2", FULL_NORM | NORM_KEY | ROUTER_BIAS},
                {"gpt_oss", BIAS_KEY | SINKS | ROUTER_BIAS},
                {"llama4_text", BIAS_KEY},
                {"deepseek", BIAS_KEY},
                {"deepseek_v2", MLA},
                {"deepseek_v3", MLA | ROUTER_BIAS},
                {"kimi_k2", MLA | ROUTER_BIAS},
                {"deepseek_v32", MLA | ROUTER_BIAS | INDEXER},
                {"glm_moe_dsa", MLA | ROUTER_BIAS | INDEXER}};
#define N_FAMILIES (sizeof FAMILIES / sizeof *FAMILIES)

static bool is_on(const bl_model_source *source, const char *key, bool fallback) {
    const json_t *value = bl_source_get(source, key);
    if (value == NULL)
        value = json_object_get(source->root, key);
    return json_is_boolean(value) ? json_is_true(value) : fallback;
}

/* A size that the family needs; *untold is set to the key when the config does not have it. */
static bl_status need(const bl_model_source *source, const char *const *keys, double *out,
                      const char **untold, bl_error *err) {
    int value;
    BL_TRY(bl_source_int_or(source, keys, 1, 1 << 24, 0, &value, err));
    if (value == 0 && *untold == NULL)
        *untold = keys[0];
    *out = value;
    return BL_OK;
}

static bl_status size_or(const bl_model_source *source, const char *key, double fallback,
                         double *out, bl_error *err) {
    int value;
    BL_TRY(bl_source_int_or(source, KEYS(key), 0, 1 << 24, (int)fallback, &value, err));
    *out = value;
    return BL_OK;
}

/* ---- attention of one layer --------------------------------------------------------------- */

static bl_status grouped_attention(const bl_model_source *source, const bl_model *model,
                                   unsigned parts, const char **untold, double *out,
                                   bl_error *err) {
    const double hidden = model->hidden_size;
    double heads, kv_heads, width;
    BL_TRY(need(source, KEYS("num_attention_heads"), &heads, untold, err));
    BL_TRY(size_or(source, "num_key_value_heads", heads, &kv_heads, err));
    BL_TRY(size_or(source, "head_dim", heads > 0 ? (int)(hidden / heads) : 0, &width, err));
    const double queries = heads * width, keys = kv_heads * width;
    *out = hidden * queries + 2 * hidden * keys + queries * hidden;
    const bool biased = is_on(source, "attention_bias", false);
    if ((parts & QKV_BIAS) || (biased && (parts & (BIAS_KEY | QKV_BIAS_KEY))))
        *out += queries + 2 * keys;
    if (biased && (parts & BIAS_KEY))
        *out += hidden;
    const bool normed = !(parts & NORM_KEY) || is_on(source, "use_qk_norm", false);
    if (normed && (parts & HEAD_NORM))
        *out += 2 * width;
    if (normed && (parts & FULL_NORM))
        *out += queries + keys;
    if (parts & SINKS)
        *out += heads;
    return BL_OK;
}

/* The layers that have an indexer of their own: "indexer_types" marks them "full". */
static double indexed_layers(const bl_model_source *source, int n_layers) {
    const json_t *types = bl_source_get(source, "indexer_types");
    if (!json_is_array(types))
        return n_layers;
    double n = 0;
    for (size_t i = 0; i < json_array_size(types); i++) {
        const char *word = json_string_value(json_array_get(types, i));
        n += word != NULL && strcmp(word, "full") == 0;
    }
    return n;
}

/* Queries from their latent, keys from the hidden state with a norm of two vectors, one weight per
 * head; shared out over all layers, as only some may have one. */
static bl_status indexer(const bl_model_source *source, const bl_model *model, double query_rank,
                         const char **untold, double *out, bl_error *err) {
    double heads, width;
    BL_TRY(need(source, KEYS("index_n_heads"), &heads, untold, err));
    BL_TRY(need(source, KEYS("index_head_dim"), &width, untold, err));
    const double one =
        query_rank * heads * width + model->hidden_size * (width + heads) + 2 * width;
    *out = one * indexed_layers(source, model->n_layers) / model->n_layers;
    return BL_OK;
}

static bl_status latent_attention(const bl_model_source *source, const bl_model *model,
                                  unsigned parts, const char **untold, double *out, bl_error *err) {
    const double hidden = model->hidden_size;
    double heads, query_rank, rank, nope, rope, value;
    BL_TRY(need(source, KEYS("num_attention_heads"), &heads, untold, err));
    BL_TRY(size_or(source, "q_lora_rank", 0, &query_rank, err));
    BL_TRY(need(source, KEYS("kv_lora_rank"), &rank, untold, err));
    BL_TRY(need(source, KEYS("qk_nope_head_dim"), &nope, untold, err));
    BL_TRY(need(source, KEYS("qk_rope_head_dim"), &rope, untold, err));
    BL_TRY(need(source, KEYS("v_head_dim"), &value, untold, err));
    const double queries = heads * (nope + rope);
    *out =
        query_rank > 0 ? hidden * query_rank + query_rank + query_rank * queries : hidden * queries;
    *out += hidden * (rank + rope) + rank + rank * heads * (nope + value);
    *out += heads * value * hidden;
    if (is_on(source, "attention_bias", false))
        *out += query_rank + rank + rope + hidden;
    if (parts & INDEXER) {
        double each;
        BL_TRY(indexer(source, model, query_rank, untold, &each, err));
        *out += each;
    }
    return BL_OK;
}

/* ---- the rest ----------------------------------------------------------------------------- */

/* Values of one routed expert: the bundle without its scales. */
static double expert_values(const bl_model *model) {
    double values = 0;
    for (int t = 0; t < model->n_bundle; t++) {
        const bl_bundle_tensor *tensor = &model->bundle[t];
        if (strstr(tensor->name, "scale") == NULL)
            values += (double)tensor->rows * (double)tensor->cols;
    }
    return values;
}

static bl_status read_mlps(const bl_model_source *source, bl_model *model, unsigned parts,
                           const char **untold, bl_error *err) {
    bl_parameters *out = &model->parameters;
    const double hidden = model->hidden_size, layers = model->n_moe_layers;
    const int n_dense = model->n_layers - model->n_moe_layers;
    double width = 0, shared;
    if (n_dense > 0 && bl_source_has(source, "intermediate_size_mlp"))
        BL_TRY(need(source, KEYS("intermediate_size_mlp"), &width, untold, err));
    else if (n_dense > 0)
        BL_TRY(need(source, KEYS("intermediate_size"), &width, untold, err));
    out->dense = 3 * hidden * width * n_dense;
    const double each = (double)model->n_shared_experts * model->moe_intermediate_size;
    BL_TRY(size_or(source, "shared_expert_intermediate_size", each, &shared, err));
    out->shared = 3 * hidden * shared * layers;
    if (shared > 0 && (parts & SHARED_GATE))
        out->shared += hidden * layers;
    out->router = hidden * model->n_experts * layers;
    const char *method = json_string_value(bl_source_get(source, "topk_method"));
    if ((parts & ROUTER_BIAS) && (method == NULL || strcmp(method, "noaux_tc") == 0))
        out->router += model->n_experts * layers;
    return BL_OK;
}

static bl_status read_family(const bl_model_source *source, bl_model *model, unsigned parts,
                             const char **untold, bl_error *err) {
    bl_parameters *out = &model->parameters;
    const double hidden = model->hidden_size, layers = model->n_layers;
    double each = 0, vocabulary;
    BL_TRY((parts & MLA ? latent_attention : grouped_attention)(source, model, parts, untold, &each,
                                                                err));
    out->attention = each * layers;
    BL_TRY(read_mlps(source, model, parts, untold, err));
    BL_TRY(need(source, KEYS("vocab_size"), &vocabulary, untold, err));
    out->embedding = vocabulary * hidden * (is_on(source, "tie_word_embeddings", false) ? 1 : 2);
    if (is_on(source, "lm_head_bias", false))
        out->embedding += vocabulary;
    out->norms = hidden * (2 * layers + 1) * (parts & NORM_BIAS ? 2 : 1);
    return BL_OK;
}

static bl_status read_heads(const bl_model_source *source, bl_parameters *out, bl_error *err) {
    int rank;
    BL_TRY(bl_source_int_or(source, KEYS("kv_lora_rank"), 0, BL_MAX_WIDTH, 0, &rank, err));
    BL_TRY(bl_source_int_or(source, KEYS("num_attention_heads", "n_head"), 1, BL_MAX_WIDTH, 0,
                            &out->n_heads, err));
    BL_TRY(bl_source_int_or(source, KEYS("num_key_value_heads"), 1, BL_MAX_WIDTH, out->n_heads,
                            &out->n_kv_heads, err));
    if (rank > 0)
        out->n_kv_heads = 0;
    return BL_OK;
}

/* "parameters" of a model.json. */
static bl_status read_written(const bl_model_source *source, const json_t *object,
                              bl_parameters *out, bl_error *err) {
    const struct {
        const char *key;
        double *value;
    } parts[] = {{"shared_experts", &out->shared}, {"router", &out->router},
                 {"attention", &out->attention},   {"dense_mlp", &out->dense},
                 {"embedding", &out->embedding},   {"norms", &out->norms}};
    for (size_t p = 0; p < sizeof parts / sizeof *parts; p++)
        BL_TRY(bl_json_real(object, parts[p].key, 0, 1e18, source->file, parts[p].value, err));
    int64_t heads, kv_heads;
    const char *untold;
    BL_TRY(bl_json_int(object, "heads", 0, BL_MAX_WIDTH, source->file, &heads, err));
    BL_TRY(bl_json_int(object, "kv_heads", 0, BL_MAX_WIDTH, source->file, &kv_heads, err));
    BL_TRY(bl_json_string_or(object, "untold", "", source->file, &untold, err));
    out->n_heads = (int)heads;
    out->n_kv_heads = (int)kv_heads;
    snprintf(out->untold, sizeof out->untold, "%s", untold);
    for (char *at = out->untold; *at != '\0'; at++)
        *at = *at >= ' ' && *at <= '~' ? *at : '?';
    return BL_OK;
}

static const struct parameter_family *find_family(const bl_model_source *source) {
    for (size_t f = 0; f < N_FAMILIES; f++) {
        if (strcmp(source->type, FAMILIES[f].type) == 0)
            return &FAMILIES[f];
    }
    return NULL;
}

bl_status bl_model_read_parameters(const bl_model_source *source, bl_model *model, bl_error *err) {
    bl_parameters *out = &model->parameters;
    out->experts = expert_values(model) * model->n_experts * model->n_moe_layers;
    const json_t *written = json_object_get(source->root, "parameters");
    if (json_is_object(written))
        return read_written(source, written, out, err);
    BL_TRY(read_heads(source, out, err));
    const struct parameter_family *family = find_family(source);
    const char *untold = NULL;
    /* A Mixtral config may carry an MLP beside the experts that Mixtral does not have. */
    if (family == NULL || bl_source_has(source, "intermediate_size_residual")) {
        if (source->type[0] == '\0')
            snprintf(out->untold, sizeof out->untold,
                     "attention, dense layers and embedding: it names no model_type");
        else
            snprintf(
                out->untold, sizeof out->untold,
                "attention, dense layers and embedding: the layers of type \"%.32s\" are not known",
                source->type);
        return BL_OK;
    }
    BL_TRY(read_family(source, model, family->parts, &untold, err));
    if (untold != NULL)
        snprintf(out->untold, sizeof out->untold, "key \"%s\" is missing", untold);
    return BL_OK;
}

json_t *bl_parameters_to_json(const bl_parameters *parameters) {
    return json_pack("{s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:i, s:i, s:s}", "experts",
                     parameters->experts, "shared_experts", parameters->shared, "router",
                     parameters->router, "attention", parameters->attention, "dense_mlp",
                     parameters->dense, "embedding", parameters->embedding, "norms",
                     parameters->norms, "heads", parameters->n_heads, "kv_heads",
                     parameters->n_kv_heads, "untold", parameters->untold);
}

static double without_experts(const bl_parameters *p) {
    return p->shared + p->router + p->attention + p->dense + p->embedding + p->norms;
}

double bl_parameters_total(const bl_model *model) {
    const bl_parameters *p = &model->parameters;
    return p->untold[0] != '\0' ? 0 : p->experts + without_experts(p);
}

double bl_parameters_active(const bl_model *model) {
    const bl_parameters *p = &model->parameters;
    if (p->untold[0] != '\0')
        return 0;
    return p->experts / model->n_experts * model->top_k + without_experts(p);
}
