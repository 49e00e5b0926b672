#include "runtime/sharing.h"

#include "core/mem.h"
#include "core/split_local.h"
#include "core/split_step.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

struct bl_sharing {
    bl_rule rule;
    const bl_layer_placement *map;
    const double *share; /* of fractions */
    int rank;
    bl_copies copies;
    int *zeros;     /* [n_ranks] when no hosts or nodes are given */
    int32_t *row;   /* [n_experts] rows of this rank for each expert so far */
    int32_t *fixed; /* [n_experts] slot that serves this rank, of nearest and fixed */
    bl_local_split *local;

    /* per-step */
    bl_step_split *split;
    int32_t *all;    /* [n_ranks][n_experts] rows of every rank */
    uint64_t *count; /* [n_experts] their sums */
    uint64_t *quota; /* [n_slots] rows each slot still takes */
    uint64_t *part;  /* [n_slots] of those, this rank's */
};

/* Of a copy drawn once for each source: the sources that draw take the copies in turn. */
static int drawn_copy(const bl_sharing *sharing, const int *host, int expert) {
    const bl_copies *copies = &sharing->copies;
    const int first = copies->first[expert], end = copies->first[expert + 1];
    int turn = expert;
    for (int source = 0; source < sharing->rank; source++)
        turn += bl_split_settled(BL_RULE_NEAREST, copies, host, expert, source) < 0;
    return first + turn % (end - first);
}

static bl_status settle(bl_sharing *sharing, const int *host, bl_error *err) {
    const bl_copies *copies = &sharing->copies;
    BL_TRY(BL_CALLOC(sharing->fixed, copies->n_experts, err));
    for (int expert = 0; expert < copies->n_experts; expert++) {
        int at = bl_split_settled(sharing->rule, copies, host, expert, sharing->rank);
        if (at < 0)
            at = drawn_copy(sharing, host, expert);
        sharing->fixed[expert] = copies->slot[at];
    }
    return BL_OK;
}

static bl_status open_per_step(bl_sharing *sharing, bl_error *err) {
    const bl_layer_placement *map = sharing->map;
    BL_TRY(BL_CALLOC(sharing->all, (size_t)map->n_ranks * (size_t)map->n_experts, err));
    BL_TRY(BL_CALLOC(sharing->count, map->n_experts, err));
    BL_TRY(BL_CALLOC(sharing->quota, bl_layer_n_slots(map), err));
    BL_TRY(BL_CALLOC(sharing->part, bl_layer_n_slots(map), err));
    return bl_step_split_create(map, &sharing->split, err);
}

static bl_status open_rule(bl_sharing *sharing, const bl_sharing_rule *rule, bl_error *err) {
    const bl_layer_placement *map = sharing->map;
    BL_TRY(bl_copies_of(map, &sharing->copies, err));
    BL_TRY(BL_CALLOC(sharing->zeros, map->n_ranks, err));
    BL_TRY(BL_CALLOC(sharing->row, map->n_experts, err));
    switch (sharing->rule) {
    case BL_RULE_EVEN:
        return BL_OK;
    case BL_RULE_FRACTIONS:
        assert(rule->share != NULL);
        sharing->share = rule->share[map->layer];
        return BL_OK;
    case BL_RULE_NEAREST:
    case BL_RULE_FIXED:
        return settle(sharing, rule->host != NULL ? rule->host : sharing->zeros, err);
    case BL_RULE_LOCAL:
        return bl_local_split_create(map, rule->node != NULL ? rule->node : sharing->zeros,
                                     &sharing->local, err);
    case BL_RULE_PER_STEP:
        return open_per_step(sharing, err);
    }
    return bl_fail(err, BL_ERR_UNSUPPORTED, "an unknown rule");
}

bl_status bl_sharing_create(const bl_sharing_rule *rule, const bl_layer_placement *map, int rank,
                            bl_sharing **out, bl_error *err) {
    bl_sharing *sharing;
    BL_TRY(BL_CALLOC(sharing, 1, err));
    sharing->rule = rule->rule;
    sharing->map = map;
    sharing->rank = rank;
    const bl_status st = open_rule(sharing, rule, err);
    if (st < 0) {
        bl_sharing_free(sharing);
        return st;
    }
    *out = sharing;
    return BL_OK;
}

void bl_sharing_free(bl_sharing *sharing) {
    if (sharing == NULL)
        return;
    bl_step_split_free(sharing->split);
    bl_local_split_free(sharing->local);
    bl_copies_free(&sharing->copies);
    free(sharing->zeros);
    free(sharing->row);
    free(sharing->fixed);
    free(sharing->all);
    free(sharing->count);
    free(sharing->quota);
    free(sharing->part);
    free(sharing);
}

/* ---- per step ------------------------------------------------------------------------------- */

/* Rows of every rank for every expert, and their sums. */
static bl_status gather_counts(bl_sharing *sharing, bl_exchange *exchange, const int32_t *ids,
                               int n_ids, bl_error *err) {
    const size_t n_experts = (size_t)sharing->map->n_experts;
    int32_t *mine = sharing->all + (size_t)sharing->rank * n_experts;
    memset(mine, 0, n_experts * sizeof *mine);
    for (int a = 0; a < n_ids; a++)
        mine[ids[a]]++;
    BL_TRY(bl_exchange_allgather(exchange, mine, n_experts * sizeof *mine, sharing->all, err));
    memset(sharing->count, 0, n_experts * sizeof *sharing->count);
    for (int rank = 0; rank < sharing->map->n_ranks; rank++) {
        for (size_t expert = 0; expert < n_experts; expert++) {
            const int32_t rows = sharing->all[(size_t)rank * n_experts + expert];
            if (rows < 0)
                return bl_fail_at(err, BL_ERR_RANGE, bl_at_layer(NULL, sharing->map->layer),
                                  "rank %d says that it has %d rows for an expert", rank, rows);
            sharing->count[expert] += (uint64_t)rows;
        }
    }
    return BL_OK;
}

static int32_t *rows_of(const bl_sharing *sharing, int rank, int expert) {
    return &sharing->all[(size_t)rank * (size_t)sharing->map->n_experts + (size_t)expert];
}

/* Move up to `rows` of slot's quota to whoever takes them; part is kept when that is this rank. */
static int32_t take_quota(bl_sharing *sharing, int source, int slot, int32_t rows) {
    const uint64_t quota = sharing->quota[slot];
    const uint64_t taken = quota < (uint64_t)rows ? quota : (uint64_t)rows;
    sharing->quota[slot] -= taken;
    if (source == sharing->rank)
        sharing->part[slot] += taken;
    return (int32_t)taken;
}

/* Deal one expert's quotas to the sources: each serves what it can by its own copy; what is left
 * is lined up, ranks against slots. */
static void deal(bl_sharing *sharing, int expert) {
    const bl_copies *copies = &sharing->copies;
    const int first = copies->first[expert], end = copies->first[expert + 1];
    for (int i = first; i < end; i++) {
        int32_t *rows = rows_of(sharing, copies->rank[i], expert);
        *rows -= take_quota(sharing, copies->rank[i], copies->slot[i], *rows);
    }
    int i = first;
    for (int source = 0; source < sharing->map->n_ranks; source++) {
        int32_t *rows = rows_of(sharing, source, expert);
        while (*rows > 0 && i < end) {
            *rows -= take_quota(sharing, source, copies->slot[i], *rows);
            i += sharing->quota[copies->slot[i]] == 0;
        }
    }
}

static bl_status choose_per_step(bl_sharing *sharing, bl_exchange *exchange, const int32_t *ids,
                                 int n_ids, int32_t *slot, bl_error *err) {
    const bl_copies *copies = &sharing->copies;
    bl_step_split_result result;
    BL_TRY(gather_counts(sharing, exchange, ids, n_ids, err));
    BL_TRY(bl_step_split_solve(sharing->split, sharing->count, BL_SHARING_SLACK, &result, err));
    bl_step_split_rows(sharing->split, sharing->count, sharing->quota);
    memset(sharing->part, 0, (size_t)bl_layer_n_slots(sharing->map) * sizeof *sharing->part);
    for (int expert = 0; expert < copies->n_experts; expert++)
        deal(sharing, expert);
    memcpy(sharing->row, copies->first, (size_t)copies->n_experts * sizeof *sharing->row);
    for (int a = 0; a < n_ids; a++) { /* row[]: the copy that has rows left to take */
        int32_t *at = &sharing->row[ids[a]];
        while (sharing->part[copies->slot[*at]] == 0)
            (*at)++;
        sharing->part[copies->slot[*at]]--;
        slot[a] = copies->slot[*at];
    }
    return BL_OK;
}

/* ---- all rules ------------------------------------------------------------------------------ */

static void choose_local(bl_sharing *sharing, const int32_t *ids, int n_tokens, int k,
                         int32_t *slot) {
    bl_local_split_begin(sharing->local, sharing->rank);
    for (int token = 0; token < n_tokens; token++)
        bl_local_split_token(sharing->local, ids + token * k, k, slot + token * k);
}

bl_status bl_sharing_choose(bl_sharing *sharing, bl_exchange *exchange, const int32_t *ids,
                            int n_tokens, int k, int32_t *slot, uint64_t *exchanged,
                            bl_error *err) {
    const int n_ids = n_tokens * k;
    *exchanged = 0;
    if (sharing->rule == BL_RULE_PER_STEP) {
        *exchanged = (uint64_t)sharing->map->n_experts * sizeof(int32_t) *
                     (uint64_t)(sharing->map->n_ranks - 1);
        return choose_per_step(sharing, exchange, ids, n_ids, slot, err);
    }
    if (sharing->rule == BL_RULE_LOCAL) {
        choose_local(sharing, ids, n_tokens, k, slot);
        return BL_OK;
    }
    memset(sharing->row, 0, (size_t)sharing->map->n_experts * sizeof *sharing->row);
    for (int a = 0; a < n_ids; a++) {
        slot[a] = sharing->fixed != NULL
                      ? sharing->fixed[ids[a]]
                      : bl_split_choose(sharing->rule, &sharing->copies, sharing->share, ids[a],
                                        sharing->rank, (uint64_t)sharing->row[ids[a]]++);
    }
    return BL_OK;
}
