/* Experts as messages: a bundle leaves in pieces on channel MOVE and is put together where it lands. */
#include "rebalancer/agent_parts.h"

#include "core/mem.h"
#include "core/progress.h"
#include "rebalancer/messages.h"

#include <string.h>

/* ---- what arrives ---------------------------------------------------------------------------- */

void bl_agent_landed(bl_agent *agent, const bl_incoming *at) {
    bl_agent_feed(agent, &(bl_tx_event){.kind = BL_TX_EV_BUNDLE,
                                        .move = at->move,
                                        .attempt = at->attempt,
                                        .hash_source = at->hash_source,
                                        .hash_here = at->hash_here});
}

/* The bundle that this piece is wanted for, or NULL. */
static bl_incoming *find_landing(bl_agent *agent, const bl_wire_chunk *chunk) {
    int i = 0;
    if (!bl_tx_wants(&agent->tx, chunk->term, chunk->wave, chunk->move, chunk->attempt))
        return NULL;
    while (i < agent->n_landings && agent->landings[i].move != chunk->move)
        i++;
    return i < agent->n_landings ? &agent->landings[i] : NULL;
}

/* Pieces of a bundle come in order; a new attempt starts at its first byte again. */
void bl_agent_take_piece(bl_agent *agent, const bl_message *arrived) {
    const size_t bundle_bytes = bl_store_bundle_bytes(agent->store);
    bl_error err = BL_ERROR_INIT;
    bl_wire_chunk chunk;
    bl_incoming *at = NULL;
    agent->stats.received_bytes += arrived->bytes;
    if (bl_wire_decode_chunk(arrived->data, arrived->bytes, bundle_bytes, &chunk, NULL) >= 0)
        at = find_landing(agent, &chunk);
    if (at != NULL && at->attempt != chunk.attempt)
        *at = (bl_incoming){.move = at->move, .spare = at->spare, .attempt = chunk.attempt};
    const size_t piece = arrived->bytes - BL_WIRE_CHUNK_BYTES;
    const bool is_word = piece == 0 && agent->rounds.offered && chunk.attempt == 0;
    if (at == NULL || (!is_word && (piece == 0 || chunk.offset != at->received))) {
        agent->stats.stray++;
        return;
    }
    at->hash_source = chunk.hash;
    at->has_hash = true;
    if (!is_word && bl_store_write_spare(agent->store, at->spare, at->received,
                                         arrived->data + BL_WIRE_CHUNK_BYTES, piece, &err) < 0) {
        bl_agent_fail(agent, &err); /* taken up with the tick behind all arrivals */
        return;
    }
    at->received += piece;
    if (at->received < bundle_bytes)
        return;
    if (!is_word)
        at->hash_here = bl_store_hash_spare(agent->store, at->spare);
    bl_agent_landed(agent, at);
}

/* ---- what leaves ----------------------------------------------------------------------------- */

void bl_agent_stream(bl_agent *agent, const bl_tx_action *action) {
    const bl_wave *wave = &agent->tx.schedule->waves[agent->tx.wave];
    const bl_move *move = &wave->moves[action->move];
    bl_error err = BL_ERROR_INIT;
    void *streams = agent->streams;

    const bl_status st = bl_grow(&streams, &agent->streams_capacity, agent->n_streams + 1,
                                 sizeof *agent->streams, &err);
    agent->streams = streams;
    if (st < 0) {
        bl_agent_fail(agent, &err);
        return;
    }
    agent->streams[agent->n_streams++] = (bl_outgoing){.term = agent->tx.term,
                                                       .wave = agent->tx.wave,
                                                       .move = action->move,
                                                       .attempt = action->attempt,
                                                       .to = action->to,
                                                       .round = move->round,
                                                       .layer = wave->after.layer,
                                                       .expert = move->expert};
}

static bool is_current(const bl_agent *agent, const bl_outgoing *s) {
    return agent->tx.schedule != NULL && agent->tx.term == s->term && agent->tx.wave == s->wave;
}

/* The stream of the earliest round whose peer may get more in this step, or -1. */
static int next_stream(bl_agent *agent) {
    int best = -1;
    for (size_t i = 0; i < agent->n_streams; i++) {
        const bl_outgoing *s = &agent->streams[i];
        if (agent->rounds.offered && s->attempt == 0)
            continue; /* it goes by rounds */
        if (agent->to_peer[s->to] <= BL_AGENT_PEER_BYTES - (int64_t)BL_AGENT_PIECE_BYTES &&
            (best < 0 || s->round < agent->streams[best].round))
            best = (int)i;
    }
    return best;
}

static void drop_stream(bl_agent *agent, int i) {
    agent->streams[i] = agent->streams[--agent->n_streams];
}

/* Send the next piece of stream i, at most `room` bytes with its header; returns what it took. */
static int64_t send_piece(bl_agent *agent, int i, int64_t room) {
    bl_outgoing *s = &agent->streams[i];
    const size_t bundle_bytes = bl_store_bundle_bytes(agent->store);
    bl_error err = BL_ERROR_INIT;
    if (!is_current(agent, s)) {
        drop_stream(agent, i);
        return 0;
    }
    size_t piece = bundle_bytes - s->offset;
    if (piece > BL_AGENT_PIECE_BYTES)
        piece = BL_AGENT_PIECE_BYTES;
    if (piece > (size_t)(room - BL_WIRE_CHUNK_BYTES))
        piece = (size_t)(room - BL_WIRE_CHUNK_BYTES);
    bl_status st = BL_OK;
    if (s->offset == 0)
        st = bl_store_hash_expert(agent->store, s->layer, s->expert, &s->hash, &err);
    if (st >= 0)
        st = bl_store_read_expert(agent->store, s->layer, s->expert, s->offset,
                                  agent->piece + BL_WIRE_CHUNK_BYTES, piece, &err);
    if (st < 0) {
        drop_stream(agent, i);
        if (st != BL_ERR_STATE) /* else it left this rank, and nobody waits for it */
            bl_agent_fail(agent, &err);
        return 0;
    }
    bl_wire_encode_chunk(&(bl_wire_chunk){.wave = s->wave,
                                          .move = s->move,
                                          .attempt = s->attempt,
                                          .term = s->term,
                                          .offset = s->offset,
                                          .hash = s->hash},
                         agent->piece);
    const int to = s->to;
    const int64_t bytes = (int64_t)piece + BL_WIRE_CHUNK_BYTES;
    s->offset += piece;
    agent->to_peer[to] += bytes;
    agent->stats.sent_bytes += (uint64_t)bytes;
    if (s->offset == bundle_bytes)
        drop_stream(agent, i);
    bl_agent_send(agent, to, BL_CHANNEL_MOVE, agent->piece, (size_t)bytes);
    return bytes;
}

void bl_agent_send_pieces(bl_agent *agent) {
    const uint64_t start = bl_now_ns();
    int64_t sent = agent->rounds.sent;
    memset(agent->to_peer, 0, sizeof *agent->to_peer * (size_t)agent->n_ranks);
    while (agent->options.step_bytes - sent > BL_WIRE_CHUNK_BYTES) {
        const int i = next_stream(agent);
        if (i < 0)
            break;
        sent += send_piece(agent, i, agent->options.step_bytes - sent);
    }
    if (sent > agent->rounds.sent)
        agent->stats.copy_ns += bl_now_ns() - start;
    if ((uint64_t)sent > agent->stats.max_step_bytes)
        agent->stats.max_step_bytes = (uint64_t)sent;
}
