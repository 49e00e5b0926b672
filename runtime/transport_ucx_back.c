/* Ranks that come back, over UCX.
 *
 * Whoever lives keeps its listener. A rank that comes back is told where all are (the directory, over
 * the operator's socket), knocks at all of them by an id of its own kind, and says with its HELLO which
 * incarnation it is and where it listens and beats. A peer lets it knock when its predecessor is
 * lost and all that was left of that one is gone; it counts as living when the rank says so
 * (bl_transport_let_in()). The predecessor, should it only have been stopped, has no connection left,
 * and its beats are of another incarnation. */
#include "runtime/transport_ucx.h"

#include "core/mem.h"
#include "core/progress.h"
#include "core/rng.h"

#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#define MAGIC UINT64_C(0x31524944534c4c42) /* "BLLSDIR1" read as a little-endian number */

/* The directory, between machines of one byte order. */
typedef struct directory_head {
    uint64_t magic, job;
    int32_t n_ranks, unused;
} directory_head;

typedef struct directory_entry {
    bl_peer_card card;
    uint64_t incarnation;
    int32_t lives, unused;
} directory_entry;

uint64_t bl_ucx_return_id(const bl_ucx *ucx, int rank) {
    uint64_t state = ~ucx->job + (uint64_t)rank;
    return bl_splitmix64(&state);
}

/* ---- where a rank comes back to --------------------------------------------------------------- */

bool bl_ucx_may_return(const bl_ucx_peer *peer) {
    return bl_peer_is_lost(peer->owner->room.peers[peer->rank]) && peer->n_fetching == 0;
}

void bl_ucx_renew_peer(bl_ucx_peer *peer) {
    bl_mailroom_clear_peer(&peer->owner->room, peer->rank);
    peer->has_spoken = peer->has_failed = false;
    peer->says_bye = peer->bye_settled = peer->bye_taken = false;
    memset(peer->link, 0, sizeof peer->link);
    peer->back = (bl_ucx_return){0};
}

void bl_ucx_on_return(bl_ucx_peer *peer, const void *data, size_t bytes) {
    bl_mailroom *room = &peer->owner->room;
    if (bytes != sizeof peer->back || !bl_peer_is_lost(room->peers[peer->rank]))
        return;
    memcpy(&peer->back, data, bytes);
    room->knocking[peer->rank] = peer->back.incarnation;
}

void bl_ucx_let_in(bl_transport *transport, int rank) {
    bl_ucx *ucx = bl_ucx_of(transport);
    bl_ucx_peer *peer = &ucx->peers[rank];
    const bl_peer_card *mine = &ucx->peers[transport->rank].card;
    peer->card = peer->back.card;
    peer->incarnation = peer->back.incarnation;
    peer->near.pid = peer->card.pid;
    peer->near.is_usable = mine->host != 0 && peer->card.host == mine->host;
    if (ucx->pulse == NULL)
        return;
    struct sockaddr_storage pulse = peer->card.address;
    bl_address_set_port(&pulse, peer->card.pulse_port);
    bl_pulse_renew(ucx->pulse, rank, &pulse, peer->incarnation);
}

void bl_ucx_give_up(bl_transport *transport, int rank) {
    bl_ucx *ucx = bl_ucx_of(transport);
    bl_ucx_on_failure(&ucx->peers[rank], ucx->peers[rank].endpoint, UCS_ERR_CANCELED);
    bl_ucx_progress(ucx);
}

/* ---- the directory ---------------------------------------------------------------------------- */

static void to_hex(const void *data, size_t bytes, char *text) {
    static const char digits[] = "0123456789abcdef";
    const unsigned char *at = data;
    for (size_t i = 0; i < bytes; i++) {
        *text++ = digits[at[i] >> 4];
        *text++ = digits[at[i] & 15];
    }
    *text = '\0';
}

static int digit(char c) {
    if (c >= '0' && c <= '9')
        return c - '0';
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static bool from_hex(const char *text, void *data, size_t bytes) {
    unsigned char *at = data;
    for (size_t i = 0; i < bytes; i++) {
        const int high = digit(text[2 * i]), low = high < 0 ? -1 : digit(text[2 * i + 1]);
        if (low < 0)
            return false;
        at[i] = (unsigned char)(high << 4 | low);
    }
    return true;
}

static size_t directory_bytes(int n_ranks) {
    return sizeof(directory_head) + sizeof(directory_entry) * (size_t)n_ranks;
}

bl_status bl_ucx_directory(bl_transport *transport, char **text_p, bl_error *err) {
    const bl_ucx *ucx = bl_ucx_of(transport);
    const size_t bytes = directory_bytes(transport->n_ranks);
    const directory_head head = {.magic = MAGIC, .job = ucx->job, .n_ranks = transport->n_ranks};
    unsigned char *data;
    char *text;
    BL_TRY(BL_CALLOC(data, bytes, err));
    memcpy(data, &head, sizeof head);
    for (int rank = 0; rank < transport->n_ranks; rank++) {
        directory_entry entry;
        memset(&entry, 0, sizeof entry);
        entry.card = ucx->peers[rank].card;
        entry.incarnation = ucx->peers[rank].incarnation;
        entry.lives = ucx->room.peers[rank] == BL_PEER_LIVE;
        memcpy(data + sizeof head + sizeof entry * (size_t)rank, &entry, sizeof entry);
    }
    const bl_status st = BL_CALLOC(text, 2 * bytes + 1, err);
    if (st >= 0) {
        to_hex(data, bytes, text);
        *text_p = text;
    }
    free(data);
    return st;
}

/* Into the peers' cards; who does not live counts as lost, and as known to be. */
static bl_status read_directory(bl_ucx *ucx, const char *text, bl_error *err) {
    const int n_ranks = ucx->base.n_ranks;
    const size_t bytes = directory_bytes(n_ranks);
    directory_head head;
    if (strlen(text) < 2 * sizeof head || !from_hex(text, &head, sizeof head) ||
        head.magic != MAGIC)
        return bl_fail(err, BL_ERR_PARSE,
                       "the cluster's directory is damaged, or of another version");
    if (head.n_ranks != n_ranks || strlen(text) != 2 * bytes)
        return bl_fail(err, BL_ERR_SHAPE, "the cluster has %d ranks, not %d", head.n_ranks,
                       n_ranks);
    ucx->job = head.job;
    for (int rank = 0; rank < n_ranks; rank++) {
        directory_entry entry;
        const char *at = text + 2 * (sizeof head + sizeof entry * (size_t)rank);
        if (!from_hex(at, &entry, sizeof entry))
            return bl_fail(err, BL_ERR_PARSE, "the cluster's directory is damaged");
        if (rank == ucx->base.rank && entry.lives != 0)
            return bl_fail(err, BL_ERR_STATE, "rank %d lives; only a lost rank can come back",
                           rank);
        ucx->peers[rank].card = entry.card;
        ucx->peers[rank].incarnation = entry.incarnation;
        if (rank != ucx->base.rank && entry.lives == 0) {
            ucx->room.peers[rank] = BL_PEER_LOST;
            ucx->room.forgiven[rank] = true;
        }
    }
    return BL_OK;
}

/* ---- coming back ------------------------------------------------------------------------------ */

static const bl_peer_card *first_living(const bl_ucx *ucx) {
    for (int rank = 0; rank < ucx->base.n_ranks; rank++) {
        if (rank != ucx->base.rank && ucx->room.peers[rank] == BL_PEER_LIVE)
            return &ucx->peers[rank].card;
    }
    return NULL;
}

/* The device from which the others are reached, as its address without a port. */
static bl_status find_device(const bl_ucx *ucx, struct sockaddr_storage *local, socklen_t *bytes,
                             bl_error *err) {
    const bl_peer_card *other = first_living(ucx);
    if (other == NULL)
        return bl_fail(err, BL_ERR_PEER, "no rank of the cluster lives");
    const int fd = socket(other->address.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    const socklen_t other_bytes = other->address.ss_family == AF_INET6
                                      ? (socklen_t)sizeof(struct sockaddr_in6)
                                      : (socklen_t)sizeof(struct sockaddr_in);
    *bytes = sizeof *local;
    const bool found = fd >= 0 &&
                       connect(fd, (const struct sockaddr *)&other->address, other_bytes) == 0 &&
                       getsockname(fd, (struct sockaddr *)local, bytes) == 0;
    if (fd >= 0)
        close(fd);
    if (!found)
        return bl_fail(err, BL_ERR_PEER, "no device of this host reaches the cluster's ranks");
    bl_address_set_port(local, 0);
    return BL_OK;
}

static uint64_t draw_incarnation(void) {
    uint64_t drawn = 0;
    if (getrandom(&drawn, sizeof drawn, 0) != sizeof drawn)
        drawn = bl_now_ns() ^ (uint64_t)getpid() << 32;
    return drawn != 0 ? drawn : 1;
}

static bl_status open_doors(bl_ucx *ucx, bl_error *err) {
    bl_ucx_peer *me = &ucx->peers[ucx->base.rank];
    struct sockaddr_storage local;
    socklen_t local_bytes;
    uint16_t port, pulse_port = 0;
    memset(&local, 0, sizeof local);
    BL_TRY(find_device(ucx, &local, &local_bytes, err));
    BL_TRY(bl_ucx_listen(ucx, &local, local_bytes, &port, err));
    if (ucx->base.silence_s > 0)
        BL_TRY(bl_pulse_open(ucx->base.rank, ucx->base.n_ranks, ucx->job, ucx->base.silence_s,
                             &local, &ucx->pulse, &pulse_port, err));
    bl_address_set_port(&local, port);
    memset(&me->card, 0, sizeof me->card);
    me->card.address = local;
    me->card.host = bl_host_identity();
    me->card.pid = (int32_t)getpid();
    me->card.pulse_port = pulse_port;
    me->incarnation = draw_incarnation();
    ucx->mine.incarnation = me->incarnation;
    ucx->mine.card = me->card;
    return bl_ucx_use_cards(ucx, err);
}

static bl_status knock_at_all(bl_ucx *ucx, bl_error *err) {
    const double until_s = bl_now_s() + ucx->base.deadline_s;
    for (int rank = 0; rank < ucx->base.n_ranks; rank++) {
        if (rank != ucx->base.rank && ucx->room.peers[rank] == BL_PEER_LIVE)
            BL_TRY(bl_ucx_connect_to(&ucx->peers[rank], &ucx->peers[rank].card.address, err));
    }
    return bl_ucx_await_hellos(ucx, until_s, err);
}

bl_status bl_transport_ucx_come_back(const bl_ucx_options *options, const char *directory,
                                     bl_transport **out, bl_error *err) {
    bl_ucx *ucx;
    BL_TRY(bl_ucx_make(options, &ucx, err));
    bl_status st = read_directory(ucx, directory, err);
    if (st == BL_OK)
        st = bl_ucx_open_worker(ucx, bl_ucx_return_id(ucx, options->rank), err);
    if (st == BL_OK)
        st = open_doors(ucx, err);
    if (st == BL_OK)
        st = knock_at_all(ucx, err);
    if (st < 0) {
        bl_ucx_destroy(ucx);
        return st;
    }
    *out = &ucx->base;
    return BL_OK;
}
