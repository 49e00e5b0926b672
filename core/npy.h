/*
 * npy.h: NumPy's .npy arrays, in and out.
 *
 * Reads format versions 1 to 3, C order, little-endian or single-byte items of kind b1, u1..u8,
 * i1..i8, f2, f4, f8; everything else (Fortran order, big-endian, objects, structures) is refused
 * by name. The data stays in its own type: bl_npy_int() and bl_npy_real() convert item by item. A
 * file whose size does not match its header exactly is refused.
 */
#ifndef BL_CORE_NPY_H
#define BL_CORE_NPY_H

#include "core/status.h"

#include <stddef.h>

#define BL_NPY_MAX_DIMS 8

typedef struct bl_npy {
    char kind;      /* 'b', 'u', 'i' or 'f' */
    int item_bytes; /* 1, 2, 4 or 8 */
    int n_dims;
    size_t shape[BL_NPY_MAX_DIMS]; /* row-major: the last axis is contiguous */
    size_t n_items;                /* product of shape */
    const unsigned char *data; /* n_items * item_bytes, perhaps unaligned; borrowed from owner */
    void *owner;               /* what bl_npy_free() releases; NULL for a parsed buffer */
} bl_npy;

/* Load a file of at most 8 GiB. Release with bl_npy_free(). */
bl_status bl_npy_load(const char *path, bl_npy *out, bl_error *err);

/* Parse an .npy image in memory; `out->data` points into `bytes`, which must outlive it. */
bl_status bl_npy_parse(const void *bytes, size_t n_bytes, const char *name, bl_npy *out,
                       bl_error *err);
void bl_npy_free(bl_npy *npy); /* safe on a zeroed struct */

/* Item `index` of an integer or bool array as int64 (u8 values above INT64_MAX: INT64_MAX), or of
 * any array as double. Asserts index < n_items. */
int64_t bl_npy_int(const bl_npy *npy, size_t index);
double bl_npy_real(const bl_npy *npy, size_t index);

/* Write an array; `descr` as NumPy spells it: "|u1", "<i4", "<f4", "<i8", ... */
bl_status bl_npy_write(const char *path, const char *descr, const size_t *shape, int n_dims,
                       const void *data, bl_error *err);

#endif
