/*
 * recorder.c: the rings' side: attaching, draining in whole steps, handing chunks over, counting.
 * The files' side is recorder_lane.c.
 */
#include "tracer/recorder.h"

#include "core/mem.h"
#include "core/progress.h"
#include "tracer/blt_format.h"
#include "tracer/recorder_entry.h"
#include "tracer/recorder_lane.h"
#include "tracer/ring.h"
#include "tracer/window.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

_Static_assert(BL_RING_MAX_RANKS == BL_MAX_RANKS, "a ring has as many ranks as a trace may");

#define COMMIT_EVERY_S 1.0
#define LOOK_EVERY_S 0.1 /* at whether processes are alive */
#define COMMIT_SHARE 4   /* of a ring: so much is read ahead at most, but for one step */

/* What has become of a ring's records: read so far, and as far as files hold them. */
typedef struct tally {
    uint64_t written, rejected, dropped, ids;
} tally;

typedef struct source {
    bl_ring ring;
    int rank;
    uint32_t run;
    int n_layers;
    int32_t *layers; /* [n_layers] decoder-layer ids; owned */
    size_t lane;
    tally now, safe;
    bl_ring_ledger before; /* by consumers before us */
    uint64_t viewed;       /* ring position up to which live windows have it */
    uint64_t drops_until;  /* last step of the drops told last, plus 1 */
    bool broken;           /* it held nonsense: nothing more is read from it */
    bool over;             /* nothing more will be published */
    bool ended;            /* over, drained, its last drops told */
} source;

struct bl_recorder {
    bl_recorder_options options;
    char *directory; /* as an absolute path; owned */
    bool in_parts, begun;
    bool has_earlier; /* the directory held files as we came */
    bl_lane *lanes;   /* [n_lanes] */
    size_t n_lanes, lanes_capacity;
    source *sources; /* [n] */
    size_t n, capacity;
    double last_s, looked_s;
    bl_recorder_totals gone; /* of sources that ended and made way for others */
    char why_rejected[256];
    bl_entry_scratch scratch;
    bl_window *window;
};

static double now_s(bl_recorder *r) {
    const double now =
        r->options.clock != NULL ? r->options.clock(r->options.clock_user) : bl_now_s();
    if (now > r->last_s)
        r->last_s = now;
    return r->last_s;
}

static void recorder_free(bl_recorder *r) {
    for (size_t i = 0; i < r->n; i++) {
        bl_ring_detach(&r->sources[i].ring, r->sources[i].ended);
        free(r->sources[i].layers);
    }
    for (size_t i = 0; i < r->n_lanes; i++)
        bl_lane_free(&r->lanes[i]);
    bl_window_close(r->window);
    bl_entry_scratch_free(&r->scratch);
    free(r->sources);
    free(r->lanes);
    free(r->directory);
    free(r);
}

/* ---- opening ------------------------------------------------------------------------------- */

/* As an absolute path: rings remember it for our successor. */
static bl_status set_directory(bl_recorder *r, const char *directory, bl_error *err) {
    char here[BL_RING_PATH_MAX] = "";
    if (directory[0] != '/' && getcwd(here, sizeof here) == NULL)
        return bl_fail(err, BL_ERR_IO, "cannot tell the working directory: %s", strerror(errno));
    const size_t room = strlen(here) + strlen(directory) + 2;
    BL_TRY(BL_CALLOC(r->directory, room, err));
    snprintf(r->directory, room, "%s%s%s", here, here[0] != '\0' ? "/" : "", directory);
    for (size_t n = strlen(r->directory); n > 1 && r->directory[n - 1] == '/'; n--)
        r->directory[n - 1] = '\0';
    r->options.directory = r->directory;
    if (!bl_lane_can_name(r->directory))
        return bl_fail_at(err, BL_ERR_RANGE, bl_at(directory), "the path is too long");
    return BL_OK;
}

bl_status bl_recorder_open(const bl_recorder_options *options, bl_recorder **recorder_p,
                           bl_error *err) {
    if ((options->path == NULL) == (options->directory == NULL))
        return bl_fail(err, BL_ERR_USAGE, "a recorder writes one file or into a directory");
    bl_recorder *r = NULL;
    BL_TRY(BL_CALLOC(r, 1, err));
    r->options = *options;
    r->in_parts = options->directory != NULL;
    if (r->in_parts) {
        const bl_status st = set_directory(r, options->directory, err);
        if (st < 0) {
            recorder_free(r);
            return st;
        }
        r->has_earlier = bl_lane_has_files(r->directory);
    }
    *recorder_p = r;
    return BL_OK;
}

bool bl_recorder_has_earlier(const bl_recorder *r) {
    return r->has_earlier && !r->options.append && r->n_lanes == 0;
}

bl_status bl_recorder_create(const char *path, bl_recorder **recorder_p, bl_error *err) {
    bl_recorder_options options = BL_RECORDER_OPTIONS_INIT;
    options.path = path;
    return bl_recorder_open(&options, recorder_p, err);
}

/* ---- attaching ----------------------------------------------------------------------------- */

static bl_status info_of(const bl_ring_shape *shape, bl_trace_info *info, bl_error *err) {
    BL_TRY(bl_trace_info_create(shape->model, shape->layers, shape->n_layers, shape->n_experts,
                                shape->top_k, "record", info, err));
    info->domain = shape->domain;
    const bl_status st = bl_trace_info_set_ranks(info, shape->n_ranks, &shape->rank, 1, err);
    if (st < 0)
        bl_trace_info_free(info);
    return st;
}

/* All rings are of one model and one set of ranks. */
static bl_status check_model(const bl_recorder *r, const bl_trace_info *info, const char *ring,
                             bl_error *err) {
    if (r->n_lanes == 0)
        return BL_OK;
    const bl_trace_info *first = &r->lanes[0].info;
    BL_TRY(bl_trace_info_same_model(first, info, ring, err));
    if (first->n_ranks != info->n_ranks)
        return bl_fail(err, BL_ERR_MODEL, "ring \"%s\" is one of %d ranks, the others of %d", ring,
                       info->n_ranks, first->n_ranks);
    return BL_OK;
}

/* The place of a source: a new one, or that of the same rank's ended one. */
static bl_status find_place(bl_recorder *r, int rank, const char *ring, size_t *at, bl_error *err) {
    for (size_t i = 0; i < r->n; i++) {
        if (r->sources[i].rank != rank)
            continue;
        *at = i;
        if (r->in_parts && r->sources[i].ended)
            return BL_OK;
        return bl_fail(err, BL_ERR_STATE, "rings \"%s\" and \"%s\" are both of rank %d",
                       r->sources[i].ring.name, ring, rank);
    }
    *at = r->n;
    void *sources = r->sources;
    const bl_status st = bl_grow(&sources, &r->capacity, r->n + 1, sizeof *r->sources, err);
    r->sources = sources;
    return st;
}

/* One file of several ranks: its header names them all. */
static bl_status join_lane(bl_lane *lane, const bl_trace_info *info, bl_error *err) {
    const int n = lane->info.n_present, rank = info->present[0];
    int *ranks = NULL, at = 0;
    BL_TRY(BL_CALLOC(ranks, n + 1, err));
    for (; at < n && lane->info.present[at] < rank; at++)
        ranks[at] = lane->info.present[at];
    ranks[at] = rank;
    for (; at < n; at++)
        ranks[at + 1] = lane->info.present[at];
    const bl_status st = bl_trace_info_set_ranks(&lane->info, info->n_ranks, ranks, n + 1, err);
    if (lane->info.domain != info->domain)
        lane->info.domain = -1;
    free(ranks);
    return st;
}

static bl_status find_lane(bl_recorder *r, bl_trace_info *info, size_t *at, bl_error *err) {
    for (*at = 0; *at < r->n_lanes; ++*at) {
        bl_lane *lane = &r->lanes[*at];
        if (r->in_parts && lane->rank != info->present[0])
            continue;
        return r->in_parts ? BL_OK : join_lane(lane, info, err);
    }
    void *lanes = r->lanes;
    const bl_status st = bl_grow(&lanes, &r->lanes_capacity, r->n_lanes + 1, sizeof *r->lanes, err);
    r->lanes = lanes;
    BL_TRY(st);
    BL_TRY(bl_lane_create(&r->options, info, r->in_parts, &r->lanes[r->n_lanes], err));
    r->n_lanes++;
    return BL_OK;
}

/* Did the consumer before us write into our directory? */
static bool continues(const bl_recorder *r, const bl_ring *ring) {
    const char *file = ring->memory->file;
    const size_t n = strlen(r->options.directory);
    return memchr(file, '\0', BL_RING_PATH_MAX) != NULL &&
           strncmp(file, r->options.directory, n) == 0 && file[n] == '/';
}

/* A consumer that was killed while it wrote a chunk: was it the chunk or not? */
static void settle(bl_ring *ring) {
    char file[BL_RING_PATH_MAX];
    uint64_t from;
    if (bl_ring_commit_left(ring, file, &from))
        bl_ring_settle(ring, bl_lane_was_written(file, from));
    else
        bl_ring_settle(ring, false);
}

/* A restarted engine begins with its first step again: its run differs from those before. What our
 * predecessor decided holds. */
static bl_status give_run(bl_lane *lane, const bl_ring_shape *shape, const bl_ring *ring,
                          uint32_t *run, bl_error *err) {
    bl_ring_memory *m = ring->memory;
    if (m->recorded_run > 0) {
        *run = m->recorded_run - 1;
        lane->last_run = (int64_t)*run > lane->last_run ? (int64_t)*run : lane->last_run;
        return BL_OK;
    }
    BL_TRY(bl_lane_give_run(lane, shape->run, run, err));
    m->recorded_run = *run + 1;
    return BL_OK;
}

static bl_status adopt(bl_recorder *r, source *src, const bl_ring_shape *shape, size_t *place,
                       bl_error *err) {
    bl_trace_info info = {0};
    size_t lane = 0;
    BL_TRY(info_of(shape, &info, err));
    bl_status st = check_model(r, &info, src->ring.name, err);
    if (st == BL_OK)
        st = find_place(r, shape->rank, src->ring.name, place, err);
    const bool goes_on = r->in_parts && continues(r, &src->ring);
    if (st == BL_OK && r->has_earlier && r->n_lanes == 0 && !goes_on && !r->options.append)
        st = bl_fail_at(err, BL_ERR_STATE, bl_at(r->options.directory),
                        "an earlier recording is there; name another directory, move it away or "
                        "--append to it");
    if (st == BL_OK && r->has_earlier && r->n_lanes == 0)
        st = bl_lane_check_earlier(r->directory, &info, err);
    if (st == BL_OK)
        st = BL_CALLOC(src->layers, shape->n_layers, err);
    if (st == BL_OK)
        st = find_lane(r, &info, &lane, err);
    bl_trace_info_free(&info);
    BL_TRY(st);
    settle(&src->ring);
    if (r->in_parts) /* before the first file is made: from now on our successor may go on here */
        snprintf(src->ring.memory->file, BL_RING_PATH_MAX, "%s/", r->directory);
    src->rank = shape->rank;
    if (r->in_parts)
        BL_TRY(give_run(&r->lanes[lane], shape, &src->ring, &src->run, err));
    else
        src->run = shape->run;
    src->n_layers = shape->n_layers;
    memcpy(src->layers, shape->layers, (size_t)shape->n_layers * sizeof *src->layers);
    src->lane = lane;
    src->before = src->ring.memory->ledger;
    return BL_OK;
}

/* What the source that makes way has counted. */
static void retire(bl_recorder *r, source *old) {
    bl_recorder_totals *gone = &r->gone;
    const bl_pack_counters *c = &old->ring.memory->counters;
    gone->pushed += BL_PACK_LOAD(&c->pushed);
    gone->skipped += BL_PACK_LOAD(&c->skipped);
    gone->dropped += old->now.dropped;
    gone->earlier += old->before.records + old->before.dropped;
    gone->written += old->now.written;
    gone->rejected += old->now.rejected;
    gone->ids += old->now.ids;
    bl_ring_detach(&old->ring, true);
    free(old->layers);
}

static bl_status attach(bl_recorder *r, const char *ring, bl_error *err) {
    bl_ring_shape *shape = NULL;
    size_t place = 0;
    source src = {0};
    BL_TRY(BL_CALLOC(shape, 1, err));
    bl_status st = bl_ring_attach(ring, &src.ring, shape, err);
    if (st == BL_OK) {
        st = adopt(r, &src, shape, &place, err);
        if (st < 0) {
            free(src.layers);
            bl_ring_detach(&src.ring, false);
        }
    }
    free(shape);
    BL_TRY(st);
    if (place < r->n) {
        retire(r, &r->sources[place]);
        st = bl_lane_restart(&r->lanes[src.lane], err);
    } else {
        r->n++;
    }
    r->sources[place] = src;
    if (r->options.set_control)
        atomic_store(&src.ring.memory->control, r->options.control);
    return st;
}

/* What an earlier engine of this name left comes first. */
bl_status bl_recorder_attach(bl_recorder *r, const char *ring, bl_error *err) {
    char gone[BL_RING_NAME_MAX + 1];
    if (r->begun && !r->in_parts)
        return bl_fail(err, BL_ERR_STATE, "rings are attached before recording begins");
    for (int slot = 0; r->in_parts && slot < BL_RING_GONE; slot++) {
        if (bl_ring_gone(ring, slot, gone) && attach(r, gone, NULL) == BL_OK)
            return BL_OK;
    }
    return attach(r, ring, err);
}

bool bl_recorder_has(const bl_recorder *r, const char *ring) {
    for (size_t i = 0; i < r->n; i++) {
        if ((!r->sources[i].ended || r->sources[i].broken) &&
            strcmp(r->sources[i].ring.name, ring) == 0)
            return true;
    }
    return false;
}

/* ---- handing over -------------------------------------------------------------------------- */

static void read_again(bl_recorder *r, size_t lane) {
    for (size_t i = 0; i < r->n; i++) {
        source *src = &r->sources[i];
        if (src->lane != lane || src->ended)
            continue;
        bl_ring_unread(&src->ring);
        src->now = src->safe;
    }
}

/* Write what the lane has buffered, and give the rings their bytes back. */
static bl_status commit(bl_recorder *r, size_t at, bl_error *err) {
    bl_lane *lane = &r->lanes[at];
    if (lane->writer == NULL)
        return BL_OK;
    const uint64_t from = bl_blt_bytes(lane->writer);
    for (size_t i = 0; i < r->n; i++) {
        source *src = &r->sources[i];
        const bl_ring_ledger ledger = {.records = src->before.records + src->now.written +
                                                  src->now.rejected,
                                       .dropped = src->before.dropped + src->now.dropped};
        if (src->lane == at && !src->ended)
            bl_ring_begin_commit(&src->ring, lane->path, from, &ledger);
    }
    bl_error why = BL_ERROR_INIT;
    const bl_status st = bl_lane_flush(lane, now_s(r), &why);
    if (st < 0) {
        for (size_t i = 0; i < r->n; i++) {
            if (r->sources[i].lane == at && !r->sources[i].ended)
                bl_ring_settle(&r->sources[i].ring, false);
        }
        read_again(r, at);
        return lane->held ? BL_OK : bl_fail_at(err, st, bl_at(why.file), "%s", why.text);
    }
    for (size_t i = 0; i < r->n; i++) {
        source *src = &r->sources[i];
        if (src->lane != at || src->ended)
            continue;
        bl_ring_end_commit(&src->ring);
        src->safe = src->now;
    }
    BL_TRY(bl_lane_rotate(lane, now_s(r), err));
    bl_lane_has_room(lane, now_s(r)); /* if not, it is held */
    return BL_OK;
}

/* ---- entries to records --------------------------------------------------------------------- */

static void reject(bl_recorder *r, source *src, const bl_error *why) {
    src->now.rejected++;
    if (r->why_rejected[0] == '\0')
        bl_error_format(why, r->why_rejected, sizeof r->why_rejected);
}

/* A record the writer refuses (ids out of range or twice) is counted and named, and the recording
 * goes on: the step's ledger then shows the layer as unusable. */
static bl_status write_record(bl_recorder *r, source *src, const bl_ring_entry *entry,
                              const unsigned char *body, bl_error *err) {
    bl_error why = BL_ERROR_INIT;
    bl_record record;
    bl_lane *lane = &r->lanes[src->lane];
    if (entry->bad_id >= 0) {
        bl_fail_at(&why, BL_ERR_RANGE, bl_at_layer(NULL, entry->layer),
                   "step %llu, rank %d: id %lld is not a %s below %u",
                   (unsigned long long)entry->step, src->rank, (long long)entry->bad_id,
                   entry->flags & BL_ENTRY_PHYSICAL ? "slot" : "logical expert", entry->n_ids);
        reject(r, src, &why);
        return BL_OK;
    }
    BL_TRY(bl_entry_to_record(&r->scratch, entry, body, &record, err));
    record.run = src->run;
    record.rank = src->rank;
    const bl_status st = bl_blt_write(lane->writer, &record, &why);
    if (st == BL_ERR_RANGE) {
        reject(r, src, &why);
        return BL_OK;
    }
    if (st < 0)
        return bl_fail(err, st, "%s", why.text);
    src->now.written++;
    src->now.ids += record.n_tokens * (uint64_t)record.k;
    if (r->window != NULL && src->ring.read >= src->viewed) { /* not when it is read again */
        bl_window_add(r->window, &record, r->last_s);
        src->viewed = src->ring.read + entry->bytes;
    }
    return BL_OK;
}

/* The place of drops: one record without tokens for each layer that lost some. */
static bl_status write_drops(bl_recorder *r, source *src, uint64_t last_step,
                             const uint64_t *layers, bl_error *err) {
    bl_lane *lane = &r->lanes[src->lane];
    src->drops_until = last_step + 1;
    for (int l = 0; l < src->n_layers; l++) {
        const bl_record record = {.run = src->run,
                                  .step = last_step,
                                  .layer = src->layers[l],
                                  .rank = src->rank,
                                  .phase = BL_PHASE_UNKNOWN,
                                  .n_ids = lane->info.n_experts,
                                  .k = lane->info.top_k,
                                  .dropped = layers[l]};
        if (layers[l] == 0)
            continue;
        BL_TRY(bl_blt_write(lane->writer, &record, err));
        src->now.dropped += layers[l];
    }
    return BL_OK;
}

static bl_status write_map(bl_recorder *r, source *src, const bl_ring_entry *entry,
                           const unsigned char *body, bl_error *err) {
    bl_layer_placement map;
    bl_lane *lane = &r->lanes[src->lane];
    BL_TRY(bl_entry_to_map(&r->scratch, entry, body, lane->info.n_experts, &map, err));
    if (r->window != NULL)
        bl_window_set_map(r->window, &map);
    BL_TRY(commit(r, src->lane, err)); /* a map is a chunk of its own: what came before is safe */
    return lane->writer != NULL ? bl_lane_write_map(lane, &map, err) : BL_OK;
}

static bl_status write_entry(bl_recorder *r, source *src, const bl_ring_entry *entry,
                             const unsigned char *body, bl_error *err) {
    const uint64_t *layers;
    switch (entry->kind) {
    case BL_RING_MAP:
        return write_map(r, src, entry, body, err);
    case BL_RING_DROPS:
        BL_TRY(bl_entry_to_drops(entry, body, src->n_layers, &layers, err));
        return write_drops(r, src, entry->step, layers, err);
    default:
        return write_record(r, src, entry, body, err);
    }
}

static bool is_due(const bl_recorder *r, const source *src) {
    const bl_lane *lane = &r->lanes[src->lane];
    return bl_blt_buffered(lane->writer) >= BL_BLT_RAW_TARGET * 3 / 4 ||
           bl_ring_unreleased(&src->ring) > src->ring.capacity / COMMIT_SHARE;
}

static bl_status drain(bl_recorder *r, source *src, uint64_t *n_records, bl_error *err) {
    const bl_lane *lane = &r->lanes[src->lane];
    uint64_t step = UINT64_MAX;
    for (;;) {
        bl_ring_entry entry;
        const unsigned char *body;
        BL_TRY(bl_ring_peek(&src->ring, &entry, &body, err));
        if (body == NULL)
            return BL_OK;
        if (entry.step != step && is_due(r, src))
            BL_TRY(commit(r, src->lane, err));
        if (lane->held)
            return BL_OK;
        step = entry.step;
        const bl_status st = write_entry(r, src, &entry, body, err);
        bl_error_set_file(err, lane->path);
        BL_TRY(st);
        if (lane->held)
            return BL_OK;
        bl_ring_pop(&src->ring, &entry);
        *n_records += entry.kind != BL_RING_MAP && entry.kind != BL_RING_DROPS;
    }
}

/* ---- the end of a source -------------------------------------------------------------------- */

static bool is_drained(const source *src) {
    return atomic_load_explicit(&src->ring.memory->head, memory_order_acquire) == src->ring.read;
}

/* The producer is over and everything it published is read: what it dropped since, and what it was
 * publishing as it died. */
static bl_status end_source(bl_recorder *r, source *src, bl_error *err) {
    uint64_t first, last, *layers = NULL;
    const bl_pack_counters *c = &src->ring.memory->counters;
    bl_lane *lane = &r->lanes[src->lane];
    BL_TRY(BL_CALLOC(layers, src->n_layers, err));
    bl_status st = BL_OK;
    const uint64_t told = src->before.dropped + src->now.dropped;
    if (BL_PACK_LOAD(&c->dropped) > told && bl_ring_last_drops(&src->ring, &first, &last, layers) &&
        last + 1 > src->drops_until)
        st = write_drops(r, src, last, layers, err);
    free(layers);
    BL_TRY(st);
    const uint64_t accounted = src->before.records + src->now.written + src->now.rejected +
                               src->before.dropped + src->now.dropped + BL_PACK_LOAD(&c->skipped);
    const uint64_t pushed = BL_PACK_LOAD(&c->pushed);
    if (pushed > accounted) {
        bl_blt_add_dropped(lane->writer, pushed - accounted);
        src->now.dropped += pushed - accounted;
    }
    BL_TRY(commit(r, src->lane, err));
    src->ended = !lane->held;
    return BL_OK;
}

/* One ring that holds nonsense does not end the recording of the others. */
static bl_status give_up(bl_recorder *r, source *src, const bl_error *why, bl_error *err) {
    if (!r->in_parts)
        return bl_fail_at(err, why->code, bl_at(why->file), "%s", why->text);
    snprintf(r->why_rejected, sizeof r->why_rejected, "%.180s; nothing more is read from it",
             why->text);
    src->now.rejected++;
    src->broken = true;
    BL_TRY(commit(r, src->lane, err));
    src->ended = true;
    return BL_OK;
}

static void look_for_deaths(bl_recorder *r, double now) {
    if (r->looked_s > 0 && now - r->looked_s < LOOK_EVERY_S)
        return;
    r->looked_s = now;
    for (size_t i = 0; i < r->n; i++)
        r->sources[i].over = r->sources[i].over || bl_ring_is_over(&r->sources[i].ring);
}

/* ---- polling -------------------------------------------------------------------------------- */

static bl_status begin(bl_recorder *r, bl_error *err) {
    if (r->n == 0)
        return bl_fail(err, BL_ERR_STATE, "no ring to record from");
    if (r->options.live != NULL)
        BL_TRY(bl_window_create(r->options.live, &r->lanes[0].info, &r->window, err));
    r->begun = true;
    return BL_OK;
}

bl_status bl_recorder_poll(bl_recorder *r, uint64_t *n_records, bl_error *err) {
    *n_records = 0;
    if (!r->begun)
        BL_TRY(begin(r, err));
    const double now = now_s(r);
    look_for_deaths(r, now);
    for (size_t i = 0; i < r->n_lanes; i++)
        BL_TRY(bl_lane_open(&r->lanes[i], now, err));
    for (size_t i = 0; i < r->n; i++) {
        source *src = &r->sources[i];
        const bool over = src->over || bl_ring_is_closed(&src->ring); /* before it is drained */
        if (src->ended || r->lanes[src->lane].held)
            continue;
        bl_error why = BL_ERROR_INIT;
        const bl_status st = drain(r, src, n_records, &why);
        if (st == BL_ERR_PARSE)
            BL_TRY(give_up(r, src, &why, err));
        else if (st < 0)
            return bl_fail_at(err, st, bl_at(why.file), "%s", why.text);
        if (over && !src->ended && is_drained(src) && !r->lanes[src->lane].held)
            BL_TRY(end_source(r, src, err));
    }
    for (size_t i = 0; i < r->n_lanes; i++) {
        if (now - r->lanes[i].committed_s >= COMMIT_EVERY_S)
            BL_TRY(commit(r, i, err));
    }
    for (size_t i = 0; i < r->n; i++) { /* small rings are not kept waiting for a second */
        source *src = &r->sources[i];
        if (!src->ended && !r->lanes[src->lane].held && is_due(r, src))
            BL_TRY(commit(r, src->lane, err));
    }
    if (r->window != NULL)
        bl_window_tick(r->window, now);
    return BL_OK;
}

bool bl_recorder_is_over(const bl_recorder *r) {
    for (size_t i = 0; i < r->n; i++) {
        const source *src = &r->sources[i];
        const bool over = src->over || bl_ring_is_closed(&src->ring);
        if (!src->ended && !(over && is_drained(src)))
            return false;
    }
    return true;
}

bool bl_recorder_is_stuck(const bl_recorder *r) {
    bool held = false;
    for (size_t i = 0; i < r->n; i++) {
        const source *src = &r->sources[i];
        if (src->ended)
            continue;
        if (!r->lanes[src->lane].held || !(src->over || bl_ring_is_closed(&src->ring)))
            return false;
        held = true;
    }
    return held;
}

void bl_recorder_read_totals(const bl_recorder *r, bl_recorder_totals *totals) {
    bl_recorder_totals t = r->gone;
    memcpy(t.why_rejected, r->why_rejected, sizeof t.why_rejected);
    for (size_t i = 0; i < r->n; i++) {
        const source *src = &r->sources[i];
        const bl_pack_counters *c = &src->ring.memory->counters;
        const uint64_t dropped = BL_PACK_LOAD(&c->dropped);
        const uint64_t told = src->before.dropped + src->now.dropped;
        const double waits = (double)bl_ring_waiting(&src->ring) / (double)src->ring.capacity;
        t.pushed += BL_PACK_LOAD(&c->pushed);
        t.skipped += BL_PACK_LOAD(&c->skipped);
        t.dropped +=
            src->ended || told > dropped ? src->now.dropped : dropped - src->before.dropped;
        t.earlier += src->before.records + src->before.dropped;
        t.written += src->now.written;
        t.rejected += src->now.rejected;
        t.ids += src->now.ids;
        t.n_rings++;
        t.n_open += !src->ended;
        t.fullest = waits > t.fullest ? waits : t.fullest;
    }
    for (size_t i = 0; i < r->n_lanes; i++) {
        const bl_lane *lane = &r->lanes[i];
        if (lane->why[0] != '\0' && (lane->held || t.why_held[0] == '\0'))
            memcpy(t.why_held, lane->why, sizeof t.why_held);
        t.n_held += lane->held;
        t.removed += lane->n_removed;
        t.bytes += lane->bytes + (lane->writer != NULL ? bl_blt_bytes(lane->writer) : 0);
        t.files += lane->n_parts + (lane->writer != NULL);
    }
    *totals = t;
}

bl_status bl_recorder_finish(bl_recorder *r, bl_recorder_totals *totals, bl_error *err) {
    uint64_t n_records;
    r->looked_s = 0;
    bl_status st = bl_recorder_poll(r, &n_records, err);
    for (size_t i = 0; st == BL_OK && i < r->n_lanes; i++)
        st = commit(r, i, err);
    if (st < 0) {
        bl_recorder_abandon(r);
        return st;
    }
    if (totals != NULL)
        bl_recorder_read_totals(r, totals);
    for (size_t i = 0; i < r->n_lanes; i++) {
        bl_status one = r->lanes[i].held ? bl_fail(err, BL_ERR_IO, "%s", r->lanes[i].why)
                                         : bl_lane_close(&r->lanes[i], err);
        if (st == BL_OK)
            st = one;
    }
    recorder_free(r);
    return st;
}

void bl_recorder_abandon(bl_recorder *r) {
    if (r != NULL)
        recorder_free(r);
}
