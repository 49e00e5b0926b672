#include "tracer/window.h"

#include "core/mem.h"
#include "core/progress.h"
#include "tracer/window_memory.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAX_BYTES ((size_t)1 << 33)
#define MAX_BUCKETS 16

const char *const bl_horizon_names[] = {"steps", "seconds", "minutes", NULL};

/* Buckets of a horizon, and how much of steps or seconds one holds. */
static const struct {
    int n_buckets;
    double width;
} HORIZON[BL_N_HORIZONS] = {{16, 4}, {10, 1}, {10, 30}};

/* What one bucket added to the sums of one phase: to be taken off when it leaves. */
typedef struct plane {
    uint64_t *count;  /* [n_layers][n_experts]; NULL: nothing yet */
    uint64_t *tokens; /* [n_layers] */
    bool used;
} plane;

typedef struct horizon {
    int64_t newest; /* index of the newest bucket; -1: none */
    plane planes[MAX_BUCKETS][BL_N_PHASES];
} horizon;

typedef struct layer_map {
    uint64_t epoch;
    int n_slots;
    int32_t *expert; /* owned; NULL: none */
} layer_map;

struct bl_window {
    bl_window_memory *memory;
    size_t bytes;
    bl_word *rows;
    bl_trace_info info;
    char name[BL_RING_NAME_MAX + 1];
    ino_t inode;
    horizon horizons[BL_N_HORIZONS];
    uint32_t run;
    bool seen;
    layer_map (*maps)[2]; /* [n_layers] newest first */
};

/* ---- life ---------------------------------------------------------------------------------- */

static void object_of(const char *name, char out[96]) {
    snprintf(out, 96, BL_WINDOW_PREFIX "%s", name);
}

static bl_status remove_leftover(const char *object, const char *name, bl_error *err) {
    bl_window_memory head;
    const int fd = shm_open(object, O_RDONLY | O_CLOEXEC, 0);
    if (fd < 0)
        return BL_OK;
    const ssize_t n = read(fd, &head, sizeof head);
    close(fd);
    if (n == (ssize_t)sizeof head && head.magic == BL_WINDOW_MAGIC &&
        bl_ring_who_is_alive(head.writer))
        return bl_fail(err, BL_ERR_STATE, "process %lu publishes live windows as \"%s\" already",
                       (unsigned long)(uint32_t)head.writer, name);
    shm_unlink(object);
    return BL_OK;
}

static bl_status map_memory(bl_window *w, const char *object, bl_error *err) {
    const int fd = shm_open(object, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    struct stat info;
    if (fd < 0)
        return bl_fail(err, BL_ERR_IO, "cannot publish live windows as \"%s\": %s", w->name,
                       strerror(errno));
    void *memory = MAP_FAILED;
    if (ftruncate(fd, (off_t)w->bytes) == 0 && fstat(fd, &info) == 0)
        memory = mmap(NULL, w->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    const int why = errno;
    close(fd);
    if (memory == MAP_FAILED) {
        shm_unlink(object);
        return bl_fail(err, BL_ERR_IO, "cannot map live windows of %zu bytes: %s", w->bytes,
                       strerror(why));
    }
    w->memory = memory;
    w->inode = info.st_ino;
    return BL_OK;
}

static void describe(bl_window *w) {
    bl_window_memory *m = w->memory;
    m->version = BL_WINDOW_VERSION;
    m->rows_offset = (uint32_t)((sizeof *m + 63) / 64 * 64);
    m->row_words = bl_window_row_words(w->info.n_experts);
    m->writer = bl_ring_who_am_i();
    memcpy(m->model, w->info.model, sizeof m->model);
    m->n_layers = w->info.n_layers;
    m->n_experts = w->info.n_experts;
    m->top_k = w->info.top_k;
    m->n_ranks = w->info.n_ranks;
    for (int l = 0; l < w->info.n_layers; l++)
        m->layers[l] = w->info.layers[l];
    m->magic = BL_WINDOW_MAGIC;
    w->rows = (bl_word *)(void *)((unsigned char *)m + m->rows_offset);
    BL_PACK_STORE(&m->updated_ns, bl_now_ns());
    BL_PACK_RELEASE(&m->ready, 1);
}

bl_status bl_window_create(const char *name, const bl_trace_info *info, bl_window **window_p,
                           bl_error *err) {
    char object[96];
    if (!bl_ring_name_is_valid(name))
        return bl_fail(err, BL_ERR_USAGE,
                       "a name of live windows is 1 to %d letters, digits, '.', '_' or '-'",
                       BL_RING_NAME_MAX);
    bl_window *w = NULL;
    BL_TRY(BL_CALLOC(w, 1, err));
    snprintf(w->name, sizeof w->name, "%s", name);
    object_of(name, object);
    for (int h = 0; h < BL_N_HORIZONS; h++)
        w->horizons[h].newest = -1;
    bl_status st = bl_trace_info_copy(info, &w->info, err);
    if (st == BL_OK)
        st = BL_CALLOC(w->maps, info->n_layers, err);
    w->bytes = (sizeof *w->memory + 63) / 64 * 64 +
               bl_window_n_rows(info->n_layers) * bl_window_row_words(info->n_experts) * 8;
    if (st == BL_OK && w->bytes > MAX_BYTES)
        st = bl_fail(err, BL_ERR_RANGE, "live windows of %d layers and %d experts are too large",
                     info->n_layers, info->n_experts);
    if (st == BL_OK)
        st = remove_leftover(object, name, err);
    if (st == BL_OK)
        st = map_memory(w, object, err);
    if (st < 0) {
        bl_window_close(w);
        return st;
    }
    describe(w);
    *window_p = w;
    return BL_OK;
}

static void unlink_own(const bl_window *w) {
    char object[96];
    struct stat info;
    object_of(w->name, object);
    const int fd = shm_open(object, O_RDONLY | O_CLOEXEC, 0);
    if (fd < 0)
        return;
    if (fstat(fd, &info) == 0 && info.st_ino == w->inode)
        shm_unlink(object);
    close(fd);
}

void bl_window_close(bl_window *w) {
    if (w == NULL)
        return;
    if (w->memory != NULL) {
        BL_PACK_RELEASE(&w->memory->closed, 1);
        unlink_own(w);
        munmap(w->memory, w->bytes);
    }
    for (int h = 0; h < BL_N_HORIZONS; h++) {
        for (int b = 0; b < MAX_BUCKETS; b++) {
            for (int phase = 0; phase < BL_N_PHASES; phase++) {
                free(w->horizons[h].planes[b][phase].count);
                free(w->horizons[h].planes[b][phase].tokens);
            }
        }
    }
    for (int l = 0; w->maps != NULL && l < w->info.n_layers; l++) {
        free(w->maps[l][0].expert);
        free(w->maps[l][1].expert);
    }
    free(w->maps);
    bl_trace_info_free(&w->info);
    free(w);
}

/* ---- rows ---------------------------------------------------------------------------------- */

static bl_word *row_of(bl_window *w, int h, int phase, int l) {
    return w->rows + bl_window_row(w->info.n_layers, h, phase, l) * w->memory->row_words;
}

/* Only this process writes. Release: the odd version before it is seen by who sees this. */
static void add_to(bl_word *word, uint64_t value) {
    BL_PACK_RELEASE(word, BL_PACK_LOAD(word) + value);
}

static void begin_row(bl_word *row) {
    BL_PACK_STORE(&row[BL_ROW_VERSION], BL_PACK_LOAD(&row[BL_ROW_VERSION]) + 1);
}

static void end_row(bl_word *row) {
    BL_PACK_RELEASE(&row[BL_ROW_VERSION], BL_PACK_LOAD(&row[BL_ROW_VERSION]) + 1);
}

/* A bucket leaves its horizon: take off what it had added. */
static void empty_bucket(bl_window *w, int h, int bucket) {
    const size_t n_experts = (size_t)w->info.n_experts;
    for (int phase = 0; phase < BL_N_PHASES; phase++) {
        plane *p = &w->horizons[h].planes[bucket][phase];
        if (!p->used)
            continue;
        p->used = false;
        for (int l = 0; l < w->info.n_layers; l++) {
            bl_word *row = row_of(w, h, phase, l);
            uint64_t *count = p->count + (size_t)l * n_experts;
            begin_row(row);
            for (size_t expert = 0; expert < n_experts; expert++)
                add_to(&row[BL_ROW_COUNT + expert], 0 - count[expert]);
            add_to(&row[BL_ROW_TOKENS], 0 - p->tokens[l]);
            end_row(row);
            memset(count, 0, n_experts * sizeof *count);
            p->tokens[l] = 0;
        }
    }
}

/* Move the horizon on so that `index` is in it. */
static void advance(bl_window *w, int h, int64_t index) {
    horizon *at = &w->horizons[h];
    const int n = HORIZON[h].n_buckets;
    if (index <= at->newest)
        return;
    const int64_t first =
        at->newest >= 0 && index - at->newest < n ? at->newest + 1 : index - n + 1;
    for (int64_t i = first > 0 ? first : 0; i <= index; i++)
        empty_bucket(w, h, (int)(i % n));
    at->newest = index;
}

static plane *plane_of(bl_window *w, int h, int64_t index, int phase) {
    const horizon *at = &w->horizons[h];
    const int n = HORIZON[h].n_buckets;
    if (index > at->newest || index <= at->newest - n)
        return NULL; /* too late for this horizon */
    plane *p = &w->horizons[h].planes[index % n][phase];
    if (p->count == NULL) {
        p->count = bl_calloc((size_t)w->info.n_layers * (size_t)w->info.n_experts, 8);
        p->tokens = bl_calloc((size_t)w->info.n_layers, 8);
        if (p->count == NULL ||
            p->tokens == NULL) { /* a window may lack a bucket; a recorder lives */
            free(p->count);
            free(p->tokens);
            p->count = p->tokens = NULL;
            return NULL;
        }
    }
    p->used = true;
    return p;
}

/* ---- records ------------------------------------------------------------------------------- */

bl_status bl_window_set_map(bl_window *w, const bl_layer_placement *map) {
    const int l = bl_trace_layer_index(&w->info, map->layer);
    const int n_slots = bl_layer_n_slots(map);
    if (l < 0 || (w->maps[l][0].expert != NULL && w->maps[l][0].epoch == map->epoch))
        return BL_OK;
    int32_t *expert = bl_calloc((size_t)n_slots, sizeof *expert);
    if (expert == NULL)
        return BL_ERR_NOMEM;
    memcpy(expert, map->expert, (size_t)n_slots * sizeof *expert);
    free(w->maps[l][1].expert);
    w->maps[l][1] = w->maps[l][0];
    w->maps[l][0] = (layer_map){.epoch = map->epoch, .n_slots = n_slots, .expert = expert};
    return BL_OK;
}

static const layer_map *map_for(const bl_window *w, int l, const bl_record *record) {
    for (int i = 0; i < 2; i++) {
        const layer_map *map = &w->maps[l][i];
        if (map->expert != NULL && map->epoch == record->epoch && map->n_slots == record->n_ids)
            return map;
    }
    return NULL;
}

static void add_id(bl_word *row, uint64_t *count, const layer_map *map, int64_t id, uint64_t n) {
    const int64_t expert = map != NULL ? map->expert[id] : id;
    if (expert < 0)
        return;
    add_to(&row[BL_ROW_COUNT + expert], n);
    count[expert] += n;
}

static void add_record(bl_window *w, int h, int64_t index, int l, const layer_map *map,
                       const bl_record *record) {
    plane *p = plane_of(w, h, index, (int)record->phase);
    if (p == NULL)
        return;
    bl_word *row = row_of(w, h, (int)record->phase, l);
    uint64_t *count = p->count + (size_t)l * (size_t)w->info.n_experts;
    const size_t slots = record->ids != NULL ? (size_t)record->n_tokens * (size_t)record->k : 0;
    begin_row(row);
    for (size_t slot = 0; slot < slots; slot++) {
        if (record->ids[slot] != BL_EMPTY_SLOT)
            add_id(row, count, map, record->ids[slot], 1);
    }
    for (int id = 0; record->counts != NULL && id < record->n_ids; id++)
        add_id(row, count, map, id, record->counts[id]);
    add_to(&row[BL_ROW_TOKENS], record->n_tokens);
    p->tokens[l] += record->n_tokens;
    end_row(row);
}

/* A restarted service counts its steps from the beginning. */
static void forget_steps(bl_window *w) {
    for (int b = 0; b < HORIZON[BL_HORIZON_STEPS].n_buckets; b++)
        empty_bucket(w, BL_HORIZON_STEPS, b);
    w->horizons[BL_HORIZON_STEPS].newest = -1;
    BL_PACK_STORE(&w->memory->last_step, 0);
}

void bl_window_add(bl_window *w, const bl_record *record, double now_s) {
    const int l = bl_trace_layer_index(&w->info, record->layer);
    if (l < 0 || (record->flags & BL_RECORD_DUMMY) || (unsigned)record->phase >= BL_N_PHASES)
        return;
    const layer_map *map = NULL;
    if (record->flags & BL_RECORD_PHYSICAL) {
        map = map_for(w, l, record);
        if (map == NULL) {
            add_to(&w->memory->unmapped, 1);
            return;
        }
    }
    if (w->seen && record->run != w->run && record->run > w->run)
        forget_steps(w);
    w->run = record->run > w->run ? record->run : w->run;
    w->seen = true;
    bl_window_tick(w, now_s);
    const int64_t steps = (int64_t)(record->step / (uint64_t)HORIZON[BL_HORIZON_STEPS].width);
    advance(w, BL_HORIZON_STEPS, steps);
    if (record->step > BL_PACK_LOAD(&w->memory->last_step))
        BL_PACK_STORE(&w->memory->last_step, record->step);
    add_record(w, BL_HORIZON_STEPS, steps, l, map, record);
    for (int h = BL_HORIZON_SECONDS; h <= BL_HORIZON_MINUTES; h++)
        add_record(w, h, w->horizons[h].newest, l, map, record);
}

void bl_window_tick(bl_window *w, double now_s) {
    for (int h = BL_HORIZON_SECONDS; h <= BL_HORIZON_MINUTES; h++)
        advance(w, h, (int64_t)(now_s / HORIZON[h].width));
    BL_PACK_STORE(&w->memory->updated_ns, bl_now_ns());
}
