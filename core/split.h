/*
 * split.h: which copy of an expert serves a token.
 *
 * The engine decides, by one of these rules; a plan is made, scored and executed under the same
 * one.
 *
 *     even        every copy gets 1 / copies (round robin or a hash of the token)
 *     nearest     the copy with the least distance from the token's rank; ties share evenly
 *     fixed       one copy per source rank: own rank, else own host, else source mod copies
 *     fractions   the plan's own share per slot; shares of one expert sum to 1
 *     per-step    shares are computed anew each step from that step's counts (max-flow)
 *
 * Two views of one rule: bl_split_shares() gives the expected share of each slot (for scoring),
 * bl_split_choose() picks a slot for one token row (for serving). Over many rows the choice
 * reproduces the shares.
 */
#ifndef BL_CORE_SPLIT_H
#define BL_CORE_SPLIT_H

#include "core/placement.h"

typedef enum bl_rule {
    BL_RULE_EVEN,
    BL_RULE_NEAREST,
    BL_RULE_FIXED,
    BL_RULE_FRACTIONS,
    BL_RULE_PER_STEP
} bl_rule;

extern const char *const bl_rule_names[]; /* NULL-terminated, indexed by bl_rule */

/* Copies of each expert of one layer: slots of expert e are slot[first[e] .. first[e + 1] - 1],
 * ascending. Owned by the caller, freed with bl_copies_free(). */
typedef struct bl_copies {
    int n_experts;
    int *first; /* [n_experts + 1] */
    int *slot;  /* [first[n_experts]] */
    int *rank;  /* [first[n_experts]]: owner of slot[i] */
} bl_copies;

bl_status bl_copies_of(const bl_layer_placement *layer, bl_copies *out, bl_error *err);
void bl_copies_free(bl_copies *copies); /* safe on a zeroed struct */

/* Share of its expert's tokens that each slot serves under the even rule: share[n_slots], 0 for an
 * empty slot. The shares of one expert sum to 1. */
void bl_split_even_shares(const bl_layer_placement *layer, const bl_copies *copies, double *share);

/* Slot for one token row. `row` numbers the rows a source rank sends to this expert in this step
 * (0, 1, 2, ...): even serves copy (row + source_rank + expert) mod copies. `share` [n_slots] is
 * needed for BL_RULE_FRACTIONS only and may be NULL otherwise: row r then goes where the r-th
 * number of a low-discrepancy sequence falls in the cumulated shares. Supports EVEN and FRACTIONS;
 * asserts that the expert has a copy. */
int bl_split_choose(bl_rule rule, const bl_copies *copies, const double *share, int expert,
                    int source_rank, uint64_t row);

#endif
