/*
 * demand.h: what a trace says before any expert is looked at: which phases it has, and how evenly
 * requests are spread over the ranks they come from.
 *
 * Attention is data-parallel: a rank serves its own requests, and a rank with more tokens than the
 * others keeps them waiting whatever the experts' placement. That is the request router's business
 * and no plan can mend it, so it is told apart from the imbalance of experts:
 *
 *     imbalance of a step  max over source ranks / mean over source ranks of tokens
 *
 * over the ranks of the trace, those without a token in the step included. It is not known where the
 * source summed over ranks. One pass over the keys; bodies are not decoded.
 */
#ifndef BL_TRACER_DEMAND_H
#define BL_TRACER_DEMAND_H

#include "core/status.h"
#include "tracer/trace.h"

typedef struct bl_demand_phase {
    uint64_t tokens;       /* of one layer; 0: the trace has nothing of this phase */
    uint64_t steps;        /* that hold tokens of it */
    bool known;            /* source ranks are told, and there are at least two */
    double mean, p95, max; /* imbalance over those steps; 1 is even */
} bl_demand_phase;

typedef struct bl_demand {
    int n_phases;                        /* with tokens */
    int n_ranks;                         /* source ranks; 0: not told */
    bl_demand_phase phases[BL_N_PHASES]; /* by bl_phase */
    bl_demand_phase all;                 /* phases together */
} bl_demand;

/* Steps first .. end - 1 of the paths, read as one trace (tracer/loads.h). */
bl_status bl_demand_read(const char *const *paths, int n_paths, int64_t first_step,
                         int64_t end_step, bl_demand *out, bl_error *err);

#endif
