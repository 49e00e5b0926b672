#include "tracer/recorder.h"

#include "core/mem.h"
#include "core/progress.h"
#include "tracer/blt.h"
#include "tracer/ring.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FLUSH_EVERY_S 1.0

typedef struct source {
    bl_ring ring;
    int rank;
    uint32_t run;
    uint64_t dropped; /* as far as records in the file account for them */
} source;

struct bl_recorder {
    char *path;
    bl_blt_writer *writer; /* NULL until the first poll */
    bl_trace_info info;
    source *sources; /* [n] */
    size_t n, capacity;
    double last_flush_s;
    uint64_t written, rejected;
    char why_rejected[256];
    int32_t *ids;
    size_t ids_capacity;
};

bl_status bl_recorder_create(const char *path, bl_recorder **recorder_p, bl_error *err) {
    bl_recorder *r = NULL;
    BL_TRY(BL_CALLOC(r, 1, err));
    r->path = strdup(path);
    if (r->path == NULL) {
        free(r);
        return bl_fail(err, BL_ERR_NOMEM, "out of memory");
    }
    *recorder_p = r;
    return BL_OK;
}

static bl_status adopt_model(bl_recorder *r, const bl_ring_shape *shape, const char *ring,
                             bl_error *err) {
    bl_trace_info info;
    BL_TRY(bl_trace_info_create(shape->model, shape->layers, shape->n_layers, shape->n_experts,
                                shape->top_k, "record", &info, err));
    info.n_ranks = shape->n_ranks;
    if (r->n == 0) {
        bl_trace_info_free(&r->info);
        r->info = info;
        return BL_OK;
    }
    bl_status st = bl_trace_info_same_model(&r->info, &info, ring, err);
    if (st == BL_OK && r->info.n_ranks != info.n_ranks)
        st = bl_fail(err, BL_ERR_MODEL, "ring \"%s\" is one of %d ranks, the others of %d", ring,
                     info.n_ranks, r->info.n_ranks);
    for (size_t i = 0; st == BL_OK && i < r->n; i++) {
        if (r->sources[i].rank == shape->rank)
            st = bl_fail(err, BL_ERR_STATE, "rings \"%s\" and \"%s\" are both of rank %d",
                         r->sources[i].ring.name, ring, shape->rank);
    }
    bl_trace_info_free(&info);
    return st;
}

bl_status bl_recorder_attach(bl_recorder *r, const char *ring, bl_error *err) {
    if (r->writer != NULL)
        return bl_fail(err, BL_ERR_STATE, "rings are attached before recording begins");
    void *sources = r->sources;
    bl_status st = bl_grow(&sources, &r->capacity, r->n + 1, sizeof *r->sources, err);
    r->sources = sources;
    BL_TRY(st);
    bl_ring_shape *shape = NULL;
    BL_TRY(BL_CALLOC(shape, 1, err));
    source *src = &r->sources[r->n];
    *src = (source){0};
    st = bl_ring_attach(ring, &src->ring, shape, err);
    if (st == BL_OK) {
        st = adopt_model(r, shape, ring, err);
        src->rank = shape->rank;
        src->run = shape->run;
        if (st == BL_OK)
            r->n++;
        else
            bl_ring_detach(&src->ring);
    }
    free(shape);
    return st;
}

static int compare_ints(const void *a, const void *b) {
    return *(const int *)a - *(const int *)b;
}

static bl_status open_file(bl_recorder *r, bl_error *err) {
    if (r->n == 0)
        return bl_fail(err, BL_ERR_STATE, "no ring to record from");
    int *present = NULL;
    BL_TRY(BL_CALLOC(present, r->n, err));
    for (size_t i = 0; i < r->n; i++)
        present[i] = r->sources[i].rank;
    qsort(present, r->n, sizeof *present, compare_ints);
    bl_status st = bl_trace_info_set_ranks(&r->info, r->info.n_ranks, present, (int)r->n, err);
    free(present);
    if (st == BL_OK)
        st = bl_blt_create(r->path, &r->info, true, &r->writer, err);
    r->last_flush_s = bl_now_s();
    return st;
}

/* ---- entries to records --------------------------------------------------------------------- */

static void reject(bl_recorder *r, const bl_error *why) {
    if (r->rejected++ == 0)
        bl_error_format(why, r->why_rejected, sizeof r->why_rejected);
}

static uint32_t id_of(const unsigned char *body, int width, size_t slot) {
    return width == 1 ? body[slot] : (uint32_t)(body[2 * slot] | (unsigned)body[2 * slot + 1] << 8);
}

/* The ids of an entry, whose size must be exactly what its numbers say. */
static bl_status unpack(bl_recorder *r, const bl_ring_entry *entry, const unsigned char *body,
                        bl_error *err) {
    const size_t slots = (size_t)entry->n_tokens * entry->k, width = entry->width;
    const size_t bitmap = entry->n_empty > 0 ? (slots + 7) / 8 : 0;
    if (entry->k == 0 || entry->k > BL_MAX_TOP_K || (width != 1 && width != 2) ||
        (sizeof *entry + slots * width + bitmap + 7) / 8 * 8 != entry->bytes)
        return bl_fail(err, BL_ERR_PARSE, "a ring's entry has another size than it says");
    void *ids = r->ids;
    const bl_status st =
        bl_grow(&ids, &r->ids_capacity, slots > 0 ? slots : 1, sizeof *r->ids, err);
    r->ids = ids;
    BL_TRY(st);
    for (size_t slot = 0; slot < slots; slot++) {
        const bool empty =
            bitmap > 0 && ((unsigned)body[slots * width + slot / 8] >> (slot % 8) & 1u) != 0;
        r->ids[slot] = empty ? BL_EMPTY_SLOT : (int32_t)id_of(body, (int)width, slot);
    }
    return BL_OK;
}

/* A record the writer refuses (ids out of range or twice) is counted and named, and the recording
 * goes on: the step's ledger then shows the layer as unusable. */
static bl_status write_entry(bl_recorder *r, source *src, const bl_ring_entry *entry,
                             const unsigned char *body, bl_error *err) {
    bl_error why = BL_ERROR_INIT;
    if (entry->bad_id >= 0) {
        bl_fail_at(&why, BL_ERR_RANGE, bl_at_layer(NULL, entry->layer),
                   "step %llu, rank %d: id %lld is not a logical expert below %d",
                   (unsigned long long)entry->step, src->rank, (long long)entry->bad_id,
                   r->info.n_experts);
        reject(r, &why);
        return BL_OK;
    }
    BL_TRY(unpack(r, entry, body, err));
    const uint64_t lost = entry->dropped > src->dropped ? entry->dropped - src->dropped : 0;
    const bl_record record = {.run = src->run,
                              .step = entry->step,
                              .layer = entry->layer,
                              .rank = src->rank,
                              .phase = (bl_phase)entry->phase,
                              .flags = entry->flags & BL_STEP_DUMMY ? BL_RECORD_DUMMY : 0,
                              .n_ids = r->info.n_experts,
                              .n_tokens = entry->n_tokens,
                              .k = entry->k,
                              .dropped = lost,
                              .ids = r->ids};
    const bl_status st = bl_blt_write(r->writer, &record, &why);
    if (st == BL_ERR_RANGE) {
        reject(r, &why);
        return BL_OK;
    }
    if (st < 0)
        return bl_fail(err, st, "%s", why.text);
    src->dropped += lost;
    r->written++;
    return BL_OK;
}

static bl_status drain(bl_recorder *r, source *src, uint64_t *n_records, bl_error *err) {
    for (;;) {
        bl_ring_entry entry;
        const unsigned char *body;
        BL_TRY(bl_ring_peek(&src->ring, &entry, &body, err));
        if (body == NULL)
            break;
        const bl_status st = write_entry(r, src, &entry, body, err);
        bl_error_set_file(err, r->path);
        BL_TRY(st);
        bl_ring_pop(&src->ring, &entry);
        bl_ring_release(&src->ring);
        (*n_records)++;
    }
    return BL_OK;
}

bl_status bl_recorder_poll(bl_recorder *r, uint64_t *n_records, bl_error *err) {
    *n_records = 0;
    if (r->writer == NULL)
        BL_TRY(open_file(r, err));
    for (size_t i = 0; i < r->n; i++)
        BL_TRY(drain(r, &r->sources[i], n_records, err));
    if (bl_now_s() - r->last_flush_s > FLUSH_EVERY_S) {
        BL_TRY(bl_blt_flush(r->writer, err));
        r->last_flush_s = bl_now_s();
    }
    return BL_OK;
}

bool bl_recorder_is_over(const bl_recorder *r) {
    for (size_t i = 0; i < r->n; i++) {
        const bl_ring *ring = &r->sources[i].ring;
        if (!bl_ring_is_over(ring) ||
            atomic_load_explicit(&ring->memory->head, memory_order_acquire) != ring->read)
            return false;
    }
    return true;
}

void bl_recorder_read_totals(const bl_recorder *r, bl_recorder_totals *totals) {
    *totals =
        (bl_recorder_totals){.n_rings = (int)r->n, .written = r->written, .rejected = r->rejected};
    memcpy(totals->why_rejected, r->why_rejected, sizeof totals->why_rejected);
    for (size_t i = 0; i < r->n; i++) {
        const bl_ring_memory *m = r->sources[i].ring.memory;
        totals->pushed += atomic_load(&m->pushed);
        totals->dropped += atomic_load(&m->dropped);
    }
}

static void recorder_free(bl_recorder *r) {
    for (size_t i = 0; i < r->n; i++)
        bl_ring_detach(&r->sources[i].ring);
    bl_trace_info_free(&r->info);
    free(r->sources);
    free(r->ids);
    free(r->path);
    free(r);
}

bl_status bl_recorder_finish(bl_recorder *r, bl_recorder_totals *totals, bl_error *err) {
    uint64_t n_records;
    bl_status st = bl_recorder_poll(r, &n_records, err);
    if (st < 0) {
        bl_recorder_abandon(r);
        return st;
    }
    for (size_t i = 0; i < r->n; i++) {
        const source *src = &r->sources[i];
        const uint64_t dropped = atomic_load(&src->ring.memory->dropped);
        if (dropped > src->dropped) /* those after the last record */
            bl_blt_add_dropped(r->writer, dropped - src->dropped);
    }
    if (totals != NULL)
        bl_recorder_read_totals(r, totals);
    st = bl_blt_close(r->writer, err);
    recorder_free(r);
    return st;
}

void bl_recorder_abandon(bl_recorder *r) {
    if (r == NULL)
        return;
    bl_blt_abandon(r->writer);
    recorder_free(r);
}
