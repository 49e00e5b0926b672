#include "core/device.h"

#include "core/hash.h"

#include <stdlib.h>
#include <string.h>

#define ALIGNMENT ((size_t)64)

int bl_memory_index(const bl_memory *memory) {
    return memory != NULL ? memory->index : -1;
}

void bl_memory_close(bl_memory *memory) {
    if (memory != NULL)
        memory->ops->close(memory);
}

static bl_status alloc_on_host(size_t bytes, void **out, bl_error *err) {
    const size_t whole = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    *out = whole >= bytes ? aligned_alloc(ALIGNMENT, whole > 0 ? whole : ALIGNMENT) : NULL;
    if (*out == NULL)
        return bl_fail(err, BL_ERR_NOMEM, "out of memory for %zu bytes", bytes);
    memset(*out, 0, bytes);
    return BL_OK;
}

bl_status bl_memory_alloc(bl_memory *memory, size_t bytes, void **out, bl_error *err) {
    *out = NULL;
    return memory != NULL ? memory->ops->alloc(memory, bytes, out, err)
                          : alloc_on_host(bytes, out, err);
}

void bl_memory_free(bl_memory *memory, void *data) {
    if (memory == NULL)
        free(data);
    else if (data != NULL)
        memory->ops->free(memory, data);
}

bl_status bl_memory_copy(bl_memory *memory, void *to, const void *from, size_t bytes,
                         bl_error *err) {
    if (memory != NULL)
        return bytes > 0 ? memory->ops->copy(memory, to, from, bytes, err) : BL_OK;
    if (bytes > 0)
        memcpy(to, from, bytes);
    return BL_OK;
}

bl_status bl_memory_clear(bl_memory *memory, void *to, size_t bytes, bl_error *err) {
    if (memory != NULL)
        return bytes > 0 ? memory->ops->clear(memory, to, bytes, err) : BL_OK;
    if (bytes > 0)
        memset(to, 0, bytes);
    return BL_OK;
}

bl_status bl_memory_hash64(bl_memory *memory, const void *data, size_t bytes, uint64_t *hash,
                           bl_error *err) {
    bl_status st = BL_OK;
    *hash = 0;
    if (memory == NULL) {
        *hash = bl_hash64(data, bytes);
        return BL_OK;
    }
    bl_hasher *hasher = bl_hasher_new();
    if (hasher == NULL)
        return bl_fail(err, BL_ERR_NOMEM, "out of memory for a hash");
    for (size_t at = 0; at < bytes && st >= 0; at += BL_MEMORY_PIECE_BYTES) {
        const size_t n = bytes - at < BL_MEMORY_PIECE_BYTES ? bytes - at : BL_MEMORY_PIECE_BYTES;
        st = bl_memory_copy(memory, memory->piece, (const unsigned char *)data + at, n, err);
        if (st >= 0)
            bl_hasher_add(hasher, memory->piece, n);
    }
    const uint64_t whole = bl_hasher_finish64(hasher);
    if (st >= 0)
        *hash = whole;
    return st;
}
