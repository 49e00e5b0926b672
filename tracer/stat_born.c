#include "tracer/stat_born.h"

#include "core/mem.h"
#include "tracer/ledger.h"
#include "tracer/stat_imbalance.h"

#include <stdlib.h>
#include <string.h>

#define MAX_ROWS 1e14     /* of one record on one rank: their sums in units fit into 64 bits */
#define ROW_UNITS 65536.0 /* shares make parts of rows; the tables of steps hold whole numbers */

typedef struct born_layer {
    const bl_layer_placement *placement; /* borrowed */
    bl_copies copies;
    size_t first_slot; /* of the layer among all slots */
    double *load;      /* [n_slots]; handed over at the end */
    int n_live;
} born_layer;

/* Tokens of one rank. */
typedef struct birthplace {
    double *share;   /* [all slots]; owned, NULL: no token yet */
    bool *known;     /* [n_layers] which layers' shares are made; owned */
    double *traffic; /* [n_ranks]; owned */
} birthplace;

struct bl_stat_born {
    const bl_trace_info *info;
    bl_rule rule;
    const int *host;
    int n_ranks;
    born_layer *layers; /* [n_layers] */
    size_t all_slots;
    birthplace *sources; /* [n_ranks] */
    size_t n_sources;    /* that have shares */
    bl_open_steps *steps;
    uint64_t *count; /* [n_experts] of one record */
    bl_imbalance_sums sums;
};

static void layer_free(born_layer *layer) {
    bl_copies_free(&layer->copies);
    free(layer->load);
}

void bl_stat_born_free(bl_stat_born *b) {
    if (b == NULL)
        return;
    for (int l = 0; b->layers != NULL && l < b->info->n_layers; l++)
        layer_free(&b->layers[l]);
    for (int rank = 0; b->sources != NULL && rank < b->n_ranks; rank++) {
        free(b->sources[rank].share);
        free(b->sources[rank].known);
        free(b->sources[rank].traffic);
    }
    free(b->layers);
    free(b->sources);
    free(b->count);
    bl_open_steps_free(b->steps);
    bl_imbalance_free(&b->sums);
    free(b);
}

/* A step is over: columns are ranks. */
static bl_status step_over(void *user, const bl_step_counts *step, bl_error *err) {
    bl_stat_born *b = user;
    for (int l = 0; l < b->info->n_layers; l++) {
        const uint64_t *load = step->count + (size_t)l * (size_t)b->n_ranks;
        uint64_t most = 0;
        double total = 0.0;
        for (int rank = 0; rank < b->n_ranks; rank++) {
            total += (double)load[rank];
            most = load[rank] > most ? load[rank] : most;
        }
        if (total > 0.0)
            BL_TRY(bl_imbalance_add(&b->sums, l, (double)most * b->layers[l].n_live / total, err));
    }
    return BL_OK;
}

static bl_status set_layers(bl_stat_born *b, const bl_stat_plan *plan, bl_error *err) {
    BL_TRY(BL_CALLOC(b->layers, b->info->n_layers, err));
    for (int l = 0; l < b->info->n_layers; l++) {
        born_layer *layer = &b->layers[l];
        BL_TRY(bl_stat_plan_layer(plan, b->info->layers[l], &layer->placement, err));
        layer->n_live = bl_stat_live_ranks(layer->placement);
        layer->first_slot = b->all_slots;
        b->all_slots += (size_t)bl_layer_n_slots(layer->placement);
        BL_TRY(bl_copies_of(layer->placement, &layer->copies, err));
        BL_TRY(BL_CALLOC(layer->load, bl_layer_n_slots(layer->placement), err));
    }
    return BL_OK;
}

bl_status bl_stat_born_create(const bl_trace_info *info, const bl_stat_plan *plan,
                              bl_stat_born **out_p, bl_error *err) {
    if (plan->host == NULL)
        return bl_fail(err, BL_ERR_USAGE,
                       "under the rule \"%s\" it matters which ranks share a machine; a topology "
                       "tells",
                       bl_rule_names[plan->rule]);
    bl_stat_born *b = NULL;
    BL_TRY(BL_CALLOC(b, 1, err));
    b->info = info;
    b->rule = plan->rule;
    b->host = plan->host;
    b->n_ranks = plan->placement->n_ranks;
    bl_status st = set_layers(b, plan, err);
    if (st == BL_OK)
        st = BL_CALLOC(b->sources, b->n_ranks, err);
    if (st == BL_OK)
        st = BL_CALLOC(b->count, info->n_experts, err);
    if (st == BL_OK)
        st = bl_imbalance_create(info->n_layers, &b->sums, err);
    if (st == BL_OK)
        st = bl_open_steps_create(info, b->n_ranks, step_over, b, &b->steps, err);
    if (st < 0)
        bl_stat_born_free(b);
    else
        *out_p = b;
    return st;
}

/* ---- records ------------------------------------------------------------------------------- */

static bl_status begin_source(bl_stat_born *b, birthplace *source, bl_error *err) {
    if (b->n_sources + 1 > BL_BORN_MAX_BYTES / sizeof(double) / b->all_slots)
        return bl_fail(err, BL_ERR_RANGE,
                       "tokens of more than %zu ranks, each with shares of %zu slots: too large",
                       b->n_sources, b->all_slots);
    BL_TRY(BL_CALLOC(source->known, b->info->n_layers, err));
    BL_TRY(BL_CALLOC(source->traffic, b->n_ranks, err));
    BL_TRY(BL_CALLOC(source->share, b->all_slots, err));
    b->n_sources++;
    return BL_OK;
}

/* Shares of a source's tokens in a layer. */
static bl_status shares_of(bl_stat_born *b, const bl_record *record, int l, birthplace **source_p,
                           const double **share_p, bl_error *err) {
    if (record->rank < 0)
        return bl_fail_at(err, BL_ERR_STATE, bl_at_layer(NULL, record->layer),
                          "the rule \"%s\" needs source ranks, and the trace does not tell them",
                          bl_rule_names[b->rule]);
    if (record->rank >= b->n_ranks)
        return bl_fail_at(err, BL_ERR_STATE, bl_at_layer(NULL, record->layer),
                          "tokens of rank %d, but the plan has %d ranks", record->rank, b->n_ranks);
    birthplace *source = &b->sources[record->rank];
    const born_layer *layer = &b->layers[l];
    if (source->share == NULL)
        BL_TRY(begin_source(b, source, err));
    if (!source->known[l]) {
        bl_split_source_shares(b->rule, layer->placement, &layer->copies, b->host, record->rank,
                               source->share + layer->first_slot);
        source->known[l] = true;
    }
    *source_p = source;
    *share_p = source->share + layer->first_slot;
    return BL_OK;
}

bl_status bl_stat_born_add(bl_stat_born *b, const bl_record *record, int layer_index,
                           bl_error *err) {
    birthplace *source = NULL;
    const double *share = NULL;
    uint64_t *row = NULL;
    BL_TRY(shares_of(b, record, layer_index, &source, &share, err));
    BL_TRY(bl_open_steps_row(b->steps, record, layer_index, &row, err));
    memset(b->count, 0, (size_t)b->info->n_experts * sizeof *b->count);
    BL_TRY(bl_record_add_counts(record, b->count, err));
    born_layer *layer = &b->layers[layer_index];
    const bl_layer_placement *placement = layer->placement;
    for (int rank = 0; rank < b->n_ranks; rank++) {
        double rows = 0.0;
        for (int slot = placement->begin[rank]; slot < placement->begin[rank + 1]; slot++) {
            if (placement->expert[slot] == BL_NO_EXPERT)
                continue;
            const double served = share[slot] * (double)b->count[placement->expert[slot]];
            layer->load[slot] += served;
            rows += served;
        }
        if (rows > MAX_ROWS)
            return bl_fail_at(err, BL_ERR_RANGE, bl_at_layer(NULL, record->layer),
                              "counts that are too large to be real");
        source->traffic[rank] += rows;
        row[rank] += (uint64_t)(rows * ROW_UNITS + 0.5);
    }
    return BL_OK;
}

bl_status bl_stat_born_note(bl_stat_born *b, const bl_record *record, bl_error *err) {
    return bl_open_steps_note(b->steps, record, err);
}

/* ---- figures ------------------------------------------------------------------------------- */

bl_status bl_stat_born_finish(bl_stat_born *b, bl_rank_figures *out, bl_error *err) {
    BL_TRY(bl_open_steps_finish(b->steps, err));
    BL_TRY(bl_imbalance_figures(&b->sums, out, err));
    BL_TRY(BL_CALLOC(out->slots, out->n_layers, err));
    for (int l = 0; l < out->n_layers; l++) {
        BL_TRY(bl_layer_placement_copy(b->layers[l].placement, &out->slots[l].map, err));
        out->slots[l].load = b->layers[l].load;
        b->layers[l].load = NULL;
    }
    return BL_OK;
}

bl_status bl_stat_born_traffic(const bl_stat_born *b, bl_sources_result *out, bl_error *err) {
    const size_t n_ranks = (size_t)b->n_ranks;
    if (out->n_sources == 0)
        return BL_OK;
    BL_TRY(BL_CALLOC(out->traffic, (size_t)out->n_sources * n_ranks, err));
    out->n_destinations = b->n_ranks;
    for (int i = 0; i < out->n_sources; i++) {
        const birthplace *source = &b->sources[out->rank[i]];
        if (source->traffic != NULL)
            memcpy(out->traffic + (size_t)i * n_ranks, source->traffic,
                   n_ranks * sizeof *out->traffic);
    }
    return BL_OK;
}
