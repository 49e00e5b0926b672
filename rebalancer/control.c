/* The server's sockets. */
#include "rebalancer/control_parts.h"

#include "core/mem.h"
#include "core/progress.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAX_CLIENTS 16
#define CONTROL_READ_BYTES ((size_t)64 << 10)
#define CLIENT_IDLE_S 60.0
#define LONGEST_WAIT_S 0.2

typedef struct session {
    int fd; /* -1: free */
    double last_s;
    char *in;
    size_t in_bytes, in_capacity;
    size_t scanned;      /* bytes of `in` that hold no end of a line */
    double waits_from_s; /* its request at the front of `in` waits for the end of a move; 0: no */
    char *out;
    size_t out_at, out_bytes;
} session;

struct bl_control {
    int fd;
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

/* Make room at `path`: nothing there, or a socket that nobody serves any more. */
static bl_status clear_path(const char *path, const struct sockaddr_un *address, bl_error *err) {
    struct stat info;
    if (lstat(path, &info) != 0)
        return BL_OK;
    if (!S_ISSOCK(info.st_mode))
        return bl_fail_at(err, BL_ERR_STATE, bl_at(path), "exists and is no socket");
    const int fd = bl_control_socket();
    if (fd < 0)
        return bl_fail(err, BL_ERR_IO, "cannot make a socket: %s", strerror(errno));
    set_nonblocking(fd); /* a server too busy to accept is a living one */
    const int rc = connect(fd, (const struct sockaddr *)address, sizeof *address);
    const int why = errno;
    close(fd);
    if (rc == 0)
        return bl_fail_at(err, BL_ERR_STATE, bl_at(path),
                          "a running cluster answers there already; choose another --socket");
    if (why != ECONNREFUSED)
        return bl_fail_at(err, BL_ERR_STATE, bl_at(path), "is in use: %s", strerror(why));
    unlink(path);
    return BL_OK;
}

/* Between bind and listen nobody can connect, so the mode is right before anybody can. */
static bl_status listen_at(bl_control *control, const struct sockaddr_un *address, bl_error *err) {
    const char *path = control->path;
    if (bind(control->fd, (const struct sockaddr *)address, sizeof *address) != 0)
        return bl_fail_at(err, BL_ERR_IO, bl_at(path), "cannot open the socket: %s",
                          strerror(errno));
    if (chmod(path, S_IRUSR | S_IWUSR) != 0 || !set_nonblocking(control->fd) ||
        listen(control->fd, MAX_CLIENTS) != 0) {
        bl_fail_at(err, BL_ERR_IO, bl_at(path), "cannot serve the socket: %s", strerror(errno));
        unlink(path);
        return BL_ERR_IO;
    }
    return BL_OK;
}

bl_status bl_control_open(const char *path, const bl_control_cluster *cluster, bl_control **out,
                          bl_error *err) {
    struct sockaddr_un address;
    BL_TRY(bl_control_address(path, &address, err));
    BL_TRY(clear_path(path, &address, err));
    bl_control *control;
    BL_TRY(BL_CALLOC(control, 1, err));
    snprintf(control->path, sizeof control->path, "%s", path);
    snprintf(control->rule, sizeof control->rule, "%s", cluster->rule);
    control->cluster = *cluster;
    control->cluster.rule = control->rule;
    control->epochs.in_force = cluster->plan_epoch;
    for (int c = 0; c < MAX_CLIENTS; c++)
        control->clients[c].fd = -1;
    control->fd = bl_control_socket();
    const bl_status st = control->fd >= 0
                             ? listen_at(control, &address, err)
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

/* ---- clients --------------------------------------------------------------------------------- */

static void drop(session *c) {
    close(c->fd);
    free(c->in);
    free(c->out);
    *c = (session){.fd = -1};
}

/* A free place, if need be that of the client that has been silent longest. */
static session *place_for_client(bl_control *control) {
    session *oldest = &control->clients[0];
    for (int c = 0; c < MAX_CLIENTS; c++) {
        session *at = &control->clients[c];
        if (at->fd < 0)
            return at;
        if (at->last_s < oldest->last_s)
            oldest = at;
    }
    drop(oldest);
    return oldest;
}

static void admit(bl_control *control, double now_s) {
    const int fd = accept(control->fd, NULL, NULL);
    if (fd < 0)
        return;
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    if (!set_nonblocking(fd)) {
        close(fd);
        return;
    }
    session *c = place_for_client(control);
    *c = (session){.fd = fd, .last_s = now_s};
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

/* One request per call: the answer to one must be taken before the next is looked at. */
static void answer_line(bl_control *control, session *c, bl_agent *agent, double now_s) {
    if (c->out != NULL || c->in_bytes == 0)
        return;
    const char *end = memchr(c->in + c->scanned, '\n', c->in_bytes - c->scanned);
    if (end == NULL) {
        c->scanned = c->in_bytes;
        if (c->in_bytes > BL_CONTROL_MAX_REQUEST)
            drop(c);
        return;
    }
    const size_t line = (size_t)(end - c->in);
    const bool may_wait = c->waits_from_s <= 0 || now_s - c->waits_from_s < LONGEST_WAIT_S;
    json_t *answer =
        bl_control_answer(c->in, line, may_wait, &control->cluster, &control->epochs, agent);
    if (answer == NULL && may_wait) {
        if (c->waits_from_s <= 0)
            c->waits_from_s = now_s;
        return;
    }
    c->waits_from_s = 0;
    c->in_bytes -= line + 1;
    c->scanned = 0;
    memmove(c->in, c->in + line + 1, c->in_bytes);
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
    for (nfds_t i = 1; i < n; i++) {
        session *c = owner[i];
        if (ready > 0 && fds[i].revents != 0 && c->out != NULL)
            flush_client(c, now_s);
        else if (ready > 0 && fds[i].revents != 0)
            hear(c, now_s);
        if (c->fd >= 0)
            answer_line(control, c, agent, now_s);
        if (c->fd >= 0 && now_s - c->last_s > CLIENT_IDLE_S)
            drop(c);
    }
    if (ready > 0 && fds[0].revents != 0)
        admit(control, now_s);
}

/* What the client reads next, whatever it has asked or is about to ask. */
static void say_goodbye(bl_control *control, session *c, bl_agent *agent) {
    static const char ask[] = "{\"op\":\"status\"}";
    if (c->out != NULL || agent == NULL)
        return;
    json_t *last =
        bl_control_answer(ask, sizeof ask - 1, false, &control->cluster, &control->epochs, agent);
    json_object_set_new(last, "ended", json_true());
    queue_answer(c, last, bl_now_s());
}

void bl_control_close(bl_control *control, bl_agent *agent) {
    if (control == NULL)
        return;
    for (int i = 0; i < MAX_CLIENTS; i++) {
        session *c = &control->clients[i];
        if (c->fd >= 0)
            say_goodbye(control, c, agent);
        if (c->fd >= 0)
            drop(c);
    }
    close(control->fd);
    unlink(control->path);
    free(control);
}
