/*
 * ring.h: the shared-memory ring between an engine's rank and the recorder. Libc only: this file,
 * its .c, capture.c and core/status.c are all that libballast-trace holds.
 *
 * One producer (the rank) and one consumer (the recorder), in two processes, without locks:
 *
 *          tail (consumer)        head (producer, published)     write (producer, private)
 *            v                      v                               v
 *     [......|==entry==|==entry==|==|--entry of the open step--|......]
 *      free   readable by the consumer         not yet visible
 *
 * Positions only grow; a position's place in memory is position mod capacity.
 *
 * The producer writes the entries of a step behind `head` and publishes them together with one
 * store, or rewinds to `head` when one does not fit: a step is kept whole or dropped whole. It
 * never waits. An entry is contiguous; where it would run over the end, a filler takes the rest of
 * the lap.
 *
 * Memory order: the producer's release store of `head` makes the entries visible to the consumer's
 * acquire load; the consumer's release store of `tail` gives the bytes back in the same way.
 *
 * The consumer believes nothing: shape and capacity are copied and checked on attach, and every
 * entry's size is checked before it is used, since the memory belongs to another process.
 */
#ifndef BL_TRACER_RING_H
#define BL_TRACER_RING_H

#include "core/status.h"

#include <stdatomic.h>
#include <stdalign.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define BL_RING_PREFIX "/ballast-trace-" /* of the shared memory object, before the ring's name */
#define BL_RING_NAME_MAX 64
#define BL_RING_MAX_LAYERS 4096
#define BL_RING_DEFAULT_BYTES ((size_t)64 << 20)

/* What the engine said about itself; constant over the ring's life. */
typedef struct bl_ring_shape {
    char model[128];
    uint32_t run;
    int32_t rank, n_ranks;
    int32_t n_experts, top_k;
    int32_t n_layers;
    int32_t layers[BL_RING_MAX_LAYERS]; /* decoder-layer ids, ascending */
} bl_ring_shape;

typedef enum bl_ring_state { BL_RING_NEW, BL_RING_OPEN, BL_RING_CLOSED } bl_ring_state;

typedef struct bl_ring_memory {
    uint64_t magic;
    uint32_t version;
    uint32_t data_offset; /* of the data from the start of the object */
    uint64_t capacity;    /* bytes of data, a power of two */
    int64_t producer_pid;
    bl_ring_shape shape;
    alignas(64) _Atomic uint64_t head;
    alignas(64) _Atomic uint64_t tail;
    _Atomic int64_t consumer_pid;                       /* 0: nobody is attached */
    alignas(64) _Atomic uint64_t pushed, kept, dropped; /* records, counted at step ends */
    _Atomic uint32_t state;                             /* bl_ring_state */
} bl_ring_memory;

/* One layer's ids of one step. Behind it: n_tokens * k ids of `width` bytes (0 where empty), then,
 * if n_empty > 0, a bitmap of the empty ones. */
typedef struct bl_ring_entry {
    uint32_t bytes; /* of the whole entry, a multiple of 8 */
    uint32_t kind;  /* bl_ring_kind */
    uint64_t step;
    uint64_t dropped; /* records dropped since the ring was made */
    int64_t bad_id;   /* first id out of range; -1: none. A bad entry holds no ids */
    int32_t layer;
    uint32_t n_tokens;
    uint32_t n_empty;
    uint16_t k;
    uint8_t width, phase;
    uint32_t flags; /* BL_STEP_... */
    uint32_t reserved;
} bl_ring_entry;

typedef enum bl_ring_kind { BL_RING_RECORD = 1, BL_RING_FILLER = 2 } bl_ring_kind;

typedef struct bl_ring {
    bl_ring_memory *memory; /* mapped */
    unsigned char *data;
    size_t mapped_bytes;
    uint64_t capacity;  /* own copy */
    uint64_t write;     /* producer: next byte of the open step */
    uint64_t seen_tail; /* producer: tail when last looked at */
    uint64_t read;      /* consumer: next byte to read */
    char name[BL_RING_NAME_MAX + 1];
} bl_ring;

/* ---- life ---------------------------------------------------------------------------------- */

/* Letters, digits, '.', '_', '-'; 1 to BL_RING_NAME_MAX of them. */
bool bl_ring_name_is_valid(const char *name);

/* A new ring of at least `data_bytes`. One that a dead process left under this name is replaced;
 * BL_ERR_STATE when a living one uses it. */
bl_status bl_ring_create(const char *name, const bl_ring_shape *shape, size_t data_bytes,
                         bl_ring *out, bl_error *err);
/* Producer: say that nothing more comes, unmap, remove the name. */
void bl_ring_close(bl_ring *ring);

/* Consumer. BL_ERR_STATE when there is no such ring (yet) or another process reads it. `shape` gets
 * a checked copy. */
bl_status bl_ring_attach(const char *name, bl_ring *out, bl_ring_shape *shape, bl_error *err);
/* Consumer: unmap; when the producer died without closing, remove the name for it. */
void bl_ring_detach(bl_ring *ring);

/* Closed, or its process is gone: nothing will be published any more. */
bool bl_ring_is_over(const bl_ring *ring);

/* ---- producer ------------------------------------------------------------------------------ */

/* Room for an entry of `bytes` (a multiple of 8) in the open step, aligned to 8; NULL when it is
 * full. bl_ring_add() makes it part of the step. */
void *bl_ring_reserve(bl_ring *ring, size_t bytes);
void bl_ring_add(bl_ring *ring, size_t bytes);
void bl_ring_publish(bl_ring *ring); /* the open step becomes visible */
void bl_ring_rewind(bl_ring *ring);  /* the open step never was */

/* ---- consumer ------------------------------------------------------------------------------ */

/* The next published entry and its body, or NULL when there is none; valid until bl_ring_pop(). An
 * entry that makes no sense is BL_ERR_PARSE, and the ring is then unusable. `entry` is a copy. */
bl_status bl_ring_peek(bl_ring *ring, bl_ring_entry *entry, const unsigned char **body_p,
                       bl_error *err);
void bl_ring_pop(bl_ring *ring, const bl_ring_entry *entry);
/* Give the bytes of all popped entries back to the producer. */
void bl_ring_release(bl_ring *ring);

#endif
