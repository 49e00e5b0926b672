/*
 * shares.h: how the copies of a fixed placement should share their experts' load.
 *
 * Under BL_RULE_FRACTIONS a plan carries a share for every slot. For one load the best shares are
 * found by water-filling: in turn, each expert with several copies pours its load onto its ranks so
 * that they become as level as the other experts allow. Every turn lowers the sum of squared rank
 * loads, a convex function, so the turns converge to its minimum; and the minimum of the sum of
 * squares over the flows of a bipartite graph also minimises the largest load (rank loads reachable
 * by splitting form a base polytope, whose least-majorised point both share). Several scenarios are
 * levelled on their sum: shares are frozen before it is known which scenario comes.
 */
#ifndef BL_PLANNER_SHARES_H
#define BL_PLANNER_SHARES_H

#include "planner/problem.h"

/* share[n_slots] for `load[n_experts]`; 0 on an empty slot; an expert without load shares evenly.
 */
bl_status bl_shares_level(const bl_layer_placement *placement, const double *load, double *share,
                          bl_error *err);

/* The shares a plan for this problem would carry: even under BL_RULE_EVEN, levelled on the summed
 * scenarios under BL_RULE_FRACTIONS; BL_ERR_UNSUPPORTED for the other rules. */
bl_status bl_shares_of(const bl_problem *problem, const bl_layer_placement *placement,
                       double *share, bl_error *err);

/* The refusal of a rule other than those two. */
bl_status bl_shares_unsupported(const bl_problem *problem, bl_error *err);

#endif
