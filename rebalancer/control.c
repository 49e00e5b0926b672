/* The server's sockets. */
#include "rebalancer/control_parts.h"

#include "core/io.h"
#include "core/mem.h"
#include "core/progress.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAX_CLIENTS 32
#define BACKLOG 128 /* of connections that wait for a place */
#define EVICT_S 1.0 /* a client silent for longer gives way to a new one */
#define CONTROL_READ_BYTES ((size_t)64 << 10)
#define CLIENT_IDLE_S 60.0
#define LONGEST_WAIT_S 0.2
/* A line up to this long is read on the spot: at worst half a millisecond. */
#define READ_HERE_BYTES ((size_t)8 << 10)

/* A request being read, perhaps by a thread of its own. The thread and the session share it; the
 * last of the two to let go frees it. */
typedef struct job {
    char *line;
    size_t bytes;
    bl_status status;
    bl_error err;
    bl_control_request request;
    atomic_bool done;
    atomic_int holders;
} job;

typedef struct session {
    int fd; /* -1: free */
    double last_s;
    char *in;
    size_t in_bytes, in_capacity;
    size_t scanned; /* bytes of `in` that hold no end of a line */
    job *asked;     /* the request in hand, NULL: none */
    bl_control_who who;
    double waits_from_s; /* it waits for the end of a move; 0: it does not */
    char *out;
    size_t out_at, out_bytes;
} session;

struct bl_control {
    int fd;
    struct stat file; /* of the socket, to know it again */
    char path[108], rule[32];
    bl_control_cluster cluster;
    bl_control_epochs epochs;
    session clients[MAX_CLIENTS];
};

/* ---- sockets --------------------------------------------------------------------------------- */

static bool set_nonblocking(int fd) {
    const int flags = fcntl(fd, F_GETFL);
    return flags >= 0 && fcntl(fd, F_SETFL, flags | O_NONBLOCK) == 0;
}

/* Runs that start at once on one path go through here one by one: a leftover socket that two of
 * them found would be removed by the one, and by the other what the first had put there. The lock is
 * a file beside the socket; the system lets go of it when its holder dies, and a lock file that
 * somebody has removed meanwhile locks nothing. */
static bl_status lock_path(const char *path, int *lock, bl_error *err) {
    char name[128];
    snprintf(name, sizeof name, "%s.lock", path);
    for (;;) {
        struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
        struct stat held, there;
        const int fd = open(name, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, S_IRUSR | S_IWUSR);
        if (fd < 0)
            return bl_fail_at(err, BL_ERR_IO, bl_at(path), "cannot open the socket: %s: %s", name,
                              strerror(errno));
        int rc;
        do
            rc = fcntl(fd, F_SETLKW, &whole);
        while (rc != 0 && errno == EINTR);
        if (rc != 0) {
            bl_fail_at(err, BL_ERR_IO, bl_at(name), "cannot be locked: %s", strerror(errno));
            close(fd);
            return BL_ERR_IO;
        }
        if (fstat(fd, &held) == 0 && lstat(name, &there) == 0 && held.st_dev == there.st_dev &&
            held.st_ino == there.st_ino) {
            *lock = fd;
            return BL_OK;
        }
        close(fd);
    }
}

static void unlock_path(const char *path, int lock) {
    char name[128];
    snprintf(name, sizeof name, "%s.lock", path);
    unlink(name);
    close(lock);
}

/* Whether somebody other than the process `replaces` serves the socket at `path`; errno says why
 * that cannot be told. */
typedef enum served { SERVED_NO, SERVED_YES, SERVED_UNKNOWN } served;
static served is_served(const struct sockaddr_un *address, int64_t replaces) {
    const int fd = bl_control_socket();
    if (fd < 0)
        return SERVED_UNKNOWN;
    set_nonblocking(fd); /* a server too busy to accept is a living one */
    const int rc = connect(fd, (const struct sockaddr *)address, sizeof *address);
    const int why = errno;
    const bool lost = rc == 0 && replaces > 0 && bl_control_peer(fd).pid == replaces;
    close(fd);
    errno = why;
    if (rc == 0)
        return lost ? SERVED_NO : SERVED_YES;
    return why == ECONNREFUSED ? SERVED_NO : SERVED_UNKNOWN;
}

/* Make room at `path`: nothing there, or a socket that nobody serves any more, or nobody but the process
 * `replaces`. */
static bl_status clear_path(const char *path, const struct sockaddr_un *address, int64_t replaces,
                            served *by, bl_error *err) {
    struct stat info;
    *by = SERVED_NO;
    if (lstat(path, &info) != 0)
        return BL_OK;
    if (!S_ISSOCK(info.st_mode))
        return bl_fail_at(err, BL_ERR_STATE, bl_at(path), "exists and is no socket");
    *by = is_served(address, replaces);
    if (*by == SERVED_YES)
        return bl_fail_at(err, BL_ERR_STATE, bl_at(path),
                          "a running cluster answers there already; choose another --socket");
    if (*by == SERVED_UNKNOWN)
        return bl_fail_at(err, BL_ERR_STATE, bl_at(path), "is in use: %s", strerror(errno));
    unlink(path);
    return BL_OK;
}

/* Unlike who takes the path over, this does not wait for anybody to leave it. */
void bl_control_sweep(const char *path) {
    struct sockaddr_un address;
    struct stat info;
    int lock;
    if (bl_control_address(path, &address, NULL) < 0 || access(path, F_OK) != 0 ||
        lock_path(path, &lock, NULL) < 0)
        return;
    if (lstat(path, &info) == 0 && S_ISSOCK(info.st_mode) && is_served(&address, 0) == SERVED_NO)
        unlink(path);
    unlock_path(path, lock);
}

/* Between bind and listen nobody can connect, so the mode is right before anybody can. */
static bl_status listen_at(bl_control *control, const struct sockaddr_un *address, bl_error *err) {
    const char *path = control->path;
    if (bind(control->fd, (const struct sockaddr *)address, sizeof *address) != 0)
        return bl_fail_at(err, BL_ERR_IO, bl_at(path), "cannot open the socket: %s",
                          strerror(errno));
    if (chmod(path, S_IRUSR | S_IWUSR) != 0 || !set_nonblocking(control->fd) ||
        stat(path, &control->file) != 0 || listen(control->fd, BACKLOG) != 0) {
        bl_fail_at(err, BL_ERR_IO, bl_at(path), "cannot serve the socket: %s", strerror(errno));
        unlink(path);
        return BL_ERR_IO;
    }
    return BL_OK;
}

/* Alone at the path: from the look for a leftover until somebody can connect. */
static bl_status try_path(bl_control *control, const struct sockaddr_un *address, served *by,
                          bl_error *err) {
    int lock;
    BL_TRY(lock_path(control->path, &lock, err));
    bl_status st = clear_path(control->path, address, control->cluster.replaces_pid, by, err);
    if (st >= 0)
        st = listen_at(control, address, err);
    unlock_path(control->path, lock);
    return st;
}

static bl_status take_path(bl_control *control, const struct sockaddr_un *address, bl_error *err) {
    int tries = 0;
    served by = SERVED_NO;
    bl_status st;
    do
        st = try_path(control, address, &by, err);
    while (st < 0 && by == SERVED_YES && control->cluster.starts && bl_may_be_leaving(&tries));
    return st;
}

bl_status bl_control_open(const char *path, const bl_control_cluster *cluster, bl_control **out,
                          bl_error *err) {
    struct sockaddr_un address;
    BL_TRY(bl_control_address(path, &address, err));
    bl_control *control;
    BL_TRY(BL_CALLOC(control, 1, err));
    snprintf(control->path, sizeof control->path, "%s", path);
    snprintf(control->rule, sizeof control->rule, "%s", cluster->rule);
    control->cluster = *cluster;
    control->cluster.rule = control->rule;
    control->epochs.in_force = cluster->plan_epoch;
    control->epochs.by = control->epochs.drained_by = (bl_control_who){-1, -1};
    for (int c = 0; c < MAX_CLIENTS; c++)
        control->clients[c].fd = -1;
    control->fd = bl_control_socket();
    const bl_status st = control->fd >= 0
                             ? take_path(control, &address, err)
                             : bl_fail(err, BL_ERR_IO, "cannot make a socket: %s", strerror(errno));
    if (st < 0) {
        if (control->fd >= 0)
            close(control->fd);
        free(control);
        return st;
    }
    *out = control;
    return BL_OK;
}

/* ---- reading requests ------------------------------------------------------------------------ */

static void let_go(job *j) {
    if (j == NULL || atomic_fetch_sub(&j->holders, 1) > 1)
        return;
    bl_control_request_free(&j->request);
    free(j->line);
    free(j);
}

static void *read_request(void *user) {
    job *j = user;
    j->status = bl_control_parse(j->line, j->bytes, &j->request, &j->err);
    atomic_store(&j->done, true);
    let_go(j);
    return NULL;
}

/* Read a line (copied); NULL when out of memory. */
static job *start_reading(const char *line, size_t bytes) {
    job *j = bl_calloc(1, sizeof *j);
    pthread_attr_t attributes;
    pthread_t thread;
    if (j == NULL)
        return NULL;
    j->err = BL_ERROR_INIT;
    j->bytes = bytes;
    j->line = bl_calloc(bytes, 1);
    if (j->line == NULL) {
        free(j);
        return NULL;
    }
    memcpy(j->line, line, bytes);
    atomic_init(&j->done, false);
    atomic_init(&j->holders, 2);
    bool started = false;
    if (bytes > READ_HERE_BYTES && pthread_attr_init(&attributes) == 0) {
        pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
        started = pthread_create(&thread, &attributes, read_request, j) == 0;
        pthread_attr_destroy(&attributes);
    }
    if (!started)
        read_request(j);
    return j;
}

/* ---- clients --------------------------------------------------------------------------------- */

static void drop(session *c) {
    close(c->fd);
    let_go(c->asked);
    free(c->in);
    free(c->out);
    *c = (session){.fd = -1};
}

/* A free place, if need be that of the client that has been silent longest and waits for nothing; NULL
 * when all are busy: then whoever comes waits in the backlog. */
static session *place_for_client(bl_control *control, double now_s) {
    session *oldest = NULL;
    for (int c = 0; c < MAX_CLIENTS; c++) {
        session *at = &control->clients[c];
        if (at->fd < 0)
            return at;
        if (at->asked == NULL && now_s - at->last_s > EVICT_S &&
            (oldest == NULL || at->last_s < oldest->last_s))
            oldest = at;
    }
    if (oldest != NULL)
        drop(oldest);
    return oldest;
}

/* All who wait, as far as there are places; false when there is nobody or no place. */
static bool admit(bl_control *control, double now_s) {
    session *c = place_for_client(control, now_s);
    const int fd = c != NULL ? accept(control->fd, NULL, NULL) : -1;
    if (fd < 0)
        return false;
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    if (!set_nonblocking(fd))
        close(fd);
    else
        *c = (session){.fd = fd, .who = bl_control_peer(fd), .last_s = now_s};
    return true;
}

/* Give the client what it still has to get; drops it when it is gone. */
static void flush_client(session *c, double now_s) {
    while (c->out_at < c->out_bytes) {
        const ssize_t n = send(c->fd, c->out + c->out_at, c->out_bytes - c->out_at, MSG_NOSIGNAL);
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR))
            return;
        if (n <= 0) {
            drop(c);
            return;
        }
        c->out_at += (size_t)n;
        c->last_s = now_s;
    }
    free(c->out);
    c->out = NULL;
    c->out_at = c->out_bytes = 0;
}

static void queue_answer(session *c, json_t *answer, double now_s) {
    char *text = answer != NULL ? json_dumps(answer, JSON_COMPACT) : NULL;
    json_decref(answer);
    if (text == NULL) {
        drop(c);
        return;
    }
    c->out_bytes = strlen(text);
    text[c->out_bytes++] = '\n'; /* in place of the terminator: the length is known */
    c->out = text;
    c->out_at = 0;
    flush_client(c, now_s);
}

/* Take the next complete line, if there is one, as the request in hand. */
static void take_line(session *c) {
    const char *end =
        c->in_bytes > 0 ? memchr(c->in + c->scanned, '\n', c->in_bytes - c->scanned) : NULL;
    if (end == NULL) {
        c->scanned = c->in_bytes;
        if (c->in_bytes > BL_CONTROL_MAX_REQUEST)
            drop(c);
        return;
    }
    const size_t line = (size_t)(end - c->in);
    c->asked = start_reading(c->in, line);
    if (c->asked == NULL) {
        drop(c);
        return;
    }
    c->in_bytes -= line + 1;
    c->scanned = 0;
    memmove(c->in, c->in + line + 1, c->in_bytes);
}

/* Answer the request in hand when it has been read and need not wait. One at a time: the answer to
 * one must be taken before the next is looked at. */
static void answer_request(bl_control *control, session *c, bl_agent *agent, double now_s) {
    if (c->out == NULL && c->asked == NULL)
        take_line(c);
    if (c->asked == NULL || !atomic_load(&c->asked->done))
        return;
    job *j = c->asked;
    j->request.who = c->who;
    if (c->waits_from_s <= 0)
        c->waits_from_s = now_s;
    const bool may_wait = now_s - c->waits_from_s < LONGEST_WAIT_S;
    json_t *answer = j->status >= 0 ? bl_control_answer(&j->request, may_wait, &control->cluster,
                                                        &control->epochs, agent)
                                    : bl_control_refusal(&j->err);
    if (answer == NULL && (may_wait || j->request.op == BL_CONTROL_APPLY))
        return; /* for the end of a move, a window of load, or the journal's disk */
    let_go(c->asked);
    c->asked = NULL;
    c->waits_from_s = 0;
    c->last_s = now_s;
    queue_answer(c, answer, now_s);
}

static void hear(session *c, double now_s) {
    void *in = c->in;
    const bl_status st = bl_grow(&in, &c->in_capacity, c->in_bytes + CONTROL_READ_BYTES, 1, NULL);
    c->in = in;
    if (st < 0 || c->in_bytes > BL_CONTROL_MAX_REQUEST + CONTROL_READ_BYTES) {
        drop(c);
        return;
    }
    const ssize_t n = recv(c->fd, c->in + c->in_bytes, CONTROL_READ_BYTES, 0);
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR))
        return;
    if (n <= 0) {
        drop(c);
        return;
    }
    c->in_bytes += (size_t)n;
    c->last_s = now_s;
}

void bl_control_poll(bl_control *control, bl_agent *agent) {
    struct pollfd fds[MAX_CLIENTS + 1];
    session *owner[MAX_CLIENTS + 1];
    nfds_t n = 0;
    fds[n++] = (struct pollfd){.fd = control->fd, .events = POLLIN};
    for (int i = 0; i < MAX_CLIENTS; i++) {
        session *c = &control->clients[i];
        if (c->fd < 0)
            continue;
        owner[n] = c;
        fds[n++] = (struct pollfd){.fd = c->fd, .events = c->out != NULL ? POLLOUT : POLLIN};
    }
    const int ready = poll(fds, n, 0);
    const double now_s = bl_now_s();
    bl_control_settle(&control->cluster, &control->epochs, agent);
    for (nfds_t i = 1; i < n; i++) {
        session *c = owner[i];
        if (ready > 0 && fds[i].revents != 0 && c->out != NULL)
            flush_client(c, now_s);
        else if (ready > 0 && fds[i].revents != 0)
            hear(c, now_s);
        if (c->fd >= 0)
            answer_request(control, c, agent, now_s);
        if (c->fd >= 0 && now_s - c->last_s > CLIENT_IDLE_S)
            drop(c);
    }
    for (int i = 0; ready > 0 && fds[0].revents != 0 && i < MAX_CLIENTS; i++) {
        if (!admit(control, now_s))
            break;
    }
}

void bl_control_hold(bl_control *control, const char *why) {
    control->epochs.held = why;
}

void bl_control_note_loss(bl_control *control, const bool *lost, int n_orphans) {
    json_t *ranks = json_array();
    if (control->cluster.journal == NULL) {
        json_decref(ranks);
        return;
    }
    for (int rank = 0; rank < control->cluster.n_ranks; rank++) {
        if (lost[rank])
            json_array_append_new(ranks, json_integer(rank));
    }
    bl_journal_append(control->cluster.journal, json_pack("{s:s, s:o, s:i}", "what", "loss", "lost",
                                                          ranks, "loaded", n_orphans));
}

void bl_control_note_return(bl_control *control, int rank) {
    if (control->cluster.journal != NULL)
        bl_journal_append(control->cluster.journal,
                          json_pack("{s:s, s:i}", "what", "return", "rank", rank));
}

/* What the client reads next, whatever it has asked or is about to ask. */
static void say_goodbye(bl_control *control, session *c, bl_agent *agent) {
    bl_control_request status = {.op = BL_CONTROL_STATUS};
    if (c->out != NULL || agent == NULL)
        return;
    json_t *last = bl_control_answer(&status, false, &control->cluster, &control->epochs, agent);
    json_object_set_new(last, "ended", json_true());
    queue_answer(c, last, bl_now_s());
}

void bl_control_close(bl_control *control, bl_agent *agent) {
    if (control == NULL)
        return;
    if (agent != NULL)
        bl_control_settle(&control->cluster, &control->epochs, agent);
    for (int i = 0; i < MAX_CLIENTS; i++) {
        session *c = &control->clients[i];
        if (c->fd >= 0)
            say_goodbye(control, c, agent);
        if (c->fd >= 0)
            drop(c);
    }
    struct stat now; /* it may have been removed, and be another run's by now */
    if (lstat(control->path, &now) == 0 && now.st_dev == control->file.st_dev &&
        now.st_ino == control->file.st_ino)
        unlink(control->path);
    close(control->fd);
    free(control);
}
