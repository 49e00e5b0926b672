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
 * Dispatch (core/dispatch.h) sends one row per assignment; one per token and rank (dedup-rank); or one
 * per token and other node, to a rank there that passes it on (dedup-node), which is two hops
 * (hop.h) instead of one. Combine always returns a row per assignment on the same way, since summing
 * on the way would change the order of the sum. Times of dispatch and combine include waiting for
 * ranks that are behind.
 */
#ifndef BL_RUNTIME_MOE_H
#define BL_RUNTIME_MOE_H

#include "core/dispatch.h"
#include "runtime/hop.h"
#include "runtime/sharing.h"
#include "runtime/store.h"
#include "tracer/trace.h"

extern const char *const bl_stage_names[]; /* NULL-terminated, indexed by bl_stage */

typedef struct bl_moe_shape {
    int hidden, inner, n_experts, top_k;
    bool renormalise;
} bl_moe_shape;

/* Row i of those that a rank sent here. */
typedef struct bl_moe_row {
    int32_t rank, row;
} bl_moe_row;

/* One rank's working memory, reused layer after layer. Fields may be read between the stages; each
 * says which stage fills it. */
typedef struct bl_moe {
    bl_moe_shape shape;
    int rank, n_ranks;
    bl_exchange *exchange; /* borrowed */
    bl_dispatch dispatch;
    const int *node; /* [n_ranks] of dedup-node; borrowed */
    int *gateway;    /* [n_ranks] the rank through which rows reach each rank; this one: directly */

    /* the layer at hand, set by bl_moe_begin() */
    int layer;
    const bl_layer_placement *map; /* borrowed from the store */
    bl_sharing *sharing;           /* borrowed */
    int n_tokens;

    /* route */
    int32_t *ids;   /* [n_tokens][top_k] */
    float *weights; /* [n_tokens][top_k] */

    /* permute: assignment a = token * top_k + j is item[a] of the hop it takes */
    int32_t *slot; /* [n_tokens][top_k] */
    int32_t *item; /* [n_tokens][top_k]: of near, or of far: -1 - item */
    bl_hop near;   /* to the ranks that serve; from other nodes, behind the rank that passes on */
    bl_hop far;    /* to the ranks that pass on; dedup-node only */

    /* dispatch */
    int32_t *passed; /* items of `near` that pass on what `far` brought, in order of arrival */

    /* experts: rows grouped by expert; group e is order[first[e] .. first[e + 1] - 1] */
    int32_t *first; /* [n_experts + 1] */
    bl_moe_row *order;
    float *scratch; /* max(2 * inner, hidden, n_experts) floats, also for route, unpermute */

    size_t ids_capacity, weights_capacity, slot_capacity, item_capacity, passed_capacity;
    size_t order_capacity;
    uint64_t stage_ns[BL_N_STAGES]; /* since bl_moe_reset_counters() */
    bl_hop_cost cost;               /* dispatch and combine, to other ranks */
} bl_moe;

bl_status bl_moe_create(const bl_moe_shape *shape, bl_exchange *exchange, bl_moe *out,
                        bl_error *err);
void bl_moe_free(bl_moe *moe); /* safe on a zeroed struct */
void bl_moe_reset_counters(bl_moe *moe);

/* How rows travel, alike on all ranks: assignment (as made), dedup-rank or dedup-node. node[n_ranks]
 * numbers the nodes from 0; borrowed, and needed for dedup-node only. Between layers. */
void bl_moe_dispatch_by(bl_moe *moe, bl_dispatch dispatch, const int *node);

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

/* Rows this rank computed in the layer, after bl_moe_experts(): its load. And experts that had any. */
int bl_moe_rows(const bl_moe *moe);
int bl_moe_active(const bl_moe *moe);

#endif
