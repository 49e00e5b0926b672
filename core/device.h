/*
 * device.h: where the bytes of experts lie: in host memory, or on a GPU.
 *
 * A pointer does not tell. Whoever may hold either kind keeps the bl_memory beside it and goes through
 * the calls below, which take pointers of both kinds on either side; a plain memcpy() of memory on a
 * GPU ends the process. The NULL memory is the host's, and costs no more than the memcpy() it is.
 *
 *     bl_memory *memory = NULL;                     host
 *     bl_memory_open(0, &memory, err);              GPU 0; BL_ERR_UNSUPPORTED in builds without CUDA
 *     bl_memory_alloc(memory, bytes, &data, err);
 *     bl_memory_copy(memory, data, from, n, err);   complete on return
 *
 * Copies go over a stream of the device's own, behind nothing else: they do not wait for the engine's
 * kernels, nor for a transfer of NCCL that stands still. What an engine has written on a stream of its
 * own must be complete before.
 *
 * A handle belongs to one thread at a time. core/device_cuda.c is the one file of Ballast that asks CUDA
 * for memory of experts; device_cuda_none.c stands in for it in builds without.
 */
#ifndef BL_CORE_DEVICE_H
#define BL_CORE_DEVICE_H

#include "core/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct bl_memory bl_memory;

/* `index` as CUDA numbers its devices. */
bl_status bl_memory_open(int index, bl_memory **out, bl_error *err);
void bl_memory_close(bl_memory *memory); /* NULL is fine; after all its memory was given back */
int bl_memory_index(const bl_memory *memory); /* -1: host */

/* Zeroed, aligned to 64 bytes. Free with bl_memory_free() of the same kind. */
bl_status bl_memory_alloc(bl_memory *memory, size_t bytes, void **out, bl_error *err);
void bl_memory_free(bl_memory *memory, void *data); /* NULL data is fine */

/* The areas must not overlap. */
bl_status bl_memory_copy(bl_memory *memory, void *to, const void *from, size_t bytes,
                         bl_error *err);
bl_status bl_memory_clear(bl_memory *memory, void *to, size_t bytes, bl_error *err);

/* bl_hash64() of what lies there. A GPU's bytes are brought over in pieces. */
bl_status bl_memory_hash64(bl_memory *memory, const void *data, size_t bytes, uint64_t *hash,
                           bl_error *err);

/* Whether an address is of some GPU's memory, whoever took it. */
bool bl_memory_is_on_gpu(const void *data);

/* ---- for those who are a device ---------------------------------------------------------------- */

/* All hooks are required. */
typedef struct bl_memory_ops {
    const char *name;
    bl_status (*alloc)(bl_memory *memory, size_t bytes, void **out, bl_error *err); /* zeroed */
    void (*free)(bl_memory *memory, void *data);
    bl_status (*copy)(bl_memory *memory, void *to, const void *from, size_t bytes, bl_error *err);
    bl_status (*clear)(bl_memory *memory, void *to, size_t bytes, bl_error *err);
    void (*close)(bl_memory *memory);
} bl_memory_ops;

struct bl_memory {
    const bl_memory_ops *ops;
    int index;
    unsigned char *piece; /* host memory by which contents are looked at */
};

#define BL_MEMORY_PIECE_BYTES ((size_t)1 << 20)

#endif
