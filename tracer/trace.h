/*
 * trace.h: what was routed: the records of a trace.
 *
 * A trace is a sequence of records. One record says what the router of one MoE layer did with the
 * tokens of one rank in one step:
 *
 *     run 0, step 17, decoder layer 3, rank 1, decode:      token 0 -> experts 4 7
 *                                                           token 1 -> experts 0 -      (one empty)
 *
 * Its key is (run, step, layer, rank); several records per key are legal (micro-batches, long
 * prefills) and add up. Records come in two forms:
 *
 *     ids      n_tokens rows of k ids, -1 where a top-k slot is empty
 *     counts   a histogram over ids, from engines that only count
 *
 * Ids live in a *space*: logical (experts, what the router picked) or physical (slots, after the
 * engine's map was applied). Physical ids are only read through the map under which they were made,
 * so their record names the map's epoch. Whoever reads a trace through tracer/stream.h sees logical
 * ids only.
 *
 * What is not load: empty slots, and every record of a dummy step. A row whose k > 1 ids are all
 * equal is impossible for a router and comes from zero-filled buffers: it is stored as k empty
 * slots.
 *
 * Conservation: within one step of one rank every layer has seen the same tokens, and its counts
 * sum to tokens * k - empty. A layer for which this fails is unusable, and is named.
 */
#ifndef BL_TRACER_TRACE_H
#define BL_TRACER_TRACE_H

#include "ballast.h"
#include "core/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct bl_model;

extern const char *const bl_phase_names[]; /* NULL-terminated, indexed by bl_phase */

#define BL_EMPTY_SLOT (-1)
#define BL_ALL_RANKS (-1) /* rank of a record whose source summed over ranks */

enum {
    BL_RECORD_DUMMY = 1 << 0, /* made-up tokens: never load */
    BL_RECORD_COMPOSED =
        1 << 1, /* the step was put together by an importer, not seen by an engine */
    BL_RECORD_PHYSICAL = 1 << 2, /* ids are slots of the layer's map of `epoch`; else experts */
    BL_RECORD_SETS = 1 << 3      /* the order within a row is not the router's: it was not kept */
};

#define BL_MAX_EXPERTS 65536
#define BL_MAX_IDS_SPACE (1 << 20) /* largest n_ids: slots of all ranks in one layer */
#define BL_MAX_TOP_K 1024
#define BL_MAX_LAYERS 4096
#define BL_MAX_RANKS 65536

typedef enum bl_stage {
    BL_STAGE_ROUTE,
    BL_STAGE_PERMUTE,
    BL_STAGE_DISPATCH,
    BL_STAGE_EXPERTS,
    BL_STAGE_COMBINE,
    BL_STAGE_UNPERMUTE,
    BL_N_STAGES
} bl_stage;

typedef struct bl_record {
    uint32_t run;
    uint64_t step;
    int layer; /* decoder-layer id */
    int rank;  /* source rank, or BL_ALL_RANKS */
    bl_phase phase;
    unsigned flags;          /* BL_RECORD_... */
    uint64_t epoch;          /* of the layer's map; meaningful for physical ids */
    int n_ids;               /* ids are below this: experts, or slots of the map */
    uint64_t n_tokens;       /* valid tokens */
    int k;                   /* top-k slots per token */
    uint64_t n_empty;        /* empty ones among n_tokens * k; the writer counts them for ids */
    uint64_t dropped;        /* records of this rank lost since its previous record */
    const int32_t *ids;      /* [n_tokens][k], or NULL for counts */
    const uint64_t *counts;  /* [n_ids], or NULL for ids */
    const uint16_t *weights; /* [n_tokens][k] routing weights as binary16 bits, or NULL; ids only */
    const uint64_t *stage_ns; /* [BL_N_STAGES] measured times, or NULL */
} bl_record;

/* What holds for the whole trace. */
typedef struct bl_trace_info {
    char model[128];
    int n_layers;
    int *layers; /* [n_layers] decoder-layer ids of the MoE layers, ascending; owned */
    int n_experts, top_k;
    char source[64]; /* who made it: "record", "synth", "load-json", ... */
    int n_ranks;     /* ranks that belong to the trace; 0: the source did not say */
    int n_present;
    int *present; /* [n_present] ranks recorded here, ascending; owned; may be empty */
    int part;     /* which file of a recording in parts, from 1; 0: it is not in parts */
    int domain;   /* node or host that the tokens of these ranks come from; -1: not told */
} bl_trace_info;

/* The layers, experts and name of a model. Free with bl_trace_info_free(). */
bl_status bl_trace_info_of_model(const struct bl_model *model, const char *source,
                                 bl_trace_info *out, bl_error *err);
/* The same from its parts; `layers` is copied and must ascend. */
bl_status bl_trace_info_create(const char *model, const int *layers, int n_layers, int n_experts,
                               int top_k, const char *source, bl_trace_info *out, bl_error *err);
bl_status bl_trace_info_set_ranks(bl_trace_info *info, int n_ranks, const int *present,
                                  int n_present, bl_error *err);
bl_status bl_trace_info_copy(const bl_trace_info *info, bl_trace_info *out, bl_error *err);
void bl_trace_info_free(bl_trace_info *info); /* safe on a zeroed struct */

/* Shapes in range, layers ascending. `file` is used in messages and may be NULL. */
bl_status bl_trace_info_check(const bl_trace_info *info, const char *file, bl_error *err);

/* Position of a decoder layer in info->layers, or -1. */
int bl_trace_layer_index(const bl_trace_info *info, int layer);

/* BL_ERR_MODEL, naming the difference, unless both traces are of one model. */
bl_status bl_trace_info_same_model(const bl_trace_info *a, const bl_trace_info *b, const char *file,
                                   bl_error *err);
/* BL_ERR_MODEL unless experts and top-k agree and every layer of the trace is MoE in the model. */
bl_status bl_trace_info_fits_model(const bl_trace_info *info, const struct bl_model *model,
                                   const char *file, bl_error *err);

#endif
