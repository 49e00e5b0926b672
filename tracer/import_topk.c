/*
 * import_topk.c: dumps of single tokens' expert ids, [token, layer, k], and how steps are composed
 * from them.
 *
 * With --compose batch=N,ranks=G a step holds N tokens, N / G on each rank. Sequence i was born on
 * rank i mod G. In decode a rank serves N / G sequences at a time, one token of each per step, and
 * the next sequence takes the place of one that has ended; in every other phase a rank takes the
 * next N / G tokens of its sequences in order. A dump without sequence lengths is cut into slices
 * of N / G tokens, dealt to the ranks in turn. Ranks without tokens left stay in step with zero
 * tokens. Without
 * --compose all tokens are one step of unknown ranks.
 */
#include "tracer/import_sink.h"

#include "core/mem.h"
#include "core/npy.h"

#include <stdlib.h>

/* Tokens of one rank: the sequences it serves at the moment. */
typedef struct lane {
    size_t at, end; /* next token and end of the sequence; equal: free */
} lane;

typedef struct dump {
    const bl_npy *npy;
    size_t n_tokens, n_rows, k;
    size_t *begin; /* [n_sequences + 1] first token of each sequence, or NULL */
    size_t n_sequences;
    int n_ranks;
    size_t per_rank;       /* tokens per step and rank */
    size_t *next_sequence; /* [n_ranks] */
    lane *lanes;           /* decode: [n_ranks][per_rank]; else [n_ranks][1] */
    size_t n_lanes;
    size_t *picked;   /* [n_ranks][per_rank] tokens of the step */
    size_t *n_picked; /* [n_ranks] */
    int32_t *ids;     /* [per_rank][k] */
} dump;

static void gather(const dump *d, const size_t *tokens, size_t n, size_t row, int32_t *ids) {
    for (size_t i = 0; i < n; i++) {
        for (size_t j = 0; j < d->k; j++) {
            const int64_t id = bl_npy_int(d->npy, (tokens[i] * d->n_rows + row) * d->k + j);
            ids[i * d->k + j] = id < 0 ? BL_EMPTY_SLOT : id > INT32_MAX ? INT32_MAX : (int32_t)id;
        }
    }
}

/* ---- one step ------------------------------------------------------------------------------ */

static bl_status one_step(bl_import_sink *sink, dump *d, bl_error *err) {
    enum { SLICE = 4096 };
    size_t tokens[SLICE];
    BL_TRY(BL_CALLOC(d->ids, SLICE * d->k, err));
    for (size_t row = 0; row < d->n_rows; row++) {
        for (size_t first = 0; first < d->n_tokens; first += SLICE) {
            const size_t left = d->n_tokens - first, n = left < SLICE ? left : SLICE;
            for (size_t i = 0; i < n; i++)
                tokens[i] = first + i;
            gather(d, tokens, n, row, d->ids);
            BL_TRY(bl_sink_ids(sink, sink->next_step, (int)row, BL_ALL_RANKS, d->ids, n, err));
        }
    }
    sink->next_step++;
    sink->result.steps++;
    sink->result.tokens += d->n_tokens;
    return BL_OK;
}

/* ---- composed steps ------------------------------------------------------------------------ */

/* The next token of a lane, taking up the rank's next sequence when the lane is free. */
static bool take(dump *d, int rank, lane *l, size_t *token) {
    while (l->at == l->end && d->next_sequence[rank] < d->n_sequences) {
        l->at = d->begin[d->next_sequence[rank]];
        l->end = d->begin[d->next_sequence[rank] + 1];
        d->next_sequence[rank] += (size_t)d->n_ranks;
    }
    if (l->at == l->end)
        return false;
    *token = l->at++;
    return true;
}

/* Fill the step's tokens of one rank from its lanes, round and round until it is full or dry. */
static void pick(dump *d, int rank) {
    size_t n = 0;
    bool progress = true;
    while (progress && n < d->per_rank) {
        progress = false;
        for (size_t i = 0; i < d->n_lanes && n < d->per_rank; i++) {
            lane *l = &d->lanes[(size_t)rank * d->n_lanes + i];
            if (take(d, rank, l, &d->picked[(size_t)rank * d->per_rank + n])) {
                n++;
                progress = true;
            }
        }
        if (d->n_lanes > 1) /* decode: one token of each sequence per step */
            break;
    }
    d->n_picked[rank] = n;
}

static bl_status put_step(bl_import_sink *sink, dump *d, size_t total, bl_error *err) {
    for (int rank = 0; rank < d->n_ranks; rank++) {
        const size_t n = d->n_picked[rank];
        for (size_t row = 0; row < d->n_rows; row++) {
            if (sink->rows.layer[row] == BL_ROW_LEFT_OUT)
                continue;
            gather(d, d->picked + (size_t)rank * d->per_rank, n, row, d->ids);
            BL_TRY(bl_sink_ids(sink, sink->next_step, (int)row, rank, d->ids, n, err));
        }
    }
    sink->next_step++;
    sink->result.steps++;
    sink->result.tokens += total;
    return BL_OK;
}

/* Slices of per_rank tokens as sequences: what is done when a dump does not tell its sequences. */
static bl_status slice_sequences(dump *d, bl_error *err) {
    d->n_sequences = (d->n_tokens + d->per_rank - 1) / d->per_rank;
    BL_TRY(BL_CALLOC(d->begin, d->n_sequences + 1, err));
    for (size_t i = 0; i <= d->n_sequences; i++)
        d->begin[i] = i < d->n_sequences ? i * d->per_rank : d->n_tokens;
    return BL_OK;
}

static bl_status compose(bl_import_sink *sink, dump *d, bl_error *err) {
    d->n_ranks = sink->options->compose_ranks;
    d->per_rank = (size_t)sink->options->compose_batch / (size_t)d->n_ranks;
    const bool told = d->begin != NULL;
    d->n_lanes = told && sink->phase == BL_PHASE_DECODE ? d->per_rank : 1;
    if (!told)
        BL_TRY(slice_sequences(d, err));
    const size_t n_ranks = (size_t)d->n_ranks;
    BL_TRY(BL_CALLOC(d->next_sequence, n_ranks, err));
    BL_TRY(BL_CALLOC(d->n_picked, n_ranks, err));
    BL_TRY(BL_CALLOC(d->lanes, n_ranks * d->n_lanes, err));
    BL_TRY(BL_CALLOC(d->picked, n_ranks * d->per_rank, err));
    BL_TRY(BL_CALLOC(d->ids, d->per_rank * d->k, err));
    for (size_t rank = 0; rank < n_ranks; rank++)
        d->next_sequence[rank] = rank;
    for (;;) {
        size_t total = 0;
        for (int rank = 0; rank < d->n_ranks; rank++) {
            pick(d, rank);
            total += d->n_picked[rank];
        }
        if (total == 0)
            return BL_OK;
        BL_TRY(put_step(sink, d, total, err));
    }
}

/* ---- the file ------------------------------------------------------------------------------ */

static bl_status read_sequences(dump *d, const json_t *side, const char *path, bl_error *err) {
    const json_t *lengths = json_object_get(side, "sequence_lengths");
    if (lengths == NULL || json_is_null(lengths))
        return BL_OK;
    d->n_sequences = json_array_size(lengths);
    BL_TRY(BL_CALLOC(d->begin, d->n_sequences + 1, err));
    size_t at = 0;
    for (size_t i = 0; i < d->n_sequences; i++) {
        const json_t *item = json_array_get(lengths, i);
        const json_int_t length = json_is_integer(item) ? json_integer_value(item) : -1;
        if (length < 0 || (uint64_t)length > d->n_tokens - at)
            return bl_fail_at(err, BL_ERR_SHAPE, bl_at(path),
                              "\"sequence_lengths\" do not cut its %zu tokens into sequences",
                              d->n_tokens);
        d->begin[i] = at;
        at += (size_t)length;
    }
    d->begin[d->n_sequences] = at;
    if (at != d->n_tokens)
        return bl_fail_at(err, BL_ERR_SHAPE, bl_at(path),
                          "%zu tokens, but \"sequence_lengths\" sum to %zu", d->n_tokens, at);
    return BL_OK;
}

static bl_status import_dump(bl_import_sink *sink, dump *d, const json_t *side, const char *path,
                             bl_error *err) {
    bl_source_shape shape = {
        .file = path, .n_rows = (int)d->n_rows, .top_k = (int)d->k, .phase = -1};
    int *layers = NULL;
    bl_status st = BL_OK;
    if (side != NULL)
        st = bl_sink_shape_from_json(side, &shape, &layers, err);
    if (st == BL_OK)
        st = bl_sink_begin(sink, &shape, err);
    free(layers);
    BL_TRY(st);
    if (sink->options->compose_batch == 0)
        return one_step(sink, d, err);
    if (side != NULL)
        BL_TRY(read_sequences(d, side, path, err));
    return compose(sink, d, err);
}

bl_status bl_import_topk_npy(bl_import_sink *sink, const char *path, bl_error *err) {
    bl_npy npy = {0};
    json_t *side = NULL;
    BL_TRY(bl_npy_load(path, &npy, err));
    dump d = {.npy = &npy, .n_tokens = npy.shape[0], .n_rows = npy.shape[1], .k = npy.shape[2]};
    bl_status st = BL_OK;
    if (npy.n_dims != 3 || npy.n_items == 0 || npy.kind == 'f' || npy.kind == 'b' ||
        d.n_rows > BL_MAX_LAYERS || d.k > BL_MAX_TOP_K)
        st = bl_fail_at(err, BL_ERR_SHAPE, bl_at(path),
                        "expected integer ids with the axes token, layer, k");
    if (st == BL_OK)
        st = bl_sink_read_side_json(path, &side, err);
    if (st == BL_OK)
        st = import_dump(sink, &d, side, path, err);
    json_decref(side);
    bl_npy_free(&npy);
    free(d.begin);
    free(d.next_sequence);
    free(d.lanes);
    free(d.picked);
    free(d.n_picked);
    free(d.ids);
    return st;
}
