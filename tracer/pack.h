/*
 * pack.h: how a producer packs routing into a ring: the part that host and device share.
 *
 * This header is compiled three times: by the C compiler for the engine's host path (ring.c,
 * capture.c), by the CUDA compiler for the packing kernels (capture_cuda.cu), and by the tests,
 * which run the kernels' logic thread by thread on the CPU. So it includes nothing but <stdint.h>,
 * and what differs between the three (memory order) is in four macros.
 *
 *          tail (consumer)        head (producer, published)     write (producer, private)
 *            v                      v                               v
 *     [......|==entry==|==entry==|==|--entry of the open step--|......]
 *      free   readable by the consumer         not yet visible
 *
 * Positions only grow; a position's place in memory is position mod capacity. The entries of a step
 * are written behind `head` and published together with one store, or forgotten together when one
 * does not fit. An entry is contiguous; where it would run over the end, a filler takes the rest of
 * the lap.
 *
 * On the device one captured graph is replayed step after step with the arguments of the first, so
 * nothing that changes may be an argument: number of valid tokens, step, phase, flags and epoch are
 * read from a small block in device memory (bl_pack_block) that the engine updates in stream order,
 * and the cursor is device memory too. One block of threads packs one layer:
 *
 *     thread 0    bl_pack_begin_layer()       reserve room for the largest entry, or overflow
 *     all         bl_pack_slot(i) for their slots i of n_tokens * k, or, counts only, bl_pack_counted(i) and
 *                 an atomic 1 to its count, then bl_pack_store_count(id) for their ids
 *     thread 0    bl_pack_end_layer()         what was seen decides the entry's final size
 *     after the last layer, one thread        bl_pack_end_step(): publish, or count a drop
 */
#ifndef BL_TRACER_PACK_H
#define BL_TRACER_PACK_H

#include <stdint.h>

#ifdef __CUDACC__
#define BL_PACK_FN static inline __host__ __device__
typedef uint64_t bl_word; /* a word that two processes share */
#define BL_PACK_LOAD(word) (*(volatile const uint64_t *)(word))
#define BL_PACK_STORE(word, value) (*(volatile uint64_t *)(word) = (value))
#ifdef __CUDA_ARCH__
#define BL_PACK_RELEASE(word, value) (__threadfence_system(), BL_PACK_STORE(word, value))
#define BL_PACK_ACQUIRE(word) BL_PACK_LOAD(word)
#else
#define BL_PACK_RELEASE(word, value) BL_PACK_STORE(word, value)
#define BL_PACK_ACQUIRE(word) BL_PACK_LOAD(word)
#endif
#else
#include <stdatomic.h>
#define BL_PACK_FN static inline
typedef _Atomic uint64_t bl_word;
#define BL_PACK_LOAD(word) atomic_load_explicit(word, memory_order_relaxed)
#define BL_PACK_STORE(word, value) atomic_store_explicit(word, value, memory_order_relaxed)
#define BL_PACK_ACQUIRE(word) atomic_load_explicit(word, memory_order_acquire)
#define BL_PACK_RELEASE(word, value) atomic_store_explicit(word, value, memory_order_release)
#endif

/* ---- entries ------------------------------------------------------------------------------- */

enum {                     /* bl_ring_entry.kind */
       BL_RING_RECORD = 1, /* ids: [times][weights][ids][bitmap of empty slots, if there are any] */
       BL_RING_FILLER = 2, /* the rest of a lap; only bytes and kind are there */
       BL_RING_COUNTS = 3, /* a histogram: [times][n_ids counts of `width` bytes] */
       BL_RING_MAP = 4, /* u32 ranks, u32 slots, u32 first slot of each rank and the end, i32 expert
                           of each slot */
       BL_RING_DROPS = 5 /* steps that found no room: `epoch` is the first, `step` the last of them;
                           u32 layers, u32 steps (saturates), u64 records of each layer */
};

enum { /* bl_ring_entry.flags */
       BL_ENTRY_DUMMY = 1,
       BL_ENTRY_PHYSICAL = 2,
       BL_ENTRY_WEIGHTS = 4, /* binary16, one for each slot */
       BL_ENTRY_TIMES = 8    /* six u64, filled; without it the six are not there */
};

#define BL_ENTRY_TIMES_BYTES 48
#define BL_PACK_MAX_LAYERS 4096

/* Entries are multiples of 8 bytes and aligned to 8. */
typedef struct bl_ring_entry {
    uint32_t bytes; /* of the whole entry */
    uint32_t kind;
    uint64_t step;
    uint64_t epoch;
    int64_t bad_id; /* first id out of range; -1: none. A bad entry has no body */
    uint64_t n_tokens;
    int32_t layer;  /* decoder-layer id */
    uint32_t n_ids; /* ids are below this: experts, or slots */
    uint32_t n_empty;
    uint32_t flags; /* BL_ENTRY_... */
    uint16_t k;
    uint8_t width, phase;
    uint32_t reserved;
} bl_ring_entry;

/* ---- where to write ------------------------------------------------------------------------ */

typedef struct bl_pack_ring {
    unsigned char *data;
    bl_word *head, *tail; /* in the shared memory */
    uint64_t capacity;    /* bytes, a power of two */
    uint64_t write;       /* next byte of the open step */
    uint64_t published;   /* own copy of *head */
    uint64_t seen_tail;   /* *tail when last looked at */
} bl_pack_ring;

/* Room for `bytes` (a multiple of 8) in the open step, or 0 when it is full. */
BL_PACK_FN unsigned char *bl_pack_reserve(bl_pack_ring *ring, uint64_t bytes) {
    const uint64_t at = ring->write & (ring->capacity - 1), rest = ring->capacity - at;
    const uint64_t filler = bytes > rest ? rest : 0;
    if (bytes > ring->capacity)
        return 0;
    const uint64_t end = ring->write + filler + bytes;
    if (end - ring->seen_tail > ring->capacity) {
        ring->seen_tail = BL_PACK_ACQUIRE(ring->tail);
        if (end - ring->seen_tail > ring->capacity)
            return 0;
    }
    if (filler > 0) { /* at least 8 bytes are there */
        uint32_t *head = (uint32_t *)(void *)(ring->data + at);
        head[0] = (uint32_t)(filler < UINT32_MAX ? filler : 0);
        head[1] = BL_RING_FILLER;
        ring->write += filler;
    }
    return ring->data + (ring->write & (ring->capacity - 1));
}

BL_PACK_FN void bl_pack_publish(bl_pack_ring *ring) {
    ring->published = ring->write;
    BL_PACK_RELEASE(ring->head, ring->write);
}

BL_PACK_FN void bl_pack_rewind(bl_pack_ring *ring) {
    ring->write = ring->published;
}

BL_PACK_FN uint64_t bl_pack_round_up(uint64_t bytes) {
    return (bytes + 7) & ~(uint64_t)7;
}

/* ---- which steps are kept ------------------------------------------------------------------ */

/* The control word, which the recorder may change at any time and the producer reads as a step
 * begins: bits 0..31 n of "1 of n", 32..55 steps in a row (a burst), 56..63 the mode. Every rank
 * decides by the step's number alone, so all ranks keep the same steps. */
enum { BL_MODE_IDS = 0, BL_MODE_COUNTS = 1 };
#define BL_CONTROL_MAX_BURST 0xffffffu

BL_PACK_FN uint64_t bl_control_word(uint32_t every, uint32_t burst, int mode) {
    return (uint64_t)(uint8_t)mode << 56 | (uint64_t)(burst & 0xffffffu) << 32 | every;
}
BL_PACK_FN int bl_control_mode(uint64_t control) {
    return (int)(control >> 56);
}
BL_PACK_FN int bl_control_keeps(uint64_t control, uint64_t step) {
    const uint64_t every = control & 0xffffffffu, burst = control >> 32 & 0xffffffu;
    return every <= 1 || step / (burst > 0 ? burst : 1) % every == 0;
}

/* ---- what was dropped, and where ----------------------------------------------------------- */

/* Steps dropped since the last one that was kept: in the shared memory, so that it outlives the
 * producer; an entry BL_RING_DROPS as soon as there is room. `version` is odd while it is changed. */
typedef struct bl_pack_drops {
    bl_word version;
    bl_word first_step, last_step, n_steps;
    bl_word layers[BL_PACK_MAX_LAYERS]; /* [n_layers] records */
} bl_pack_drops;

BL_PACK_FN void bl_pack_drop_begin(bl_pack_drops *drops, uint64_t step) {
    BL_PACK_STORE(&drops->version, BL_PACK_LOAD(&drops->version) + 1);
    if (BL_PACK_LOAD(&drops->n_steps) == 0)
        BL_PACK_STORE(&drops->first_step, step);
    BL_PACK_STORE(&drops->last_step, step);
    BL_PACK_STORE(&drops->n_steps, BL_PACK_LOAD(&drops->n_steps) + 1);
}
BL_PACK_FN void bl_pack_drop_layer(bl_pack_drops *drops, int layer_index, uint64_t records) {
    BL_PACK_STORE(&drops->layers[layer_index], BL_PACK_LOAD(&drops->layers[layer_index]) + records);
}
BL_PACK_FN void bl_pack_drop_end(bl_pack_drops *drops) {
    BL_PACK_RELEASE(&drops->version, BL_PACK_LOAD(&drops->version) + 1);
}

BL_PACK_FN void bl_pack_copy(void *to, const void *from, uint64_t bytes) {
    unsigned char *out = (unsigned char *)to;
    const unsigned char *in = (const unsigned char *)from;
    for (uint64_t i = 0; i < bytes; i++)
        out[i] = in[i];
}

/* C++ and C share no way to zero a struct without a warning. */
BL_PACK_FN bl_ring_entry bl_pack_entry(uint32_t kind, uint64_t step, uint64_t epoch) {
    bl_ring_entry entry;
    entry.bytes = 0;
    entry.kind = kind;
    entry.step = step;
    entry.epoch = epoch;
    entry.bad_id = -1;
    entry.n_tokens = 0;
    entry.layer = 0;
    entry.n_ids = entry.n_empty = entry.flags = 0;
    entry.k = 0;
    entry.width = entry.phase = 0;
    entry.reserved = 0;
    return entry;
}

/* Put the drops so far in front of the open step; 0 when they do not fit. They are forgotten by
 * bl_pack_forget_drops() once the step is published. */
BL_PACK_FN int bl_pack_tell_drops(bl_pack_ring *ring, const bl_pack_drops *drops, int n_layers) {
    const uint64_t bytes = sizeof(bl_ring_entry) + 8 + 8 * (uint64_t)n_layers;
    const uint64_t n_steps = BL_PACK_LOAD(&drops->n_steps);
    unsigned char *at = bl_pack_reserve(ring, bytes);
    if (at == 0)
        return 0;
    bl_ring_entry entry = bl_pack_entry(BL_RING_DROPS, BL_PACK_LOAD(&drops->last_step),
                                        BL_PACK_LOAD(&drops->first_step));
    entry.bytes = (uint32_t)bytes;
    bl_pack_copy(at, &entry, sizeof entry);
    uint32_t *head = (uint32_t *)(void *)(at + sizeof entry);
    head[0] = (uint32_t)n_layers;
    head[1] = n_steps < UINT32_MAX ? (uint32_t)n_steps : UINT32_MAX;
    uint64_t *layers = (uint64_t *)(void *)(at + sizeof entry + 8);
    for (int l = 0; l < n_layers; l++)
        layers[l] = BL_PACK_LOAD(&drops->layers[l]);
    ring->write += bytes;
    return 1;
}

BL_PACK_FN void bl_pack_forget_drops(bl_pack_drops *drops, int n_layers) {
    BL_PACK_STORE(&drops->version, BL_PACK_LOAD(&drops->version) + 1);
    BL_PACK_STORE(&drops->n_steps, 0);
    for (int l = 0; l < n_layers; l++)
        BL_PACK_STORE(&drops->layers[l], 0);
    bl_pack_drop_end(drops);
}

/* ---- packing on the device ----------------------------------------------------------------- */

/* What changes from step to step; in device memory, written by the engine in stream order. */
typedef struct bl_pack_block {
    uint64_t step;
    uint64_t epoch;
    uint32_t n_tokens; /* valid rows; those behind are padding */
    uint32_t phase;
    uint32_t flags; /* BL_STEP_... */
    uint32_t reserved;
} bl_pack_block;

/* The counters of the ring, in the shared memory. */
typedef struct bl_pack_counters {
    bl_word pushed, kept, dropped, skipped;
} bl_pack_counters;

/* The device's own state: one for each tracer, in device memory. */
typedef struct bl_pack_device {
    bl_pack_ring ring;
    bl_pack_drops *drops;
    bl_pack_counters *counters;
    bl_word *control;
    uint64_t pushed, kept, dropped, skipped;
    int32_t n_layers, n_ids, k, width;
    uint32_t *counts; /* [n_ids] of the open layer, in device memory: counts only */
    /* of the open step */
    uint64_t step, records;
    uint32_t in_step, overflowed, sampled_out, drops_told, counting;
    /* of the open layer */
    unsigned char *entry; /* 0: not kept */
    uint64_t room;
    uint32_t n_tokens, n_empty, has_bad;
    int64_t bad_id;
} bl_pack_device;

BL_PACK_FN int64_t bl_pack_id(const unsigned char *at, int id_bytes) {
    switch (id_bytes) {
    case 1:
        return at[0];
    case 2:
        return *(const int16_t *)(const void *)at;
    case 4:
        return *(const int32_t *)(const void *)at;
    default:
        return *(const int64_t *)(const void *)at;
    }
}

BL_PACK_FN void bl_pack_begin_step(bl_pack_device *d, const bl_pack_block *block) {
    d->in_step = 1;
    d->step = block->step;
    d->records = 0;
    d->overflowed = 0;
    d->drops_told = 0;
    const uint64_t control = BL_PACK_LOAD(d->control);
    d->sampled_out = !bl_control_keeps(control, block->step);
    d->counting = d->counts != 0 && bl_control_mode(control) == BL_MODE_COUNTS;
    if (!d->sampled_out && BL_PACK_LOAD(&d->drops->n_steps) != 0) {
        d->drops_told = (uint32_t)bl_pack_tell_drops(&d->ring, d->drops, d->n_layers);
        d->overflowed = !d->drops_told;
    }
}

/* Rows beyond the block's n_tokens are padding; a count that is larger than the buffer the kernel was
 * launched for is the engine's mistake, and the layer is recorded as bad by the number it gave. */
BL_PACK_FN void bl_pack_begin_layer(bl_pack_device *d, const bl_pack_block *block,
                                    uint32_t max_tokens) {
    d->entry = 0;
    d->n_empty = d->has_bad = 0;
    d->bad_id = -1;
    if (!d->in_step)
        return;
    d->records++;
    d->n_tokens = block->n_tokens;
    if (block->n_tokens > max_tokens) {
        d->n_tokens = 0;
        d->has_bad = 1;
        d->bad_id = block->n_tokens;
    }
    if (d->sampled_out || d->overflowed)
        return;
    const uint64_t slots = (uint64_t)d->n_tokens * (uint64_t)d->k, bitmap = (slots + 7) / 8;
    const uint64_t body = slots * (uint64_t)d->width + bitmap;
    d->room =
        bl_pack_round_up(sizeof(bl_ring_entry) + (d->counting ? 4 * (uint64_t)d->n_ids : body));
    d->entry = bl_pack_reserve(&d->ring, d->room);
    d->overflowed = d->entry == 0;
}

/* What one slot contributes: its id, written to its place. Returns 0 for an expert, 1 for an empty
 * slot, 2 for an id that is no expert. Slots are independent of each other. */
BL_PACK_FN int bl_pack_slot(const bl_pack_device *d, uint64_t slot, const void *ids, int id_bytes,
                            uint64_t row_bytes) {
    const uint64_t k = (uint64_t)d->k;
    const unsigned char *at =
        (const unsigned char *)ids + slot / k * row_bytes + slot % k * (uint64_t)id_bytes;
    const int64_t id = bl_pack_id(at, id_bytes);
    const int what = id < 0 ? 1 : id >= d->n_ids ? 2 : 0;
    const uint64_t stored = what == 0 ? (uint64_t)id : 0;
    unsigned char *out = d->entry + sizeof(bl_ring_entry) + slot * (uint64_t)d->width;
    out[0] = (unsigned char)stored;
    if (d->width == 2)
        out[1] = (unsigned char)(stored >> 8);
    return what;
}

/* Byte `at` of the bitmap of empty slots, from the ids again: threads share no byte. */
BL_PACK_FN void bl_pack_bitmap_byte(const bl_pack_device *d, uint64_t at, const void *ids,
                                    int id_bytes, uint64_t row_bytes) {
    const uint64_t k = (uint64_t)d->k, slots = (uint64_t)d->n_tokens * k;
    unsigned byte = 0;
    for (uint64_t slot = 8 * at; slot < slots && slot < 8 * at + 8; slot++) {
        const unsigned char *from =
            (const unsigned char *)ids + slot / k * row_bytes + slot % k * (uint64_t)id_bytes;
        byte |= (unsigned)(bl_pack_id(from, id_bytes) < 0) << (slot & 7);
    }
    d->entry[sizeof(bl_ring_entry) + slots * (uint64_t)d->width + at] = (unsigned char)byte;
}

/* Counts only, instead of the two above: all counts are set to 0, then every slot says what it is, as
 * bl_pack_slot() does, and which id it adds 1 to, then all counts are stored. */
BL_PACK_FN int bl_pack_counted(const bl_pack_device *d, uint64_t slot, const void *ids,
                               int id_bytes, uint64_t row_bytes, int64_t *id) {
    const uint64_t k = (uint64_t)d->k;
    *id = bl_pack_id((const unsigned char *)ids + slot / k * row_bytes +
                         slot % k * (uint64_t)id_bytes,
                     id_bytes);
    return *id < 0 ? 1 : *id >= d->n_ids ? 2 : 0;
}
BL_PACK_FN void bl_pack_store_count(const bl_pack_device *d, uint64_t id) {
    *(uint32_t *)(void *)(d->entry + sizeof(bl_ring_entry) + 4 * id) = d->counts[id];
}

/* `layer` is the decoder-layer id, an argument of the launch: it does not change between replays. */
BL_PACK_FN void bl_pack_end_layer(bl_pack_device *d, const bl_pack_block *block, int layer) {
    if (d->entry == 0)
        return;
    const uint64_t slots = (uint64_t)d->n_tokens * (uint64_t)d->k;
    bl_ring_entry entry =
        bl_pack_entry(d->counting ? BL_RING_COUNTS : BL_RING_RECORD, d->step, block->epoch);
    uint64_t bytes = d->n_empty > 0 || d->counting
                         ? d->room
                         : bl_pack_round_up(sizeof entry + slots * (uint64_t)d->width);
    if (d->has_bad)
        bytes = sizeof entry;
    entry.bytes = (uint32_t)bytes;
    entry.bad_id = d->has_bad ? d->bad_id : -1;
    entry.layer = layer;
    entry.n_tokens = d->n_tokens;
    entry.n_ids = (uint32_t)d->n_ids;
    entry.n_empty = d->n_empty;
    entry.k = (uint16_t)d->k;
    entry.width = (uint8_t)(d->counting ? 4 : d->width);
    entry.phase = (uint8_t)block->phase;
    entry.flags = block->flags & BL_ENTRY_DUMMY;
    bl_pack_copy(d->entry, &entry, sizeof entry);
    d->ring.write += bytes;
    d->entry = 0;
}

/* Every layer is pushed once in a step, so what a dropped step loses is one record of each layer
 * that was pushed; they are counted in the order of the layers. */
BL_PACK_FN void bl_pack_end_step(bl_pack_device *d) {
    if (!d->in_step)
        return;
    d->in_step = 0;
    d->pushed += d->records;
    if (d->sampled_out) {
        d->skipped += d->records;
    } else if (d->overflowed) {
        bl_pack_rewind(&d->ring);
        d->dropped += d->records;
        bl_pack_drop_begin(d->drops, d->step);
        for (int l = 0; l < d->n_layers && (uint64_t)l < d->records; l++)
            bl_pack_drop_layer(d->drops, l, 1);
        bl_pack_drop_end(d->drops);
    } else {
        d->kept += d->records;
    }
    BL_PACK_STORE(&d->counters->pushed, d->pushed);
    BL_PACK_STORE(&d->counters->kept, d->kept);
    BL_PACK_STORE(&d->counters->dropped, d->dropped);
    BL_PACK_STORE(&d->counters->skipped, d->skipped);
    if (!d->sampled_out && !d->overflowed) {
        bl_pack_publish(&d->ring);
        if (d->drops_told)
            bl_pack_forget_drops(d->drops, d->n_layers);
    }
}

#endif
