/*
 * capture.c: the engine's side of tracing (include/ballast.h): opening, steps, maps, closing. Libc
 * only. Ids go into the ring in capture_rows.c.
 */
#include "tracer/capture.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_SLOTS (1 << 20) /* of one layer's map */

/* ---- opening ------------------------------------------------------------------------------- */

/* Fields that an engine built against an older header does not know keep their defaults. */
static bl_status take_options(const bl_trace_options *given, bl_trace_options *o) {
    const bl_trace_options defaults = BL_TRACE_OPTIONS_INIT;
    if (given == NULL || given->size < offsetof(bl_trace_options, source_domain))
        return BL_ERR_USAGE;
    *o = defaults;
    memcpy(o, given, given->size < sizeof *o ? given->size : sizeof *o);
    if (o->model == NULL || o->layers == NULL)
        return BL_ERR_USAGE;
    const unsigned known = BL_TRACE_PHYSICAL | BL_TRACE_TIMES | BL_TRACE_COUNTS;
    if (!bl_ring_model_is_valid(o->model) || o->n_ranks > BL_RING_MAX_RANKS ||
        o->source_domain < -1 || o->run > INT32_MAX || o->sample_burst > BL_CONTROL_MAX_BURST)
        return BL_ERR_RANGE;
    if (o->n_experts < 1 || o->n_experts > 65536 || o->top_k < 1 || o->top_k > 1024 ||
        o->top_k > o->n_experts || o->n_layers < 1 || o->n_layers > BL_RING_MAX_LAYERS ||
        o->rank < 0 || o->n_ranks < 1 || o->rank >= o->n_ranks || (o->flags & ~known) != 0)
        return BL_ERR_RANGE;
    for (int l = 0; l < o->n_layers; l++) {
        if (o->layers[l] < 0 || (l > 0 && o->layers[l] <= o->layers[l - 1]))
            return BL_ERR_RANGE;
    }
    return BL_OK;
}

static bl_status create_ring(const char *name, const bl_trace_options *o, bl_ring *ring) {
    bl_ring_shape *shape = calloc(1, sizeof *shape);
    if (shape == NULL)
        return BL_ERR_NOMEM;
    snprintf(shape->model, sizeof shape->model, "%s", o->model);
    shape->run = o->run;
    shape->rank = o->rank;
    shape->n_ranks = o->n_ranks;
    shape->domain = o->source_domain;
    shape->n_experts = o->n_experts;
    shape->top_k = o->top_k;
    shape->n_layers = o->n_layers;
    for (int l = 0; l < o->n_layers; l++)
        shape->layers[l] = o->layers[l];
    const size_t bytes = o->ring_bytes > 0 ? o->ring_bytes : BL_RING_DEFAULT_BYTES;
    const bl_status st = bl_ring_create(name, shape, bytes, ring, NULL);
    free(shape);
    return st;
}

static void tracer_free(bl_tracer *t) {
    for (int l = 0; t->maps != NULL && l < t->n_layers; l++)
        free(t->maps[l].entry);
    free(t->layer_ids);
    free(t->layers);
    free(t->maps);
    free(t->counts);
    free(t);
}

static void adopt(bl_tracer *t, const bl_trace_options *o) {
    t->n_experts = o->n_experts;
    t->top_k = o->top_k;
    t->options = o->flags;
    for (int l = 0; l < o->n_layers; l++) {
        t->layer_ids[l] = o->layers[l];
        t->layers[l].epoch = o->epoch;
        t->layers[l].n_ids = o->n_experts;
    }
}

int bl_trace_open(const char *name, const bl_trace_options *options, bl_tracer **tracer_p) {
    bl_trace_options o;
    if (name == NULL || tracer_p == NULL)
        return BL_ERR_USAGE;
    BL_TRY(take_options(options, &o));
    bl_tracer *t = calloc(1, sizeof *t);
    if (t == NULL)
        return BL_ERR_NOMEM;
    const size_t n = (size_t)o.n_layers;
    t->n_layers = o.n_layers;
    t->layer_ids = calloc(n, sizeof *t->layer_ids);
    t->layers = calloc(n, sizeof *t->layers);
    t->maps = calloc(n, sizeof *t->maps);
    bl_status st =
        t->layer_ids != NULL && t->layers != NULL && t->maps != NULL ? BL_OK : BL_ERR_NOMEM;
    if (st == BL_OK) {
        adopt(t, &o);
        st = create_ring(name, &o, &t->ring);
    }
    if (st < 0) {
        tracer_free(t);
        return st;
    }
    t->owner = getpid();
    t->pushed = t->dropped = BL_PACK_LOAD(&t->ring.memory->counters.pushed); /* of a ring before */
    const int mode = o.flags & BL_TRACE_COUNTS ? BL_MODE_COUNTS : BL_MODE_IDS;
    BL_PACK_STORE(&t->ring.memory->control, bl_control_word(o.sample_every, o.sample_burst, mode));
    *tracer_p = t;
    return BL_OK;
}

int bl_capture_layer_index(bl_tracer *t, int layer) {
    for (int tried = 0; tried < t->n_layers; tried++) {
        if (t->next_layer >= t->n_layers)
            t->next_layer = 0;
        if (t->layer_ids[t->next_layer++] == layer)
            return t->next_layer - 1;
    }
    return -1;
}

/* ---- maps ---------------------------------------------------------------------------------- */

static bl_status check_map(const bl_tracer *t, const bl_trace_map *map) {
    if (map == NULL || map->size < sizeof *map || map->expert == NULL)
        return BL_ERR_USAGE;
    if (map->n_ranks < 1 || map->n_slots < 1 || map->n_slots > MAX_SLOTS ||
        map->n_ranks > map->n_slots)
        return BL_ERR_RANGE;
    int64_t sum = 0;
    for (int rank = 0; map->slots_of_rank != NULL && rank < map->n_ranks; rank++) {
        if (map->slots_of_rank[rank] < 0)
            return BL_ERR_RANGE;
        sum += map->slots_of_rank[rank];
    }
    if (map->slots_of_rank != NULL ? sum != map->n_slots : map->n_slots % map->n_ranks != 0)
        return BL_ERR_SHAPE;
    for (int slot = 0; slot < map->n_slots; slot++) {
        if (map->expert[slot] < -1 || map->expert[slot] >= t->n_experts)
            return BL_ERR_RANGE;
    }
    return BL_OK;
}

static void fill_map(const bl_trace_map *map, uint32_t bytes, unsigned char *out) {
    const bl_ring_entry entry = {.bytes = bytes,
                                 .kind = BL_RING_MAP,
                                 .epoch = map->epoch,
                                 .bad_id = -1,
                                 .layer = map->layer,
                                 .n_ids = (uint32_t)map->n_slots};
    uint32_t first = 0;
    memcpy(out, &entry, sizeof entry);
    uint32_t *at = (uint32_t *)(void *)(out + sizeof entry);
    *at++ = (uint32_t)map->n_ranks;
    *at++ = (uint32_t)map->n_slots;
    for (int rank = 0; rank < map->n_ranks; rank++) {
        *at++ = first;
        first += (uint32_t)(map->slots_of_rank != NULL ? map->slots_of_rank[rank]
                                                       : map->n_slots / map->n_ranks);
    }
    *at++ = first;
    memcpy(at, map->expert, (size_t)map->n_slots * sizeof *map->expert);
}

int bl_trace_set_map(bl_tracer *t, const bl_trace_map *map) {
    if (t == NULL)
        return BL_OK;
    if (t->in_step || t->cuda != NULL || t->owner != getpid())
        return BL_ERR_STATE;
    BL_TRY(check_map(t, map));
    const int l = bl_capture_layer_index(t, map->layer);
    if (l < 0)
        return BL_ERR_RANGE;
    if (t->maps[l].entry != NULL && map->epoch <= t->layers[l].epoch)
        return BL_ERR_STATE;
    const uint64_t bytes = bl_pack_round_up(
        sizeof(bl_ring_entry) + 4 * (3 + (uint64_t)map->n_ranks + (uint64_t)map->n_slots));
    if (bytes > t->ring.capacity / 2)
        return BL_ERR_RANGE;
    unsigned char *entry = calloc(1, bytes);
    if (entry == NULL)
        return BL_ERR_NOMEM;
    fill_map(map, (uint32_t)bytes, entry);
    free(t->maps[l].entry);
    t->maps[l] = (bl_capture_map){.entry = entry, .bytes = (uint32_t)bytes, .pending = true};
    t->maps_pending = true;
    t->layers[l].epoch = map->epoch;
    if (t->options & BL_TRACE_PHYSICAL)
        t->layers[l].n_ids = map->n_slots;
    return BL_OK;
}

/* Maps go into the ring before the step that needs them, as a publication of their own. False when
 * they do not all fit yet. */
static bool tell_maps(bl_tracer *t) {
    for (int l = 0; l < t->n_layers; l++) {
        bl_capture_map *map = &t->maps[l];
        if (!map->pending)
            continue;
        unsigned char *at = bl_pack_reserve(&t->ring.pack, map->bytes);
        if (at == NULL)
            return false;
        memcpy(at, map->entry, map->bytes);
        t->ring.pack.write += map->bytes;
        bl_pack_publish(&t->ring.pack);
        map->pending = false;
    }
    t->maps_pending = false;
    return true;
}

/* A recorder that has just come knows none of the maps. */
static void greet(bl_tracer *t) {
    const uint64_t attached = BL_PACK_LOAD(&t->ring.memory->attached);
    if (attached == t->attached)
        return;
    t->attached = attached;
    for (int l = 0; l < t->n_layers; l++) {
        t->maps[l].pending = t->maps[l].entry != NULL;
        t->maps_pending = t->maps_pending || t->maps[l].pending;
    }
}

/* ---- steps --------------------------------------------------------------------------------- */

/* The first step after a switch to counts makes the table; without memory ids are kept. */
static void prepare_counts(bl_tracer *t) {
    size_t stride = 0;
    for (int l = 0; l < t->n_layers; l++)
        stride = (size_t)t->layers[l].n_ids > stride ? (size_t)t->layers[l].n_ids : stride;
    if (t->counts == NULL || stride > t->counts_stride) {
        free(t->counts);
        t->counts = calloc((size_t)t->n_layers * stride, sizeof *t->counts);
        t->counts_stride = t->counts != NULL ? stride : 0;
    }
    t->counting = t->counts != NULL;
}

int bl_trace_step_begin(bl_tracer *t, uint64_t step, int phase, unsigned flags) {
    if (t == NULL)
        return BL_OK;
    if (t->in_step || t->cuda != NULL || t->owner != getpid())
        return BL_ERR_STATE;
    if (step == UINT64_MAX || phase < 0 || phase >= BL_N_PHASES || (flags & ~BL_STEP_DUMMY) != 0)
        return BL_ERR_RANGE;
    const uint64_t control = BL_PACK_LOAD(&t->ring.memory->control);
    t->in_step = true;
    t->step = step;
    t->phase = (uint8_t)phase;
    t->flags = flags & BL_STEP_DUMMY ? BL_ENTRY_DUMMY : 0;
    t->step_records = 0;
    t->next_layer = 0;
    t->overflowed = t->drops_told = t->counting = false;
    t->sampled_out = !bl_control_keeps(control, step);
    for (int l = 0; l < t->n_layers; l++) {
        t->layers[l].records = 0;
        t->layers[l].times = NULL;
    }
    if (t->sampled_out)
        return BL_OK;
    greet(t);
    if (t->maps_pending)
        t->overflowed = !tell_maps(t);
    bl_pack_drops *drops = &t->ring.memory->drops;
    if (!t->overflowed && BL_PACK_LOAD(&drops->n_steps) != 0) {
        t->drops_told = bl_pack_tell_drops(&t->ring.pack, drops, t->n_layers) != 0;
        t->overflowed = !t->drops_told;
    }
    if (bl_control_mode(control) == BL_MODE_COUNTS)
        prepare_counts(t);
    return BL_OK;
}

static void count_drop(bl_tracer *t) {
    bl_pack_drops *drops = &t->ring.memory->drops;
    bl_pack_rewind(&t->ring.pack);
    t->dropped += t->step_records;
    bl_pack_drop_begin(drops, t->step);
    for (int l = 0; l < t->n_layers; l++) {
        if (t->layers[l].records > 0)
            bl_pack_drop_layer(drops, l, t->layers[l].records);
    }
    bl_pack_drop_end(drops);
}

int bl_trace_step_drop(bl_tracer *t) {
    if (t == NULL)
        return BL_OK;
    if (!t->in_step)
        return BL_ERR_STATE;
    t->overflowed = true;
    return bl_trace_step_end(t);
}

int bl_trace_step_end(bl_tracer *t) {
    if (t == NULL)
        return BL_OK;
    if (!t->in_step)
        return BL_ERR_STATE;
    if (t->counting)
        bl_capture_write_counts(t);
    t->in_step = false;
    t->pushed += t->step_records;
    if (t->sampled_out)
        t->skipped += t->step_records;
    else if (t->overflowed)
        count_drop(t);
    else
        t->kept += t->step_records;
    bl_pack_counters *c = &t->ring.memory->counters;
    BL_PACK_STORE(&c->pushed, t->pushed);
    BL_PACK_STORE(&c->kept, t->kept);
    BL_PACK_STORE(&c->dropped, t->dropped);
    BL_PACK_STORE(&c->skipped, t->skipped);
    if (!t->sampled_out && !t->overflowed) {
        bl_pack_publish(&t->ring.pack);
        if (t->drops_told)
            bl_pack_forget_drops(&t->ring.memory->drops, t->n_layers);
    }
    return BL_OK;
}

int bl_trace_read_counters(const bl_tracer *t, bl_trace_counters *counters) {
    if (counters == NULL)
        return BL_ERR_USAGE;
    *counters = (bl_trace_counters){0};
    if (t == NULL)
        return BL_OK;
    const bl_pack_counters *c = &t->ring.memory->counters;
    counters->pushed = BL_PACK_LOAD(&c->pushed);
    counters->kept = BL_PACK_LOAD(&c->kept);
    counters->dropped = BL_PACK_LOAD(&c->dropped);
    counters->skipped = BL_PACK_LOAD(&c->skipped);
    return BL_OK;
}

void bl_trace_close(bl_tracer *t) {
    if (t == NULL)
        return;
    if (t->cuda != NULL && t->owner == getpid())
        bl_trace_cuda_close(t);
    if (t->in_step && t->owner == getpid()) { /* a step that never ended is not kept */
        t->counting = false;
        t->overflowed = true;
        bl_trace_step_end(t);
    }
    bl_ring_close(&t->ring);
    tracer_free(t);
}
