/*
 * import.h: other tools' routing data into traces.
 *
 * Two kinds of sources. *Load matrices* [layer][expert] hold how often each expert was picked; one
 * matrix is one step, its tokens are what the file states or else sum / k of most layers. *Top-k
 * dumps*, engines' replies among them, hold ids of single tokens without steps or ranks; steps are
 * composed from them, and the records are labelled as composed for ever.
 *
 * What is checked, always: which decoder layer a row is (tracer/layers.h), the number of experts
 * and k, ids in range and distinct, counts that are whole numbers. What cannot be used but does no
 * harm is left out and said in the notes: steps without any token, rows that are not numbers, rows
 * of k equal ids, which no router makes (buffers that were never filled read as "expert 0, k
 * times").
 */
#ifndef BL_TRACER_IMPORT_H
#define BL_TRACER_IMPORT_H

#include "core/model.h"
#include "tracer/trace.h"

#include <stdbool.h>

typedef struct bl_import_options {
    const bl_model *model; /* or NULL */
    const char *layers;    /* the --layers convention, or NULL */
    int phase;             /* a bl_phase, or -1: what the file says, else unknown */
    int top_k;             /* 0: from the model or the file */
    int64_t compose_batch; /* tokens per step over all ranks; 0: do not compose steps */
    int compose_ranks;
    int ranks; /* ranks that should have written a file; 0: up to the highest that did */
    bool sets; /* keep of each token which experts it picked, not in which order */
} bl_import_options;

#define BL_IMPORT_OPTIONS_INIT ((bl_import_options){NULL, NULL, -1, 0, 0, 1, 0, false})

typedef struct bl_import_result {
    uint64_t steps, tokens;
    int n_layers;
    char notes[1024]; /* what was left out and why; "" when nothing was */
} bl_import_result;

typedef struct bl_import_sink bl_import_sink;

typedef struct bl_importer {
    const char *name;    /* as in --from */
    const char *summary; /* one phrase */
    bool is_tokens;      /* holds tokens without steps: what --compose is for */
    bool is_ranks;       /* holds a file for each rank: what --ranks is for */
    /* Reads one input; inputs follow one another. */
    bl_status (*read)(bl_import_sink *sink, const char *path, bl_error *err);
    /* Or reads them all, because they belong together. */
    bl_status (*read_all)(bl_import_sink *sink, const char *const *paths, int n_paths,
                          bl_error *err);
} bl_importer;

extern const bl_importer bl_importers[]; /* ends with a NULL name */

/* "batch=256,ranks=8" */
bl_status bl_import_parse_compose(const char *text, bl_import_options *options, bl_error *err);

/* Read `paths` one after another as one trace and write it to `out`, which appears only on success.
 */
bl_status bl_import(const char *format, const char *const *paths, int n_paths,
                    const bl_import_options *options, const char *out, bl_import_result *result,
                    bl_error *err);

#endif
