/*
 * mailbox.h: where a rank's messages wait, and what it knows of its peers.
 *
 * Inside the transports. A *mailroom* belongs to one rank and holds one mailbox per (channel,
 * peer):
 *
 *              from 0     from 1     from 2
 *     STEP     [5][6]     []         [5]
 *     MOVE     []         [9 10 .]   []          . = announced, its bytes are still on their way
 *     CONTROL  []         [2]        []
 *
 * Each message carries the number its sender gave it on that link (0, 1, 2, ...). A mailbox is kept
 * in that order and gives out a message only when all before it were given out and its bytes are
 * complete, so a back end may announce and complete messages in any order.
 *
 * Nothing here locks: a back end that shares a mailroom between threads does.
 */
#ifndef BL_RUNTIME_MAILBOX_H
#define BL_RUNTIME_MAILBOX_H

#include "runtime/transport.h"

typedef struct bl_envelope {
    struct bl_envelope *next;
    bl_message message;
    uint64_t number; /* on its link, from 0 */
    bool complete;   /* all bytes have arrived */
} bl_envelope;

typedef struct bl_mailbox {
    bl_envelope *first, *last;
    uint64_t next_number; /* of the message to give out next */
    size_t weight;        /* of what waits, in the sense of bl_message_weight() */
} bl_mailbox;

/* Lost: it broke off, or has not been heard of for too long. */
typedef enum bl_peer_state {
    BL_PEER_LIVE,
    BL_PEER_CLOSED,
    BL_PEER_LOST,
    BL_PEER_SILENT
} bl_peer_state;

static inline bool bl_peer_is_lost(bl_peer_state state) {
    return state == BL_PEER_LOST || state == BL_PEER_SILENT;
}

typedef struct bl_mailroom {
    int n_ranks;
    bl_mailbox *boxes;       /* [BL_N_CHANNELS][n_ranks] */
    bl_peer_state *peers;    /* [n_ranks] */
    bool *forgiven;          /* [n_ranks] lost, known, and no longer a reason to end a collective */
    uint64_t *knocking;      /* [n_ranks] incarnation of a lost rank that has come back; 0: none */
    int turn[BL_N_CHANNELS]; /* where the next look around for any peer starts */
} bl_mailroom;

bl_status bl_mailroom_create(int n_ranks, bl_mailroom *out, bl_error *err);
void bl_mailroom_free(bl_mailroom *room); /* with all messages in it; safe on a zeroed struct */

static inline bl_mailbox *bl_mailroom_box(const bl_mailroom *room, bl_channel channel, int peer) {
    return &room->boxes[(int)channel * room->n_ranks + peer];
}

/* What a message counts against BL_LINK_BYTES: its bytes and a share for the envelope, so that
 * empty messages cannot pile up without end. */
static inline size_t bl_message_weight(size_t bytes) {
    return bytes + 128;
}

/* Whether a link on which `waiting` is not yet taken accepts `weight` more. An eighth full still
 * accepts anything: receivers may report what they took in strides of an eighth (BL_LINK_STRIDE),
 * and a message larger than the link must get through too. */
#define BL_LINK_STRIDE (BL_LINK_BYTES / 8)
static inline bool bl_link_accepts(size_t waiting, size_t weight) {
    return waiting < BL_LINK_STRIDE || waiting + weight <= BL_LINK_BYTES;
}

/* An envelope with room for `bytes`; NULL when out of memory. */
bl_envelope *bl_envelope_new(int from, uint64_t number, uint64_t mark, size_t bytes);
void bl_envelope_free(bl_envelope *envelope); /* with its message; NULL is fine */

/* Put an envelope in its place; the mailbox owns it. False, and not taken, when its number was
 * there before. */
bool bl_mailbox_put(bl_mailbox *box, bl_envelope *envelope);

/* The message to give out next, or NULL while there is none or it is not complete; stays inside. */
const bl_message *bl_mailbox_peek(const bl_mailbox *box);

/* Take it out; only after a peek that found one. Returns its weight. */
size_t bl_mailbox_take(bl_mailbox *box, bl_message *out);

/* Forget all of a peer's messages; its links start anew. */
void bl_mailroom_clear_peer(bl_mailroom *room, int peer);

/* Lowest peer that is lost and not forgiven, or -1. */
int bl_mailroom_lost(const bl_mailroom *room);

#endif
