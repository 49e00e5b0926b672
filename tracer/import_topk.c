/* import_topk.c: dumps of single tokens' expert ids as .npy, [token, layer, k]. */
#include "tracer/import_sink.h"

#include "core/mem.h"

#include <stdlib.h>

/* "sequence_lengths" of the description as the first token of each sequence and the end. */
static bl_status read_sequences(const json_t *side, const char *path, bl_token_ids *tokens,
                                size_t **begin_p, bl_error *err) {
    const json_t *lengths = json_object_get(side, "sequence_lengths");
    if (lengths == NULL || json_is_null(lengths))
        return BL_OK;
    const size_t n = json_array_size(lengths), n_tokens = tokens->ids->shape[0];
    BL_TRY(BL_CALLOC(*begin_p, n + 1, err));
    size_t at = 0;
    for (size_t i = 0; i < n; i++) {
        const json_t *item = json_array_get(lengths, i);
        const json_int_t length = json_is_integer(item) ? json_integer_value(item) : -1;
        if (length < 0 || (uint64_t)length > n_tokens - at)
            return bl_fail_at(err, BL_ERR_SHAPE, bl_at(path),
                              "\"sequence_lengths\" do not cut its %zu tokens into sequences",
                              n_tokens);
        (*begin_p)[i] = at;
        at += (size_t)length;
    }
    (*begin_p)[n] = at;
    if (at != n_tokens)
        return bl_fail_at(err, BL_ERR_SHAPE, bl_at(path),
                          "%zu tokens, but \"sequence_lengths\" sum to %zu", n_tokens, at);
    tokens->begin = *begin_p;
    tokens->n_sequences = n;
    return BL_OK;
}

static bl_status import_dump(bl_import_sink *sink, const bl_npy *npy, const json_t *side,
                             const char *path, bl_error *err) {
    bl_source_shape shape = {
        .file = path, .n_rows = (int)npy->shape[1], .top_k = (int)npy->shape[2], .phase = -1};
    bl_token_ids tokens = {.ids = npy};
    int *layers = NULL;
    size_t *begin = NULL;
    bl_status st = BL_OK;
    if (side != NULL)
        st = bl_sink_shape_from_json(side, &shape, &layers, err);
    if (st == BL_OK)
        st = bl_sink_begin(sink, &shape, err);
    free(layers);
    if (st == BL_OK && side != NULL && sink->options->compose_batch > 0)
        st = read_sequences(side, path, &tokens, &begin, err);
    if (st == BL_OK)
        st = bl_sink_tokens(sink, &tokens, err);
    free(begin);
    return st;
}

bl_status bl_import_topk_npy(bl_import_sink *sink, const char *path, bl_error *err) {
    bl_npy npy = {0};
    json_t *side = NULL;
    BL_TRY(bl_npy_load(path, &npy, err));
    bl_status st = BL_OK;
    if (npy.n_dims != 3 || npy.n_items == 0 || npy.kind == 'f' || npy.kind == 'b' ||
        npy.shape[1] > BL_MAX_LAYERS || npy.shape[2] > BL_MAX_TOP_K)
        st = bl_fail_at(err, BL_ERR_SHAPE, bl_at(path),
                        "expected integer ids with the axes token, layer, k");
    if (st == BL_OK)
        st = bl_sink_read_side_json(path, &side, err);
    if (st == BL_OK)
        st = import_dump(sink, &npy, side, path, err);
    json_decref(side);
    bl_npy_free(&npy);
    return st;
}
