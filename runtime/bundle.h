/*
 * bundle.h: an expert as a set of tensors that an engine has declared.
 *
 * An engine keeps the experts of a layer in a few tensors, one row per slot, and each tensor in a
 * layout of its own. What belongs to an expert is scattered over them; on the wire it is one message:
 *
 *     w2        [slot 0 ......][slot 1 ......]      rows may have gaps between them, and entries too
 *     w2_scale  [s0][s1]
 *     w13       [slot 0 ............][slot 1 ............]
 *
 *     bundle of slot 1 = bytes of w13[1], then of w2[1], then of w2_scale[1]: tensors by name, rows in
 *                        order, without gaps
 *
 * So bundles do not depend on strides or on the order of declaration, and a content hash over one is
 * the same on every rank that holds the expert. Only LOCAL tensors that are not recomputed are in it;
 * see ballast_embed.h for scopes.
 *
 * Where its entries lie is said by a base and a stride, or by a table of pointers, which need not be
 * near each other; the store then says for each buffer where its entries are (*_at() below).
 *
 * What is not known, does not fit or overlaps is refused by name, at creation, before any byte moves.
 * The tensors belong to the engine; they are read and written by its own copy function.
 */
#ifndef BL_RUNTIME_BUNDLE_H
#define BL_RUNTIME_BUNDLE_H

#include "ballast_embed.h"
#include "core/placement.h"

typedef struct bl_bundle {
    int layer, own_slots, n_slots;
    int n_tensors;
    bl_tensor *tensors; /* [n_tensors] by name; strides filled in; names and layouts owned */
    size_t bytes;       /* of one expert's bundle */
    size_t table_bytes; /* of the largest SLOT tensor without gaps */
    bool by_pointers;   /* what moves is found by tables of pointers, with n_spares more behind */
    int n_moved, n_spares;
    bl_copy_fn *copy;
    void *copy_user;
} bl_bundle;

/* Where a layer's slots are. */
typedef struct bl_bundle_shape {
    int layer, own_slots, n_slots, n_experts;
} bl_bundle_shape;

/* `declared` is read by its structs' own sizes. `copy` NULL: memcpy. Free with bl_bundle_free(). */
bl_status bl_bundle_create(const bl_layer *declared, const bl_bundle_shape *shape, bl_copy_fn *copy,
                           void *copy_user, bl_bundle *out, bl_error *err);
void bl_bundle_free(bl_bundle *bundle); /* safe on a zeroed struct */

/* No tensor that moves writes over another, over all layers. */
bl_status bl_bundles_check_apart(const bl_bundle *bundles, int n, bl_error *err);

/* By pointers in all layers or in none; by pointers, the memory of one layer's expert can hold any
 * other layer's. */
bl_status bl_bundles_check_alike(const bl_bundle *bundles, int n, bl_error *err);

/* Bytes offset .. offset + n of the bundle in a slot; those behind its end are zero. */
bl_status bl_bundle_read(const bl_bundle *bundle, int slot, size_t offset, void *out, size_t n,
                         bl_error *err);
/* The other way; those behind its end are dropped. */
bl_status bl_bundle_write(const bl_bundle *bundle, int slot, size_t offset, const void *in,
                          size_t n, bl_error *err);
/* From one slot to another. */
bl_status bl_bundle_copy(const bl_bundle *bundle, int to, int from, bl_error *err);

/* The same where at[n_moved] says where the entries of the tensors that move lie, in the order of their
 * names. */
bl_status bl_bundle_read_at(const bl_bundle *bundle, void *const *at, size_t offset, void *out,
                            size_t n, bl_error *err);
bl_status bl_bundle_write_at(const bl_bundle *bundle, void *const *at, size_t offset,
                             const void *in, size_t n, bl_error *err);

/* The SLOT tensors in the order of `next`: what belonged to an expert's slot goes to its new ones.
 * scratch[table_bytes]. */
bl_status bl_bundle_reorder(const bl_bundle *bundle, const bl_layer_placement *now,
                            const bl_layer_placement *next, void *scratch, bl_error *err);

/* xxh3-64 of a tensor's bytes without its gaps, and without the rows of slots that `map` says are
 * empty; scratch[bl_tensor_bytes()]. */
size_t bl_tensor_bytes(const bl_tensor *tensor);
bool bl_tensor_is_moved(const bl_tensor *tensor);
bl_status bl_bundle_hash_tensor(const bl_bundle *bundle, const bl_tensor *tensor,
                                const bl_layer_placement *map, void *scratch, uint64_t *hash,
                                bl_error *err);

const char *bl_scope_name(int scope); /* "per local expert", ... */

#endif
