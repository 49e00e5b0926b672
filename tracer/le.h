/*
 * le.h: little-endian numbers in byte buffers, and a buffer that grows. Compilers turn the shifts
 * into single loads and stores; nothing here assumes the machine's own byte order or alignment.
 */
#ifndef BL_TRACER_LE_H
#define BL_TRACER_LE_H

#include "core/mem.h"

#include <stdint.h>
#include <string.h>

static inline uint16_t bl_get_u16(const unsigned char *at) {
    return (uint16_t)(at[0] | (unsigned)at[1] << 8);
}
static inline uint32_t bl_get_u32(const unsigned char *at) {
    return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}
static inline uint64_t bl_get_u64(const unsigned char *at) {
    return (uint64_t)bl_get_u32(at) | (uint64_t)bl_get_u32(at + 4) << 32;
}

/* Write the low `bytes` bytes of `value`. */
static inline void bl_put_le(unsigned char *at, uint64_t value, int bytes) {
    for (int i = 0; i < bytes; i++)
        at[i] = (unsigned char)(value >> (8 * i));
}

typedef struct bl_bytes {
    unsigned char *data; /* owned; freed with free() */
    size_t used, capacity;
} bl_bytes;

/* Room for `more` bytes behind `used`; the caller writes them and advances `used`. */
static inline bl_status bl_bytes_reserve(bl_bytes *bytes, size_t more, bl_error *err) {
    size_t needed;
    if (!bl_size_add(bytes->used, more, &needed))
        return bl_fail(err, BL_ERR_NOMEM, "out of memory");
    void *data = bytes->data;
    const bl_status st = bl_grow(&data, &bytes->capacity, needed, 1, err);
    bytes->data = data;
    return st;
}

static inline bl_status bl_bytes_add(bl_bytes *bytes, const void *data, size_t n, bl_error *err) {
    BL_TRY(bl_bytes_reserve(bytes, n, err));
    if (n > 0)
        memcpy(bytes->data + bytes->used, data, n);
    bytes->used += n;
    return BL_OK;
}

static inline bl_status bl_bytes_add_le(bl_bytes *bytes, uint64_t value, int n, bl_error *err) {
    BL_TRY(bl_bytes_reserve(bytes, (size_t)n, err));
    bl_put_le(bytes->data + bytes->used, value, n);
    bytes->used += (size_t)n;
    return BL_OK;
}

#endif
