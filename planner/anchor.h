/*
 * anchor.h: a plan starts from the placement in force.
 *
 * A copy that stays on its rank costs nothing; one that must travel costs a bundle of weights over
 * the wire. So a search starts from the current placement wherever there is one, repaired where it
 * cannot be served as it is: a rank was lost, slots were taken away or added.
 */
#ifndef BL_PLANNER_ANCHOR_H
#define BL_PLANNER_ANCHOR_H

#include "planner/problem.h"

/* The problem's current placement, cut to the problem's slots and completed with few moves: every
 * expert gets a copy, then holes are filled while problem->max_moves lasts. A current placement
 * that fits is returned as it is, holes and all. `load[n_experts]` says which copies are dear.
 * BL_ERR_INFEASIBLE when covering every expert needs more than max_moves. Staying copies keep their
 * slots. */
bl_status bl_anchor_start(const bl_problem *problem, bl_layer_placement *out, bl_error *err);

#endif
