/*
 * anneal.h: simulated annealing over swaps and replacements, for several scenarios.
 *
 * Every scenario has its own busiest rank, and what relieves one burdens another, so there is no
 * single rank to descend on. A proposal is scored exactly: for each scenario the new largest load
 * is the largest of the changed ranks and of the three highest ranks that are not among them (more
 * are looked at only when all three are). A swap costs O(scenarios), tens of nanoseconds for a
 * dozen.
 */
#ifndef BL_PLANNER_ANNEAL_H
#define BL_PLANNER_ANNEAL_H

#include "core/rng.h"
#include "planner/state.h"

typedef struct bl_anneal_options {
    int64_t proposals;
    double time_s;           /* > 0: this long instead of a number of proposals */
    double target;           /* stop at this objective */
    double hottest, coldest; /* temperatures at the start and the end, as parts of the objective */
} bl_anneal_options;

/* Leaves the state at the cheapest placement seen (bl_state_cost). BL_LIMIT when interrupted. */
bl_status bl_anneal(bl_state *state, const bl_anneal_options *options, bl_rng *rng, bl_error *err);

#endif
