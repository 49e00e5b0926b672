/*
 * traffic_plan.h: balance first, then as few rows between nodes as that leaves room for.
 *
 * A layer is planned for balance as if all bytes cost the same. Where they do not (several nodes), and
 * where the trace tells where tokens come from, this second stage looks for a placement with fewer
 * rows between nodes whose score is at most BL_TRAFFIC_SLACK above that of the first:
 *
 *     rule local                  which nodes hold which experts (nodes_plan.h): search, and GLPK where
 *                                 it fits; under deduplicated dispatch by the experts that tokens pick
 *                                 together
 *     even, nearest, fixed        rows that cross one by one (share_search.h)
 *     fractions, per-step         none: their shares are made for balance alone
 *
 * Nothing is done for dispatch by allgather, which sends every token to every rank; nor with a
 * placement in force (moves are made for balance only), with rules about nodes or domains, or under
 * the objective time.
 *
 * Under planner/robust.h the new placement's cost must keep within the same slack, so that what holds
 * on other texts is not traded away either.
 */
#ifndef BL_PLANNER_TRAFFIC_PLAN_H
#define BL_PLANNER_TRAFFIC_PLAN_H

#include "planner/problem.h"

/* Of the score. Held out, half a per cent becomes a little more than one (docs/benchmarks.md). */
#define BL_TRAFFIC_SLACK 0.005

typedef struct bl_traffic_plan_result {
    bool tried, changed;
    bool improved_by_milp, proven; /* of the assignment to nodes */
} bl_traffic_plan_result;

typedef struct bl_traffic_plan_options {
    uint64_t seed;
    int64_t proposals; /* 0: default */
    bool use_milp;
} bl_traffic_plan_options;

/* Improve `placement`, which keeps the hard rules, in place. BL_LIMIT when interrupted. */
bl_status bl_traffic_plan(const bl_problem *problem, const bl_traffic_plan_options *options,
                          bl_layer_placement *placement, bl_traffic_plan_result *out,
                          bl_error *err);

#endif
