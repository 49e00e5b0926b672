/*
 * import_compose.c: steps from tokens that have none.
 *
 * With --compose batch=N,ranks=G a step holds N tokens, N / G on each rank. Sequence i was born on
 * rank i mod G. In decode a rank serves N / G sequences at a time, one token of each per step, and
 * the next sequence takes the place of one that has ended; in every other phase a rank takes the
 * next N / G tokens of its sequences in order. Tokens whose sequences are not known are cut into
 * slices of N / G, dealt to the ranks in turn. Ranks without tokens left stay in step with zero
 * tokens. Without --compose all tokens are one step of unknown ranks.
 *
 * Tokens of which no layer has an id never take part: an engine that did not compute them (cached
 * prefix, padding) had no load from them.
 */
#include "tracer/import_sink.h"

#include "core/mem.h"

#include <stdlib.h>
#include <string.h>

/* Tokens of one rank: the sequences it serves at the moment. */
typedef struct lane {
    size_t at, end; /* next token and end of the sequence; equal: free */
} lane;

typedef struct dump {
    const bl_npy *ids;
    const uint16_t *weights; /* or NULL */
    size_t n_rows, k;
    size_t *valid; /* [n_tokens] those with an id, in order; all that follows counts these */
    size_t n_tokens;
    size_t *begin; /* [n_sequences + 1] first token of each sequence, or NULL */
    size_t n_sequences;
    int n_ranks;
    size_t per_rank;       /* tokens per step and rank */
    size_t *next_sequence; /* [n_ranks] */
    lane *lanes;           /* decode: [n_ranks][per_rank]; else [n_ranks][1] */
    size_t n_lanes;
    size_t *picked;        /* [n_ranks][per_rank] tokens of the step */
    size_t *n_picked;      /* [n_ranks] */
    int32_t *row_ids;      /* [per_rank][k] */
    uint16_t *row_weights; /* [per_rank][k] */
} dump;

static int64_t id_at(const dump *d, size_t token, size_t row, size_t j) {
    return bl_npy_int(d->ids, (token * d->n_rows + row) * d->k + j);
}

/* Ids and weights of `n` tokens in one row. */
static void gather(const dump *d, const size_t *tokens, size_t n, size_t row) {
    for (size_t i = 0; i < n; i++) {
        const size_t token = d->valid[tokens[i]], from = (token * d->n_rows + row) * d->k;
        for (size_t j = 0; j < d->k; j++) {
            const int64_t id = id_at(d, token, row, j);
            d->row_ids[i * d->k + j] = id < 0           ? BL_EMPTY_SLOT
                                       : id > INT32_MAX ? INT32_MAX
                                                        : (int32_t)id;
        }
        if (d->weights != NULL)
            memcpy(d->row_weights + i * d->k, d->weights + from, d->k * sizeof *d->weights);
    }
}

/* Room for the rows of `n` tokens. */
static bl_status make_rows(dump *d, size_t n, bl_error *err) {
    BL_TRY(BL_CALLOC(d->row_ids, n * d->k, err));
    return d->weights != NULL ? BL_CALLOC(d->row_weights, n * d->k, err) : BL_OK;
}

static bl_status put(bl_import_sink *sink, const dump *d, const size_t *tokens, size_t n,
                     size_t row, int rank, bl_error *err) {
    if (sink->rows.layer[row] == BL_ROW_LEFT_OUT)
        return BL_OK;
    gather(d, tokens, n, row);
    const bl_record record = {.step = sink->next_step,
                              .layer = sink->rows.layer[row],
                              .rank = rank,
                              .phase = (bl_phase)sink->phase,
                              .flags = BL_RECORD_COMPOSED,
                              .n_ids = sink->info.n_experts,
                              .n_tokens = n,
                              .k = sink->info.top_k,
                              .ids = d->row_ids,
                              .weights = d->row_weights};
    return bl_sink_put(sink, &record, err);
}

/* ---- tokens that count --------------------------------------------------------------------- */

/* Does the row hold an id at all? One of equal ids does not; *equal says that it is such a row. */
static bool row_has_data(const dump *d, size_t token, size_t row, bool *equal) {
    const int64_t first = id_at(d, token, row, 0);
    *equal = d->k > 1 && first >= 0;
    for (size_t j = 1; j < d->k; j++) {
        const int64_t id = id_at(d, token, row, j);
        *equal = *equal && id == first;
        if (id != first && (id >= 0 || first >= 0))
            return true;
    }
    return d->k == 1 && first >= 0;
}

/* Does any layer that is kept have an id of the token? */
static bool token_has_data(bl_import_sink *sink, const dump *d, size_t token) {
    uint64_t n_equal = 0;
    for (size_t row = 0; row < d->n_rows; row++) {
        bool equal = false;
        if (sink->rows.layer[row] == BL_ROW_LEFT_OUT)
            continue;
        if (row_has_data(d, token, row, &equal))
            return true;
        n_equal += equal;
    }
    sink->equal_rows += n_equal;
    sink->missing_tokens++;
    return false;
}

/* The tokens that count, and the sequences in terms of them. */
static bl_status select_tokens(bl_import_sink *sink, dump *d, const bl_token_ids *tokens,
                               bl_error *err) {
    const size_t n = d->ids->shape[0];
    BL_TRY(BL_CALLOC(d->valid, n, err));
    if (tokens->begin != NULL) {
        d->n_sequences = tokens->n_sequences;
        BL_TRY(BL_CALLOC(d->begin, d->n_sequences + 1, err));
    }
    size_t sequence = 0;
    for (size_t token = 0; token <= n; token++) {
        while (d->begin != NULL && sequence <= d->n_sequences && tokens->begin[sequence] <= token)
            d->begin[sequence++] = d->n_tokens;
        if (token < n && token_has_data(sink, d, token))
            d->valid[d->n_tokens++] = token;
    }
    return BL_OK;
}

/* ---- one step ------------------------------------------------------------------------------ */

static bl_status one_step(bl_import_sink *sink, dump *d, bl_error *err) {
    enum { SLICE = 4096 };
    size_t tokens[SLICE];
    BL_TRY(make_rows(d, SLICE, err));
    for (size_t row = 0; row < d->n_rows; row++) {
        for (size_t first = 0; first < d->n_tokens; first += SLICE) {
            const size_t left = d->n_tokens - first, n = left < SLICE ? left : SLICE;
            for (size_t i = 0; i < n; i++)
                tokens[i] = first + i;
            BL_TRY(put(sink, d, tokens, n, row, BL_ALL_RANKS, err));
        }
    }
    sink->next_step++;
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
        const size_t *tokens = d->picked + (size_t)rank * d->per_rank;
        for (size_t row = 0; row < d->n_rows; row++)
            BL_TRY(put(sink, d, tokens, d->n_picked[rank], row, rank, err));
    }
    sink->next_step++;
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
    BL_TRY(make_rows(d, d->per_rank, err));
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

bl_status bl_sink_tokens(bl_import_sink *sink, const bl_token_ids *tokens, bl_error *err) {
    dump d = {.ids = tokens->ids,
              .weights = tokens->weights,
              .n_rows = tokens->ids->shape[1],
              .k = tokens->ids->shape[2]};
    bl_status st = select_tokens(sink, &d, tokens, err);
    if (st == BL_OK)
        st = sink->options->compose_batch == 0 ? one_step(sink, &d, err) : compose(sink, &d, err);
    free(d.valid);
    free(d.begin);
    free(d.next_sequence);
    free(d.lanes);
    free(d.picked);
    free(d.n_picked);
    free(d.row_ids);
    free(d.row_weights);
    return st;
}
