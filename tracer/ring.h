/*
 * ring.h: the shared-memory ring between an engine's rank and the recorder. Libc only: this file,
 * its .c, capture*.c and core/status.c are all that libballast-trace holds.
 *
 * One producer (the rank) and one consumer (the recorder), in two processes, without locks. How
 * entries are laid down and published is in tracer/pack.h; here is the memory they live in, who owns
 * it, and the consumer's side.
 *
 * The producer never waits: a step that does not fit is dropped as a whole, counted and noted down
 * (pack.h, bl_pack_drops). Memory order: the producer's release store of `head` makes entries
 * visible to the consumer's acquire load; the consumer's release store of `tail` gives the bytes
 * back in the same way. The consumer believes nothing: shape and capacity are copied and checked on
 * attach, and every entry's size is checked before it is used, since the memory belongs to another
 * process.
 *
 * Who is alive is told by process id and start time together, since ids are used again. Producer and
 * consumer must therefore see each other's processes (one pid namespace).
 *
 * Handing over exactly once. The consumer reads ahead of `tail` and gives bytes back only when they
 * are in a file. Before it writes a chunk it notes in the ring which file, how long that is now, and
 * how far `tail` will move; afterwards it moves `tail` and clears the note:
 *
 *     begin_commit (note)      chunk -> file      end_commit (tail moves)
 *            |---------- killed in here -------------|
 *     the next consumer looks whether the file has a whole chunk behind the noted length: if so it
 *     moves `tail` itself, otherwise it reads the same entries again (bl_ring_commit_left()).
 */
#ifndef BL_TRACER_RING_H
#define BL_TRACER_RING_H

#include "core/status.h"
#include "tracer/pack.h"

#include <stdatomic.h>
#include <stdalign.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define BL_RING_PREFIX "/ballast-trace-" /* of the shared memory object, before the ring's name */
#define BL_RING_DIRECTORY "/dev/shm"     /* where POSIX shared memory objects are files on Linux */
#define BL_RING_NAME_MAX 64
#define BL_RING_PATH_MAX 1024
#define BL_RING_MAX_LAYERS BL_PACK_MAX_LAYERS
#define BL_RING_MAX_RANKS 65536
#define BL_RING_MODEL_BYTES 128
#define BL_RING_DEFAULT_BYTES ((size_t)64 << 20)

/* What the engine said about itself; constant over the ring's life. */
typedef struct bl_ring_shape {
    char model[BL_RING_MODEL_BYTES];
    uint32_t run;
    int32_t rank, n_ranks;
    int32_t domain; /* of the rank, -1: not told */
    int32_t n_experts, top_k;
    int32_t n_layers;
    int32_t layers[BL_RING_MAX_LAYERS]; /* decoder-layer ids, ascending */
} bl_ring_shape;

typedef enum bl_ring_state { BL_RING_NEW, BL_RING_OPEN, BL_RING_CLOSED } bl_ring_state;

/* The consumer's notes, which outlive it. */
typedef struct bl_ring_ledger {
    uint64_t records; /* records that are in files, or were refused by name */
    uint64_t dropped; /* of the producer's dropped records, those that files account for */
} bl_ring_ledger;

typedef struct bl_ring_memory {
    uint64_t magic;
    uint32_t version;
    uint32_t data_offset; /* of the data from the start of the object */
    uint64_t capacity;    /* bytes of data, a power of two */
    uint64_t producer;    /* who: process id and start time */
    uint64_t session;     /* of this ring: nanoseconds since 1970 as it was made */
    bl_ring_shape shape;
    alignas(64) bl_word head;
    alignas(64) bl_word tail;
    bl_word consumer;  /* who; 0: nobody is attached */
    bl_word attached;  /* how many consumers there have been: a new one is sent the maps again */
    uint64_t expected; /* not 0: a ring of this name has had a consumer before */
    /* A commit under way. `commit_tail` is stored last and cleared first; 0: none. */
    bl_word commit_tail, commit_from;
    bl_ring_ledger commit, ledger;
    uint32_t recorded_run;                 /* under which run it is recorded, plus 1; 0: not yet */
    char file[BL_RING_PATH_MAX];           /* the file last written to */
    alignas(64) bl_word control;           /* pack.h, bl_control_word() */
    alignas(64) bl_pack_counters counters; /* records, counted as steps end */
    _Atomic uint32_t state;                /* bl_ring_state */
    bl_pack_drops drops;
} bl_ring_memory;

typedef struct bl_ring {
    bl_ring_memory *memory; /* mapped */
    size_t mapped_bytes;
    uint64_t capacity; /* own copy */
    bl_pack_ring pack; /* producer */
    unsigned char *data;
    uint64_t read; /* consumer: next byte to read */
    dev_t device;  /* of the object, to know it again */
    ino_t inode;
    int n_layers;
    char name[BL_RING_NAME_MAX + 1];
} bl_ring;

/* ---- life ---------------------------------------------------------------------------------- */

/* Letters, digits, '.', '_', '-'; 1 to BL_RING_NAME_MAX of them. */
bool bl_ring_name_is_valid(const char *name);
/* UTF-8 without control characters, below BL_RING_MODEL_BYTES bytes: it goes into files and messages. */
bool bl_ring_model_is_valid(const char *model);

/* A new ring of at least `data_bytes`; BL_ERR_STATE when a living process uses the name. A ring that a
 * dead one left unfinished is put aside under another name (bl_ring_gone()) if this name has had a
 * recorder, which will be back: a few of them. Otherwise it is removed, and the new ring's counters begin with the records
 * that are lost with it, as pushed and dropped; as drops up to step 0 of their layers, if these are the same. */
bl_status bl_ring_create(const char *name, const bl_ring_shape *shape, size_t data_bytes,
                         bl_ring *out, bl_error *err);
/* Is there a ring of this name that was put aside, in slots 0 .. BL_RING_GONE - 1? Its name then. */
#define BL_RING_GONE 4
bool bl_ring_gone(const char *name, int slot, char gone[BL_RING_NAME_MAX + 1]);
/* Producer: say that nothing more comes, unmap, remove the name. In a forked child: unmap only. */
void bl_ring_close(bl_ring *ring);

/* Consumer. BL_ERR_STATE when there is no such ring (yet) or another process reads it. `shape` gets
 * a checked copy. */
bl_status bl_ring_attach(const char *name, bl_ring *out, bl_ring_shape *shape, bl_error *err);
/* Consumer: unmap. `finished`: nothing is left in it, drops included; if its producer died without
 * closing, the name is removed for it. */
void bl_ring_detach(bl_ring *ring, bool finished);

/* Without becoming its consumer: change what the producer keeps. */
bl_status bl_ring_set_control(const char *name, uint64_t control, bl_error *err);

/* Closed, or its process is gone: nothing will be published any more. */
bool bl_ring_is_over(const bl_ring *ring);
bool bl_ring_is_closed(const bl_ring *ring); /* by its producer, properly */

/* Is the process alive that a `who` word names? */
bool bl_ring_who_is_alive(uint64_t who);
uint64_t bl_ring_who_am_i(void);

/* ---- consumer ------------------------------------------------------------------------------ */

/* The next published entry and its body, or NULL when there is none; valid until it is given back.
 * An entry that makes no sense is BL_ERR_PARSE, and the ring is then unusable. `entry` is a copy. */
bl_status bl_ring_peek(bl_ring *ring, bl_ring_entry *entry, const unsigned char **body_p,
                       bl_error *err);
void bl_ring_pop(bl_ring *ring, const bl_ring_entry *entry);
/* Give the bytes of all popped entries back to the producer. */
void bl_ring_release(bl_ring *ring);
/* Read again what was not given back. */
void bl_ring_unread(bl_ring *ring);
/* Bytes that were read and not given back; and all that wait, read or not. */
uint64_t bl_ring_unreleased(const bl_ring *ring);
uint64_t bl_ring_waiting(const bl_ring *ring);

/* Around the writing of one chunk that holds all that was popped (top of this file). */
void bl_ring_begin_commit(bl_ring *ring, const char *file, uint64_t file_bytes,
                          const bl_ring_ledger *ledger);
void bl_ring_end_commit(bl_ring *ring);
/* On attach: did a consumer before us die within a commit? Then `file` (BL_RING_PATH_MAX) and the
 * length from which a whole chunk means that it was written; bl_ring_settle() says which it was. */
bool bl_ring_commit_left(const bl_ring *ring, char *file, uint64_t *file_bytes);
void bl_ring_settle(bl_ring *ring, bool written);

/* Steps that were dropped and not told by an entry; false when there are none. `layers` has room for
 * n_layers. Only when the producer is over. */
bool bl_ring_last_drops(const bl_ring *ring, uint64_t *first_step, uint64_t *last_step,
                        uint64_t *layers);

#endif
