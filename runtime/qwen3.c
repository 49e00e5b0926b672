#include "runtime/qwen3.h"

#include "core/checkpoint.h"
#include "core/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct bl_qwen3 {
    bl_qwen3_config config;
    bl_checkpoint *weights;
    bl_arena *arena;
    bl_qwen3_layer *layers; /* [config.n_layers] */
    const uint16_t *embedding, *final_norm, *head;
};

/* ---- config -------------------------------------------------------------------------------- */

static bl_status get(const json_t *root, const char *key, int64_t max, const char *file, int *out,
                     bl_error *err) {
    int64_t value;
    BL_TRY(bl_json_int(root, key, 1, max, file, &value, err));
    *out = (int)value;
    return BL_OK;
}

/* Features that would change the arithmetic: refused by key rather than computed wrongly. */
static bl_status refuse_unsupported(const json_t *root, const char *file, bl_error *err) {
    const char *type, *activation;
    bool bias, sliding;
    int64_t sparse_step;
    BL_TRY(bl_json_string(root, "model_type", file, &type, err));
    if (strcmp(type, "qwen3_moe") != 0)
        return bl_fail_at(err, BL_ERR_MODEL, bl_at(file),
                          "model_type is %.60s; the engine runs qwen3_moe", type);
    BL_TRY(bl_json_string_or(root, "hidden_act", "silu", file, &activation, err));
    BL_TRY(bl_json_bool_or(root, "attention_bias", false, file, &bias, err));
    BL_TRY(bl_json_bool_or(root, "use_sliding_window", false, file, &sliding, err));
    BL_TRY(bl_json_int_or(root, "decoder_sparse_step", 0, 1 << 20, 1, file, &sparse_step, err));
    const json_t *dense = json_object_get(root, "mlp_only_layers");
    const json_t *scaling = json_object_get(root, "rope_scaling");
    const json_t *quantized = json_object_get(root, "quantization_config");
    const char *key = NULL;
    if (strcmp(activation, "silu") != 0)
        key = "hidden_act";
    else if (bias)
        key = "attention_bias";
    else if (sliding)
        key = "use_sliding_window";
    else if (sparse_step != 1)
        key = "decoder_sparse_step";
    else if (json_is_array(dense) && json_array_size(dense) > 0)
        key = "mlp_only_layers";
    else if (scaling != NULL && !json_is_null(scaling))
        key = "rope_scaling";
    else if (quantized != NULL && !json_is_null(quantized))
        key = "quantization_config";
    if (key != NULL)
        return bl_fail_at(err, BL_ERR_UNSUPPORTED, bl_at(file),
                          "the engine does not implement this value of %s", key);
    return BL_OK;
}

bl_status bl_qwen3_config_from_json(const json_t *root, const char *file, bl_qwen3_config *out,
                                    bl_error *err) {
    bl_qwen3_config c = {0};
    double eps;
    BL_TRY(refuse_unsupported(root, file, err));
    BL_TRY(get(root, "num_hidden_layers", 1024, file, &c.n_layers, err));
    BL_TRY(get(root, "hidden_size", 1 << 16, file, &c.hidden, err));
    BL_TRY(get(root, "num_attention_heads", 1024, file, &c.n_heads, err));
    BL_TRY(get(root, "num_key_value_heads", c.n_heads, file, &c.n_kv_heads, err));
    int64_t head_dim;
    BL_TRY(bl_json_int_or(root, "head_dim", 2, 4096, c.hidden / c.n_heads, file, &head_dim, err));
    c.head_dim = (int)head_dim;
    BL_TRY(get(root, "num_experts", 1 << 16, file, &c.n_experts, err));
    BL_TRY(get(root, "num_experts_per_tok", c.n_experts, file, &c.top_k, err));
    BL_TRY(get(root, "moe_intermediate_size", 1 << 16, file, &c.inner, err));
    BL_TRY(get(root, "vocab_size", 1 << 24, file, &c.vocab, err));
    BL_TRY(get(root, "max_position_embeddings", 1 << 24, file, &c.max_positions, err));
    BL_TRY(bl_json_real_or(root, "rms_norm_eps", 0, 1, 1e-6, file, &eps, err));
    BL_TRY(bl_json_real_or(root, "rope_theta", 1, 1e12, 10000, file, &c.rope_theta, err));
    BL_TRY(bl_json_bool_or(root, "norm_topk_prob", false, file, &c.renormalise, err));
    BL_TRY(bl_json_bool_or(root, "tie_word_embeddings", false, file, &c.tied, err));
    if (c.n_heads % c.n_kv_heads != 0)
        return bl_fail_at(err, BL_ERR_SHAPE, bl_at(file),
                          "num_key_value_heads %d does not divide num_attention_heads %d",
                          c.n_kv_heads, c.n_heads);
    if (c.head_dim < 2 || c.head_dim % 2 != 0)
        return bl_fail_at(err, BL_ERR_SHAPE, bl_at(file),
                          "head_dim %d is not even; RoPE rotates pairs", c.head_dim);
    c.norm_eps = (float)eps;
    *out = c;
    return BL_OK;
}

/* ---- weights ------------------------------------------------------------------------------- */

enum { N_DENSE_PARTS = 9, N_EXPERT_PARTS = 3 };

static const char *const DENSE_PARTS[N_DENSE_PARTS] = {
    "input_layernorm",  "post_attention_layernorm", "self_attn.q_proj",
    "self_attn.k_proj", "self_attn.v_proj",         "self_attn.o_proj",
    "self_attn.q_norm", "self_attn.k_norm",         "mlp.gate"};
static const char *const EXPERT_PARTS[N_EXPERT_PARTS] = {"gate_proj", "up_proj", "down_proj"};

static void expert_tensor(int layer, int expert, int part, char *out, size_t bytes) {
    snprintf(out, bytes, "model.layers.%d.mlp.experts.%d.%s.weight", layer, expert,
             EXPERT_PARTS[part]);
}

/* cols 0: a vector of `rows`. */
static bl_status load(bl_qwen3 *model, const char *name, int rows, int cols, const uint16_t **out,
                      bl_error *err) {
    const uint64_t shape[2] = {(uint64_t)rows, (uint64_t)cols};
    size_t n;
    uint16_t *weights = NULL;
    if (bl_size_mul((size_t)rows, cols > 0 ? (size_t)cols : 1, &n))
        weights = bl_arena_calloc(model->arena, n, sizeof *weights);
    if (weights == NULL)
        return bl_fail(err, BL_ERR_NOMEM, "out of memory for tensor %s", name);
    BL_TRY(bl_checkpoint_read(model->weights, name, "BF16", shape, cols > 0 ? 2 : 1, weights, err));
    *out = weights;
    return BL_OK;
}

static bl_status load_layer(bl_qwen3 *model, int layer, bl_error *err) {
    const bl_qwen3_config *c = &model->config;
    bl_qwen3_layer *to = &model->layers[layer];
    const int q_width = c->n_heads * c->head_dim, kv_width = c->n_kv_heads * c->head_dim;
    const struct {
        int rows, cols;
        const uint16_t **out;
    } parts[N_DENSE_PARTS] = {/* as DENSE_PARTS */
                              {c->hidden, 0, &to->input_norm},       {c->hidden, 0, &to->post_norm},
                              {q_width, c->hidden, &to->q},          {kv_width, c->hidden, &to->k},
                              {kv_width, c->hidden, &to->v},         {c->hidden, q_width, &to->o},
                              {c->head_dim, 0, &to->q_norm},         {c->head_dim, 0, &to->k_norm},
                              {c->n_experts, c->hidden, &to->router}};
    for (int part = 0; part < N_DENSE_PARTS; part++) {
        char name[128];
        snprintf(name, sizeof name, "model.layers.%d.%s.weight", layer, DENSE_PARTS[part]);
        BL_TRY(load(model, name, parts[part].rows, parts[part].cols, parts[part].out, err));
    }
    return BL_OK;
}

static bl_status load_dense(bl_qwen3 *model, bl_error *err) {
    const bl_qwen3_config *c = &model->config;
    BL_TRY(load(model, "model.embed_tokens.weight", c->vocab, c->hidden, &model->embedding, err));
    BL_TRY(load(model, "model.norm.weight", c->hidden, 0, &model->final_norm, err));
    model->head = model->embedding;
    if (!c->tied)
        BL_TRY(load(model, "lm_head.weight", c->vocab, c->hidden, &model->head, err));
    for (int layer = 0; layer < c->n_layers; layer++)
        BL_TRY(load_layer(model, layer, err));
    return BL_OK;
}

/* A rotary table that old exports carry along, and the copy of a tied head, say nothing new. */
static bool is_outside_layers(const char *name) {
    return strcmp(name, "model.embed_tokens.weight") == 0 ||
           strcmp(name, "model.norm.weight") == 0 || strcmp(name, "lm_head.weight") == 0 ||
           strstr(name, "rotary_emb.inv_freq") != NULL;
}

static bool is_of_layer(const bl_qwen3_config *c, const char *name) {
    char wanted[128];
    int layer, expert;
    if (sscanf(name, "model.layers.%9d.", &layer) != 1 || layer < 0 || layer >= c->n_layers)
        return false;
    for (int part = 0; part < N_DENSE_PARTS; part++) {
        snprintf(wanted, sizeof wanted, "model.layers.%d.%s.weight", layer, DENSE_PARTS[part]);
        if (strcmp(name, wanted) == 0)
            return true;
    }
    if (sscanf(name, "model.layers.%*d.mlp.experts.%9d.", &expert) != 1 || expert < 0 ||
        expert >= c->n_experts)
        return false;
    for (int part = 0; part < N_EXPERT_PARTS; part++) {
        expert_tensor(layer, expert, part, wanted, sizeof wanted);
        if (strcmp(name, wanted) == 0)
            return true;
    }
    return false;
}

/* Biases, shared experts, layers behind the config's last: computed without them, every token would
 * be wrong and nothing would say so. */
static bl_status refuse_unknown_tensors(const bl_qwen3 *model, bl_error *err) {
    for (size_t i = 0; i < bl_checkpoint_count(model->weights); i++) {
        const char *name = bl_checkpoint_at(model->weights, i)->name;
        if (!is_outside_layers(name) && !is_of_layer(&model->config, name))
            return bl_fail_at(err, BL_ERR_MODEL, bl_at(bl_checkpoint_path(model->weights)),
                              "tensor %.100s has no part in the model that config.json describes; "
                              "is it the config of another model?",
                              name);
    }
    return BL_OK;
}

static bl_status open_parts(bl_qwen3 *model, const char *dir, bl_error *err) {
    char path[4096];
    json_t *root;
    snprintf(path, sizeof path, "%s/config.json", dir);
    BL_TRY(bl_json_load(path, &root, err));
    const bl_status st = bl_qwen3_config_from_json(root, path, &model->config, err);
    json_decref(root);
    BL_TRY(st);
    BL_TRY(bl_checkpoint_open(dir, &model->weights, err));
    BL_TRY(BL_CALLOC(model->layers, model->config.n_layers, err));
    BL_TRY(load_dense(model, err));
    return refuse_unknown_tensors(model, err);
}

bl_status bl_qwen3_open(const char *dir, bl_qwen3 **out, bl_error *err) {
    bl_qwen3 *model;
    BL_TRY(BL_CALLOC(model, 1, err));
    model->arena = bl_arena_new(0);
    bl_status st = model->arena != NULL ? BL_OK : bl_fail(err, BL_ERR_NOMEM, "out of memory");
    if (st >= 0)
        st = open_parts(model, dir, err);
    if (st < 0) {
        bl_qwen3_free(model);
        return st;
    }
    *out = model;
    return BL_OK;
}

void bl_qwen3_free(bl_qwen3 *model) {
    if (model == NULL)
        return;
    bl_checkpoint_free(model->weights);
    bl_arena_free(model->arena);
    free(model->layers);
    free(model);
}

const bl_qwen3_config *bl_qwen3_config_of(const bl_qwen3 *model) {
    return &model->config;
}

const bl_qwen3_layer *bl_qwen3_layer_of(const bl_qwen3 *model, int layer) {
    return &model->layers[layer];
}

const uint16_t *bl_qwen3_embedding(const bl_qwen3 *model) {
    return model->embedding;
}

const uint16_t *bl_qwen3_final_norm(const bl_qwen3 *model) {
    return model->final_norm;
}

const uint16_t *bl_qwen3_head(const bl_qwen3 *model) {
    return model->head;
}

size_t bl_qwen3_bundle_bytes(const bl_qwen3_config *config) {
    return (size_t)3 * (size_t)config->inner * (size_t)config->hidden * sizeof(uint16_t);
}

bl_status bl_qwen3_read_expert(const bl_qwen3 *model, int layer, int expert, void *bundle,
                               bl_error *err) {
    const bl_qwen3_config *c = &model->config;
    unsigned char *to = bundle;
    for (int part = 0; part < N_EXPERT_PARTS; part++) {
        const int rows = part < 2 ? c->inner : c->hidden, cols = part < 2 ? c->hidden : c->inner;
        const uint64_t shape[2] = {(uint64_t)rows, (uint64_t)cols};
        char name[128];
        expert_tensor(layer, expert, part, name, sizeof name);
        BL_TRY(bl_checkpoint_read(model->weights, name, "BF16", shape, 2, to, err));
        to += bl_qwen3_bundle_bytes(c) / N_EXPERT_PARTS;
    }
    return BL_OK;
}
