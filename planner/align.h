/*
 * align.h: lay a placement over the one in force before its moves are counted.
 *
 * Ranks with equally many slots are equal to the planner, and so are the slots of one rank. A
 * placement that was made without looking at the current one may therefore be relabelled so that as
 * many copies as possible are where they already were.
 */
#ifndef BL_PLANNER_ALIGN_H
#define BL_PLANNER_ALIGN_H

#include "planner/problem.h"

/* Exchange the contents of ranks that are alike (rules.h) where that saves moves (an
 * assignment problem, solved exactly by the Hungarian method in O(ranks^3); no exchange without a
 * saving), then order the slots as below. problem->current is not NULL. */
bl_status bl_align(const bl_problem *problem, bl_layer_placement *placement, bl_error *err);

/* A copy of `made`, laid over the current placement when there is one. */
bl_status bl_align_copy(const bl_problem *problem, const bl_layer_placement *made,
                        bl_layer_placement *out, bl_error *err);

/* bl_align(), where the caller knows which ranks are alike: those of one class[n_ranks] with equally many
 * slots. Only problem->n_ranks, n_experts, slots_per_rank and current are looked at. */
bl_status bl_align_classes(const bl_problem *problem, const int *class,
                           bl_layer_placement *placement, bl_error *err);

/* Order the slots within ranks alone: staying copies keep their slots. */
bl_status bl_align_slots(const bl_problem *problem, bl_layer_placement *placement, bl_error *err);

#endif
