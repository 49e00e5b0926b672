/*
 * replicate.h: how many copies of each expert, so that the hottest copy is as cool as it can be.
 *
 * Slots beyond the first E are given one by one to the expert with the largest load per copy. This
 * is what EPLB and its children do, it is optimal for that aim, and the load per copy it ends with
 * is the slot bound (bounds.h has the proof).
 */
#ifndef BL_PLANNER_REPLICATE_H
#define BL_PLANNER_REPLICATE_H

#include "core/status.h"

#include <stdbool.h>

/* Fills copies[n_experts] with numbers in least[e] .. max_copies (least NULL: 1) that sum to n_slots;
 * needs sum of least <= n_slots <= n_experts * max_copies. Ties go to the expert with fewer copies, then to the lower id.
 * *hottest is the largest load per copy, and *hottest_is_widest tells whether that expert was held
 * back by max_copies rather than by the number of slots. Either may be NULL. */
bl_status bl_replicate(const double *load, int n_experts, int n_slots, const int *least,
                       int max_copies, int *copies, double *hottest, bool *hottest_is_widest,
                       bl_error *err);

#endif
