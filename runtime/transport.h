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
 *  rank 0                                   rank 1
 *    send(1, MOVE, mark 7) --- link ----->  [MOVE  from 0: 7]   receive(0, MOVE, 7)
 *    send(1, STEP, mark 3) --- link ----->  [STEP  from 0: 3]   receive(0, STEP, 3)
 *
 * A *link* is one (sender, receiver, channel). It holds at most BL_LINK_BYTES that the receiver has
 * not taken; a full link holds its sender back, and only that link: bulk on MOVE never delays STEP.
 *
 * A peer *closes* (bl_transport_close: all it sent is still delivered, then it is gone) or is
 * *lost* (it died, or gave up with bl_transport_abandon). Both end in BL_ERR_PEER for whoever waits
 * for it or sends to it, with its number in the message; only the second counts as lost. The others
 * go on. Between processes a heartbeat finds those that were stopped or cut off; a rank that runs but
 * does not get on is noticed by deadlines alone.
 *
 * Threads: one handle belongs to one thread (its rank). A rank may send to itself.
 * Back ends: transport_local.c (ranks are threads of one process), transport_sim.c (threads, with
 * virtual time and faults), transport_ucx.c (processes), transport_nccl.c (GPUs: large transfers that
 * all ranks know of, runtime/round.h, over NCCL, messages over another transport).
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

/* What a link holds. A single message may be larger; it then waits for the link to drain. */
#define BL_LINK_BYTES ((size_t)32 << 20)

/* How long a send waits on a full link when nobody said otherwise. */
#define BL_TRANSPORT_DEADLINE_S 60.0

/* Within what time a rank that was stopped, or cut off, is lost to the others. */
#define BL_TRANSPORT_SILENCE_S 3.0

typedef struct bl_message {
    int from;
    uint64_t mark; /* sequence mark given by the sender */
    size_t bytes;
    unsigned char *data; /* aligned to 64, not NULL even when empty; owned by the receiver until
                            bl_message_free() */
} bl_message;

typedef struct bl_transport bl_transport;

int bl_transport_rank(const bl_transport *transport);
int bl_transport_n_ranks(const bl_transport *transport);
const char *bl_transport_name(const bl_transport *transport); /* "local", "ucx", ... */

/* Seconds on the clock by which this transport's waits are timed: bl_now_s(), or virtual time. */
double bl_transport_now_s(const bl_transport *transport);

/* Seconds a send may wait on a full link, and close for its peers; > 0. */
void bl_transport_set_deadline(bl_transport *transport, double seconds);

/* Send to `peer`; the buffer may be reused on return. Blocks only while the peer's link is full, or
 * while a message too large to be copied aside is being taken by the peer, and never longer than
 * the transport's deadline: BL_ERR_TIMEOUT. BL_ERR_PEER names a rank that closed or was lost. A
 * peer that stops in the middle of a large message counts as lost from then on. */
bl_status bl_transport_send(bl_transport *transport, int peer, bl_channel channel, uint64_t mark,
                            const void *data, size_t bytes, bl_error *err);

/* Wait for the next message of (peer, channel) and require its mark. Past `deadline_s` seconds
 * (0: do not wait): BL_ERR_TIMEOUT naming the rank waited for. Another mark: BL_ERR_STATE, and the
 * message stays where it is. What a peer sent before it closed or was lost is delivered first. */
bl_status bl_transport_receive(bl_transport *transport, int peer, bl_channel channel, uint64_t mark,
                               double deadline_s, bl_message *out, bl_error *err);

/* The same for a wait that is part of a collective: the loss of *any* rank ends it, because a rank
 * that noticed it may have left the collective, and waiting for that one would last until the
 * deadline. */
bl_status bl_transport_receive_whole(bl_transport *transport, int peer, bl_channel channel,
                                     uint64_t mark, double deadline_s, bl_message *out,
                                     bl_error *err);

/* Take the next message of a channel from whichever peer has one, without waiting; *got tells.
 * Peers take turns. */
bl_status bl_transport_poll(bl_transport *transport, bl_channel channel, bl_message *out, bool *got,
                            bl_error *err);

/* The same, asleep for up to `wait_s` seconds until there is one. None having come is no error. */
bl_status bl_transport_await(bl_transport *transport, bl_channel channel, double wait_s,
                             bl_message *out, bool *got, bl_error *err);

void bl_message_free(bl_message *message); /* safe on a zeroed struct */

/* Lowest rank known to be lost and not forgiven, or -1; whether one rank is lost, forgiven or not. */
int bl_transport_lost(bl_transport *transport);
bool bl_transport_is_lost(bl_transport *transport, int rank);
/* Whether a rank has taken its leave in order. */
bool bl_transport_has_closed(bl_transport *transport, int rank);

/* After a loss the others may go on. To forgive a lost rank means that its loss is known: it ends no
 * further collective. A floor on a channel has messages with lower marks dropped where a receive finds
 * them: what was left of a collective that broke off. */
void bl_transport_forgive(bl_transport *transport, int rank);
void bl_transport_set_floor(bl_transport *transport, bl_channel channel, uint64_t mark);

/* A rank that was lost may come back: a new process, or in a simulation the same thread, takes its
 * number and connects to all who live, as a new *incarnation* with a number of its own. To them it goes
 * on being lost until each lets it in; until then nothing can be sent to it, and what it sends waits.
 * All of its predecessor's messages are gone by then. */

/* The incarnation that waits to be let in as this lost rank; 0: none does. */
uint64_t bl_transport_knocking(bl_transport *transport, int rank);
/* From now on it lives again, if it still waits; else its loss counts anew, unforgiven. */
void bl_transport_let_in(bl_transport *transport, int rank);
/* A living rank is lost from now on, and learns that it is. */
void bl_transport_give_up(bl_transport *transport, int rank);

/* Where the ranks that live can be reached, for one that comes back: hexadecimal digits, the caller's
 * (free). Whoever has them can join. BL_ERR_UNSUPPORTED: ranks cannot come back over this transport. */
bl_status bl_transport_directory(bl_transport *transport, char **text_p, bl_error *err);

/* Bytes and messages sent to other ranks so far (what a rank sends itself crosses no link), over
 * one channel or all (channel -1). */
uint64_t bl_transport_sent_bytes(const bl_transport *transport, int channel);
uint64_t bl_transport_sent_messages(const bl_transport *transport, int channel);

/* Closes in order: flushes what was sent, tells the peers, frees. Peers that do not take what was
 * sent to them are waited for up to the deadline. NULL is fine. */
void bl_transport_close(bl_transport *transport);

/* Closes as a crash would, for a rank that cannot go on: the peers see it as lost at once, and what
 * was on its way may be lost with it. NULL is fine. */
void bl_transport_abandon(bl_transport *transport);

/* ---- back ends ---------------------------------------------------------------------------- */

/* n_ranks connected handles in one process: handles[0 .. n_ranks-1]. Each is closed on its own. */
bl_status bl_transport_local_open(int n_ranks, bl_transport **handles, bl_error *err);

typedef struct bl_ucx_options {
    int rank, n_ranks;
    const char *rendezvous; /* "host:port" of rank 0's meeting point */
    int rendezvous_fd;      /* >= 0: a listening socket inherited by rank 0, which then is closed by
                               open; else rank 0 binds `rendezvous` itself */
    uint64_t job;           /* a number all ranks of a run agree on; others are turned away */
    double deadline_s;      /* for connecting, and then the transport's deadline; > 0 */
    double silence_s; /* a rank unheard of for this long is lost (runtime/pulse.h); 0: never */
} bl_ucx_options;

#define BL_UCX_OPTIONS_INIT \
    ((bl_ucx_options){0, 1, NULL, -1, 0, BL_TRANSPORT_DEADLINE_S, BL_TRANSPORT_SILENCE_S})

/* Meet the other ranks and connect to all of them; returns when every pair has spoken. */
bl_status bl_transport_ucx_open(const bl_ucx_options *options, bl_transport **out, bl_error *err);

/* Come back as options->rank, which is lost to the ranks in whose directory this process has been told:
 * connects to all that live there. Of the options, rank, n_ranks, deadline_s and silence_s count. */
bl_status bl_transport_ucx_come_back(const bl_ucx_options *options, const char *directory,
                                     bl_transport **out, bl_error *err);

/* UCX takes SIGHUP (its UCX_DEBUG_SIGNO) from the moment it is loaded, before main(), and does
 * nothing on it: a terminal that closes would leave everything running. Called first in main(), this
 * gives the signal back the meaning the process was started with. */
void bl_ucx_leave_hangup(void);

/* Fill rank, n_ranks, rendezvous and job from the environment that a launcher sets:
 *
 *     torchrun          RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT, TORCHELASTIC_RUN_ID
 *     mpirun (Open MPI) OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE
 *     mpiexec, srun     PMI_RANK, PMI_SIZE
 *
 * torchrun's own store may occupy MASTER_PORT (TORCHELASTIC_USE_AGENT_STORE=True), then the port above
 * it is used. The MPI launchers name no meeting point: if all ranks are on one host it is a port of the
 * loopback device, else MASTER_ADDR and MASTER_PORT say it. BALLAST_RENDEZVOUS=host:port overrides all
 * of them. `text` holds the meeting point for as long as the options are used. *found is false when
 * none of these launchers started the process. */
bl_status bl_ucx_options_from_env(bl_ucx_options *options, char *text, size_t text_bytes,
                                  bool *found, bl_error *err);

typedef struct bl_nccl_options {
    int device; /* this rank's GPU, as CUDA numbers them */
    int max_ctas; /* blocks of threads that transfers may occupy beside the engine's kernels, 1 to 64 */
    bool join_later; /* no communicator before bl_rounds_join(): opened by each rank for itself, and
                        without memory of the GPU until experts move */
} bl_nccl_options;

#define BL_NCCL_OPTIONS_INIT ((bl_nccl_options){0, 4, false})

/* Give the ranks of `carrier` a communicator of their own for rounds; all call it together, unless they
 * join later. On success the carrier belongs to the new handle, messages go over it, and it is closed with it. A build without
 * NCCL says BL_ERR_UNSUPPORTED. */
bl_status bl_transport_nccl_open(const bl_nccl_options *options, bl_transport *carrier,
                                 bl_transport **out, bl_error *err);

#endif
