/*
 * store.h: the experts one rank holds, and the table it serves them by.
 *
 * All memory is taken at start: one buffer per slot of each layer plus a pool of spares. A buffer
 * holds one expert bundle. Serving reads through the table (layer, expert) -> buffer. A migration
 * fills spares while serving goes on, then one commit swaps map and buffers of a layer together;
 * the displaced buffers stay readable until they are retired, then they are the pool's spares
 * again.
 *
 *      slots of layer 3          spare pool
 *     [e0][e4][e1]               [ ][ ]          reserve: a spare will become expert 7
 *     [e0][e4][e1]               [e7*][ ]        filled and verified
 *     [e0][e7][e1]               [e4][ ]         committed: epoch + 1, e4's buffer displaced
 *     [e0][e7][e1]               [ ][ ]          retired: nobody serves the old epoch
 *
 * The number of buffers never changes, and every slot always owns exactly one, an empty slot too.
 * So a commit with n arrivals displaces exactly n buffers, and an expert that moves between two
 * slots of its rank keeps its bytes where they are: only the table changes.
 *
 * Contiguous-tensor mode. An engine that keeps the experts of a layer in tensors of its own, one row
 * per slot, cannot have its slots point elsewhere. Then only the pool is the store's memory, slots are
 * rows of the engine's tensors (runtime/bundle.h), and a commit copies inside the rank: what arrived
 * goes from the pool into the tensors, what it displaces comes into the pool and stays there until it
 * is retired, and experts that change places on their rank do so along their cycles, through one more
 * buffer:
 *
 *     pool        [e7*]          [e4]           a path: pool -> slot 1 -> pool
 *     slots       [e0][e4][e1]   [e1][e7][e0]   a cycle: slot 0 <-> slot 2
 *
 * All else is the same. Nothing may read this rank's tensors of the layer during a commit.
 *
 * Pointer mode over an engine's memory. An engine that finds each expert by an address in a table keeps
 * its own buffers, spares among them, and the store works as in the first drawing; but a buffer is a set
 * of places in the engine's memory, one per tensor, and a commit also writes the new places into the
 * engine's tables. Nothing is copied. What arrives is written into the engine's spare as it arrives, and
 * its hash is taken from there.
 *
 * The store's memory may lie on a GPU (core/device.h). Then pointers to bundles are the GPU's: bytes go
 * in and out by the calls that take an offset, and an engine's tensors on the same GPU are copied to and
 * from the pool without the host.
 *
 * One thread (the rank's) owns a store.
 */
#ifndef BL_RUNTIME_STORE_H
#define BL_RUNTIME_STORE_H

#include "core/device.h"
#include "runtime/bundle.h"

typedef struct bl_store bl_store;

/* Memory for `rank`'s share of `initial` (copied) plus n_spares buffers of bundle_bytes each. The
 * buffers are zeroed, which also claims their pages: a store that was created cannot run short
 * later. `initial` must obey the hard rules (bl_placement_check). */
bl_status bl_store_create(const bl_placement *initial, int rank, size_t bundle_bytes, int n_spares,
                          bl_store **out, bl_error *err);
/* The same in the memory of a device, which is borrowed and must outlive the store; NULL: the host. */
bl_status bl_store_create_on(const bl_placement *initial, int rank, size_t bundle_bytes,
                             int n_spares, bl_memory *device, bl_store **out, bl_error *err);
void bl_store_free(bl_store *store); /* NULL is fine */

/* The same over tensors, or over pointers where the bundles are found so (then n_spares is what they
 * bring along): bundles[initial->n_layers] are borrowed, in the layers' order. `recompute` may
 * be NULL when no tensor is recomputed. Bundles of the layers may differ in size: the largest counts,
 * what is missing to it is zero. The store's own memory lies on `device`, which the bundles' copy
 * function must reach. */
bl_status bl_store_create_over(const bl_placement *initial, int rank, const bl_bundle *bundles,
                               int n_spares, bl_memory *device, bl_recompute_fn *recompute,
                               void *user, bl_store **out, bl_error *err);

int bl_store_rank(const bl_store *store);
bl_memory *bl_store_device(const bl_store *store); /* NULL: the host */
/* Experts lie in an engine's memory. */
bool bl_store_is_over_tensors(const bl_store *store);
size_t bl_store_bundle_bytes(const bl_store *store);
/* All buffers of the store that are its own memory, each rounded up to a multiple of 64 bytes; constant over a run. */
size_t bl_store_resident_bytes(const bl_store *store);
int bl_store_spares_free(const bl_store *store);

/* ---- serving ------------------------------------------------------------------------------- */

/* The placement in force of a decoder layer (all ranks' slots); borrowed, replaced by commit. NULL
 * for an unknown layer. */
const bl_layer_placement *bl_store_map(const bl_store *store, int layer);

/* This rank's copy of an expert, or NULL when it holds none, and always over an engine's memory; 64-byte aligned.
 * O(1). A pointer taken before a commit stays readable, with the same bytes, until the layer's next
 * retire. */
const void *bl_store_expert(const bl_store *store, int layer, int expert);

/* Bytes offset .. offset + n of this rank's copy, in any mode, into memory of the host or of the store's
 * device. BL_ERR_STATE: it holds none. */
bl_status bl_store_read_expert(const bl_store *store, int layer, int expert, size_t offset,
                               void *out, size_t n, bl_error *err);

/* Writable buffer of one of this rank's slots (global slot number), for loading at start. NULL for
 * a slot of another rank, and over an engine's memory. */
void *bl_store_slot(bl_store *store, int layer, int slot);

/* ---- migration ----------------------------------------------------------------------------- */

/* Take a spare; *spare_p names it. BL_ERR_STATE when the pool is empty. */
bl_status bl_store_reserve(bl_store *store, int *spare_p, bl_error *err);
/* The same without a pool: the buffer of one of this rank's own slots (global slot number), for an
 * arrival of the next commit of that layer, which must have given the slot's expert up here. What it
 * holds is lost as soon as it is written to, so nothing may be served from it any more: for a rank that
 * is between steps. BL_ERR_STATE: not such a slot. */
bl_status bl_store_claim(bl_store *store, int layer, int slot, int *spare_p, bl_error *err);
/* Its bundle_bytes; NULL when `spare` is not reserved, and always where it is an engine's memory. */
void *bl_store_spare(bl_store *store, int spare);
/* Bytes offset .. offset + n of a reserved spare, in any mode, out of and into memory of either kind. */
bl_status bl_store_write_spare(bl_store *store, int spare, size_t offset, const void *data,
                               size_t n, bl_error *err);
bl_status bl_store_read_spare(const bl_store *store, int spare, size_t offset, void *out, size_t n,
                              bl_error *err);
/* A whole bundle into a reserved spare: write it to staging's bundle_bytes, which are the host's, then say that it is there.
 * Nothing else may be done with the store in between. */
void *bl_store_staging(bl_store *store, int spare);
bl_status bl_store_staged(bl_store *store, int spare, bl_error *err);
/* Give back unused. Does nothing when `spare` is not reserved. */
void bl_store_unreserve(bl_store *store, int spare);

/* A copy of `expert` that arrived in `spare`. */
typedef struct bl_arrival {
    int expert;
    int spare;
} bl_arrival;

/* Swap layer `next->layer` to `next` (copied): experts of this rank in `next` come from buffers it
 * already held in the layer or from `arrivals`, which become slots. Displaced buffers are kept
 * until bl_store_retire(). On any failure nothing has changed: BL_ERR_STATE  next->epoch is not the
 * current epoch + 1; the layer still has displaced buffers; an expert has no buffer; an arrival is
 * not reserved, is given twice, or is for an expert that is here already or does not come here
 *   BL_ERR_SHAPE  `next` has other ranks, slots or experts than the map in force
 *   and what bl_layer_placement_check() says of `next`.
 * Over an engine's memory a copy, or what recomputes, may also fail: then this layer must not be served any
 * more. */
bl_status bl_store_commit(bl_store *store, const bl_layer_placement *next,
                          const bl_arrival *arrivals, int n_arrivals, bl_error *err);
/* Other maps and epochs of the same slots, for a rank that holds nothing in them, nor in those it has: one that
 * comes back takes its memory before it is told what is in force. Else BL_ERR_SHAPE, and nothing has
 * changed. */
bl_status bl_store_adopt(bl_store *store, const bl_placement *maps, bl_error *err);
/* Give the layer's displaced buffers back to the pool. Does nothing when there are none. */
void bl_store_retire(bl_store *store, int layer);

/* xxh3-64 of a bundle in serving, or of a spare. 0 and BL_ERR_STATE when it is not held; 0 when the
 * engine's copy cannot read a spare. */
bl_status bl_store_hash_expert(const bl_store *store, int layer, int expert, uint64_t *hash,
                               bl_error *err);
uint64_t bl_store_hash_spare(const bl_store *store, int spare); /* 0 when not reserved */

#endif
