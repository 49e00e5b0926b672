/*
 * nodes_place.h: from copies on nodes to slots of ranks.
 *
 * Within a node bytes are cheap and copies alike, so each node is a small problem of its own: its
 * experts, with the rows that the node serves of each, on its ranks. Spare slots of a node hold
 * second copies of what it has. The folds of a sample are its scenarios, so that what runs hot together
 * is put apart. From an `anchor`, what it holds stays where it is, as long as the node keeps it and
 * moving it within the node would not pay.
 */
#ifndef BL_PLANNER_NODES_PLACE_H
#define BL_PLANNER_NODES_PLACE_H

#include "planner/nodes.h"
#include "planner/problem.h"

/* rank_node[n_ranks]; count[n_experts][n_nodes] and rows[n_folds][n_experts][n_nodes] as in nodes.h;
 * anchor may be NULL. The placement has the shape of `problem`, whose loads are not looked at. BL_ERR_INFEASIBLE when a node's ranks cannot hold its
 * copies. Free with bl_layer_placement_free(). */
bl_status bl_nodes_place(const bl_problem *problem, const int *rank_node, int n_nodes,
                         const int *count, const double *rows, int n_folds, uint64_t seed,
                         const bl_layer_placement *anchor, bl_layer_placement *out, bl_error *err);

#endif
