/*
 * evaluate.h: the one evaluator. Every placement, whoever made it (greedy, search, GLPK, another
 * engine), is scored by this code and no other; a solver's own objective value is never reported.
 */
#ifndef BL_PLANNER_EVALUATE_H
#define BL_PLANNER_EVALUATE_H

#include "planner/problem.h"

typedef struct bl_score {
    double max_over_mean; /* the problem's score: load-weighted mean over scenarios; 1 is ideal */
    double worst;         /* largest imbalance over scenarios */
} bl_score;

/* Score of a placement that satisfies the hard rules. No load at all scores 1. Under
 * BL_RULE_FRACTIONS the shares are the ones the planner would give this placement
 * (planner/shares.h); under BL_RULE_PER_STEP each scenario is split anew (planner/flow.h). The rules
 * that look at where tokens come from are scored by planner/traffic.h on problem->sources, without
 * which they are BL_ERR_UNSUPPORTED. */
bl_status bl_evaluate(const bl_problem *problem, const bl_layer_placement *placement, bl_score *out,
                      bl_error *err);

/* The same with given shares, share[n_slots] as in core/split.h, whatever the problem's rule. */
bl_status bl_evaluate_shares(const bl_problem *problem, const bl_layer_placement *placement,
                             const double *share, bl_score *out, bl_error *err);

/* Load of every rank in one scenario: rank_load[n_ranks]; share[n_slots] as in core/split.h. */
void bl_rank_loads(const bl_layer_placement *placement, const double *share, const double *load,
                   double *rank_load);

/* max / mean over ranks with slots (slots_per_rank[g] > 0); 1 when nothing is loaded. */
double bl_imbalance(const double *rank_load, const int *slots_per_rank, int n_ranks);

#endif
