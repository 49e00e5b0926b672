/*
 * moe.h: one MoE layer over all ranks, as seen by one of them: six stages, six functions, six
 * timers.
 *
 *     route      router logits -> the top-k experts of this rank's tokens, and their weights
 *     permute    copy each (token, expert) row into the message of the rank that serves it
 *     dispatch   exchange messages: rows go to where their experts are
 *     experts    every received row through its expert; rows of one expert together (grouped GEMM)
 *     combine    exchange messages: results go back to where their tokens are
 *     unpermute  add the k results of each token, weighted, *in router order*
 *
 *     token on rank 0, top-2 = experts 5, 1        rank 0 serves 0 1 2, rank 1 serves 3 4 5
 *        permute:  message 0: [1: row]   message 1: [5: row]
 *        unpermute: w5 * row from rank 1  +  w1 * row from rank 0         (not in order of arrival)
 *
 * A row's result depends on the row and the expert alone, and the sum on the router's order, so the
 * layer's output is the same bits whatever the placement, the number of ranks and who else is in
 * the batch. Ranks without tokens run the same stages with empty messages: they serve other ranks'
 * rows and stay in step. Each message states the layer and its map epoch; a peer at another epoch
 * is BL_ERR_STATE and not a wrong answer.
 *
 * Dispatch (core/dispatch.h) sends one row per assignment, or one per token and rank (dedup-rank);
 * combine always returns a row per assignment, since summing at the far end would change the order
 * of the sum. Times of dispatch and combine include waiting for ranks that are behind.
 *
 * A message of n assignments and m rows, m = n unless rows are deduplicated:
 *
 *     { u32 layer, u32 n, u64 epoch }
 *     { i32 expert[n]; with dedup-rank also i32 row[n]; zeros up to 16 bytes }   not in combine
 *     { f32 row[m][hidden] }                                                     combine: m = n
 */
#ifndef BL_RUNTIME_MOE_H
#define BL_RUNTIME_MOE_H

#include "core/dispatch.h"
#include "runtime/sharing.h"
#include "runtime/store.h"
#include "tracer/trace.h"

extern const char *const bl_stage_names[]; /* NULL-terminated, indexed by bl_stage */

typedef struct bl_moe_shape {
    int hidden, inner, n_experts, top_k;
    bool renormalise;
    bl_dispatch dispatch; /* assignment or dedup-rank */
} bl_moe_shape;

/* A row of the message to or from a rank. */
typedef struct bl_moe_row {
    int32_t rank, row;
} bl_moe_row;

/* A growing byte buffer. */
typedef struct bl_moe_buffer {
    unsigned char *data; /* aligned to 16 */
    size_t capacity;
} bl_moe_buffer;

/* One rank's working memory, reused layer after layer. Fields may be read between the stages; each
 * says which stage fills it. */
typedef struct bl_moe {
    bl_moe_shape shape;
    int rank, n_ranks;
    bl_exchange *exchange; /* borrowed */

    /* the layer at hand, set by bl_moe_begin() */
    int layer;
    const bl_layer_placement *map; /* borrowed from the store */
    bl_sharing *sharing;           /* borrowed */
    int n_tokens;

    /* route */
    int32_t *ids;   /* [n_tokens][top_k] */
    float *weights; /* [n_tokens][top_k] */

    /* permute: assignment a = token * top_k + j is row to[a] */
    int32_t *slot;         /* [n_tokens][top_k] */
    bl_moe_row *to;        /* [n_tokens][top_k] */
    int32_t *source_row;   /* [n_tokens][top_k] the row that is the assignment's input */
    int32_t *n_sent;       /* [n_ranks] assignments for each rank */
    int32_t *n_rows;       /* [n_ranks] rows for each rank */
    int32_t *last_token;   /* [n_ranks] scratch: the token its last row is of, or -1 */
    bl_moe_buffer *send;   /* [n_ranks] messages */
    bl_outgoing *outgoing; /* [n_ranks] the same, or `reply`, as the exchange wants them */

    /* dispatch */
    bl_message *received;       /* [n_ranks] */
    const unsigned char **rows; /* [n_ranks] the float rows of each message */
    const int32_t **experts;    /* [n_ranks] the expert ids of each message */
    const int32_t **inputs;     /* [n_ranks] the row of each assignment; NULL: its own number */
    int32_t *n_received;        /* [n_ranks] assignments */

    /* experts: rows grouped by expert; group e is order[first[e] .. first[e + 1] - 1] */
    int32_t *first; /* [n_experts + 1] */
    bl_moe_row *order;
    float *scratch;       /* max(2 * inner, hidden, n_experts) floats, also for route, unpermute */
    bl_moe_buffer *reply; /* [n_ranks] messages */

    /* combine: returned[g] holds the results of the rows sent to rank g, in the order sent */
    bl_message *returned;          /* [n_ranks] */
    const unsigned char **results; /* [n_ranks] */

    size_t ids_capacity, weights_capacity, slot_capacity, to_capacity, source_row_capacity,
        order_capacity;
    uint64_t stage_ns[BL_N_STAGES];             /* since bl_moe_reset_counters() */
    uint64_t sent_bytes, sent_rows, n_messages; /* to other ranks, dispatch and combine */
    uint64_t *bytes_to; /* [2][n_ranks] of that: dispatch, then combine, to each rank */
} bl_moe;

bl_status bl_moe_create(const bl_moe_shape *shape, bl_exchange *exchange, bl_moe *out,
                        bl_error *err);
void bl_moe_free(bl_moe *moe); /* safe on a zeroed struct */
void bl_moe_reset_counters(bl_moe *moe);

/* Start a layer: its map, how its copies are shared, and this rank's number of tokens. */
bl_status bl_moe_begin(bl_moe *moe, const bl_layer_placement *map, bl_sharing *sharing,
                       int n_tokens, bl_error *err);

/* The six stages. `x` is [n_tokens][hidden], the normed input; `router` [n_experts][hidden]. */
bl_status bl_moe_route(bl_moe *moe, const uint16_t *router, const float *x, bl_error *err);
bl_status bl_moe_permute(bl_moe *moe, const float *x, bl_error *err);
bl_status bl_moe_dispatch(bl_moe *moe, bl_error *err);
bl_status bl_moe_experts(bl_moe *moe, const bl_store *store, bl_error *err);
bl_status bl_moe_combine(bl_moe *moe, bl_error *err);
/* Adds each token's weighted sum to `residual` [n_tokens][hidden]. */
void bl_moe_unpermute(bl_moe *moe, float *residual);

/* Rows this rank computed in the layer, after bl_moe_experts(): its load. */
int bl_moe_rows(const bl_moe *moe);

#endif
