/* Ranks are threads: an inbox per rank under its own lock, one condition for all that may change in
 * it. A sender copies its message outside the lock and then only hangs it in. */
#include "runtime/transport_ops.h"

#include "core/mem.h"
#include "core/progress.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct inbox {
    pthread_mutex_t lock;
    pthread_cond_t changed; /* a message, room on a link, or the state of a peer or the owner */
    bl_mailroom room;
    bl_peer_state owner;
} inbox;

typedef struct local_cluster {
    int n_ranks;
    pthread_mutex_t lock; /* of n_open */
    int n_open;
    inbox *inboxes; /* [n_ranks] */
} local_cluster;

typedef struct local_transport {
    bl_transport base;
    local_cluster *cluster;
    inbox *mine;
    uint64_t *sent; /* [BL_N_CHANNELS][n_ranks] messages put on each link */
} local_transport;

static local_transport *local_of(bl_transport *transport) {
    return (local_transport *)(void *)transport;
}

static void local_enter(bl_transport *transport) {
    pthread_mutex_lock(&local_of(transport)->mine->lock);
}

static void local_leave(bl_transport *transport) {
    pthread_mutex_unlock(&local_of(transport)->mine->lock);
}

static void wait_until(inbox *box, double until_s) {
    /* No wait lasts a year, and time_t stays in range. */
    const double now_s = bl_now_s(), year_s = 365.0 * 86400.0;
    const double at_s = until_s < now_s + year_s ? until_s : now_s + year_s;
    struct timespec at = {.tv_sec = (time_t)at_s};
    at.tv_nsec = (long)((at_s - (double)at.tv_sec) * 1e9);
    pthread_cond_timedwait(&box->changed, &box->lock, &at);
}

static bl_status local_sleep(bl_transport *transport, double until_s, bl_error *err) {
    (void)err;
    wait_until(local_of(transport)->mine, until_s);
    return BL_OK;
}

static void local_taken(bl_transport *transport, int peer, bl_channel channel, size_t weight) {
    (void)peer, (void)channel, (void)weight; /* the sender looks at the mailbox itself */
    pthread_cond_broadcast(&local_of(transport)->mine->changed);
}

/* With the lock of `to` held: until the link has room or its owner is gone. */
static bl_status wait_for_room(const bl_transport *transport, inbox *to, int peer,
                               bl_channel channel, size_t weight, bl_error *err) {
    const bl_mailbox *box = bl_mailroom_box(&to->room, channel, transport->rank);
    const double until_s = bl_now_s() + transport->deadline_s;
    for (;;) {
        if (to->owner != BL_PEER_LIVE)
            return bl_transport_fail_gone(transport, peer, to->owner, err);
        if (bl_link_accepts(box->weight, weight))
            return BL_OK;
        if (bl_now_s() >= until_s)
            return bl_transport_fail_full(transport, peer, channel, err);
        wait_until(to, until_s);
    }
}

static bl_status local_send(bl_transport *transport, int peer, bl_channel channel, uint64_t mark,
                            const void *data, size_t bytes, bl_error *err) {
    local_transport *local = local_of(transport);
    uint64_t *number = &local->sent[(int)channel * transport->n_ranks + peer];
    bl_envelope *envelope = bl_envelope_new(transport->rank, *number, mark, bytes);
    if (envelope == NULL)
        return bl_fail(err, BL_ERR_NOMEM, "out of memory: a message of %zu bytes", bytes);
    if (bytes > 0)
        memcpy(envelope->message.data, data, bytes);
    envelope->complete = true;

    inbox *to = &local->cluster->inboxes[peer];
    pthread_mutex_lock(&to->lock);
    const bl_status st = wait_for_room(transport, to, peer, channel, bl_message_weight(bytes), err);
    if (st == BL_OK) {
        bl_mailbox_put(bl_mailroom_box(&to->room, channel, transport->rank), envelope);
        (*number)++;
        pthread_cond_broadcast(&to->changed);
    }
    pthread_mutex_unlock(&to->lock);
    if (st < 0)
        bl_envelope_free(envelope);
    return st;
}

static void cluster_free(local_cluster *cluster) {
    for (int rank = 0; rank < cluster->n_ranks; rank++) {
        inbox *box = &cluster->inboxes[rank];
        bl_mailroom_free(&box->room);
        pthread_cond_destroy(&box->changed);
        pthread_mutex_destroy(&box->lock);
    }
    pthread_mutex_destroy(&cluster->lock);
    free(cluster->inboxes);
    free(cluster);
}

static void set_state(inbox *box, bl_peer_state *where, bl_peer_state state) {
    pthread_mutex_lock(&box->lock);
    *where = state;
    pthread_cond_broadcast(&box->changed);
    pthread_mutex_unlock(&box->lock);
}

static void local_close(bl_transport *transport, bool orderly) {
    local_transport *local = local_of(transport);
    local_cluster *cluster = local->cluster;
    const bl_peer_state state = orderly ? BL_PEER_CLOSED : BL_PEER_LOST;
    /* The own inbox first: who has been told that this rank is gone can no longer send to it. */
    set_state(local->mine, &local->mine->owner, state);
    for (int peer = 0; peer < cluster->n_ranks; peer++) {
        inbox *box = &cluster->inboxes[peer];
        if (peer != transport->rank)
            set_state(box, &box->room.peers[transport->rank], state);
    }
    pthread_mutex_lock(&cluster->lock);
    const bool last = --cluster->n_open == 0;
    pthread_mutex_unlock(&cluster->lock);
    if (last)
        cluster_free(cluster);
    free(local->sent);
    free(local);
}

static const bl_transport_ops local_ops = {
    .name = "local",
    .enter = local_enter,
    .leave = local_leave,
    .sleep = local_sleep,
    .taken = local_taken,
    .send = local_send,
    .close = local_close,
};

/* ---- open ---------------------------------------------------------------------------------- */

static bl_status inbox_init(inbox *box, int n_ranks, bl_error *err) {
    BL_TRY(bl_mailroom_create(n_ranks, &box->room, err));
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&box->changed, &attributes);
    pthread_condattr_destroy(&attributes);
    pthread_mutex_init(&box->lock, NULL);
    return BL_OK;
}

static bl_status cluster_create(int n_ranks, local_cluster **out, bl_error *err) {
    local_cluster *made;
    BL_TRY(BL_CALLOC(made, 1, err));
    pthread_mutex_init(&made->lock, NULL);
    bl_status st = BL_CALLOC(made->inboxes, n_ranks, err);
    while (st == BL_OK && made->n_ranks < n_ranks) {
        st = inbox_init(&made->inboxes[made->n_ranks], n_ranks, err);
        if (st == BL_OK)
            made->n_ranks++;
    }
    if (st < 0) {
        cluster_free(made);
        return st;
    }
    *out = made;
    return BL_OK;
}

static bl_status handle_create(local_cluster *cluster, int rank, bl_transport **out,
                               bl_error *err) {
    local_transport *local;
    BL_TRY(BL_CALLOC(local, 1, err));
    const bl_status st = BL_CALLOC(local->sent, (size_t)cluster->n_ranks * BL_N_CHANNELS, err);
    if (st < 0) {
        free(local);
        return st;
    }
    local->cluster = cluster;
    local->mine = &cluster->inboxes[rank];
    local->base.ops = &local_ops;
    local->base.rank = rank;
    local->base.n_ranks = cluster->n_ranks;
    local->base.deadline_s = BL_TRANSPORT_DEADLINE_S;
    local->base.room = &local->mine->room;
    *out = &local->base;
    return BL_OK;
}

bl_status bl_transport_local_open(int n_ranks, bl_transport **handles, bl_error *err) {
    if (n_ranks < 1)
        return bl_fail(err, BL_ERR_RANGE, "%d ranks make no cluster", n_ranks);
    local_cluster *cluster;
    BL_TRY(cluster_create(n_ranks, &cluster, err));
    for (int rank = 0; rank < n_ranks; rank++) {
        const bl_status st = handle_create(cluster, rank, &handles[rank], err);
        if (st < 0) {
            if (rank == 0)
                cluster_free(cluster);
            while (rank-- > 0)
                bl_transport_close(handles[rank]);
            return st;
        }
        cluster->n_open++;
    }
    return BL_OK;
}
