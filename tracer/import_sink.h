/*
 * import_sink.h: where importers put what they read. Internal to the tracer.
 *
 * An importer describes each file once (bl_sink_begin) and then hands over steps; the sink knows
 * the layer convention, makes the records and writes the trace.
 */
#ifndef BL_TRACER_IMPORT_SINK_H
#define BL_TRACER_IMPORT_SINK_H

#include "tracer/blt.h"
#include "tracer/import.h"
#include "tracer/layers.h"

/* What a file says about itself. */
typedef struct bl_source_shape {
    const char *file;  /* its path, for messages */
    const char *model; /* name, or NULL */
    int n_rows;        /* layer rows */
    const int *layers; /* [n_rows] decoder-layer ids it states, or NULL */
    int n_experts;     /* 0: it does not say */
    int top_k;         /* 0: it does not say */
    int phase;         /* a bl_phase, or -1: it does not say */
} bl_source_shape;

struct bl_import_sink {
    const char *format, *out; /* borrowed */
    const bl_import_options *options;
    bl_blt_writer *writer; /* NULL before the first file's shape is known */
    bl_trace_info info;
    bl_layer_rows rows;
    const char *file; /* being read */
    int phase;        /* of its records */
    uint64_t next_step;
    uint64_t *counts; /* [n_experts] scratch */
    uint64_t *sums;   /* [n_rows] scratch */
    uint64_t *sorted; /* [n_rows] scratch */
    uint64_t empty_steps, bad_rows, padded_steps;
    char first_bad_row[128];
    bl_import_result result;
};

/* Fix the shape with the first file, compare with it after that. */
bl_status bl_sink_begin(bl_import_sink *sink, const bl_source_shape *shape, bl_error *err);

/* One step of loads, load[row][expert]; `tokens` as the file states it, or 0. Rows with NaN,
 * infinite or negative loads are left out and noted; fractions are an error. */
bl_status bl_sink_loads(bl_import_sink *sink, const double *load, uint64_t tokens, bl_error *err);

/* Ids of one (row, rank) of a composed step; rows left out are ignored. */
bl_status bl_sink_ids(bl_import_sink *sink, uint64_t step, int row, int rank, const int32_t *ids,
                      uint64_t n_tokens, bl_error *err);

void bl_sink_note(bl_import_sink *sink, const char *format, ...) BL_PRINTF(2, 3);

/* The description beside a file, x.json for x.npy; NULL when there is none. The caller owns it. */
bl_status bl_sink_read_side_json(const char *path, json_t **root_p, bl_error *err);
/* layer_ids, num_experts, top_k, model and phase of a JSON object into `shape`; *layers_p is owned
 * by the caller. */
bl_status bl_sink_shape_from_json(const json_t *root, bl_source_shape *shape, int **layers_p,
                                  bl_error *err);

bl_status bl_import_load_json(bl_import_sink *sink, const char *path, bl_error *err);
bl_status bl_import_load_npy(bl_import_sink *sink, const char *path, bl_error *err);
bl_status bl_import_load_csv(bl_import_sink *sink, const char *path, bl_error *err);
bl_status bl_import_topk_npy(bl_import_sink *sink, const char *path, bl_error *err);
bl_status bl_import_sglang_stat(bl_import_sink *sink, const char *path, bl_error *err);

#endif
