/*
 * capture.c: the engine's side of tracing (include/ballast.h): ids are narrowed into the ring. Libc
 * only. The hot path, bl_trace_push(), neither allocates nor locks nor calls the system.
 */
#include "ballast.h"

#include "tracer/ring.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct bl_tracer {
    bl_ring ring;
    int n_experts, top_k, n_layers;
    int width;      /* bytes of an id in the ring */
    int next_layer; /* index after the last one pushed: engines go through layers in order */
    bool in_step, overflowed;
    uint64_t step;
    uint8_t phase;
    uint32_t flags;
    uint64_t step_records; /* pushed in the open step */
    bl_trace_counters counters;
};

static bl_status check_options(const bl_trace_options *o) {
    if (o == NULL || o->size < sizeof *o || o->model == NULL || o->layers == NULL)
        return BL_ERR_USAGE;
    if (o->n_experts < 1 || o->n_experts > 65536 || o->top_k < 1 || o->top_k > 1024 ||
        o->top_k > o->n_experts || o->n_layers < 1 || o->n_layers > BL_RING_MAX_LAYERS ||
        o->rank < 0 || o->n_ranks < 1 || o->rank >= o->n_ranks)
        return BL_ERR_RANGE;
    for (int l = 0; l < o->n_layers; l++) {
        if (o->layers[l] < 0 || (l > 0 && o->layers[l] <= o->layers[l - 1]))
            return BL_ERR_RANGE;
    }
    return BL_OK;
}

static void fill_shape(const bl_trace_options *o, bl_ring_shape *shape) {
    snprintf(shape->model, sizeof shape->model, "%s", o->model);
    shape->run = o->run;
    shape->rank = o->rank;
    shape->n_ranks = o->n_ranks;
    shape->n_experts = o->n_experts;
    shape->top_k = o->top_k;
    shape->n_layers = o->n_layers;
    for (int l = 0; l < o->n_layers; l++)
        shape->layers[l] = o->layers[l];
}

int bl_trace_open(const char *name, const bl_trace_options *options, bl_tracer **tracer_p) {
    if (name == NULL || tracer_p == NULL)
        return BL_ERR_USAGE;
    BL_TRY(check_options(options));
    bl_tracer *t = calloc(1, sizeof *t);
    bl_ring_shape *shape = calloc(1, sizeof *shape);
    bl_status st = t != NULL && shape != NULL ? BL_OK : BL_ERR_NOMEM;
    if (st == BL_OK) {
        fill_shape(options, shape);
        const size_t bytes = options->ring_bytes > 0 ? options->ring_bytes : BL_RING_DEFAULT_BYTES;
        st = bl_ring_create(name, shape, bytes, &t->ring, NULL);
    }
    free(shape);
    if (st < 0) {
        free(t);
        return st;
    }
    t->n_experts = options->n_experts;
    t->top_k = options->top_k;
    t->n_layers = options->n_layers;
    t->width = options->n_experts <= 256 ? 1 : 2;
    *tracer_p = t;
    return BL_OK;
}

int bl_trace_step_begin(bl_tracer *t, uint64_t step, int phase, unsigned flags) {
    if (t == NULL)
        return BL_OK;
    if (t->in_step)
        return BL_ERR_STATE;
    if (phase < 0 || phase >= BL_N_PHASES || (flags & ~BL_STEP_DUMMY) != 0)
        return BL_ERR_RANGE;
    t->in_step = true;
    t->overflowed = false;
    t->step = step;
    t->phase = (uint8_t)phase;
    t->flags = flags;
    t->step_records = 0;
    t->next_layer = 0;
    return BL_OK;
}

/* ---- packing ------------------------------------------------------------------------------- */

/* Narrow rows of ids; returns whether all are in [0, n_experts). A negative id, seen as unsigned,
 * is out of range too, so one comparison finds everything unusual. */
#define DEFINE_NARROW(name, in_type, out_type)                                             \
    static bool name(const unsigned char *rows, size_t row_bytes, size_t n_rows, size_t k, \
                     int64_t n_experts, unsigned char *out) {                              \
        uint64_t unusual = 0;                                                              \
        for (size_t i = 0; i < n_rows; i++) {                                              \
            const unsigned char *row = rows + i * row_bytes;                               \
            for (size_t j = 0; j < k; j++) {                                               \
                in_type id;                                                                \
                memcpy(&id, row + j * sizeof id, sizeof id);                               \
                const out_type narrow = (out_type)id;                                      \
                unusual |= (uint64_t)(int64_t)id >= (uint64_t)n_experts;                   \
                memcpy(out, &narrow, sizeof narrow);                                       \
                out += sizeof narrow;                                                      \
            }                                                                              \
        }                                                                                  \
        return unusual == 0;                                                               \
    }

DEFINE_NARROW(narrow_8_8, uint8_t, uint8_t)
DEFINE_NARROW(narrow_16_8, int16_t, uint8_t)
DEFINE_NARROW(narrow_32_8, int32_t, uint8_t)
DEFINE_NARROW(narrow_64_8, int64_t, uint8_t)
DEFINE_NARROW(narrow_8_16, uint8_t, uint16_t)
DEFINE_NARROW(narrow_16_16, int16_t, uint16_t)
DEFINE_NARROW(narrow_32_16, int32_t, uint16_t)
DEFINE_NARROW(narrow_64_16, int64_t, uint16_t)

static bool narrow(const bl_tracer *t, const unsigned char *rows, int id_bytes, size_t row_bytes,
                   size_t n_rows, unsigned char *out) {
    const size_t k = (size_t)t->top_k;
    const bool wide = t->width == 2;
    switch (id_bytes) {
    case 1:
        return (wide ? narrow_8_16 : narrow_8_8)(rows, row_bytes, n_rows, k, t->n_experts, out);
    case 2:
        return (wide ? narrow_16_16 : narrow_16_8)(rows, row_bytes, n_rows, k, t->n_experts, out);
    case 4:
        return (wide ? narrow_32_16 : narrow_32_8)(rows, row_bytes, n_rows, k, t->n_experts, out);
    default:
        return (wide ? narrow_64_16 : narrow_64_8)(rows, row_bytes, n_rows, k, t->n_experts, out);
    }
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

/* Second look at rows with unusual ids: empty slots go into the bitmap, anything else is bad. */
static void mark_empties(const bl_tracer *t, const unsigned char *rows, int id_bytes,
                         size_t row_bytes, bl_ring_entry *entry, unsigned char *body) {
    const size_t k = (size_t)t->top_k, slots = (size_t)entry->n_tokens * k;
    unsigned char *bitmap = body + slots * (size_t)t->width;
    memset(bitmap, 0, (slots + 7) / 8);
    for (size_t slot = 0; slot < slots; slot++) {
        const int64_t id =
            id_at(rows + slot / k * row_bytes + slot % k * (size_t)id_bytes, id_bytes);
        if (id >= t->n_experts && entry->bad_id < 0)
            entry->bad_id = id;
        if (id >= 0)
            continue;
        bitmap[slot / 8] |= (unsigned char)(1u << (slot % 8));
        memset(body + slot * (size_t)t->width, 0, (size_t)t->width);
        entry->n_empty++;
    }
}

static bool has_layer(bl_tracer *t, int layer) {
    const int32_t *layers = t->ring.memory->shape.layers;
    for (int tried = 0; tried < t->n_layers; tried++) {
        if (t->next_layer >= t->n_layers)
            t->next_layer = 0;
        if (layers[t->next_layer++] == layer)
            return true;
    }
    return false;
}

static size_t round_up_8(size_t bytes) {
    return (bytes + 7) & ~(size_t)7;
}

int bl_trace_push(bl_tracer *t, int layer, const void *ids, int id_bytes, size_t n_tokens,
                  size_t row_bytes) {
    if (t == NULL)
        return BL_OK;
    const size_t k = (size_t)t->top_k;
    if (!t->in_step)
        return BL_ERR_STATE;
    if (!has_layer(t, layer) || n_tokens > UINT32_MAX / 4 / k)
        return BL_ERR_RANGE;
    if (id_bytes != 1 && id_bytes != 2 && id_bytes != 4 && id_bytes != 8)
        return BL_ERR_USAGE;
    if (n_tokens > 0 && (ids == NULL || (n_tokens > 1 && row_bytes < k * (size_t)id_bytes)))
        return BL_ERR_SHAPE;
    t->counters.pushed++;
    t->step_records++;
    if (t->overflowed)
        return BL_OK;
    const size_t slots = n_tokens * k, id_total = slots * (size_t)t->width;
    const size_t most = round_up_8(sizeof(bl_ring_entry) + id_total + (slots + 7) / 8);
    unsigned char *at = bl_ring_reserve(&t->ring, most);
    if (at == NULL) {
        t->overflowed = true;
        return BL_OK;
    }
    bl_ring_entry entry = {.kind = BL_RING_RECORD,
                           .step = t->step,
                           .dropped = t->counters.dropped,
                           .bad_id = -1,
                           .layer = layer,
                           .n_tokens = (uint32_t)n_tokens,
                           .k = (uint16_t)t->top_k,
                           .width = (uint8_t)t->width,
                           .phase = t->phase,
                           .flags = t->flags};
    unsigned char *body = at + sizeof entry;
    if (!narrow(t, ids, id_bytes, row_bytes, n_tokens, body))
        mark_empties(t, ids, id_bytes, row_bytes, &entry, body);
    size_t bytes = entry.n_empty > 0 ? most : round_up_8(sizeof entry + id_total);
    if (entry.bad_id >= 0)
        bytes = sizeof entry;
    entry.bytes = (uint32_t)bytes;
    memcpy(at, &entry, sizeof entry);
    bl_ring_add(&t->ring, bytes);
    return BL_OK;
}

/* ---- the end of a step --------------------------------------------------------------------- */

int bl_trace_step_end(bl_tracer *t) {
    if (t == NULL)
        return BL_OK;
    if (!t->in_step)
        return BL_ERR_STATE;
    t->in_step = false;
    if (t->overflowed) {
        bl_ring_rewind(&t->ring);
        t->counters.dropped += t->step_records;
    } else {
        t->counters.kept += t->step_records;
    }
    bl_ring_memory *m = t->ring.memory;
    atomic_store_explicit(&m->pushed, t->counters.pushed, memory_order_relaxed);
    atomic_store_explicit(&m->kept, t->counters.kept, memory_order_relaxed);
    atomic_store_explicit(&m->dropped, t->counters.dropped, memory_order_relaxed);
    if (!t->overflowed)
        bl_ring_publish(&t->ring);
    return BL_OK;
}

int bl_trace_read_counters(const bl_tracer *t, bl_trace_counters *counters) {
    if (t == NULL)
        *counters = (bl_trace_counters){0};
    else
        *counters = t->counters;
    return BL_OK;
}

void bl_trace_close(bl_tracer *t) {
    if (t == NULL)
        return;
    if (t->in_step) { /* a step that never ended is not kept */
        t->overflowed = true;
        bl_trace_step_end(t);
    }
    bl_ring_close(&t->ring);
    free(t);
}
