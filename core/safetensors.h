/*
 * safetensors.h: a reader of .safetensors files (checkpoints, statistics) that touches only what it
 * is asked for.
 *
 *     byte 0      8               8 + header bytes                          end of file
 *          +------+---------------+------------------------------------------+
 *          | u64  | JSON header   | tensor | tensor | tensor | ...            |
 *          +------+---------------+------------------------------------------+
 *                  {"name": {"dtype": "BF16", "shape": [rows, cols],
 *                            "data_offsets": [begin, end]}, ...}   from the end of the header
 *
 * Opening reads the header and checks all of it: known types, shapes that give the stated size,
 * ranges inside the file that neither overlap nor leave gaps. Tensors are then read one by one,
 * with pread, straight into the caller's memory. The file is never mapped and never read as a
 * whole: a rank must not hold the bytes of an expert it does not serve, not even as pages of a
 * mapping.
 *
 * All numbers are little-endian, as on the machines we run on. A checkpoint of several files is read
 * by core/checkpoint.h. A reader is read-only once opened: threads may share one.
 */
#ifndef BL_CORE_SAFETENSORS_H
#define BL_CORE_SAFETENSORS_H

#include "core/status.h"

#include <stddef.h>
#include <stdint.h>

#define BL_SAFETENSORS_MAX_DIMS 8
#define BL_SAFETENSORS_MAX_HEADER ((uint64_t)100 << 20) /* the limit of the format's own reader */

typedef struct bl_safetensor {
    const char *name;  /* borrowed from the reader */
    const char *dtype; /* "BF16", "F32", ...; static storage */
    int n_dims;
    uint64_t shape[BL_SAFETENSORS_MAX_DIMS];
    uint64_t begin; /* byte in the file */
    uint64_t bytes;
} bl_safetensor;

typedef struct bl_safetensors bl_safetensors;

bl_status bl_safetensors_open(const char *path, bl_safetensors **out, bl_error *err);

/* The same checks on a header in memory, in front of data_bytes bytes of tensors; for tests. Such a
 * reader knows its tensors but cannot read them. */
bl_status bl_safetensors_parse(const char *header, size_t header_bytes, uint64_t data_bytes,
                               const char *name, bl_safetensors **out, bl_error *err);
void bl_safetensors_free(bl_safetensors *reader); /* NULL is fine */

size_t bl_safetensors_count(const bl_safetensors *reader);
const bl_safetensor *bl_safetensors_at(const bl_safetensors *reader, size_t index);
/* The tensor of this name, or NULL; O(log tensors). */
const bl_safetensor *bl_safetensors_find(const bl_safetensors *reader, const char *name);

/* Read tensor `name`, which must have this type and shape, into `out` (its exact size). A wrong
 * type or shape is BL_ERR_SHAPE, an absent tensor BL_ERR_MODEL, each naming what was found. */
bl_status bl_safetensors_read(const bl_safetensors *reader, const char *name, const char *dtype,
                              const uint64_t *shape, int n_dims, void *out, bl_error *err);

#endif
