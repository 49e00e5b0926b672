/*
 * budget.h: one budget of moves over many layers.
 *
 * Each layer offers a ladder of placements: rung r takes `moves` copies over the wire and gains
 * `gain` (token rows that its busiest rank is spared). The first rung is what the layer must have
 * at least (usually: stay as it is, 0 moves). Choosing a rung per layer within the budget so that
 * the gains sum to the most is a multiple-choice knapsack. It is solved here the classical way:
 * only rungs on the upper convex hull of a layer's (moves, gain) points can win by their slope, and
 * climbing the steepest step of any hull first is optimal for every budget that such a climb uses
 * up exactly; in between it loses less than one step's gain. What is left in the end is offered to
 * single rungs off the hull.
 *
 *     gain |        ___o        hull: a - c - d;  b lies below it
 *          |     c /
 *          |   b
 *          | a------------ moves
 */
#ifndef BL_PLANNER_BUDGET_H
#define BL_PLANNER_BUDGET_H

#include "core/status.h"

typedef struct bl_rung {
    int moves;
    double gain;
} bl_rung;

typedef struct bl_ladder {
    const bl_rung *rungs; /* [n_rungs], at least one, moves ascending; borrowed */
    int n_rungs;
} bl_ladder;

/* choice[n] receives the rung of each ladder. BL_ERR_INFEASIBLE when the first rungs alone exceed
 * the budget; the message says how many moves they need. */
bl_status bl_budget_choose(const bl_ladder *ladders, int n, int64_t budget, int *choice,
                           bl_error *err);

#endif
