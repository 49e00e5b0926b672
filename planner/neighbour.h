/*
 * neighbour.h: all that two ranks hold, laid out anew by GLPK.
 *
 * The local search changes one or two slots at a time. Here a MILP may exchange everything between
 * the busiest rank g and another rank h at once, numbers of copies included, while all other ranks
 * keep what they hold. Expert e has o copies elsewhere; its copies on the two ranks are one of
 *
 *     x[e][none], x[e][g], x[e][h], x[e][both]       sum = 1; weight of a copy: load[e] / (o + n)
 *
 * so that every rank's load is linear in x: also that of ranks which hold another copy of e, whose
 * weight changes with n. With T[s] the busiest rank of scenario s, unchanged ranks included:
 *
 *     minimise sum_s T[s] + price * moves,   both ranks full,   sum over configurations <= T[s]
 *
 * Configurations that break a rule (rules.h) or leave an expert nowhere do not exist; a limit on moves
 * is one row. Experts in question are those on the two ranks and a few that live elsewhere.
 *
 * A pair of 9 slots each is some hundred binaries. Better than what is known is asked for, within a
 * number of nodes, so the same problem gives the same plan on every machine; "there is none" is proven
 * or not. Even split, scenarios as they are (problem->tail is not looked at).
 */
#ifndef BL_PLANNER_NEIGHBOUR_H
#define BL_PLANNER_NEIGHBOUR_H

#include "planner/problem.h"

typedef struct bl_neighbour_options {
    int pairs;         /* ask about so many pairs of ranks at most */
    int max_nodes;     /* of one pair's tree */
    double target;     /* stop at this score */
    double move_price; /* as in search.h */
} bl_neighbour_options;

typedef struct bl_neighbour_result {
    int asked, improved, proven; /* pairs; proven: nothing better is left in them */
} bl_neighbour_result;

/* Improve `placement` in place; rules and problem->max_moves are kept, score and price of moves do
 * not rise. Without a solver nothing is asked. BL_LIMIT when interrupted. */
bl_status bl_neighbours(const bl_problem *problem, const bl_neighbour_options *options,
                        bl_layer_placement *placement, bl_neighbour_result *out, bl_error *err);

#endif
