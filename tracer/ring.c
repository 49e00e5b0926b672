#include "tracer/ring.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#define MAGIC UINT64_C(0x31474e4952544c42) /* "BLTRING1" */
#define VERSION 1u
#define MIN_BYTES ((size_t)4096)
#define MAX_BYTES ((size_t)1 << 36)

_Static_assert(ATOMIC_LLONG_LOCK_FREE == 2, "the ring needs lock-free 64-bit atomics");
_Static_assert(sizeof(bl_ring_entry) % 8 == 0, "entries keep their alignment");

/* ---- life ---------------------------------------------------------------------------------- */

bool bl_ring_name_is_valid(const char *name) {
    const size_t n = strlen(name);
    return n >= 1 && n <= BL_RING_NAME_MAX &&
           strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") == n;
}

static bl_status object_name(const char *name, char out[96], bl_error *err) {
    if (!bl_ring_name_is_valid(name))
        return bl_fail(err, BL_ERR_USAGE,
                       "a ring's name is 1 to %d letters, digits, '.', '_' or '-', not \"%.80s\"",
                       BL_RING_NAME_MAX, name);
    snprintf(out, 96, BL_RING_PREFIX "%s", name);
    return BL_OK;
}

static bool is_alive(int64_t pid) {
    return pid > 0 && (kill((pid_t)pid, 0) == 0 || errno == EPERM);
}

static bl_status map(int fd, size_t bytes, bl_ring *out, bl_error *err) {
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED)
        return bl_fail(err, BL_ERR_IO, "cannot map the ring \"%s\": %s", out->name,
                       strerror(errno));
    out->memory = memory;
    out->mapped_bytes = bytes;
    return BL_OK;
}

/* Remove the object if its maker is gone. */
static bl_status remove_leftover(const char *object, const char *name, bl_error *err) {
    const int fd = shm_open(object, O_RDWR, 0);
    if (fd < 0)
        return BL_OK;
    struct stat info;
    bl_ring old = {0};
    bool in_use = false;
    if (fstat(fd, &info) == 0 && (size_t)info.st_size >= sizeof(bl_ring_memory) &&
        map(fd, sizeof(bl_ring_memory), &old, NULL) == BL_OK) {
        in_use = old.memory->magic == MAGIC && is_alive(old.memory->producer_pid);
        munmap(old.memory, old.mapped_bytes);
    }
    close(fd);
    if (in_use)
        return bl_fail(err, BL_ERR_STATE, "the ring \"%s\" is in use by a living process", name);
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
    BL_TRY(remove_leftover(object, name, err));
    const int fd = shm_open(object, O_RDWR | O_CREAT | O_EXCL, 0600);
    if (fd < 0)
        return bl_fail(err, BL_ERR_IO, "cannot create the ring \"%s\": %s", name, strerror(errno));
    bl_status st = BL_OK;
    if (ftruncate(fd, (off_t)(data_offset() + capacity)) != 0)
        st = bl_fail(err, BL_ERR_IO, "cannot size the ring \"%s\": %s", name, strerror(errno));
    if (st == BL_OK)
        st = map(fd, data_offset() + capacity, &ring, err);
    close(fd);
    if (st < 0) {
        shm_unlink(object);
        return st;
    }
    bl_ring_memory *m = ring.memory;
    m->version = VERSION;
    m->data_offset = (uint32_t)data_offset();
    m->capacity = capacity;
    m->producer_pid = (int64_t)getpid();
    m->shape = *shape;
    m->magic = MAGIC;
    ring.capacity = capacity;
    ring.data = (unsigned char *)m + data_offset();
    atomic_store_explicit(&m->state, BL_RING_OPEN, memory_order_release);
    *out = ring;
    return BL_OK;
}

void bl_ring_close(bl_ring *ring) {
    char object[96];
    if (ring->memory == NULL)
        return;
    atomic_store_explicit(&ring->memory->state, BL_RING_CLOSED, memory_order_release);
    munmap(ring->memory, ring->mapped_bytes);
    if (object_name(ring->name, object, NULL) == BL_OK)
        shm_unlink(object);
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
        shape->rank >= shape->n_ranks || shape->n_experts < 1 || shape->top_k < 1)
        return bl_fail(err, BL_ERR_PARSE, "the ring \"%s\" describes an impossible model",
                       ring->name);
    return BL_OK;
}

static bl_status become_consumer(const bl_ring *ring, bl_error *err) {
    int64_t other = 0;
    const int64_t own = (int64_t)getpid();
    if (atomic_compare_exchange_strong(&ring->memory->consumer_pid, &other, own))
        return BL_OK;
    if (!is_alive(other) &&
        atomic_compare_exchange_strong(&ring->memory->consumer_pid, &other, own))
        return BL_OK;
    return bl_fail(err, BL_ERR_STATE, "process %lld reads the ring \"%s\" already",
                   (long long)other, ring->name);
}

bl_status bl_ring_attach(const char *name, bl_ring *out, bl_ring_shape *shape, bl_error *err) {
    char object[96];
    bl_ring ring = {0};
    BL_TRY(object_name(name, object, err));
    snprintf(ring.name, sizeof ring.name, "%s", name);
    const int fd = shm_open(object, O_RDWR, 0);
    if (fd < 0)
        return bl_fail(err, errno == ENOENT ? BL_ERR_STATE : BL_ERR_IO,
                       "no ring \"%s\" to record from: %s", name, strerror(errno));
    struct stat info;
    bl_status st = BL_OK;
    if (fstat(fd, &info) != 0 || (size_t)info.st_size < data_offset() + MIN_BYTES)
        st = bl_fail(err, BL_ERR_STATE, "the ring \"%s\" is not ready yet", name);
    if (st == BL_OK)
        st = map(fd, (size_t)info.st_size, &ring, err);
    close(fd);
    BL_TRY(st);
    st = check_memory(&ring, shape, err);
    if (st == BL_OK)
        st = become_consumer(&ring, err);
    if (st < 0) {
        munmap(ring.memory, ring.mapped_bytes);
        return st;
    }
    ring.capacity = ring.mapped_bytes - data_offset();
    ring.data = (unsigned char *)ring.memory + data_offset();
    ring.read = atomic_load_explicit(&ring.memory->tail, memory_order_acquire);
    *out = ring;
    return BL_OK;
}

void bl_ring_detach(bl_ring *ring) {
    char object[96];
    if (ring->memory == NULL)
        return;
    const bool closed = atomic_load(&ring->memory->state) == BL_RING_CLOSED;
    const bool orphan = !closed && !is_alive(ring->memory->producer_pid);
    atomic_store(&ring->memory->consumer_pid, 0);
    munmap(ring->memory, ring->mapped_bytes);
    if (orphan && object_name(ring->name, object, NULL) == BL_OK)
        shm_unlink(object);
    *ring = (bl_ring){0};
}

bool bl_ring_is_over(const bl_ring *ring) {
    return atomic_load_explicit(&ring->memory->state, memory_order_acquire) == BL_RING_CLOSED ||
           !is_alive(ring->memory->producer_pid);
}

/* ---- producer ------------------------------------------------------------------------------ */

void *bl_ring_reserve(bl_ring *ring, size_t bytes) {
    const uint64_t at = ring->write & (ring->capacity - 1);
    const uint64_t rest = ring->capacity - at;
    const uint64_t filler = bytes > rest ? rest : 0;
    if (bytes > ring->capacity)
        return NULL;
    const uint64_t end = ring->write + filler + bytes;
    if (end - ring->seen_tail > ring->capacity) {
        ring->seen_tail = atomic_load_explicit(&ring->memory->tail, memory_order_acquire);
        if (end - ring->seen_tail > ring->capacity)
            return NULL;
    }
    if (filler > 0) { /* only size and kind are read of a filler, and 8 bytes are always there */
        const uint32_t head[2] = {(uint32_t)(filler < UINT32_MAX ? filler : 0), BL_RING_FILLER};
        memcpy(ring->data + at, head, sizeof head);
        ring->write += filler;
    }
    return ring->data + (ring->write & (ring->capacity - 1));
}

void bl_ring_add(bl_ring *ring, size_t bytes) {
    ring->write += bytes;
}

void bl_ring_publish(bl_ring *ring) {
    atomic_store_explicit(&ring->memory->head, ring->write, memory_order_release);
}

void bl_ring_rewind(bl_ring *ring) {
    ring->write = atomic_load_explicit(&ring->memory->head, memory_order_relaxed);
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
        if (readable > ring->capacity || readable < 8 || readable % 8 != 0)
            return nonsense(ring, err);
        memcpy(start, ring->data + at, sizeof start);
        if (start[1] == BL_RING_FILLER) {
            if (readable < rest)
                return nonsense(ring, err);
            ring->read += rest;
            continue;
        }
        const uint64_t bytes = start[0];
        if (start[1] != BL_RING_RECORD || bytes < sizeof *entry || bytes % 8 != 0 || bytes > rest ||
            bytes > readable)
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
