/* Commits over an engine's tensors: every expert goes to its slot by copies inside the rank. */
#include "runtime/store_parts.h"

#include "core/mem.h"

#include <string.h>

static bl_status check_recompute(const bl_store *store, const bl_bundle *bundle, bl_error *err) {
    for (int i = 0; i < bundle->n_tensors; i++) {
        if (bundle->tensors[i].recomputed != 0 && store->recompute == NULL)
            return bl_fail_at(err, BL_ERR_USAGE, bl_at_layer(NULL, bundle->layer),
                              "tensor %s is recomputed, and there is no function that does it",
                              bundle->tensors[i].name);
    }
    return BL_OK;
}

bl_status bl_store_prepare_tensors(bl_store *store, bl_error *err) {
    size_t table_bytes = 0;
    int most_tensors = 0, most_slots = 0;
    for (int l = 0; l < store->n_layers; l++) {
        const bl_bundle *bundle = store->layers[l].bundle;
        BL_TRY(check_recompute(store, bundle, err));
        if (bundle->table_bytes > table_bytes)
            table_bytes = bundle->table_bytes;
        if (bundle->n_tensors > most_tensors)
            most_tensors = bundle->n_tensors;
        if (bundle->own_slots > most_slots)
            most_slots = bundle->own_slots;
    }
    BL_TRY(BL_CALLOC(store->table_scratch, table_bytes, err));
    BL_TRY(BL_CALLOC(store->names, most_tensors, err));
    return BL_CALLOC(store->slots, most_slots, err);
}

/* Own slot number of a buffer, or -1 when it is in memory. */
static int row_of(const bl_store *store, const bl_layer_table *table, int buffer) {
    return buffer < store->n_rows ? buffer - table->slot_buffer[0] : -1;
}

/* One expert from a buffer into a slot of the layer. */
static bl_status put(const bl_store *store, const bl_layer_table *table, int slot, int from,
                     bl_error *err) {
    const int row = row_of(store, table, from);
    return row >= 0 ? bl_bundle_copy(table->bundle, slot, row, err)
                    : bl_bundle_write(table->bundle, slot, 0, bl_store_buffer(store, from),
                                      table->bundle->bytes, err);
}

/* Whether a slot keeps what it has: its expert, or nothing in particular. */
static bool keeps(const bl_layer_table *table, const int *source, int slot) {
    return source[slot] == BL_NO_BUFFER || source[slot] == table->slot_buffer[slot];
}

/* The slot that wants what `slot` holds now, or -1. */
static int heir_of(const bl_layer_table *table, const int *source, int n_slots, int slot) {
    for (int i = 0; i < n_slots; i++) {
        if (i != slot && source[i] == table->slot_buffer[slot])
            return i;
    }
    return -1;
}

/* Slot `last` holds what nobody wants, or what the first of its cycle does. Keep that aside, then fill
 * `last` from where its expert is, that slot from where its own is, and so on, until one is filled out
 * of the pool, or from aside, or stays empty. A buffer of the pool that was emptied takes the place of
 * the one aside, which holds a displaced expert from then on. */
static bl_status turn(bl_store *store, bl_layer_table *table, int *source, int last,
                      bl_error *err) {
    const int aside = store->through;
    BL_TRY(bl_store_read_buffer(store, table, table->slot_buffer[last], 0,
                                bl_store_buffer(store, aside), store->bundle_bytes, err));
    int slot = last;
    for (;;) {
        const int from = source[slot];
        const int row = row_of(store, table, from);
        source[slot] = table->slot_buffer[slot]; /* done */
        if (row == last)                         /* the cycle is closed */
            return put(store, table, slot, aside, err);
        BL_TRY(put(store, table, slot, from, err));
        if (row < 0) {
            store->use[aside] = BL_BUFFER_DISPLACED;
            table->displaced[table->n_displaced++] = aside;
            store->through = from;
            store->use[from] = BL_BUFFER_FREE; /* of use only here, never in the pool */
            return BL_OK;
        }
        if (source[row] == BL_NO_BUFFER) /* it is empty from now on, with whatever lies in it */
            return BL_OK;
        slot = row;
    }
}

/* Paths first, from their ends; what is left then are cycles. */
static bl_status turn_all(bl_store *store, bl_layer_table *table, int *source, int n_slots,
                          bl_error *err) {
    for (int slot = 0; slot < n_slots; slot++) {
        if (!keeps(table, source, slot) && heir_of(table, source, n_slots, slot) < 0)
            BL_TRY(turn(store, table, source, slot, err));
    }
    for (int slot = 0; slot < n_slots; slot++) {
        if (!keeps(table, source, slot))
            BL_TRY(turn(store, table, source, slot, err));
    }
    return BL_OK;
}

bl_status bl_store_recompute(bl_store *store, const bl_layer_table *table,
                             const bl_layer_placement *next, bl_error *err) {
    const bl_bundle *bundle = table->bundle;
    const int first = next->begin[store->rank];
    int n_names = 0, n_slots = 0;
    bool whole = false;
    for (int i = 0; i < bundle->n_tensors; i++) {
        if (bundle->tensors[i].recomputed != 0) {
            store->names[n_names++] = bundle->tensors[i].name;
            whole = whole || bundle->tensors[i].scope != BL_SCOPE_LOCAL;
        }
    }
    for (int i = 0; i < bundle->own_slots; i++) {
        const int32_t expert = next->expert[first + i];
        if (expert != BL_NO_EXPERT && expert != table->map.expert[first + i])
            store->slots[n_slots++] = i;
    }
    if (n_names == 0 || (n_slots == 0 && !whole))
        return BL_OK;
    const int rc =
        store->recompute(store->user, next->layer, store->names, n_names, store->slots, n_slots);
    if (rc != 0)
        return bl_fail_at(err, BL_ERR_IO, bl_at_layer(NULL, next->layer),
                          "the engine could not recompute tensor %s%s (%d)", store->names[0],
                          n_names > 1 ? " and others" : "", rc);
    return BL_OK;
}

bl_status bl_store_turn_tensors(bl_store *store, bl_layer_table *table,
                                const bl_layer_placement *next, bl_error *err) {
    const int first = next->begin[store->rank], n_slots = bl_store_own_slots(next, store->rank);
    int *source = table->scratch_slots;
    for (int i = 0; i < n_slots; i++) {
        const int32_t expert = next->expert[first + i];
        source[i] = expert != BL_NO_EXPERT ? table->scratch_experts[expert] : BL_NO_BUFFER;
    }
    BL_TRY(turn_all(store, table, source, n_slots, err));
    BL_TRY(bl_bundle_reorder(table->bundle, &table->map, next, store->table_scratch, err));
    BL_TRY(bl_store_recompute(store, table, next, err));
    for (int expert = 0; expert < store->n_experts; expert++)
        table->expert_buffer[expert] = BL_NO_BUFFER;
    for (int i = 0; i < n_slots; i++) {
        const int32_t expert = next->expert[first + i];
        store->use[table->slot_buffer[i]] = BL_BUFFER_IN_SLOT; /* it may have been claimed */
        if (expert != BL_NO_EXPERT)
            table->expert_buffer[expert] = table->slot_buffer[i];
    }
    return BL_OK;
}
