#include "runtime/moe.h"

#include "core/mem.h"
#include "core/progress.h"
#include "runtime/kernels.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

const char *const bl_stage_names[] = {"route",   "permute",   "dispatch", "experts",
                                      "combine", "unpermute", NULL};

typedef struct header {
    uint32_t layer, rows;
    uint64_t epoch;
} header;

static bool dedups(const bl_moe *moe) {
    return moe->shape.dispatch == BL_DISPATCH_DEDUP_RANK;
}

/* Of a dispatch message with n assignments. */
static size_t ids_bytes(const bl_moe *moe, int32_t n) {
    return ((size_t)n * (dedups(moe) ? 2 : 1) * sizeof(int32_t) + 15) & ~(size_t)15;
}

static size_t row_bytes(const bl_moe *moe) {
    return (size_t)moe->shape.hidden * sizeof(float);
}

/* ---- life ---------------------------------------------------------------------------------- */

bl_status bl_moe_create(const bl_moe_shape *shape, bl_exchange *exchange, bl_moe *out,
                        bl_error *err) {
    const int n_ranks = bl_transport_n_ranks(exchange->transport);
    size_t scratch = (size_t)2 * (size_t)shape->inner;
    if (scratch < (size_t)shape->hidden)
        scratch = (size_t)shape->hidden;
    if (scratch < (size_t)shape->n_experts)
        scratch = (size_t)shape->n_experts;
    bl_moe moe = {.shape = *shape,
                  .rank = bl_transport_rank(exchange->transport),
                  .n_ranks = n_ranks,
                  .exchange = exchange};
    if (BL_CALLOC(moe.n_sent, n_ranks, err) < 0 || BL_CALLOC(moe.n_rows, n_ranks, err) < 0 ||
        BL_CALLOC(moe.last_token, n_ranks, err) < 0 || BL_CALLOC(moe.inputs, n_ranks, err) < 0 ||
        BL_CALLOC(moe.bytes_to, 2 * n_ranks, err) < 0 || BL_CALLOC(moe.send, n_ranks, err) < 0 ||
        BL_CALLOC(moe.outgoing, n_ranks, err) < 0 || BL_CALLOC(moe.received, n_ranks, err) < 0 ||
        BL_CALLOC(moe.rows, n_ranks, err) < 0 || BL_CALLOC(moe.experts, n_ranks, err) < 0 ||
        BL_CALLOC(moe.n_received, n_ranks, err) < 0 ||
        BL_CALLOC(moe.first, shape->n_experts + 1, err) < 0 ||
        BL_CALLOC(moe.scratch, scratch, err) < 0 || BL_CALLOC(moe.reply, n_ranks, err) < 0 ||
        BL_CALLOC(moe.returned, n_ranks, err) < 0) {
        bl_moe_free(&moe);
        return BL_ERR_NOMEM;
    }
    *out = moe;
    return BL_OK;
}

static void free_buffers(bl_moe_buffer *buffers, int n) {
    for (int g = 0; buffers != NULL && g < n; g++)
        free(buffers[g].data);
    free(buffers);
}

void bl_moe_free(bl_moe *moe) {
    if (moe->received != NULL)
        bl_exchange_release(moe->received, moe->n_ranks);
    if (moe->returned != NULL)
        bl_exchange_release(moe->returned, moe->n_ranks);
    free_buffers(moe->send, moe->n_ranks);
    free_buffers(moe->reply, moe->n_ranks);
    free(moe->ids);
    free(moe->weights);
    free(moe->slot);
    free(moe->to);
    free(moe->source_row);
    free(moe->n_sent);
    free(moe->n_rows);
    free(moe->last_token);
    free((void *)moe->inputs);
    free(moe->bytes_to);
    free(moe->outgoing);
    free(moe->received);
    free((void *)moe->rows);
    free((void *)moe->experts);
    free(moe->n_received);
    free(moe->first);
    free(moe->order);
    free(moe->scratch);
    free(moe->returned);
    *moe = (bl_moe){0};
}

void bl_moe_reset_counters(bl_moe *moe) {
    memset(moe->stage_ns, 0, sizeof moe->stage_ns);
    memset(moe->bytes_to, 0, 2 * (size_t)moe->n_ranks * sizeof *moe->bytes_to);
    moe->sent_bytes = moe->sent_rows = moe->n_messages = 0;
}

/* bl_grow() on a typed array. */
#define GROW(st, array, capacity, needed, err)                                  \
    do {                                                                        \
        void *items_ = (array);                                                 \
        (st) = bl_grow(&items_, &(capacity), (needed), sizeof *(array), (err)); \
        (array) = items_;                                                       \
    } while (0)

static bl_status grow_tokens(bl_moe *moe, size_t assignments, bl_error *err) {
    bl_status st;
    GROW(st, moe->ids, moe->ids_capacity, assignments, err);
    if (st >= 0)
        GROW(st, moe->weights, moe->weights_capacity, assignments, err);
    if (st >= 0)
        GROW(st, moe->slot, moe->slot_capacity, assignments, err);
    if (st >= 0)
        GROW(st, moe->source_row, moe->source_row_capacity, assignments, err);
    if (st >= 0)
        GROW(st, moe->to, moe->to_capacity, assignments, err);
    return st;
}

bl_status bl_moe_begin(bl_moe *moe, const bl_layer_placement *map, bl_sharing *sharing,
                       int n_tokens, bl_error *err) {
    size_t assignments;
    if (!bl_size_mul((size_t)n_tokens, (size_t)moe->shape.top_k, &assignments) ||
        assignments > INT32_MAX / 2)
        return bl_fail_at(err, BL_ERR_RANGE, bl_at_layer(NULL, map->layer),
                          "%d tokens in one step are too many", n_tokens);
    BL_TRY(grow_tokens(moe, assignments, err));
    bl_exchange_release(moe->received, moe->n_ranks); /* of a layer that failed half-way */
    bl_exchange_release(moe->returned, moe->n_ranks);
    moe->layer = map->layer;
    moe->map = map;
    moe->sharing = sharing;
    moe->n_tokens = n_tokens;
    return BL_OK;
}

/* ---- route, permute ------------------------------------------------------------------------ */

bl_status bl_moe_route(bl_moe *moe, const uint16_t *router, const float *x, bl_error *err) {
    const uint64_t start = bl_now_ns();
    const size_t hidden = (size_t)moe->shape.hidden;
    const int k = moe->shape.top_k;
    for (int token = 0; token < moe->n_tokens; token++) {
        bl_matmul(router, (size_t)moe->shape.n_experts, hidden, x + (size_t)token * hidden, 1,
                  moe->scratch);
        if (!bl_route(moe->scratch, moe->shape.n_experts, k, moe->shape.renormalise,
                      moe->ids + token * k, moe->weights + token * k))
            return bl_fail_at(err, BL_ERR_RANGE, bl_at_layer(NULL, moe->layer),
                              "the router's logits of token %d are not finite; are the weights "
                              "damaged?",
                              token);
    }
    moe->stage_ns[BL_STAGE_ROUTE] += bl_now_ns() - start;
    return BL_OK;
}

/* Which rank serves each assignment, and as which row of its message. */
static bl_status assign(bl_moe *moe, bl_error *err) {
    uint64_t exchanged;
    BL_TRY(bl_sharing_choose(moe->sharing, moe->exchange, moe->ids, moe->n_tokens, moe->shape.top_k,
                             moe->slot, &exchanged, err));
    if (exchanged > 0) {
        moe->sent_bytes += exchanged;
        moe->n_messages += (uint64_t)moe->n_ranks - 1;
        for (int g = 0; g < moe->n_ranks; g++)
            moe->bytes_to[g] += g == moe->rank ? 0 : exchanged / ((uint64_t)moe->n_ranks - 1);
    }
    for (int rank = 0; rank < moe->n_ranks; rank++) {
        moe->n_sent[rank] = moe->n_rows[rank] = 0;
        moe->last_token[rank] = -1;
    }
    for (int a = 0; a < moe->n_tokens * moe->shape.top_k; a++) {
        const int rank = bl_layer_rank_of(moe->map, moe->slot[a]), token = a / moe->shape.top_k;
        moe->to[a] = (bl_moe_row){rank, moe->n_sent[rank]++};
        if (!dedups(moe) || moe->last_token[rank] != token)
            moe->n_rows[rank]++;
        moe->last_token[rank] = token;
        moe->source_row[a] = moe->n_rows[rank] - 1;
    }
    return BL_OK;
}

/* Room for a message of n assignments and so many rows, and its header. */
static bl_status reserve(const bl_moe *moe, bl_moe_buffer *buffer, size_t ids, int32_t n,
                         int32_t rows, bl_outgoing *out, bl_error *err) {
    const header head = {(uint32_t)moe->layer, (uint32_t)n, moe->map->epoch};
    size_t total;
    if (!bl_size_mul((size_t)rows, row_bytes(moe), &total) ||
        !bl_size_add(total, sizeof head + ids, &total))
        return bl_fail(err, BL_ERR_NOMEM, "out of memory: %d rows", rows);
    bl_status st;
    GROW(st, buffer->data, buffer->capacity, total, err);
    BL_TRY(st);
    memcpy(buffer->data, &head, sizeof head);
    *out = (bl_outgoing){buffer->data, total};
    return BL_OK;
}

bl_status bl_moe_permute(bl_moe *moe, const float *x, bl_error *err) {
    const uint64_t start = bl_now_ns();
    const size_t row = row_bytes(moe);
    const int k = moe->shape.top_k;
    BL_TRY(assign(moe, err));
    for (int g = 0; g < moe->n_ranks; g++) {
        const size_t ids = ids_bytes(moe, moe->n_sent[g]);
        BL_TRY(reserve(moe, &moe->send[g], ids, moe->n_sent[g], moe->n_rows[g], &moe->outgoing[g],
                       err));
        memset(moe->send[g].data + sizeof(header), 0, ids);
    }
    for (int a = 0; a < moe->n_tokens * k; a++) {
        const int g = moe->to[a].rank;
        const size_t at = (size_t)moe->to[a].row, n = (size_t)moe->n_sent[g];
        const size_t source = (size_t)moe->source_row[a];
        unsigned char *ids = moe->send[g].data + sizeof(header);
        unsigned char *rows = ids + ids_bytes(moe, moe->n_sent[g]);
        memcpy(ids + at * sizeof(int32_t), &moe->ids[a], sizeof(int32_t));
        if (dedups(moe))
            memcpy(ids + (n + at) * sizeof(int32_t), &moe->source_row[a], sizeof(int32_t));
        memcpy(rows + source * row, x + (size_t)(a / k) * (size_t)moe->shape.hidden, row);
    }
    moe->stage_ns[BL_STAGE_PERMUTE] += bl_now_ns() - start;
    return BL_OK;
}

/* ---- dispatch, combine --------------------------------------------------------------------- */

/* Exchange `outgoing` and count what leaves this rank, in `bytes_to` by rank. */
static bl_status exchange_rows(bl_moe *moe, const int32_t *rows, bl_message *incoming,
                               uint64_t *bytes_to, bl_error *err) {
    BL_TRY(bl_exchange_alltoallv(moe->exchange, moe->outgoing, incoming, err));
    for (int g = 0; g < moe->n_ranks; g++) {
        if (g == moe->rank)
            continue;
        bytes_to[g] += moe->outgoing[g].bytes;
        moe->sent_bytes += moe->outgoing[g].bytes;
        moe->sent_rows += (uint64_t)rows[g];
        moe->n_messages++;
    }
    return BL_OK;
}

/* Header of a message from `peer`, checked against the layer at hand. */
static bl_status check_header(const bl_moe *moe, int peer, const bl_message *message, bool with_ids,
                              int32_t *rows, bl_error *err) {
    const size_t bytes = message->bytes;
    header head = {0};
    if (bytes >= sizeof head)
        memcpy(&head, message->data, sizeof head);
    const size_t limit = bytes / sizeof(int32_t); /* an assignment takes at least that */
    bool fits = bytes >= sizeof head && head.rows <= limit && head.rows <= INT32_MAX;
    if (fits) {
        const size_t ids = with_ids ? ids_bytes(moe, (int32_t)head.rows) : 0;
        const size_t left = bytes - sizeof head;
        fits = left >= ids && (with_ids && dedups(moe) ? (left - ids) % row_bytes(moe) == 0
                                                       : left - ids == head.rows * row_bytes(moe));
    }
    if (!fits)
        return bl_fail_at(err, BL_ERR_SHAPE, bl_at_layer(NULL, moe->layer),
                          "rank %d sent %zu bytes for %u rows", peer, bytes, head.rows);
    if (head.layer != (uint32_t)moe->layer || head.epoch != moe->map->epoch)
        return bl_fail_at(err, BL_ERR_STATE, bl_at_layer(NULL, moe->layer),
                          "rank %d is at layer %u, epoch %llu, rank %d at epoch %llu", peer,
                          head.layer, (unsigned long long)head.epoch, moe->rank,
                          (unsigned long long)moe->map->epoch);
    *rows = (int32_t)head.rows;
    return BL_OK;
}

static bl_status take_rows(bl_moe *moe, int peer, bl_error *err) {
    const bl_message *message = &moe->received[peer];
    BL_TRY(check_header(moe, peer, message, true, &moe->n_received[peer], err));
    moe->experts[peer] = (const int32_t *)(const void *)(message->data + sizeof(header));
    const int32_t n = moe->n_received[peer];
    const size_t before = sizeof(header) + ids_bytes(moe, n);
    const size_t n_rows = (message->bytes - before) / row_bytes(moe);
    moe->rows[peer] = message->data + before;
    moe->inputs[peer] = dedups(moe) ? moe->experts[peer] + n : NULL;
    for (int32_t a = 0; a < n; a++) {
        const int32_t expert = moe->experts[peer][a];
        const int32_t input = dedups(moe) ? moe->inputs[peer][a] : a;
        if (expert < 0 || expert >= moe->shape.n_experts)
            return bl_fail_at(err, BL_ERR_RANGE, bl_at_layer(NULL, moe->layer),
                              "rank %d sent a row for expert %d of %d", peer, expert,
                              moe->shape.n_experts);
        if (input < 0 || (size_t)input >= n_rows)
            return bl_fail_at(err, BL_ERR_RANGE, bl_at_layer(NULL, moe->layer),
                              "rank %d sent %zu rows and speaks of row %d", peer, n_rows, input);
    }
    return BL_OK;
}

bl_status bl_moe_dispatch(bl_moe *moe, bl_error *err) {
    const uint64_t start = bl_now_ns();
    BL_TRY(exchange_rows(moe, moe->n_rows, moe->received, moe->bytes_to, err));
    for (int g = 0; g < moe->n_ranks; g++)
        BL_TRY(take_rows(moe, g, err));
    moe->stage_ns[BL_STAGE_DISPATCH] += bl_now_ns() - start;
    return BL_OK;
}

bl_status bl_moe_combine(bl_moe *moe, bl_error *err) {
    const uint64_t start = bl_now_ns();
    BL_TRY(exchange_rows(moe, moe->n_received, moe->returned, moe->bytes_to + moe->n_ranks, err));
    for (int g = 0; g < moe->n_ranks; g++) {
        int32_t rows;
        BL_TRY(check_header(moe, g, &moe->returned[g], false, &rows, err));
        if (rows != moe->n_sent[g])
            return bl_fail_at(err, BL_ERR_STATE, bl_at_layer(NULL, moe->layer),
                              "rank %d was sent %d rows and returned %d", g, moe->n_sent[g], rows);
    }
    moe->stage_ns[BL_STAGE_COMBINE] += bl_now_ns() - start;
    return BL_OK;
}

/* ---- experts, unpermute -------------------------------------------------------------------- */

/* Counting sort of the received rows by expert; ties by source rank, then row. */
static bl_status group_rows(bl_moe *moe, bl_error *err) {
    const int n_experts = moe->shape.n_experts;
    size_t total = 0;
    for (int g = 0; g < moe->n_ranks; g++)
        total += (size_t)moe->n_received[g];
    bl_status st;
    GROW(st, moe->order, moe->order_capacity, total, err);
    BL_TRY(st);
    memset(moe->first, 0, ((size_t)n_experts + 1) * sizeof *moe->first);
    for (int g = 0; g < moe->n_ranks; g++)
        for (int32_t row = 0; row < moe->n_received[g]; row++)
            moe->first[moe->experts[g][row] + 1]++;
    for (int expert = 0; expert < n_experts; expert++)
        moe->first[expert + 1] += moe->first[expert];
    for (int g = 0; g < moe->n_ranks; g++)
        for (int32_t row = 0; row < moe->n_received[g]; row++)
            moe->order[moe->first[moe->experts[g][row]]++] = (bl_moe_row){g, row};
    for (int expert = n_experts; expert > 0; expert--)
        moe->first[expert] = moe->first[expert - 1];
    moe->first[0] = 0;
    return BL_OK;
}

bl_status bl_moe_experts(bl_moe *moe, const bl_store *store, bl_error *err) {
    const uint64_t start = bl_now_ns();
    const size_t row = row_bytes(moe), hidden = (size_t)moe->shape.hidden;
    BL_TRY(group_rows(moe, err));
    for (int g = 0; g < moe->n_ranks; g++)
        BL_TRY(reserve(moe, &moe->reply[g], 0, moe->n_received[g], moe->n_received[g],
                       &moe->outgoing[g], err));
    for (int expert = 0; expert < moe->shape.n_experts; expert++) {
        if (moe->first[expert] == moe->first[expert + 1])
            continue;
        const uint16_t *bundle = bl_store_expert(store, moe->layer, expert);
        if (bundle == NULL)
            return bl_fail_at(err, BL_ERR_STATE, bl_at_expert(NULL, moe->layer, expert),
                              "rank %d sent a row here, but rank %d does not hold the expert",
                              moe->order[moe->first[expert]].rank, moe->rank);
        for (int32_t i = moe->first[expert]; i < moe->first[expert + 1]; i++) {
            const bl_moe_row from = moe->order[i];
            const int32_t *inputs = moe->inputs[from.rank];
            const size_t input = (size_t)(inputs != NULL ? inputs[from.row] : from.row);
            const void *x = moe->rows[from.rank] + input * row;
            void *y = moe->reply[from.rank].data + sizeof(header) + (size_t)from.row * row;
            bl_expert(bundle, hidden, (size_t)moe->shape.inner, x, moe->scratch, y);
        }
    }
    bl_exchange_release(moe->received, moe->n_ranks);
    moe->stage_ns[BL_STAGE_EXPERTS] += bl_now_ns() - start;
    return BL_OK;
}

void bl_moe_unpermute(bl_moe *moe, float *residual) {
    const uint64_t start = bl_now_ns();
    const size_t row = row_bytes(moe), hidden = (size_t)moe->shape.hidden;
    const int k = moe->shape.top_k;
    for (int token = 0; token < moe->n_tokens; token++) {
        memset(moe->scratch, 0, row);
        for (int a = token * k; a < (token + 1) * k; a++) {
            const bl_moe_row at = moe->to[a];
            const void *y = moe->returned[at.rank].data + sizeof(header) + (size_t)at.row * row;
            bl_add_scaled(moe->scratch, y, moe->weights[a], hidden);
        }
        bl_add_scaled(residual + (size_t)token * hidden, moe->scratch, 1.0f, hidden);
    }
    bl_exchange_release(moe->returned, moe->n_ranks);
    moe->stage_ns[BL_STAGE_UNPERMUTE] += bl_now_ns() - start;
}

int bl_moe_rows(const bl_moe *moe) {
    return moe->first[moe->shape.n_experts];
}
