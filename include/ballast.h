/*
 * ballast.h: what an inference engine calls.
 *
 * Tracing. An engine says, for every step and MoE layer, which experts its router picked. The ids
 * are copied into a ring in POSIX shared memory, one ring per rank; another process (`ballast
 * record`) drains it into trace files. So neither a crash of the recorder nor a full disk can touch
 * the engine, and the engine never waits: when the ring is full, the step is dropped as a whole,
 * counted and noted down.
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
 * Layers are decoder-layer ids (0-based over all decoder layers). Ids are logical experts as the
 * router picked them, or, when the options say so, physical slots of the map in force; -1 is an
 * empty top-k slot. Only valid tokens are pushed, never padding.
 *
 * What is recorded is expert ids, counts and times: no token, no text, no request.
 *
 * Statuses. Every function returns 0 or a negative status of ballast_status.h. A NULL tracer is
 * accepted everywhere and does nothing, so that calls may stay in place when tracing is off. A call
 * that fails records nothing and leaves the tracer as it was.
 *
 * Threads. One thread at a time uses a tracer; it need not always be the same one, as long as the
 * engine orders their calls. bl_trace_read_counters() may be called from any thread at any time
 * before bl_trace_close(). Tracers are independent of each other. A forked child may only close a
 * tracer, which then lives on in the parent; it cannot begin a step or set a map (BL_ERR_STATE).
 *
 * Versions. Structs begin with their size, which the _INIT macros fill in: an engine built against
 * an older header goes on working, with the defaults for what it does not know.
 *
 * Link with libballast-trace, which needs the C library only.
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

/* Flags of a tracer. */
#define BL_TRACE_PHYSICAL \
    1u                     /* ids are slots of the layer's map (bl_trace_set_map()), not experts */
#define BL_TRACE_TIMES 2u  /* records have room for bl_trace_stage_times() */
#define BL_TRACE_COUNTS 4u /* begin with counts only: a histogram per layer and step */

typedef struct bl_tracer bl_tracer;

typedef struct bl_trace_options {
    size_t size; /* sizeof(bl_trace_options): lets later versions add fields behind */
    const char
        *model;    /* name for the trace file: at most 127 bytes of UTF-8, no control characters */
    int n_experts; /* routed experts per MoE layer, 1 .. 65536 */
    int top_k;     /* ids per token row, 1 .. 1024 */
    const int *layers; /* [n_layers] decoder-layer ids of the MoE layers, ascending */
    int n_layers;      /* 1 .. 4096 */
    int rank, n_ranks; /* this rank among those that trace together, at most 65536 */
    uint32_t run;      /* distinguishes restarts of one service, below 2^31; 0 is fine */
    size_t ring_bytes; /* 0: 64 MiB. A step that does not fit into it is always dropped */
    /* since 0.2 */
    int source_domain;     /* node or host this rank's tokens come from; -1: not told */
    unsigned flags;        /* BL_TRACE_... */
    uint64_t epoch;        /* of all layers' maps at the start; changed by bl_trace_set_map() */
    unsigned sample_every; /* begin with 1 of so many steps; 0 or 1: all */
    unsigned sample_burst; /* kept in runs of so many steps, below 2^24; 0: 1 */
} bl_trace_options;

#define BL_TRACE_OPTIONS_INIT \
    { sizeof(bl_trace_options), "", 0, 0, NULL, 0, 0, 1, 0, 0, -1, 0, 0, 0, 0 }

/* Records, as of the last step that ended: pushed = kept + dropped + skipped. A record is one push;
 * with counts only, one layer of one step. */
typedef struct bl_trace_counters {
    uint64_t pushed;  /* offered by bl_trace_push() */
    uint64_t kept;    /* of steps that went into the ring */
    uint64_t dropped; /* of steps that found it full */
    uint64_t skipped; /* of steps left out by sampling */
} bl_trace_counters;

/* Create the ring `name` (letters, digits, '.', '_' and '-', at most 64). A ring of that name left
 * behind by a dead process is replaced: its recorder, if it has one, goes on with it; else what it held
 * counts as pushed and dropped here. One that is in use is BL_ERR_STATE.
 * Its memory is reserved here: BL_ERR_NOMEM when /dev/shm is too small. */
int bl_trace_open(const char *name, const bl_trace_options *options, bl_tracer **tracer_p);

/* Steps are numbered upwards, below 2^64 - 1; a number that comes again adds to its step. Ranks that run one step together give it the same number: sampling
 * then keeps the same steps on all of them. */
int bl_trace_step_begin(bl_tracer *tracer, uint64_t step, int phase, unsigned flags);

/* The ids of one layer in this step: n_tokens rows of top_k ids, each a signed integer of id_bytes
 * (1 as uint8_t, 2, 4 or 8), rows row_bytes apart (below 2^32). Several pushes for one layer add up
 * (micro-batches). n_tokens may be 0. Never blocks, allocates or calls the system. */
int bl_trace_push(bl_tracer *tracer, int layer, const void *ids, int id_bytes, size_t n_tokens,
                  size_t row_bytes);

/* The same with routing weights beside the ids. */
typedef struct bl_trace_rows {
    size_t size;
    const void *ids;
    int id_bytes;
    size_t n_tokens, row_bytes;
    const void *weights;     /* [n_tokens][top_k], or NULL; kept as binary16 */
    int weight_bytes;        /* 2: binary16, 4: float */
    size_t weight_row_bytes; /* from row to row */
} bl_trace_rows;

#define BL_TRACE_ROWS_INIT \
    { sizeof(bl_trace_rows), NULL, 4, 0, 0, NULL, 2, 0 }

int bl_trace_push_rows(bl_tracer *tracer, int layer, const bl_trace_rows *rows);

/* How long the stages of a layer took in this step, in nanoseconds. Goes to the layer's last push,
 * before the step ends; needs BL_TRACE_TIMES. */
typedef struct bl_trace_stages {
    size_t size;
    uint64_t route_ns, permute_ns, dispatch_ns, experts_ns, combine_ns, unpermute_ns;
} bl_trace_stages;

#define BL_TRACE_STAGES_INIT \
    { sizeof(bl_trace_stages), 0, 0, 0, 0, 0, 0 }

int bl_trace_stage_times(bl_tracer *tracer, int layer, const bl_trace_stages *stages);

/* The map of a layer from the next step on: which expert sits in which slot. Called between steps,
 * in the step that changes weights and map together. With physical ids it must be called for every
 * layer before the first push. The tracer keeps a copy (this call allocates) and puts it into the
 * ring before the next step. Epochs of a layer ascend. */
typedef struct bl_trace_map {
    size_t size;
    int layer;
    uint64_t epoch;
    int n_ranks;              /* ranks that hold slots */
    int n_slots;              /* over all ranks */
    const int *slots_of_rank; /* [n_ranks], or NULL: n_slots / n_ranks each */
    const int32_t *expert;    /* [n_slots] logical expert in each slot, -1: empty */
} bl_trace_map;

#define BL_TRACE_MAP_INIT \
    { sizeof(bl_trace_map), 0, 0, 1, 0, NULL, NULL }

int bl_trace_set_map(bl_tracer *tracer, const bl_trace_map *map);

/* Publishes the step as a whole, or drops it as a whole. */
int bl_trace_step_end(bl_tracer *tracer);

/* Instead of the end: the step failed half-way and will be taken again, under another number. What was
 * offered of it counts as dropped. */
int bl_trace_step_drop(bl_tracer *tracer);

int bl_trace_read_counters(const bl_tracer *tracer, bl_trace_counters *counters);

/* Marks the ring closed and removes its name; a recorder that is attached still drains it. A step
 * that was begun and not ended is dropped. */
void bl_trace_close(bl_tracer *tracer);

/* ---- on a GPU ------------------------------------------------------------------------------
 *
 * The same steps, in stream order and fit for CUDA graphs: every call launches one small kernel that
 * packs into the ring, which is pinned, and never synchronises. A captured graph freezes the
 * arguments of its launches, so what changes from step to step is read from a block in device
 * memory that the engine updates in stream order before the step. A tracer is used through these
 * calls or through the host's, never both. Ids are logical: maps would have to go into a ring that only
 * the device writes to. A layer is pushed at most once in a step.
 *
 * Without CUDA in the library these return BL_ERR_UNSUPPORTED. */
typedef struct bl_trace_cuda_block { /* in device memory */
    uint64_t step;
    uint64_t epoch;
    uint32_t n_tokens; /* valid rows; those behind are padding */
    uint32_t phase;    /* a bl_phase */
    uint32_t flags;    /* BL_STEP_... */
    uint32_t reserved; /* 0 */
} bl_trace_cuda_block;

/* Once, outside of graph capture: pins the ring and makes the device's state. *block_p is device
 * memory, owned by the tracer, and zeroed: the engine writes it. */
int bl_trace_cuda_open(bl_tracer *tracer, bl_trace_cuda_block **block_p);
/* `stream` is a cudaStream_t. ids is device memory of max_tokens rows. */
int bl_trace_cuda_step_begin(bl_tracer *tracer, void *stream);
int bl_trace_push_cuda(bl_tracer *tracer, int layer, const void *ids, int id_bytes,
                       size_t max_tokens, size_t row_bytes, void *stream);
int bl_trace_cuda_step_end(bl_tracer *tracer, void *stream);
/* After the last of these calls has run on the device, before bl_trace_close(). */
int bl_trace_cuda_close(bl_tracer *tracer);

#ifdef __cplusplus
}
#endif
#endif
