/*
 * ballast metrics: a cluster's state for Prometheus, over HTTP.
 *
 * A process of its own that asks the control socket at each scrape: no HTTP server lives in a rank.
 */
#include "cli/metrics_text.h"
#include "cli/verbs.h"
#include "core/progress.h"

#include <arpa/inet.h>
#include <errno.h>
#include <microhttpd.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define TYPE "text/plain; version=0.0.4; charset=utf-8"

typedef struct metrics_options {
    const char *socket, *listen;
    bool once;
} metrics_options;

static const bl_opt OPTIONS[] = {
    {"socket", 0, BL_OPT_STRING, offsetof(metrics_options, socket), .metavar = "PATH",
     .help = "the cluster's control socket"},
    {"listen", 0, BL_OPT_STRING, offsetof(metrics_options, listen), .metavar = "ADDRESS:PORT",
     .help = "where to answer /metrics; by default on the loopback device alone"},
    {"once", 0, BL_OPT_FLAG, offsetof(metrics_options, once),
     .help = "print the metrics and end, e.g. for a textfile collector"},
    {0}};

static void set_defaults(void *options) {
    metrics_options *o = options;
    o->listen = "127.0.0.1:9477";
}

static enum MHD_Result reply(struct MHD_Connection *connection, unsigned code, char *body,
                             enum MHD_ResponseMemoryMode mode) {
    struct MHD_Response *response = MHD_create_response_from_buffer(strlen(body), body, mode);
    if (response == NULL)
        return MHD_NO;
    MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, TYPE);
    const enum MHD_Result queued = MHD_queue_response(connection, code, response);
    MHD_destroy_response(response);
    return queued;
}

static enum MHD_Result answer(void *user, struct MHD_Connection *connection, const char *url,
                              const char *method, const char *version, const char *upload,
                              size_t *upload_bytes, void **state) {
    const metrics_options *o = user;
    static char not_found[] = "only /metrics is here\n", broken[] = "out of memory\n";
    char *text;
    (void)version, (void)upload, (void)upload_bytes, (void)state;
    if (strcmp(method, MHD_HTTP_METHOD_GET) != 0 || strcmp(url, "/metrics") != 0)
        return reply(connection, MHD_HTTP_NOT_FOUND, not_found, MHD_RESPMEM_PERSISTENT);
    if (bl_metrics_text(o->socket, &text, NULL) < 0)
        return reply(connection, MHD_HTTP_INTERNAL_SERVER_ERROR, broken, MHD_RESPMEM_PERSISTENT);
    return reply(connection, MHD_HTTP_OK, text, MHD_RESPMEM_MUST_FREE);
}

/* "127.0.0.1:9477"; an address without a port, or a name, is refused. */
static bl_status parse_address(const char *spec, struct sockaddr_in *out, bl_error *err) {
    char host[64], *end;
    const char *colon = strrchr(spec, ':');
    const size_t length = colon != NULL ? (size_t)(colon - spec) : 0;
    *out = (struct sockaddr_in){.sin_family = AF_INET};
    if (length > 0 && length < sizeof host) {
        memcpy(host, spec, length);
        host[length] = '\0';
        errno = 0;
        const unsigned long port = strtoul(colon + 1, &end, 10);
        if (inet_pton(AF_INET, host, &out->sin_addr) == 1 && end != colon + 1 && *end == '\0' &&
            errno == 0 && port <= 65535) {
            out->sin_port = htons((uint16_t)port);
            return BL_OK;
        }
    }
    return bl_fail(err, BL_ERR_USAGE,
                   "--listen %s: wants an IPv4 address and a port, as in "
                   "127.0.0.1:9477",
                   spec);
}

static bl_status serve(const metrics_options *o, bl_error *err) {
    struct sockaddr_in address;
    const struct timespec pause = {0, 100000000};
    BL_TRY(parse_address(o->listen, &address, err));
    struct MHD_Daemon *daemon = MHD_start_daemon(
        MHD_USE_INTERNAL_POLLING_THREAD, 0, NULL, NULL, answer, (void *)(uintptr_t)o,
        MHD_OPTION_SOCK_ADDR, &address, MHD_OPTION_CONNECTION_LIMIT, 16u,
        MHD_OPTION_CONNECTION_TIMEOUT, 10u, MHD_OPTION_END);
    if (daemon == NULL)
        return bl_fail(err, BL_ERR_IO, "cannot listen on %s: %s", o->listen, strerror(errno));
    fprintf(stderr, "ballast metrics: http://%s/metrics\n", o->listen);
    while (!bl_interrupted())
        nanosleep(&pause, NULL);
    MHD_stop_daemon(daemon);
    return BL_OK;
}

static bl_status run(void *options, int n_args, char **args, bl_error *err) {
    const metrics_options *o = options;
    char *text;
    (void)n_args, (void)args;
    bl_interrupts_install();
    if (!o->once)
        return serve(o, err);
    BL_TRY(bl_metrics_text(o->socket, &text, err));
    fputs(text, stdout);
    free(text);
    return BL_OK;
}

const bl_verb bl_verb_metrics = {
    .name = "metrics",
    .arguments = "",
    .summary = "a running cluster's rebalance for Prometheus",
    .details = "Answers /metrics by asking the cluster's control socket: state, epoch, moves and "
               "bytes done and left, rate, longest step, imbalance before, now and predicted, per "
               "layer, ranks lost, the last error. examples/monitoring holds a Grafana dashboard "
               "and alert rules. Ends by Ctrl-C.",
    .options = OPTIONS,
    .options_bytes = sizeof(metrics_options),
    .set_defaults = set_defaults,
    .min_args = 0,
    .max_args = 0,
    .run = run,
};
