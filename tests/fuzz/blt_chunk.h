/*
 * blt_chunk.h: bytes from a fuzzer as the content of a chunk, in a trace file whose checksums are
 * right; checksums would stop almost every change otherwise. Bit 0 of byte 0 is the chunk's kind, bit 1
 * the format's version, bytes 1 and 2 the number of items; what follows is the content.
 */
#ifndef BL_TESTS_FUZZ_BLT_CHUNK_H
#define BL_TESTS_FUZZ_BLT_CHUNK_H

#include "core/hash.h"
#include "tracer/blt.h"
#include "tracer/blt_format.h"
#include "tracer/le.h"

#include <stdlib.h>
#include <string.h>
#include <zstd.h>

static size_t blt_put_header(unsigned char *out, unsigned version) {
    static const char text[] = "{\"model\":{\"name\":\"toy\",\"layers\":[1,2],\"experts\":4,"
                               "\"top_k\":2},\"source\":\"fuzz\",\"ranks\":0,\"present\":[]}";
    const size_t n = sizeof text - 1;
    memcpy(out, BL_BLT_MAGIC, 8);
    bl_put_le(out + 8, version, 4);
    bl_put_le(out + 12, n, 4);
    memcpy(out + 16, text, n);
    bl_put_le(out + 16 + n, bl_hash64(out, 16 + n), 8);
    return 16 + n + 8;
}

/* The whole file, *n bytes, to be freed; NULL when there is too little to make one of. */
static unsigned char *blt_file_of_chunk(const uint8_t *data, size_t size, size_t *n) {
    if (size < 4)
        return NULL;
    const size_t bound = ZSTD_compressBound(size);
    unsigned char *file = malloc(1024 + bound);
    if (file == NULL)
        return NULL;
    const size_t at = blt_put_header(file, data[0] & 2 ? 2 : 1);
    unsigned char *stored = file + at + BL_BLT_FRAME_BYTES;
    const size_t stored_bytes = ZSTD_compress(stored, bound, data + 3, size - 3, 1);
    const bl_blt_frame frame = {.kind = data[0] % 2 ? BL_BLT_MAPS : BL_BLT_RECS,
                                .items = bl_get_u16(data + 1),
                                .stored_bytes = stored_bytes,
                                .raw_bytes = size - 3,
                                .last_step = UINT64_MAX,
                                .hash = bl_hash64(stored, stored_bytes)};
    bl_blt_frame_pack(&frame, file + at);
    *n = at + BL_BLT_FRAME_BYTES + stored_bytes;
    return file;
}

#endif
