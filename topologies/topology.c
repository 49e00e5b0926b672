#include "topologies/topology.h"

#include "core/mem.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const source_names[] = {
    [BL_MEASURED] = "measured", [BL_DATASHEET] = "datasheet", [BL_ASSUMED] = "assumed"};

const char *bl_figure_source_name(bl_figure_source source) {
    return source_names[source];
}

void bl_topology_free(bl_topology *topology) {
    free(topology->devices);
    free(topology->device);
    free(topology->domain);
    free(topology->host);
    free(topology->host_names);
    free(topology->pair_latency_s);
    free(topology->pair_bytes_per_s);
    *topology = (bl_topology){0};
}

/* ---- costs -------------------------------------------------------------------------------- */

int bl_topology_level(const bl_topology *topology, int a, int b) {
    int level = 0;
    while (bl_topology_domain(topology, level, a) != bl_topology_domain(topology, level, b))
        level++;
    return level;
}

static double pair_or(const double *pairs, const bl_topology *topology, int from, int to,
                      double fallback) {
    if (pairs == NULL)
        return fallback;
    const double value = pairs[(size_t)from * (size_t)topology->n_ranks + (size_t)to];
    return isnan(value) ? fallback : value;
}

double bl_topology_latency_s(const bl_topology *topology, int from, int to) {
    if (from == to)
        return 0;
    const bl_level *level = &topology->levels[bl_topology_level(topology, from, to)];
    return pair_or(topology->pair_latency_s, topology, from, to, level->latency_s.value);
}

double bl_topology_bytes_per_s(const bl_topology *topology, int from, int to) {
    if (from == to)
        return (double)INFINITY;
    const bl_level *level = &topology->levels[bl_topology_level(topology, from, to)];
    return pair_or(topology->pair_bytes_per_s, topology, from, to,
                   fmin(level->out_bytes_per_s.value, level->in_bytes_per_s.value));
}

double bl_topology_move_s(const bl_topology *topology, int from, int to, double bytes) {
    if (from == to)
        return 0;
    const bl_level *level = &topology->levels[bl_topology_level(topology, from, to)];
    return bl_topology_latency_s(topology, from, to) + level->message_s.value +
           bytes / bl_topology_bytes_per_s(topology, from, to);
}

double bl_device_flop_per_s(const bl_device *device, bl_weight_format format) {
    const double rate = device->flop_per_s[format].value;
    return rate > 0 ? rate : device->flop_per_s[BL_WEIGHTS_BF16].value;
}

/* ---- a part of a topology ----------------------------------------------------------------- */

/* A new matrix [n][n] that holds the upper left corner of one [from_n][from_n]. */
static bl_status take_pairs(const double *from, int from_n, int n, double **out, bl_error *err) {
    if (from == NULL)
        return BL_OK;
    BL_TRY(BL_CALLOC(*out, (size_t)n * (size_t)n, err));
    for (int row = 0; row < n; row++)
        memcpy(*out + (size_t)row * (size_t)n, from + (size_t)row * (size_t)from_n,
               (size_t)n * sizeof **out);
    return BL_OK;
}

/* Domains are numbered in the order of their first ranks, so those of the first n ranks are
 * 0 .. largest seen. */
static int count_distinct(const int *ids, int n) {
    int largest = -1;
    for (int i = 0; i < n; i++)
        largest = ids[i] > largest ? ids[i] : largest;
    return largest + 1;
}

static bl_status take_into(const bl_topology *from, int n, bl_topology *to, bl_error *err) {
    BL_TRY(BL_CALLOC(to->devices, from->n_devices, err));
    memcpy(to->devices, from->devices, (size_t)from->n_devices * sizeof *to->devices);
    BL_TRY(BL_CALLOC(to->device, n, err));
    memcpy(to->device, from->device, (size_t)n * sizeof *to->device);
    BL_TRY(BL_CALLOC(to->host, n, err));
    memcpy(to->host, from->host, (size_t)n * sizeof *to->host);
    to->n_hosts = count_distinct(to->host, n);
    BL_TRY(BL_CALLOC(to->host_names, to->n_hosts, err));
    memcpy(to->host_names, from->host_names, (size_t)to->n_hosts * sizeof *to->host_names);
    BL_TRY(BL_CALLOC(to->domain, (size_t)(from->n_levels + 1) * (size_t)n, err));
    for (int level = 0; level <= from->n_levels; level++) {
        int *row = to->domain + (size_t)level * (size_t)n;
        memcpy(row, from->domain + (size_t)level * (size_t)from->n_ranks, (size_t)n * sizeof *row);
        to->levels[level].n_domains = count_distinct(row, n);
    }
    BL_TRY(take_pairs(from->pair_latency_s, from->n_ranks, n, &to->pair_latency_s, err));
    return take_pairs(from->pair_bytes_per_s, from->n_ranks, n, &to->pair_bytes_per_s, err);
}

bl_status bl_topology_take(const bl_topology *topology, int n_ranks, bl_topology *out,
                           bl_error *err) {
    if (n_ranks < 1 || n_ranks > topology->n_ranks)
        return bl_fail(err, BL_ERR_RANGE, "%d ranks wanted, but topology %s has %d", n_ranks,
                       topology->name, topology->n_ranks);
    bl_topology part = *topology;
    part.n_ranks = n_ranks;
    part.devices = NULL;
    part.device = part.domain = part.host = NULL;
    part.host_names = NULL;
    part.pair_latency_s = part.pair_bytes_per_s = NULL;
    const bl_status st = take_into(topology, n_ranks, &part, err);
    if (st < 0)
        bl_topology_free(&part);
    else
        *out = part;
    return st;
}

/* ---- writing ------------------------------------------------------------------------------ */

static json_t *figure_to_json(bl_figure figure) {
    return json_pack("{s:f, s:s}", "value", figure.value, "source",
                     bl_figure_source_name(figure.source));
}

static json_t *device_to_json(const bl_device *device) {
    json_t *rates = json_object();
    for (int f = 0; f < BL_N_WEIGHT_FORMATS; f++) {
        if (device->flop_per_s[f].value > 0)
            json_object_set_new(rates, bl_weight_format_name((bl_weight_format)f),
                                figure_to_json(device->flop_per_s[f]));
    }
    json_t *item = json_pack("{s:s, s:o, s:o, s:o, s:o}", "name", device->name, "memory_bytes",
                             figure_to_json(device->memory_bytes), "memory_bytes_per_s",
                             figure_to_json(device->memory_bytes_per_s), "expert_share",
                             figure_to_json(device->expert_share), "flop_per_s", rates);
    if (device->reads_apart)
        json_object_set_new(item, "reads_apart", json_true());
    return item;
}

static json_t *level_to_json(const bl_level *level) {
    return json_pack("{s:s, s:o, s:o, s:o, s:o, s:o}", "name", level->name, "latency_s",
                     figure_to_json(level->latency_s), "message_s",
                     figure_to_json(level->message_s), "out_bytes_per_s",
                     figure_to_json(level->out_bytes_per_s), "in_bytes_per_s",
                     figure_to_json(level->in_bytes_per_s), "ports", figure_to_json(level->ports));
}

/* "rack1/node3": the domains of a rank from the outermost but one inwards. */
static json_t *rank_to_json(const bl_topology *topology, int rank) {
    char path[BL_MAX_LEVELS * 48] = "";
    size_t used = 0;
    for (int level = topology->n_levels - 1; level >= 1; level--)
        used += (size_t)snprintf(path + used, sizeof path - used, "%s%s%d", used > 0 ? "/" : "",
                                 topology->levels[level].name,
                                 bl_topology_domain(topology, level, rank));
    return json_pack("{s:s, s:s, s:s}", "path", path, "host",
                     topology->host_names[topology->host[rank]], "device",
                     bl_topology_device(topology, rank)->name);
}

static void add_pairs(json_t *pairs, const char *key, const double *values, bl_figure_source source,
                      int n) {
    if (values == NULL)
        return;
    json_t *rows = json_array();
    for (int from = 0; from < n; from++) {
        json_t *row = json_array();
        for (int to = 0; to < n; to++) {
            const double value = values[(size_t)from * (size_t)n + (size_t)to];
            json_array_append_new(row, isnan(value) ? json_null() : json_real(value));
        }
        json_array_append_new(rows, row);
    }
    json_object_set_new(
        pairs, key,
        json_pack("{s:s, s:o}", "source", bl_figure_source_name(source), "values", rows));
}

json_t *bl_topology_to_json(const bl_topology *topology) {
    json_t *devices = json_array(), *levels = json_array(), *ranks = json_array();
    json_t *pairs = json_object();
    for (int d = 0; d < topology->n_devices; d++)
        json_array_append_new(devices, device_to_json(&topology->devices[d]));
    for (int level = 1; level <= topology->n_levels; level++)
        json_array_append_new(levels, level_to_json(&topology->levels[level]));
    for (int rank = 0; rank < topology->n_ranks; rank++)
        json_array_append_new(ranks, rank_to_json(topology, rank));
    add_pairs(pairs, "latency_s", topology->pair_latency_s, topology->pair_latency_source,
              topology->n_ranks);
    add_pairs(pairs, "bytes_per_s", topology->pair_bytes_per_s, topology->pair_bytes_source,
              topology->n_ranks);
    json_t *root =
        json_pack("{s:s, s:i, s:s, s:o, s:o, s:o}", "format", "ballast-topology", "version", 1,
                  "name", topology->name, "devices", devices, "levels", levels, "ranks", ranks);
    if (root != NULL && json_object_size(pairs) > 0)
        json_object_set(root, "pairs", pairs);
    json_decref(pairs);
    return root;
}

bl_digest bl_topology_digest(const bl_topology *topology) {
    bl_digest digest = {""};
    json_t *root = bl_topology_to_json(topology);
    json_object_del(root, "name");
    char *text = root != NULL ? json_dumps(root, JSON_COMPACT) : NULL;
    if (text != NULL)
        digest = bl_digest_of(text, strlen(text));
    free(text);
    json_decref(root);
    return digest;
}
