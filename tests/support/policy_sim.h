/*
 * policy_sim.h: the policy (rebalancer/policy.h) against a sequence of loads, in virtual time.
 *
 * One layer. Every window lasts window_s; a plan is made by the planner from the windows before the
 * latest, weighed on the latest, and takes effect duration_s after it was decided, on whatever load
 * there is then: what the policy sees is late, as it is in a cluster. A step takes
 * (1 - share) + share x imbalance of its nominal time; moving costs cost_s once.
 */
#ifndef BL_TESTS_POLICY_SIM_H
#define BL_TESTS_POLICY_SIM_H

#include "rebalancer/policy.h"

#include <stddef.h>
#include <stdio.h>

typedef enum bl_sim_mode {
    BL_SIM_NEVER,
    BL_SIM_EVERY, /* plan and move at every `every` windows, whatever it gains */
    BL_SIM_POLICY
} bl_sim_mode;

typedef struct bl_policy_case {
    int n_experts, n_ranks, slots; /* slots over all ranks */
    const double *load;            /* [n_windows][n_experts] */
    size_t n_windows;
    bl_sim_mode mode;
    int every;
    bl_policy_options policy;
    int history;
    double window_s, share; /* share of experts in a level step */
    double cost_s,
        duration_s; /* of a whole move; cost is shared out by moves when per_move is set */
    double cost_per_move_s;
    FILE *trace; /* decisions, or NULL */
} bl_policy_case;

typedef struct bl_policy_result {
    int moves;   /* plans applied */
    long copies; /* that travelled */
    int rolled_back;
    double mean;   /* imbalance over windows */
    double lost_s; /* to imbalance and to moves, over the whole sequence */
} bl_policy_result;

bl_policy_result bl_policy_simulate(const bl_policy_case *c);

#endif
