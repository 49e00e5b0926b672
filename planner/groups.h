/*
 * groups.h: which node each group of experts lives on, when groups are kept whole.
 *
 * Group-limited models (DeepSeek-V3: 8 groups of 32, a token uses 4 of them) route a token to few
 * nodes only if a group is whole on one node. Experts e of E belong to group e * n_groups / E.
 *
 *     x[q][n] in {0, 1}    group q lives on node n                  sum_n x[q][n] = 1
 *     slots                sum_q size(q) x[q][n] <= slots of n      and >= those of its largest rank
 *     T[s]                 sum_q load[s][q] x[q][n] / ranks of n    <= T[s]
 *     minimise             sum_s T[s] + price * copies that must travel to another node
 *
 * Within the nodes the experts are then placed as always; no rank of a node carries less than its
 * share of what the node carries, so the minimum says what the groups cost at least. Some tens of
 * binaries: GLPK proves the best choice in milliseconds; without it an exchange search chooses.
 *
 * Where the current placement keeps groups whole, the nodes in force stay unless another choice is
 * better by problem->min_gain.
 */
#ifndef BL_PLANNER_GROUPS_H
#define BL_PLANNER_GROUPS_H

#include "planner/problem.h"

#define BL_MAX_GROUPS 64

typedef struct bl_groups {
    int n_groups, n_nodes;
    int node_of[BL_MAX_GROUPS];
    bool proven; /* no other choice has a lighter heaviest node */
} bl_groups;

/* Choose for problem->n_groups on problem->node. The problem has been checked, without rules.
 * BL_ERR_INFEASIBLE names numbers: more nodes than groups, or slots that do not hold them. */
bl_status bl_groups_choose(const bl_problem *problem, bl_groups *out, bl_error *err);

/* The choice as a rule: may (created here, the caller frees) lets a rank hold its node's groups. */
bl_status bl_groups_rule(const bl_problem *problem, const bl_groups *groups, bl_holds *may,
                         bl_error *err);

#endif
