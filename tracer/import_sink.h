/*
 * import_sink.h: where importers put what they read. Internal to the tracer.
 *
 * An importer describes each file once (bl_sink_begin) and then hands over steps; the sink knows
 * the layer convention, makes the records and writes the trace.
 */
#ifndef BL_TRACER_IMPORT_SINK_H
#define BL_TRACER_IMPORT_SINK_H

#include "core/npy.h"
#include "tracer/blt.h"
#include "tracer/import.h"
#include "tracer/layers.h"
#include "tracer/steps.h"

/* What a file says about itself. */
typedef struct bl_source_shape {
    const char *file;   /* its path, for messages */
    const char *model;  /* name, or NULL */
    int n_rows;         /* layer rows */
    const int *layers;  /* [n_rows] decoder-layer ids it states, or NULL */
    int n_experts;      /* 0: it does not say */
    int top_k;          /* 0: it does not say */
    int phase;          /* a bl_phase, or -1: it does not say */
    int n_ranks;        /* 0: it does not say */
    const int *present; /* [n_present] ranks it has something of, ascending */
    int n_present;
} bl_source_shape;

struct bl_import_sink {
    const char *format, *out; /* borrowed */
    const bl_import_options *options;
    bl_blt_writer *writer; /* NULL before the first file's shape is known */
    bl_trace_info info;
    bl_layer_rows rows;
    const char *file; /* being read */
    int phase;        /* of its records */
    uint32_t run;     /* of the recording being read, where steps have numbers of their own */
    uint64_t next_step;
    bl_steps steps;   /* those with tokens */
    uint64_t *counts; /* [n_rows][n_experts] scratch */
    uint64_t *sums;   /* [n_rows] scratch */
    uint64_t *sorted; /* [n_rows] scratch */
    uint64_t empty_steps, bad_rows, padded_steps, equal_rows, missing_tokens;
    char first_bad_row[128];
    bl_import_result result;
};

/* Fix the shape with the first file, compare with it after that. */
bl_status bl_sink_begin(bl_import_sink *sink, const bl_source_shape *shape, bl_error *err);

/* One step of loads, load[row][expert]; `tokens` as the file states it, or 0. Rows with NaN,
 * infinite or negative loads are left out and noted; fractions are an error. */
bl_status bl_sink_loads(bl_import_sink *sink, const double *load, uint64_t tokens, bl_error *err);

/* One step of whole counts, count[row][id], of one rank or all: `key` says run, step, rank, phase,
 * flags, epoch, n_ids and, as the file states them or 0, n_tokens. *tokens_p gets the tokens; without
 * any, nothing is written. */
bl_status bl_sink_counts(bl_import_sink *sink, const bl_record *key, const uint64_t *count,
                         uint64_t *tokens_p, bl_error *err);

/* Write one record, of a layer that is kept. Rows of equal ids are counted for the notes. */
bl_status bl_sink_put(bl_import_sink *sink, const bl_record *record, bl_error *err);

/* Tokens without steps. */
typedef struct bl_token_ids {
    const bl_npy *ids;   /* [token, row, k] integers; negative: missing */
    const size_t *begin; /* [n_sequences + 1] first token of each sequence and the end, or NULL */
    size_t n_sequences;
    const uint16_t *weights; /* [token][row][k] binary16 bits, or NULL */
} bl_token_ids;

/* An array of ids in memory, [n_tokens][n_rows][k], as bl_token_ids wants it. */
bl_npy bl_token_array(const int32_t *ids, size_t n_tokens, size_t n_rows, size_t k);

/* Make steps of them as the options say. Tokens of which no layer has an id are left out and noted.
 */
bl_status bl_sink_tokens(bl_import_sink *sink, const bl_token_ids *tokens, bl_error *err);

/* Tokens gathered from several places, a sequence each, before steps are made of them. */
typedef struct bl_token_table {
    size_t n_rows, k; /* the same for all; 0 before the first */
    size_t n_tokens, n_sequences;
    int32_t *ids;  /* [n_tokens][n_rows][k], negative: missing; owned */
    size_t *begin; /* [n_sequences] first token; owned */
    size_t ids_capacity, begin_capacity;
} bl_token_table;

/* Begin a sequence; BL_ERR_SHAPE when its shape differs from the one before, or is none. */
bl_status bl_token_table_begin(bl_token_table *table, size_t n_rows, size_t k, const char *file,
                               bl_error *err);
/* Room for n more tokens of the last sequence; *ids_p holds until the next call. */
bl_status bl_token_table_add(bl_token_table *table, size_t n, int32_t **ids_p, bl_error *err);
bl_status bl_token_table_put(const bl_token_table *table, bl_import_sink *sink, bl_error *err);
void bl_token_table_free(bl_token_table *table);

/* Files of one recording, each of one rank. */
typedef struct bl_rank_file {
    int rank;
    char *path;
    uint64_t n_steps; /* the importer counts them */
} bl_rank_file;

typedef struct bl_rank_files {
    bl_rank_file *items; /* owned, and so are the paths */
    size_t n, capacity;
    bl_steps steps; /* of all ranks together; the importer adds them */
    int *present;   /* [n], made by bl_rank_files_shape() */
} bl_rank_files;

bl_status bl_rank_files_add(bl_rank_files *files, const char *path, int rank, bl_error *err);
/* All files of a folder that are named PREFIX<something>SUFFIX, by name; *is_folder tells whether
 * there is such a folder. A number alone between the two is the rank, else the rank is -1. */
bl_status bl_rank_files_list(bl_rank_files *files, const char *folder, const char *prefix,
                             const char *suffix, bool *is_folder, bl_error *err);
/* Sort by rank, fill the shape's ranks and note those that are missing. Two files of one rank are
 * BL_ERR_STATE. */
bl_status bl_rank_files_shape(bl_rank_files *files, bl_import_sink *sink, bl_source_shape *shape,
                              bl_error *err);
/* Note ranks that lack steps others have. */
void bl_rank_files_note_steps(bl_rank_files *files, bl_import_sink *sink);
void bl_rank_files_free(bl_rank_files *files);

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
bl_status bl_import_topk_csv(bl_import_sink *sink, const char *const *paths, int n_paths,
                             bl_error *err);
bl_status bl_import_sglang_pass(bl_import_sink *sink, const char *const *paths, int n_paths,
                                bl_error *err);
bl_status bl_import_sglang_reply(bl_import_sink *sink, const char *const *paths, int n_paths,
                                 bl_error *err);
bl_status bl_import_trtllm_stat(bl_import_sink *sink, const char *path, bl_error *err);
bl_status bl_import_vllm_reply(bl_import_sink *sink, const char *const *paths, int n_paths,
                               bl_error *err);

#endif
