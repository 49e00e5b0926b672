/*
 * split.h: which copy of an expert serves a token.
 *
 * The engine decides, by one of these rules; a plan is made, scored and executed under the same
 * one.
 *
 *     even        every copy gets 1 / copies (round robin or a hash of the token)
 *     nearest     own rank; else the first copy on the own host, if the expert has copies elsewhere
 *                 too; else a copy drawn once per source rank, so that the source ranks spread
 *                 evenly over the copies (SGLang "static")
 *     fixed       one copy per source rank: own rank, else the first on the own host, else copy
 *                 number (source mod copies)
 *     fractions   the plan's own share per slot; shares of one expert sum to 1
 *     per-step    shares are computed anew each step from that step's counts (max-flow)
 *     local       token by token: own node first, then as few other nodes as possible
 *                 (core/split_local.h)
 *
 * Two views of one rule: shares say which part of the rows each slot is to expect (for scoring),
 * bl_split_choose() picks a slot for one token row (for serving). Over many rows the choice
 * reproduces the shares. Under nearest and fixed the shares differ by the rank where the token was
 * born; copies are counted by ascending slot.
 */
#ifndef BL_CORE_SPLIT_H
#define BL_CORE_SPLIT_H

#include "core/placement.h"

typedef enum bl_rule {
    BL_RULE_EVEN,
    BL_RULE_NEAREST,
    BL_RULE_FIXED,
    BL_RULE_FRACTIONS,
    BL_RULE_PER_STEP,
    BL_RULE_LOCAL
} bl_rule;

extern const char *const bl_rule_names[]; /* NULL-terminated, indexed by bl_rule */

/* Does the rule look at the rank a token was born on? */
static inline bool bl_rule_needs_sources(bl_rule rule) {
    return rule == BL_RULE_NEAREST || rule == BL_RULE_FIXED || rule == BL_RULE_LOCAL;
}

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

/* Share of the rows of tokens born on rank `source` that each slot serves: share[n_slots], for
 * EVEN, NEAREST and FIXED. host[n_ranks] is the machine of each rank. Under NEAREST a copy drawn
 * once per source has the share it is drawn with. */
void bl_split_source_shares(bl_rule rule, const bl_layer_placement *layer, const bl_copies *copies,
                            const int *host, int source, double *share);

/* Under NEAREST and FIXED: the copy that the place of `source` settles, as an index into
 * copies->slot; -1 (NEAREST only): one is drawn. The expert has a copy. */
int bl_split_settled(bl_rule rule, const bl_copies *copies, const int *host, int expert,
                     int source);

/* Slot for one token row. `row` numbers the rows a source rank sends to this expert in this step
 * (0, 1, 2, ...): even serves copy (row + source_rank + expert) mod copies. `share` [n_slots] is
 * needed for BL_RULE_FRACTIONS only and may be NULL otherwise: row r then goes where the r-th
 * number of a low-discrepancy sequence falls in the cumulated shares. Supports EVEN and FRACTIONS;
 * asserts that the expert has a copy. */
int bl_split_choose(bl_rule rule, const bl_copies *copies, const double *share, int expert,
                    int source_rank, uint64_t row);

#endif
