#include "tracer/stat_lined_up.h"

#include "core/mem.h"
#include "tracer/stat_pairs.h"

#include <stdlib.h>
#include <string.h>

void bl_lined_up_free(bl_lined_up *u) {
    free(u->before.ids);
    free(u->now.ids);
    *u = (bl_lined_up){0};
}

bool bl_lined_up_same(const bl_lined_up *u, const bl_record *record, int layer_index) {
    const bl_layer_ids *now = &u->now;
    return now->k > 0 && now->layer_index == layer_index && now->run == record->run &&
           now->step == record->step && now->rank == record->rank;
}

bool bl_lined_up_match(const bl_lined_up *u) {
    const bl_layer_ids *a = &u->before, *b = &u->now;
    return a->usable && b->usable && a->layer_index + 1 == b->layer_index && a->run == b->run &&
           a->step == b->step && a->rank == b->rank && a->n_tokens == b->n_tokens &&
           a->n_tokens > 0;
}

void bl_lined_up_turn(bl_lined_up *u, const bl_record *record, int layer_index) {
    const bl_layer_ids free_one = u->before;
    u->before = u->now;
    u->now = (bl_layer_ids){.usable = true,
                            .run = record->run,
                            .step = record->step,
                            .rank = record->rank,
                            .layer_index = layer_index,
                            .k = record->k,
                            .ids = free_one.ids,
                            .capacity = free_one.capacity};
}

bl_status bl_lined_up_append(bl_lined_up *u, const bl_record *record, bl_error *err) {
    bl_layer_ids *now = &u->now;
    const size_t k = (size_t)record->k;
    now->usable = now->usable && (record->ids != NULL || record->n_tokens == 0) &&
                  record->k == now->k && record->n_tokens <= BL_PAIRS_MAX_IDS / k &&
                  now->n_tokens + (size_t)record->n_tokens <= BL_PAIRS_MAX_IDS / k;
    if (!now->usable || record->n_tokens == 0)
        return BL_OK;
    const size_t used = now->n_tokens * k, more = (size_t)record->n_tokens * k;
    void *ids = now->ids;
    const bl_status st = bl_grow(&ids, &now->capacity, used + more, sizeof *now->ids, err);
    now->ids = ids;
    BL_TRY(st);
    memcpy(now->ids + used, record->ids, more * sizeof *now->ids);
    now->n_tokens += (size_t)record->n_tokens;
    return BL_OK;
}
