/*
 * ledger.h: conservation, the rule that a trace must obey before anything is concluded from it.
 *
 * In one step of one rank all MoE layers see the same tokens, and a layer's counts sum to
 * tokens * k - empty. The ledger is fed with records in stream order and keeps one open step per
 * rank, so its memory does not grow with the trace. A layer that breaks the rule is marked bad with
 * the first reason; dummy records are no load and are not entered.
 *
 *      step 12, rank 3:   layer 3   20 tokens   160 assignments     ok
 *                         layer 4   20 tokens   160 assignments     ok
 *                         layer 5   10 tokens    80 assignments     bad: a part is missing
 *
 * What the other layers saw is the number of tokens that most layers agree on (the larger one of
 * two that are equally frequent).
 */
#ifndef BL_TRACER_LEDGER_H
#define BL_TRACER_LEDGER_H

#include "tracer/trace.h"

typedef struct bl_ledger bl_ledger;

/* `info` is borrowed for the ledger's life. */
bl_status bl_ledger_create(const bl_trace_info *info, bl_ledger **ledger_p, bl_error *err);
void bl_ledger_free(bl_ledger *ledger); /* NULL is fine */

/* Enter a record; `assignments` are the ids it holds: not empty ones, or the sum of its counts. */
bl_status bl_ledger_add(bl_ledger *ledger, const bl_record *record, uint64_t assignments,
                        bl_error *err);

/* Close all open steps. A layer without any record while others have some is bad, too. */
void bl_ledger_finish(bl_ledger *ledger);

/* NULL when the layer (index in info->layers) conserves, else the reason; owned by the ledger. */
const char *bl_ledger_why_bad(const bl_ledger *ledger, int layer_index);

uint64_t bl_ledger_tokens(const bl_ledger *ledger); /* over all steps and ranks */
uint64_t bl_ledger_phase_tokens(const bl_ledger *ledger, bl_phase phase);

/* The most frequent of n values that is not 0 (the largest of equally frequent ones), or 0. Sorts
 * the values. */
uint64_t bl_usual_value(uint64_t *values, int n);

/* Assignments of one record with a body: for callers that have no use for the single ids. False
 * when the counts do not fit into 64 bits. */
bool bl_record_assignments(const bl_record *record, uint64_t *assignments);

/* Add what a record counts to row[n_ids]. */
bl_status bl_record_add_counts(const bl_record *record, uint64_t *row, bl_error *err);

#endif
