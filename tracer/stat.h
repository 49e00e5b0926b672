/*
 * stat.h: a trace in numbers, in one pass and with memory that does not grow with it.
 *
 * Memory is bounded by shapes: layers x experts, ranks, phases, windows; never by the number of
 * tokens or steps. Each question has a module of its own, fed by the one pass in stat.c:
 *
 *     experts of each layer and phase       stat.c, here
 *     single steps, summed over ranks       stat_steps.h
 *     ranks under a placement, and as run   stat_ranks.h, stat_born.h
 *     experts that go together              stat_pairs.h
 *     source ranks, and traffic             stat_sources.h
 *     drift, half-life, noise               stat_drift.h
 *
 * For each MoE layer: how many token rows its router sent out (assignments), how many top-k slots
 * were empty, whether it conserves (tracer/ledger.h), and how uneven its experts are, over the whole
 * trace:
 *
 *     max_over_mean_experts = max over experts of count / mean over experts of count
 *     entropy               = -sum p ln p / ln E        1: all alike, 0: one expert has all
 *     effective experts     = exp(-sum p ln p)          as many equally popular ones would do that
 *
 * Rows whose slots are all empty are padding and counted apart, as are rows of dummy steps.
 */
#ifndef BL_TRACER_STAT_H
#define BL_TRACER_STAT_H

#include "core/status.h"
#include "tracer/stat_drift.h"
#include "tracer/stat_pairs.h"
#include "tracer/stat_ranks.h"
#include "tracer/stat_sources.h"
#include "tracer/trace.h"

#define BL_STAT_HOTTEST 8

typedef struct bl_stat_options {
    int phase;                    /* a bl_phase, or -1 for all */
    int64_t first_step, end_step; /* 0-based over the steps the trace has, half-open */
    bl_stat_plan plan;            /* plan.placement NULL: none */
} bl_stat_options;

#define BL_STAT_OPTIONS_INIT ((bl_stat_options){.phase = -1, .end_step = INT64_MAX})

/* How a layer's experts fared, in all phases or in one. */
typedef struct bl_expert_figures {
    uint64_t tokens, assignments, empty; /* empty: top-k slots */
    uint64_t padding_rows;               /* rows without any expert; their slots are in `empty` */
    double max_over_mean;                /* 1 when there is no load */
    double entropy, effective;           /* NaN when there is no load */
    int n_idle;                          /* experts that were never picked */
    int n_hottest;
    int hottest[BL_STAT_HOTTEST]; /* experts, most picked first */
} bl_expert_figures;

typedef struct bl_stat_layer {
    int layer;
    bool conserved;
    char *why;             /* the reason when it is not conserved; owned */
    uint64_t dummy_tokens; /* rows of dummy steps: in no other figure */
    bl_expert_figures experts;
} bl_stat_layer;

/* One phase that the trace has. */
typedef struct bl_stat_phase {
    uint64_t tokens;           /* as most layers agree */
    uint64_t *count;           /* [n_layers][n_experts]; NULL: no records; owned */
    bl_expert_figures *layers; /* [n_layers]; owned */
} bl_stat_phase;

typedef struct bl_stat {
    bl_trace_info info;     /* owned */
    uint64_t steps, tokens; /* tokens: over steps and ranks, as most layers agree */
    uint64_t records, dummy_records, dropped;
    uint64_t late_steps; /* parts of steps that came too late to be joined with the rest */
    bool composed, complete;
    char notes[1024];
    char digest[33];
    bl_stat_layer *layers; /* [info.n_layers]; owned */
    bl_stat_phase phases[BL_N_PHASES];
    bl_rank_figures predicted; /* layers NULL: no plan */
    bl_rank_figures realised;  /* layers NULL: no physical ids */
    bl_pairs_result pairs;
    bl_sources_result sources;
    bl_drift_result drift;
} bl_stat;

/* A trace without tokens is BL_ERR_CONSERVATION and the message says what it holds instead; steps
 * that hold none while others do are BL_ERR_RANGE. Free with bl_stat_free(). */
bl_status bl_stat_read(const char *path, const bl_stat_options *options, bl_stat *out,
                       bl_error *err);
void bl_stat_free(bl_stat *stat); /* safe on a zeroed struct */

/* Picks of an expert over all phases. */
uint64_t bl_stat_count(const bl_stat *stat, int layer_index, int expert);

#endif
