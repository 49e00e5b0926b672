/*
 * nodes_plan.h: a placement for few remote rows, from one that is balanced.
 *
 *     placement ──▶ copies on nodes ──▶ nodes.h: search, then GLPK where it fits ──▶ nodes_place.h
 *                                                                                        │
 *     balanced within the slack, by the evaluator?  yes: take it   no: a tighter limit ◀─┘
 *
 * Balance comes first: what is given up for traffic is at most `slack` of the score of the placement
 * that was given. This is for the rule local, whose choices follow from where copies are on nodes.
 *
 * With a placement in force copies that a node has not got cost a move, GLPK is not asked, and what stays on
 * its node stays on its rank where balance allows. A placement that is in force itself gives nothing up.
 */
#ifndef BL_PLANNER_NODES_PLAN_H
#define BL_PLANNER_NODES_PLAN_H

#include "planner/nodes.h"
#include "planner/traffic.h"
#include "planner/problem.h"

typedef struct bl_nodes_plan_options {
    bl_dispatch dispatch; /* anything but allgather */
    double slack;         /* of the score: 0.02 is two per cent */
    uint64_t seed;
    int64_t proposals; /* 0: default */
    bool use_milp;
    double
        move_price; /* with a placement in force: what a move must save, in parts of what is remote */
} bl_nodes_plan_options;

typedef struct bl_nodes_plan_result {
    bool changed;          /* the placement was replaced */
    double before, after;  /* remote nodes (dispatch by assignment: remote rows) per token */
    bool improved_by_milp; /* the solver beat the search */
    bool proven;           /* no assignment to nodes within the limit is better */
} bl_nodes_plan_result;

/* problem->sources and sites are there; the rule is BL_RULE_LOCAL. Improves `placement` in place, which
 * keeps the hard rules. BL_LIMIT when interrupted. */
bl_status bl_nodes_plan(const bl_problem *problem, const bl_nodes_plan_options *options,
                        bl_layer_placement *placement, bl_nodes_plan_result *out, bl_error *err);

#endif
