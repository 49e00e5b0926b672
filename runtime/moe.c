#include "runtime/moe.h"

#include "core/mem.h"
#include "core/progress.h"
#include "runtime/kernels.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

const char *const bl_stage_names[] = {"route",   "permute",   "dispatch", "experts",
                                      "combine", "unpermute", NULL};

/* ---- life ---------------------------------------------------------------------------------- */

static size_t scratch_floats(const bl_moe_shape *shape) {
    size_t n = (size_t)2 * (size_t)shape->inner;
    n = n < (size_t)shape->hidden ? (size_t)shape->hidden : n;
    return n < (size_t)shape->n_experts ? (size_t)shape->n_experts : n;
}

bl_status bl_moe_create(const bl_moe_shape *shape, bl_exchange *exchange, bl_moe *out,
                        bl_error *err) {
    const int n_ranks = bl_transport_n_ranks(exchange->transport);
    bl_moe moe = {.shape = *shape,
                  .rank = bl_transport_rank(exchange->transport),
                  .n_ranks = n_ranks,
                  .exchange = exchange};
    if (bl_hop_create(exchange, shape->n_experts, shape->hidden, &moe.near, err) < 0 ||
        bl_hop_create(exchange, shape->n_experts, shape->hidden, &moe.far, err) < 0 ||
        BL_CALLOC(moe.gateway, n_ranks, err) < 0 ||
        BL_CALLOC(moe.cost.bytes_to, 2 * n_ranks, err) < 0 ||
        BL_CALLOC(moe.first, shape->n_experts + 1, err) < 0 ||
        BL_CALLOC(moe.scratch, scratch_floats(shape), err) < 0) {
        bl_moe_free(&moe);
        return BL_ERR_NOMEM;
    }
    bl_moe_dispatch_by(&moe, BL_DISPATCH_ASSIGNMENT, NULL);
    *out = moe;
    return BL_OK;
}

void bl_moe_free(bl_moe *moe) {
    bl_hop_free(&moe->near);
    bl_hop_free(&moe->far);
    free(moe->gateway);
    free(moe->ids);
    free(moe->weights);
    free(moe->slot);
    free(moe->item);
    free(moe->passed);
    free(moe->first);
    free(moe->order);
    free(moe->scratch);
    free(moe->cost.bytes_to);
    *moe = (bl_moe){0};
}

void bl_moe_dispatch_by(bl_moe *moe, bl_dispatch dispatch, const int *node) {
    assert(dispatch != BL_DISPATCH_ALLGATHER);
    moe->dispatch =
        node == NULL && dispatch == BL_DISPATCH_DEDUP_NODE ? BL_DISPATCH_DEDUP_RANK : dispatch;
    moe->node = node;
    moe->near.shares_rows = moe->dispatch != BL_DISPATCH_ASSIGNMENT;
    moe->far.shares_rows = moe->far.forwards = true;
    for (int rank = 0; rank < moe->n_ranks; rank++)
        moe->gateway[rank] = node != NULL && dispatch == BL_DISPATCH_DEDUP_NODE
                                 ? bl_dispatch_gateway(node, moe->n_ranks, moe->rank, node[rank])
                                 : moe->rank;
}

void bl_moe_reset_counters(bl_moe *moe) {
    uint64_t *bytes_to = moe->cost.bytes_to;
    memset(moe->stage_ns, 0, sizeof moe->stage_ns);
    memset(bytes_to, 0, 2 * (size_t)moe->n_ranks * sizeof *bytes_to);
    moe->cost = (bl_hop_cost){.bytes_to = bytes_to};
}

static bl_status grow_tokens(bl_moe *moe, size_t assignments, bl_error *err) {
    bl_status st;
    BL_GROW(st, moe->ids, moe->ids_capacity, assignments, err);
    if (st >= 0)
        BL_GROW(st, moe->weights, moe->weights_capacity, assignments, err);
    if (st >= 0)
        BL_GROW(st, moe->slot, moe->slot_capacity, assignments, err);
    if (st >= 0)
        BL_GROW(st, moe->item, moe->item_capacity, assignments, err);
    return st;
}

bl_status bl_moe_begin(bl_moe *moe, const bl_layer_placement *map, bl_sharing *sharing,
                       int n_tokens, bl_error *err) {
    size_t assignments;
    if (!bl_size_mul((size_t)n_tokens, (size_t)moe->shape.top_k, &assignments) ||
        assignments > INT32_MAX / 4)
        return bl_fail_at(err, BL_ERR_RANGE, bl_at_layer(NULL, map->layer),
                          "%d tokens in one step are too many", n_tokens);
    BL_TRY(grow_tokens(moe, assignments, err));
    bl_hop_begin(&moe->near, map->layer, map->epoch);
    bl_hop_begin(&moe->far, map->layer, map->epoch);
    moe->layer = map->layer;
    moe->map = map;
    moe->sharing = sharing;
    moe->n_tokens = n_tokens;
    return BL_OK;
}

/* ---- route, permute ------------------------------------------------------------------------ */

bl_status bl_moe_route(bl_moe *moe, const uint16_t *router, const float *x, bl_error *err) {
    const uint64_t start = bl_now_ns();
    const size_t hidden = (size_t)moe->shape.hidden;
    const int k = moe->shape.top_k;
    for (int token = 0; token < moe->n_tokens; token++) {
        bl_matmul(router, (size_t)moe->shape.n_experts, hidden, x + (size_t)token * hidden, 1,
                  moe->scratch);
        if (!bl_route(moe->scratch, moe->shape.n_experts, k, moe->shape.renormalise,
                      moe->ids + token * k, moe->weights + token * k))
            return bl_fail_at(err, BL_ERR_RANGE, bl_at_layer(NULL, moe->layer),
                              "the router's logits of token %d are not finite; are the weights "
                              "damaged?",
                              token);
    }
    moe->stage_ns[BL_STAGE_ROUTE] += bl_now_ns() - start;
    return BL_OK;
}

static bl_status choose_slots(bl_moe *moe, bl_error *err) {
    uint64_t exchanged;
    BL_TRY(bl_sharing_choose(moe->sharing, moe->exchange, moe->ids, moe->n_tokens, moe->shape.top_k,
                             moe->slot, &exchanged, err));
    if (exchanged > 0) {
        moe->cost.bytes += exchanged;
        moe->cost.messages += (uint64_t)moe->n_ranks - 1;
        for (int g = 0; g < moe->n_ranks; g++)
            moe->cost.bytes_to[g] += g == moe->rank ? 0 : exchanged / ((uint64_t)moe->n_ranks - 1);
    }
    return BL_OK;
}

/* Each assignment takes the hop to the rank that serves it, or to the one that passes it on. */
static bl_status add_items(bl_moe *moe, const float *x, bl_error *err) {
    const int k = moe->shape.top_k;
    for (int a = 0; a < moe->n_tokens * k; a++) {
        const int rank = bl_layer_rank_of(moe->map, moe->slot[a]);
        const bool far = moe->gateway[rank] != moe->rank;
        const bl_hop_item item = {.to = far ? moe->gateway[rank] : rank,
                                  .expert = moe->ids[a],
                                  .final = rank,
                                  .key = a / k,
                                  .x = x + (size_t)(a / k) * (size_t)moe->shape.hidden};
        int index;
        BL_TRY(bl_hop_add(far ? &moe->far : &moe->near, item, &index, err));
        moe->item[a] = far ? -1 - index : index;
    }
    return BL_OK;
}

bl_status bl_moe_permute(bl_moe *moe, const float *x, bl_error *err) {
    const uint64_t start = bl_now_ns();
    BL_TRY(choose_slots(moe, err));
    BL_TRY(add_items(moe, x, err));
    BL_TRY(bl_hop_pack(moe->dispatch == BL_DISPATCH_DEDUP_NODE ? &moe->far : &moe->near, err));
    moe->stage_ns[BL_STAGE_PERMUTE] += bl_now_ns() - start;
    return BL_OK;
}

/* ---- dispatch, combine --------------------------------------------------------------------- */

static bl_status pass_item(bl_moe *moe, int peer, int i, int key, int32_t *index, bl_error *err) {
    const bl_hop_item item = {.to = bl_hop_final(&moe->far, peer, i),
                              .expert = bl_hop_expert(&moe->far, peer, i),
                              .key = key,
                              .x = bl_hop_input(&moe->far, peer, i)};
    if (moe->node[item.to] != moe->node[moe->rank])
        return bl_fail_at(err, BL_ERR_STATE, bl_at_layer(NULL, moe->layer),
                          "rank %d sent a row for rank %d, which is on another node; are the ranks "
                          "agreed on their nodes?",
                          peer, item.to);
    return bl_hop_add(&moe->near, item, index, err);
}

/* What came for ranks of this node goes on to them, behind this rank's own rows. */
static bl_status pass_on(bl_moe *moe, bl_error *err) {
    int key = moe->n_tokens, n_passed = 0;
    BL_TRY(bl_hop_out(&moe->far, &moe->cost, err));
    for (int peer = 0; peer < moe->n_ranks; peer++) {
        const int n = moe->far.n_received[peer];
        int n_rows = 0;
        bl_status st;
        BL_GROW(st, moe->passed, moe->passed_capacity, (size_t)n_passed + (size_t)n, err);
        BL_TRY(st);
        for (int i = 0; i < n; i++) {
            const int row = bl_hop_row(&moe->far, peer, i);
            BL_TRY(pass_item(moe, peer, i, key + row, &moe->passed[n_passed++], err));
            n_rows = row >= n_rows ? row + 1 : n_rows;
        }
        key += n_rows;
    }
    BL_TRY(bl_hop_pack(&moe->near, err));
    bl_hop_drop_inputs(&moe->far);
    return BL_OK;
}

bl_status bl_moe_dispatch(bl_moe *moe, bl_error *err) {
    const uint64_t start = bl_now_ns();
    if (moe->dispatch == BL_DISPATCH_DEDUP_NODE)
        BL_TRY(pass_on(moe, err));
    BL_TRY(bl_hop_out(&moe->near, &moe->cost, err));
    moe->stage_ns[BL_STAGE_DISPATCH] += bl_now_ns() - start;
    return BL_OK;
}

/* Results of what was passed on go back to where it came from. */
static bl_status pass_back(bl_moe *moe, bl_error *err) {
    int n_passed = 0;
    BL_TRY(bl_hop_reserve_answers(&moe->far, err));
    for (int peer = 0; peer < moe->n_ranks; peer++) {
        for (int i = 0; i < moe->far.n_received[peer]; i++)
            memcpy(bl_hop_answer(&moe->far, peer, i),
                   bl_hop_result(&moe->near, moe->passed[n_passed++]), moe->far.row_bytes);
    }
    return bl_hop_back(&moe->far, &moe->cost, err);
}

bl_status bl_moe_combine(bl_moe *moe, bl_error *err) {
    const uint64_t start = bl_now_ns();
    BL_TRY(bl_hop_back(&moe->near, &moe->cost, err));
    if (moe->dispatch == BL_DISPATCH_DEDUP_NODE)
        BL_TRY(pass_back(moe, err));
    moe->stage_ns[BL_STAGE_COMBINE] += bl_now_ns() - start;
    return BL_OK;
}

/* ---- experts, unpermute -------------------------------------------------------------------- */

/* Counting sort of the received rows by expert; ties by source rank, then row. */
static bl_status group_rows(bl_moe *moe, bl_error *err) {
    const int n_experts = moe->shape.n_experts;
    const int32_t *n_received = moe->near.n_received;
    size_t total = 0;
    for (int g = 0; g < moe->n_ranks; g++)
        total += (size_t)n_received[g];
    bl_status st;
    BL_GROW(st, moe->order, moe->order_capacity, total, err);
    BL_TRY(st);
    memset(moe->first, 0, ((size_t)n_experts + 1) * sizeof *moe->first);
    for (int g = 0; g < moe->n_ranks; g++)
        for (int32_t row = 0; row < n_received[g]; row++)
            moe->first[bl_hop_expert(&moe->near, g, row) + 1]++;
    for (int expert = 0; expert < n_experts; expert++)
        moe->first[expert + 1] += moe->first[expert];
    for (int g = 0; g < moe->n_ranks; g++)
        for (int32_t row = 0; row < n_received[g]; row++)
            moe->order[moe->first[bl_hop_expert(&moe->near, g, row)]++] = (bl_moe_row){g, row};
    for (int expert = n_experts; expert > 0; expert--)
        moe->first[expert] = moe->first[expert - 1];
    moe->first[0] = 0;
    return BL_OK;
}

bl_status bl_moe_experts(bl_moe *moe, const bl_store *store, bl_error *err) {
    const uint64_t start = bl_now_ns();
    BL_TRY(group_rows(moe, err));
    BL_TRY(bl_hop_reserve_answers(&moe->near, err));
    for (int expert = 0; expert < moe->shape.n_experts; expert++) {
        if (moe->first[expert] == moe->first[expert + 1])
            continue;
        const uint16_t *bundle = bl_store_expert(store, moe->layer, expert);
        if (bundle == NULL)
            return bl_fail_at(err, BL_ERR_STATE, bl_at_expert(NULL, moe->layer, expert),
                              "rank %d sent a row here, but rank %d does not hold the expert",
                              moe->order[moe->first[expert]].rank, moe->rank);
        for (int32_t i = moe->first[expert]; i < moe->first[expert + 1]; i++) {
            const bl_moe_row from = moe->order[i];
            bl_expert(bundle, (size_t)moe->shape.hidden, (size_t)moe->shape.inner,
                      bl_hop_input(&moe->near, from.rank, from.row), moe->scratch,
                      bl_hop_answer(&moe->near, from.rank, from.row));
        }
    }
    bl_hop_drop_inputs(&moe->near);
    moe->stage_ns[BL_STAGE_EXPERTS] += bl_now_ns() - start;
    return BL_OK;
}

void bl_moe_unpermute(bl_moe *moe, float *residual) {
    const uint64_t start = bl_now_ns();
    const size_t hidden = (size_t)moe->shape.hidden;
    const int k = moe->shape.top_k;
    for (int token = 0; token < moe->n_tokens; token++) {
        memset(moe->scratch, 0, hidden * sizeof *moe->scratch);
        for (int a = token * k; a < (token + 1) * k; a++) {
            const int item = moe->item[a];
            const void *y =
                item >= 0 ? bl_hop_result(&moe->near, item) : bl_hop_result(&moe->far, -1 - item);
            bl_add_scaled(moe->scratch, y, moe->weights[a], hidden);
        }
        bl_add_scaled(residual + (size_t)token * hidden, moe->scratch, 1.0f, hidden);
    }
    moe->stage_ns[BL_STAGE_UNPERMUTE] += bl_now_ns() - start;
}

int bl_moe_rows(const bl_moe *moe) {
    return moe->first[moe->shape.n_experts];
}

int bl_moe_active(const bl_moe *moe) {
    int n = 0;
    for (int expert = 0; expert < moe->shape.n_experts; expert++)
        n += moe->first[expert + 1] > moe->first[expert];
    return n;
}
