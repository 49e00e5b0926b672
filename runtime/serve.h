/*
 * serve.h: one rank's share of serving a list of requests (runtime/requests.h).
 *
 * All ranks hold the whole list; request i belongs to rank i mod n_ranks, which prefills the prompt
 * and then decodes (runtime/sample.h), one token per step. Batching is continuous: as soon as one
 * of a rank's sequences ends, its place goes to the rank's next request that has arrived. Tokens
 * are bytes. A sequence ends after max_tokens or where the model's max_position_embeddings ends,
 * whichever comes first.
 *
 * A long prompt can be fed in pieces, so that the sequences that decode beside it do not wait for
 * all of it. And keys and values of a sequence that has ended stay in its place until another takes
 * it: with `keep_prefixes` a request whose prompt begins as one of them did goes on from there.
 * Neither changes a bit of what is decoded.
 *
 * Ranks step together until none has a request left and none is busy; a rank that is done early
 * goes on with empty steps and serves the others' rows. A BL_NOTE_STOP from any rank's hook ends
 * serving for all after that step, with what has been decoded so far.
 */
#ifndef BL_RUNTIME_SERVE_H
#define BL_RUNTIME_SERVE_H

#include "runtime/engine.h"
#include "runtime/requests.h"
#include "runtime/sample.h"

typedef struct bl_serve_options {
    int batch;          /* sequences a rank serves at once; at most the engine's max_sequences */
    int prefill_tokens; /* tokens of one prompt fed per step at most; 0: all of it */
    bool keep_prefixes;
    bl_sampling sampling;
    /* Optional: a step failed because a rank was lost; agree with the others on how to go on
     * (bl_engine_restart()). BL_OK: the step is taken again. BL_LIMIT: others have ended
     * after that step, so serving is over. */
    bl_status (*recover)(void *user, bl_error *err);
    void *recover_user;
} bl_serve_options;

typedef struct bl_completion {
    int request;
    int n_cached; /* tokens of the prompt that were there already */
    int n_tokens;
    int32_t *tokens;    /* [n_tokens]; owned by the log */
    uint64_t *ready_ns; /* [n_tokens] since it arrived, or got its place in a list without arrival
                           times, until the token was there; owned by the log */
} bl_completion;

/* What one step cost this rank. */
typedef struct bl_step_record {
    uint64_t step;
    uint32_t flags;   /* of all ranks, or-ed: BL_NOTE_BUSY while experts move */
    int64_t n_tokens; /* of this rank */
    uint64_t attended;
    uint64_t total_ns, layers_ns;
    uint64_t stage_ns[BL_N_STAGES];
    uint64_t sent_bytes, sent_rows, n_messages; /* to other ranks */
} bl_step_record;

/* What one layer of one step took on this rank, ns; 2^32 - 1 stands for all that is longer. */
#define BL_SERVE_TIMED 4096
typedef struct bl_layer_times {
    uint32_t dispatch_ns, experts_ns, combine_ns;
} bl_layer_times;

/* Steps that a log keeps at most, so that its size does not grow with the run: the first BL_SERVE_TIMED,
 * and of the later ones every second, fourth, ... as they become too many; the same on all ranks. */
#define BL_SERVE_MOST_STEPS ((size_t)1 << 16)

/* Everything a rank has to tell afterwards. Owned by the caller; bl_serve_log_free(). */
typedef struct bl_serve_log {
    int n_layers;
    int n_completions;
    bl_completion *completions; /* this rank's requests that were begun, ascending */
    size_t n_steps;
    bl_step_record *steps; /* steps with tokens on any rank, the same on all ranks */
    uint64_t n_all,
        every; /* steps so far; every `every`-th is kept, from the BL_SERVE_TIMED-th on */
    uint64_t sent_bytes, sent_rows, n_messages; /* over all steps */
    int32_t *rows;   /* [n_steps][n_layers] rows this rank's experts computed */
    int32_t *active; /* [n_steps][n_layers] its experts that had rows */
    size_t n_timed;  /* of the first steps, at most BL_SERVE_TIMED, also every layer's times: */
    bl_layer_times *times; /* [n_timed][n_layers] */
    int n_ranks;
    uint64_t *bytes_to;  /* [2][n_ranks] sent over all steps: dispatch, then combine, to each */
    bool stopped;        /* ended by BL_NOTE_STOP */
    uint64_t serving_ns; /* from the first step to the last */
    size_t step_capacity, row_capacity, active_capacity, time_capacity, completion_capacity;
} bl_serve_log;

bl_status bl_serve(bl_engine *engine, const bl_qwen3_config *config, int rank, int n_ranks,
                   const bl_requests *requests, const bl_serve_options *options, bl_serve_log *log,
                   bl_error *err);

/* For callers that step an engine themselves: an empty log, and one step's result behind it. */
bl_status bl_serve_log_create(int n_layers, int n_ranks, bl_serve_log *out, bl_error *err);
bl_status bl_serve_log_step(bl_serve_log *log, const bl_step_result *result, bl_error *err);
void bl_serve_log_free(bl_serve_log *log); /* safe on a zeroed struct */

#endif
