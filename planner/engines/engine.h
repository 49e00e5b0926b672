/*
 * engine.h: the engines whose placement files can be written and read.
 *
 * Every engine has its own file, its own idea of a row and its own way to choose among copies. What
 * is the same in all of them is done here, once: all ranks have equally many slots and none is
 * empty, slot p of P lives on rank p / (P / ranks), ids are in range, every expert has a copy, the
 * file speaks of the layers of the model. An engine adds how its file looks.
 *
 *     name          file                                   rows                     copies served
 *     sglang        {"physical_to_logical_map": [..]}      every decoder layer      nearest
 *     trtllm        num_slots, initial_global_assignments  by decoder-layer id      even
 *     vllm-ascend   layer_list, device_list                MoE layers in order      fixed
 *     omni          .npy 0/1 [ranks, MoE layers, experts]  MoE layers in order      fixed
 *     eplb          phy2log, log2phy, logcnt; or .npy      MoE layers in order      even
 *     vllm-patched  [[P], ...]                             MoE layers in order      even
 *     vllm-offline  {"record_type": .., ..}, one line      MoE layers, from "0"     even
 *
 * To add one: a file beside this one that defines `const bl_engine bl_engine_<id>`, and a row in
 * BL_ENGINES.
 *
 * Multi-token-prediction layers are not planned: a file has no rows for them or, where the engine
 * asks for some, the layout it would start with. No file names its model and, but for two, its ranks:
 * they are the ones given.
 */
#ifndef BL_PLANNER_ENGINES_ENGINE_H
#define BL_PLANNER_ENGINES_ENGINE_H

#include "core/npy.h"
#include "planner/plan.h"

#include <stdio.h>

/* id in C, name on the command line */
#define BL_ENGINES(X)               \
    X(sglang, "sglang")             \
    X(trtllm, "trtllm")             \
    X(vllm_ascend, "vllm-ascend")   \
    X(omni, "omni")                 \
    X(eplb, "eplb")                 \
    X(vllm_patched, "vllm-patched") \
    X(vllm_offline, "vllm-offline")

/* A plan that was found fit for any engine. */
typedef struct bl_export {
    const bl_plan *plan; /* borrowed; knows its model and has exactly its MoE layers */
    int n_ranks;
    int n_slots;        /* of a layer, over all ranks */
    int slots_per_rank; /* the same on all ranks and in all layers, none empty */
    int n_redundant;    /* n_slots - experts */
    int max_copies;     /* of an expert, over all layers */
} bl_export;

/* A file that may be an engine's. Borrowed. */
typedef struct bl_engine_file {
    const char *path;
    const json_t *tree; /* of JSON or YAML; else NULL */
    const bl_npy *npy;  /* else NULL */
} bl_engine_file;

typedef struct bl_engine {
    const char *name;  /* "trtllm" */
    const char *title; /* "TensorRT-LLM" */
    bl_rule rule;      /* how it chooses among the copies of an expert */
    bool no_twins;     /* it refuses a rank that holds an expert twice */
    bool mtp_rows;     /* its file has rows for layers of multi-token prediction */

    /* Write the file, atomically ("-": standard output). */
    bl_status (*write)(const bl_export *x, const char *path, bl_error *err);
    /* How to start the engine with the file, in lines. */
    void (*start)(const bl_export *x, const char *path, FILE *out);

    /* Does the content look like this engine's? Decides on the outermost marks only. */
    bool (*is)(const bl_engine_file *file);
    /* Check the form for this model and give the slots of all ranks. */
    bl_status (*read_shape)(const bl_engine_file *file, const bl_model *model, int n_ranks,
                            int64_t *n_slots, bl_error *err);
    /* The experts in the slots of the model's index-th MoE layer. Ids need not be checked. */
    bl_status (*read_layer)(const bl_engine_file *file, const bl_model *model, int n_ranks,
                            int index, int n_slots, int64_t *expert, bl_error *err);
} bl_engine;

#define BL_ENGINE_DECLARE(id, name) extern const bl_engine bl_engine_##id;
BL_ENGINES(BL_ENGINE_DECLARE)
#undef BL_ENGINE_DECLARE

extern const bl_engine *const bl_engines[]; /* NULL-terminated */
extern const char *const bl_engine_names[]; /* the same order, NULL-terminated */

/* Can the plan be written for this engine? The message names layer, rank and the way out. */
bl_status bl_export_check(const bl_engine *engine, const bl_plan *plan, bl_export *out,
                          bl_error *err);

/* Check, then write ("-": standard output). */
bl_status bl_export_write(const bl_engine *engine, const bl_plan *plan, const char *path,
                          bl_export *out, bl_error *err);

/* How to start the engine with what was written, and where the engine will differ from the plan. */
void bl_export_tell(const bl_engine *engine, const bl_export *x, const char *path, FILE *out);

/* Read a file as the placement of a model's MoE layers on n_ranks ranks, epoch 0. A rank that holds
 * an expert twice, where the engine allows it, gets its second copy emptied (and counted in
 * *duplicates, which may be NULL), since it serves nothing. */
bl_status bl_engine_read(const bl_engine *engine, const bl_engine_file *file, const bl_model *model,
                         int n_ranks, bl_placement *out, int *duplicates, bl_error *err);

/* ---- for the engines' own files ---------------------------------------------------------------*/

/* The experts of slots [first, end) of a layer as an array; new reference or NULL. */
json_t *bl_export_row(const bl_layer_placement *layer, int first, int end);
/* A row for each layer of the plan; new reference or NULL. */
json_t *bl_export_rows(const bl_export *x);
/* Write a tree and let go of it. NULL is the memory that its maker did not get. */
bl_status bl_export_json(const char *path, json_t *root, bl_error *err);

/* Exactly n whole numbers of a row; `layer` is for the message. */
bl_status bl_engine_row(const json_t *row, const char *file, int layer, int n, int64_t *expert,
                        bl_error *err);
/* The rows of a file that has one for each MoE layer. */
bl_status bl_engine_expect_rows(const bl_engine_file *file, const bl_model *model, size_t n_rows,
                                bl_error *err);
/* The object has no key outside the NULL-terminated list. */
bl_status bl_engine_only_keys(const bl_engine_file *file, const json_t *object,
                              const char *const *keys, bl_error *err);

#endif
