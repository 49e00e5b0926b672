/*
 * exact.h: the best placement of a small problem under the even rule, with proof.
 *
 *     z[e][k]     expert e has k copies                          sum_k z[e][k] = 1
 *     y[e][g][k]  rank g holds one of the k copies of expert e   sum_g y[e][g][k] = k z[e][k]
 *     T[s]        busiest rank in scenario s                     sum_ek load[s][e] / k y[e][g][k]
 *                                                                           <= T[s]
 *     rank g is full: sum_ek y[e][g][k] = slots[g];   minimise sum_s T[s]
 *
 * The linear relaxation of this says no more than the mean load, so branch and bound lives on what
 * is cut away beforehand:
 *   - a better placement than the one already known is asked for; "there is none" is the proof;
 *   - numbers of copies whose copies alone would be as heavy as what is known are left out, and
 *     numbers that leave too few slots for the others;
 *   - ranks that are alike are interchangeable (unless moves from the current placement are
 *     limited): ordered by the lowest expert they hold, with the experts sorted by load (the first
 *     rank of such a class holds the hottest of the class's experts, and so on), only one of each
 *     set of equivalent placements is left;
 *   - experts with equal load and rules are interchangeable: their numbers of copies descend.
 * Fault domains add sum_d w[e][d] >= least[e], w[e][d] <= the copies of e in domain d; a limit on
 * moves is one row; slots may stay empty where the placement in force has empty ones.
 *
 * It is the oracle for the search and the last per cent for small models, not a way to plan 256
 * experts: GLPK does not close that in any useful time, and neither does any other solver tried.
 */
#ifndef BL_PLANNER_EXACT_H
#define BL_PLANNER_EXACT_H

#include "planner/milp.h"
#include "planner/problem.h"

/* "Better" means by more than this part of the score: ten times the solver's tolerance. */
#define BL_EXACT_GAIN 1e-6

typedef struct bl_exact_result {
    bool proven;   /* nothing beats what is returned (or, when not improved, what was known) */
    bool improved; /* `placement` was replaced */
    int nodes;     /* of the tree */
    double bound;  /* of the score, in max/mean: what was given, or higher */
} bl_exact_result;

/* Size of the model, to decide beforehand whether to try: binaries in it. */
int64_t bl_exact_size(const bl_problem *problem);

/* Look for a placement that scores below `known`, the even-split score of `placement`. On success
 * `placement` holds the best known one, valid and full, re-scored here by the evaluator.
 * problem->rules and problem->max_moves are kept. */
bl_status bl_exact(const bl_problem *problem, double known, double bound,
                   const bl_milp_limits *limits, bl_layer_placement *placement,
                   bl_exact_result *out, bl_error *err);

#endif
