/*
 * stat.h: a trace in numbers, in one pass and with memory that does not grow with it.
 *
 * For each MoE layer: how many token rows its router sent out (assignments), how many top-k slots
 * were empty, whether it conserves (tracer/ledger.h), and how uneven its experts are:
 *
 *     max_over_mean_experts = max over experts of count / mean over experts of count, whole trace
 *
 * That is what a placement has to cope with, not what ranks see: imbalance of ranks needs a
 * placement.
 */
#ifndef BL_TRACER_STAT_H
#define BL_TRACER_STAT_H

#include "core/status.h"
#include "tracer/trace.h"

typedef struct bl_stat_layer {
    int layer;
    uint64_t tokens, assignments, empty;
    bool conserved;
    char *why;                    /* the reason when it is not conserved; owned */
    double max_over_mean_experts; /* 1 when there is no load */
    int hottest;                  /* expert */
    int n_idle;                   /* experts that were never picked */
} bl_stat_layer;

typedef struct bl_stat {
    bl_trace_info info;     /* owned */
    uint64_t steps, tokens; /* tokens: over steps and ranks, as most layers agree */
    uint64_t phase_tokens[BL_N_PHASES];
    uint64_t records, dummy_records, dropped;
    bool composed, complete;
    char notes[1024];
    char digest[33];
    bl_stat_layer *layers; /* [info.n_layers]; owned */
} bl_stat;

/* `phase` is a bl_phase, or -1 for all. A trace without tokens is BL_ERR_CONSERVATION. Free with
 * bl_stat_free(). */
bl_status bl_stat_read(const char *path, int phase, bl_stat *out, bl_error *err);
void bl_stat_free(bl_stat *stat); /* safe on a zeroed struct */

#endif
