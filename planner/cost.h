/*
 * cost.h: how long one MoE layer takes in one step, modelled from the figures of a topology.
 *
 *     T = dispatch + max over ranks (experts) + combine
 *     T = max( dispatch + combine, max over ranks (attention + experts) )      with overlap
 *
 *     experts   grouped-GEMM roofline: for each copy with n token rows on a rank
 *               max( min(1, n) x expert bytes / memory bandwidth,  n x 6 x hidden x intermediate
 *               / FLOP rate ), summed over the rank's copies. In decode the first term rules: a
 *               copy costs its weights whatever it serves. (n < 1 is the chance that it is used.)
 *               On devices that read weights apart from multiplying, the sum instead of the max.
 *     dispatch  every expert row travels by itself (k rows a token). The trace of loads does not
 *               say where a token was born, so its rows come evenly from all ranks: rank g receives
 *               rows_g, of which (G - 1) / G cross a link. The slowest port decides, of a rank (one
 *               message at a time, the bandwidth of each pair) or of a domain (its ports shared).
 *     combine   the same rows, the other way.
 *               Where a trace tells the source ranks, replay prices the rows that really travel, in
 *               the engine's dispatch and combine modes (bl_cost_traffic_s).
 *     attention with overlap only, where two micro-batches take turns: each rank's part of the
 *               tokens through the layer's attention weights, the same roofline. Reading the KV
 *               cache is not in it (it depends on contexts that a trace does not tell), nor is
 *               attention of models whose config does not tell its size.
 *
 * Shared experts, kernel launches and, without overlap, attention are left out: they are the same
 * under every placement, and a saving is a difference. What comes out is a model and is labelled so
 * wherever it is shown.
 */
#ifndef BL_PLANNER_COST_H
#define BL_PLANNER_COST_H

#include "core/placement.h"
#include "topologies/topology.h"

typedef struct bl_cost bl_cost;

/* For `n_ranks` ranks, the first of the topology, which is borrowed until bl_cost_free().
 * BL_ERR_SHAPE when it has fewer; BL_ERR_MODEL when the model has no sizes. A finished handle is
 * only read, by any number of threads. */
bl_status bl_cost_create(const bl_model *model, const bl_topology *topology, int n_ranks,
                         bl_cost **out, bl_error *err);
void bl_cost_free(bl_cost *cost); /* NULL is fine */

/* From now on communication runs beside attention and experts. */
void bl_cost_set_overlap(bl_cost *cost);

/* Seconds in which all ranks learn each other's counts of `n_experts` experts (4 bytes each, from
 * every rank to every other): what a split that is made anew each step costs per layer and step. */
double bl_cost_counts_s(const bl_cost *cost, int n_experts);

/* Seconds of one layer in one step: slot_rows[n_slots] token rows on each slot, rank_rows[n_ranks]
 * their sums. */
double bl_cost_layer_s(const bl_cost *cost, const bl_layer_placement *placement,
                       const double *slot_rows, const double *rank_rows);

/* Of that, what dispatch and combine take on the wire: the busiest ports' bytes, without latency. */
double bl_cost_wire_s(const bl_cost *cost, const double *rank_rows);

/* The same where it is known which rows travel between which ranks (planner/traffic.h): dispatch and
 * combine [n_ranks][n_ranks], sender first, each counted `scale` times. The busiest port decides, of a
 * rank or of a domain, sending or receiving. scratch[bl_cost_scratch()]. */
double bl_cost_traffic_s(const bl_cost *cost, const bl_layer_placement *placement,
                         const double *slot_rows, const double *dispatch, const double *combine,
                         double scale, double *scratch);
size_t bl_cost_scratch(const bl_cost *cost);

/* What a row that leaves adds to those ports at least: one dispatched from `rank` to any other, or back
 * (combined); and one that leaves a domain of the highest level but one, through that domain's port. */
double bl_cost_leave_rank_s(const bl_cost *cost, int rank, bool back);
double bl_cost_leave_domain_s(const bl_cost *cost, bool back);

/* ---- what it is made of, for those who search and prove -------------------------------------- */

/* A port takes rows of one rank, or of all ranks of a domain. Ports 0 .. n_ranks - 1 are the
 * ranks' own. */
typedef struct bl_cost_rates {
    int n_ranks, top_k;
    bool overlap;
    double fixed_s;          /* latency and messages of both exchanges together */
    const double *weights_s; /* [n_ranks] reading one expert */
    const double *row_s;     /* [n_ranks] multiplying one row */
    const bool *apart;       /* [n_ranks] both add up */
    int n_ports;
    const double *in_s, *out_s; /* [n_ports] of a row, dispatched and combined */
    int n_groupings;            /* levels at which several ranks share a port */
    const int *port_of;         /* [n_groupings][n_ranks] */
} bl_cost_rates;

const bl_cost_rates *bl_cost_rates_of(const bl_cost *cost); /* lives as long as the handle */

/* Seconds of attention on a rank that has `tokens` of its own; 0 without overlap. */
double bl_cost_attention_s(const bl_cost *cost, int rank, double tokens);

/* Seconds of one copy of an expert with n rows on a rank. */
static inline double bl_cost_copy_s(const bl_cost_rates *rates, int rank, double n) {
    const double read = (n < 1.0 ? n : 1.0) * rates->weights_s[rank];
    const double multiply = n * rates->row_s[rank];
    if (rates->apart[rank])
        return read + multiply;
    return read > multiply ? read : multiply;
}

/* All of it, from the busiest ports of a row's way there and back and the slowest rank's attention
 * and experts. */
static inline double bl_cost_total_s(const bl_cost_rates *rates, double in_s, double out_s,
                                     double rank_s) {
    const double exchange = rates->fixed_s + in_s + out_s;
    if (!rates->overlap)
        return exchange + rank_s;
    return exchange > rank_s ? exchange : rank_s;
}

#endif
