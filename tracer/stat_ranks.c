#include "tracer/stat_ranks.h"

#include "core/mem.h"
#include "core/split_step.h"
#include "tracer/stat_imbalance.h"

#include <stdlib.h>
#include <string.h>

/* What one layer's placement does with a step. */
typedef struct layer_ranks {
    const bl_layer_placement *placement; /* borrowed */
    double *share;                       /* [n_slots] of its expert's tokens; NULL under per-step */
    bl_step_split *split;                /* per-step */
    double *load;                        /* [n_slots] over the whole trace */
    int n_live;                          /* ranks that hold anything */
} layer_ranks;

struct bl_stat_ranks {
    const bl_trace_info *info;
    layer_ranks *layers; /* [n_layers] */
    double *rank_load;   /* [n_ranks] scratch */
    uint64_t *rows;      /* [most slots] scratch */
    bl_imbalance_sums sums;
};

static void layer_free(layer_ranks *layer) {
    free(layer->share);
    free(layer->load);
    bl_step_split_free(layer->split);
}

void bl_stat_ranks_free(bl_stat_ranks *ranks) {
    if (ranks == NULL)
        return;
    for (int l = 0; ranks->layers != NULL && l < ranks->info->n_layers; l++)
        layer_free(&ranks->layers[l]);
    free(ranks->layers);
    free(ranks->rank_load);
    free(ranks->rows);
    bl_imbalance_free(&ranks->sums);
    free(ranks);
}

int bl_stat_live_ranks(const bl_layer_placement *placement) {
    int n = 0;
    for (int rank = 0; rank < placement->n_ranks; rank++)
        n += placement->begin[rank + 1] > placement->begin[rank];
    return n;
}

bl_status bl_stat_plan_layer(const bl_stat_plan *plan, int layer,
                             const bl_layer_placement **placement_p, bl_error *err) {
    const bl_layer_placement *placement = bl_placement_layer(plan->placement, layer);
    if (placement == NULL)
        return bl_fail_at(err, BL_ERR_MODEL, bl_at_layer(NULL, layer),
                          "the trace has this layer, the plan does not");
    BL_TRY(bl_layer_placement_check(placement, NULL, err));
    *placement_p = placement;
    return BL_OK;
}

static bl_status set_shares(layer_ranks *layer, const double *given, bl_error *err) {
    const int n_slots = bl_layer_n_slots(layer->placement);
    BL_TRY(BL_CALLOC(layer->share, n_slots, err));
    if (given != NULL) {
        memcpy(layer->share, given, (size_t)n_slots * sizeof *given);
        return BL_OK;
    }
    bl_copies copies;
    BL_TRY(bl_copies_of(layer->placement, &copies, err));
    bl_split_even_shares(layer->placement, &copies, layer->share);
    bl_copies_free(&copies);
    return BL_OK;
}

static bl_status set_layer(bl_stat_ranks *ranks, const bl_stat_plan *plan, int l, bl_error *err) {
    const bl_layer_placement *placement = NULL;
    BL_TRY(bl_stat_plan_layer(plan, ranks->info->layers[l], &placement, err));
    layer_ranks *layer = &ranks->layers[l];
    layer->placement = placement;
    layer->n_live = bl_stat_live_ranks(placement);
    BL_TRY(BL_CALLOC(layer->load, bl_layer_n_slots(placement), err));
    if (plan->rule == BL_RULE_PER_STEP)
        return bl_step_split_create(placement, &layer->split, err);
    const double *given =
        plan->rule == BL_RULE_FRACTIONS ? plan->share[placement - plan->placement->layers] : NULL;
    return set_shares(layer, given, err);
}

static bl_status set_all(bl_stat_ranks *ranks, const bl_stat_plan *plan, bl_error *err) {
    int most_slots = 0;
    BL_TRY(BL_CALLOC(ranks->layers, ranks->info->n_layers, err));
    for (int l = 0; l < ranks->info->n_layers; l++) {
        BL_TRY(set_layer(ranks, plan, l, err));
        const int n_slots = bl_layer_n_slots(ranks->layers[l].placement);
        most_slots = n_slots > most_slots ? n_slots : most_slots;
    }
    BL_TRY(BL_CALLOC(ranks->rank_load, plan->placement->n_ranks, err));
    BL_TRY(BL_CALLOC(ranks->rows, most_slots, err));
    return bl_imbalance_create(ranks->info->n_layers, &ranks->sums, err);
}

bl_status bl_stat_ranks_create(const bl_trace_info *info, const bl_stat_plan *plan,
                               bl_stat_ranks **out_p, bl_error *err) {
    bl_stat_ranks *ranks = NULL;
    BL_TRY(BL_CALLOC(ranks, 1, err));
    ranks->info = info;
    const bl_status st = set_all(ranks, plan, err);
    if (st < 0)
        bl_stat_ranks_free(ranks);
    else
        *out_p = ranks;
    return st;
}

/* ---- a step -------------------------------------------------------------------------------- */

/* Loads by fixed shares; returns the busiest rank's. */
static double busiest_by_shares(bl_stat_ranks *ranks, layer_ranks *layer, const uint64_t *count) {
    const bl_layer_placement *placement = layer->placement;
    double busiest = 0.0;
    for (int rank = 0; rank < placement->n_ranks; rank++) {
        double sum = 0.0;
        for (int slot = placement->begin[rank]; slot < placement->begin[rank + 1]; slot++) {
            if (placement->expert[slot] == BL_NO_EXPERT)
                continue;
            const double rows = layer->share[slot] * (double)count[placement->expert[slot]];
            layer->load[slot] += rows;
            sum += rows;
        }
        ranks->rank_load[rank] = sum;
        busiest = sum > busiest ? sum : busiest;
    }
    return busiest;
}

static bl_status busiest_by_flow(bl_stat_ranks *ranks, layer_ranks *layer, const uint64_t *count,
                                 double *busiest, bl_error *err) {
    bl_step_split_result result;
    BL_TRY(bl_step_split_solve(layer->split, count, 0.0, &result, err));
    bl_step_split_rows(layer->split, count, ranks->rows);
    for (int slot = 0; slot < bl_layer_n_slots(layer->placement); slot++)
        layer->load[slot] += (double)ranks->rows[slot];
    *busiest = (double)result.busiest;
    return BL_OK;
}

bl_status bl_stat_ranks_step(bl_stat_ranks *ranks, const bl_step_counts *step, bl_error *err) {
    const int n_experts = ranks->info->n_experts;
    for (int l = 0; l < ranks->info->n_layers; l++) {
        const uint64_t *count = step->count + (size_t)l * (size_t)n_experts;
        double total = 0.0, busiest = 0.0;
        for (int expert = 0; expert < n_experts; expert++)
            total += (double)count[expert];
        if (!(total > 0.0))
            continue;
        layer_ranks *layer = &ranks->layers[l];
        if (layer->split != NULL)
            BL_TRY(busiest_by_flow(ranks, layer, count, &busiest, err));
        else
            busiest = busiest_by_shares(ranks, layer, count);
        BL_TRY(bl_imbalance_add(&ranks->sums, l, busiest * layer->n_live / total, err));
    }
    return BL_OK;
}

bl_status bl_stat_ranks_finish(bl_stat_ranks *ranks, bl_rank_figures *out, bl_error *err) {
    BL_TRY(bl_imbalance_figures(&ranks->sums, out, err));
    BL_TRY(BL_CALLOC(out->slots, out->n_layers, err));
    for (int l = 0; l < out->n_layers; l++) {
        BL_TRY(bl_layer_placement_copy(ranks->layers[l].placement, &out->slots[l].map, err));
        out->slots[l].load = ranks->layers[l].load;
        ranks->layers[l].load = NULL;
    }
    return BL_OK;
}
