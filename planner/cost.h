/*
 * cost.h: how long one MoE layer takes in one step, modelled from the figures of a topology.
 *
 *     T = dispatch + max over ranks (experts) + combine
 *
 *     experts   grouped-GEMM roofline: for each copy with n token rows on a rank
 *               max( min(1, n) x expert bytes / memory bandwidth,  n x 6 x hidden x intermediate
 *               / FLOP rate ), summed over the rank's copies. In decode the first term rules: a
 *               copy costs its weights whatever it serves. (n < 1 is the chance that it is used.)
 *     dispatch  every expert row travels by itself (k rows a token). The trace of loads does not
 *               say where a token was born, so its rows come evenly from all ranks: rank g receives
 *               rows_g, of which (G - 1) / G cross a link. The slowest port decides, of a rank (one
 *               message at a time, the bandwidth of each pair) or of a domain (its ports shared).
 *     combine   the same rows, the other way.
 *
 * Shared experts, attention and kernel launches are left out: they are the same under every
 * placement, and a saving is a difference. What comes out is a model and is labelled so wherever it
 * is shown.
 */
#ifndef BL_PLANNER_COST_H
#define BL_PLANNER_COST_H

#include "core/placement.h"
#include "topologies/topology.h"

typedef struct bl_cost bl_cost;

/* For `n_ranks` ranks, the first of the topology, which is borrowed until bl_cost_free().
 * BL_ERR_SHAPE when it has fewer; BL_ERR_MODEL when the model has no sizes. */
bl_status bl_cost_create(const bl_model *model, const bl_topology *topology, int n_ranks,
                         bl_cost **out, bl_error *err);
void bl_cost_free(bl_cost *cost); /* NULL is fine */

/* Seconds in which all ranks learn each other's counts of `n_experts` experts (4 bytes each, from
 * every rank to every other): what a split that is made anew each step costs per layer and step. */
double bl_cost_counts_s(bl_cost *cost, int n_experts);

/* Seconds of one layer in one step: slot_rows[n_slots] token rows on each slot, rank_rows[n_ranks]
 * their sums. Uses scratch of the handle: one thread at a time. */
double bl_cost_layer_s(bl_cost *cost, const bl_layer_placement *placement, const double *slot_rows,
                       const double *rank_rows);

#endif
