/*
 * transport_ops.h: the seam between the transport and its back ends.
 *
 * transport.c holds all that is the same everywhere: the wait for a message, its mark, the errors,
 * the counters. A back end moves bytes: it fills this rank's mailroom, says how to sleep until
 * something changed, and sends. Its handle starts with a struct bl_transport. All hooks but
 * `round`, `rounds`, `now` and those of ranks that come back are required.
 */
#ifndef BL_RUNTIME_TRANSPORT_OPS_H
#define BL_RUNTIME_TRANSPORT_OPS_H

#include "runtime/mailbox.h"

struct bl_part;

/* Rounds that do not wait; the hooks are those of runtime/round.h, with arguments that are checked. */
typedef struct bl_round_ops {
    bl_status (*name)(bl_transport *transport, const bool *members, unsigned char *name,
                      bl_error *err);
    bl_status (*join)(bl_transport *transport, const bool *members, const unsigned char *name,
                      bl_error *err);
    bl_status (*post)(bl_transport *transport, const struct bl_part *parts, int n_parts,
                      bl_error *err);
    bl_status (*poll)(bl_transport *transport, bool *done, bl_error *err);
    bl_status (*leave)(bl_transport *transport, bl_error *err);
} bl_round_ops;

typedef struct bl_transport_ops {
    const char *name;

    /* Bracket every look at the mailroom: lock it, or bring it up to date. */
    void (*enter)(bl_transport *transport);
    void (*leave)(bl_transport *transport);

    /* Inside the brackets: sleep until the mailroom may have changed or until `until_s` on the
     * transport's clock. May return early. A failure ends the wait for which it was called. */
    bl_status (*sleep)(bl_transport *transport, double until_s, bl_error *err);

    /* Inside the brackets: a message of this weight was taken from (peer, channel), so that its
     * sender may have room again. */
    void (*taken)(bl_transport *transport, int peer, bl_channel channel, size_t weight);

    /* Outside the brackets: send to another rank. */
    bl_status (*send)(bl_transport *transport, int peer, bl_channel channel, uint64_t mark,
                      const void *data, size_t bytes, bl_error *err);

    /* Optional: carry out a round (runtime/round.h), whose parts are checked. Without it rounds go as
     * messages. */
    bl_status (*round)(bl_transport *transport, const struct bl_part *parts, int n_parts,
                       bl_error *err);

    const bl_round_ops *rounds; /* optional */

    /* Optional: the transport's own clock, in seconds. Without it, that of bl_now_s(). */
    double (*now)(const bl_transport *transport);

    /* Where ranks can come back; inside the brackets: a living peer is to be lost; optional, too, one that
     * knocks is about to live. */
    void (*give_up)(bl_transport *transport, int peer);
    void (*let_in)(bl_transport *transport, int peer);

    /* Optional: see bl_transport_directory(). */
    bl_status (*directory)(bl_transport *transport, char **text_p, bl_error *err);

    /* Close and free the handle; `orderly` is false when the rank abandons its peers. */
    void (*close)(bl_transport *transport, bool orderly);
} bl_transport_ops;

struct bl_transport {
    const bl_transport_ops *ops;
    int rank, n_ranks;
    double deadline_s;
    double silence_s;                  /* after which an unheard peer is lost; 0: never */
    bl_mailroom *room;                 /* this rank's; owned by the back end */
    uint64_t floor[BL_N_CHANNELS];     /* messages with lower marks are dropped */
    uint64_t self_sent[BL_N_CHANNELS]; /* number of the next message to itself */
    uint64_t sent_bytes[BL_N_CHANNELS], sent_messages[BL_N_CHANNELS];
};

/* The errors that both back ends give when a peer cannot be reached. */
bl_status bl_transport_fail_gone(const bl_transport *transport, int peer, bl_peer_state state,
                                 bl_error *err);
bl_status bl_transport_fail_full(const bl_transport *transport, int peer, bl_channel channel,
                                 bl_error *err);

#endif
