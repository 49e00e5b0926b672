/*
 * sglang.h: SGLang's placement file, in and out.
 *
 *     {"physical_to_logical_map": [num_hidden_layers][P]}
 *
 * and no other key: the engine passes the object on as arguments of a function. It has a row for
 * *every* decoder layer; the rows of dense layers are there but not used, and are written as the
 * layout an engine starts with (slot i holds expert i mod E). Slot p lives on rank p / (P / G). The
 * engine checks next to nothing of it (a negative id silently counts from the end, a missing expert
 * shows up as a crash or not at all), so everything is checked here.
 *
 * Limits of the format: all ranks have the same number of slots, none of them empty; multi-token
 * prediction layers have no row.
 */
#ifndef BL_PLANNER_ENGINES_SGLANG_H
#define BL_PLANNER_ENGINES_SGLANG_H

#include "planner/plan.h"

/* How the engine must be started for a file to mean what the plan says. */
typedef struct bl_sglang_start {
    int ep_size;             /* --ep-size */
    int redundant_experts;   /* --ep-num-redundant-experts */
    const char *dispatch;    /* --ep-dispatch-algorithm; static storage */
    int mtp_layers_left_out; /* layers of the plan that the format has no row for */
} bl_sglang_start;

/* Can the plan be written for this engine? It must know its model. The message names layer, rank
 * and the way out. */
bl_status bl_sglang_check(const bl_plan *plan, bl_sglang_start *start, bl_error *err);

/* Check, then write atomically ("-": standard output). */
bl_status bl_sglang_write(const bl_plan *plan, const char *path, bl_sglang_start *start,
                          bl_error *err);

/* Is this JSON such a file? (For telling it from a plan.) */
bool bl_sglang_is_map(const json_t *root);

/* Read a map as the placement of a model's MoE layers on n_ranks ranks, epoch 0. Everything is
 * checked but one thing: a rank that holds an expert twice, which the engine allows, gets its
 * second copy emptied (and counted in *duplicates, which may be NULL), since it serves nothing. */
bl_status bl_sglang_read(const json_t *root, const char *file, const bl_model *model, int n_ranks,
                         bl_placement *out, int *duplicates, bl_error *err);

#endif
