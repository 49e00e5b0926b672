/*
 * sources.h: where the tokens of one layer come from, and where ranks are: what the rules nearest,
 * fixed and local look at, and what traffic is computed from.
 *
 *     load[group][source][expert]     rows of tokens born on rank `source`, in one group of steps
 *     tokens of a group               the sample of the trace's tokens (tracer/tokens.h), by group,
 *                                     step, source; one of their rows stands for `weight` of the
 *                                     trace's
 *
 * A group is a scenario when a plan is made and a single step when it is replayed.
 *
 * Of a cluster these rules know two things of every rank: its *host*, the machine (what engines call
 * a node), and its *node*: the domain of the lowest level that splits no host. On HGX boxes the two
 * are the same; in an NVL72 rack 18 hosts are one node, since bytes cost the same between all of its
 * ranks; in a PCIe box the node is the box, not the socket.
 */
#ifndef BL_PLANNER_SOURCES_H
#define BL_PLANNER_SOURCES_H

#include "topologies/topology.h"
#include "tracer/loads.h"

typedef struct bl_sites {
    int n_ranks, n_nodes;
    int level; /* of the topology whose domains are the nodes */
    int *host; /* [n_ranks]; owned */
    int *node; /* [n_ranks] from 0, in the order of their first ranks; owned */
} bl_sites;

/* Of the first n_ranks ranks of a topology. */
bl_status bl_sites_of(const bl_topology *topology, int n_ranks, bl_sites *out, bl_error *err);
void bl_sites_free(bl_sites *sites); /* safe on a zeroed struct */

typedef struct bl_sources {
    int layer; /* decoder-layer id */
    int n_groups, n_sources, n_experts, k;
    double *load;    /* [n_groups][n_sources][n_experts]; owned */
    size_t n_tokens; /* in the sample; 0 when tokens were not read */
    bool whole;      /* the sample holds every token */
    double weight;   /* rows of the trace for one of the sample */
    size_t *first;   /* [n_groups + 1] tokens first[g] .. first[g + 1] - 1 are those of group g */
    int32_t *source; /* [n_tokens] */
    uint64_t *step;  /* [n_tokens] position in the trace */
    int32_t *id;     /* [n_tokens][k] experts, or BL_EMPTY_SLOT */
    double *scale;   /* [n_groups] what a row of the group counts; owned, as the arrays above */
} bl_sources;

/* One layer (row in loads) of loads that were read with source counts, and with tokens for whatever
 * needs them. group[n_steps] is the group of each step, ascending, or -1: left out. scale[n_steps] is
 * what rows of a step count (NULL: 1). BL_ERR_UNSUPPORTED when sources are not told, or one is not
 * below n_ranks. Free with bl_sources_free(). */
bl_status bl_sources_of(const bl_loads *loads, int row, const int *group, int n_groups,
                        const double *scale, int n_ranks, bl_sources *out, bl_error *err);
void bl_sources_free(bl_sources *sources); /* safe on a zeroed struct */

static inline const double *bl_sources_load(const bl_sources *sources, int group, int source) {
    return sources->load + ((size_t)group * (size_t)sources->n_sources + (size_t)source) *
                               (size_t)sources->n_experts;
}

/* BL_ERR_UNSUPPORTED, naming layer and reason, when there are rows but no tokens. */
bl_status bl_sources_need_tokens(const bl_sources *sources, bl_error *err);

#endif
