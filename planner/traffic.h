/*
 * traffic.h: how many rows travel between which ranks, under a placement, a rule and the way the
 * engine dispatches and combines.
 *
 *     dispatch                 rows of one token born on s           example: experts on d1, d1, d2
 *       assignment             one to the rank of each expert        s->d1, s->d1, s->d2
 *       dedup-rank             one to each rank that serves it       s->d1, s->d2
 *       dedup-node             one to each other node, to the rank   s->p, p->d1, p->d2 (d1, d2, p
 *                              p there that stands where s stands     in one node)
 *                              in its own; p passes it on within
 *       allgather              one to every other rank               s->all
 *     combine                  the same paths back; `assignment` returns k rows, the dedup modes
 *                              pre-sum where they deduplicate. There is no combine by allgather.
 *
 * A row from a rank to itself crosses nothing. *Remote nodes* of a token: nodes other than its own
 * (sources.h) on which it is served, whatever the dispatch mode.
 *
 * Under rules that give shares (even, nearest, fixed, fractions, per-step) the figures are
 * expectations: expert i is served on rank d with probability share(d), independently of the
 * token's other experts, so d gets the token with 1 - prod_i (1 - share_i(d)). Rows by assignment
 * need no tokens and come from all counts; the others come from the sample of tokens, each of which
 * stands for `weight`. Under the rule local every figure comes from tokens, by the code that serves
 * them (core/split_local.h).
 */
#ifndef BL_PLANNER_TRAFFIC_H
#define BL_PLANNER_TRAFFIC_H

#include "core/dispatch.h"
#include "core/split.h"
#include "planner/sources.h"

/* Rows counted so far; dispatch and combine are row-major, sender first. */
typedef struct bl_traffic {
    const bl_topology *topology; /* borrowed */
    const bl_sites *sites;       /* borrowed */
    bl_dispatch dispatch_mode, combine_mode;
    int n_ranks;
    double *dispatch, *combine; /* [n_ranks][n_ranks]; owned */
    double tokens;              /* known by their ids */
    double remote_nodes;        /* summed over tokens */
    int *gateway;    /* [n_ranks][n_nodes] rank through which a source reaches a node; owned */
    double *scratch; /* owned */
} bl_traffic;

bl_status bl_traffic_create(const bl_topology *topology, const bl_sites *sites,
                            bl_dispatch dispatch, bl_dispatch combine, bl_traffic *out,
                            bl_error *err);
void bl_traffic_free(bl_traffic *traffic); /* safe on a zeroed struct */
void bl_traffic_clear(bl_traffic *traffic);

/* Are single tokens needed for these modes? (Remote nodes always come from tokens.) */
bool bl_traffic_needs_tokens(bl_dispatch dispatch, bl_dispatch combine);

/* Rows, dispatch and combine, between ranks that meet at each level of the topology; [0]: rows that
 * stay on their rank. */
void bl_traffic_levels(const bl_traffic *traffic, double dispatch[BL_MAX_LEVELS + 1],
                       double combine[BL_MAX_LEVELS + 1]);

/* The port that is busy for longest in one exchange: all that the domain of level - 1 (0: a rank)
 * sends or receives over `level`. */
typedef struct bl_port {
    int level, domain;
    bool receives;
    double rows, seconds; /* seconds: rows x row_bytes over all ports of the domain */
} bl_port;
/* rows[n_ranks][n_ranks] is one of the two matrices above. */
bl_status bl_traffic_busiest(const bl_traffic *traffic, const double *rows, double row_bytes,
                             bl_port *out, bl_error *err);

/* A rule at work on a placement. The placement (hard rules kept) and sites must outlive it. */
typedef struct bl_source_split bl_source_split;

/* `share`[n_slots] is for BL_RULE_FRACTIONS and BL_RULE_PER_STEP, NULL for the other rules. */
bl_status bl_source_split_create(const bl_layer_placement *placement, bl_rule rule,
                                 const double *share, const bl_sites *sites, int n_sources,
                                 bl_source_split **out, bl_error *err);
void bl_source_split_free(bl_source_split *split); /* NULL is fine */

/* New shares, e.g. of the next step under BL_RULE_PER_STEP. */
void bl_source_split_set_shares(bl_source_split *split, const double *share);

/* Rows of every slot in one group: slot_rows[n_slots]. The one evaluator of the rules that look at
 * sources. Not for FRACTIONS and PER_STEP alone: with their shares it gives what evaluate.h gives.
 * With `traffic` the rows are also counted there. Rule local: BL_ERR_UNSUPPORTED without tokens. */
bl_status bl_source_split_rows(bl_source_split *split, const bl_sources *sources, int group,
                               double *slot_rows, bl_traffic *traffic, bl_error *err);

#endif
