/*
 * import.h: topologies from what other tools print.
 *
 * Each format tells a part of a topology and is silent about the rest:
 *
 *     format         tells                                        does not tell
 *     nvidia-smi     `nvidia-smi topo -m`: who is joined by        the GPUs, any figure, other
 *                    NVLink, PCIe switch, socket, node; adapters   hosts
 *     nccl-xml       NCCL_TOPO_DUMP_FILE: the same, and the        memory and FLOP rates,
 *                    GPUs' ids, PCIe and adapter rates, NVLinks    latencies, NVLink of files
 *                                                                  without <gpu>
 *     nccl-tests     a log of alltoall_perf and its like: latency  structure inside a host; an
 *                    and bandwidth of the outermost domain, hosts  operation's name, in old logs
 *     nvbandwidth    bandwidth of every pair of GPUs of a host     latencies, structure
 *     cost-matrix    {"rank_cost_matrix": [[...]]}: who is nearer  any unit, hosts
 *                    to whom, and by what ratio
 *
 * What is not told is taken from a *base*, a topology named by the user (a catalogue name or a
 * file): an import changes what its file tells and keeps the rest. As a result of an import is a
 * base for the next, measurements add up:
 *
 *     ballast topo import --from nvidia-smi topo.txt --base hgx-h100 -o a.json
 *     ballast topo import --from nccl-tests alltoall.log --base a.json -o b.json
 *
 * Without a base, the catalogue's entry for the GPU that the file names is taken, where there is
 * one; otherwise figures of hgx-h100 (NVLink, network, GPU) and pcie-8 (PCIe), all marked
 * `assumed`. Whatever was done is written into the result's "sources", one sentence each, and every
 * figure keeps its own source: what a tool measured is `measured`, what hardware states about
 * itself is `datasheet`, what follows from neither is `assumed`.
 *
 * How figures come about
 *
 *   NVLink     bytes/s of a pair = links x rate of one link: 25 GB/s (NVLink 2 to 4) or 50 (NVLink
 *              5) each way, by the GPU's generation where the file tells it, otherwise the base's
 *              rate over the largest number of links. A base under which a link would have a rate
 *              that no NVLink has is refused.
 *   PCIe       transfers/s x lanes of the slowest GPU, less the line code.
 *   alltoall   t = a + b x size is fitted over all sizes, each row weighing by its relative error;
 *              bandwidth is the figure with which planner/cost.h gives b back, latency is a less
 *              what it counts for messages. Of other operations only the bandwidth is taken, as
 *              their a holds several rounds, and only inside one domain, as between domains they
 *              reduce or forward on the way.
 *   costs      are taken as ratios of time: the cheapest pair has the base's innermost latency and
 *              bandwidth, a pair of twice the cost twice the first and half the second. A cost of 0
 *              has no ratio; then the base must have as many levels as there are costs.
 *
 * Domains come from closing the relation "joined at least this well": ranks that are so joined,
 * directly or over others, share a domain. Single pairs that do worse than their domain get entries
 * in the pair matrix.
 */
#ifndef BL_TOPOLOGIES_IMPORT_H
#define BL_TOPOLOGIES_IMPORT_H

#include "core/json.h"

/* No file of these formats comes near this. */
#define BL_IMPORT_MAX_BYTES ((size_t)64 << 20)
#define BL_IMPORT_MAX_RANKS 4096

typedef enum bl_topology_format {
    BL_FROM_NVIDIA_SMI,
    BL_FROM_NCCL_XML,
    BL_FROM_NCCL_TESTS,
    BL_FROM_NVBANDWIDTH,
    BL_FROM_COST_MATRIX
} bl_topology_format;

/* "nvidia-smi", ...; NULL-terminated. */
extern const char *const bl_topology_format_names[];
/* Operations of nccl-tests; NULL-terminated, "alltoall" first. */
extern const char *const bl_nccl_op_names[];

typedef struct bl_topology_import {
    const char *base; /* catalogue name or file; NULL: see above */
    int op;           /* index into bl_nccl_op_names; -1: as the log says */
    int part;         /* 1-based, where a file holds several matrices or tables; 0: it holds one */
    int nodes;        /* repeat the machine that the file tells; 0 or 1: as it is */
} bl_topology_import;
#define BL_TOPOLOGY_IMPORT_INIT ((bl_topology_import){.op = -1})

/* Read `path` ("-": standard input) into a topology document that bl_topology_from_json() accepts,
 * with "description" and "sources". New reference. Errors name the file's line. */
bl_status bl_topology_import_file(bl_topology_format format, const char *path,
                                  const bl_topology_import *options, json_t **root_p,
                                  bl_error *err);

/* The same from memory. The text is worked on in place and must be followed by a terminator. */
bl_status bl_topology_import_text(bl_topology_format format, char *text, size_t bytes,
                                  const char *file, const bl_topology_import *options,
                                  json_t **root_p, bl_error *err);

#endif
