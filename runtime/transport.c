#include "runtime/transport.h"

#include "core/progress.h"
#include "runtime/transport_ops.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static const char *const channel_names[BL_N_CHANNELS] = {"step", "move", "control"};

int bl_transport_rank(const bl_transport *transport) {
    return transport->rank;
}

int bl_transport_n_ranks(const bl_transport *transport) {
    return transport->n_ranks;
}

const char *bl_transport_name(const bl_transport *transport) {
    return transport->ops->name;
}

double bl_transport_now_s(const bl_transport *transport) {
    return transport->ops->now != NULL ? transport->ops->now(transport) : bl_now_s();
}

void bl_transport_set_deadline(bl_transport *transport, double seconds) {
    assert(seconds > 0);
    transport->deadline_s = seconds;
}

void bl_message_free(bl_message *message) {
    free(message->data);
    *message = (bl_message){0};
}

/* ---- errors -------------------------------------------------------------------------------- */

bl_status bl_transport_fail_gone(const bl_transport *transport, int peer, bl_peer_state state,
                                 bl_error *err) {
    if (state == BL_PEER_CLOSED)
        return bl_fail(err, BL_ERR_PEER, "rank %d has closed its connection to rank %d", peer,
                       transport->rank);
    if (state == BL_PEER_SILENT)
        return bl_fail(
            err, BL_ERR_PEER,
            "rank %d is lost: rank %d has not heard of it for %g s, it was stopped or cut "
            "off",
            peer, transport->rank, transport->silence_s);
    return bl_fail(err, BL_ERR_PEER, "rank %d is lost (seen by rank %d)", peer, transport->rank);
}

bl_status bl_transport_fail_full(const bl_transport *transport, int peer, bl_channel channel,
                                 bl_error *err) {
    return bl_fail(err, BL_ERR_TIMEOUT,
                   "rank %d took nothing from rank %d on channel %s for %g s and its link is full",
                   peer, transport->rank, channel_names[channel], transport->deadline_s);
}

static bl_status check_address(const bl_transport *transport, int peer, bl_channel channel,
                               bl_error *err) {
    if (peer < 0 || peer >= transport->n_ranks)
        return bl_fail(err, BL_ERR_RANGE, "rank %d is not below %d", peer, transport->n_ranks);
    if ((int)channel < 0 || channel >= BL_N_CHANNELS)
        return bl_fail(err, BL_ERR_RANGE, "there is no channel %d", (int)channel);
    return BL_OK;
}

/* ---- sending ------------------------------------------------------------------------------- */

/* Straight into the own mailbox; never held back, since only this rank could make room. */
static bl_status send_to_self(bl_transport *transport, bl_channel channel, uint64_t mark,
                              const void *data, size_t bytes, bl_error *err) {
    bl_envelope *envelope =
        bl_envelope_new(transport->rank, transport->self_sent[channel], mark, bytes);
    if (envelope == NULL)
        return bl_fail(err, BL_ERR_NOMEM, "out of memory: a message of %zu bytes", bytes);
    if (bytes > 0)
        memcpy(envelope->message.data, data, bytes);
    envelope->complete = true;
    transport->self_sent[channel]++;
    transport->ops->enter(transport);
    bl_mailbox_put(bl_mailroom_box(transport->room, channel, transport->rank), envelope);
    transport->ops->leave(transport);
    return BL_OK;
}

bl_status bl_transport_send(bl_transport *transport, int peer, bl_channel channel, uint64_t mark,
                            const void *data, size_t bytes, bl_error *err) {
    BL_TRY(check_address(transport, peer, channel, err));
    if (peer == transport->rank)
        return send_to_self(transport, channel, mark, data, bytes, err);
    BL_TRY(transport->ops->send(transport, peer, channel, mark, data, bytes, err));
    transport->sent_bytes[channel] += bytes;
    transport->sent_messages[channel]++;
    return BL_OK;
}

static uint64_t sum_over(const uint64_t *per_channel, int channel) {
    assert(channel >= -1 && channel < BL_N_CHANNELS);
    uint64_t sum = 0;
    for (int c = 0; c < BL_N_CHANNELS; c++)
        sum += channel < 0 || c == channel ? per_channel[c] : 0;
    return sum;
}

uint64_t bl_transport_sent_bytes(const bl_transport *transport, int channel) {
    return sum_over(transport->sent_bytes, channel);
}

uint64_t bl_transport_sent_messages(const bl_transport *transport, int channel) {
    return sum_over(transport->sent_messages, channel);
}

/* ---- receiving ----------------------------------------------------------------------------- */

static void take(bl_transport *transport, bl_channel channel, int peer, bl_message *out) {
    const size_t weight = bl_mailbox_take(bl_mailroom_box(transport->room, channel, peer), out);
    if (peer != transport->rank)
        transport->ops->taken(transport, peer, channel, weight);
}

/* Whom the wait for `peer` must give up on: the peer itself, or any lost rank in a collective; that one
 * first, since it may be why the peer has closed. */
static int gone(const bl_transport *transport, int peer, bool whole) {
    const int lost = whole ? bl_mailroom_lost(transport->room) : -1;
    if (lost >= 0)
        return lost;
    return transport->room->peers[peer] != BL_PEER_LIVE ? peer : -1;
}

/* Inside the brackets. */
static bl_status wait_for(bl_transport *transport, int peer, bl_channel channel, uint64_t mark,
                          double deadline_s, bool whole, bl_message *out, bl_error *err) {
    const double until_s = bl_transport_now_s(transport) + deadline_s;
    const bl_mailbox *box = bl_mailroom_box(transport->room, channel, peer);
    for (;;) {
        const bl_message *next = bl_mailbox_peek(box);
        if (next != NULL && next->mark < transport->floor[channel]) {
            bl_message old;
            take(transport, channel, peer, &old);
            bl_message_free(&old);
            continue;
        }
        if (next != NULL && next->mark != mark)
            return bl_fail(err, BL_ERR_STATE,
                           "rank %d expected message %llu of rank %d on channel %s and got %llu: "
                           "the ranks are out of step",
                           transport->rank, (unsigned long long)mark, peer, channel_names[channel],
                           (unsigned long long)next->mark);
        if (next != NULL) {
            take(transport, channel, peer, out);
            return BL_OK;
        }
        const int missing = gone(transport, peer, whole);
        if (missing >= 0)
            return bl_transport_fail_gone(transport, missing, transport->room->peers[missing], err);
        if (bl_transport_now_s(transport) >= until_s)
            return bl_fail(err, BL_ERR_TIMEOUT,
                           "rank %d waited %g s for message %llu of rank %d on channel %s",
                           transport->rank, deadline_s, (unsigned long long)mark, peer,
                           channel_names[channel]);
        BL_TRY(transport->ops->sleep(transport, until_s, err));
    }
}

static bl_status receive(bl_transport *transport, int peer, bl_channel channel, uint64_t mark,
                         double deadline_s, bool whole, bl_message *out, bl_error *err) {
    BL_TRY(check_address(transport, peer, channel, err));
    transport->ops->enter(transport);
    const bl_status st = wait_for(transport, peer, channel, mark, deadline_s, whole, out, err);
    transport->ops->leave(transport);
    return st;
}

bl_status bl_transport_receive(bl_transport *transport, int peer, bl_channel channel, uint64_t mark,
                               double deadline_s, bl_message *out, bl_error *err) {
    return receive(transport, peer, channel, mark, deadline_s, false, out, err);
}

bl_status bl_transport_receive_whole(bl_transport *transport, int peer, bl_channel channel,
                                     uint64_t mark, double deadline_s, bl_message *out,
                                     bl_error *err) {
    return receive(transport, peer, channel, mark, deadline_s, true, out, err);
}

/* Inside the brackets: the next peer in turn that has a message, or -1. */
static int peer_with_message(bl_transport *transport, bl_channel channel) {
    for (int i = 0; i < transport->n_ranks; i++) {
        const int peer = (transport->room->turn[channel] + i) % transport->n_ranks;
        if (bl_mailbox_peek(bl_mailroom_box(transport->room, channel, peer)) != NULL) {
            transport->room->turn[channel] = (peer + 1) % transport->n_ranks;
            return peer;
        }
    }
    return -1;
}

bl_status bl_transport_await(bl_transport *transport, bl_channel channel, double wait_s,
                             bl_message *out, bool *got, bl_error *err) {
    *got = false;
    BL_TRY(check_address(transport, 0, channel, err));
    const double until_s = bl_transport_now_s(transport) + wait_s;
    bl_status st = BL_OK;
    transport->ops->enter(transport);
    for (;;) {
        const int peer = peer_with_message(transport, channel);
        if (peer >= 0) {
            take(transport, channel, peer, out);
            *got = true;
            break;
        }
        if (bl_transport_now_s(transport) >= until_s)
            break;
        st = transport->ops->sleep(transport, until_s, err);
        if (st < 0)
            break;
    }
    transport->ops->leave(transport);
    return st;
}

bl_status bl_transport_poll(bl_transport *transport, bl_channel channel, bl_message *out, bool *got,
                            bl_error *err) {
    return bl_transport_await(transport, channel, 0, out, got, err);
}

int bl_transport_lost(bl_transport *transport) {
    transport->ops->enter(transport);
    const int lost = bl_mailroom_lost(transport->room);
    transport->ops->leave(transport);
    return lost;
}

bool bl_transport_is_lost(bl_transport *transport, int rank) {
    transport->ops->enter(transport);
    const bool lost = bl_peer_is_lost(transport->room->peers[rank]);
    transport->ops->leave(transport);
    return lost;
}

bool bl_transport_has_closed(bl_transport *transport, int rank) {
    transport->ops->enter(transport);
    const bool closed = transport->room->peers[rank] == BL_PEER_CLOSED;
    transport->ops->leave(transport);
    return closed;
}

void bl_transport_forgive(bl_transport *transport, int rank) {
    transport->ops->enter(transport);
    transport->room->forgiven[rank] = true;
    transport->ops->leave(transport);
}

uint64_t bl_transport_knocking(bl_transport *transport, int rank) {
    transport->ops->enter(transport);
    const bl_mailroom *room = transport->room;
    const uint64_t incarnation = bl_peer_is_lost(room->peers[rank]) ? room->knocking[rank] : 0;
    transport->ops->leave(transport);
    return incarnation;
}

void bl_transport_let_in(bl_transport *transport, int rank) {
    transport->ops->enter(transport);
    bl_mailroom *room = transport->room;
    room->forgiven[rank] = false;
    if (room->knocking[rank] != 0 && transport->ops->let_in != NULL)
        transport->ops->let_in(transport, rank);
    if (room->knocking[rank] != 0)
        room->peers[rank] = BL_PEER_LIVE;
    room->knocking[rank] = 0;
    transport->ops->leave(transport);
}

void bl_transport_give_up(bl_transport *transport, int rank) {
    transport->ops->enter(transport);
    if (transport->room->peers[rank] == BL_PEER_LIVE && transport->ops->give_up != NULL)
        transport->ops->give_up(transport, rank);
    transport->ops->leave(transport);
}

bl_status bl_transport_directory(bl_transport *transport, char **text_p, bl_error *err) {
    if (transport->ops->directory == NULL)
        return bl_fail(err, BL_ERR_UNSUPPORTED, "ranks do not come back over the transport %s",
                       transport->ops->name);
    return transport->ops->directory(transport, text_p, err);
}

void bl_transport_set_floor(bl_transport *transport, bl_channel channel, uint64_t mark) {
    transport->floor[channel] = mark;
}

/* ---- closing ------------------------------------------------------------------------------- */

void bl_transport_close(bl_transport *transport) {
    if (transport != NULL)
        transport->ops->close(transport, true);
}

void bl_transport_abandon(bl_transport *transport) {
    if (transport != NULL)
        transport->ops->close(transport, false);
}
