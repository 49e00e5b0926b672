/*
 * agent_parts.h: what the files of the agent share: agent.c (the transaction's hands),
 * agent_pieces.c (experts as messages) and agent_rounds.c (experts by rounds, over NCCL).
 */
#ifndef BL_REBALANCER_AGENT_PARTS_H
#define BL_REBALANCER_AGENT_PARTS_H

#include "rebalancer/agent.h"
#include "core/hash.h"
#include "rebalancer/messages.h"
#include "runtime/round.h"

#define BL_AGENT_PIECE_BYTES ((size_t)256 << 10)

/* A bundle on its way out. */
typedef struct bl_outgoing {
    uint64_t term, hash;
    int wave, move, attempt, to, round, layer, expert;
    size_t offset;
} bl_outgoing;

/* A bundle on its way in. */
typedef struct bl_incoming {
    int move, attempt, spare;
    size_t received;
    /* By rounds the source's hash comes by itself, before or after the bytes. */
    bool has_hash;
    uint64_t hash_source, hash_here;
    bl_hasher *hasher; /* of what has been received */
} bl_incoming;

/* A part of a bundle in the group under way. */
typedef struct bl_slice {
    int move;
    bool leaves;
    size_t offset, bytes;
} bl_slice;

typedef struct bl_agent_rounds {
    bool offered; /* by the transport: bundles go by rounds */
    size_t chunk; /* a bundle goes in chunks of this size */
    int beats;    /* in one group */
    uint64_t term;
    int wave;    /* of this wave of this term (0: of none) */
    int next;    /* groups before this one are done with here */
    bool posted; /* the one before `next` is under way */
    int n_slices;
    bl_slice slices[BL_ROUND_PARTS];
    bl_hasher *hasher; /* of the bundle that leaves */
    unsigned char
        *stage;   /* on the store's device: [2 * beats][chunk], from and to engine's memory */
    int64_t sent; /* bytes in this step */
} bl_agent_rounds;

struct bl_agent {
    bl_store *store;
    bl_transport *transport;
    bl_agent_options options;
    int rank, n_ranks, n_spares;
    int n_layers;
    int *layers;          /* [n_layers] */
    int *spares;          /* [n_ranks], all n_spares */
    bl_schedule schedule; /* of the move under way or the last one; borrowed by the transaction */
    unsigned char *goal;  /* what travels with PREPARE; NULL where this rank does not lead */
    size_t goal_bytes;
    bl_transaction tx;
    bl_tx_actions actions;
    /* consequences of actions, fed back when all actions of the event are done */
    bool failed;
    char reason[BL_TX_REASON];
    bool *gone; /* [n_ranks] peers to report as lost */
    bool any_gone;
    bool held; /* answer to STEP */
    bool recovering;
    const char *refusal; /* why it takes part in no move; NULL: it does */
    bl_outgoing *streams;
    size_t n_streams, streams_capacity;
    bl_incoming landings[BL_WAVE_MAX_ARRIVALS];
    int n_landings;
    unsigned char *piece;  /* [BL_WIRE_CHUNK_BYTES + BL_AGENT_PIECE_BYTES] */
    int64_t *to_peer;      /* [n_ranks] bytes sent in this step */
    bl_agent_status stats; /* its last part */
    double *distance;      /* [n_ranks][n_ranks] or NULL */
    bl_agent_hear_fn *hear;
    void *hear_user;
    uint64_t began_ns, last_begin_ns; /* of the move; of a step */
    bl_agent_rounds rounds;
};

/* An action could not be carried out: the transaction is told when all actions of its event are done. */
void bl_agent_fail(bl_agent *agent, const bl_error *err);
/* A peer that cannot be reached is reported as lost, anything else that fails as a failed action. */
void bl_agent_send(bl_agent *agent, int to, bl_channel channel, const void *data, size_t bytes);
/* An event for the transaction, and everything that follows from carrying out its actions. */
void bl_agent_feed(bl_agent *agent, const bl_tx_event *event);

/* ---- experts as messages --------------------------------------------------------------------- */

/* Begin to send what BL_TX_ACT_STREAM asks for. */
void bl_agent_stream(bl_agent *agent, const bl_tx_action *action);
/* What may leave in this step. */
void bl_agent_send_pieces(bl_agent *agent);
/* A message of channel MOVE. */
void bl_agent_take_piece(bl_agent *agent, const bl_message *arrived);
/* The bundle of a move is complete, and so is what is known of it. */
void bl_agent_landed(bl_agent *agent, const bl_incoming *at);

/* ---- experts by rounds -----------------------------------------------------------------------
 *
 * Everybody has the schedule, so nobody has to ask. A wave's moves are ordered in rounds in which a rank
 * sends at most one bundle and receives at most one. A round goes in chunks, one *beat* each:
 *
 *     round 0        chunk 0   chunk 1   chunk 2     round 1        chunk 0 ...
 *     beat              0         1         2                          3
 *     group         [   0  ,      1   ] [   2     ,                    3   ] ...    with 2 beats each
 *
 * and the beats in *groups* of as many as a rank may send in a step. Each rank posts, in order, the
 * groups in which it has a part, at most one per step and the next one when that is done, and when those
 * who get something from it have asked (FETCH), that is, have begun the wave. What it posts follows from the wave, the size of a bundle, that of a chunk and the beats in a group, all of which
 * are in the hash that the ranks compare before a move starts.
 *
 * The bytes go from the expert's buffer to the spare, on whatever device the store is; from and to an
 * engine's own memory they are copied on it. Both ends hash what passes, chunk by chunk, so that no step reads a
 * whole bundle; after the last chunk the source sends its hash in the head of a piece without bytes. A
 * bundle that is damaged is sent again by messages: only its two ranks know of that.
 *
 * A wave that ends in another way than by its commit breaks the communicator off on every rank, before
 * its buffers are given back: what is posted somewhere might never be elsewhere. The leader names a new
 * one with the next move. */

bl_status bl_agent_rounds_open(bl_agent *agent, bl_error *err);
void bl_agent_rounds_close(bl_agent *agent);
/* The hash of a schedule with what else the ranks must agree on. */
uint64_t bl_agent_rounds_agree(const bl_agent *agent, uint64_t hash);
/* Leader: the goal as it travels (owned by the caller) with the communicator's name behind it. */
bl_status bl_agent_rounds_name(bl_agent *agent, unsigned char **goal, size_t *bytes, bl_error *err);
/* What has arrived: *bytes of a goal, and the name behind it; NULL when bundles go by messages. */
bl_status bl_agent_rounds_cut(const bl_agent *agent, const unsigned char *goal, size_t *bytes,
                              const unsigned char **name, bl_error *err);
/* Join what is named behind it; the last thing before this rank agrees. */
bl_status bl_agent_rounds_join(bl_agent *agent, const bl_tx_message *message,
                               const unsigned char *name, bl_error *err);
/* Look at the group under way, and take what it has brought. */
void bl_agent_rounds_poll(bl_agent *agent);
/* Once per step, after that: post the next one. */
void bl_agent_rounds_post(bl_agent *agent);
/* Before a commit: nothing may leave its buffers any more. */
void bl_agent_rounds_settle(bl_agent *agent);
/* Break off. False: buffers are still written to and must not be used again. */
bool bl_agent_rounds_leave(bl_agent *agent);

#endif
