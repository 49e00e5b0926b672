#include "runtime/exchange.h"

#include "runtime/buffer.h"

#include <string.h>

typedef enum exchange_kind { ALLGATHER, ALLTOALLV, N_KINDS } exchange_kind;

/* One exchange under way. Ranks send to their right neighbours first and receive from their left
 * ones, so that no rank is everybody's first. */
typedef struct round_state {
    bl_transport *transport;
    int rank, n_ranks;
    uint64_t mark;
    double until_s;
    const bool *lost; /* or NULL */
} round_state;

static round_state start(bl_exchange *exchange, exchange_kind kind) {
    const uint64_t number = exchange->sequence++;
    return (round_state){
        .transport = exchange->transport,
        .rank = bl_transport_rank(exchange->transport),
        .n_ranks = bl_transport_n_ranks(exchange->transport),
        .mark = number * N_KINDS + (uint64_t)kind,
        .until_s = bl_transport_now_s(exchange->transport) + exchange->deadline_s,
        .lost = exchange->lost,
    };
}

void bl_exchange_restart(bl_exchange *exchange, uint64_t sequence, const bool *lost) {
    exchange->sequence = sequence;
    exchange->lost = lost;
    bl_transport_set_floor(exchange->transport, BL_CHANNEL_STEP, sequence * N_KINDS);
}

static bool is_lost(const round_state *round, int peer) {
    return round->lost != NULL && round->lost[peer];
}

static bl_status send_to(const round_state *round, int peer, const void *data, size_t bytes,
                         bl_error *err) {
    if (is_lost(round, peer))
        return BL_OK;
    return bl_transport_send(round->transport, peer, BL_CHANNEL_STEP, round->mark, data, bytes,
                             err);
}

static bl_status receive_from(const round_state *round, int peer, bl_message *out, bl_error *err) {
    const double left_s = round->until_s - bl_transport_now_s(round->transport);
    return bl_transport_receive_whole(round->transport, peer, BL_CHANNEL_STEP, round->mark,
                                      left_s > 0 ? left_s : 0, out, err);
}

bl_status bl_exchange_allgather(bl_exchange *exchange, const void *mine, size_t block_bytes,
                                void *all, bl_error *err) {
    const round_state round = start(exchange, ALLGATHER);
    unsigned char *blocks = all;
    for (int i = 1; i < round.n_ranks; i++)
        BL_TRY(send_to(&round, (round.rank + i) % round.n_ranks, mine, block_bytes, err));
    if (block_bytes > 0)
        memmove(blocks + (size_t)round.rank * block_bytes, mine, block_bytes);
    for (int i = 1; i < round.n_ranks; i++) {
        const int peer = (round.rank + round.n_ranks - i) % round.n_ranks;
        bl_message block;
        if (is_lost(&round, peer)) {
            memset(blocks + (size_t)peer * block_bytes, 0, block_bytes);
            continue;
        }
        BL_TRY(receive_from(&round, peer, &block, err));
        const size_t bytes = block.bytes;
        if (bytes == block_bytes && bytes > 0)
            memcpy(blocks + (size_t)peer * block_bytes, block.data, bytes);
        bl_message_free(&block);
        if (bytes != block_bytes)
            return bl_fail(err, BL_ERR_SHAPE,
                           "rank %d gathers blocks of %zu bytes and rank %d sent %zu", round.rank,
                           block_bytes, peer, bytes);
    }
    return BL_OK;
}

static bl_status copy_part(const round_state *round, int from, const bl_outgoing *part,
                           bl_message *out, bl_error *err) {
    unsigned char *data = bl_buffer_alloc(part->bytes);
    if (data == NULL)
        return bl_fail(err, BL_ERR_NOMEM, "out of memory: a message of %zu bytes", part->bytes);
    if (part->bytes > 0)
        memcpy(data, part->data, part->bytes);
    *out = (bl_message){from, round->mark, part->bytes, data};
    return BL_OK;
}

static bl_status exchange_all(const round_state *round, const bl_outgoing *outgoing,
                              bl_message *incoming, bl_error *err) {
    for (int i = 1; i < round->n_ranks; i++) {
        const int peer = (round->rank + i) % round->n_ranks;
        BL_TRY(send_to(round, peer, outgoing[peer].data, outgoing[peer].bytes, err));
    }
    BL_TRY(copy_part(round, round->rank, &outgoing[round->rank], &incoming[round->rank], err));
    for (int i = 1; i < round->n_ranks; i++) {
        const int peer = (round->rank + round->n_ranks - i) % round->n_ranks;
        BL_TRY(is_lost(round, peer) ? copy_part(round, peer, &outgoing[peer], &incoming[peer], err)
                                    : receive_from(round, peer, &incoming[peer], err));
    }
    return BL_OK;
}

bl_status bl_exchange_alltoallv(bl_exchange *exchange, const bl_outgoing *outgoing,
                                bl_message *incoming, bl_error *err) {
    const round_state round = start(exchange, ALLTOALLV);
    memset(incoming, 0, sizeof *incoming * (size_t)round.n_ranks);
    const bl_status st = exchange_all(&round, outgoing, incoming, err);
    if (st < 0)
        bl_exchange_release(incoming, round.n_ranks);
    return st;
}

void bl_exchange_release(bl_message *messages, int n) {
    for (int i = 0; i < n; i++)
        bl_message_free(&messages[i]);
}
