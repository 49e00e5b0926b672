#include "core/split_local.h"

#include "core/mem.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

struct bl_local_split {
    const bl_layer_placement *layer;
    const int *node; /* [n_ranks] */
    bl_copies copies;
    uint64_t *nodes_of; /* [n_experts] set of nodes that hold a copy */
    int n_nodes, source;
    uint64_t n_tokens; /* of the source in this step */
    uint64_t *sent;    /* [n_ranks] rows it has sent in this step */
};

static bl_status check(const bl_layer_placement *layer, const int *node, bl_error *err) {
    for (int rank = 0; rank < layer->n_ranks; rank++) {
        if (node[rank] < 0 || node[rank] >= BL_LOCAL_MAX_NODES)
            return bl_fail(err, BL_ERR_UNSUPPORTED,
                           "the split rule 'local' is for at most %d nodes; rank %d is on node %d",
                           BL_LOCAL_MAX_NODES, rank, node[rank]);
    }
    return BL_OK;
}

bl_status bl_local_split_create(const bl_layer_placement *layer, const int *node,
                                bl_local_split **out, bl_error *err) {
    bl_local_split *split;
    BL_TRY(check(layer, node, err));
    BL_TRY(BL_CALLOC(split, 1, err));
    split->layer = layer;
    split->node = node;
    bl_status st;
    BL_TRY_GOTO(st, bl_copies_of(layer, &split->copies, err), fail);
    BL_TRY_GOTO(st, BL_CALLOC(split->nodes_of, layer->n_experts, err), fail);
    BL_TRY_GOTO(st, BL_CALLOC(split->sent, layer->n_ranks, err), fail);
    for (int rank = 0; rank < layer->n_ranks; rank++)
        split->n_nodes = node[rank] >= split->n_nodes ? node[rank] + 1 : split->n_nodes;
    for (int e = 0; e < layer->n_experts; e++) {
        for (int i = split->copies.first[e]; i < split->copies.first[e + 1]; i++)
            split->nodes_of[e] |= UINT64_C(1) << node[split->copies.rank[i]];
    }
    *out = split;
    return BL_OK;
fail:
    bl_local_split_free(split);
    return st;
}

void bl_local_split_free(bl_local_split *split) {
    if (split == NULL)
        return;
    bl_copies_free(&split->copies);
    free(split->nodes_of);
    free(split->sent);
    free(split);
}

void bl_local_split_begin(bl_local_split *split, int source) {
    assert(source >= 0 && source < split->layer->n_ranks);
    split->source = source;
    split->n_tokens = 0;
    memset(split->sent, 0, (size_t)split->layer->n_ranks * sizeof *split->sent);
}

/* ---- the nodes of one token ---------------------------------------------------------------- */

/* Index of the lowest bit, by a de Bruijn sequence. */
static int lowest(uint64_t set) {
    static const signed char index[64] = {
        0,  1,  2,  53, 3,  7,  54, 27, 4,  38, 41, 8,  34, 55, 48, 28, 62, 5,  39, 46, 44, 42,
        22, 9,  24, 35, 59, 56, 49, 18, 29, 11, 63, 52, 6,  26, 37, 40, 33, 47, 61, 45, 43, 21,
        23, 58, 17, 10, 51, 25, 36, 32, 60, 20, 57, 16, 50, 31, 19, 15, 30, 14, 13, 12};
    return index[((set & (~set + 1)) * UINT64_C(0x022fdd63cc95386d)) >> 58];
}

int bl_local_first(uint64_t set, int from) {
    const uint64_t behind = set & (~UINT64_C(0) << from);
    return lowest(behind != 0 ? behind : set);
}

/* Few nodes that hold all of need[n]; `from` decides between equals. */
static uint64_t cover_many(const uint64_t *need, int n, uint64_t any, int from) {
    uint64_t chosen = 0;
    for (;;) {
        int best = -1, best_count = 0;
        uint64_t rest = any & ~chosen;
        for (; rest != 0; rest &= ~(UINT64_C(1) << bl_local_first(rest, from))) {
            const int node = bl_local_first(rest, from);
            int count = 0;
            for (int i = 0; i < n; i++)
                count += (need[i] & chosen) == 0 && (need[i] >> node & 1);
            if (count > best_count) {
                best_count = count;
                best = node;
            }
        }
        if (best < 0)
            return chosen;
        chosen |= UINT64_C(1) << best;
    }
}

/* One node, else two. */
static uint64_t cover_few(const uint64_t *need, int n, int from) {
    uint64_t all = ~UINT64_C(0), any = 0;
    for (int i = 0; i < n; i++) {
        all &= need[i];
        any |= need[i];
    }
    if (n == 0)
        return 0;
    if (all != 0)
        return UINT64_C(1) << bl_local_first(all, from);
    for (uint64_t rest = need[0]; rest != 0;) {
        const int first = bl_local_first(rest, from);
        uint64_t second = any;
        for (int i = 1; i < n; i++) {
            if (!(need[i] >> first & 1))
                second &= need[i];
        }
        if (second != 0)
            return UINT64_C(1) << first | UINT64_C(1) << bl_local_first(second, from);
        rest &= ~(UINT64_C(1) << first);
    }
    return cover_many(need, n, any, from);
}

static int count_bits(uint64_t set) {
    int n = 0;
    for (; set != 0; set &= set - 1)
        n++;
    return n;
}

int bl_local_cover(const uint64_t *need, int n, int from, uint64_t *nodes) {
    *nodes = cover_few(need, n, from);
    return count_bits(*nodes);
}

/* ---- the copies of one token --------------------------------------------------------------- */

/* Ranks from the source on, and around. */
static int distance(const bl_local_split *split, int rank) {
    const int n = split->layer->n_ranks;
    return (rank - split->source + n) % n;
}

/* The copy of an expert on a node. */
static int choose_copy(const bl_local_split *split, int expert, int node) {
    int best = -1;
    for (int i = split->copies.first[expert]; i < split->copies.first[expert + 1]; i++) {
        const int rank = split->copies.rank[i];
        if (split->node[rank] != node)
            continue;
        const int chosen = best >= 0 ? split->copies.rank[best] : -1;
        if (best < 0 || split->sent[rank] < split->sent[chosen] ||
            (split->sent[rank] == split->sent[chosen] &&
             distance(split, rank) < distance(split, chosen)))
            best = i;
    }
    return best;
}

int bl_local_split_token(bl_local_split *split, const int32_t *ids, int k, int *slot) {
    const int own = split->node[split->source];
    const int from = (int)(split->n_tokens++ % (uint64_t)split->n_nodes);
    uint64_t need[BL_LOCAL_MAX_TOP_K], others;
    int n = 0;
    assert(k >= 1 && k <= BL_LOCAL_MAX_TOP_K);
    for (int i = 0; i < k; i++) {
        if (ids[i] >= 0 && !(split->nodes_of[ids[i]] >> own & 1))
            need[n++] = split->nodes_of[ids[i]];
    }
    const int visited = bl_local_cover(need, n, from, &others);
    for (int i = 0; i < k; i++) {
        slot[i] = -1;
        if (ids[i] < 0)
            continue;
        const uint64_t nodes = split->nodes_of[ids[i]];
        const int node = nodes >> own & 1 ? own : bl_local_first(nodes & others, from);
        const int copy = choose_copy(split, ids[i], node);
        slot[i] = split->copies.slot[copy];
        split->sent[split->copies.rank[copy]]++;
    }
    return visited;
}
