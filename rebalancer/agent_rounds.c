/* Experts by rounds: groups that every rank posts in one order, and that no step waits for. */
#include "rebalancer/agent_parts.h"

#include "core/mem.h"
#include "core/progress.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MAX_BEATS (BL_ROUND_PARTS / 2) /* a beat is a part that leaves and one that arrives */

/* ---- life ------------------------------------------------------------------------------------ */

bl_status bl_agent_rounds_open(bl_agent *agent, bl_error *err) {
    bl_agent_rounds *r = &agent->rounds;
    const size_t bundle = bl_store_bundle_bytes(agent->store);
    const uint64_t room = (uint64_t)agent->options.step_bytes - BL_WIRE_CHUNK_BYTES;
    r->offered = bl_rounds_are_offered(agent->transport);
    if (!r->offered)
        return BL_OK;
    r->chunk = bundle < BL_ROUND_CHUNK ? bundle : BL_ROUND_CHUNK;
    if (r->chunk > room)
        r->chunk = (size_t)room;
    const uint64_t beats = (uint64_t)agent->options.step_bytes / (r->chunk + BL_WIRE_CHUNK_BYTES);
    r->beats = beats < MAX_BEATS ? (int)beats : MAX_BEATS;
    if (!bl_store_is_over_tensors(agent->store))
        return BL_OK;
    void *stage;
    BL_TRY(bl_memory_alloc(bl_store_device(agent->store), 2 * r->chunk * (size_t)r->beats, &stage,
                           err));
    r->stage = stage;
    return BL_OK;
}

static void forget_hash(bl_hasher **hasher) {
    if (*hasher != NULL)
        bl_hasher_finish64(*hasher);
    *hasher = NULL;
}

void bl_agent_rounds_close(bl_agent *agent) {
    bl_agent_rounds_leave(agent);
    bl_memory_free(bl_store_device(agent->store), agent->rounds.stage);
}

/* ---- what all agree on ----------------------------------------------------------------------- */

uint64_t bl_agent_rounds_agree(const bl_agent *agent, uint64_t hash) {
    const bl_agent_rounds *r = &agent->rounds;
    uint64_t all[] = {hash, bl_store_bundle_bytes(agent->store), r->chunk, (uint64_t)r->beats, 0};
    if (!r->offered)
        return hash;
    for (int rank = 0; rank < agent->n_ranks; rank++) {
        const uint64_t member[] = {all[4], (uint64_t)rank};
        if (!agent->tx.lost[rank])
            all[4] = bl_hash64(member, sizeof member);
    }
    return bl_hash64(all, sizeof all);
}

static bl_status list_members(const bl_agent *agent, bool **members, bl_error *err) {
    BL_TRY(BL_CALLOC(*members, agent->n_ranks, err));
    for (int rank = 0; rank < agent->n_ranks; rank++)
        (*members)[rank] = !agent->tx.lost[rank];
    return BL_OK;
}

bl_status bl_agent_rounds_name(bl_agent *agent, unsigned char **goal, size_t *bytes,
                               bl_error *err) {
    unsigned char name[BL_ROUND_NAME_BYTES];
    bool *members;
    if (!agent->rounds.offered)
        return BL_OK;
    BL_TRY(list_members(agent, &members, err));
    const bl_status st = bl_rounds_name(agent->transport, members, name, err);
    free(members);
    BL_TRY(st);
    unsigned char *longer = realloc(*goal, *bytes + BL_WIRE_NAME_BYTES);
    if (longer == NULL)
        return bl_fail(err, BL_ERR_NOMEM, "out of memory for a goal");
    bl_wire_encode_name(name, longer + *bytes);
    *goal = longer;
    *bytes += BL_WIRE_NAME_BYTES;
    return BL_OK;
}

/* Whether the transaction is going to take up this PREPARE: it must not cost a communicator else. */
static bool will_count(const bl_agent *agent, const bl_tx_message *message) {
    const bl_transaction *tx = &agent->tx;
    return message->from == bl_tx_leader(tx) && message->term > tx->term &&
           message->view >= tx->view && tx->state == BL_TX_STABLE && tx->lost_leader < 0;
}

bl_status bl_agent_rounds_cut(const bl_agent *agent, const unsigned char *goal, size_t *bytes,
                              const unsigned char **name, bl_error *err) {
    *name = bl_wire_find_name(goal, bytes);
    if ((*name != NULL) == agent->rounds.offered)
        return BL_OK;
    return bl_fail(err, BL_ERR_STATE, "it moves experts %s, the leader does %s",
                   agent->rounds.offered ? "over NCCL" : "by messages",
                   agent->rounds.offered ? "by messages" : "over NCCL");
}

bl_status bl_agent_rounds_join(bl_agent *agent, const bl_tx_message *message,
                               const unsigned char *name, bl_error *err) {
    bool *members;
    if (!agent->rounds.offered || !will_count(agent, message))
        return BL_OK;
    BL_TRY(list_members(agent, &members, err));
    const bl_status st = bl_rounds_join(agent->transport, members, name, err);
    free(members);
    return st;
}

/* ---- a group, from the wave alone ------------------------------------------------------------ */

static const bl_wave *wave_of(const bl_agent *agent) {
    return &agent->tx.schedule->waves[agent->rounds.wave];
}

static int chunks_of(const bl_agent *agent) {
    const size_t bundle = bl_store_bundle_bytes(agent->store);
    return (int)((bundle + agent->rounds.chunk - 1) / agent->rounds.chunk);
}

/* The first group from `from` on in which this rank has a part, or -1. */
static int64_t next_group(const bl_agent *agent, const bl_wave *wave, int64_t from) {
    const int64_t chunks = chunks_of(agent), beats = agent->rounds.beats;
    int64_t best = -1;
    for (int m = 0; m < wave->n_moves; m++) {
        const bl_move *move = &wave->moves[m];
        if (move->source != agent->rank && move->destination != agent->rank)
            continue;
        int64_t group = move->round * chunks / beats;
        if (group < from)
            group = from;
        if (group * beats < (move->round + 1) * chunks && (best < 0 || group < best))
            best = group;
    }
    return best;
}

/* This rank's parts of a group: moves come in the order of rounds, chunks in that of a bundle. */
static void cut_group(bl_agent *agent, const bl_wave *wave, int64_t group) {
    bl_agent_rounds *r = &agent->rounds;
    const size_t bundle = bl_store_bundle_bytes(agent->store);
    const int64_t chunks = chunks_of(agent), begin = group * r->beats, end = begin + r->beats;
    r->n_slices = 0;
    for (int m = 0; m < wave->n_moves; m++) {
        const bl_move *move = &wave->moves[m];
        const bool leaves = move->source == agent->rank;
        if (!leaves && move->destination != agent->rank)
            continue;
        for (int64_t chunk = 0; chunk < chunks; chunk++) {
            const int64_t beat = move->round * chunks + chunk;
            const size_t offset = (size_t)chunk * r->chunk;
            if (beat >= begin && beat < end)
                r->slices[r->n_slices++] =
                    (bl_slice){.move = m,
                               .leaves = leaves,
                               .offset = offset,
                               .bytes = bundle - offset < r->chunk ? bundle - offset : r->chunk};
        }
    }
}

static bl_incoming *incoming_of(bl_agent *agent, int move) {
    int i = 0;
    while (i < agent->n_landings && agent->landings[i].move != move)
        i++;
    return i < agent->n_landings ? &agent->landings[i] : NULL;
}

/* Has the destination asked for what leaves? It has begun the wave then: a word about the bundle finds it
 * ready, and no kernel spins for a rank that is still in the step before. */
static bool is_asked_for(const bl_agent *agent) {
    const bl_agent_rounds *r = &agent->rounds;
    for (int i = 0; i < r->n_slices; i++) {
        bool asked = !r->slices[i].leaves;
        for (size_t j = 0; j < agent->n_streams && !asked; j++) {
            const bl_outgoing *s = &agent->streams[j];
            asked = s->term == r->term && s->wave == r->wave && s->move == r->slices[i].move;
        }
        if (!asked)
            return false;
    }
    return true;
}

/* Where a slice waits for, or comes from, an engine's memory. */
static unsigned char *aside(const bl_agent *agent, int slice) {
    return agent->rounds.stage + (size_t)slice * agent->rounds.chunk;
}

/* Where the bytes of slice i are on this rank. */
static bl_status part_of(bl_agent *agent, const bl_wave *wave, int i, bl_part *out, bl_error *err) {
    const bl_slice *slice = &agent->rounds.slices[i];
    const bl_move *move = &wave->moves[slice->move];
    const bool over_tensors = bl_store_is_over_tensors(agent->store);
    *out = (bl_part){.from = move->source, .to = move->destination, .bytes = slice->bytes};
    if (!slice->leaves) {
        const bl_incoming *at = incoming_of(agent, slice->move);
        unsigned char *spare = at != NULL ? bl_store_spare(agent->store, at->spare) : NULL;
        if (at == NULL || (spare == NULL && !over_tensors))
            return bl_fail(err, BL_ERR_STATE, "expert %d has no buffer to arrive in", move->expert);
        out->target = spare != NULL ? spare + slice->offset : aside(agent, i);
        return BL_OK;
    }
    const unsigned char *bundle = bl_store_expert(agent->store, wave->after.layer, move->expert);
    if (bundle == NULL && !over_tensors)
        return bl_fail(err, BL_ERR_STATE, "expert %d has left rank %d", move->expert, agent->rank);
    out->source = bundle != NULL ? bundle + slice->offset : aside(agent, i);
    return bundle != NULL ? BL_OK
                          : bl_store_read_expert(agent->store, wave->after.layer, move->expert,
                                                 slice->offset, aside(agent, i), slice->bytes, err);
}

/* ---- hashes of what passes ------------------------------------------------------------------- */

/* Add the bytes of a slice, as they are on this rank. */
static bl_status hash_slice(bl_agent *agent, const bl_wave *wave, const bl_slice *slice,
                            const bl_incoming *at, bl_hasher **hasher, bl_error *err) {
    if (*hasher == NULL)
        *hasher = bl_hasher_new();
    if (*hasher == NULL)
        return bl_fail(err, BL_ERR_NOMEM, "out of memory for a hash");
    for (size_t done = 0; done < slice->bytes; done += BL_AGENT_PIECE_BYTES) {
        const size_t left = slice->bytes - done;
        const size_t n = left < BL_AGENT_PIECE_BYTES ? left : BL_AGENT_PIECE_BYTES;
        BL_TRY(at != NULL ? bl_store_read_spare(agent->store, at->spare, slice->offset + done,
                                                agent->piece, n, err)
                          : bl_store_read_expert(agent->store, wave->after.layer,
                                                 wave->moves[slice->move].expert,
                                                 slice->offset + done, agent->piece, n, err));
        bl_hasher_add(*hasher, agent->piece, n);
    }
    return BL_OK;
}

static bool is_last(const bl_agent *agent, const bl_slice *slice) {
    return slice->offset + slice->bytes == bl_store_bundle_bytes(agent->store);
}

/* After the last chunk of a bundle the source says what it was. */
static bl_status hash_leaving(bl_agent *agent, const bl_wave *wave, const bl_slice *slice,
                              bl_error *err) {
    bl_agent_rounds *r = &agent->rounds;
    BL_TRY(hash_slice(agent, wave, slice, NULL, &r->hasher, err));
    if (!is_last(agent, slice))
        return BL_OK;
    unsigned char head[BL_WIRE_CHUNK_BYTES];
    bl_wire_encode_chunk(&(bl_wire_chunk){.wave = r->wave,
                                          .move = slice->move,
                                          .term = r->term,
                                          .offset = bl_store_bundle_bytes(agent->store),
                                          .hash = bl_hasher_finish64(r->hasher)},
                         head);
    r->hasher = NULL;
    r->sent += (int64_t)sizeof head;
    agent->stats.sent_bytes += sizeof head;
    bl_agent_send(agent, wave->moves[slice->move].destination, BL_CHANNEL_MOVE, head, sizeof head);
    return BL_OK;
}

static bl_status take_arrived(bl_agent *agent, const bl_wave *wave, int i, bl_error *err) {
    const bl_slice *slice = &agent->rounds.slices[i];
    bl_incoming *at = incoming_of(agent, slice->move);
    if (at == NULL)
        return BL_OK;
    if (bl_store_spare(agent->store, at->spare) == NULL)
        BL_TRY(bl_store_write_spare(agent->store, at->spare, slice->offset, aside(agent, i),
                                    slice->bytes, err));
    BL_TRY(hash_slice(agent, wave, slice, at, &at->hasher, err));
    at->received += slice->bytes;
    agent->stats.received_bytes += slice->bytes;
    if (!is_last(agent, slice))
        return BL_OK;
    at->hash_here = bl_hasher_finish64(at->hasher);
    at->hasher = NULL;
    if (at->has_hash)
        bl_agent_landed(agent, at);
    return BL_OK;
}

/* ---- the step -------------------------------------------------------------------------------- */

/* Until a rank has promised, a transfer that fails fails its move. Afterwards all have verified, and
 * what fails can only be the word that bytes which are long there have left. */
static void fail_move(bl_agent *agent, const bl_error *err) {
    const bl_tx_state state = agent->tx.state;
    if (state != BL_TX_COPYING && state != BL_TX_VERIFIED_HERE)
        return;
    bl_agent_fail(agent, err);
    bl_agent_feed(agent, &(bl_tx_event){.kind = BL_TX_EV_TICK});
}

/* What the group has brought, in its order. It may end the wave. */
static void take_group(bl_agent *agent) {
    bl_agent_rounds *r = &agent->rounds;
    bl_error err = BL_ERROR_INIT;
    r->posted = false;
    for (int i = 0; i < r->n_slices; i++) {
        if (agent->tx.state != BL_TX_COPYING || agent->tx.term != r->term ||
            agent->tx.wave != r->wave)
            return;
        if (!r->slices[i].leaves && take_arrived(agent, wave_of(agent), i, &err) < 0) {
            fail_move(agent, &err);
            return;
        }
    }
}

void bl_agent_rounds_poll(bl_agent *agent) {
    bl_agent_rounds *r = &agent->rounds;
    bl_error err = BL_ERROR_INIT;
    bool done;
    if (!r->posted)
        return;
    const uint64_t start = bl_now_ns();
    if (bl_rounds_poll(agent->transport, &done, &err) < 0) {
        r->posted = false;
        fail_move(agent, &err);
    } else if (done) {
        take_group(agent);
    }
    agent->stats.copy_ns += bl_now_ns() - start;
}

/* The wave in hand, when its bundles are to be copied. False: none is. */
static bool follow_wave(bl_agent *agent) {
    bl_agent_rounds *r = &agent->rounds;
    const bl_transaction *tx = &agent->tx;
    if ((tx->state != BL_TX_COPYING && tx->state != BL_TX_VERIFIED_HERE) || r->posted)
        return false;
    if (r->term != tx->term || r->wave != tx->wave) {
        forget_hash(&r->hasher);
        r->term = tx->term;
        r->wave = tx->wave;
        r->next = 0;
    }
    return true;
}

static bl_status post_group(bl_agent *agent, const bl_wave *wave, int64_t group, bl_error *err) {
    bl_agent_rounds *r = &agent->rounds;
    bl_part parts[BL_ROUND_PARTS];
    cut_group(agent, wave, group);
    if (!is_asked_for(agent))
        return BL_OK;
    for (int i = 0; i < r->n_slices; i++)
        BL_TRY(part_of(agent, wave, i, &parts[i], err));
    BL_TRY(bl_rounds_post(agent->transport, parts, r->n_slices, err));
    r->posted = true;
    r->next = (int)group + 1;
    for (int i = 0; i < r->n_slices; i++) {
        const bl_slice *slice = &r->slices[i];
        if (!slice->leaves)
            continue;
        r->sent += (int64_t)slice->bytes;
        agent->stats.sent_bytes += slice->bytes;
        BL_TRY(hash_leaving(agent, wave, slice, err)); /* while NCCL carries it */
    }
    return BL_OK;
}

void bl_agent_rounds_post(bl_agent *agent) {
    bl_agent_rounds *r = &agent->rounds;
    bl_error err = BL_ERROR_INIT;
    bool ready;
    r->sent = 0;
    if (!r->offered || !follow_wave(agent))
        return;
    const bl_wave *wave = wave_of(agent);
    const int64_t group = next_group(agent, wave, r->next);
    if (group < 0)
        return;
    const uint64_t start = bl_now_ns();
    bl_status st = bl_rounds_poll(agent->transport, &ready, &err);
    if (st >= 0 && ready) /* else the communicator is still being made */
        st = post_group(agent, wave, group, &err);
    agent->stats.copy_ns += bl_now_ns() - start;
    if (st < 0)
        fail_move(agent, &err);
}

/* ---- ends ------------------------------------------------------------------------------------ */

void bl_agent_rounds_settle(bl_agent *agent) {
    bl_agent_rounds *r = &agent->rounds;
    bool done = false;
    while (r->posted && !done && bl_rounds_poll(agent->transport, &done, NULL) >= 0)
        if (!done)
            nanosleep(&(struct timespec){0, 20000}, NULL);
    r->posted = false;
}

bool bl_agent_rounds_leave(bl_agent *agent) {
    bl_agent_rounds *r = &agent->rounds;
    r->posted = false;
    r->term = 0;
    forget_hash(&r->hasher);
    for (int i = 0; i < agent->n_landings; i++)
        forget_hash(&agent->landings[i].hasher);
    return !r->offered || bl_rounds_leave(agent->transport, NULL) >= 0;
}
