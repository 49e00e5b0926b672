/*
 * pairs.h: construction for two slots per rank.
 *
 * With two slots per rank (256 + 32 experts on 144 ranks, say) placing is pairing, and pairing is
 * easy: for given numbers of copies the best pairs are the heaviest with the lightest, the second
 * heaviest with the second lightest, and so on. (Exchange argument: if the heaviest copy is not with
 * the lightest, swapping it there raises no pair above the one it was in.) What is left is how many
 * copies each expert gets, and there greedy is far off: it cools the hottest, while a plan often
 * needs more light copies to set beside heavy ones.
 *
 * So the numbers of copies are annealed: a proposal takes a copy from one expert and gives it to
 * another, and costs what the folded list of copies exceeds a target by. O(slots) per proposal.
 */
#ifndef BL_PLANNER_PAIRS_H
#define BL_PLANNER_PAIRS_H

#include "core/rng.h"
#include "planner/problem.h"

/* True when every rank with slots has two, and there are spare slots to choose copies for. */
bool bl_pairs_applies(const bl_problem *problem);

/* A placement for the summed scenarios. `target` is the rank load to aim at, usually a bound. */
bl_status bl_pairs(const bl_problem *problem, double target, int64_t proposals, bl_rng *rng,
                   bl_layer_placement *out, bl_error *err);

#endif
