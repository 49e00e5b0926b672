#include "runtime/rendezvous.h"

#include "core/hash.h"
#include "core/mem.h"
#include "core/progress.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define MAGIC UINT64_C(0x324b4e5254534c42) /* "BLSTRNK2" read as a little-endian number */

/* Rank 0 listens to so many at once, besides the ranks, that have not said who they are. */
#define MOST_STRANGERS 64

typedef struct greeting {
    uint64_t magic, job;
    int32_t n_ranks, rank;
    bl_peer_card card; /* its address holds a port only */
} greeting;

typedef struct verdict {
    uint64_t magic;
    int32_t status;
    char why[116];
} verdict;

static int left_ms(double until_s) {
    const double left_s = until_s - bl_now_s();
    if (left_s <= 0)
        return 0;
    return left_s < 1e6 ? (int)(left_s * 1e3) + 1 : 1000000000;
}

static bool wait_readable(int fd, double until_s) {
    struct pollfd polled = {fd, POLLIN, 0};
    int n;
    do
        n = poll(&polled, 1, left_ms(until_s));
    while (n < 0 && errno == EINTR);
    return n > 0;
}

/* False at the end of the stream, on an error and past the deadline. */
static bool read_all(int fd, void *data, size_t bytes, double until_s) {
    unsigned char *at = data;
    while (bytes > 0) {
        if (!wait_readable(fd, until_s))
            return false;
        const ssize_t n = recv(fd, at, bytes, 0);
        if (n == 0 || (n < 0 && errno != EINTR))
            return false;
        if (n > 0) {
            at += n;
            bytes -= (size_t)n;
        }
    }
    return true;
}

/* What is written here fits any socket buffer. */
static bool write_all(int fd, const void *data, size_t bytes) {
    const unsigned char *at = data;
    while (bytes > 0) {
        const ssize_t n = send(fd, at, bytes, MSG_NOSIGNAL);
        if (n < 0 && errno != EINTR)
            return false;
        if (n > 0) {
            at += n;
            bytes -= (size_t)n;
        }
    }
    return true;
}

uint16_t bl_address_port(const struct sockaddr_storage *address) {
    if (address->ss_family == AF_INET6)
        return ntohs(((const struct sockaddr_in6 *)address)->sin6_port);
    return ntohs(((const struct sockaddr_in *)address)->sin_port);
}

void bl_address_set_port(struct sockaddr_storage *address, uint16_t port) {
    if (address->ss_family == AF_INET6)
        ((struct sockaddr_in6 *)address)->sin6_port = htons(port);
    else
        ((struct sockaddr_in *)address)->sin_port = htons(port);
}

/* ---- open ----------------------------------------------------------------------------------- */

/* "host:port" or "[v6]:port" into addresses; freed with freeaddrinfo(). */
static bl_status resolve(const char *text, bool to_listen, struct addrinfo **out, bl_error *err) {
    char host[256];
    const char *colon = text != NULL ? strrchr(text, ':') : NULL;
    const int port = colon != NULL ? atoi(colon + 1) : 0; /* getaddrinfo() checks the rest */
    if (colon == NULL || colon == text || (size_t)(colon - text) >= sizeof host || port < 1 ||
        port > 65535)
        return bl_fail(err, BL_ERR_USAGE, "the ranks' meeting point \"%s\" is not HOST:PORT",
                       text != NULL ? text : "");
    const char *start = text;
    size_t length = (size_t)(colon - text);
    if (length > 2 && text[0] == '[' && colon[-1] == ']') {
        start++;
        length -= 2;
    }
    memcpy(host, start, length);
    host[length] = '\0';
    const struct addrinfo hints = {.ai_family = AF_UNSPEC,
                                   .ai_socktype = SOCK_STREAM,
                                   .ai_flags = AI_NUMERICSERV | (to_listen ? AI_PASSIVE : 0)};
    const int rc = getaddrinfo(host, colon + 1, &hints, out);
    if (rc != 0)
        return bl_fail(err, BL_ERR_USAGE, "cannot resolve the ranks' meeting point \"%s\": %s",
                       text, gai_strerror(rc));
    return BL_OK;
}

static bl_status start_listening(bl_rendezvous *meeting, bl_error *err) {
    const bl_ucx_options *options = meeting->options;
    struct addrinfo *found;
    BL_TRY(resolve(options->rendezvous, true, &found, err));
    int cause = 0;
    for (struct addrinfo *at = found; at != NULL && meeting->fd < 0; at = at->ai_next) {
        const int on = 1, fd = socket(at->ai_family, at->ai_socktype, at->ai_protocol);
        if (fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0 &&
            bind(fd, at->ai_addr, at->ai_addrlen) == 0 && listen(fd, options->n_ranks) == 0) {
            meeting->fd = fd;
        } else {
            cause = errno;
            if (fd >= 0)
                close(fd);
        }
    }
    freeaddrinfo(found);
    if (meeting->fd < 0)
        return bl_fail(err, BL_ERR_IO, "rank 0 cannot listen on %s: %s", options->rendezvous,
                       strerror(cause));
    return BL_OK;
}

/* Rank 0 may not listen yet: try until the deadline. */
static bl_status reach_rank_0(bl_rendezvous *meeting, bl_error *err) {
    const bl_ucx_options *options = meeting->options;
    struct addrinfo *found;
    BL_TRY(resolve(options->rendezvous, false, &found, err));
    int cause = 0;
    while (meeting->fd < 0) {
        for (struct addrinfo *at = found; at != NULL && meeting->fd < 0; at = at->ai_next) {
            const int fd = socket(at->ai_family, at->ai_socktype, at->ai_protocol);
            const struct timeval left = {left_ms(meeting->until_s) / 1000 + 1, 0};
            if (fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &left, sizeof left) == 0 &&
                connect(fd, at->ai_addr, at->ai_addrlen) == 0) {
                meeting->fd = fd;
            } else {
                cause = errno;
                if (fd >= 0)
                    close(fd);
            }
        }
        if (meeting->fd < 0 && left_ms(meeting->until_s) == 0)
            break;
        if (meeting->fd < 0)
            nanosleep(&(struct timespec){0, 20000000}, NULL);
    }
    freeaddrinfo(found);
    if (meeting->fd < 0)
        return bl_fail(err, BL_ERR_TIMEOUT, "rank %d could not reach rank 0 at %s for %g s: %s",
                       options->rank, options->rendezvous, options->deadline_s, strerror(cause));
    return BL_OK;
}

bl_status bl_rendezvous_open(const bl_ucx_options *options, bl_rendezvous *out, bl_error *err) {
    bl_rendezvous meeting = {.options = options,
                             .until_s = bl_now_s() + options->deadline_s,
                             .fd = options->rank == 0 ? options->rendezvous_fd : -1,
                             .local_bytes = sizeof meeting.local};
    if (options->rank != 0)
        BL_TRY(reach_rank_0(&meeting, err));
    else if (meeting.fd < 0)
        BL_TRY(start_listening(&meeting, err));
    if (getsockname(meeting.fd, (struct sockaddr *)&meeting.local, &meeting.local_bytes) != 0 ||
        (meeting.local.ss_family != AF_INET && meeting.local.ss_family != AF_INET6)) {
        bl_rendezvous_close(&meeting);
        return bl_fail(err, BL_ERR_IO, "the socket for the ranks to meet is not a TCP socket");
    }
    bl_address_set_port(&meeting.local, 0);
    *out = meeting;
    return BL_OK;
}

void bl_rendezvous_close(bl_rendezvous *meeting) {
    if (meeting->fd >= 0)
        close(meeting->fd);
    meeting->fd = -1;
}

/* ---- rank 0: gather and tell ---------------------------------------------------------------- */

static void refuse(int fd, bl_status status, const char *why) {
    verdict no = {.magic = MAGIC, .status = status};
    snprintf(no.why, sizeof no.why, "%s", why);
    write_all(fd, &no, sizeof no);
    close(fd);
}

/* Somebody who came and has not yet said all. */
typedef struct newcomer {
    int fd;
    size_t bytes; /* of its greeting so far */
    greeting hello;
} newcomer;

/* Who has come. */
typedef struct guests {
    int *
        connections; /* [n_ranks] of those that were let in, which stay open until they are told; -1 */
    int n_known;     /* of them, rank 0 too */
    newcomer *waiting; /* [capacity] in the order they came */
    int n_waiting, capacity;
} guests;

/* Its greeting is whole: let it in, or send it away. */
static void receive_newcomer(const bl_rendezvous *meeting, const newcomer *who, guests *here,
                             bl_peer_card *cards) {
    const int n_ranks = meeting->options->n_ranks, fd = who->fd;
    const greeting *hello = &who->hello;
    char why[116];
    if (hello->magic != MAGIC) {
        close(fd); /* not one of ours */
        return;
    }
    if (hello->job != meeting->options->job) {
        refuse(fd, BL_ERR_STATE, "rank 0 there belongs to another run");
        return;
    }
    if (hello->n_ranks != n_ranks || hello->rank < 1 || hello->rank >= n_ranks) {
        snprintf(why, sizeof why, "rank 0 expects %d ranks, not %d", n_ranks, hello->n_ranks);
        refuse(fd, BL_ERR_USAGE, why);
        return;
    }
    if (here->connections[hello->rank] >= 0) {
        snprintf(why, sizeof why, "another process is rank %d already", hello->rank);
        refuse(fd, BL_ERR_USAGE, why);
        return;
    }
    bl_peer_card *card = &cards[hello->rank];
    *card = hello->card;
    socklen_t bytes = sizeof card->address;
    if (getpeername(fd, (struct sockaddr *)&card->address, &bytes) != 0) {
        close(fd);
        return;
    }
    bl_address_set_port(&card->address, bl_address_port(&hello->card.address));
    here->connections[hello->rank] = fd;
    here->n_known++;
}

/* What it has said since; true when there is no more to wait for. */
static bool hear_newcomer(const bl_rendezvous *meeting, newcomer *who, guests *here,
                          bl_peer_card *cards) {
    const ssize_t n = recv(who->fd, (unsigned char *)&who->hello + who->bytes,
                           sizeof who->hello - who->bytes, MSG_DONTWAIT);
    if (n < 0 && (errno == EINTR || errno == EAGAIN))
        return false;
    if (n <= 0) {
        close(who->fd);
        return true;
    }
    who->bytes += (size_t)n;
    if (who->bytes < sizeof who->hello)
        return false;
    receive_newcomer(meeting, who, here, cards);
    return true;
}

/* A rank may be slow to say who it is, so nobody is sent away for that; but whoever has said nothing for
 * longest goes when too many do. */
static void admit(const bl_rendezvous *meeting, guests *here) {
    const int fd = accept(meeting->fd, NULL, NULL);
    if (fd < 0)
        return;
    if (here->n_waiting == here->capacity) {
        close(here->waiting[0].fd);
        here->n_waiting--;
        memmove(here->waiting, here->waiting + 1, sizeof *here->waiting * (size_t)here->n_waiting);
    }
    here->waiting[here->n_waiting++] = (newcomer){.fd = fd};
}

static bl_status fail_missing(const bl_rendezvous *meeting, const int *connections, bl_error *err) {
    char missing[128] = "";
    size_t length = 0;
    for (int rank = 1; rank < meeting->options->n_ranks && length < sizeof missing - 8; rank++)
        if (connections[rank] < 0)
            length += (size_t)snprintf(missing + length, sizeof missing - length, " %d", rank);
    return bl_fail(err, BL_ERR_TIMEOUT, "rank 0 waited %g s for ranks that did not come:%s",
                   meeting->options->deadline_s, missing);
}

static bl_status gather(const bl_rendezvous *meeting, guests *here, bl_peer_card *cards,
                        bl_error *err) {
    struct pollfd *polled;
    BL_TRY(BL_CALLOC(polled, here->capacity + 1, err));
    while (here->n_known < meeting->options->n_ranks) {
        const int n = here->n_waiting;
        int left = 0;
        polled[n] = (struct pollfd){meeting->fd, POLLIN, 0};
        for (int i = 0; i < n; i++)
            polled[i] = (struct pollfd){here->waiting[i].fd, POLLIN, 0};
        const int ready = poll(polled, (nfds_t)n + 1, left_ms(meeting->until_s));
        if (ready == 0 && left_ms(meeting->until_s) == 0) {
            free(polled);
            return fail_missing(meeting, here->connections, err);
        }
        for (int i = 0; i < n; i++) {
            newcomer *who = &here->waiting[i];
            if (ready <= 0 || polled[i].revents == 0 || !hear_newcomer(meeting, who, here, cards))
                here->waiting[left++] = *who;
        }
        here->n_waiting = left;
        if (ready > 0 && polled[n].revents != 0)
            admit(meeting, here);
    }
    free(polled);
    return BL_OK;
}

static bl_status tell(const bl_rendezvous *meeting, const bl_peer_card *mine,
                      const int *connections, bl_peer_card *cards, bl_error *err) {
    const int n_ranks = meeting->options->n_ranks;
    const verdict yes = {.magic = MAGIC, .status = BL_OK};
    for (int rank = 1; rank < n_ranks; rank++) {
        /* Each sees rank 0 by the address it came to. */
        cards[0] = *mine;
        socklen_t bytes = sizeof cards[0].address;
        if (getsockname(connections[rank], (struct sockaddr *)&cards[0].address, &bytes) != 0)
            return bl_fail(err, BL_ERR_PEER, "rank %d left the meeting", rank);
        bl_address_set_port(&cards[0].address, bl_address_port(&mine->address));
        if (!write_all(connections[rank], &yes, sizeof yes) ||
            !write_all(connections[rank], cards, sizeof *cards * (size_t)n_ranks))
            return bl_fail(err, BL_ERR_PEER, "rank %d left the meeting", rank);
    }
    return BL_OK;
}

static bl_status host(const bl_rendezvous *meeting, const bl_peer_card *mine, bl_peer_card *cards,
                      bl_error *err) {
    const int n_ranks = meeting->options->n_ranks;
    guests here = {.n_known = 1, .capacity = n_ranks + MOST_STRANGERS};
    BL_TRY(BL_CALLOC(here.connections, n_ranks, err));
    for (int rank = 0; rank < n_ranks; rank++)
        here.connections[rank] = -1;
    bl_status st = BL_CALLOC(here.waiting, here.capacity, err);
    if (st == BL_OK)
        st = gather(meeting, &here, cards, err);
    if (st == BL_OK)
        st = tell(meeting, mine, here.connections, cards, err);
    for (int i = 0; i < here.n_waiting; i++)
        close(here.waiting[i].fd);
    for (int rank = 0; rank < n_ranks; rank++)
        if (here.connections[rank] >= 0)
            close(here.connections[rank]);
    free(here.waiting);
    free(here.connections);
    return st;
}

/* ---- the others ----------------------------------------------------------------------------- */

static bl_status visit(const bl_rendezvous *meeting, const bl_peer_card *mine, bl_peer_card *cards,
                       bl_error *err) {
    const bl_ucx_options *options = meeting->options;
    const greeting hello = {
        .magic = MAGIC,
        .job = options->job,
        .n_ranks = options->n_ranks,
        .rank = options->rank,
        .card = *mine,
    };
    verdict said;
    if (!write_all(meeting->fd, &hello, sizeof hello) ||
        !read_all(meeting->fd, &said, sizeof said, meeting->until_s) || said.magic != MAGIC)
        return bl_fail(err, left_ms(meeting->until_s) == 0 ? BL_ERR_TIMEOUT : BL_ERR_PEER,
                       "rank %d got no answer from rank 0 at %s, which gave up or waits for others",
                       options->rank, options->rendezvous);
    said.why[sizeof said.why - 1] = '\0';
    if (said.status < 0)
        return bl_fail(err, (bl_status)said.status, "rank %d was turned away at %s: %s",
                       options->rank, options->rendezvous, said.why);
    if (!read_all(meeting->fd, cards, sizeof *cards * (size_t)options->n_ranks, meeting->until_s))
        return bl_fail(err, BL_ERR_PEER, "rank 0 left the meeting at %s", options->rendezvous);
    return BL_OK;
}

uint64_t bl_host_identity(void) {
    static const char *const spaces[] = {"/proc/self/ns/net", "/proc/self/ns/pid"};
    char text[256] = "";
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "r");
    size_t length = file != NULL ? fread(text, 1, 64, file) : 0;
    if (file != NULL)
        fclose(file);
    if (length == 0)
        return 0;
    for (size_t s = 0; s < sizeof spaces / sizeof *spaces; s++) {
        const ssize_t n = readlink(spaces[s], text + length, 64);
        if (n <= 0)
            return 0;
        length += (size_t)n;
    }
    return bl_hash64(text, length);
}

bl_status bl_rendezvous_exchange(bl_rendezvous *meeting, uint16_t port, uint16_t pulse_port,
                                 bl_peer_card *cards, bl_error *err) {
    bl_peer_card mine = {
        .host = bl_host_identity(),
        .pid = (int32_t)getpid(),
        .pulse_port = pulse_port,
    };
    mine.address.ss_family = meeting->local.ss_family;
    bl_address_set_port(&mine.address, port);
    const bl_status st = meeting->options->rank == 0 ? host(meeting, &mine, cards, err)
                                                     : visit(meeting, &mine, cards, err);
    if (st == BL_OK && meeting->options->rank == 0)
        cards[0] = mine;
    return st;
}
