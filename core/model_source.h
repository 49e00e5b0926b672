/*
 * model_source.h: private to core/model*.c: where in a config the model's shape is written.
 *
 * A config.json of a text model has its keys at the top; that of a multimodal model has them in
 * "text_config" (or "language_config", "llm_config") and leaves some, such as the quantization, at
 * the top. A few put what concerns the experts into "moe_config" or "ffn_config". The same thing
 * has many names, so every getter takes a list of keys; when a config holds several of them they
 * must agree. A list with the same integer for every decoder layer counts as that integer.
 */
#ifndef BL_CORE_MODEL_SOURCE_H
#define BL_CORE_MODEL_SOURCE_H

#include "core/model.h"

/* No real model comes near these; they keep every product of sizes far below 2^63. */
#define BL_MAX_LAYERS 10000
#define BL_MAX_EXPERTS 65536
#define BL_MAX_WIDTH (1 << 20)

/* What a model_type says without writing it into the config. */
typedef struct bl_family {
    const char *type;      /* of the object that holds the shape */
    bool all_moe;          /* every decoder layer is MoE unless a key says otherwise */
    const char *width_key; /* key of an expert's intermediate size; NULL: moe_intermediate_size */
    bool fused_bias;       /* gate and up are one tensor, and both tensors have a bias */
    bool plain;            /* no gate: up and down only */
    int n_shared;          /* shared experts */
} bl_family;

typedef struct bl_model_source {
    const json_t *root;
    const json_t *shape;   /* root or one of its members */
    const json_t *experts; /* moe_config of the shape, or NULL */
    const json_t *quant;   /* quantization object, or NULL */
    const char *type;      /* of the shape: model_type, or of the architecture; printable */
    const bl_family *family;
    const char *file;
} bl_model_source;

/* One non-null value among `keys` (NULL-terminated) of the shape. A required one that is absent is
 * BL_ERR_MODEL and names the first key. */
bl_status bl_source_int(const bl_model_source *source, const char *const *keys, int64_t min,
                        int64_t max, int *out, bl_error *err);
bl_status bl_source_int_or(const bl_model_source *source, const char *const *keys, int64_t min,
                           int64_t max, int fallback, int *out, bl_error *err);
/* The non-null value of a key, or NULL; borrowed. */
const json_t *bl_source_get(const bl_model_source *source, const char *key);
bool bl_source_has(const bl_model_source *source, const char *key);

/* model_layers.c: fill moe_layers and n_moe_layers; n_layers is known. */
bl_status bl_model_read_layers(const bl_model_source *source, bl_model *model, bl_error *err);

/* model_bytes.c: weight format, bundle, bytes of an expert and of a row; KV bytes. */
bl_status bl_model_read_bytes(const bl_model_source *source, bl_model *model, bl_error *err);

/* model_parameters.c: numbers of weights; the rest of the model is known. */
bl_status bl_model_read_parameters(const bl_model_source *source, bl_model *model, bl_error *err);
json_t *bl_parameters_to_json(const bl_parameters *parameters);

#endif
