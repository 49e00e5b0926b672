/*
 * current.h: the placement in force, from whatever file tells it: a plan of ours, or the map an
 * engine was started with. Told apart by content, not by name.
 */
#ifndef BL_PLANNER_ENGINES_CURRENT_H
#define BL_PLANNER_ENGINES_CURRENT_H

#include "planner/plan.h"

/* An engine's map does not name its model or its ranks: they are the ones given. Copies that serve
 * nothing (twice on one rank) are dropped and counted in *duplicates. Free with bl_plan_free(). */
bl_status bl_current_load(const char *path, const bl_model *model, int n_ranks, bl_plan *out,
                          int *duplicates, bl_error *err);

#endif
