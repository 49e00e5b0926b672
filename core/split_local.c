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
    int source;
    uint64_t *sent;                         /* [n_ranks] rows this source has sent in this step */
    uint64_t sent_node[BL_LOCAL_MAX_NODES]; /* the same by node */
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
    memset(split->sent, 0, (size_t)split->layer->n_ranks * sizeof *split->sent);
    memset(split->sent_node, 0, sizeof split->sent_node);
}

/* ---- the nodes of one token ---------------------------------------------------------------- */

static int lowest(uint64_t set) {
    int bit = 0;
    while (!(set >> bit & 1))
        bit++;
    return bit;
}

static uint64_t sent_to(const uint64_t *sent, int node) {
    return sent != NULL ? sent[node] : 0;
}

/* The node of a set to which the least was sent. */
static int least_sent(uint64_t set, const uint64_t *sent) {
    int best = lowest(set);
    for (uint64_t rest = set & (set - 1); sent != NULL && rest != 0; rest &= rest - 1) {
        const int node = lowest(rest);
        if (sent[node] < sent[best])
            best = node;
    }
    return best;
}

/* The two nodes that together hold something of every mask, and to which the least was sent. */
static uint64_t cover_by_two(const uint64_t *masks, int n, uint64_t candidates,
                             const uint64_t *sent) {
    uint64_t best = 0, best_sent = UINT64_MAX;
    for (uint64_t a = candidates & masks[0]; a != 0; a &= a - 1) {
        const int first = lowest(a);
        uint64_t second = candidates; /* nodes that hold all that the first does not */
        for (int i = 0; i < n; i++) {
            if (!(masks[i] >> first & 1))
                second &= masks[i];
        }
        if (second == 0)
            continue;
        const int other = least_sent(second, sent);
        const uint64_t cost = sent_to(sent, first) + sent_to(sent, other);
        if (cost < best_sent) {
            best = UINT64_C(1) << first | UINT64_C(1) << other;
            best_sent = cost;
        }
    }
    return best;
}

/* Take the node that holds most of what is left until nothing is. */
static uint64_t cover_by_many(uint64_t *masks, int n, uint64_t candidates, const uint64_t *sent) {
    uint64_t chosen = 0;
    while (n > 0) {
        int best = -1, best_count = 0;
        for (uint64_t rest = candidates & ~chosen; rest != 0; rest &= rest - 1) {
            const int node = lowest(rest);
            int count = 0;
            for (int i = 0; i < n; i++)
                count += (int)(masks[i] >> node & 1);
            if (count > best_count ||
                (count == best_count && best >= 0 && sent_to(sent, node) < sent_to(sent, best))) {
                best = node;
                best_count = count;
            }
        }
        assert(best >= 0);
        chosen |= UINT64_C(1) << best;
        int left = 0;
        for (int i = 0; i < n; i++) {
            if (!(masks[i] >> best & 1))
                masks[left++] = masks[i];
        }
        n = left;
    }
    return chosen;
}

static int count_bits(uint64_t set) {
    int n = 0;
    for (; set != 0; set &= set - 1)
        n++;
    return n;
}

int bl_local_cover(const uint64_t *masks, int n, int own, const uint64_t *sent, uint64_t *nodes) {
    uint64_t need[BL_LOCAL_MAX_TOP_K], all = ~UINT64_C(0), any = 0;
    int n_need = 0;
    assert(n <= BL_LOCAL_MAX_TOP_K);
    *nodes = 0;
    for (int i = 0; i < n; i++) {
        if (masks[i] >> own & 1)
            continue;
        need[n_need++] = masks[i];
        all &= masks[i];
        any |= masks[i];
    }
    if (n_need == 0)
        return 0;
    if (all != 0) {
        *nodes = UINT64_C(1) << least_sent(all, sent);
        return 1;
    }
    *nodes = cover_by_two(need, n_need, any, sent);
    if (*nodes == 0)
        *nodes = cover_by_many(need, n_need, any, sent);
    return count_bits(*nodes);
}

/* ---- the copies of one token --------------------------------------------------------------- */

/* Ranks from the source on, and around. */
static int distance(const bl_local_split *split, int rank) {
    const int n = split->layer->n_ranks;
    return (rank - split->source + n) % n;
}

static int choose_copy(const bl_local_split *split, int expert, uint64_t nodes) {
    int best = -1;
    for (int i = split->copies.first[expert]; i < split->copies.first[expert + 1]; i++) {
        const int rank = split->copies.rank[i];
        if (!(nodes >> split->node[rank] & 1))
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
    uint64_t masks[BL_LOCAL_MAX_TOP_K], others = 0;
    int n = 0;
    assert(k >= 1 && k <= BL_LOCAL_MAX_TOP_K);
    for (int i = 0; i < k; i++) {
        if (ids[i] >= 0)
            masks[n++] = split->nodes_of[ids[i]];
    }
    const int own = split->node[split->source];
    const int visited = n > 0 ? bl_local_cover(masks, n, own, split->sent_node, &others) : 0;
    const uint64_t own_bit = UINT64_C(1) << own;
    for (int i = 0; i < k; i++) {
        slot[i] = -1;
        if (ids[i] < 0)
            continue;
        const bool at_home = (split->nodes_of[ids[i]] & own_bit) != 0;
        const int copy = choose_copy(split, ids[i], at_home ? own_bit : others);
        slot[i] = split->copies.slot[copy];
        split->sent[split->copies.rank[copy]]++;
        split->sent_node[split->node[split->copies.rank[copy]]]++;
    }
    return visited;
}
