#include "tracer/ring.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define MAGIC UINT64_C(0x32474e4952544c42) /* "BLTRING2" */
#define VERSION 2u
#define MIN_BYTES ((size_t)4096)
#define MAX_BYTES ((size_t)1 << 36)

_Static_assert(ATOMIC_LLONG_LOCK_FREE == 2, "the ring needs lock-free 64-bit atomics");
_Static_assert(sizeof(bl_ring_entry) == 64, "entries keep their alignment");

/* ---- who is alive -------------------------------------------------------------------------- */

/* Start time of a process in clock ticks since boot, field 22 of /proc/PID/stat; 0 when it cannot be
 * told. A zombie is dead: *dead. */
static uint32_t start_time(pid_t pid, bool *dead) {
    char path[32], text[1024];
    *dead = false;
    snprintf(path, sizeof path, "/proc/%ld/stat", (long)pid);
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    const ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    if (n <= 0)
        return 0;
    text[n] = '\0';
    const char *at = strrchr(text, ')'); /* the name before it may hold anything */
    if (at == NULL || at[1] != ' ')
        return 0;
    *dead = at[2] == 'Z' || at[2] == 'X';
    for (int field = 2; field < 22 && at != NULL; field++)
        at = strchr(at + 1, ' ');
    return at != NULL ? (uint32_t)strtoull(at, NULL, 10) : 0;
}

uint64_t bl_ring_who_am_i(void) {
    bool dead;
    const pid_t pid = getpid();
    return (uint64_t)start_time(pid, &dead) << 32 | (uint32_t)pid;
}

bool bl_ring_who_is_alive(uint64_t who) {
    const pid_t pid = (pid_t)(uint32_t)who;
    const uint32_t started = (uint32_t)(who >> 32);
    if (pid <= 0 || (kill(pid, 0) != 0 && errno != EPERM))
        return false;
    bool dead;
    const uint32_t now = start_time(pid, &dead);
    return !dead && (now == 0 || started == 0 || now == started);
}

/* ---- life ---------------------------------------------------------------------------------- */

bool bl_ring_name_is_valid(const char *name) {
    const size_t n = strlen(name);
    return n >= 1 && n <= BL_RING_NAME_MAX &&
           strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") == n;
}

/* Bytes of the UTF-8 sequence at `at`, 0 when there is none. Overlong forms, surrogates and what is behind
 * U+10FFFF do not count. */
static size_t utf8_bytes(const unsigned char *at) {
    const unsigned lead = at[0];
    const size_t n = lead < 0x80   ? 1
                     : lead < 0xc2 ? 0
                     : lead < 0xe0 ? 2
                     : lead < 0xf0 ? 3
                     : lead < 0xf5 ? 4
                                   : 0;
    for (size_t i = 1; i < n; i++) {
        if ((at[i] & 0xc0u) != 0x80)
            return 0;
    }
    if ((lead == 0xe0 && at[1] < 0xa0) || (lead == 0xed && at[1] > 0x9f) ||
        (lead == 0xf0 && at[1] < 0x90) || (lead == 0xf4 && at[1] > 0x8f))
        return 0;
    return n;
}

bool bl_ring_model_is_valid(const char *model) {
    const unsigned char *at = (const unsigned char *)model;
    while (*at != '\0') {
        const size_t n = utf8_bytes(at);
        if (n == 0 || *at < 0x20 || *at == 0x7f)
            return false;
        at += n;
    }
    return at - (const unsigned char *)model < BL_RING_MODEL_BYTES;
}

static bl_status object_name(const char *name, char out[96], bl_error *err) {
    if (!bl_ring_name_is_valid(name))
        return bl_fail(err, BL_ERR_USAGE,
                       "a ring's name is 1 to %d letters, digits, '.', '_' or '-', not \"%.80s\"",
                       BL_RING_NAME_MAX, name);
    snprintf(out, 96, BL_RING_PREFIX "%s", name);
    return BL_OK;
}

static bl_status map(int fd, size_t bytes, bl_ring *out, bl_error *err) {
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED)
        return bl_fail(err, BL_ERR_IO, "cannot map the ring \"%s\": %s", out->name,
                       strerror(errno));
    struct stat info;
    if (fstat(fd, &info) == 0) {
        out->device = info.st_dev;
        out->inode = info.st_ino;
    }
    out->memory = memory;
    out->mapped_bytes = bytes;
    return BL_OK;
}

/* Records of a dead producer's ring that are in no file yet. */
static uint64_t unfinished(const bl_ring_memory *m) {
    const bl_pack_counters *c = &m->counters;
    const uint64_t pushed = BL_PACK_LOAD(&c->pushed);
    const uint64_t seen = m->ledger.records + m->ledger.dropped + BL_PACK_LOAD(&c->skipped);
    return pushed > seen ? pushed - seen : 0;
}

static bool gone_name(const char *name, int slot, char object[96]) {
    const int n = snprintf(object, 96, BL_RING_PREFIX "%s.gone%d", name, slot);
    return n - (int)strlen(BL_RING_PREFIX) <= BL_RING_NAME_MAX;
}

/* Put a dead producer's ring aside under another name, for its recorder to finish. POSIX has no call
 * for that; where objects are files, rename() is one. */
static bool put_aside(const char *object, const char *name) {
    char from[128], to[128], gone[96];
    struct stat info;
    snprintf(from, sizeof from, BL_RING_DIRECTORY "%s", object);
    for (int slot = 0; slot < BL_RING_GONE && gone_name(name, slot, gone); slot++) {
        snprintf(to, sizeof to, BL_RING_DIRECTORY "%s", gone);
        if (stat(to, &info) != 0 && rename(from, to) == 0)
            return true;
    }
    return false;
}

typedef struct leftover {
    uint64_t lost;    /* records that went with it */
    uint64_t *layers; /* [n_layers] of these, as far as it can be told; NULL: not told */
    bool recorded;    /* it had a consumer, or was to have one */
} leftover;

static bl_status open_ring(const char *name, bl_ring *ring, bl_ring_shape *shape, bl_error *err);

static void add_drops(const unsigned char *body, int n_layers, uint64_t *layers) {
    for (int l = 0; l < n_layers; l++) {
        uint64_t records;
        memcpy(&records, body + 8 + 8 * (size_t)l, sizeof records);
        layers[l] += records;
    }
}

/* Records that wait in a dead producer's ring, and those that it dropped and could not tell, by layer. */
static void count_left(bl_ring *ring, const bl_ring_shape *shape, uint64_t *layers,
                       uint64_t *more) {
    bl_ring_entry entry;
    const unsigned char *body;
    uint64_t until = 0, first, last;
    while (bl_ring_peek(ring, &entry, &body, NULL) == BL_OK && body != NULL) {
        if (entry.kind == BL_RING_DROPS &&
            entry.bytes == sizeof entry + 8 + 8 * (size_t)shape->n_layers) {
            add_drops(body, shape->n_layers, layers);
            until = entry.step + 1;
        }
        for (int l = 0;
             entry.kind != BL_RING_DROPS && entry.kind != BL_RING_MAP && l < shape->n_layers; l++)
            layers[l] += shape->layers[l] == entry.layer;
        bl_ring_pop(ring, &entry);
    }
    if (!bl_ring_last_drops(ring, &first, &last, more) || last + 1 <= until)
        return;
    for (int l = 0; l < shape->n_layers; l++)
        layers[l] += more[l];
}

/* What each layer loses with the ring of a dead producer; the caller frees it. NULL when its layers are
 * others than those of `now`, or when the counts cannot be right: more than `lost`. */
static uint64_t *lost_by_layer(const char *name, const bl_ring_shape *now, uint64_t lost) {
    bl_ring ring = {0};
    const size_t n = (size_t)now->n_layers;
    bl_ring_shape *shape = malloc(sizeof *shape);
    uint64_t *layers = calloc(2 * n, sizeof *layers), sum = 0;
    if (shape != NULL && layers != NULL && open_ring(name, &ring, shape, NULL) == BL_OK) {
        ring.capacity = ring.mapped_bytes - ring.memory->data_offset;
        ring.data = (unsigned char *)ring.memory + ring.memory->data_offset;
        ring.n_layers = shape->n_layers;
        bl_ring_unread(&ring);
        if (shape->n_layers == now->n_layers &&
            memcmp(shape->layers, now->layers, n * sizeof *now->layers) == 0)
            count_left(&ring, shape, layers, layers + n);
        munmap(ring.memory, ring.mapped_bytes);
    }
    free(shape);
    for (size_t l = 0; layers != NULL && l < n; l++)
        sum += layers[l];
    if (sum == 0 || sum > lost) {
        free(layers);
        return NULL;
    }
    return layers;
}

/* What was lost before the new ring's first step: told as drops up to step 0. */
static void inherit_drops(bl_pack_drops *drops, const uint64_t *layers, int n_layers) {
    if (layers == NULL)
        return;
    bl_pack_drop_begin(drops, 0);
    for (int l = 0; l < n_layers; l++)
        bl_pack_drop_layer(drops, l, layers[l]);
    bl_pack_drop_end(drops);
}

/* Remove the object if its maker is gone. */
static bl_status remove_leftover(const char *object, const char *name, const bl_ring_shape *shape,
                                 leftover *left, bl_error *err) {
    const int fd = shm_open(object, O_RDWR | O_CLOEXEC, 0);
    if (fd < 0)
        return BL_OK;
    struct stat info;
    bl_ring old = {0};
    bool in_use = false, aside = false;
    if (fstat(fd, &info) == 0 && (size_t)info.st_size >= sizeof(bl_ring_memory) &&
        map(fd, sizeof(bl_ring_memory), &old, NULL) == BL_OK) {
        const bl_ring_memory *m = old.memory;
        in_use = m->magic == MAGIC && bl_ring_who_is_alive(m->producer);
        if (!in_use && m->magic == MAGIC && m->version == VERSION) {
            left->lost = unfinished(m);
            left->recorded = BL_PACK_LOAD(&m->attached) > 0 || m->expected != 0;
            aside = left->lost > 0 && left->recorded && put_aside(object, name);
        }
        munmap(old.memory, old.mapped_bytes);
    }
    close(fd);
    if (in_use)
        return bl_fail(err, BL_ERR_STATE, "the ring \"%s\" is in use by a living process", name);
    if (!aside && left->lost > 0)
        left->layers = lost_by_layer(name, shape, left->lost);
    if (aside)
        left->lost = 0;
    else
        shm_unlink(object);
    return BL_OK;
}

static size_t data_offset(void) {
    return (sizeof(bl_ring_memory) + 63) / 64 * 64;
}

bl_status bl_ring_create(const char *name, const bl_ring_shape *shape, size_t data_bytes,
                         bl_ring *out, bl_error *err) {
    char object[96];
    bl_ring ring = {0};
    BL_TRY(object_name(name, object, err));
    if (data_bytes > MAX_BYTES)
        return bl_fail(err, BL_ERR_RANGE, "a ring of %zu bytes", data_bytes);
    size_t capacity = MIN_BYTES;
    while (capacity < data_bytes)
        capacity *= 2;
    snprintf(ring.name, sizeof ring.name, "%s", name);
    leftover left = {0};
    BL_TRY(remove_leftover(object, name, shape, &left, err));
    const int fd = shm_open(object, O_RDWR | O_CREAT | O_EXCL, 0600);
    if (fd < 0) {
        free(left.layers);
        return bl_fail(err, BL_ERR_IO, "cannot create the ring \"%s\": %s", name, strerror(errno));
    }
    bl_status st = BL_OK;
    /* Reserved now: a page that is missing later would end the engine with SIGBUS. */
    const int full = posix_fallocate(fd, 0, (off_t)(data_offset() + capacity));
    if (full != 0)
        st = bl_fail(err, full == ENOSPC ? BL_ERR_NOMEM : BL_ERR_IO,
                     "no shared memory for the ring \"%s\" of %llu bytes: %s", name,
                     (unsigned long long)capacity, strerror(full));
    if (st == BL_OK)
        st = map(fd, data_offset() + capacity, &ring, err);
    close(fd);
    if (st < 0) {
        free(left.layers);
        shm_unlink(object);
        return st;
    }
    bl_ring_memory *m = ring.memory;
    for (size_t at = 0; at < ring.mapped_bytes; at += 4096) /* faults here, not in a step */
        ((volatile unsigned char *)m)[at] = 0;
    struct timespec now = {0};
    clock_gettime(CLOCK_REALTIME, &now);
    m->version = VERSION;
    m->data_offset = (uint32_t)data_offset();
    m->capacity = capacity;
    m->producer = bl_ring_who_am_i();
    m->session = (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
    m->shape = *shape;
    BL_PACK_STORE(&m->counters.pushed, left.lost);
    BL_PACK_STORE(&m->counters.dropped, left.lost);
    m->expected = left.recorded;
    inherit_drops(&m->drops, left.layers, shape->n_layers);
    free(left.layers);
    m->magic = MAGIC;
    ring.capacity = capacity;
    ring.n_layers = shape->n_layers;
    ring.data = (unsigned char *)m + data_offset();
    ring.pack =
        (bl_pack_ring){.data = ring.data, .head = &m->head, .tail = &m->tail, .capacity = capacity};
    atomic_store_explicit(&m->state, BL_RING_OPEN, memory_order_release);
    *out = ring;
    return BL_OK;
}

static bool unlink_if_own(const bl_ring *ring, const char *object) {
    struct stat info;
    const int fd = shm_open(object, O_RDONLY | O_CLOEXEC, 0);
    if (fd < 0)
        return false;
    const bool own =
        fstat(fd, &info) == 0 && info.st_dev == ring->device && info.st_ino == ring->inode;
    close(fd);
    return own && shm_unlink(object) == 0;
}

/* Remove the name of this object: the one it was made under, unless an engine that was restarted has
 * put it aside. */
static void unlink_own(const bl_ring *ring) {
    char object[96];
    if (object_name(ring->name, object, NULL) < 0 || unlink_if_own(ring, object))
        return;
    for (int slot = 0; slot < BL_RING_GONE && gone_name(ring->name, slot, object); slot++)
        unlink_if_own(ring, object);
}

void bl_ring_close(bl_ring *ring) {
    if (ring->memory == NULL)
        return;
    if ((uint32_t)ring->memory->producer == (uint32_t)getpid()) {
        atomic_store_explicit(&ring->memory->state, BL_RING_CLOSED, memory_order_release);
        unlink_own(ring);
    }
    munmap(ring->memory, ring->mapped_bytes);
    *ring = (bl_ring){0};
}

static bool ascends(const int32_t *layers, int32_t n) {
    for (int32_t l = 0; l < n; l++) {
        if (layers[l] < 0 || (l > 0 && layers[l] <= layers[l - 1]))
            return false;
    }
    return true;
}

static bl_status check_memory(const bl_ring *ring, bl_ring_shape *shape, bl_error *err) {
    const bl_ring_memory *m = ring->memory;
    if (atomic_load_explicit(&m->state, memory_order_acquire) == BL_RING_NEW)
        return bl_fail(err, BL_ERR_STATE, "the ring \"%s\" is not ready yet", ring->name);
    if (m->magic != MAGIC || m->version != VERSION)
        return bl_fail(err, BL_ERR_VERSION, "\"%s\" is no trace ring of this version", ring->name);
    const uint64_t capacity = m->capacity;
    if (m->data_offset != data_offset() || capacity < MIN_BYTES || capacity > MAX_BYTES ||
        (capacity & (capacity - 1)) != 0 || ring->mapped_bytes != data_offset() + capacity)
        return bl_fail(err, BL_ERR_PARSE, "the ring \"%s\" has an impossible layout", ring->name);
    *shape = m->shape;
    shape->model[sizeof shape->model - 1] = '\0';
    if (shape->n_layers < 1 || shape->n_layers > BL_RING_MAX_LAYERS ||
        !ascends(shape->layers, shape->n_layers) || shape->rank < 0 ||
        shape->rank >= shape->n_ranks || shape->n_ranks > BL_RING_MAX_RANKS ||
        shape->n_experts < 1 || shape->top_k < 1 || !bl_ring_model_is_valid(shape->model))
        return bl_fail(err, BL_ERR_PARSE, "the ring \"%s\" describes an impossible model",
                       ring->name);
    return BL_OK;
}

static bl_status become_consumer(const bl_ring *ring, bl_error *err) {
    uint64_t other = 0;
    const uint64_t own = bl_ring_who_am_i();
    bl_word *consumer = &ring->memory->consumer;
    if (atomic_compare_exchange_strong(consumer, &other, own))
        return BL_OK;
    if (!bl_ring_who_is_alive(other) && atomic_compare_exchange_strong(consumer, &other, own))
        return BL_OK;
    return bl_fail(err, BL_ERR_STATE, "process %lu reads the ring \"%s\" already",
                   (unsigned long)(uint32_t)other, ring->name);
}

static bl_status open_ring(const char *name, bl_ring *ring, bl_ring_shape *shape, bl_error *err) {
    char object[96];
    BL_TRY(object_name(name, object, err));
    snprintf(ring->name, sizeof ring->name, "%s", name);
    const int fd = shm_open(object, O_RDWR | O_CLOEXEC, 0);
    if (fd < 0)
        return bl_fail(err, errno == ENOENT ? BL_ERR_STATE : BL_ERR_IO,
                       "no ring \"%s\" to record from: %s", name, strerror(errno));
    struct stat info;
    bl_status st = BL_OK;
    if (fstat(fd, &info) != 0 || (size_t)info.st_size < data_offset() + MIN_BYTES)
        st = bl_fail(err, BL_ERR_STATE, "the ring \"%s\" is not ready yet", name);
    if (st == BL_OK)
        st = map(fd, (size_t)info.st_size, ring, err);
    close(fd);
    BL_TRY(st);
    st = check_memory(ring, shape, err);
    if (st < 0) {
        munmap(ring->memory, ring->mapped_bytes);
        ring->memory = NULL;
    }
    return st;
}

bool bl_ring_gone(const char *name, int slot, char gone[BL_RING_NAME_MAX + 1]) {
    char object[96], path[128];
    struct stat info;
    if (!bl_ring_name_is_valid(name) || slot >= BL_RING_GONE || !gone_name(name, slot, object))
        return false;
    snprintf(path, sizeof path, BL_RING_DIRECTORY "%s", object);
    memcpy(gone, object + strlen(BL_RING_PREFIX), strlen(object) - strlen(BL_RING_PREFIX) + 1);
    return stat(path, &info) == 0;
}

bl_status bl_ring_attach(const char *name, bl_ring *out, bl_ring_shape *shape, bl_error *err) {
    bl_ring ring = {0};
    BL_TRY(open_ring(name, &ring, shape, err));
    const bl_status st = become_consumer(&ring, err);
    if (st < 0) {
        munmap(ring.memory, ring.mapped_bytes);
        return st;
    }
    ring.capacity = ring.mapped_bytes - data_offset();
    ring.n_layers = shape->n_layers;
    ring.data = (unsigned char *)ring.memory + data_offset();
    ring.read = atomic_load_explicit(&ring.memory->tail, memory_order_acquire);
    atomic_fetch_add(&ring.memory->attached, 1);
    *out = ring;
    return BL_OK;
}

void bl_ring_detach(bl_ring *ring, bool finished) {
    if (ring->memory == NULL)
        return;
    if (finished && !bl_ring_is_closed(ring) && bl_ring_is_over(ring))
        unlink_own(ring);
    atomic_store(&ring->memory->consumer, 0);
    munmap(ring->memory, ring->mapped_bytes);
    *ring = (bl_ring){0};
}

bl_status bl_ring_set_control(const char *name, uint64_t control, bl_error *err) {
    bl_ring ring = {0};
    bl_ring_shape *shape = malloc(sizeof *shape);
    if (shape == NULL)
        return bl_fail(err, BL_ERR_NOMEM, "out of memory");
    const bl_status st = open_ring(name, &ring, shape, err);
    free(shape);
    BL_TRY(st);
    atomic_store(&ring.memory->control, control);
    munmap(ring.memory, ring.mapped_bytes);
    return BL_OK;
}

bool bl_ring_is_closed(const bl_ring *ring) {
    return atomic_load_explicit(&ring->memory->state, memory_order_acquire) == BL_RING_CLOSED;
}

bool bl_ring_is_over(const bl_ring *ring) {
    return bl_ring_is_closed(ring) || !bl_ring_who_is_alive(ring->memory->producer);
}

/* ---- consumer ------------------------------------------------------------------------------ */

static bl_status nonsense(const bl_ring *ring, bl_error *err) {
    return bl_fail(err, BL_ERR_PARSE, "the ring \"%s\" holds an entry that makes no sense",
                   ring->name);
}

bl_status bl_ring_peek(bl_ring *ring, bl_ring_entry *entry, const unsigned char **body_p,
                       bl_error *err) {
    *body_p = NULL;
    for (;;) {
        const uint64_t head = atomic_load_explicit(&ring->memory->head, memory_order_acquire);
        if (head == ring->read)
            return BL_OK;
        const uint64_t at = ring->read & (ring->capacity - 1);
        const uint64_t rest = ring->capacity - at, readable = head - ring->read;
        uint32_t start[2];
        if (readable > ring->capacity || readable < 8 || readable % 8 != 0 || at % 8 != 0)
            return nonsense(ring, err);
        memcpy(start, ring->data + at, sizeof start);
        if (start[1] == BL_RING_FILLER) {
            if (readable < rest)
                return nonsense(ring, err);
            ring->read += rest;
            continue;
        }
        const uint64_t bytes = start[0];
        if (start[1] < BL_RING_RECORD || start[1] > BL_RING_DROPS || bytes < sizeof *entry ||
            bytes % 8 != 0 || bytes > rest || bytes > readable)
            return nonsense(ring, err);
        memcpy(entry, ring->data + at, sizeof *entry);
        entry->bytes = start[0];
        *body_p = ring->data + at + sizeof *entry;
        return BL_OK;
    }
}

void bl_ring_pop(bl_ring *ring, const bl_ring_entry *entry) {
    ring->read += entry->bytes;
}

void bl_ring_release(bl_ring *ring) {
    atomic_store_explicit(&ring->memory->tail, ring->read, memory_order_release);
}

void bl_ring_unread(bl_ring *ring) {
    ring->read = atomic_load_explicit(&ring->memory->tail, memory_order_relaxed);
}

uint64_t bl_ring_unreleased(const bl_ring *ring) {
    return ring->read - atomic_load_explicit(&ring->memory->tail, memory_order_relaxed);
}

uint64_t bl_ring_waiting(const bl_ring *ring) {
    return atomic_load_explicit(&ring->memory->head, memory_order_acquire) -
           atomic_load_explicit(&ring->memory->tail, memory_order_relaxed);
}

/* ---- handing over exactly once ------------------------------------------------------------- */

void bl_ring_begin_commit(bl_ring *ring, const char *file, uint64_t file_bytes,
                          const bl_ring_ledger *ledger) {
    bl_ring_memory *m = ring->memory;
    snprintf(m->file, sizeof m->file, "%s", file);
    m->commit = *ledger;
    atomic_store(&m->commit_from, file_bytes);
    atomic_store(&m->commit_tail, ring->read);
}

void bl_ring_end_commit(bl_ring *ring) {
    bl_ring_memory *m = ring->memory;
    m->ledger = m->commit;
    bl_ring_release(ring);
    atomic_store(&m->commit_tail, 0);
}

bool bl_ring_commit_left(const bl_ring *ring, char *file, uint64_t *file_bytes) {
    const bl_ring_memory *m = ring->memory;
    const uint64_t to = atomic_load(&m->commit_tail), tail = atomic_load(&m->tail);
    if (to <= tail || to > atomic_load(&m->head))
        return false;
    memcpy(file, m->file, BL_RING_PATH_MAX);
    file[BL_RING_PATH_MAX - 1] = '\0';
    *file_bytes = atomic_load(&m->commit_from);
    return true;
}

void bl_ring_settle(bl_ring *ring, bool written) {
    bl_ring_memory *m = ring->memory;
    if (written) {
        m->ledger = m->commit;
        ring->read = atomic_load(&m->commit_tail);
        bl_ring_release(ring);
    }
    atomic_store(&m->commit_tail, 0);
}

bool bl_ring_last_drops(const bl_ring *ring, uint64_t *first_step, uint64_t *last_step,
                        uint64_t *layers) {
    const bl_pack_drops *drops = &ring->memory->drops;
    if (atomic_load_explicit(&drops->version, memory_order_acquire) % 2 != 0 ||
        BL_PACK_LOAD(&drops->n_steps) == 0)
        return false;
    *first_step = BL_PACK_LOAD(&drops->first_step);
    *last_step = BL_PACK_LOAD(&drops->last_step);
    for (int l = 0; l < ring->n_layers; l++)
        layers[l] = BL_PACK_LOAD(&drops->layers[l]);
    return true;
}
