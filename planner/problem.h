/*
 * problem.h: one layer's placement problem, in numbers.
 *
 * Given the load of E experts under one or more scenarios (steps or blocks of a trace), find which
 * experts, and how many copies of each, sit in the slots of G ranks so that the busiest rank has as
 * little as possible to do.
 *
 *     rank load    L_g(s) = sum over slots p of rank g:  share(p) * load[s][expert(p)]
 *     imbalance    max_g L_g(s) / mean_g L_g(s)          (masked ranks hold nothing and do not count)
 *     score        mean over scenarios of the imbalance, weighted by the scenario's total load
 *
 * Hard rules, never traded: every expert has a copy; no expert twice on one rank; slots per rank are
 * respected; masked ranks hold nothing; a layer without load keeps its current placement.
 */
#ifndef BL_PLANNER_PROBLEM_H
#define BL_PLANNER_PROBLEM_H

#include "core/placement.h"
#include "core/split.h"

typedef struct bl_problem {
    int layer;                 /* decoder-layer id, for messages */
    int n_experts, n_ranks;
    int n_scenarios;
    const double *load;        /* [n_scenarios][n_experts], token rows, >= 0; borrowed */
    const int *slots_per_rank; /* [n_ranks]; 0 on a masked rank; borrowed */
    bl_rule rule;              /* how copies share their expert's load */
    const bl_layer_placement *current; /* the placement in force, or NULL; borrowed */
    int max_moves;             /* copies that may travel from `current`; -1: no limit */
    double min_gain;           /* with `current`: keep it unless the score falls by more than this
                                  fraction (0.01 = one per cent) */
} bl_problem;

/* Can it be solved at all? Loads finite and >= 0, shapes positive, enough slots for every expert,
 * no more slots on a rank than experts. BL_ERR_INFEASIBLE names the remedy with numbers. */
bl_status bl_problem_check(const bl_problem *problem, bl_error *err);

#endif
