/* The operator's side of the socket, and what both sides share. */
#include "rebalancer/control_parts.h"

#include "core/mem.h"
#include "core/progress.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>

#define READ_BYTES ((size_t)64 << 10)
#define CONNECT_S 10.0

/* ---- addresses ------------------------------------------------------------------------------- */

void bl_control_default_path(char *out, size_t bytes) {
    const char *named = getenv("BALLAST_SOCKET"), *dir = getenv("XDG_RUNTIME_DIR");
    if (named != NULL && named[0] != '\0')
        snprintf(out, bytes, "%s", named);
    else if (dir != NULL && dir[0] == '/')
        snprintf(out, bytes, "%s/ballast.sock", dir);
    else
        snprintf(out, bytes, "/tmp/ballast-%lu.sock", (unsigned long)getuid());
}

bl_status bl_control_address(const char *path, struct sockaddr_un *out, bl_error *err) {
    *out = (struct sockaddr_un){.sun_family = AF_UNIX};
    if (path[0] == '\0' || strlen(path) >= sizeof out->sun_path)
        return bl_fail_at(err, BL_ERR_RANGE, bl_at(path),
                          "a socket's path has 1 to %zu bytes, this one %zu",
                          sizeof out->sun_path - 1, strlen(path));
    memcpy(out->sun_path, path, strlen(path) + 1);
    return BL_OK;
}

int bl_control_socket(void) {
    const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    if (fd >= 0)
        fcntl(fd, F_SETFD, FD_CLOEXEC);
    return fd;
}

/* ---- the operator's side --------------------------------------------------------------------- */

/* Of a server that stands still: neither connecting nor sending waits longer. */
static void set_send_deadline(int fd, double seconds) {
    const struct timeval limit = {.tv_sec = (time_t)seconds + 1};
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
}

bl_status bl_control_connect(const char *path, bl_control_client *out, bl_error *err) {
    struct sockaddr_un address;
    BL_TRY(bl_control_address(path, &address, err));
    const int fd = bl_control_socket();
    if (fd < 0)
        return bl_fail(err, BL_ERR_IO, "cannot make a socket: %s", strerror(errno));
    set_send_deadline(fd, CONNECT_S);
    if (connect(fd, (const struct sockaddr *)&address, sizeof address) != 0) {
        const int why = errno;
        close(fd);
        if (why == EAGAIN)
            return bl_fail_at(err, BL_ERR_TIMEOUT, bl_at(path),
                              "the cluster took no connection for %g s; does it still step?",
                              CONNECT_S);
        struct stat info;
        if (why == EACCES)
            return bl_fail_at(
                err, BL_ERR_IO, bl_at(path),
                "permission denied; only the user who started a cluster may speak to it");
        if (stat(path, &info) == 0 && !S_ISSOCK(info.st_mode))
            return bl_fail_at(err, BL_ERR_IO, bl_at(path), "is no socket");
        return bl_fail_at(err, BL_ERR_IO, bl_at(path),
                          "no cluster answers there (%s); start one with ballast run --socket PATH",
                          strerror(why));
    }
    out->fd = fd;
    snprintf(out->path, sizeof out->path, "%s", path);
    return BL_OK;
}

void bl_control_disconnect(bl_control_client *client) {
    if (client->fd >= 0)
        close(client->fd);
    client->fd = -1;
}

static bl_status gone(const bl_control_client *client, bl_error *err) {
    return bl_fail_at(
        err, BL_ERR_PEER, bl_at(client->path),
        "the cluster has ended, or lost the rank that answered; ballast status tells");
}

static bl_status silent(const bl_control_client *client, double deadline_s, bl_error *err) {
    return bl_fail_at(err, BL_ERR_TIMEOUT, bl_at(client->path),
                      "no answer for %g s; does the cluster still step?", deadline_s);
}

static bl_status send_line(const bl_control_client *client, const json_t *request,
                           double deadline_s, bl_error *err) {
    char *text = json_dumps(request, JSON_COMPACT);
    if (text == NULL)
        return bl_fail(err, BL_ERR_NOMEM, "out of memory");
    size_t at = 0, bytes = strlen(text);
    text[bytes++] = '\n';
    set_send_deadline(client->fd, deadline_s);
    while (at < bytes) {
        const ssize_t n = send(client->fd, text + at, bytes - at, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            break;
        at += (size_t)n;
    }
    const bool timed_out = at < bytes && (errno == EAGAIN || errno == EWOULDBLOCK);
    free(text);
    if (timed_out)
        return silent(client, deadline_s, err);
    return at == bytes ? BL_OK : gone(client, err);
}

/* Read up to the newline; the caller frees *line_p. What follows in the same breath is the last
 * status of a cluster that ends, and the next one to read learns that from the closed socket. */
static bl_status receive_line(const bl_control_client *client, double deadline_s, char **line_p,
                              size_t *bytes, bl_error *err) {
    const double until_s = bl_now_s() + deadline_s;
    size_t capacity = 0, used = 0;
    void *line = NULL;
    const char *end = NULL;
    bl_status st = BL_OK;
    while (st >= 0 && end == NULL) {
        struct pollfd fd = {.fd = client->fd, .events = POLLIN};
        const double left_s = until_s - bl_now_s();
        const int ready = left_s > 0 ? poll(&fd, 1, (int)(left_s * 1e3) + 1) : 0;
        if (ready < 0 && errno == EINTR && !bl_interrupted())
            continue;
        if (ready < 0 && bl_interrupted()) {
            st = bl_fail(err, BL_ERR_ABORTED, "interrupted before the cluster had answered");
            break;
        }
        if (ready <= 0) {
            st = silent(client, deadline_s, err);
            break;
        }
        st = bl_grow(&line, &capacity, used + READ_BYTES, 1, err);
        const ssize_t n = st >= 0 ? recv(client->fd, (char *)line + used, READ_BYTES, 0) : 0;
        if (st >= 0 && n <= 0)
            st = gone(client, err);
        if (st < 0)
            break;
        end = memchr((char *)line + used, '\n', (size_t)n);
        used += (size_t)n;
    }
    if (st < 0) {
        free(line);
        return st;
    }
    *line_p = line;
    *bytes = (size_t)(end - (char *)line);
    return BL_OK;
}

/* The error that an answer carries, as our own. */
static bl_status refused(const json_t *answer, bl_error *err) {
    const json_t *body = json_object_get(answer, "error");
    const char *name = json_string_value(json_object_get(body, "code"));
    const char *text = json_string_value(json_object_get(body, "message"));
    const json_t *layer = json_object_get(body, "layer"), *expert = json_object_get(body, "expert");
    bl_where where = bl_at(NULL);
    bl_status code = BL_ERR_INTERNAL;
    for (int c = BL_ERR_USAGE; c >= BL_ERR_INTERNAL; c--) {
        if (name != NULL && strcmp(bl_status_name(c), name) == 0)
            code = (bl_status)c;
    }
    if (json_is_integer(layer))
        where.layer = (int)json_integer_value(layer);
    if (json_is_integer(expert))
        where.expert = (int)json_integer_value(expert);
    return bl_fail_at(err, code, where, "%s", text != NULL ? text : "refused without a reason");
}

/* A cluster that has ended answers with its last status, whatever was asked. */
static bool answers(const json_t *request, const json_t *answer) {
    const char *op = json_string_value(json_object_get(request, "op"));
    return !json_is_true(json_object_get(answer, "ended")) ||
           (op != NULL && strcmp(op, "status") == 0);
}

bl_status bl_control_ask(bl_control_client *client, const json_t *request, double deadline_s,
                         json_t **answer_p, bl_error *err) {
    char *line;
    size_t bytes;
    json_t *answer;
    const bl_status sent = send_line(client, request, deadline_s, NULL);
    if (sent == BL_ERR_TIMEOUT)
        return silent(client, deadline_s, err);
    if (sent < 0 && sent != BL_ERR_PEER)
        return bl_fail(err, sent, "%s", bl_status_string(sent));
    BL_TRY(receive_line(client, deadline_s, &line, &bytes, err));
    bl_status st = bl_json_parse(line, bytes, "answer", &answer, err);
    free(line);
    BL_TRY(st);
    if (!answers(request, answer))
        st = gone(client, err);
    else if (!json_is_true(json_object_get(answer, "ok")))
        st = refused(answer, err);
    if (st < 0) {
        json_decref(answer);
        return st;
    }
    *answer_p = answer;
    return BL_OK;
}
