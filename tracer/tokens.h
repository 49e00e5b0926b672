/*
 * tokens.h: single tokens of a trace: which experts one token picked together, and where it was born.
 *
 * Loads say how many rows an expert gets. What a token costs on the wire depends on more: when one
 * copy of a token serves all experts of a rank or node (deduplicated dispatch), the experts it picks
 * *together* decide, and which of them are far depends on the rank where it was born.
 *
 *     layer 3      step  source   ids
 *     token 0       17      0     4  7            position in the trace; rank it was born on, -1
 *     token 1       17      0     0  -1           where the trace does not tell; k logical ids,
 *     token 2       17      1     4  7            BL_EMPTY_SLOT where a top-k slot was empty
 *
 * A trace has more tokens than memory has room for, so a layer keeps at most a given number of them:
 * all when they are few, else a sample. Whether a token is in the sample is decided by a hash of
 * (run, step, rank, place in its record) alone: the same trace gives the same sample, whatever the
 * order of its files, and mostly the same tokens in every layer. Once a layer is full, the share of
 * hashes it keeps is halved, so between half of the room and all of it is used. A token kept stands
 * for n_seen / n of the trace's.
 *
 * Tokens of one layer are sorted by step, then source, then their order in the trace. Records that
 * only count, and dummies, have no tokens. Filled by bl_loads_read() (loads.h).
 */
#ifndef BL_TRACER_TOKENS_H
#define BL_TRACER_TOKENS_H

#include "tracer/trace.h"

typedef struct bl_token_layer {
    size_t n;        /* kept */
    uint64_t n_seen; /* in the steps that were read, kept or not */
    uint64_t *step;  /* [n] position in the trace, as in bl_loads.step_id; owned */
    int32_t *source; /* [n] rank, or BL_ALL_RANKS; owned */
    int32_t *id;     /* [n][k]; owned */
    size_t room[3];  /* items allocated of step, source and id */
    int n_halvings;  /* one hash in 2^n_halvings is kept */
} bl_token_layer;

typedef struct bl_tokens {
    int n_layers, k;
    size_t most;            /* kept per layer; 0: no tokens were asked for */
    bl_token_layer *layers; /* [n_layers]; owned */
} bl_tokens;

/* Room for `most` tokens in each layer; nothing is allocated ahead. */
bl_status bl_tokens_create(int n_layers, int k, size_t most, bl_tokens *out, bl_error *err);
void bl_tokens_free(bl_tokens *tokens); /* safe on a zeroed struct */

/* Take the tokens of one record with ids (others have none); `position` is its step's. A record of
 * more than k ids per token is BL_ERR_SHAPE. */
bl_status bl_tokens_add(bl_tokens *tokens, int layer_index, const bl_record *record,
                        uint64_t position, bl_error *err);

/* Sort; call once, after the last add. */
bl_status bl_tokens_finish(bl_tokens *tokens, bl_error *err);

static inline const int32_t *bl_token_ids(const bl_tokens *tokens, int layer_index, size_t token) {
    return tokens->layers[layer_index].id + token * (size_t)tokens->k;
}

#endif
