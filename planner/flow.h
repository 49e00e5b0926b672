/*
 * flow.h: scores under the per-step split (BL_RULE_PER_STEP).
 *
 * Every scenario is split anew and exactly (core/split_step.h), so its busiest rank has what the
 * largest cut demands and no more. The solver wants whole rows: loads that are whole and not huge
 * are taken as they are, others are scaled to 2^42 rows and rounded, which changes a score by less
 * than one part in 10^9.
 */
#ifndef BL_PLANNER_FLOW_H
#define BL_PLANNER_FLOW_H

#include "planner/evaluate.h"

/* Whole rows for load[n_experts] (finite, >= 0); returns rows per unit of load, 0 without load. */
double bl_flow_rows(const double *load, int n_experts, uint64_t *rows);

/* Score of a placement of the problem's shape that keeps the hard rules, every scenario under its
 * own split, whatever the problem's rule. */
bl_status bl_flow_evaluate(const bl_problem *problem, const bl_layer_placement *placement,
                           bl_score *out, bl_error *err);

#endif
