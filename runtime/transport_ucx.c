#include "runtime/transport_ucx.h"

#include "core/progress.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <ucs/type/status.h>

/* Messages up to this size are copied aside and leave in the background; larger ones are sent from
 * the caller's buffer and waited for. The copy costs less than the wait here. */
#define COPY_BYTES ((size_t)64 << 10)

/* How long to look for news before sleeping, yielding the processor between two looks: a wake-up
 * costs more than an answer takes, but where ranks outnumber processors another one needs ours. */
#define SPIN_S 50e-6

/* Between two looks at the deadline while asleep; UCX wakes us for everything else. */
#define NAP_MS 500

/* How long a forced shutdown may take before its remains are left to the end of the process. */
#define DESTROY_S 5.0

/* ---- sending -------------------------------------------------------------------------------- */

/* A message on its way. Freed by its callback, or by the sender that waits for it. */
typedef struct parcel {
    bl_ucx *owner;
    bl_ucx_head head;
    bool is_done, is_waited_for;
    ucs_status_t status;
    unsigned char payload[]; /* of those that are copied aside */
} parcel;

static void on_sent(void *request, ucs_status_t status, void *user) {
    parcel *sent = user;
    sent->owner->n_in_flight--;
    sent->status = status;
    sent->is_done = true;
    if (!sent->is_waited_for)
        free(sent);
    ucp_request_free(request);
}

/* Hand a parcel to UCX; it is freed, now or later, unless it is waited for. */
static void post(bl_ucx_peer *peer, parcel *sent, const void *data, size_t bytes) {
    /* Small ones must leave without the peer's help; UCX would start to ask for it at 8 KiB. */
    ucp_request_param_t param = {
        .op_attr_mask =
            UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS,
        .flags = bytes <= COPY_BYTES ? UCP_AM_SEND_FLAG_EAGER : 0,
        .cb = {.send = on_sent},
        .user_data = sent,
    };
    ucs_status_ptr_t request = UCS_STATUS_PTR(UCS_ERR_CONNECTION_RESET);
    if (peer->endpoint != NULL && !peer->has_failed)
        request = ucp_am_send_nbx(peer->endpoint, BL_UCX_MESSAGE_ID, &sent->head, sizeof sent->head,
                                  data, bytes, &param);
    if (UCS_PTR_IS_PTR(request)) {
        peer->owner->n_in_flight++;
        return;
    }
    sent->status = UCS_PTR_RAW_STATUS(request);
    if (sent->status != UCS_OK)
        bl_ucx_on_failure(peer, peer->endpoint, sent->status);
    sent->is_done = true;
    if (!sent->is_waited_for)
        free(sent);
}

static parcel *parcel_new(bl_ucx *ucx, const bl_ucx_head *head, size_t payload_bytes) {
    parcel *made = malloc(sizeof *made + payload_bytes);
    if (made != NULL)
        *made = (parcel){.owner = ucx, .head = *head, .status = UCS_INPROGRESS};
    return made;
}

/* Send a copy of the payload in the background. */
static bool post_copy(bl_ucx_peer *peer, const bl_ucx_head *head, const void *data, size_t bytes) {
    parcel *sent = parcel_new(peer->owner, head, bytes);
    if (sent == NULL)
        return false;
    if (bytes > 0)
        memcpy(sent->payload, data, bytes);
    post(peer, sent, sent->payload, bytes);
    return true;
}

void bl_ucx_say(bl_ucx_peer *peer, bl_ucx_kind kind, bl_channel channel, uint64_t number) {
    const bl_ucx_head head = {
        .kind = (uint16_t)kind,
        .channel = (uint16_t)channel,
        .from = peer->owner->base.rank,
        .number = number,
    };
    if (!post_copy(peer, &head, NULL, 0))
        peer->owner->out_of_memory = true;
}

void bl_ucx_say_with(bl_ucx_peer *peer, bl_ucx_kind kind, const void *data, size_t bytes) {
    const bl_ucx_head head = {.kind = (uint16_t)kind, .from = peer->owner->base.rank};
    if (!post_copy(peer, &head, data, bytes))
        peer->owner->out_of_memory = true;
}

static bool is_gone(const bl_ucx_peer *peer) {
    return peer->owner->room.peers[peer->rank] != BL_PEER_LIVE;
}

static bl_status fail_gone(const bl_ucx_peer *peer, bl_error *err) {
    return bl_transport_fail_gone(&peer->owner->base, peer->rank,
                                  peer->owner->room.peers[peer->rank], err);
}

static bl_status wait_for_room(bl_ucx_peer *peer, bl_channel channel, size_t weight, double until_s,
                               bl_error *err) {
    bl_ucx *ucx = peer->owner;
    for (;;) {
        if (is_gone(peer))
            return fail_gone(peer, err);
        const uint64_t waiting = peer->link[channel].sent_weight - peer->link[channel].taken_weight;
        if (bl_link_accepts((size_t)waiting, weight))
            return BL_OK;
        if (bl_now_s() >= until_s)
            return bl_transport_fail_full(&ucx->base, peer->rank, channel, err);
        bl_ucx_sleep(ucx, until_s);
    }
}

static bl_status fail_stopped(const bl_ucx_peer *peer, size_t bytes, bl_error *err) {
    return bl_fail(err, BL_ERR_TIMEOUT,
                   "rank %d stopped in the middle of %zu bytes from rank %d for %g s", peer->rank,
                   bytes, peer->owner->base.rank, peer->owner->base.deadline_s);
}

/* Send from the caller's buffer and wait until UCX needs it no more. Receives go on meanwhile, so
 * two ranks may do this to each other. */
static bl_status post_and_wait(bl_ucx_peer *peer, const bl_ucx_head *head, const void *data,
                               size_t bytes, double until_s, bl_error *err) {
    bl_ucx *ucx = peer->owner;
    parcel *sent = parcel_new(ucx, head, 0);
    if (sent == NULL)
        return bl_fail(err, BL_ERR_NOMEM, "out of memory: sending %zu bytes", bytes);
    sent->is_waited_for = true;
    post(peer, sent, data, bytes);
    bl_status st = BL_OK;
    while (!sent->is_done) {
        if (st == BL_OK && bl_now_s() >= until_s) {
            /* The buffer can only be had back by giving up the connection. */
            st = fail_stopped(peer, bytes, err);
            bl_ucx_on_failure(peer, peer->endpoint, UCS_ERR_TIMED_OUT);
        }
        bl_ucx_sleep(ucx, st == BL_OK ? until_s : bl_now_s() + 1);
    }
    if (st == BL_OK && sent->status != UCS_OK)
        st = fail_gone(peer, err);
    free(sent);
    return st;
}

/* Offer the caller's buffer and wait until the peer has read it. *refused: it cannot, nothing was
 * sent. */
static bl_status offer_and_wait(bl_ucx_peer *peer, const bl_ucx_head *head, const void *data,
                                double until_s, bool *refused, bl_error *err) {
    bl_ucx *ucx = peer->owner;
    const bl_ucx_offer offer = bl_ucx_near_offer(peer, data);
    if (!post_copy(peer, head, &offer, sizeof offer))
        return bl_fail(err, BL_ERR_NOMEM, "out of memory: sending %llu bytes",
                       (unsigned long long)head->bytes);
    while (peer->near.answer == BL_UCX_NEAR_OPEN && !is_gone(peer) && bl_now_s() < until_s)
        bl_ucx_sleep(ucx, until_s);
    bl_ucx_near_withdraw(peer);
    *refused = peer->near.answer == BL_UCX_NEAR_IS_REFUSED;
    if (*refused)
        peer->near.is_usable = false;
    if (peer->near.answer != BL_UCX_NEAR_OPEN)
        return BL_OK;
    if (is_gone(peer))
        return fail_gone(peer, err);
    bl_ucx_on_failure(peer, peer->endpoint, UCS_ERR_TIMED_OUT);
    return fail_stopped(peer, (size_t)head->bytes, err);
}

/* A message too large to be copied aside. */
static bl_status send_large(bl_ucx_peer *peer, bl_ucx_head head, const void *data, double until_s,
                            bl_error *err) {
    if (peer->near.is_usable) {
        bool refused;
        head.kind = BL_UCX_OFFER;
        const bl_status st = offer_and_wait(peer, &head, data, until_s, &refused, err);
        if (st < 0 || !refused)
            return st;
        head.kind = BL_UCX_DATA;
    }
    return post_and_wait(peer, &head, data, (size_t)head.bytes, until_s, err);
}

static bl_status ucx_send(bl_transport *transport, int rank, bl_channel channel, uint64_t mark,
                          const void *data, size_t bytes, bl_error *err) {
    bl_ucx *ucx = bl_ucx_of(transport);
    bl_ucx_peer *peer = &ucx->peers[rank];
    const double until_s = bl_now_s() + transport->deadline_s;
    const size_t weight = bl_message_weight(bytes);
    bl_ucx_progress(ucx); /* news of a death or of room */
    BL_TRY(wait_for_room(peer, channel, weight, until_s, err));
    const bl_ucx_head head = {
        .kind = BL_UCX_DATA,
        .channel = (uint16_t)channel,
        .from = transport->rank,
        .number = peer->link[channel].sent_number,
        .mark = mark,
        .bytes = bytes,
    };
    peer->link[channel].sent_number++;
    peer->link[channel].sent_weight += weight;
    if (bytes > COPY_BYTES)
        return send_large(peer, head, data, until_s, err);
    if (!post_copy(peer, &head, data, bytes)) {
        peer->link[channel].sent_number--;
        peer->link[channel].sent_weight -= weight;
        return bl_fail(err, BL_ERR_NOMEM, "out of memory: sending %zu bytes", bytes);
    }
    return is_gone(peer) ? fail_gone(peer, err) : BL_OK;
}

/* ---- receiving ------------------------------------------------------------------------------ */

static void note_arrival(bl_ucx_peer *peer, bl_envelope *envelope, int channel) {
    envelope->complete = true;
    peer->link[channel].arrived++;
    peer->owner->unsettled = true;
}

/* An announced message whose bytes UCX fetches. */
typedef struct fetch {
    bl_ucx_peer *peer;
    bl_envelope *envelope;
    int channel;
} fetch;

/* When it failed the envelope stays incomplete in its mailbox: whoever waits learns of the loss. */
static void on_fetched(void *request, ucs_status_t status, size_t length, void *user) {
    fetch *fetched = user;
    (void)length;
    fetched->peer->owner->n_in_flight--;
    fetched->peer->n_fetching--;
    if (status == UCS_OK)
        note_arrival(fetched->peer, fetched->envelope, fetched->channel);
    free(fetched);
    ucp_request_free(request);
}

static void start_fetch(bl_ucx_peer *peer, bl_envelope *envelope, int channel, void *descriptor) {
    bl_ucx *ucx = peer->owner;
    fetch *fetched = malloc(sizeof *fetched);
    if (fetched == NULL) {
        ucx->out_of_memory = true;
        return;
    }
    *fetched = (fetch){peer, envelope, channel};
    const ucp_request_param_t param = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
        .cb = {.recv_am = on_fetched},
        .user_data = fetched,
    };
    ucs_status_ptr_t request = ucp_am_recv_data_nbx(ucx->worker, descriptor, envelope->message.data,
                                                    envelope->message.bytes, &param);
    if (UCS_PTR_IS_PTR(request)) {
        ucx->n_in_flight++;
        peer->n_fetching++;
        return;
    }
    if (UCS_PTR_RAW_STATUS(request) == UCS_OK)
        note_arrival(peer, envelope, channel);
    free(fetched);
}

static ucs_status_t on_data(bl_ucx_peer *peer, const bl_ucx_head *head, void *data,
                            const ucp_am_recv_param_t *param) {
    bl_ucx *ucx = peer->owner;
    bl_envelope *envelope =
        bl_envelope_new(peer->rank, head->number, head->mark, (size_t)head->bytes);
    bl_mailbox *box = bl_mailroom_box(&ucx->room, (bl_channel)head->channel, peer->rank);
    if (envelope == NULL) {
        ucx->out_of_memory = true;
        return UCS_OK;
    }
    if (!bl_mailbox_put(box, envelope)) { /* a number twice: not a peer we can follow */
        bl_envelope_free(envelope);
        bl_ucx_on_failure(peer, peer->endpoint, UCS_ERR_INVALID_PARAM);
        return UCS_OK;
    }
    if ((param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0) {
        start_fetch(peer, envelope, head->channel, data);
        return UCS_INPROGRESS;
    }
    if (head->bytes > 0)
        memcpy(envelope->message.data, data, (size_t)head->bytes);
    note_arrival(peer, envelope, head->channel);
    return UCS_OK;
}

void bl_ucx_deliver(bl_ucx_peer *peer, bl_envelope *envelope, int channel) {
    if (bl_mailbox_put(bl_mailroom_box(&peer->owner->room, (bl_channel)channel, peer->rank),
                       envelope)) {
        note_arrival(peer, envelope, channel);
        return;
    }
    bl_envelope_free(envelope); /* a number twice: not a peer we can follow */
    bl_ucx_on_failure(peer, peer->endpoint, UCS_ERR_INVALID_PARAM);
}

static void on_offer(bl_ucx_peer *peer, const bl_ucx_head *head, const void *data, size_t bytes) {
    bl_ucx_offer offer;
    if (bytes != sizeof offer)
        return;
    memcpy(&offer, data, bytes);
    if (!bl_ucx_near_note(peer, head, &offer))
        peer->owner->out_of_memory = true;
}

static void on_bye(bl_ucx_peer *peer, const void *data, size_t bytes) {
    if (bytes != sizeof peer->bye)
        return;
    memcpy(&peer->bye, data, bytes);
    peer->says_bye = true;
    peer->owner->unsettled = true;
}

ucs_status_t bl_ucx_on_message(void *arg, const void *head_data, size_t head_bytes, void *data,
                               size_t bytes, const ucp_am_recv_param_t *param) {
    bl_ucx *ucx = arg;
    bl_ucx_head head;
    if (head_bytes != sizeof head)
        return UCS_OK;
    memcpy(&head, head_data, sizeof head);
    if (head.from < 0 || head.from >= ucx->base.n_ranks || head.from == ucx->base.rank ||
        head.channel >= BL_N_CHANNELS)
        return UCS_OK;
    bl_ucx_peer *peer = &ucx->peers[head.from];
    switch (head.kind) {
    case BL_UCX_HELLO:
        peer->has_spoken = true;
        bl_ucx_on_return(peer, data, bytes);
        break;
    case BL_UCX_DATA:
        return bytes == head.bytes ? on_data(peer, &head, data, param) : UCS_OK;
    case BL_UCX_OFFER:
        on_offer(peer, &head, data, bytes);
        break;
    case BL_UCX_NEAR_DONE:
        peer->near.answer = BL_UCX_NEAR_IS_DONE;
        break;
    case BL_UCX_NEAR_REFUSED:
        peer->near.answer = BL_UCX_NEAR_IS_REFUSED;
        break;
    case BL_UCX_TAKEN:
        if (head.number > peer->link[head.channel].taken_weight)
            peer->link[head.channel].taken_weight = head.number;
        break;
    case BL_UCX_BYE:
        on_bye(peer, data, bytes);
        break;
    case BL_UCX_BYE_TAKEN:
        peer->bye_taken = true;
        break;
    default:
        break;
    }
    return UCS_OK;
}

void bl_ucx_on_failure(void *arg, ucp_ep_h endpoint, ucs_status_t status) {
    bl_ucx_peer *peer = arg;
    (void)status; /* that it happened is all the callers can act on */
    if (endpoint != NULL && endpoint != peer->endpoint)
        return; /* of a predecessor */
    peer->has_failed = true;
    peer->owner->room.knocking[peer->rank] = 0;
    peer->owner->unsettled = true;
    if (peer->owner->room.peers[peer->rank] == BL_PEER_LIVE && !peer->bye_settled)
        peer->owner->room.peers[peer->rank] = BL_PEER_LOST;
}

/* ---- progress ------------------------------------------------------------------------------- */

/* For requests without a parcel: closing and flushing endpoints. */
static void on_done(void *request, ucs_status_t status, void *user) {
    bl_ucx *ucx = user;
    (void)status;
    ucx->n_in_flight--;
    ucp_request_free(request);
}

static void close_endpoint(bl_ucx_peer *peer) {
    const ucp_request_param_t param = {
        .op_attr_mask =
            UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
        .flags = UCP_EP_CLOSE_FLAG_FORCE,
        .cb = {.send = on_done},
        .user_data = peer->owner,
    };
    if (peer->endpoint == NULL)
        return;
    if (UCS_PTR_IS_PTR(ucp_ep_close_nbx(peer->endpoint, &param)))
        peer->owner->n_in_flight++;
    peer->endpoint = NULL;
}

/* The peer has closed and all it had sent is here: say so, and let it go. */
static void settle_bye(bl_ucx_peer *peer) {
    for (int channel = 0; channel < BL_N_CHANNELS; channel++)
        if (peer->link[channel].arrived != peer->bye.counts[channel])
            return;
    peer->bye_settled = true;
    if (peer->bye.lost >= 0 && peer->bye.lost < peer->owner->base.n_ranks &&
        peer->bye.lost != peer->owner->base.rank)
        bl_ucx_on_failure(&peer->owner->peers[peer->bye.lost], NULL, UCS_ERR_UNREACHABLE);
    bl_ucx_say(peer, BL_UCX_BYE_TAKEN, BL_CHANNEL_CONTROL, 0);
    if (!is_gone(peer))
        peer->owner->room.peers[peer->rank] = BL_PEER_CLOSED;
}

/* Peers of whom nothing was heard any more. */
static void bury_silent(bl_ucx *ucx) {
    for (int rank = 0; rank < ucx->base.n_ranks; rank++) {
        bl_ucx_peer *peer = &ucx->peers[rank];
        if (!bl_pulse_is_silent(ucx->pulse, rank) || is_gone(peer))
            continue;
        ucx->room.peers[rank] = BL_PEER_SILENT;
        bl_ucx_on_failure(peer, peer->endpoint, UCS_ERR_TIMED_OUT);
    }
}

static void settle(bl_ucx *ucx) {
    ucx->unsettled = false;
    bl_ucx_near_fetch_all(ucx);
    for (int rank = 0; rank < ucx->base.n_ranks; rank++) {
        bl_ucx_peer *peer = &ucx->peers[rank];
        if (peer->request != NULL && bl_ucx_accept(peer, NULL) < 0)
            bl_ucx_on_failure(peer, NULL, UCS_ERR_UNREACHABLE);
        if (peer->says_bye && !peer->bye_settled)
            settle_bye(peer);
        if (peer->has_failed)
            close_endpoint(peer);
    }
}

void bl_ucx_progress(bl_ucx *ucx) {
    if (ucx->pulse != NULL && bl_pulse_read_news(ucx->pulse))
        bury_silent(ucx);
    do {
        while (ucp_worker_progress(ucx->worker) != 0)
            ;
        if (ucx->unsettled)
            settle(ucx);
    } while (ucx->unsettled);
}

/* True when UCX has news, and they have been taken in. */
static bool progressed(bl_ucx *ucx) {
    if (ucp_worker_progress(ucx->worker) == 0 && !ucx->unsettled)
        return false;
    bl_ucx_progress(ucx);
    return true;
}

void bl_ucx_sleep(bl_ucx *ucx, double until_s) {
    const double start_s = bl_now_s();
    do {
        if (progressed(ucx))
            return;
        sched_yield();
    } while (bl_now_s() < start_s + SPIN_S);
    const double left_ms = (until_s - bl_now_s()) * 1e3;
    if (left_ms <= 0)
        return;
    if (ucp_worker_arm(ucx->worker) == UCS_OK) {
        struct pollfd polled[2] = {{ucx->event_fd, POLLIN, 0}, {-1, POLLIN, 0}};
        if (ucx->pulse != NULL)
            polled[1].fd = bl_pulse_fd(ucx->pulse);
        poll(polled, 2, left_ms < NAP_MS ? (int)left_ms + 1 : NAP_MS);
    }
    bl_ucx_progress(ucx);
}

/* ---- hooks ---------------------------------------------------------------------------------- */

static void ucx_enter(bl_transport *transport) {
    bl_ucx_progress(bl_ucx_of(transport));
}

static void ucx_leave(bl_transport *transport) {
    (void)transport;
}

static bl_status ucx_sleep(bl_transport *transport, double until_s, bl_error *err) {
    bl_ucx *ucx = bl_ucx_of(transport);
    if (ucx->out_of_memory)
        return bl_fail(err, BL_ERR_NOMEM, "rank %d had no memory for a message that came in",
                       transport->rank);
    bl_ucx_sleep(ucx, until_s);
    return BL_OK;
}

static void ucx_taken(bl_transport *transport, int rank, bl_channel channel, size_t weight) {
    bl_ucx_peer *peer = &bl_ucx_of(transport)->peers[rank];
    peer->link[channel].given_weight += weight;
    if (peer->link[channel].given_weight - peer->link[channel].told_weight < BL_LINK_STRIDE ||
        is_gone(peer))
        return;
    peer->link[channel].told_weight = peer->link[channel].given_weight;
    bl_ucx_say(peer, BL_UCX_TAKEN, channel, peer->link[channel].given_weight);
}

/* ---- closing -------------------------------------------------------------------------------- */

static void say_bye(bl_ucx_peer *peer) {
    bl_ucx_bye bye = {.lost = bl_mailroom_lost(&peer->owner->room)};
    for (int channel = 0; channel < BL_N_CHANNELS; channel++)
        bye.counts[channel] = peer->link[channel].sent_number;
    const bl_ucx_head head = {.kind = BL_UCX_BYE, .from = peer->owner->base.rank};
    if (!post_copy(peer, &head, &bye, sizeof bye))
        bl_ucx_on_failure(peer, peer->endpoint, UCS_ERR_NO_MEMORY);
}

static bool all_took_leave(const bl_ucx *ucx) {
    for (int rank = 0; rank < ucx->base.n_ranks; rank++) {
        const bl_ucx_peer *peer = &ucx->peers[rank];
        if (rank != ucx->base.rank && !is_gone(peer) && !peer->bye_taken)
            return false;
    }
    return true;
}

/* Everything handed to UCX must have reached the sockets before they are closed. */
static void flush(bl_ucx *ucx, double until_s) {
    for (int rank = 0; rank < ucx->base.n_ranks; rank++) {
        const ucp_request_param_t param = {
            .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
            .cb = {.send = on_done},
            .user_data = ucx,
        };
        if (ucx->peers[rank].endpoint != NULL && !ucx->peers[rank].has_failed &&
            UCS_PTR_IS_PTR(ucp_ep_flush_nbx(ucx->peers[rank].endpoint, &param)))
            ucx->n_in_flight++;
    }
    while (ucx->n_in_flight > 0 && bl_now_s() < until_s)
        bl_ucx_sleep(ucx, until_s);
}

static void ucx_close(bl_transport *transport, bool orderly) {
    bl_ucx *ucx = bl_ucx_of(transport);
    if (orderly) {
        const double until_s = bl_now_s() + transport->deadline_s;
        bl_ucx_progress(ucx);
        for (int rank = 0; rank < transport->n_ranks; rank++)
            if (rank != transport->rank && !is_gone(&ucx->peers[rank]))
                say_bye(&ucx->peers[rank]);
        while (!all_took_leave(ucx) && bl_now_s() < until_s)
            bl_ucx_sleep(ucx, until_s);
        flush(ucx, until_s);
    }
    bl_ucx_destroy(ucx);
}

void bl_ucx_destroy(bl_ucx *ucx) {
    const double until_s = bl_now_s() + DESTROY_S;
    ucx->is_closing = true;
    bl_ucx_near_drop_all(ucx);
    for (int rank = 0; ucx->peers != NULL && rank < ucx->base.n_ranks; rank++) {
        if (ucx->peers[rank].request != NULL)
            ucp_listener_reject(ucx->listener, ucx->peers[rank].request);
        ucx->peers[rank].request = NULL;
        close_endpoint(&ucx->peers[rank]);
    }
    while (ucx->n_in_flight > 0 && bl_now_s() < until_s)
        bl_ucx_sleep(ucx, until_s);
    if (ucx->listener != NULL)
        ucp_listener_destroy(ucx->listener);
    if (ucx->worker != NULL)
        ucp_worker_destroy(ucx->worker);
    if (ucx->context != NULL)
        ucp_cleanup(ucx->context);
    bl_pulse_close(ucx->pulse);
    bl_mailroom_free(&ucx->room);
    free(ucx->peers);
    free(ucx);
}

const bl_transport_ops bl_ucx_ops = {
    .name = "ucx",
    .enter = ucx_enter,
    .leave = ucx_leave,
    .sleep = ucx_sleep,
    .taken = ucx_taken,
    .send = ucx_send,
    .close = ucx_close,
    .give_up = bl_ucx_give_up,
    .let_in = bl_ucx_let_in,
    .directory = bl_ucx_directory,
};
