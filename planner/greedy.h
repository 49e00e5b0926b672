/*
 * greedy.h: what engines do today, as the yardstick and as a first construction.
 *
 * EPLB and its children in SGLang, vLLM and TensorRT-LLM give spare slots to the expert with the
 * largest load per copy, then pack the copies, largest first, onto the least loaded rank with a
 * free slot. This is that, with one difference: two copies of an expert never share a rank (theirs
 * may, which wastes a slot; where the spare slots suffice the numbers are the same within noise).
 * When the packing runs into a corner, that is when only ranks that hold the expert have room, a
 * copy elsewhere changes places.
 */
#ifndef BL_PLANNER_GREEDY_H
#define BL_PLANNER_GREEDY_H

#include "planner/problem.h"

/* Plans on the sum of the scenarios. The problem has been checked. */
bl_status bl_greedy(const bl_problem *problem, bl_layer_placement *out, bl_error *err);

/* Pack given numbers of copies, copies[n_experts] >= 1 with sum <= slots, longest first. Where no
 * placement with these numbers is found, single copies are exchanged for copies of other experts
 * and `copies` says what became of it. Every slot is filled. */
bl_status bl_pack(const bl_problem *problem, const double *load, int *copies,
                  bl_layer_placement *out, bl_error *err);

#endif
