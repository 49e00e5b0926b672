/*
 * store.h: the experts one rank holds, and the table it serves them by.
 *
 * All memory is taken at start: one buffer per slot of each layer plus a pool of spares. A buffer
 * holds one expert bundle. Serving reads through the table (layer, expert) -> buffer. A migration
 * fills spares while serving goes on, then one commit swaps map and buffers of a layer together; the
 * displaced buffers stay readable until they are retired, then they are the pool's spares again.
 *
 *      slots of layer 3          spare pool
 *     [e0][e4][e1]               [ ][ ]          reserve: a spare will become expert 7
 *     [e0][e4][e1]               [e7*][ ]        filled and verified
 *     [e0][e7][e1]               [e4][ ]         committed: epoch + 1, e4's buffer displaced
 *     [e0][e7][e1]               [ ][ ]          retired: nobody serves the old epoch
 *
 * The number of buffers never changes. One thread (the rank's) owns a store.
 */
#ifndef BL_RUNTIME_STORE_H
#define BL_RUNTIME_STORE_H

#include "core/placement.h"

typedef struct bl_store bl_store;

/* Memory for `rank`'s share of `initial` (copied) plus n_spares buffers of bundle_bytes each. */
bl_status bl_store_create(const bl_placement *initial, int rank, size_t bundle_bytes, int n_spares,
                          bl_store **out, bl_error *err);
void bl_store_free(bl_store *store); /* NULL is fine */

int bl_store_rank(const bl_store *store);
size_t bl_store_bundle_bytes(const bl_store *store);
size_t bl_store_resident_bytes(const bl_store *store); /* all buffers; constant over a run */
int bl_store_spares_free(const bl_store *store);

/* ---- serving ------------------------------------------------------------------------------- */

/* The placement in force of a decoder layer (all ranks' slots); borrowed, replaced by commit. NULL
 * for an unknown layer. */
const bl_layer_placement *bl_store_map(const bl_store *store, int layer);

/* This rank's copy of an expert, or NULL when it holds none. Valid until the layer's next retire. */
const void *bl_store_expert(const bl_store *store, int layer, int expert);

/* Writable buffer of one of this rank's slots (global slot number), for loading at start. */
void *bl_store_slot(bl_store *store, int layer, int slot);

/* ---- migration ----------------------------------------------------------------------------- */

/* Take a spare; *spare_p names it. BL_ERR_STATE when the pool is empty. */
bl_status bl_store_reserve(bl_store *store, int *spare_p, bl_error *err);
void *bl_store_spare(bl_store *store, int spare);         /* its bundle_bytes */
void bl_store_unreserve(bl_store *store, int spare);      /* give back unused */

/* A copy of `expert` that arrived in `spare`. */
typedef struct bl_arrival {
    int expert;
    int spare;
} bl_arrival;

/* Swap layer `next->layer` to `next` (copied): experts of this rank in `next` come from buffers it
 * already held in the layer or from `arrivals`. BL_ERR_STATE, nothing changed, when an expert has
 * neither, when next->epoch is not the current epoch + 1, or when the layer still has displaced
 * buffers. Displaced buffers are kept until bl_store_retire(). */
bl_status bl_store_commit(bl_store *store, const bl_layer_placement *next,
                          const bl_arrival *arrivals, int n_arrivals, bl_error *err);
/* Give the layer's displaced buffers back to the pool. */
void bl_store_retire(bl_store *store, int layer);

/* xxh3-64 of a bundle in serving, or of a spare. 0 and BL_ERR_STATE when it is not held. */
bl_status bl_store_hash_expert(const bl_store *store, int layer, int expert, uint64_t *hash,
                               bl_error *err);
uint64_t bl_store_hash_spare(const bl_store *store, int spare);

#endif
