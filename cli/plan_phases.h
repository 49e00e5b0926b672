/*
 * plan_phases.h: the phases that `ballast plan` was given, and what the plan makes of each.
 */
#ifndef BL_CLI_PLAN_PHASES_H
#define BL_CLI_PLAN_PHASES_H

#include "cli/plan_inputs.h"

/* Fill in plan->predicted for every phase of the steps planned on. */
bl_status bl_plan_predict(const bl_plan_options *o, const bl_plan_inputs *in, bl_plan *plan,
                          bl_error *err);

/* A line for each phase, and a warning where phases were mixed without being asked for. */
void bl_plan_print_phases(const bl_plan_options *o, const bl_plan_inputs *in, const bl_plan *plan,
                          FILE *out);

/* plan->predicted without its layers; new reference. */
json_t *bl_plan_phases_to_json(const bl_plan *plan);

#endif
