/*
 * model.h: the shape of a Mixture-of-Experts model.
 *
 * What planning and tracing need to know about a model, and nothing of its weights: which decoder
 * layers are MoE, how many experts each has and how many a token picks, how large an expert is and
 * what a token costs to ship. Read from a Hugging Face config.json as it is, or from a model.json
 * with the same key names plus "moe_layers".
 *
 * Layers are always named by their *decoder-layer id* (0-based over all decoder layers). Engines
 * count in four different ways; the row number of a file never leaves the importer that read it.
 *
 * An expert is a *bundle* of tensors that must travel together: weights, block scales, global
 * scales, biases. bundle[] lists them, expert_bytes is their sum.
 */
#ifndef BL_CORE_MODEL_H
#define BL_CORE_MODEL_H

#include "core/json.h"
#include "core/hash.h"

#include <stdbool.h>
#include <stddef.h>

typedef enum bl_weight_format {
    BL_WEIGHTS_BF16, /* also float16 */
    BL_WEIGHTS_F32,
    BL_WEIGHTS_FP8_BLOCK, /* e4m3 with a float32 scale per 128 x 128 block */
    BL_WEIGHTS_NVFP4,     /* e2m1, an e4m3 scale per 16 values, a float32 scale and an
                             input scale per tensor */
    BL_WEIGHTS_MXFP4,     /* e2m1, an e8m0 scale per 32 values */
    BL_WEIGHTS_INT4,      /* group-quantised, a bf16 scale per 32 values */
    BL_WEIGHTS_FP8        /* e4m3, a float32 scale and an input scale per tensor */
} bl_weight_format;
#define BL_N_WEIGHT_FORMATS 7

#define BL_MAX_BUNDLE 16

typedef struct bl_bundle_tensor {
    char name[32];     /* "gate_proj", "down_proj.scale", ... */
    size_t rows, cols; /* logical shape; scales: their own shape */
    size_t bytes;
} bl_bundle_tensor;

/* How many weights the decoder has, quantization scales, multi-token-prediction layers and encoders
 * of other modalities left out. Routed experts are always told; of the rest a part is 0 when the
 * config does not tell it, and `untold` then says what is missing and why. */
typedef struct bl_parameters {
    double experts; /* routed experts of all MoE layers */
    double shared;  /* shared experts, with their gates */
    double router;
    double attention;
    double dense;     /* MLPs of the layers that are not MoE */
    double embedding; /* input table, and the output matrix unless the two are one */
    double norms;     /* of layers; those inside attention count there */
    int n_heads;      /* 0: not told */
    int n_kv_heads;   /* heads of keys and values, which tensor parallelism parts; 0: one latent,
                         of which every rank holds the whole */
    char untold[160]; /* "" when all is told */
} bl_parameters;

typedef struct bl_model {
    char name[128];
    char type[64];    /* Hugging Face model_type */
    int n_layers;     /* decoder layers, without multi-token-prediction layers */
    int n_mtp_layers; /* multi-token-prediction layers after them */
    int n_moe_layers;
    int *moe_layers; /* [n_moe_layers] decoder-layer ids, ascending; owned */
    int n_experts;   /* routed experts per MoE layer */
    int top_k;
    int n_groups;   /* node-limited routing: groups of experts; 1 when there are none */
    int top_groups; /* groups a token may use */
    int n_shared_experts;
    int hidden_size;
    int expert_hidden_size; /* width of a row that reaches an expert: hidden_size, or the latent
                               width of models that project tokens down before dispatch */
    int moe_intermediate_size;
    bl_weight_format weight_format;
    int n_bundle;
    bl_bundle_tensor bundle[BL_MAX_BUNDLE];
    size_t expert_bytes;           /* one expert of one layer: sum of bundle[].bytes */
    size_t dispatch_bytes_per_row; /* one token row sent to an expert */
    size_t combine_bytes_per_row;  /* one token row sent back */
    double kv_bytes_per_token; /* all layers whose cache grows with every token (not those with a
                                  window or a state); 0 when the config does not tell */
    bl_parameters parameters;
} bl_model;

/* Load config.json or model.json, or a directory that holds config.json. A model whose MoE layers
 * cannot be told for certain is BL_ERR_MODEL with the key that is missing; "moe_layers": [ids] in
 * the file settles it. The weight format comes from "weight_format", else from the quantization in
 * the config or in hf_quant_config.json beside it, else from the dtype; one that is not known is
 * refused too, and a "bundle" settles it. Free with bl_model_free(). */
bl_status bl_model_load(const char *path, bl_model *out, bl_error *err);
bl_status bl_model_from_json(const json_t *root, const char *file, bl_model *out, bl_error *err);
void bl_model_free(bl_model *model); /* safe on a zeroed struct */
bl_status bl_model_copy(const bl_model *model, bl_model *out, bl_error *err);

/* model.json form: everything above, readable by bl_model_from_json(). New reference or NULL. */
json_t *bl_model_to_json(const bl_model *model);

/* Index of a decoder layer in moe_layers, or -1. */
int bl_model_moe_index(const bl_model *model, int layer);

/* Digest over what routing depends on: layers, MoE layers, experts, top-k. */
bl_digest bl_model_digest(const bl_model *model);

/* All of them, and those that one token uses: everything but the experts it does not pick (the
 * embedding counts whole, as Qwen and DeepSeek count). 0 when not all is told. */
double bl_parameters_total(const bl_model *model);
double bl_parameters_active(const bl_model *model);

/* "bf16", "f32", "fp8-block", "nvfp4", "mxfp4", "int4", "fp8". */
const char *bl_weight_format_name(bl_weight_format format);
bool bl_weight_format_parse(const char *name, bl_weight_format *out);

#endif
