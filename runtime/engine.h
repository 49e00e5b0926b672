/*
 * engine.h: a small real expert-parallel engine, as one of its ranks sees it.
 *
 * Attention is data-parallel: a sequence belongs to one rank, which keeps its keys and values.
 * Experts are expert-parallel: each layer's rows travel to the ranks that hold the chosen experts
 * (moe.h). All ranks step together; a step is
 *
 *     before_step    the hook may speak: it fills this rank's note
 *     notes          one small allgather: tokens, sequences left, flags, 64 free bytes per rank
 *     at_step        the hook may act: here, and nowhere else, placements are committed
 *     layers         attention, then route, permute, dispatch, experts, combine, unpermute
 *     logits         of the tokens that were asked for
 *     after_step     the hook is told how it went
 *
 * The step is the unit of retry: a sequence grows only after the last layer's combine, so a step
 * that fails leaves every sequence as it was. Since a rank enters step s + 1 only with the notes of
 * all others, at_step(s + 1) also means: nobody is still in step s or uses what it read there.
 * The store's map is read afresh in each step. Hooks run on every rank in every step, also on ranks
 * and in steps without tokens.
 *
 * Logits do not depend on placement, number of ranks or batch, bit for bit (kernels.h, moe.h).
 *
 * One thread owns an engine. Model, store and exchange are borrowed and must outlive it.
 */
#ifndef BL_RUNTIME_ENGINE_H
#define BL_RUNTIME_ENGINE_H

#include "runtime/moe.h"
#include "runtime/qwen3.h"

#define BL_NOTE_USER_BYTES 64

/* Flags of a note. */
#define BL_NOTE_BUSY \
    UINT32_C(1) /* keep stepping, though no sequence is left (a move is under way) */
#define BL_NOTE_STOP UINT32_C(2) /* finish: take no new sequences */

/* What a rank says to all at the start of a step. */
typedef struct bl_step_note {
    int64_t n_tokens;
    int64_t left;   /* sequences this rank has not finished, waiting ones included */
    uint32_t flags; /* BL_NOTE_... */
    int32_t phase;  /* bl_phase of this rank's tokens; BL_PHASE_IDLE without any */
    unsigned char user[BL_NOTE_USER_BYTES]; /* the hook's; zero unless it writes */
} bl_step_note;

/* All optional. A negative status ends the step with that error. */
typedef struct bl_step_result bl_step_result;
typedef struct bl_engine_hooks {
    void *user;
    bl_status (*before_step)(void *user, uint64_t step, bl_step_note *mine, bl_error *err);
    /* notes[n_ranks], the same on every rank. */
    bl_status (*at_step)(void *user, uint64_t step, const bl_step_note *notes, int n_ranks,
                         bl_error *err);
    /* The experts this rank's tokens were routed to: ids [n_tokens][k], logical, router order. */
    bl_status (*on_route)(void *user, uint64_t step, int layer, const int32_t *ids, int n_tokens,
                          int k, bl_error *err);
    bl_status (*after_step)(void *user, const bl_step_result *result, bl_error *err);
} bl_engine_hooks;

/* Consecutive tokens of one sequence. */
typedef struct bl_chunk {
    int sequence; /* 0 .. max_sequences - 1, at most one chunk of each per step */
    int n_tokens;
    const int32_t *tokens;
    bool every_token; /* logits of all tokens, not of the last alone */
    float *logits;    /* [vocab] or [n_tokens][vocab], caller's; NULL: none wanted */
} bl_chunk;

/* How a step went. */
struct bl_step_result {
    uint64_t step;
    int64_t n_tokens;   /* of this rank */
    int64_t all_tokens; /* of all ranks */
    int64_t left;       /* sequences left on all ranks, as noted at the start */
    uint32_t flags;     /* of all ranks, or-ed */
    uint64_t total_ns;
    uint64_t layers_ns;                         /* without notes and hooks */
    uint64_t stage_ns[BL_N_STAGES];             /* over all layers */
    uint64_t sent_bytes, sent_rows, n_messages; /* to other ranks, dispatch and combine */
    const uint64_t *bytes_to; /* [2][n_ranks] sent_bytes by rank: dispatch, combine; as rows */
    uint64_t attended; /* tokens that this rank's tokens looked back at, themselves included */
    /* by layer, until the next step: */
    const int32_t *rows;      /* [n_layers] rows this rank's experts computed */
    const int32_t *active;    /* [n_layers] experts of this rank that had rows */
    const uint64_t *layer_ns; /* [n_layers][BL_N_STAGES] */
};

typedef struct bl_engine bl_engine;

/* Key and value memory for max_sequences sequences of the model's longest length is taken here. */
bl_status bl_engine_create(const bl_qwen3 *model, bl_store *store, bl_exchange *exchange,
                           int max_sequences, const bl_engine_hooks *hooks, bl_engine **out,
                           bl_error *err);
void bl_engine_free(bl_engine *engine); /* NULL is fine */

/* Share copies by this rule, the same on every rank, instead of evenly. What it points to is borrowed;
 * before the first step. */
void bl_engine_share_by(bl_engine *engine, const bl_sharing_rule *rule);

/* Dispatch rows so (bl_moe_dispatch_by()), the same on every rank, instead of one per assignment;
 * before the first step. */
void bl_engine_dispatch_by(bl_engine *engine, bl_dispatch dispatch, const int *node);

/* Read every expert of this rank from the checkpoint into its slots. */
bl_status bl_engine_load_experts(const bl_qwen3 *model, bl_store *store, bl_error *err);

/* One step, together with all other ranks. `left` goes into this rank's note. Results are written
 * on success only. */
bl_status bl_engine_step(bl_engine *engine, const bl_chunk *chunks, int n_chunks, int64_t left,
                         bl_step_result *result, bl_error *err);

/* After a step that failed because a rank was lost (BL_ERR_PEER): go on, without the lost ranks, with
 * step and exchange numbers on which all others have agreed. Every sequence is as it was before that
 * step, so it is simply taken again. lost[n_ranks] is borrowed. */
void bl_engine_restart(bl_engine *engine, uint64_t step, uint64_t sequence, const bool *lost);
uint64_t bl_engine_sequence(const bl_engine *engine); /* exchanges so far */

int bl_engine_length(const bl_engine *engine, int sequence); /* tokens so far */
/* Forget what follows its first `length` tokens; at most as many as it has. 0 empties it. */
void bl_engine_truncate(bl_engine *engine, int sequence, int length);
uint64_t bl_engine_steps(const bl_engine *engine); /* steps done: the next one's number */

#endif
