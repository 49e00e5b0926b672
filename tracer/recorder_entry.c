#include "tracer/recorder_entry.h"

#include "core/mem.h"

#include <stdlib.h>
#include <string.h>

/* Grow scratch->name to n items. */
#define ROOM(scratch, name, n, err)                                                                \
    do {                                                                                           \
        void *room_ = (scratch)->name;                                                             \
        const bl_status room_st_ = bl_grow(&room_, &(scratch)->name##_capacity, (n) > 0 ? (n) : 1, \
                                           sizeof *(scratch)->name, err);                          \
        (scratch)->name = room_;                                                                   \
        BL_TRY(room_st_);                                                                          \
    } while (0)

void bl_entry_scratch_free(bl_entry_scratch *s) {
    free(s->ids);
    free(s->counts);
    free(s->weights);
    free(s->begin);
    free(s->expert);
    *s = (bl_entry_scratch){0};
}

static bl_status wrong_size(bl_error *err) {
    return bl_fail(err, BL_ERR_PARSE, "a ring's entry has another size than it says");
}

static uint32_t read_u32(const unsigned char *at) {
    uint32_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

/* A number of 1, 2 or 4 bytes. */
static uint32_t number_at(const unsigned char *base, size_t index, size_t width) {
    const unsigned char *at = base + index * width;
    uint16_t two;
    switch (width) {
    case 1:
        return at[0];
    case 2:
        memcpy(&two, at, sizeof two);
        return two;
    default:
        return read_u32(at);
    }
}

static bl_status take_ids(bl_entry_scratch *s, const bl_ring_entry *entry,
                          const unsigned char *body, size_t slots, bl_record *out, bl_error *err) {
    const size_t width = entry->width;
    ROOM(s, ids, slots, err);
    if (entry->flags & BL_ENTRY_WEIGHTS) {
        ROOM(s, weights, slots, err);
        memcpy(s->weights, body, slots * 2);
        body += slots * 2;
        out->weights = s->weights;
    }
    const unsigned char *bitmap = body + slots * width;
    for (size_t slot = 0; slot < slots; slot++) {
        const uint32_t id = number_at(body, slot, width);
        if (id > INT32_MAX) /* it would look like an empty slot */
            return bl_fail(err, BL_ERR_PARSE, "a ring's entry holds an impossible id");
        s->ids[slot] = (int32_t)id;
    }
    for (size_t slot = 0; entry->n_empty > 0 && slot < slots; slot++) {
        if (((unsigned)bitmap[slot / 8] >> (slot % 8) & 1u) != 0)
            s->ids[slot] = BL_EMPTY_SLOT;
    }
    out->ids = s->ids;
    return BL_OK;
}

static bl_status take_counts(bl_entry_scratch *s, const bl_ring_entry *entry,
                             const unsigned char *body, bl_record *out, bl_error *err) {
    ROOM(s, counts, (size_t)entry->n_ids, err);
    for (size_t id = 0; id < entry->n_ids; id++)
        s->counts[id] = number_at(body, id, entry->width);
    out->counts = s->counts;
    out->n_empty = entry->n_empty;
    return BL_OK;
}

bl_status bl_entry_to_record(bl_entry_scratch *s, const bl_ring_entry *entry,
                             const unsigned char *body, bl_record *out, bl_error *err) {
    const size_t width = entry->width, k = entry->k;
    const bool counts = entry->kind == BL_RING_COUNTS;
    if (k == 0 || k > BL_MAX_TOP_K || (width != 1 && width != 2 && width != 4) ||
        entry->n_tokens > UINT64_C(1) << 50 || entry->n_ids > BL_MAX_IDS_SPACE ||
        (!counts && entry->n_tokens > UINT32_MAX))
        return wrong_size(err);
    const size_t slots = counts ? 0 : (size_t)entry->n_tokens * k;
    const size_t times = entry->flags & BL_ENTRY_TIMES ? BL_ENTRY_TIMES_BYTES : 0;
    size_t bytes = sizeof *entry + times;
    if (counts)
        bytes += entry->n_ids * width;
    else
        bytes += slots * width + (entry->flags & BL_ENTRY_WEIGHTS ? slots * 2 : 0) +
                 (entry->n_empty > 0 ? (slots + 7) / 8 : 0);
    if (entry->bad_id >= 0)
        bytes = sizeof *entry;
    if ((bytes + 7) / 8 * 8 != entry->bytes)
        return wrong_size(err);
    bl_record record = {.step = entry->step,
                        .layer = entry->layer,
                        .phase = (bl_phase)entry->phase,
                        .flags = (entry->flags & BL_ENTRY_DUMMY ? BL_RECORD_DUMMY : 0u) |
                                 (entry->flags & BL_ENTRY_PHYSICAL ? BL_RECORD_PHYSICAL : 0u),
                        .epoch = entry->epoch,
                        .n_ids = (int)entry->n_ids,
                        .n_tokens = entry->n_tokens,
                        .k = (int)k};
    if (entry->bad_id < 0 && times > 0) {
        memcpy(s->stage_ns, body, times);
        bool told = false;
        for (int stage = 0; stage < BL_N_STAGES; stage++)
            told = told || s->stage_ns[stage] != 0;
        record.stage_ns = told ? s->stage_ns : NULL;
        body += times;
    }
    if (entry->bad_id < 0)
        BL_TRY(counts ? take_counts(s, entry, body, &record, err)
                      : take_ids(s, entry, body, slots, &record, err));
    *out = record;
    return BL_OK;
}

bl_status bl_entry_to_map(bl_entry_scratch *s, const bl_ring_entry *entry,
                          const unsigned char *body, int n_experts, bl_layer_placement *out,
                          bl_error *err) {
    if (entry->bytes < sizeof *entry + 8)
        return wrong_size(err);
    const size_t n_ranks = read_u32(body), n_slots = read_u32(body + 4);
    if (n_ranks < 1 || n_ranks > BL_MAX_RANKS || n_slots < 1 || n_slots > BL_MAX_IDS_SPACE ||
        (sizeof *entry + 4 * (3 + n_ranks + n_slots) + 7) / 8 * 8 != entry->bytes)
        return wrong_size(err);
    ROOM(s, begin, n_ranks + 1, err);
    ROOM(s, expert, n_slots, err);
    for (size_t rank = 0; rank <= n_ranks; rank++) {
        const uint32_t first = read_u32(body + 8 + 4 * rank);
        s->begin[rank] = (int)(first <= n_slots ? first : n_slots);
        if (first > n_slots || (rank > 0 && s->begin[rank] < s->begin[rank - 1]))
            return bl_fail(err, BL_ERR_PARSE, "a ring's map has ranks out of order");
    }
    if (s->begin[0] != 0 || (size_t)s->begin[n_ranks] != n_slots)
        return bl_fail(err, BL_ERR_PARSE, "a ring's map does not give every slot to a rank");
    memcpy(s->expert, body + 8 + 4 * (n_ranks + 1), n_slots * sizeof *s->expert);
    for (size_t slot = 0; slot < n_slots; slot++) {
        if (s->expert[slot] < BL_NO_EXPERT || s->expert[slot] >= n_experts)
            return bl_fail(err, BL_ERR_PARSE, "a ring's map has expert %d of %d", s->expert[slot],
                           n_experts);
    }
    *out = (bl_layer_placement){.layer = entry->layer,
                                .epoch = entry->epoch,
                                .n_ranks = (int)n_ranks,
                                .n_experts = n_experts,
                                .begin = s->begin,
                                .expert = s->expert};
    return BL_OK;
}

bl_status bl_entry_to_drops(const bl_ring_entry *entry, const unsigned char *body, int n_layers,
                            const uint64_t **layers_p, bl_error *err) {
    if (entry->bytes != sizeof *entry + 8 + 8 * (size_t)n_layers ||
        read_u32(body) != (uint32_t)n_layers)
        return wrong_size(err);
    *layers_p = (const uint64_t *)(const void *)(body + 8);
    return BL_OK;
}
