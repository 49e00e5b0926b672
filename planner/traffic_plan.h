/*
 * traffic_plan.h: balance first, then as few rows between nodes as that leaves room for.
 *
 * A layer is planned for balance (or time) as if all bytes cost the same. Where they do not (several nodes),
 * and where the trace tells where tokens come from, this second stage looks for a placement with fewer
 * rows between nodes whose score is at most BL_TRAFFIC_SLACK above that of the first:
 *
 *     rule local                  which nodes hold which experts (nodes_plan.h): search, and GLPK where
 *                                 it fits; under deduplicated dispatch by the experts that tokens pick
 *                                 together
 *     even, nearest, fixed        rows that cross one by one (share_search.h)
 *     fractions, per-step         none: their shares are made for balance alone
 *
 * With a placement in force every move must save BL_TRAFFIC_MOVE_PRICE of the rows that cross. Where
 * balance left that placement as it is, it is changed for traffic alone only if that saves
 * BL_TRAFFIC_MIN_GAIN of them, and at no cost in balance: else each re-plan would give up a little more.
 *
 * Under the objective time balance is no measure: what comes out is taken if it takes less time, with the rows
 * that really travel (timed.h).
 *
 * Nothing is done for dispatch by allgather, which sends every token to every rank; nor with rules about
 * nodes or domains.
 *
 * Under planner/robust.h the new placement's cost must keep within the same slack, so that what holds
 * on other texts is not traded away either.
 */
#ifndef BL_PLANNER_TRAFFIC_PLAN_H
#define BL_PLANNER_TRAFFIC_PLAN_H

#include "planner/problem.h"

/* Of the score. Held out, half a per cent becomes a little more than one (docs/benchmarks.md). */
#define BL_TRAFFIC_SLACK 0.005
#define BL_TRAFFIC_MOVE_PRICE 1e-3
#define BL_TRAFFIC_MIN_GAIN 0.03

typedef struct bl_traffic_plan_result {
    bool tried, changed;
    bool improved_by_milp, proven; /* of the assignment to nodes */
} bl_traffic_plan_result;

typedef struct bl_traffic_plan_options {
    uint64_t seed;
    int64_t proposals; /* 0: default */
    bool use_milp;
} bl_traffic_plan_options;

/* Improve `placement`, which keeps the hard rules and problem->max_moves, in place; they stay kept. BL_LIMIT
 * when interrupted. */
bl_status bl_traffic_plan(const bl_problem *problem, const bl_traffic_plan_options *options,
                          bl_layer_placement *placement, bl_traffic_plan_result *out,
                          bl_error *err);

#endif
