/*
 * canonical.h: the same problem with its experts in an order of their own.
 *
 * Ids of experts say nothing, but a search that draws random ids would answer differently when they
 * are given out differently. So the search is handed experts sorted by load (over all scenarios, then
 * scenario by scenario), and, where loads are equal, by the first slot that holds them now: whoever
 * permutes the experts of a problem gets the same placement, permuted.
 *
 * Problems with rules or with sources of tokens name experts in more places and stay as they are; so do
 * those whose scenarios are a sample (problem->tail) and per-step splits, where the ids still steer the
 * annealing.
 */
#ifndef BL_PLANNER_CANONICAL_H
#define BL_PLANNER_CANONICAL_H

#include "planner/problem.h"

typedef struct bl_canonical {
    bl_problem problem;         /* the sorted one; what it points to is below, or the original's */
    int *expert;                /* [n_experts] the original's id of each of its experts; owned */
    double *load;               /* owned */
    bl_layer_placement current; /* owned */
} bl_canonical;

/* `problem` has been checked and outlives it. Free with bl_canonical_free(). */
bl_status bl_canonical_create(const bl_problem *problem, bl_canonical *out, bl_error *err);
void bl_canonical_free(bl_canonical *canonical); /* safe on a zeroed struct */

/* Give the experts of a placement for the sorted problem their original names. */
void bl_canonical_restore(const bl_canonical *canonical, bl_layer_placement *placement);

#endif
