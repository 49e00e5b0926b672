/*
 * stat_ranks.h: how uneven ranks are, step by step, as a placement would have it or as it was.
 *
 *     imbalance of one (step, layer)   max over ranks / mean over ranks of assignments; ranks
 *                                      without slots do not count, nor layers without load
 *     balancedness                     mean over (step, layer) of mean / max
 *
 *     loads of a layer over two ranks, [100, 200]:   imbalance 200 / 150, balancedness 0.75
 *
 * *Predicted* figures come from a placement and a rule that says which copy serves what: even,
 * fractions, or per-step (core/split_step.h, exact). *Realised* figures come from records with
 * physical ids, that is, slots: what the engine's own rule did with its own map. Side by side they
 * show an engine that does not do what was planned. A realised 90/10 split of an expert's two copies
 * is seen in the slots' counts; those are kept for the latest epoch of each layer, as slots mean
 * something else after each change of the map.
 */
#ifndef BL_TRACER_STAT_RANKS_H
#define BL_TRACER_STAT_RANKS_H

#include "core/placement.h"
#include "core/split.h"
#include "tracer/stat_quantile.h"
#include "tracer/stat_steps.h"

/* Which placement to look at the trace with. All borrowed. */
typedef struct bl_stat_plan {
    const bl_placement *placement; /* every layer of the trace; NULL: none */
    bl_rule rule;                  /* any but BL_RULE_LOCAL */
    const double *const *share;    /* [placement->n_layers][n_slots] for fractions, else NULL */
    const int *host;               /* [n_ranks] machine of each rank, for nearest and fixed */
} bl_stat_plan;

/* Slots of one layer and what they served. */
typedef struct bl_slot_loads {
    bl_layer_placement map; /* owned; n_ranks 0: nothing is known */
    double *load;           /* [n_slots] assignments; owned */
    uint64_t epochs;        /* changes of the map seen, the first included; 0 for predicted ones */
} bl_slot_loads;

typedef struct bl_rank_figures {
    bl_quantile_figures all;
    bl_quantile_figures *layers; /* [n_layers of the trace]; owned, NULL: no figures */
    bl_slot_loads *slots;        /* [n_layers of the trace]; owned */
    int n_layers;
} bl_rank_figures;

/* Share of its expert's load that a slot served; NaN for an empty slot or an idle expert. */
double bl_slot_share(const bl_slot_loads *slots, int slot);

/* Slots that hold the expert of this one; 0 for an empty slot. */
int bl_slot_copies(const bl_slot_loads *slots, int slot);

void bl_rank_figures_free(bl_rank_figures *figures); /* safe on a zeroed struct */

/* The plan's layer with this id, hard rules kept; BL_ERR_MODEL when it lacks it. */
bl_status bl_stat_plan_layer(const bl_stat_plan *plan, int layer,
                             const bl_layer_placement **placement_p, bl_error *err);
/* Ranks that have slots. */
int bl_stat_live_ranks(const bl_layer_placement *placement);

/* ---- predicted ----------------------------------------------------------------------------- */

typedef struct bl_stat_ranks bl_stat_ranks;

/* BL_ERR_MODEL names a layer the placement lacks, BL_ERR_USAGE a rule that cannot be scored here. */
bl_status bl_stat_ranks_create(const bl_trace_info *info, const bl_stat_plan *plan,
                               bl_stat_ranks **out_p, bl_error *err);
void bl_stat_ranks_free(bl_stat_ranks *ranks); /* NULL is fine */
/* One whole step; columns are experts. */
bl_status bl_stat_ranks_step(bl_stat_ranks *ranks, const bl_step_counts *step, bl_error *err);
bl_status bl_stat_ranks_finish(bl_stat_ranks *ranks, bl_rank_figures *out, bl_error *err);

/* ---- realised ------------------------------------------------------------------------------ */

typedef struct bl_stat_slots bl_stat_slots;

bl_status bl_stat_slots_create(const bl_trace_info *info, bl_stat_slots **out_p, bl_error *err);
void bl_stat_slots_free(bl_stat_slots *slots); /* NULL is fine */
/* A record with physical ids and the map it was made under. */
bl_status bl_stat_slots_add(bl_stat_slots *slots, const bl_record *record, int layer_index,
                            const bl_layer_placement *map, bl_error *err);
/* out->layers stays NULL when there were no physical ids. */
bl_status bl_stat_slots_finish(bl_stat_slots *slots, bl_rank_figures *out, bl_error *err);

#endif
