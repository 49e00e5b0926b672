/*
 * qwen3.h: a Qwen3-MoE checkpoint: its shape, its dense weights, and its experts one at a time.
 *
 * Reads DIR/config.json and the weights beside it, in one file or many (core/checkpoint.h). What every rank
 * needs (embedding, attention, norms, routers, output head) is loaded by bl_qwen3_open() and kept
 * as the checkpoint's bfloat16. Experts are not: bl_qwen3_read_expert() reads one *bundle*
 *
 *     gate_proj [inner][hidden] | up_proj [inner][hidden] | down_proj [hidden][inner]    bfloat16
 *
 * byte for byte into memory the caller names (a slot of the rank's store), so that a rank holds the
 * experts it serves and no others, and a move ships the checkpoint's own bytes.
 *
 * Supported: every decoder layer MoE, no shared expert, no attention bias, no RoPE scaling, SiLU.
 * Anything else is refused by the name of its key, and so is a tensor that the config has no place
 * for, which would be computed without. A model is read-only once opened, but for the
 * file position it does not have: threads may share one.
 */
#ifndef BL_RUNTIME_QWEN3_H
#define BL_RUNTIME_QWEN3_H

#include "core/json.h"
#include "core/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct bl_qwen3_config {
    int n_layers;   /* decoder layers, all of them MoE */
    int hidden;     /* width of the residual stream */
    int n_heads;    /* query heads */
    int n_kv_heads; /* key and value heads; divides n_heads */
    int head_dim;   /* even */
    int n_experts;  /* per layer */
    int top_k;
    int inner; /* width inside an expert */
    int vocab;
    int max_positions; /* longest sequence, prompt and continuation */
    float norm_eps;
    double rope_theta;
    bool renormalise; /* the weights of the chosen experts are made to sum to 1 */
    bool tied;        /* the output head is the embedding */
} bl_qwen3_config;

/* Weights of one decoder layer but its experts; bfloat16, row-major [out][in]. */
typedef struct bl_qwen3_layer {
    const uint16_t *input_norm, *post_norm; /* [hidden] */
    const uint16_t *q, *k, *v, *o;
    const uint16_t *q_norm, *k_norm; /* [head_dim] */
    const uint16_t *router;          /* [n_experts][hidden] */
} bl_qwen3_layer;

typedef struct bl_qwen3 bl_qwen3;

bl_status bl_qwen3_config_from_json(const json_t *root, const char *file, bl_qwen3_config *out,
                                    bl_error *err);

bl_status bl_qwen3_open(const char *dir, bl_qwen3 **out, bl_error *err);
void bl_qwen3_free(bl_qwen3 *model); /* NULL is fine */

const bl_qwen3_config *bl_qwen3_config_of(const bl_qwen3 *model);
const bl_qwen3_layer *bl_qwen3_layer_of(const bl_qwen3 *model, int layer);
const uint16_t *bl_qwen3_embedding(const bl_qwen3 *model); /* [vocab][hidden] */
const uint16_t *bl_qwen3_final_norm(const bl_qwen3 *model);
const uint16_t *bl_qwen3_head(const bl_qwen3 *model); /* [vocab][hidden] */

size_t bl_qwen3_bundle_bytes(const bl_qwen3_config *config);

/* Read one expert's bundle from the checkpoint into `bundle`. */
bl_status bl_qwen3_read_expert(const bl_qwen3 *model, int layer, int expert, void *bundle,
                               bl_error *err);

#endif
