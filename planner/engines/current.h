/*
 * current.h: the placement in force, from whatever file tells it: a plan of ours, or a file of any
 * engine of engine.h. Told apart by content, not by name: .npy by its magic, JSON by its first
 * character, everything else is YAML; then by the keys or axes that only one format has. What fits
 * two formats, or none, is refused.
 */
#ifndef BL_PLANNER_ENGINES_CURRENT_H
#define BL_PLANNER_ENGINES_CURRENT_H

#include "planner/plan.h"

/* An engine's file does not name its model or its ranks: they are the ones given. Copies that serve
 * nothing (twice on one rank) are dropped and counted in *duplicates. Free with bl_plan_free(). */
bl_status bl_current_load(const char *path, const bl_model *model, int n_ranks, bl_plan *out,
                          int *duplicates, bl_error *err);

/* The same from memory; `name` is used in messages. */
bl_status bl_current_parse(const char *bytes, size_t n_bytes, const char *name,
                           const bl_model *model, int n_ranks, bl_plan *out, int *duplicates,
                           bl_error *err);

#endif
