/*
 * canonical.h: the same problem with its experts and ranks in an order of their own.
 *
 * Ids of experts say nothing, nor do those of ranks that are alike; but a search that draws random ids
 * answers differently when they are given out differently. So it is handed
 *
 *     experts   sorted by load: over all scenarios, then scenario by scenario, then by the ranks that
 *               may hold them and the copies they need (rules.h), by the rows of each source, and, where
 *               all of that is equal, by the first slot that holds them now
 *     ranks     those that are alike (equally many slots, node, rules, device and ports), sorted by the
 *               loads of what they hold now; without a placement in force they stay
 *
 * and whoever permutes the experts of a problem, or its equal ranks, gets the same placement, permuted.
 * What ties to the end is a symmetry of the loads.
 *
 * Where tokens come from names ranks (a source is a rank), so ranks stay where sources are given.
 */
#ifndef BL_PLANNER_CANONICAL_H
#define BL_PLANNER_CANONICAL_H

#include "planner/problem.h"
#include "planner/sources.h"

typedef struct bl_canonical {
    bl_problem problem;         /* the sorted one; what it points to is below, or the original's */
    int *expert;                /* [n_experts] the original's id of each of its experts; owned */
    int *rank;                  /* [n_ranks] the same of its ranks; owned */
    double *load;               /* owned, as all below */
    bl_layer_placement current; /* contents of ranks exchanged */
    bl_rules rules;
    bl_holds may;
    int *least;
    bl_sources sources; /* load and id; the rest is the original's */
} bl_canonical;

/* `problem` has been checked and outlives it. Free with bl_canonical_free(). */
bl_status bl_canonical_create(const bl_problem *problem, bl_canonical *out, bl_error *err);
void bl_canonical_free(bl_canonical *canonical); /* safe on a zeroed struct */

/* Give a placement for the sorted problem the original's experts and ranks; so for share[n_slots],
 * which may be NULL. */
bl_status bl_canonical_restore(const bl_canonical *canonical, bl_layer_placement *placement,
                               double *share, bl_error *err);

#endif
