/*
 * ballast_plan.h: expert placement for engines and other languages, in one flat call.
 *
 * The arguments are those of the "rebalance_experts" functions that engines have today, so a caller
 * can change over without changing its data: a matrix of loads in, three integer tables out.
 *
 *     phy2log [L][P]      the expert in each slot; slot p of P lives on rank p / (P / ranks)
 *     log2phy [L][E][X]   the slots of each expert, padded with -1;  X = P - E + 1
 *     logcnt  [L][E]      how many slots each expert has
 *
 * What is different: no rank holds an expert twice; with `old_phy2log` given, copies that are well
 * where they are stay in their slots, and a layer whose balance would not improve by min_gain is
 * not touched (an unchanged load moves nothing); a layer without any load keeps its old slots. P
 * need not divide by ranks: then the first P mod ranks ranks have one slot more.
 *
 * Plain C, no global state, no output; one thread per call, and layers are independent, so several
 * threads may call with a part of the layers each. Link with -lballast-plan, which does not contain
 * GLPK.
 */
#ifndef BALLAST_PLAN_H
#define BALLAST_PLAN_H

#include "ballast_status.h"

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct bl_rebalance_options {
    size_t size;       /* sizeof(bl_rebalance_options): grows with later versions */
    uint64_t seed;     /* the same seed gives the same tables */
    double min_gain;   /* as above, a fraction; negative: the default of 0.03 */
    int32_t max_moves; /* per layer, copies that may travel from old_phy2log; -1: no limit */
} bl_rebalance_options;

#define BL_REBALANCE_OPTIONS_INIT \
    { sizeof(bl_rebalance_options), 1, -1.0, -1 }

/* weight[L][E]: load of each expert in each layer, finite and >= 0. old_phy2log[L][P] may be NULL,
 * -1 in it is an empty slot. options may be NULL: the defaults. log2phy and logcnt may be NULL.
 * Returns BL_OK, or a negative status, with a one-line message in error_text (error_bytes of room;
 * may be NULL); the tables are then unchanged. */
int bl_plan_rebalance(const double *weight, int n_layers, int n_experts, int n_slots, int n_ranks,
                      const int32_t *old_phy2log, const bl_rebalance_options *options,
                      int32_t *phy2log, int32_t *log2phy, int32_t *logcnt, char *error_text,
                      size_t error_bytes);

#ifdef __cplusplus
}
#endif
#endif
