/*
 * exchange.h: what all ranks of a cluster do together, in lockstep.
 *
 * Every rank calls the same exchanges in the same order. Each exchange takes the next number of a
 * running sequence, and that number with the kind of exchange is the mark of its messages: a rank
 * that skipped one, or calls another one, is found out at the first message (BL_ERR_STATE).
 *
 *     allgather   rank r gives one block of B bytes; all get the blocks in rank order
 *
 *                   [a] [b] [c]   ->   [abc] [abc] [abc]
 *
 *     alltoallv   rank r gives one list per rank, of any length, also none; all get theirs
 *
 *                   r0: to0 to1 to2        r0: from0 from1 from2
 *                   r1: to0 to1 to2   ->   r1: from0 from1 from2
 *                   r2: to0 to1 to2        r2: from0 from1 from2
 *
 * Messages go over BL_CHANNEL_STEP, which nobody else may use meanwhile. A rank's part for itself
 * is copied and crosses no link. The loss of any rank ends an exchange for all (BL_ERR_PEER naming
 * it), and a rank that does not come is named when the deadline passes (BL_ERR_TIMEOUT). After a
 * failure the sequence is broken: the ranks must agree on where to go on before they exchange
 * again (bl_exchange_restart()).
 *
 * Ranks that are known to be lost can be left out: nothing is sent to them, their block is zeros, and
 * their part of an alltoallv is what this rank would have sent to them (so that a format in which
 * that says "nothing" needs no exception).
 */
#ifndef BL_RUNTIME_EXCHANGE_H
#define BL_RUNTIME_EXCHANGE_H

#include "runtime/transport.h"

typedef struct bl_exchange {
    bl_transport *transport; /* borrowed */
    uint64_t sequence;       /* number of exchanges so far */
    double deadline_s;       /* of one exchange */
    const bool *lost;        /* [n_ranks] to be left out; borrowed; NULL: none */
} bl_exchange;

static inline bl_exchange bl_exchange_over(bl_transport *transport, double deadline_s) {
    return (bl_exchange){transport, 0, deadline_s, NULL};
}

/* Go on with exchange number `sequence`, on which all ranks that are not lost have agreed, and which
 * is later than any of them has reached. What is left of earlier ones is dropped. */
void bl_exchange_restart(bl_exchange *exchange, uint64_t sequence, const bool *lost);

/* all[rank * block_bytes ..] = the block of each rank. `mine` may be its own place in `all`. Blocks
 * of different sizes are BL_ERR_SHAPE. */
bl_status bl_exchange_allgather(bl_exchange *exchange, const void *mine, size_t block_bytes,
                                void *all, bl_error *err);

/* What goes to one rank; data is borrowed for the call and may be NULL when bytes is 0. */
typedef struct bl_outgoing {
    const void *data;
    size_t bytes;
} bl_outgoing;

/* outgoing[n_ranks] to each, incoming[n_ranks] from each. On success the caller owns the messages
 * (bl_exchange_release); on failure all are zeroed and freed. */
bl_status bl_exchange_alltoallv(bl_exchange *exchange, const bl_outgoing *outgoing,
                                bl_message *incoming, bl_error *err);

/* Frees n messages. */
void bl_exchange_release(bl_message *messages, int n);

#endif
