/*
 * ballast.h: what an inference engine calls.
 *
 * Tracing. An engine says, for every step and MoE layer, which experts its router picked. The ids
 * are copied into a ring in POSIX shared memory, one ring per rank; another process (`ballast
 * record`) drains it into a trace file. So neither a crash of the recorder nor a full disk can
 * touch the engine, and the engine never waits: when the ring is full, the step is dropped as a
 * whole and counted.
 *
 *     bl_tracer *tracer = NULL;
 *     bl_trace_options options = BL_TRACE_OPTIONS_INIT;
 *     options.model = "my-model"; options.n_experts = 256; options.top_k = 8;
 *     options.layers = moe_layers; options.n_layers = 58;
 *     options.rank = rank; options.n_ranks = 32;
 *     bl_trace_open("my-model.0", &options, &tracer);
 *     for each step:
 *         bl_trace_step_begin(tracer, step, BL_PHASE_DECODE, 0);
 *         for each MoE layer:
 *             bl_trace_push(tracer, layer, topk_ids, sizeof *topk_ids, n_tokens, row_bytes);
 *         bl_trace_step_end(tracer);
 *     bl_trace_close(tracer);
 *
 * Layers are decoder-layer ids (0-based over all decoder layers), ids are logical experts as the
 * router picked them; -1 is an empty top-k slot. Only valid tokens are pushed, never padding.
 *
 * Every function returns 0 or a negative status of ballast_status.h. A NULL tracer is accepted
 * everywhere and does nothing, so that calls may stay in place when tracing is off. One thread uses
 * a tracer at a time. Link with libballast-trace, which needs the C library only.
 */
#ifndef BALLAST_H
#define BALLAST_H

#include "ballast_status.h"

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What a step does for its requests. The numbers are stable: they are written in trace files. */
typedef enum bl_phase {
    BL_PHASE_PREFILL = 0, /* prompts from their beginning */
    BL_PHASE_MIDFILL = 1, /* prompts continued (chunked prefill, cached prefix) */
    BL_PHASE_DECODE = 2,  /* one token per request */
    BL_PHASE_MIXED = 3,   /* prefill and decode in one step */
    BL_PHASE_VERIFY = 4,  /* draft tokens of speculative decoding */
    BL_PHASE_IDLE = 5,    /* a step run only to keep ranks together */
    BL_PHASE_UNKNOWN = 6, /* the source does not say */
    BL_N_PHASES = 7
} bl_phase;

/* Flags of a step. */
#define BL_STEP_DUMMY 1u /* the rank ran on made-up tokens: recorded, never counted as load */

typedef struct bl_tracer bl_tracer;

typedef struct bl_trace_options {
    size_t size;       /* sizeof(bl_trace_options): lets later versions add fields behind */
    const char *model; /* name for the trace file, at most 127 bytes */
    int n_experts;     /* routed experts per MoE layer, 1 .. 65536 */
    int top_k;         /* ids per token row, 1 .. 1024 */
    const int *layers; /* [n_layers] decoder-layer ids of the MoE layers, ascending */
    int n_layers;      /* 1 .. 4096 */
    int rank, n_ranks; /* this rank among those that trace together */
    uint32_t run;      /* distinguishes restarts of one service; 0 is fine */
    size_t ring_bytes; /* 0: 64 MiB. A step that does not fit into it is always dropped */
} bl_trace_options;

#define BL_TRACE_OPTIONS_INIT \
    { sizeof(bl_trace_options), "", 0, 0, NULL, 0, 0, 1, 0, 0 }

/* After each step: pushed = kept + dropped. */
typedef struct bl_trace_counters {
    uint64_t pushed;  /* records offered by bl_trace_push() */
    uint64_t kept;    /* records of steps that went into the ring */
    uint64_t dropped; /* records of steps that found it full */
} bl_trace_counters;

/* Create the ring `name` (letters, digits, '.', '_' and '-', at most 64). A ring of that name left
 * behind by a dead process is replaced; one that is in use is BL_ERR_STATE. */
int bl_trace_open(const char *name, const bl_trace_options *options, bl_tracer **tracer_p);

/* Steps are numbered upwards. Ranks that run one step together give it the same number. */
int bl_trace_step_begin(bl_tracer *tracer, uint64_t step, int phase, unsigned flags);

/* The ids of one layer in this step: n_tokens rows of top_k ids, each a signed integer of id_bytes
 * (1 as uint8_t, 2, 4 or 8), rows row_bytes apart. Several pushes for one layer add up
 * (micro-batches). n_tokens may be 0. Never blocks, allocates or calls the system. */
int bl_trace_push(bl_tracer *tracer, int layer, const void *ids, int id_bytes, size_t n_tokens,
                  size_t row_bytes);

/* Publishes the step as a whole, or drops it as a whole. */
int bl_trace_step_end(bl_tracer *tracer);

int bl_trace_read_counters(const bl_tracer *tracer, bl_trace_counters *counters);

/* Marks the ring closed and removes its name; a recorder that is attached still drains it. */
void bl_trace_close(bl_tracer *tracer);

#ifdef __cplusplus
}
#endif
#endif
