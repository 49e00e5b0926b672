/*
 * capture_rows.c: rows of ids into the ring, narrowed to what the number of experts needs, or into
 * histograms. Libc only. The hot path: it neither allocates nor locks nor calls the system.
 */
#include "tracer/capture.h"

#include <string.h>

/* Narrow n ids; returns whether all are in [0, n_ids). Both an id below 0 and n_ids - 1 - id below 0
 * have the top bit set, so one OR over everything finds what is unusual, in a loop that compilers turn
 * into vector instructions (the Makefile asks for that). */
#define DEFINE_NARROW(name, in_type, work_type, out_type)                                    \
    static bool name(const unsigned char *in, size_t n, int64_t n_ids, unsigned char *out) { \
        const work_type last = (work_type)(n_ids - 1);                                       \
        work_type seen = 0;                                                                  \
        for (size_t i = 0; i < n; i++) {                                                     \
            in_type id;                                                                      \
            memcpy(&id, in + i * sizeof id, sizeof id);                                      \
            const work_type wide = (work_type)id;                                            \
            const out_type narrow = (out_type)id;                                            \
            seen |= wide | (last - wide);                                                    \
            memcpy(out + i * sizeof narrow, &narrow, sizeof narrow);                         \
        }                                                                                    \
        return seen >> (8 * sizeof seen - 1) == 0;                                           \
    }

DEFINE_NARROW(narrow_8_8, uint8_t, uint32_t, uint8_t)
DEFINE_NARROW(narrow_16_8, int16_t, uint32_t, uint8_t)
DEFINE_NARROW(narrow_32_8, int32_t, uint32_t, uint8_t)
DEFINE_NARROW(narrow_64_8, int64_t, uint64_t, uint8_t)
DEFINE_NARROW(narrow_8_16, uint8_t, uint32_t, uint16_t)
DEFINE_NARROW(narrow_16_16, int16_t, uint32_t, uint16_t)
DEFINE_NARROW(narrow_32_16, int32_t, uint32_t, uint16_t)
DEFINE_NARROW(narrow_64_16, int64_t, uint64_t, uint16_t)
DEFINE_NARROW(narrow_8_32, uint8_t, uint32_t, uint32_t)
DEFINE_NARROW(narrow_16_32, int16_t, uint32_t, uint32_t)
DEFINE_NARROW(narrow_32_32, int32_t, uint32_t, uint32_t)
DEFINE_NARROW(narrow_64_32, int64_t, uint64_t, uint32_t)

typedef bool narrow_fn(const unsigned char *in, size_t n, int64_t n_ids, unsigned char *out);

/* [log2 of the ring's width][log2 of the engine's] */
static narrow_fn *const NARROW[3][4] = {{narrow_8_8, narrow_16_8, narrow_32_8, narrow_64_8},
                                        {narrow_8_16, narrow_16_16, narrow_32_16, narrow_64_16},
                                        {narrow_8_32, narrow_16_32, narrow_32_32, narrow_64_32}};

static int log2_of(int bytes) {
    return bytes == 1 ? 0 : bytes == 2 ? 1 : bytes == 4 ? 2 : 3;
}

/* Rows that touch are one long row. */
static bool narrow(const bl_trace_rows *rows, size_t k, int64_t n_ids, int width,
                   unsigned char *out) {
    narrow_fn *convert = NARROW[log2_of(width)][log2_of(rows->id_bytes)];
    const unsigned char *in = rows->ids;
    if (rows->row_bytes == k * (size_t)rows->id_bytes || rows->n_tokens <= 1)
        return convert(in, rows->n_tokens * k, n_ids, out);
    bool all = true;
    for (size_t i = 0; i < rows->n_tokens; i++)
        all &= convert(in + i * rows->row_bytes, k, n_ids, out + i * k * (size_t)width);
    return all;
}

static int64_t id_at(const unsigned char *at, int id_bytes) {
    int16_t two;
    int32_t four;
    int64_t eight;
    switch (id_bytes) {
    case 1:
        return at[0];
    case 2:
        memcpy(&two, at, sizeof two);
        return two;
    case 4:
        memcpy(&four, at, sizeof four);
        return four;
    default:
        memcpy(&eight, at, sizeof eight);
        return eight;
    }
}

static int64_t id_of(const bl_trace_rows *rows, size_t slot, size_t k) {
    return id_at((const unsigned char *)rows->ids + slot / k * rows->row_bytes +
                     slot % k * (size_t)rows->id_bytes,
                 rows->id_bytes);
}

/* Second look at rows with unusual ids: empty slots go into the bitmap, anything else is bad. */
static void mark_empties(const bl_trace_rows *rows, bl_ring_entry *entry, unsigned char *ids) {
    const size_t k = entry->k, slots = (size_t)entry->n_tokens * k, width = entry->width;
    unsigned char *bitmap = ids + slots * width;
    memset(bitmap, 0, (slots + 7) / 8);
    for (size_t slot = 0; slot < slots; slot++) {
        const int64_t id = id_of(rows, slot, k);
        if (id >= (int64_t)entry->n_ids && entry->bad_id < 0)
            entry->bad_id = id;
        if (id >= 0)
            continue;
        bitmap[slot / 8] |= (unsigned char)(1u << (slot % 8));
        memset(ids + slot * width, 0, width);
        entry->n_empty++;
    }
}

/* The nearest binary16, ties to even. core/half.h does the same through the mathematics library, which
 * an engine need not have. */
static uint16_t half_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    const uint32_t sign = bits >> 16 & 0x8000u, mantissa = bits & 0x7fffffu;
    const int exponent = (int)(bits >> 23 & 0xffu) - 112; /* biased by 15 instead of 127 */
    if (exponent == 143)
        return (uint16_t)(sign | 0x7c00u | (mantissa != 0 ? 0x200u : 0u));
    if (exponent >= 31)
        return (uint16_t)(sign | 0x7c00u);
    if (exponent < -10)
        return (uint16_t)sign;
    const int shift = exponent > 0 ? 13 : 14 - exponent; /* below that: subnormal */
    const uint32_t all = exponent > 0 ? (uint32_t)exponent << 23 | mantissa : mantissa | 0x800000u;
    const uint32_t rest = all & ((1u << shift) - 1), middle = 1u << (shift - 1);
    uint32_t half = all >> shift;
    half += rest > middle || (rest == middle && (half & 1u) != 0);
    return (uint16_t)(sign | half);
}

static void copy_weights(const bl_trace_rows *rows, size_t k, unsigned char *out) {
    for (size_t i = 0; i < rows->n_tokens; i++) {
        const unsigned char *row =
            (const unsigned char *)rows->weights + i * rows->weight_row_bytes;
        if (rows->weight_bytes == 2) {
            memcpy(out + i * k * 2, row, k * 2);
            continue;
        }
        for (size_t j = 0; j < k; j++) {
            float weight;
            memcpy(&weight, row + j * sizeof weight, sizeof weight);
            const uint16_t half = half_of(weight);
            memcpy(out + (i * k + j) * 2, &half, sizeof half);
        }
    }
}

static void write_ids(bl_tracer *t, bl_capture_layer *layer, int layer_id,
                      const bl_trace_rows *rows) {
    const int width = bl_capture_width(layer->n_ids);
    const size_t k = (size_t)t->top_k, slots = rows->n_tokens * k, bitmap = (slots + 7) / 8;
    const size_t times = t->options & BL_TRACE_TIMES ? BL_ENTRY_TIMES_BYTES : 0;
    const size_t weights = rows->weights != NULL ? 2 * slots : 0;
    const size_t before = sizeof(bl_ring_entry) + times + weights;
    const uint64_t most = bl_pack_round_up(before + slots * (size_t)width + bitmap);
    unsigned char *at = most <= UINT32_MAX ? bl_pack_reserve(&t->ring.pack, most) : NULL;
    if (at == NULL) {
        t->overflowed = true;
        return;
    }
    bl_ring_entry entry = {.kind = BL_RING_RECORD,
                           .step = t->step,
                           .epoch = layer->epoch,
                           .bad_id = -1,
                           .n_tokens = rows->n_tokens,
                           .layer = layer_id,
                           .n_ids = (uint32_t)layer->n_ids,
                           .k = (uint16_t)t->top_k,
                           .width = (uint8_t)width,
                           .phase = t->phase,
                           .flags = t->flags};
    if (t->options & BL_TRACE_PHYSICAL)
        entry.flags |= BL_ENTRY_PHYSICAL;
    if (times > 0) {
        entry.flags |= BL_ENTRY_TIMES;
        memset(at + sizeof entry, 0, times);
    }
    if (weights > 0) {
        entry.flags |= BL_ENTRY_WEIGHTS;
        copy_weights(rows, k, at + sizeof entry + times);
    }
    unsigned char *ids = at + before;
    if (!narrow(rows, k, layer->n_ids, width, ids))
        mark_empties(rows, &entry, ids);
    uint64_t bytes = entry.n_empty > 0 ? most : bl_pack_round_up(before + slots * (size_t)width);
    if (entry.bad_id >= 0) {
        bytes = sizeof entry;
        entry.flags &= ~(uint32_t)(BL_ENTRY_TIMES | BL_ENTRY_WEIGHTS);
    }
    entry.bytes = (uint32_t)bytes;
    memcpy(at, &entry, sizeof entry);
    layer->times = times > 0 && entry.bad_id < 0 ? at + sizeof entry : NULL;
    t->ring.pack.write += bytes;
}

/* ---- counts only --------------------------------------------------------------------------- */

static void count_ids(bl_tracer *t, int l, const bl_trace_rows *rows, bool first) {
    bl_capture_layer *layer = &t->layers[l];
    uint32_t *counts = t->counts + (size_t)l * t->counts_stride;
    const size_t k = (size_t)t->top_k;
    if (first) {
        memset(counts, 0, (size_t)layer->n_ids * sizeof *counts);
        layer->n_tokens = layer->n_empty = 0;
        layer->bad_id = -1;
        layer->timed = false;
    }
    for (size_t i = 0; i < rows->n_tokens; i++) {
        const unsigned char *row = (const unsigned char *)rows->ids + i * rows->row_bytes;
        for (size_t j = 0; j < k; j++) {
            const int64_t id = id_at(row + j * (size_t)rows->id_bytes, rows->id_bytes);
            if ((uint64_t)id < (uint64_t)layer->n_ids)
                counts[id]++;
            else if (id < 0)
                layer->n_empty++;
            else if (layer->bad_id < 0)
                layer->bad_id = id;
        }
    }
    layer->n_tokens += rows->n_tokens;
}

static int counts_width(const uint32_t *counts, int n) {
    uint32_t all = 0;
    for (int id = 0; id < n; id++)
        all |= counts[id];
    return all < 1u << 8 ? 1 : all < 1u << 16 ? 2 : 4;
}

static void write_counts(bl_tracer *t, int l) {
    const bl_capture_layer *layer = &t->layers[l];
    const uint32_t *counts = t->counts + (size_t)l * t->counts_stride;
    const int n = layer->n_ids, width = counts_width(counts, n);
    const size_t times = layer->timed ? BL_ENTRY_TIMES_BYTES : 0;
    const bool bad = layer->bad_id >= 0 || layer->n_empty > UINT32_MAX;
    const size_t body = bad ? 0 : times + (size_t)n * (size_t)width;
    const uint64_t bytes = bl_pack_round_up(sizeof(bl_ring_entry) + body);
    unsigned char *at = bl_pack_reserve(&t->ring.pack, bytes);
    if (at == NULL) {
        t->overflowed = true;
        return;
    }
    const bl_ring_entry entry = {
        .bytes = (uint32_t)bytes,
        .kind = BL_RING_COUNTS,
        .step = t->step,
        .epoch = layer->epoch,
        .bad_id = layer->bad_id,
        .n_tokens = layer->n_tokens,
        .layer = t->layer_ids[l],
        .n_ids = (uint32_t)n,
        .n_empty = (uint32_t)layer->n_empty,
        .flags = t->flags | (t->options & BL_TRACE_PHYSICAL ? BL_ENTRY_PHYSICAL : 0u) |
                 (layer->timed && !bad ? BL_ENTRY_TIMES : 0u),
        .k = (uint16_t)t->top_k,
        .width = (uint8_t)width,
        .phase = t->phase};
    memcpy(at, &entry, sizeof entry);
    unsigned char *out = at + sizeof entry;
    if (!bad && times > 0)
        memcpy(out, layer->stages, times);
    out += times;
    for (int id = 0; !bad && id < n; id++) {
        const uint8_t one = (uint8_t)counts[id];
        const uint16_t two = (uint16_t)counts[id];
        memcpy(out + (size_t)id * (size_t)width,
               width == 1   ? (const void *)&one
               : width == 2 ? (const void *)&two
                            : (const void *)&counts[id],
               (size_t)width);
    }
    t->ring.pack.write += bytes;
}

void bl_capture_write_counts(bl_tracer *t) {
    for (int l = 0; l < t->n_layers && !t->overflowed; l++) {
        if (t->layers[l].records > 0)
            write_counts(t, l);
    }
}

/* ---- the calls ----------------------------------------------------------------------------- */

static bl_status check_rows(const bl_trace_rows *rows, size_t k) {
    if (rows->n_tokens > UINT32_MAX / 4 / k || rows->row_bytes > UINT32_MAX ||
        rows->weight_row_bytes > UINT32_MAX) /* so that no product of the two overflows */
        return BL_ERR_RANGE;
    if ((rows->id_bytes != 1 && rows->id_bytes != 2 && rows->id_bytes != 4 && rows->id_bytes != 8))
        return BL_ERR_USAGE;
    if (rows->n_tokens > 0 &&
        (rows->ids == NULL || (rows->n_tokens > 1 && rows->row_bytes < k * (size_t)rows->id_bytes)))
        return BL_ERR_SHAPE;
    if (rows->weights != NULL) {
        if (rows->weight_bytes != 2 && rows->weight_bytes != 4)
            return BL_ERR_USAGE;
        if (rows->n_tokens > 1 && rows->weight_row_bytes < k * (size_t)rows->weight_bytes)
            return BL_ERR_SHAPE;
    }
    return BL_OK;
}

int bl_trace_push_rows(bl_tracer *t, int layer, const bl_trace_rows *rows) {
    if (t == NULL)
        return BL_OK;
    if (rows == NULL || rows->size < sizeof *rows)
        return BL_ERR_USAGE;
    if (!t->in_step)
        return BL_ERR_STATE;
    const int l = bl_capture_layer_index(t, layer);
    if (l < 0)
        return BL_ERR_RANGE;
    BL_TRY(check_rows(rows, (size_t)t->top_k));
    if ((t->options & BL_TRACE_PHYSICAL) && t->maps[l].entry == NULL)
        return BL_ERR_STATE;
    const bool adds_up = t->counting && t->layers[l].records > 0;
    if (!adds_up) {
        t->layers[l].records++;
        t->step_records++;
    }
    if (t->overflowed || t->sampled_out)
        return BL_OK;
    if (t->counting)
        count_ids(t, l, rows, !adds_up);
    else
        write_ids(t, &t->layers[l], layer, rows);
    return BL_OK;
}

int bl_trace_push(bl_tracer *t, int layer, const void *ids, int id_bytes, size_t n_tokens,
                  size_t row_bytes) {
    const bl_trace_rows rows = {.size = sizeof rows,
                                .ids = ids,
                                .id_bytes = id_bytes,
                                .n_tokens = n_tokens,
                                .row_bytes = row_bytes};
    return bl_trace_push_rows(t, layer, &rows);
}

int bl_trace_stage_times(bl_tracer *t, int layer, const bl_trace_stages *stages) {
    if (t == NULL)
        return BL_OK;
    if (stages == NULL || stages->size < sizeof *stages)
        return BL_ERR_USAGE;
    if (!t->in_step || !(t->options & BL_TRACE_TIMES))
        return BL_ERR_STATE;
    const int l = bl_capture_layer_index(t, layer);
    if (l < 0)
        return BL_ERR_RANGE;
    bl_capture_layer *at = &t->layers[l];
    if (at->records == 0)
        return BL_ERR_STATE;
    const uint64_t ns[6] = {stages->route_ns,   stages->permute_ns, stages->dispatch_ns,
                            stages->experts_ns, stages->combine_ns, stages->unpermute_ns};
    if (t->overflowed || t->sampled_out)
        return BL_OK;
    if (t->counting) {
        memcpy(at->stages, ns, sizeof ns);
        at->timed = true;
    } else if (at->times != NULL) {
        memcpy(at->times, ns, sizeof ns);
    }
    return BL_OK;
}
