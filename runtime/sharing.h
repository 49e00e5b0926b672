/*
 * sharing.h: which copy serves each row of a rank's tokens, under the engine's rule.
 *
 * The rules are those of core/split.h; a plan is made for one of them, and the engine that runs it
 * keeps to the same one. All but one need no word from other ranks:
 *
 *     even, fractions   by the number of the row among this rank's rows for the expert
 *     nearest, fixed    one copy of each expert for this rank, found when the map is taken
 *     local             token by token (core/split_local.h)
 *     per-step          the ranks tell each other how many rows they have for each expert (one
 *                       allgather of n_experts numbers); each then solves the same split of the
 *                       sums (core/split_step.h, within one per cent of the best) and takes its
 *                       part: own copies first, the rest in order of ranks and slots
 *
 * Which copy serves a row changes where bytes and time go, and no result.
 */
#ifndef BL_RUNTIME_SHARING_H
#define BL_RUNTIME_SHARING_H

#include "core/split.h"
#include "runtime/exchange.h"

/* What the split per step may leave undone for the sake of time. */
#define BL_SHARING_SLACK 0.01

/* How a run shares copies; borrowed by whatever is made from it. */
typedef struct bl_sharing_rule {
    bl_rule rule;
    const int *host, *node;     /* [n_ranks] NULL: all ranks on one host, one node */
    const double *const *share; /* [layer][n_slots] of BL_RULE_FRACTIONS, by decoder layer */
} bl_sharing_rule;

typedef struct bl_sharing bl_sharing;

/* For one layer's map, which must keep the hard rules and outlive the handle, as seen by `rank`.
 * Free with bl_sharing_free(). */
bl_status bl_sharing_create(const bl_sharing_rule *rule, const bl_layer_placement *map, int rank,
                            bl_sharing **out, bl_error *err);
void bl_sharing_free(bl_sharing *sharing); /* NULL is fine */

/* slot[n_tokens][k] for ids[n_tokens][k], experts in range. Under per-step all ranks must call it
 * for the same layer at the same time, also without tokens; *exchanged is then the bytes this rank
 * sent, else 0. */
bl_status bl_sharing_choose(bl_sharing *sharing, bl_exchange *exchange, const int32_t *ids,
                            int n_tokens, int k, int32_t *slot, uint64_t *exchanged, bl_error *err);

#endif
