/*
 * probe.h: what the ways between running ranks are worth.
 *
 * All ranks of a transport call bl_probe_run() together; rank 0 gets the figures, over the very
 * transport that will carry the experts, with its copies, its protocol and its processors.
 *
 * First every pair by itself. Rank 0 lays all pairs out in rounds, a colouring of the edges in which no
 * rank and no host appears twice in a round, so that no measurement meets another on a link or in a
 * host's memory; it starts a round when the last one is done:
 *
 *     round 0   (0,4) (1,8)          hosts {0..3} {4..7} {8..11} ...
 *     round 1   (0,8) (4,12)
 *     ...
 *
 *     latency     half a round trip of 8 bytes, the median of 50
 *     message     of a burst of small messages, the time of each: what the sender pays for one more
 *     bandwidth   each direction alone; the volume grows until it takes `seconds`, so that neither
 *                 start-up nor the token bucket of a shaped link flatters it; best of three
 *
 * Then under load: all ranks of a host send to each other at once, and all ranks to those on other
 * hosts; what a rank gets out then, and a host, is what they share.
 *
 *     pair matrix  <- every pair by itself
 *     level "host", "network": latency, message <- medians over its pairs; bytes/s <- under load
 */
#ifndef BL_RUNTIME_PROBE_H
#define BL_RUNTIME_PROBE_H

#include "core/json.h"
#include "runtime/transport.h"

typedef struct bl_probe_options {
    double seconds;    /* about, for each bandwidth */
    double deadline_s; /* of waiting for another rank */
} bl_probe_options;

#define BL_PROBE_OPTIONS_INIT ((bl_probe_options){0.1, 60.0})

typedef struct bl_probe {
    int n_ranks, n_hosts;
    int n_rounds;           /* in which the pairs were measured */
    int *host;              /* [n_ranks], from 0 in the order of first ranks */
    char (*host_names)[64]; /* [n_hosts], all different */
    /* [n_ranks][n_ranks], row = sender; 0 on the diagonal */
    double *latency_s, *message_s, *bytes_per_s;
    /* [n_ranks] what each rank sends when all do, to its own host and to others; 0 where there is
     * nobody */
    double *inside_bytes_per_s, *outside_bytes_per_s;
} bl_probe;

/* Collective. On rank 0 the figures, elsewhere *out is zeroed. */
bl_status bl_probe_run(bl_transport *transport, const bl_probe_options *options, bl_probe *out,
                       bl_error *err);
void bl_probe_free(bl_probe *probe); /* safe on a zeroed struct */

/* The rounds for given hosts: round[i * n_ranks + j] of each pair i < j. No rank and no host is twice
 * in a round. */
bl_status bl_probe_rounds(const int *host, int n_ranks, int *round, int *n_rounds_p, bl_error *err);

/* A topology document (topologies/topology.h). `devices`: its array of devices, of which every rank
 * gets the first; borrowed. New reference. */
bl_status bl_probe_to_json(const bl_probe *probe, const char *transport_name, json_t *devices,
                           json_t **root_p, bl_error *err);

/* This machine as such an array, for one of `ranks` on it: its memory and the rate of copying it are
 * measured, the rest is assumed. New reference. */
bl_status bl_probe_this_device(int ranks, json_t **devices_p, bl_error *err);

#endif
