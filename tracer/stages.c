#include "tracer/stages.h"

#include "core/mem.h"

#include <stdlib.h>
#include <string.h>

#define LEAST_STEPS 4 /* in the window, however large they are */
#define MOST_STEPS 65536
#define MAX_STEP_BYTES ((size_t)256 << 20)
#define NOBODY SIZE_MAX

/* One step in the window. */
typedef struct gathered {
    uint32_t run;
    uint64_t step;
    size_t next; /* in its bucket, or NOBODY */
    bool made_up;
    size_t n_told;  /* (layer, rank) whose times are there */
    double *counts; /* owned, and what follows in it: */
    double *stage_ns;
    unsigned char *told; /* [n_layers][n_ranks] */
} gathered;

typedef struct gatherer {
    const bl_trace_info *info;
    int n_ranks;
    size_t n_counts, n_times, n_told; /* of a step */
    gathered *ring;                   /* [capacity], the oldest at `first` */
    size_t capacity, first, n;
    size_t *bucket; /* [n_buckets] a place in the ring, or NOBODY */
    size_t n_buckets;
    bl_stage_visit *visit;
    void *user;
    bl_stage_totals totals;
} gatherer;

static size_t bucket_of(const gatherer *g, uint32_t run, uint64_t step) {
    const uint64_t mixed =
        (step + (uint64_t)run * UINT64_C(0x9e3779b97f4a7c15)) * UINT64_C(0xff51afd7ed558ccd);
    return (size_t)(mixed >> 32) & (g->n_buckets - 1);
}

static bl_status open_gatherer(gatherer *g, size_t window_bytes, bl_error *err) {
    const size_t n_layers = (size_t)g->info->n_layers;
    size_t bytes;
    g->n_told = n_layers * (size_t)g->n_ranks;
    g->n_times = g->n_told * BL_N_STAGES;
    g->n_counts = n_layers * (size_t)g->info->n_experts;
    if (!bl_size_mul(g->n_counts + g->n_times, sizeof(double), &bytes) || bytes > MAX_STEP_BYTES)
        return bl_fail(err, BL_ERR_NOMEM,
                       "the times of one step of %d ranks and %d layers do not fit into %zu MiB",
                       g->n_ranks, g->info->n_layers, MAX_STEP_BYTES >> 20);
    g->capacity = window_bytes / (bytes + g->n_told + sizeof(gathered));
    g->capacity = g->capacity < LEAST_STEPS ? LEAST_STEPS : g->capacity;
    g->capacity = g->capacity > MOST_STEPS ? MOST_STEPS : g->capacity;
    for (g->n_buckets = 16; g->n_buckets < 2 * g->capacity;)
        g->n_buckets *= 2;
    BL_TRY(BL_CALLOC(g->ring, g->capacity, err));
    BL_TRY(BL_CALLOC(g->bucket, g->n_buckets, err));
    for (size_t b = 0; b < g->n_buckets; b++)
        g->bucket[b] = NOBODY;
    return BL_OK;
}

static void close_gatherer(gatherer *g) {
    for (size_t i = 0; g->ring != NULL && i < g->capacity; i++) {
        free(g->ring[i].counts);
        free(g->ring[i].told);
    }
    free(g->ring);
    free(g->bucket);
}

/* Hand the oldest step over and take it out. */
static bl_status pop(gatherer *g, bl_error *err) {
    gathered *s = &g->ring[g->first];
    size_t *at = &g->bucket[bucket_of(g, s->run, s->step)];
    while (*at != g->first)
        at = &g->ring[*at].next;
    *at = s->next;
    g->first = (g->first + 1) % g->capacity;
    g->n--;
    g->totals.steps++;
    g->totals.made_up += s->made_up;
    g->totals.no_times += !s->made_up && s->n_told == 0;
    if (s->made_up || s->n_told < g->n_told)
        return BL_OK;
    g->totals.whole++;
    const bl_stage_step step = {s->run, s->step, s->counts, s->stage_ns};
    return g->visit(g->user, &step, err);
}

static bl_status push(gatherer *g, const bl_record *record, gathered **out, bl_error *err) {
    if (g->n == g->capacity) {
        const bl_status st = pop(g, err);
        if (st != BL_OK)
            return st;
    }
    const size_t place = (g->first + g->n) % g->capacity;
    gathered *s = &g->ring[place];
    if (s->counts == NULL) {
        BL_TRY(BL_CALLOC(s->counts, g->n_counts + g->n_times, err));
        BL_TRY(BL_CALLOC(s->told, g->n_told, err));
        s->stage_ns = s->counts + g->n_counts;
    }
    memset(s->counts, 0, (g->n_counts + g->n_times) * sizeof *s->counts);
    memset(s->told, 0, g->n_told);
    s->run = record->run;
    s->step = record->step;
    s->made_up = false;
    s->n_told = 0;
    size_t *bucket = &g->bucket[bucket_of(g, record->run, record->step)];
    s->next = *bucket;
    *bucket = place;
    g->n++;
    *out = s;
    return BL_OK;
}

static bl_status find(gatherer *g, const bl_record *record, gathered **out, bl_error *err) {
    size_t at = g->bucket[bucket_of(g, record->run, record->step)];
    for (; at != NOBODY; at = g->ring[at].next) {
        if (g->ring[at].run == record->run && g->ring[at].step == record->step) {
            *out = &g->ring[at];
            return BL_OK;
        }
    }
    return push(g, record, out, err);
}

static void count(const bl_record *record, double *counts) {
    if (record->counts != NULL) {
        for (int id = 0; id < record->n_ids; id++)
            counts[id] += (double)record->counts[id];
        return;
    }
    for (uint64_t i = 0; i < record->n_tokens * (uint64_t)record->k; i++)
        if (record->ids[i] != BL_EMPTY_SLOT)
            counts[record->ids[i]] += 1.0;
}

static bl_status take(gatherer *g, const bl_record *record, bl_error *err) {
    const int layer = bl_trace_layer_index(g->info, record->layer);
    gathered *s;
    if (record->rank < 0 || record->rank >= g->n_ranks)
        return bl_fail_at(err, BL_ERR_UNSUPPORTED, bl_at_layer(NULL, record->layer),
                          "records are summed over ranks: they do not tell what each one took");
    if (layer < 0)
        return BL_OK;
    const bl_status st = find(g, record, &s, err);
    if (st != BL_OK)
        return st;
    s->made_up = s->made_up || (record->flags & BL_RECORD_DUMMY) != 0;
    count(record, s->counts + (size_t)layer * (size_t)g->info->n_experts);
    if (record->stage_ns == NULL)
        return BL_OK;
    const size_t at = (size_t)layer * (size_t)g->n_ranks + (size_t)record->rank;
    s->n_told += s->told[at] == 0;
    s->told[at] = 1;
    for (size_t stage = 0; stage < BL_N_STAGES; stage++)
        s->stage_ns[at * BL_N_STAGES + stage] += (double)record->stage_ns[stage];
    return BL_OK;
}

static bl_status read_all(gatherer *g, bl_stream *stream, bl_error *err) {
    for (;;) {
        bl_record record;
        bool got;
        BL_TRY(bl_stream_next(stream, &record, &got, err));
        if (!got)
            break;
        const bl_status st = take(g, &record, err);
        if (st != BL_OK)
            return st;
    }
    while (g->n > 0) {
        const bl_status st = pop(g, err);
        if (st != BL_OK)
            return st;
    }
    return BL_OK;
}

bl_status bl_stages_read(bl_stream *stream, size_t window_bytes, bl_stage_visit *visit, void *user,
                         bl_stage_totals *out, bl_error *err) {
    const bl_trace_info *info = bl_stream_info(stream);
    gatherer g = {.info = info, .n_ranks = info->n_ranks, .visit = visit, .user = user};
    if (info->n_ranks <= 0)
        return bl_fail(err, BL_ERR_UNSUPPORTED,
                       "the trace does not say how many ranks there were, so none can be missing");
    bl_status st = open_gatherer(&g, window_bytes > 0 ? window_bytes : BL_STAGES_WINDOW_BYTES, err);
    if (st >= 0)
        st = read_all(&g, stream, err);
    close_gatherer(&g);
    if (st < 0)
        return st;
    g.totals.cut = st == BL_LIMIT;
    *out = g.totals;
    return BL_OK;
}
