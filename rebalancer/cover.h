/*
 * cover.h: after ranks were lost, who serves the experts that only they held?
 *
 *     layer 3          rank 0   rank 1   rank 2 (lost)
 *     before           [0 1]    [2 0]    [3 4]          3 and 4 are orphans
 *     after            [3 1]    [2 0]    [- -]          0 has another copy, so its slot takes 3;
 *                                                       no slot is left for 4: uncoverable
 *
 * A must-cover repair, not a plan: it empties the slots of lost ranks and gives every *orphan*, an
 * expert without a living copy, a slot of a living rank: an empty one, else one of an expert with
 * other living copies, of that with most, since the others take over its rows. The last living copy
 * is never given away, so every expert is covered when there are as many living slots as experts, and
 * else the uncoverable are named. Copies that are not needed for that stay where they are. Balance is
 * left to the planner, later.
 *
 * The repair is a function of its inputs alone, so that all survivors compute the same one. Loads are
 * no input: each survivor has counted its own, and they need not have heard of each other's.
 */
#ifndef BL_REBALANCER_COVER_H
#define BL_REBALANCER_COVER_H

#include "core/placement.h"

typedef struct bl_orphan {
    int expert, rank, slot; /* where it goes */
} bl_orphan;

/* lost[n_ranks]. *out is the repaired layer (epoch one up), orphans[*n_orphans] what must be loaded
 * for it, at most n_experts, ascending. *changed is false, and nothing is made, when no lost rank
 * holds anything. BL_ERR_INFEASIBLE names the experts that have no place, the first of many.
 * Free *out with bl_layer_placement_free(). */
bl_status bl_cover(const bl_layer_placement *now, const bool *lost, bl_layer_placement *out,
                   bl_orphan *orphans, int *n_orphans, bool *changed, bl_error *err);

#endif
