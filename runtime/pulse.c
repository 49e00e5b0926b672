#include "runtime/pulse.h"

#include "core/mem.h"
#include "core/progress.h"
#include "core/rng.h"

#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define MAGIC UINT64_C(0x31534c5550534c42) /* "BLSPULS1" read as a little-endian number */

#define BEATS_PER_SILENCE 6

/* Up to one beat passes until a datagram is looked at, and up to one until the watch is. */
#define PATIENCE (4.0 / BEATS_PER_SILENCE)

typedef struct beat {
    uint64_t magic;
    uint64_t tag; /* of run and rank */
    int32_t from;
    int32_t unused;
} beat;

struct bl_pulse {
    int rank, n_ranks;
    uint64_t key;
    double silence_s;
    int fd, news_fd, stop_fd; /* the socket; tells the owner; tells the thread */
    bool is_started;
    pthread_t thread;
    pthread_mutex_t lock;               /* of the following */
    struct sockaddr_storage *addresses; /* [n_ranks] */
    uint64_t *incarnation;              /* [n_ranks] 0: the first */
    double *heard_s;                    /* [n_ranks] on the clock of bl_now_s(); 0: never yet */
    atomic_bool *silent;                /* [n_ranks] */
};

/* By what a rank's beats are known, so that a stray datagram is not taken for one. */
static uint64_t tag_of(const bl_pulse *pulse, int rank) {
    uint64_t state = pulse->key ^ MAGIC ^ (uint64_t)rank << 32 ^ pulse->incarnation[rank];
    return bl_splitmix64(&state);
}

static socklen_t address_bytes(const struct sockaddr_storage *address) {
    return address->ss_family == AF_INET6 ? (socklen_t)sizeof(struct sockaddr_in6)
                                          : (socklen_t)sizeof(struct sockaddr_in);
}

static uint16_t *port_of(struct sockaddr_storage *address) {
    return address->ss_family == AF_INET6 ? &((struct sockaddr_in6 *)address)->sin6_port
                                          : &((struct sockaddr_in *)address)->sin_port;
}

/* ---- the thread ----------------------------------------------------------------------------- */

/* A datagram that cannot be sent now is one that was not heard. */
static void beat_once(const bl_pulse *pulse) {
    const beat mine = {MAGIC, tag_of(pulse, pulse->rank), pulse->rank, 0};
    for (int peer = 0; peer < pulse->n_ranks; peer++) {
        struct sockaddr_storage *to = &pulse->addresses[peer];
        if (peer != pulse->rank && *port_of(to) != 0 && !pulse->silent[peer])
            sendto(pulse->fd, &mine, sizeof mine, MSG_DONTWAIT | MSG_NOSIGNAL,
                   (const struct sockaddr *)to, address_bytes(to));
    }
}

static void hear(bl_pulse *pulse, double now_s) {
    beat theirs;
    for (;;) {
        const ssize_t n = recv(pulse->fd, &theirs, sizeof theirs, MSG_DONTWAIT | MSG_TRUNC);
        if (n < 0 && errno != EINTR && errno != ECONNREFUSED)
            return;
        if (n == sizeof theirs && theirs.magic == MAGIC && theirs.from >= 0 &&
            theirs.from < pulse->n_ranks && theirs.tag == tag_of(pulse, theirs.from))
            pulse->heard_s[theirs.from] = now_s;
    }
}

static void find_silent(bl_pulse *pulse, double now_s) {
    const uint64_t one = 1;
    for (int peer = 0; peer < pulse->n_ranks; peer++) {
        if (pulse->heard_s[peer] <= 0 || pulse->silent[peer] ||
            now_s - pulse->heard_s[peer] < PATIENCE * pulse->silence_s)
            continue;
        pulse->silent[peer] = true;
        while (write(pulse->news_fd, &one, sizeof one) < 0 && errno == EINTR)
            ;
    }
}

/* This thread has slept through beats it should have sent and heard. */
static void start_anew(bl_pulse *pulse, double now_s) {
    for (int peer = 0; peer < pulse->n_ranks; peer++)
        if (pulse->heard_s[peer] > 0)
            pulse->heard_s[peer] = now_s;
}

/* The socket holds what is heard between two beats, so that there is one wake-up for all of it. */
static void *run(void *arg) {
    bl_pulse *pulse = arg;
    double looked_s = bl_now_s();
    struct pollfd stop = {pulse->stop_fd, POLLIN, 0};
    do {
        const double now_s = bl_now_s();
        if (now_s - looked_s > pulse->silence_s / 2)
            start_anew(pulse, now_s);
        looked_s = now_s;
        pthread_mutex_lock(&pulse->lock);
        beat_once(pulse);
        hear(pulse, now_s);
        find_silent(pulse, now_s);
        pthread_mutex_unlock(&pulse->lock);
        poll(&stop, 1, (int)(pulse->silence_s / BEATS_PER_SILENCE * 1e3));
    } while (stop.revents == 0);
    return NULL;
}

/* ---- the owner ------------------------------------------------------------------------------ */

static bl_status open_socket(bl_pulse *pulse, const struct sockaddr_storage *local, uint16_t *port,
                             bl_error *err) {
    struct sockaddr_storage here = *local;
    socklen_t bytes = address_bytes(&here);
    *port_of(&here) = 0;
    pulse->fd = socket(here.ss_family, SOCK_DGRAM, 0);
    if (pulse->fd < 0 || bind(pulse->fd, (const struct sockaddr *)&here, bytes) != 0 ||
        getsockname(pulse->fd, (struct sockaddr *)&here, &bytes) != 0)
        return bl_fail(err, BL_ERR_IO, "rank %d has no socket for its heartbeat: %s", pulse->rank,
                       strerror(errno));
    /* Room for two beats of everybody; what the kernel charges for one is an estimate. */
    const int room = pulse->n_ranks * 2 * 1024;
    if (room > 200000)
        setsockopt(pulse->fd, SOL_SOCKET, SO_RCVBUF, &room, sizeof room);
    pulse->news_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    pulse->stop_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (pulse->news_fd < 0 || pulse->stop_fd < 0)
        return bl_fail(err, BL_ERR_IO, "rank %d cannot tell of its heartbeat: %s", pulse->rank,
                       strerror(errno));
    *port = ntohs(*port_of(&here));
    return BL_OK;
}

bl_status bl_pulse_open(int rank, int n_ranks, uint64_t key, double silence_s,
                        const struct sockaddr_storage *local, bl_pulse **out, uint16_t *port,
                        bl_error *err) {
    bl_pulse *pulse;
    bl_status st;
    BL_TRY(BL_CALLOC(pulse, 1, err));
    pulse->rank = rank;
    pulse->n_ranks = n_ranks;
    pulse->key = key;
    pulse->silence_s = silence_s;
    pulse->fd = pulse->news_fd = pulse->stop_fd = -1;
    pthread_mutex_init(&pulse->lock, NULL);
    BL_TRY_GOTO(st, BL_CALLOC(pulse->incarnation, n_ranks, err), err_close);
    BL_TRY_GOTO(st, BL_CALLOC(pulse->addresses, n_ranks, err), err_close);
    BL_TRY_GOTO(st, BL_CALLOC(pulse->heard_s, n_ranks, err), err_close);
    BL_TRY_GOTO(st, BL_CALLOC(pulse->silent, n_ranks, err), err_close);
    BL_TRY_GOTO(st, open_socket(pulse, local, port, err), err_close);
    *out = pulse;
    return BL_OK;
err_close:
    bl_pulse_close(pulse);
    return st;
}

bl_status bl_pulse_start(bl_pulse *pulse, const struct sockaddr_storage *addresses, bl_error *err) {
    memcpy(pulse->addresses, addresses, sizeof *addresses * (size_t)pulse->n_ranks);
    /* Signals are for the owner's thread. */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const int rc = pthread_create(&pulse->thread, NULL, run, pulse);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (rc != 0)
        return bl_fail(err, BL_ERR_NOMEM, "rank %d cannot start the thread of its heartbeat: %s",
                       pulse->rank, strerror(rc));
    pulse->is_started = true;
    return BL_OK;
}

void bl_pulse_renew(bl_pulse *pulse, int rank, const struct sockaddr_storage *address,
                    uint64_t incarnation) {
    pthread_mutex_lock(&pulse->lock);
    pulse->addresses[rank] = *address;
    pulse->incarnation[rank] = incarnation;
    pulse->heard_s[rank] = 0;
    pulse->silent[rank] = false;
    pthread_mutex_unlock(&pulse->lock);
}

int bl_pulse_fd(const bl_pulse *pulse) {
    return pulse->news_fd;
}

bool bl_pulse_read_news(bl_pulse *pulse) {
    uint64_t n;
    return read(pulse->news_fd, &n, sizeof n) == sizeof n;
}

bool bl_pulse_is_silent(const bl_pulse *pulse, int peer) {
    return pulse->silent[peer];
}

double bl_pulse_silence_s(const bl_pulse *pulse) {
    return pulse->silence_s;
}

static void close_fd(int fd) {
    if (fd >= 0)
        close(fd);
}

void bl_pulse_close(bl_pulse *pulse) {
    const uint64_t one = 1;
    if (pulse == NULL)
        return;
    if (pulse->is_started) {
        while (write(pulse->stop_fd, &one, sizeof one) < 0 && errno == EINTR)
            ;
        pthread_join(pulse->thread, NULL);
    }
    close_fd(pulse->fd);
    close_fd(pulse->news_fd);
    close_fd(pulse->stop_fd);
    pthread_mutex_destroy(&pulse->lock);
    free(pulse->incarnation);
    free(pulse->addresses);
    free(pulse->heard_s);
    free(pulse->silent);
    free(pulse);
}
