/*
 * search.h: local search from a given placement.
 *
 * One scenario: descend (descend.h), then kick: a few random legal changes that begin at the
 * busiest rank, and descend again; what does not come out better is taken back. Several scenarios:
 * simulated annealing (anneal.h), since each scenario has a busiest rank of its own.
 *
 * Where scenarios are a sample of what will come (problem->tail): annealing on robust.h's cost.
 *
 * The search stops as soon as the score is within BL_SEARCH_CLOSE of the bound: what is left then
 * is a hundredth of the noise in any load. Otherwise it stops after a number of iterations, so that
 * the same seed gives the same bytes on every machine, or by the clock if it is told to.
 */
#ifndef BL_PLANNER_SEARCH_H
#define BL_PLANNER_SEARCH_H

#include "planner/problem.h"

#define BL_SEARCH_CLOSE 5e-4

typedef struct bl_search_options {
    uint64_t seed;
    int64_t iterations; /* descent steps (one scenario) or proposals (several); 0: default */
    double time_s;      /* > 0: this long instead */
    double target;      /* stop at this score, in max/mean */
    double move_price;  /* with a current placement: a change that adds a move must lower the score
                           by this much more */
} bl_search_options;

/* Improve `placement` in place: hard rules and problem->max_moves are kept, and the score under the
 * even rule (with a tail: the cost) does not get worse. The problem has been checked and has load.
 * BL_LIMIT when interrupted (core/progress.h). */
bl_status bl_search(const bl_problem *problem, const bl_search_options *options,
                    bl_layer_placement *placement, bl_error *err);

#endif
