/*
 * round.h: many large transfers at once, known to everybody beforehand.
 *
 * A plan's schedule says who sends what to whom; nobody has to ask. Such a *round* is a list of parts
 * which all ranks that take part in it hand in alike, in the same order, each with its own pointers:
 *
 *     part 0   rank 0 -> rank 1   44 MiB        rank 0: source   rank 1: target   rank 2: nothing
 *     part 1   rank 2 -> rank 0   44 MiB
 *     part 2   rank 1 -> rank 2   20 MiB
 *
 * It is carried out in *groups*: BL_ROUND_PARTS parts next to each other in the list, BL_ROUND_CHUNK
 * bytes of each, one group after the other,
 *
 *     group 0   chunk 0 of parts 0 .. 15
 *     group 1   chunk 1 of parts 0 .. 15, those that are longer than one chunk
 *     ...
 *     group g   chunk 0 of parts 16 .. 31
 *
 * an order that follows from the list alone. NCCL needs that: what one side issues the other must issue
 * too, in the same order and size, or both hang. Transports made of messages carry a round over their
 * channel MOVE, marked with the round's mark, its part and its chunk, so that a rank with another list
 * is found out as well.
 */
#ifndef BL_RUNTIME_ROUND_H
#define BL_RUNTIME_ROUND_H

#include "runtime/transport.h"

#define BL_ROUND_PARTS 16
#define BL_ROUND_CHUNK ((size_t)4 << 20)

typedef struct bl_part {
    int from, to; /* may be the same rank */
    size_t bytes;
    const void *source; /* looked at by `from` alone */
    void *target;       /* looked at by `to` alone; neither may overlap another part's */
} bl_part;

/* Carry out a round. `mark` numbers rounds, below 2^16. Returns when this rank's targets are filled and
 * its sources free. Failures name a rank: BL_ERR_PEER one that is lost, BL_ERR_TIMEOUT one that a
 * group waited for longer than the transport's deadline, BL_ERR_STATE one that has another list. Then
 * targets hold anything. */
bl_status bl_transport_round(bl_transport *transport, const bl_part *parts, int n_parts,
                             uint64_t mark, bl_error *err);

/* ---- rounds that do not wait -----------------------------------------------------------------
 *
 * A step of an engine must not stand still for a transfer. Where rounds go beside messages (NCCL), a
 * rank can *post* a group, go on with its step, and *poll* at the next one. What it does, in the order
 * in which it does it:
 *
 *     leading rank:  name ----- the name, over messages -----> everybody:  join     a communicator
 *     everybody:     poll until done                                                is made
 *                    post, poll until done, post, poll until done ...               groups, by a list
 *                                                                                   all have alike
 *     everybody:     leave, when any of them may stand still                        abort
 *
 * Nothing below waits for another rank. Each pair of ranks posts what goes between them in one order
 * and in the same groups. A rank that has posted what its partner never does stands still until it
 * leaves, and so do the ranks that wait for it: whoever finds out must tell all to leave. Only then a
 * new name brings them together again; the old one is spent. */

#define BL_ROUND_NAME_BYTES 128

/* Whether this transport can do that. Without it all calls below but leave are BL_ERR_UNSUPPORTED. */
bool bl_rounds_are_offered(const bl_transport *transport);

/* A name for a communicator of members[n_ranks], for one rank to ask and to tell the others: that of
 * the one in use when it has these members and is whole, else a new one. */
bl_status bl_rounds_name(bl_transport *transport, const bool *members,
                         unsigned char name[BL_ROUND_NAME_BYTES], bl_error *err);

/* Begin to join it, leaving another one; done when a poll says so. Nothing happens when it is the one in
 * use. BL_ERR_STATE: this rank has left the one of that name. */
bl_status bl_rounds_join(bl_transport *transport, const bool *members,
                         const unsigned char name[BL_ROUND_NAME_BYTES], bl_error *err);

/* Issue one group, after a poll that was done: parts[n_parts], at most BL_ROUND_PARTS, of at most
 * BL_ROUND_CHUNK bytes; those of other ranks are passed over. Buffers are borrowed until it is done. */
bl_status bl_rounds_post(bl_transport *transport, const bl_part *parts, int n_parts, bl_error *err);

/* *done: nothing is under way any more. A failure, as of bl_transport_round(), has left. */
bl_status bl_rounds_poll(bl_transport *transport, bool *done, bl_error *err);

/* Break off what is under way; on return nothing touches its buffers. BL_ERR_TIMEOUT: the device does
 * not come to rest, and they must not be used again. Fine without a communicator. */
bl_status bl_rounds_leave(bl_transport *transport, bl_error *err);

/* ---- for those who carry rounds out ---------------------------------------------------------- */

/* One group: chunk `chunk` of parts[first .. last). */
typedef struct bl_group {
    int first, last;
    uint64_t chunk;
} bl_group;

/* The first group, and the next; false after the last. */
bl_group bl_group_first(void);
bool bl_group_next(const bl_part *parts, int n_parts, bl_group *group);

/* Bytes of a part in a chunk; 0: it has no such chunk. */
static inline size_t bl_part_chunk_bytes(const bl_part *part, uint64_t chunk) {
    const uint64_t done = chunk * BL_ROUND_CHUNK;
    if (part->bytes <= done)
        return 0;
    return part->bytes - done < BL_ROUND_CHUNK ? part->bytes - (size_t)done : BL_ROUND_CHUNK;
}

#endif
