/*
 * stages.h: what the stages of each step took, all ranks and layers of it together.
 *
 * Records of a step lie apart in a trace: one for each rank and layer, and a recorder that looks at one
 * ring after another writes many steps of one rank before the first of the next. Steps are put together
 * in a window of bounded memory; when it is full the step that came first is handed over, as it is.
 *
 *     records   r0s0 r0s1 r0s2 r1s0 r1s1 r1s2 ...       window   s0 s1 s2  ──▶  visit(s0), ...
 *
 * A step is whole when every rank told the times of every layer; nothing can be learned about waiting
 * from a step of which a rank is missing, so others are counted and not handed over. Neither are those
 * with made-up tokens, which take time and are not load.
 */
#ifndef BL_TRACER_STAGES_H
#define BL_TRACER_STAGES_H

#include "tracer/stream.h"

#define BL_STAGES_WINDOW_BYTES ((size_t)64 << 20)

typedef struct bl_stage_step {
    uint32_t run;
    uint64_t step;
    const double *counts;   /* [n_layers][n_experts] rows picked on all ranks */
    const double *stage_ns; /* [n_layers][n_ranks][BL_N_STAGES] */
} bl_stage_step;

/* A negative status ends reading with it; BL_LIMIT ends it well. */
typedef bl_status bl_stage_visit(void *user, const bl_stage_step *step, bl_error *err);

typedef struct bl_stage_totals {
    uint64_t steps;    /* seen, those behind a BL_LIMIT left out */
    uint64_t whole;    /* handed over */
    uint64_t made_up;  /* left out for tokens that are no load */
    uint64_t no_times; /* left out since no rank told times */
    bool cut;          /* ended by the visitor */
} bl_stage_totals;

/* Read a stream to its end. BL_ERR_UNSUPPORTED where records are summed over ranks or the trace does not
 * say how many ranks there are; BL_ERR_NOMEM where one step is larger than any that ran. window_bytes 0:
 * BL_STAGES_WINDOW_BYTES. */
bl_status bl_stages_read(bl_stream *stream, size_t window_bytes, bl_stage_visit *visit, void *user,
                         bl_stage_totals *out, bl_error *err);

#endif
