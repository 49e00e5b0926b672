/*
 * transport_ucx.h: what the parts of the UCX back end share: opening (transport_ucx_open.c), the life of
 * an open connection (transport_ucx.c), large messages inside one host (transport_ucx_near.c) and ranks
 * that come back (transport_ucx_back.c).
 *
 * Every pair of ranks has one UCX endpoint in peer-error mode; all that is said goes as active
 * messages of one id with the head below. UCX may deliver a small message before a large one that
 * was sent earlier, so each message of a link carries its number and the mailbox sorts.
 *
 *     HELLO     the first thing each side of a new connection says; a rank that comes back says with it
 *               which incarnation it is, and its card
 *     DATA      a message of a channel
 *     OFFER     a large message of a channel, to be read out of the sender's memory
 *     NEAR_DONE, NEAR_REFUSED   it was read; it cannot be
 *     TAKEN     how much weight of a channel the receiver has given out so far: room on the link
 *     BYE       the last thing a closing rank says: how many messages it sent per channel, and whom it
 *               has lost, for that may be why it goes
 *     BYE_TAKEN all of them have arrived: the closing rank may go
 *
 * Nothing is done inside UCX's callbacks but noting what happened; settle() acts on the notes.
 */
#ifndef BL_RUNTIME_TRANSPORT_UCX_H
#define BL_RUNTIME_TRANSPORT_UCX_H

#include "runtime/pulse.h"
#include "runtime/rendezvous.h"
#include "runtime/transport_ops.h"

#include <stdatomic.h>
#include <sys/types.h>
#include <ucp/api/ucp.h>

#define BL_UCX_MESSAGE_ID 7u

typedef enum bl_ucx_kind {
    BL_UCX_HELLO,
    BL_UCX_DATA,
    BL_UCX_OFFER,
    BL_UCX_NEAR_DONE,
    BL_UCX_NEAR_REFUSED,
    BL_UCX_TAKEN,
    BL_UCX_BYE,
    BL_UCX_BYE_TAKEN,
    BL_UCX_N_KINDS
} bl_ucx_kind;

typedef struct bl_ucx_head {
    uint16_t kind, channel; /* channel: of DATA, OFFER, its answers, and TAKEN */
    int32_t from;
    uint64_t number; /* TAKEN: weight given out so far; others: of the message on its link */
    uint64_t mark;
    uint64_t bytes;
} bl_ucx_head;

typedef struct bl_ucx_bye {
    uint64_t counts[BL_N_CHANNELS];
    int64_t lost; /* a rank, or -1 */
} bl_ucx_bye;

/* Of a rank that comes back. */
typedef struct bl_ucx_return {
    uint64_t incarnation;
    bl_peer_card card;
} bl_ucx_return;

/* Where the bytes of an OFFER are, in the sender's memory, and the stamp that says they are still what
 * was offered. */
typedef struct bl_ucx_offer {
    uint64_t data, stamp_at, stamp;
} bl_ucx_offer;

typedef enum bl_ucx_near_answer {
    BL_UCX_NEAR_OPEN,
    BL_UCX_NEAR_IS_DONE,
    BL_UCX_NEAR_IS_REFUSED
} bl_ucx_near_answer;

/* One peer's side of the links with it. */
typedef struct bl_ucx_peer {
    struct bl_ucx *owner;
    int rank;
    ucp_ep_h endpoint;          /* NULL before connecting and after closing */
    ucp_conn_request_h request; /* it knocked: to be accepted by settle(), or NULL */
    bool has_spoken;            /* its HELLO has come */
    bool has_failed;            /* UCX says so, or we gave it up: endpoint to be closed */
    bool says_bye, bye_settled; /* its BYE has come; and all it announced, and that was answered */
    bool bye_taken;             /* it has all we sent */
    int n_fetching;             /* messages that UCX is still bringing into its mailbox */
    bl_peer_card card;          /* where it is reached */
    uint64_t incarnation;       /* 0: it never came back */
    bl_ucx_return back;         /* of the one that knocks */
    bl_ucx_bye bye;
    struct {
        bool is_usable; /* it runs on this host, and nothing has been refused so far */
        pid_t pid;
        _Atomic uint64_t stamp; /* of the offer that stands, read by the peer; 0: none */
        uint64_t last_stamp;
        bl_ucx_near_answer answer; /* to that offer */
    } near;
    struct {
        uint64_t sent_number, sent_weight, taken_weight; /* what we sent, what it has given out */
        uint64_t arrived;                                /* complete messages from it */
        uint64_t given_weight, told_weight; /* what we gave out of its, and have told it */
    } link[BL_N_CHANNELS];
} bl_ucx_peer;

/* An offer that was heard, to be fetched by settle(). */
typedef struct bl_ucx_fetch {
    struct bl_ucx_fetch *next;
    bl_ucx_peer *peer;
    bl_ucx_head head;
    bl_ucx_offer offer;
} bl_ucx_fetch;

typedef struct bl_ucx {
    bl_transport base;
    bl_mailroom room;
    ucp_context_h context;
    ucp_worker_h worker;
    ucp_listener_h listener;
    int event_fd;       /* of the worker: readable when there is something to do */
    bl_ucx_peer *peers; /* [n_ranks]; the own one is unused */
    uint64_t job;
    bl_pulse *pulse;                     /* NULL without a heartbeat */
    bl_ucx_return mine;                  /* incarnation 0: this rank was there from the start */
    bl_ucx_fetch *fetches, **last_fetch; /* in the order heard */
    bool unsettled;                      /* callbacks left something to do */
    bool out_of_memory;                  /* a message could not be stored */
    bool is_closing;                     /* nobody is let in any more */
    int n_in_flight;                     /* requests whose callbacks are still to come */
} bl_ucx;

static inline bl_ucx *bl_ucx_of(bl_transport *transport) {
    return (bl_ucx *)(void *)transport;
}

extern const bl_transport_ops bl_ucx_ops;

/* The handler of all active messages; `arg` is the bl_ucx. */
ucs_status_t bl_ucx_on_message(void *arg, const void *head, size_t head_bytes, void *data,
                               size_t bytes, const ucp_am_recv_param_t *param);

/* The error handler of all endpoints; `arg` is the bl_ucx_peer. */
void bl_ucx_on_failure(void *arg, ucp_ep_h endpoint, ucs_status_t status);

/* Open the endpoint of a peer that knocked, or to an address. */
bl_status bl_ucx_accept(bl_ucx_peer *peer, bl_error *err);

/* Parts of opening. `local`: the device, without port. */
uint64_t bl_ucx_client_id(const bl_ucx *ucx, int rank);
bl_status bl_ucx_make(const bl_ucx_options *options, bl_ucx **out, bl_error *err);
bl_status bl_ucx_open_worker(bl_ucx *ucx, uint64_t client_id, bl_error *err);
bl_status bl_ucx_listen(bl_ucx *ucx, const struct sockaddr_storage *local, socklen_t local_bytes,
                        uint16_t *port, bl_error *err);
bl_status bl_ucx_connect_to(bl_ucx_peer *peer, const struct sockaddr_storage *address,
                            bl_error *err);
/* Wait until all have spoken, but those that are lost. */
bl_status bl_ucx_await_hellos(bl_ucx *ucx, double until_s, bl_error *err);
/* Peers' cards and incarnations are known: near memory, heartbeat. */
bl_status bl_ucx_use_cards(bl_ucx *ucx, bl_error *err);

/* Coming back (transport_ucx_back.c): by what such a rank shows itself; whether a peer may come back now;
 * forget what its predecessor left; take its HELLO; hooks of the transport. */
uint64_t bl_ucx_return_id(const bl_ucx *ucx, int rank);
bool bl_ucx_may_return(const bl_ucx_peer *peer);
void bl_ucx_renew_peer(bl_ucx_peer *peer);
void bl_ucx_on_return(bl_ucx_peer *peer, const void *data, size_t bytes);
void bl_ucx_let_in(bl_transport *transport, int rank);
void bl_ucx_give_up(bl_transport *transport, int rank);
bl_status bl_ucx_directory(bl_transport *transport, char **text_p, bl_error *err);

/* Queue a message without payload, or with a small one. */
void bl_ucx_say_with(bl_ucx_peer *peer, bl_ucx_kind kind, const void *data, size_t bytes);

/* Let UCX work and act on what its callbacks noted. */
void bl_ucx_progress(bl_ucx *ucx);

/* Sleep until there may be something new or until `until_s`. */
void bl_ucx_sleep(bl_ucx *ucx, double until_s);

/* Queue a message without payload. */
void bl_ucx_say(bl_ucx_peer *peer, bl_ucx_kind kind, bl_channel channel, uint64_t number);

/* A complete message from a peer goes into its mailbox. */
void bl_ucx_deliver(bl_ucx_peer *peer, bl_envelope *envelope, int channel);

/* Inside one host (transport_ucx_near.c): make an offer of `data`, which stands until it is answered or
 * withdrawn; hear one (false: no memory); and fetch what has been offered, outside UCX's callbacks. */
bl_ucx_offer bl_ucx_near_offer(bl_ucx_peer *peer, const void *data);
void bl_ucx_near_withdraw(bl_ucx_peer *peer);
bool bl_ucx_near_note(bl_ucx_peer *peer, const bl_ucx_head *head, const bl_ucx_offer *offer);
void bl_ucx_near_fetch_all(bl_ucx *ucx);
void bl_ucx_near_drop_all(bl_ucx *ucx);

/* Force all endpoints shut, wait for what is in flight to be called back, free everything. Takes a
 * half-built handle. */
void bl_ucx_destroy(bl_ucx *ucx);

#endif
