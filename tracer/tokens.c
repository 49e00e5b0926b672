#include "tracer/tokens.h"

#include "core/mem.h"
#include "core/rng.h"

#include <stdlib.h>
#include <string.h>

bl_status bl_tokens_create(int n_layers, int k, size_t most, bl_tokens *out, bl_error *err) {
    bl_tokens made = {.n_layers = n_layers, .k = k, .most = most};
    BL_TRY(BL_CALLOC(made.layers, n_layers, err));
    *out = made;
    return BL_OK;
}

static void layer_free(bl_token_layer *layer) {
    free(layer->step);
    free(layer->source);
    free(layer->id);
    *layer = (bl_token_layer){0};
}

void bl_tokens_free(bl_tokens *tokens) {
    for (int l = 0; tokens->layers != NULL && l < tokens->n_layers; l++)
        layer_free(&tokens->layers[l]);
    free(tokens->layers);
    *tokens = (bl_tokens){0};
}

/* ---- which tokens -------------------------------------------------------------------------- */

static uint64_t hash_of(uint64_t position, int32_t source, uint64_t place) {
    uint64_t state = position;
    state = bl_splitmix64(&state) ^ (uint64_t)(int64_t)source;
    state = bl_splitmix64(&state) ^ place;
    return bl_splitmix64(&state);
}

static bool is_kept(uint64_t hash, int n_halvings) {
    return (hash & ((UINT64_C(1) << n_halvings) - 1)) == 0;
}

/* The hash of a token that is held already is no longer known, so its low bits are kept with the
 * step: positions are far below 2^40, and 24 halvings thin out more tokens than a trace has. */
#define HASH_BITS 24
#define HASH_MASK ((UINT64_C(1) << HASH_BITS) - 1)

static void copy_token(bl_token_layer *layer, size_t k, size_t to, size_t from) {
    layer->step[to] = layer->step[from];
    layer->source[to] = layer->source[from];
    memmove(layer->id + to * k, layer->id + from * k, k * sizeof *layer->id);
}

static void halve(bl_token_layer *layer, size_t k) {
    size_t kept = 0;
    layer->n_halvings++;
    for (size_t i = 0; i < layer->n; i++) {
        if (is_kept(layer->step[i] & HASH_MASK, layer->n_halvings))
            copy_token(layer, k, kept++, i);
    }
    layer->n = kept;
}

static bl_status make_room(bl_token_layer *layer, size_t k, bl_error *err) {
    const size_t needed = layer->n + 1;
    size_t ids;
    if (!bl_size_mul(needed, k, &ids))
        return bl_fail(err, BL_ERR_NOMEM, "out of memory");
    BL_TRY(bl_grow((void **)&layer->step, &layer->room[0], needed, sizeof *layer->step, err));
    BL_TRY(bl_grow((void **)&layer->source, &layer->room[1], needed, sizeof *layer->source, err));
    return bl_grow((void **)&layer->id, &layer->room[2], ids, sizeof *layer->id, err);
}

static bl_status keep(bl_tokens *tokens, bl_token_layer *layer, const bl_record *record,
                      uint64_t place, uint64_t step, bl_error *err) {
    const size_t k = (size_t)tokens->k;
    BL_TRY(make_room(layer, k, err));
    const int32_t *from = record->ids + place * (uint64_t)record->k;
    int32_t *to = layer->id + layer->n * k;
    for (int i = 0; i < tokens->k; i++)
        to[i] = i < record->k ? from[i] : BL_EMPTY_SLOT;
    layer->step[layer->n] = step;
    layer->source[layer->n] = record->rank;
    layer->n++;
    while (layer->n > tokens->most && layer->n_halvings < HASH_BITS)
        halve(layer, k);
    return BL_OK;
}

bl_status bl_tokens_add(bl_tokens *tokens, int layer_index, const bl_record *record,
                        uint64_t position, bl_error *err) {
    bl_token_layer *layer = &tokens->layers[layer_index];
    if (record->ids == NULL || (record->flags & BL_RECORD_DUMMY))
        return BL_OK;
    if (record->k > tokens->k)
        return bl_fail_at(err, BL_ERR_SHAPE, bl_at_layer(NULL, record->layer),
                          "a record has %d ids per token, but the model's top-k is %d", record->k,
                          tokens->k);
    if (position > UINT64_MAX >> HASH_BITS)
        return bl_fail(err, BL_ERR_RANGE, "a trace of more than 2^40 steps");
    layer->n_seen += record->n_tokens;
    for (uint64_t i = 0; i < record->n_tokens; i++) {
        const uint64_t hash = hash_of(position, record->rank, i);
        if (is_kept(hash, layer->n_halvings))
            BL_TRY(
                keep(tokens, layer, record, i, (position << HASH_BITS) | (hash & HASH_MASK), err));
    }
    return BL_OK;
}

/* ---- order --------------------------------------------------------------------------------- */

typedef struct key {
    uint64_t step;
    int32_t source;
    size_t at;
} key;

static int by_key(const void *a, const void *b) {
    const key *x = a, *y = b;
    if (x->step != y->step)
        return x->step < y->step ? -1 : 1;
    if (x->source != y->source)
        return x->source < y->source ? -1 : 1;
    return x->at < y->at ? -1 : 1;
}

static void permute(const bl_token_layer *from, const key *keys, size_t k, bl_token_layer *to) {
    for (size_t i = 0; i < from->n; i++) {
        to->step[i] = keys[i].step;
        to->source[i] = keys[i].source;
        memcpy(to->id + i * k, from->id + keys[i].at * k, k * sizeof *to->id);
    }
}

static bl_status sort_layer(bl_token_layer *layer, size_t k, bl_error *err) {
    key *keys = NULL;
    bl_token_layer sorted = *layer;
    sorted.step = NULL;
    sorted.source = NULL;
    sorted.id = NULL;
    bl_status st;
    BL_TRY_GOTO(st, BL_CALLOC(keys, layer->n, err), done);
    BL_TRY_GOTO(st, BL_CALLOC(sorted.step, layer->n, err), done);
    BL_TRY_GOTO(st, BL_CALLOC(sorted.source, layer->n, err), done);
    BL_TRY_GOTO(st, BL_CALLOC(sorted.id, layer->n * k, err), done);
    for (size_t i = 0; i < layer->n; i++)
        keys[i] = (key){layer->step[i] >> HASH_BITS, layer->source[i], i};
    if (layer->n > 1)
        qsort(keys, layer->n, sizeof *keys, by_key);
    permute(layer, keys, k, &sorted);
    const bl_token_layer old = *layer;
    *layer = sorted;
    sorted = old;
done:
    free(keys);
    layer_free(&sorted);
    return st;
}

bl_status bl_tokens_finish(bl_tokens *tokens, bl_error *err) {
    for (int l = 0; l < tokens->n_layers; l++)
        BL_TRY(sort_layer(&tokens->layers[l], (size_t)tokens->k, err));
    return BL_OK;
}
