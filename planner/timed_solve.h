/*
 * timed_solve.h: from a layer's problem to the placement with the least time (planner/timed.h).
 *
 *     none in force   two starts, searched one after the other, the better is kept: what levels
 *                     tokens (right where multiplying rules; never worse than that plan), and spare
 *                     slots filled with what hardly runs (right where reading rules)
 *     a current one   repaired if it cannot be served, improved from where it is with a price on
 *                     every move; where moves are unlimited and the bound is far, a fresh start laid
 *                     over it wins if it is cheaper, moves included. What is in force stays unless
 *                     time falls by more than min_gain
 */
#ifndef BL_PLANNER_TIMED_SOLVE_H
#define BL_PLANNER_TIMED_SOLVE_H

#include "planner/solve.h"

/* Fills placement and kept_current of a solution whose bound is there. BL_ERR_UNSUPPORTED for rules
 * other than even and for exact plans. BL_LIMIT when interrupted. */
bl_status bl_timed_solve(const bl_problem *problem, const bl_solve_options *options,
                         bl_solution *solution, bl_error *err);

#endif
