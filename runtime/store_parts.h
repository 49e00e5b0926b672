/*
 * store_parts.h: what the files of the store share: store.c (tables, pool, buffers that slots
 * point to), store_tensors.c (slots that are rows of an engine's tensors) and store_pointers.c (slots
 * that an engine finds by tables of pointers).
 *
 * Buffers are numbered. With pointers of its own the store has them all in its memory. Over tensors the
 * first n_rows are the slots of the layers, in order, each at home in its row for ever, and those from
 * n_rows on lie in the store's memory: the pool, and `through`, which belongs to no one. Over an engine's
 * pointers all buffers are the engine's memory, slots first, then spares, and only `through` is the
 * store's.
 */
#ifndef BL_RUNTIME_STORE_PARTS_H
#define BL_RUNTIME_STORE_PARTS_H

#include "runtime/store.h"

#define BL_NO_BUFFER (-1)

/* Where a buffer is in its life. */
typedef enum bl_buffer_use {
    BL_BUFFER_FREE,
    BL_BUFFER_RESERVED,
    BL_BUFFER_CLAIMED, /* of a slot, reserved all the same */
    BL_BUFFER_IN_SLOT,
    BL_BUFFER_DISPLACED
} bl_buffer_use;

typedef struct bl_layer_table {
    bl_layer_placement map;
    const bl_bundle *bundle; /* over tensors; else NULL */
    int *slot_buffer;        /* [own slots] */
    int *expert_buffer;      /* [n_experts] buffer that serves the expert here, or BL_NO_BUFFER */
    int *displaced;          /* [own slots]: the first n_displaced wait for retire */
    int n_displaced;
    int *scratch_slots, *scratch_experts; /* the tables a commit builds before it swaps */
} bl_layer_table;

struct bl_store {
    int rank, n_layers, n_experts, n_buffers, n_free;
    size_t bundle_bytes, stride; /* stride: bundle_bytes rounded up to BL_BUFFER_ALIGNMENT */
    bl_memory *device;           /* on which memory lies; NULL: the host */
    unsigned char *memory;       /* [n_buffers - n_rows][stride] */
    unsigned char *host;         /* [bundle_bytes] beside a device, for what comes from the host */
    unsigned char *use;          /* [n_buffers] bl_buffer_use */
    int *free;                   /* [n_buffers]: the first n_free are the pool, a stack */
    bl_layer_table *layers;      /* [n_layers] */
    /* over tensors */
    int n_rows;  /* 0 with pointers */
    int through; /* the buffer by which a cycle is turned, or BL_NO_BUFFER with pointers */
    unsigned char *table_scratch;
    bl_recompute_fn *recompute;
    void *user;
    /* over an engine's pointers */
    const bl_bundle *form; /* of every buffer; NULL in other modes */
    void **places;         /* [n_rows][form->n_moved] where a buffer's tensors lie */
    const char **names;    /* scratch for recompute: [most tensors of a layer] */
    int *slots;            /* the same: [most slots of a layer] */
};

static inline void *bl_store_buffer(const bl_store *store, int buffer) {
    return store->memory + (size_t)(buffer - store->n_rows) * store->stride;
}

static inline bool bl_store_is_by_pointers(const bl_store *store) {
    return store->form != NULL;
}

static inline void *const *bl_store_place(const bl_store *store, int buffer) {
    return store->places + (size_t)buffer * (size_t)store->form->n_moved;
}

static inline int bl_store_own_slots(const bl_layer_placement *map, int rank) {
    return map->begin[rank + 1] - map->begin[rank];
}

/* Bytes of the layer's expert in `buffer`, which is a slot's row or in memory. */
bl_status bl_store_read_buffer(const bl_store *store, const bl_layer_table *table, int buffer,
                               size_t offset, void *out, size_t n, bl_error *err);

/* Scratch for commits over tensors. */
bl_status bl_store_prepare_tensors(bl_store *store, bl_error *err);

/* Ask the engine for what follows from what moves, as `next` has other experts in this rank's slots. */
bl_status bl_store_recompute(bl_store *store, const bl_layer_table *table,
                             const bl_layer_placement *next, bl_error *err);

/* Note where the buffers of the engine's tables lie. */
bl_status bl_store_take_places(bl_store *store, const bl_bundle *bundles, bl_error *err);
/* Write into a layer's tables where its slots are. */
void bl_store_point(const bl_store *store, const bl_layer_table *table);

/* Bring every expert of `next` from where `table->scratch_experts` says it is into its slot; afterwards
 * the tables are those of `next`. The map is still the old one. */
bl_status bl_store_turn_tensors(bl_store *store, bl_layer_table *table,
                                const bl_layer_placement *next, bl_error *err);

#endif
