/* What lies in a ring comes from another process: an entry either makes sense within its own bounds, or is
 * refused in one clear message. The bytes are an entry's header and body. */
#include "tracer/recorder_entry.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int holds) {
    if (!holds)
        abort();
}

static void check_record(const bl_record *record) {
    const size_t slots = record->ids != NULL ? (size_t)record->n_tokens * (size_t)record->k : 0;
    for (size_t i = 0; i < slots; i++)
        require(record->ids[i] >= BL_EMPTY_SLOT);
    uint64_t sum = 0;
    for (int id = 0; record->counts != NULL && id < record->n_ids; id++)
        sum += record->counts[id];
    for (int stage = 0; record->stage_ns != NULL && stage < BL_N_STAGES; stage++)
        sum += record->stage_ns[stage];
    for (size_t i = 0; record->weights != NULL && i < slots; i++)
        sum += record->weights[i];
    require(sum < UINT64_MAX || sum > 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    bl_ring_entry entry;
    bl_entry_scratch scratch = {0};
    bl_error err = BL_ERROR_INIT;
    if (size < sizeof entry || size > 1 << 20)
        return 0;
    memcpy(&entry, data, sizeof entry);
    entry.bytes = (uint32_t)(size / 8 * 8); /* as bl_ring_peek() has checked it */
    if (entry.bytes < sizeof entry)
        return 0;
    uint64_t *body = malloc(entry.bytes - sizeof entry + 8); /* aligned, as in a ring */
    require(body != NULL);
    memcpy(body, data + sizeof entry, entry.bytes - sizeof entry);
    const unsigned char *at = (const unsigned char *)body;
    bl_status st = BL_OK;
    if (entry.kind == BL_RING_MAP) {
        bl_layer_placement map;
        st = bl_entry_to_map(&scratch, &entry, at, 64, &map, &err);
        if (st == BL_OK)
            require(bl_layer_n_slots(&map) > 0);
    } else if (entry.kind == BL_RING_DROPS) {
        const uint64_t *layers;
        st = bl_entry_to_drops(&entry, at, 3, &layers, &err);
        if (st == BL_OK)
            require(layers[0] + layers[1] + layers[2] < UINT64_MAX || layers[0] > 0);
    } else {
        bl_record record;
        if (entry.kind != BL_RING_COUNTS)
            entry.kind = BL_RING_RECORD;
        st = bl_entry_to_record(&scratch, &entry, at, &record, &err);
        if (st == BL_OK)
            check_record(&record);
    }
    require(st == BL_OK || err.text[0] != '\0');
    bl_entry_scratch_free(&scratch);
    free(body);
    return 0;
}
