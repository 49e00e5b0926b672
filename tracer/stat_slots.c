/* stat_slots.c: realised loads of slots and ranks, from physical ids. */
#include "tracer/stat_imbalance.h"

#include "core/mem.h"
#include "tracer/ledger.h"

#include <stdlib.h>
#include <string.h>

typedef struct layer_slots {
    bl_layer_placement map; /* of the latest epoch; n_ranks 0: none yet */
    uint64_t *count;        /* [n_slots] since that epoch */
    int n_live;
    uint64_t epochs;
} layer_slots;

struct bl_stat_slots {
    const bl_trace_info *info;
    layer_slots *layers;  /* [n_layers] */
    bl_open_steps *steps; /* columns are ranks; NULL before the first record */
    int n_ranks;
    uint64_t *scratch; /* [scratch_slots] */
    size_t scratch_capacity;
    bl_imbalance_sums sums;
};

bl_status bl_stat_slots_create(const bl_trace_info *info, bl_stat_slots **out_p, bl_error *err) {
    bl_stat_slots *slots = NULL;
    BL_TRY(BL_CALLOC(slots, 1, err));
    slots->info = info;
    bl_status st = BL_CALLOC(slots->layers, info->n_layers, err);
    if (st == BL_OK)
        st = bl_imbalance_create(info->n_layers, &slots->sums, err);
    if (st < 0)
        bl_stat_slots_free(slots);
    else
        *out_p = slots;
    return st;
}

static void layer_clear(layer_slots *layer) {
    bl_layer_placement_free(&layer->map);
    free(layer->count);
    *layer = (layer_slots){.epochs = layer->epochs};
}

void bl_stat_slots_free(bl_stat_slots *slots) {
    if (slots == NULL)
        return;
    for (int l = 0; slots->layers != NULL && l < slots->info->n_layers; l++)
        layer_clear(&slots->layers[l]);
    free(slots->layers);
    bl_open_steps_free(slots->steps);
    free(slots->scratch);
    bl_imbalance_free(&slots->sums);
    free(slots);
}

static bl_status take_map(layer_slots *layer, const bl_layer_placement *map, bl_error *err) {
    if (layer->map.n_ranks > 0 && layer->map.epoch == map->epoch)
        return BL_OK;
    if (layer->map.n_ranks > 0 && map->epoch < layer->map.epoch)
        return BL_OK; /* a rank that is behind: its rows count for ranks, not for slots */
    layer_clear(layer);
    layer->epochs++;
    const int n_slots = bl_layer_n_slots(map);
    BL_TRY(BL_CALLOC(layer->count, n_slots, err));
    return bl_layer_placement_copy(map, &layer->map, err);
}

/* One step over: columns are ranks. A rank without slots has no part in the mean. */
static bl_status step_over(void *user, const bl_step_counts *step, bl_error *err) {
    bl_stat_slots *slots = user;
    for (int l = 0; l < slots->info->n_layers; l++) {
        const uint64_t *load = step->count + (size_t)l * (size_t)slots->n_ranks;
        uint64_t most = 0;
        double total = 0.0;
        for (int rank = 0; rank < slots->n_ranks; rank++) {
            total += (double)load[rank];
            most = load[rank] > most ? load[rank] : most;
        }
        if (total > 0.0)
            BL_TRY(bl_imbalance_add(&slots->sums, l, (double)most * slots->layers[l].n_live / total,
                                    err));
    }
    return BL_OK;
}

static bl_status count_slots(bl_stat_slots *slots, const bl_record *record, bl_error *err) {
    void *scratch = slots->scratch;
    const bl_status st = bl_grow(&scratch, &slots->scratch_capacity, (size_t)record->n_ids,
                                 sizeof *slots->scratch, err);
    slots->scratch = scratch;
    BL_TRY(st);
    memset(slots->scratch, 0, (size_t)record->n_ids * sizeof *slots->scratch);
    return bl_record_add_counts(record, slots->scratch, err);
}

bl_status bl_stat_slots_add(bl_stat_slots *slots, const bl_record *record, int layer_index,
                            const bl_layer_placement *map, bl_error *err) {
    layer_slots *layer = &slots->layers[layer_index];
    if (slots->steps == NULL) {
        slots->n_ranks = map->n_ranks;
        BL_TRY(
            bl_open_steps_create(slots->info, map->n_ranks, step_over, slots, &slots->steps, err));
    }
    if (map->n_ranks != slots->n_ranks || bl_layer_n_slots(map) != record->n_ids)
        return bl_fail_at(err, BL_ERR_SHAPE, bl_at_layer(NULL, record->layer),
                          "a map of %d ranks and %d slots among others of %d ranks", map->n_ranks,
                          bl_layer_n_slots(map), slots->n_ranks);
    BL_TRY(take_map(layer, map, err));
    layer->n_live = 0;
    for (int rank = 0; rank < map->n_ranks; rank++)
        layer->n_live += map->begin[rank + 1] > map->begin[rank];
    BL_TRY(count_slots(slots, record, err));
    uint64_t *row = NULL;
    BL_TRY(bl_open_steps_row(slots->steps, record, layer_index, &row, err));
    const bool current = layer->map.epoch == map->epoch;
    for (int rank = 0; rank < map->n_ranks; rank++) {
        for (int slot = map->begin[rank]; slot < map->begin[rank + 1]; slot++) {
            row[rank] += slots->scratch[slot];
            if (current)
                layer->count[slot] += slots->scratch[slot];
        }
    }
    return BL_OK;
}

static bl_status tell_layer(layer_slots *layer, bl_slot_loads *out, bl_error *err) {
    if (layer->map.n_ranks == 0)
        return BL_OK;
    const int n_slots = bl_layer_n_slots(&layer->map);
    BL_TRY(BL_CALLOC(out->load, n_slots, err));
    for (int slot = 0; slot < n_slots; slot++)
        out->load[slot] = (double)layer->count[slot];
    out->epochs = layer->epochs;
    out->map = layer->map;
    layer->map = (bl_layer_placement){0};
    return BL_OK;
}

bl_status bl_stat_slots_finish(bl_stat_slots *slots, bl_rank_figures *out, bl_error *err) {
    if (slots->steps == NULL)
        return BL_OK;
    BL_TRY(bl_open_steps_finish(slots->steps, err));
    BL_TRY(bl_imbalance_figures(&slots->sums, out, err));
    BL_TRY(BL_CALLOC(out->slots, out->n_layers, err));
    for (int l = 0; l < out->n_layers; l++)
        BL_TRY(tell_layer(&slots->layers[l], &out->slots[l], err));
    return BL_OK;
}
