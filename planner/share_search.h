/*
 * share_search.h: search under rules that share an expert's rows by the rank they come from (nearest,
 * fixed), and for few rows between nodes under those rules and under even.
 *
 *     balance(placement)   the score of problem.h under the problem's rule
 *     crossing(placement)  rows of all scenarios that are served on another node than they were born
 *                          on, when each travels by itself (dispatch by assignment)
 *
 * Two aims. BL_AIM_BALANCE minimises balance, and a price for every move from the placement in force.
 * BL_AIM_CROSSING minimises crossing as long as balance stays within a limit. Both by simulated
 * annealing over swaps of copies on two ranks and replacements of one copy by another expert's;
 * proposals are scored exactly, in O(scenarios x sources) for the two experts that change.
 *
 * Crossing counts single rows. What deduplicated dispatch makes of experts that are picked together
 * is planned for under the rule local only (nodes_plan.h).
 */
#ifndef BL_PLANNER_SHARE_SEARCH_H
#define BL_PLANNER_SHARE_SEARCH_H

#include "planner/problem.h"

typedef enum bl_aim { BL_AIM_BALANCE, BL_AIM_CROSSING } bl_aim;

typedef struct bl_share_options {
    bl_aim aim;
    double limit; /* of balance, for BL_AIM_CROSSING */
    uint64_t seed;
    int64_t proposals; /* 0: BL_SHARE_PROPOSALS */
    double time_s;     /* > 0: this long instead */
    double move_price; /* what a move must save: of balance, or as a part of the rows that cross */
} bl_share_options;

#define BL_SHARE_PROPOSALS 20000

/* Part of all rows that crosses, 0 .. 1. problem->sources and sites are there; the rule is even,
 * nearest or fixed. */
bl_status bl_share_crossing(const bl_problem *problem, const bl_layer_placement *placement,
                            double *out, bl_error *err);

/* Improve `placement` in place: hard rules and problem->max_moves are kept. BL_LIMIT when
 * interrupted. */
bl_status bl_share_search(const bl_problem *problem, const bl_share_options *options,
                          bl_layer_placement *placement, bl_error *err);

#endif
