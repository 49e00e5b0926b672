/*
 * hierarchical.h: EPLB's hierarchical policy, as a yardstick.
 *
 * DeepSeek's EPLB and what is derived from it plan group-limited models in three steps when the
 * groups divide over the nodes:
 *
 *   1. groups to nodes      heaviest group first, to the least loaded node that has not yet got its
 *                           n_groups / n_nodes groups
 *   2. copies within nodes  the node's spare slots one by one to its expert of largest load per copy
 *   3. copies to ranks      heaviest copy first, to the least loaded rank of the node with a free slot
 *
 * and globally (greedy.h) when they do not divide. As in greedy.h two copies of an expert never
 * share a rank here; theirs may.
 */
#ifndef BL_PLANNER_HIERARCHICAL_H
#define BL_PLANNER_HIERARCHICAL_H

#include "planner/problem.h"

/* Plans on the sum of the scenarios, problem->n_groups on problem->node (NULL: one node). Nodes whose
 * slots cannot take their groups are planned globally too. The problem has been checked. */
bl_status bl_greedy_hierarchical(const bl_problem *problem, bl_layer_placement *out, bl_error *err);

#endif
