/*
 * agent_parts.h: what the files of the agent share: agent.c (the transaction's hands) and
 * agent_pieces.c (experts as messages).
 */
#ifndef BL_REBALANCER_AGENT_PARTS_H
#define BL_REBALANCER_AGENT_PARTS_H

#include "rebalancer/agent.h"
#include "rebalancer/messages.h"

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
} bl_incoming;

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

#endif
