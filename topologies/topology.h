/*
 * topology.h: what a byte and a FLOP cost on a cluster.
 *
 * A topology says which device every rank has, how the ranks are nested in domains, and what it
 * costs to send from one rank to another. Domains form a tree of any depth; two ranks talk over the
 * innermost domain that holds both:
 *
 *     level 3  cluster        +---------------- cluster ----------------+     levels[3]
 *     level 2  rack           +----- rack 0 -----+  +----- rack 1 ------+     levels[2]
 *     level 1  nvlink         [r0 r1 r2] [r3 r4]    [r5 r6 r7 r8]             levels[1]
 *     level 0  device          r0  r1 ...                                     a rank to itself
 *
 *     bl_topology_level(t, 0, 2) = 1, (0, 4) = 2, (4, 5) = 3, (4, 4) = 0
 *
 * Nothing is assumed about sizes: domains of one level may hold different numbers of ranks, ranks
 * of a domain need not be neighbours (interleaved maps), and a *host* (one machine, one operating
 * system) is a property of the rank beside the tree: in an NVL72 rack 18 hosts share one NVLink
 * domain, in a PCIe box one host has several domains.
 *
 * Cost of one message of B bytes between two ranks that meet at level k:
 *
 *     latency_s + message_s + B / min(out_bytes_per_s, in_bytes_per_s)
 *
 * bytes_per_s is one *port* in one direction. A pair of ranks uses one port; all ranks of one
 * domain of level k-1 together have `ports` of them into level k, so that domain sends at most
 * ports * out_bytes_per_s there. latency_s is paid once per exchange, message_s by the sender for
 * each further message. A measured pair matrix overrides latency and bandwidth of single pairs.
 *
 * Every figure says where it came from: `measured` here, a vendor's `datasheet`, or `assumed`.
 *
 * The file (JSON; units are bytes, seconds and FLOP)
 *
 *     { "format": "ballast-topology", "version": 1,
 *       "name": "two boxes", "description": "...",
 *       "parameters": { "nodes": {"default": 2, "min": 1, "max": 64} },
 *       "devices": [ { "name": "H100", "memory_bytes": F, "memory_bytes_per_s": F,
 *                      "expert_share": F, "flop_per_s": {"bf16": F, "fp8": F} } ],
 *       "levels": [ { "name": "nvlink", "latency_s": F, "message_s": F, "out_bytes_per_s": F,
 *                     "in_bytes_per_s": F, "ports": F }, ... ],             innermost first
 *       "shape": [8, "nodes"], "ranks_per_host": 8,
 *       "pairs": { "latency_s": {"values": [[...]], "source": "measured"}, "bytes_per_s": ... } }
 *
 *     F = {"value": 4.5e11, "source": "datasheet"}, optionally with a "note".
 *
 * Where the ranks are is told in one of two ways. "shape" is regular: 8 ranks to a domain of level
 * 1, "nodes" of those to one of level 2; its entries, and ranks_per_host (default: a domain of
 * level 1), may name a parameter. Or "ranks" lists them in rank order:
 *
 *     "ranks": [ {"path": "rack0/a", "host": "h17", "device": "H100"}, ... ]
 *
 * A device reads an expert's weights while it multiplies, so the longer of the two counts; with
 * "reads_apart": true it does one after the other, and they add up.
 *
 * path names a rank's domains from the outermost but one inwards (one name less than there are
 * levels, as the outermost domain holds everybody); host defaults to the path, device to the first.
 * "pairs" is optional, row = sender, column = receiver; null leaves a pair to the tree.
 * flop_per_s is keyed by weight format (core/model.h) and must have bf16.
 */
#ifndef BL_TOPOLOGIES_TOPOLOGY_H
#define BL_TOPOLOGIES_TOPOLOGY_H

#include "core/hash.h"
#include "core/json.h"
#include "core/model.h"
#include "core/status.h"

#include <stdbool.h>
#include <stddef.h>

#define BL_MAX_RANKS 65536
#define BL_MAX_LEVELS 8

typedef enum bl_figure_source { BL_MEASURED, BL_DATASHEET, BL_ASSUMED } bl_figure_source;

typedef struct bl_figure {
    double value;
    bl_figure_source source;
} bl_figure;

typedef struct bl_device {
    char name[64];
    bl_figure memory_bytes;
    bl_figure memory_bytes_per_s;
    bl_figure expert_share;                    /* of the memory that may hold experts, in (0, 1] */
    bl_figure flop_per_s[BL_N_WEIGHT_FORMATS]; /* dense; value 0 where there is no figure */
    bool reads_apart; /* reading an expert and multiplying its rows add up */
} bl_device;

typedef struct bl_level {
    char name[32];
    int n_domains;
    bl_figure latency_s, message_s;
    bl_figure out_bytes_per_s, in_bytes_per_s; /* one port */
    bl_figure ports;
} bl_level;

typedef struct bl_topology {
    char name[128]; /* "hgx-h100:nodes=4" */
    int n_ranks, n_hosts, n_devices;
    int n_levels;                       /* without level 0 */
    bl_level levels[BL_MAX_LEVELS + 1]; /* innermost first; [0] is a rank to itself, free */
    bl_device *devices;                 /* [n_devices] kinds of device */
    int *device;                        /* [n_ranks] index into devices */
    int *domain;            /* [n_levels + 1][n_ranks]: domain of a rank at a level, numbered from
                               0 in the order of their first ranks; the last level has one */
    int *host;              /* [n_ranks] */
    char (*host_names)[64]; /* [n_hosts] */
    double *pair_latency_s; /* [n_ranks][n_ranks], row = sender, or NULL; NaN: as the tree says */
    double *pair_bytes_per_s;
    bl_figure_source pair_latency_source, pair_bytes_source;
} bl_topology;

/* Open "NAME[:parameter=value,...]": the catalogue's NAME, or a file when NAME is none of the
 * catalogue's. Every parameter is range-checked; a mistaken name gets the nearest one as a hint.
 * Free with bl_topology_free(). */
bl_status bl_topology_open(const char *spec, bl_topology *out, bl_error *err);

/* Read a document; `parameters` is "a=1,b=2" or NULL, `name` replaces the document's own unless it
 * is NULL, `file` is used in messages. */
bl_status bl_topology_from_json(const json_t *root, const char *parameters, const char *name,
                                const char *file, bl_topology *out, bl_error *err);
void bl_topology_free(bl_topology *topology); /* safe on a zeroed struct */

/* The first n_ranks ranks of a topology, as one of its own. */
bl_status bl_topology_take(const bl_topology *topology, int n_ranks, bl_topology *out,
                           bl_error *err);

/* The file format, with explicit ranks and no parameters. New reference or NULL. */
json_t *bl_topology_to_json(const bl_topology *topology);

/* The catalogue: [{"name", "description", "ranks", "parameters"}]; ranks are those of the default
 * parameters. New reference. */
bl_status bl_topology_catalogue(json_t **list_p, bl_error *err);

/* Over everything that costs depend on; the name is left out. */
bl_digest bl_topology_digest(const bl_topology *topology);

/* Level at which two ranks meet: 0 for a rank and itself. */
int bl_topology_level(const bl_topology *topology, int a, int b);

/* One direction, one port; the pair matrix where it has an entry. A rank and itself: 0, INFINITY.
 */
double bl_topology_latency_s(const bl_topology *topology, int from, int to);
double bl_topology_bytes_per_s(const bl_topology *topology, int from, int to);

/* Seconds to move `bytes` as one message between two otherwise idle ranks; 0 to itself. */
double bl_topology_move_s(const bl_topology *topology, int from, int to, double bytes);

static inline int bl_topology_domain(const bl_topology *topology, int level, int rank) {
    return topology->domain[(size_t)level * (size_t)topology->n_ranks + (size_t)rank];
}
static inline bool bl_topology_same_host(const bl_topology *topology, int a, int b) {
    return topology->host[a] == topology->host[b];
}
static inline const bl_device *bl_topology_device(const bl_topology *topology, int rank) {
    return &topology->devices[topology->device[rank]];
}

/* Rate at which a device multiplies weights of a format; a format without a figure is unpacked and
 * runs at the rate of bf16. */
double bl_device_flop_per_s(const bl_device *device, bl_weight_format format);

const char *bl_figure_source_name(bl_figure_source source);

#endif
