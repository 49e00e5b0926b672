/*
 * diff.h: what separates two placements: which copies must travel, how many bytes that is, and how
 * long the cluster's links need for them.
 *
 * A *move* is a copy that must travel to a rank that did not hold that expert. Copies that stay on
 * their rank, in whatever slot, and copies that are dropped cost nothing.
 *
 * The time is *modelled*: every travelling bundle comes from the nearest rank that holds it (of
 * equally near ones from the one that has sent least so far; from a rank that loses all its slots
 * only when nobody else has it), all links work at once, and the slowest one decides:
 *
 *     seconds = latency + max( per rank:   sum of (message + bytes / bandwidth of the pair), out,
 * in; per domain: bytes into and out of it / its ports )
 *
 * What the engine does meanwhile is not in it, and neither is a byte budget per step.
 */
#ifndef BL_PLANNER_DIFF_H
#define BL_PLANNER_DIFF_H

#include "core/placement.h"
#include "topologies/topology.h"

typedef struct bl_diff {
    int64_t moves;
    uint64_t bytes; /* moves x bytes of an expert */
    double seconds; /* modelled; NaN without a topology or without the size of an expert */
    int n_layers;
    int *layer;       /* [n_layers] decoder-layer ids; owned */
    int *layer_moves; /* [n_layers]; owned */
} bl_diff;

/* From one placement to another of the same ranks, experts and layers. expert_bytes 0: unknown.
 * BL_ERR_SHAPE when the topology (NULL: none) has fewer ranks. Free with bl_diff_free(). */
bl_status bl_diff_of(const bl_placement *from, const bl_placement *to, size_t expert_bytes,
                     const bl_topology *topology, bl_diff *out, bl_error *err);
void bl_diff_free(bl_diff *diff); /* safe on a zeroed struct */

/* Does a topology have a device for each of n_ranks? BL_ERR_SHAPE says how many it has. */
bl_status bl_ranks_fit(const bl_topology *topology, int n_ranks, bl_error *err);

#endif
