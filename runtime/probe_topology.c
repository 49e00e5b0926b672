/* A probe's figures as a topology document. */
#include "runtime/probe.h"

#include "core/mem.h"
#include "core/progress.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define COPY_BYTES ((size_t)64 << 20)

static json_t *figure(double value, const char *source) {
    return json_pack("{s:f, s:s}", "value", value, "source", source);
}

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, size_t n) {
    qsort(values, n, sizeof *values, by_value);
    return n > 0 ? (values[(n - 1) / 2] + values[n / 2]) / 2 : 0;
}

/* Median of a matrix over pairs of one host, or of two; `scratch` is of n_ranks^2. */
static double over_pairs(const bl_probe *probe, const double *matrix, bool inside,
                         double *scratch) {
    size_t n = 0;
    for (int a = 0; a < probe->n_ranks; a++)
        for (int b = 0; b < probe->n_ranks; b++)
            if (a != b && (probe->host[a] == probe->host[b]) == inside)
                scratch[n++] = matrix[a * probe->n_ranks + b];
    return median(scratch, n);
}

/* What a domain of the level below sends into this level when all send: a rank, or a whole host. */
static double under_load(const bl_probe *probe, bool inside, double *scratch) {
    size_t n = 0;
    if (inside) {
        for (int rank = 0; rank < probe->n_ranks; rank++)
            if (probe->inside_bytes_per_s[rank] > 0)
                scratch[n++] = probe->inside_bytes_per_s[rank];
        return median(scratch, n);
    }
    for (int host = 0; host < probe->n_hosts; host++) {
        scratch[n] = 0;
        for (int rank = 0; rank < probe->n_ranks; rank++)
            if (probe->host[rank] == host)
                scratch[n] += probe->outside_bytes_per_s[rank];
        n++;
    }
    return median(scratch, n);
}

static json_t *level(const bl_probe *probe, const char *name, bool inside, double *scratch) {
    const double latency_s = over_pairs(probe, probe->latency_s, inside, scratch);
    const double message_s = over_pairs(probe, probe->message_s, inside, scratch);
    const double rate = under_load(probe, inside, scratch);
    return json_pack("{s:s, s:o, s:o, s:o, s:o, s:o}", "name", name, "latency_s",
                     figure(latency_s, "measured"), "message_s", figure(message_s, "measured"),
                     "out_bytes_per_s", figure(rate, "measured"), "in_bytes_per_s",
                     figure(rate, "measured"), "ports", figure(1, "assumed"));
}

static json_t *matrix(const bl_probe *probe, const double *values) {
    json_t *rows = json_array();
    for (int a = 0; a < probe->n_ranks; a++) {
        json_t *row = json_array();
        for (int b = 0; b < probe->n_ranks; b++)
            json_array_append_new(row,
                                  a == b ? json_null() : json_real(values[a * probe->n_ranks + b]));
        json_array_append_new(rows, row);
    }
    return json_pack("{s:o, s:s}", "values", rows, "source", "measured");
}

static json_t *levels(const bl_probe *probe, double *scratch) {
    json_t *list = json_array();
    const bool inside = probe->n_hosts < probe->n_ranks;
    if (inside)
        json_array_append_new(list, level(probe, "host", true, scratch));
    if (probe->n_hosts > 1)
        json_array_append_new(list, level(probe, "network", false, scratch));
    return list;
}

static json_t *ranks(const bl_probe *probe) {
    json_t *list = json_array();
    const bool named = probe->n_hosts > 1 && probe->n_hosts < probe->n_ranks;
    for (int rank = 0; rank < probe->n_ranks; rank++) {
        const char *host = probe->host_names[probe->host[rank]];
        json_array_append_new(list,
                              json_pack("{s:s, s:s}", "path", named ? host : "", "host", host));
    }
    return list;
}

bl_status bl_probe_to_json(const bl_probe *probe, const char *transport_name, json_t *devices,
                           json_t **root_p, bl_error *err) {
    char text[160];
    double *scratch;
    if (probe->n_ranks < 2)
        return bl_fail(err, BL_ERR_RANGE, "a probe needs two ranks at least");
    BL_TRY(BL_CALLOC(scratch, (size_t)probe->n_ranks * (size_t)probe->n_ranks, err));
    snprintf(text, sizeof text,
             "%d pairs measured over %s in %d rounds, no rank and no host twice in one; levels' "
             "bandwidths are those of all sending at once",
             probe->n_ranks * (probe->n_ranks - 1) / 2, transport_name, probe->n_rounds);
    json_t *root = json_pack("{s:s, s:i, s:s, s:s, s:O, s:o, s:o, s:{s:o, s:o}, s:[s]}", "format",
                             "ballast-topology", "version", 1, "name", "probe", "description",
                             "measured by ballast topo probe", "devices", devices, "levels",
                             levels(probe, scratch), "ranks", ranks(probe), "pairs", "latency_s",
                             matrix(probe, probe->latency_s), "bytes_per_s",
                             matrix(probe, probe->bytes_per_s), "sources", text);
    free(scratch);
    if (root == NULL)
        return bl_fail(err, BL_ERR_NOMEM, "out of memory");
    *root_p = root;
    return BL_OK;
}

/* Bytes read and written per second by copying a large buffer, the best of five. */
static bl_status copy_rate(double *bytes_per_s, bl_error *err) {
    unsigned char *from, *to = NULL;
    bl_status st = BL_CALLOC(from, COPY_BYTES, err);
    if (st == BL_OK)
        st = BL_CALLOC(to, COPY_BYTES, err);
    *bytes_per_s = 0;
    for (int i = 0; st == BL_OK && i < 5; i++) {
        memset(from, i, COPY_BYTES);
        const double start_s = bl_now_s();
        memcpy(to, from, COPY_BYTES);
        from[0] = to[COPY_BYTES - 1]; /* or the copy could be left out */
        const double rate = 2.0 * (double)COPY_BYTES / (bl_now_s() - start_s);
        *bytes_per_s = rate > *bytes_per_s ? rate : *bytes_per_s;
    }
    free(from);
    free(to);
    return st;
}

bl_status bl_probe_this_device(int n_ranks, json_t **devices_p, bl_error *err) {
    double rate;
    BL_TRY(copy_rate(&rate, err));
    const double memory = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
    json_t *devices = json_pack("[{s:s, s:o, s:o, s:o, s:{s:o}}]", "name", "cpu", "memory_bytes",
                                figure(memory / n_ranks, "measured"), "memory_bytes_per_s",
                                figure(rate, "measured"), "expert_share", figure(0.5, "assumed"),
                                "flop_per_s", "bf16", figure(1e11, "assumed"));
    if (devices == NULL)
        return bl_fail(err, BL_ERR_NOMEM, "out of memory");
    *devices_p = devices;
    return BL_OK;
}
