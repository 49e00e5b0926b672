/*
 * plan_print.h: what `ballast plan` tells: a summary on standard error, or JSON on standard output.
 */
#ifndef BL_CLI_PLAN_PRINT_H
#define BL_CLI_PLAN_PRINT_H

#include "cli/plan_inputs.h"

/* Warnings and the summary, on standard error. */
void bl_plan_print_text(const bl_plan_options *o, const bl_plan_inputs *in, const bl_plan *plan,
                        const bl_planning_summary *s);
/* summary.explain in words, on standard error. */
void bl_plan_print_explain(const json_t *explain);
/* The summary as one JSON object on standard output. */
bl_status bl_plan_print_json(const bl_plan_options *o, const bl_plan_inputs *in,
                             const bl_plan *plan, const bl_planning_summary *s, bl_error *err);

#endif
