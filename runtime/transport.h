/*
 * transport.h: messages between the ranks of a cluster.
 *
 * A transport connects ranks 0 .. n_ranks-1 and delivers messages in order per (peer, channel),
 * each exactly once, or says that the peer is lost. There are no tags and no wildcard waits inside
 * the back ends: a message lands in the mailbox of its (peer, channel), and the receiver asks for
 * the next one, stating the sequence mark it expects. A mark that does not match is
 * BL_ERR_STATE: the ranks have fallen out of step, which must be seen at once and not as garbage.
 *
 *     channel STEP      the engine's dispatch, combine and step exchange, in lockstep
 *     channel MOVE      chunks of expert bundles on their way to another rank
 *     channel CONTROL   the rebalancer's transaction
 *
 * Threads: one handle belongs to one thread (its rank). A rank may send to itself.
 * Back ends: transport_local.c (ranks are threads of one process), transport_ucx.c (processes).
 */
#ifndef BL_RUNTIME_TRANSPORT_H
#define BL_RUNTIME_TRANSPORT_H

#include "core/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum bl_channel {
    BL_CHANNEL_STEP,
    BL_CHANNEL_MOVE,
    BL_CHANNEL_CONTROL,
    BL_N_CHANNELS
} bl_channel;

typedef struct bl_message {
    int from;
    uint64_t mark;       /* sequence mark given by the sender */
    size_t bytes;
    unsigned char *data; /* aligned to 16; owned by the receiver until bl_message_free() */
} bl_message;

typedef struct bl_transport bl_transport;

int bl_transport_rank(const bl_transport *transport);
int bl_transport_n_ranks(const bl_transport *transport);
const char *bl_transport_name(const bl_transport *transport); /* "local", "ucx" */

/* Send to `peer`; the buffer may be reused on return. Blocks only while the peer's link is full and
 * never longer than the transport's deadline. BL_ERR_PEER names a lost rank. */
bl_status bl_transport_send(bl_transport *transport, int peer, bl_channel channel, uint64_t mark,
                            const void *data, size_t bytes, bl_error *err);

/* Wait for the next message of (peer, channel) and require its mark. Past `deadline_s` seconds:
 * BL_ERR_TIMEOUT naming the rank waited for. */
bl_status bl_transport_receive(bl_transport *transport, int peer, bl_channel channel,
                               uint64_t mark, double deadline_s, bl_message *out, bl_error *err);

/* Take the next message of a channel from whichever peer has one, without waiting; *got tells. */
bl_status bl_transport_poll(bl_transport *transport, bl_channel channel, bl_message *out,
                            bool *got, bl_error *err);

void bl_message_free(bl_message *message); /* safe on a zeroed struct */

/* First rank known to be lost, or -1. */
int bl_transport_lost(const bl_transport *transport);

/* Bytes and messages sent so far, over all channels or one (channel -1: all). */
uint64_t bl_transport_sent_bytes(const bl_transport *transport, int channel);
uint64_t bl_transport_sent_messages(const bl_transport *transport, int channel);

/* Closes in order: flushes what was sent, tells the peers, frees. NULL is fine. */
void bl_transport_close(bl_transport *transport);

/* ---- back ends ---------------------------------------------------------------------------- */

/* n_ranks connected handles in one process: handles[0 .. n_ranks-1]. Each is closed on its own. */
bl_status bl_transport_local_open(int n_ranks, bl_transport **handles, bl_error *err);

typedef struct bl_ucx_options {
    int rank, n_ranks;
    const char *rendezvous; /* "host:port" of rank 0's meeting point */
    int rendezvous_fd;      /* >= 0: a listening socket inherited by rank 0; else it binds itself */
    double deadline_s;      /* for connecting, and for a send on a full link */
} bl_ucx_options;

bl_status bl_transport_ucx_open(const bl_ucx_options *options, bl_transport **out, bl_error *err);

#endif
