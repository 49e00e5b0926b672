/*
 * solve_milp.h: what GLPK adds to a searched placement; solve.c's other half.
 *
 *     auto     where the search stops short of the bound (even split, scenarios as they are): pairs of
 *              ranks are laid out anew (neighbour.h), small layers as a whole (exact.h), within numbers
 *              of nodes, so that the result does not hang on the machine's speed
 *     exact    the same, without limit on nodes, but with one on time
 *
 * Without a solver, or when a time limit is given, nothing happens under auto.
 */
#ifndef BL_PLANNER_SOLVE_MILP_H
#define BL_PLANNER_SOLVE_MILP_H

#include "planner/solve.h"

/* BL_ERR_UNSUPPORTED says why an exact plan cannot be asked for. */
bl_status bl_solve_check_exact(const bl_problem *problem, bl_error *err);

/* Improve solution->placement, whose phases.searched is its score, or prove it. BL_LIMIT when an
 * exact proof was not found in time. */
bl_status bl_solve_by_milp(const bl_problem *problem, const bl_solve_options *options,
                           double move_price, bl_solution *solution, bl_error *err);

#endif
