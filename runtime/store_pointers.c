/* Slots that an engine finds by tables of pointers: every buffer is a set of places in its memory, one
 * for each tensor that moves, and a commit writes other places into the tables. */
#include "runtime/store_parts.h"

#include "core/mem.h"

/* Entry number `entry` of the tables of a bundle: what buffer `buffer` consists of. */
static void take_place(const bl_store *store, const bl_bundle *bundle, size_t entry, int buffer) {
    void **place = store->places + (size_t)buffer * (size_t)store->form->n_moved;
    for (int i = 0, m = 0; i < bundle->n_tensors; i++) {
        if (bl_tensor_is_moved(&bundle->tensors[i]))
            place[m++] = bundle->tensors[i].pointers[entry];
    }
}

bl_status bl_store_take_places(bl_store *store, const bl_bundle *bundles, bl_error *err) {
    const size_t n_places = (size_t)store->n_rows * (size_t)store->form->n_moved;
    int spare = store->n_rows;
    BL_TRY(BL_CALLOC(store->places, n_places, err));
    for (int l = 0; l < store->n_layers; l++)
        spare -= bundles[l].n_spares;
    for (int l = 0; l < store->n_layers; l++) {
        const bl_bundle *bundle = &bundles[l];
        for (int slot = 0; slot < bundle->own_slots; slot++)
            take_place(store, bundle, (size_t)slot, store->layers[l].slot_buffer[slot]);
        for (int i = 0; i < bundle->n_spares; i++)
            take_place(store, bundle, (size_t)(bundle->own_slots + i), spare++);
    }
    return BL_OK;
}

void bl_store_point(const bl_store *store, const bl_layer_table *table) {
    const bl_bundle *bundle = table->bundle;
    for (int slot = 0; slot < bundle->own_slots; slot++) {
        void *const *place = bl_store_place(store, table->slot_buffer[slot]);
        for (int i = 0, m = 0; i < bundle->n_tensors; i++) {
            if (bl_tensor_is_moved(&bundle->tensors[i]))
                bundle->tensors[i].pointers[slot] = place[m++];
        }
    }
}
