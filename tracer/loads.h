/*
 * loads.h: what a trace says about load, in the form that planning and replay read.
 *
 * One count per (step, MoE layer, expert): how many token rows the routers of all ranks sent to
 * that expert in that step. Padding, dummy ranks and empty top-k slots are not load and are left
 * out.
 *
 *     count[(step * n_layers + layer_index) * n_experts + expert]
 *
 * Conservation is checked on the way in (tracer/ledger.h): in every (step, layer) the counts must
 * sum to tokens * k - empty. A layer that fails is marked unusable with the reason, and a planner
 * refuses it by name; it is never planned on quietly. A step without any load is absent, not zero.
 *
 * Two more views on request, for whoever asks where tokens come from:
 *
 *     source_count   the same counts apart by the rank on which the tokens were born
 *     sample         single tokens with their ids (tracer/tokens.h)
 *
 * A trace whose records are summed over ranks cannot tell the first: it is refused by name, or the
 * view is left out and sources_why says why.
 */
#ifndef BL_TRACER_LOADS_H
#define BL_TRACER_LOADS_H

#include "core/model.h"
#include "core/status.h"
#include "tracer/tokens.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/* One of the paths: its own digest, and which steps of the whole trace are its. */
typedef struct bl_loads_part {
    char digest[33];
    uint64_t first, end;
} bl_loads_part;

typedef struct bl_loads {
    char model_name[128]; /* of the first path; "" when it does not tell */
    size_t n_steps;
    int n_layers, n_experts, top_k;
    int *layers;          /* [n_layers] decoder-layer ids, ascending */
    bool *usable;         /* [n_layers] false: some step of it does not conserve */
    char **why;           /* [n_layers] the reason when not usable, else NULL */
    uint64_t *step_id;    /* [n_steps] 0-based position in the trace (what --steps counts) */
    uint64_t *count;      /* [n_steps][n_layers][n_experts] */
    uint64_t trace_steps; /* steps of the whole trace, whatever the filter */
    uint64_t tokens;      /* valid tokens over all steps read, per layer */
    uint64_t dropped;     /* records lost before they reached the trace */
    bool composed;        /* the steps were made by composing replies, not seen by an engine */
    bool complete;        /* no cut file and no missing rank */
    char notes[1024];     /* what the user must be told: cut files, "incomplete: rank 2"; or "" */
    char digest[33];      /* of the whole trace, independent of the step filter */
    int n_parts;          /* paths that were read as one trace */
    bl_loads_part *parts; /* [n_parts]; owned */
    int n_sources;        /* ranks on which tokens are born, 0 .. n_sources - 1; 0: not known */
    /* [n_steps][n_layers][n_sources][n_experts], or NULL: not asked for, or not told */
    uint32_t *source_count;
    char sources_why[256]; /* why source_count is NULL although it was asked for */
    bl_tokens sample;      /* single tokens; sample.most is 0 when they were not asked for */
} bl_loads;

typedef enum bl_loads_sources {
    BL_SOURCES_NONE,
    BL_SOURCES_IF_TOLD,
    BL_SOURCES_REQUIRED /* BL_ERR_UNSUPPORTED when the trace does not tell them */
} bl_loads_sources;

typedef struct bl_loads_options {
    int phase;                        /* a bl_phase, or -1 for all */
    int64_t first_step, end_step;     /* half-open; end INT64_MAX for all */
    int64_t except_first, except_end; /* steps left out (a plan's own); both 0: none */
    bl_loads_sources sources;
    size_t most_tokens; /* kept per layer; 0: no tokens */
} bl_loads_options;

#define BL_LOADS_OPTIONS_INIT ((bl_loads_options){.phase = -1, .end_step = INT64_MAX})

/* Read one or more .blt files (or directories of per-rank files) as one trace: the steps of the
 * second path follow those of the first. `model` must agree in experts and layers (BL_ERR_MODEL
 * names the difference); its MoE layers are the layers of the result, and one that the trace lacks
 * is unusable. NULL takes the trace's own. A trace without any tokens is BL_ERR_CONSERVATION; steps
 * selected that hold none, while others do, are BL_ERR_RANGE. Free with bl_loads_free(). */
bl_status bl_loads_read(const char *const *paths, int n_paths, const bl_model *model,
                        const bl_loads_options *options, bl_loads *out, bl_error *err);
void bl_loads_free(bl_loads *loads); /* safe on a zeroed struct */

static inline const uint64_t *bl_loads_row(const bl_loads *loads, size_t step, int layer_index) {
    return loads->count +
           (step * (size_t)loads->n_layers + (size_t)layer_index) * (size_t)loads->n_experts;
}

/* The counts of one source rank; source_count is there. */
static inline const uint32_t *bl_loads_source_row(const bl_loads *loads, size_t step,
                                                  int layer_index, int source) {
    const size_t row =
        (step * (size_t)loads->n_layers + (size_t)layer_index) * (size_t)loads->n_sources +
        (size_t)source;
    return loads->source_count + row * (size_t)loads->n_experts;
}

/* Print what the reader of an answer from these loads must know: the notes, a selection of steps that
 * the trace only holds a part of, and a trace that names another model than `model_name` does. `name`
 * is the trace's. */
void bl_loads_tell(const bl_loads *loads, const char *name, const char *model_name, int64_t first,
                   int64_t end, FILE *out);

/* The same of figures that were made from single tokens, where these are only a part of all. */
void bl_loads_tell_sample(const bl_loads *loads, const char *name, FILE *out);

/* Does any step have a count in this layer? */
static inline bool bl_loads_has_counts(const bl_loads *loads, int layer_index) {
    for (size_t step = 0; step < loads->n_steps; step++) {
        const uint64_t *count = bl_loads_row(loads, step, layer_index);
        for (int expert = 0; expert < loads->n_experts; expert++) {
            if (count[expert] != 0)
                return true;
        }
    }
    return false;
}

#endif
