/*
 * torch.h: files written by torch.save, without torch.
 *
 * Such a file is a zip of stored (not compressed) entries: <stem>/data.pkl, a pickle of protocol 2
 * that describes objects, and <stem>/data/<key>, the raw bytes of each tensor's storage.
 *
 *     file.pt = zip { stem/data.pkl   {"rank": 0, "logical_count": tensor("0", shape, strides)}
 *                     stem/data/0     little-endian items
 *                     stem/byteorder  "little" (newer versions)  ... }
 *
 * A pickle is a program that may call anything. This reader runs a closed subset: dicts, lists,
 * tuples, numbers, strings, None, and the few calls that rebuild a tensor. Every other opcode and
 * every other global is refused by name, so nothing is ever executed. A storage's device ("cuda:0")
 * means nothing here: its bytes are in the file. Entries are checked against their CRC-32.
 */
#ifndef BL_TRACER_TORCH_H
#define BL_TRACER_TORCH_H

#include "core/mem.h"
#include "core/status.h"

#define BL_TORCH_MAX_DIMS 8

typedef enum bl_torch_type {
    BL_TORCH_NONE,
    BL_TORCH_BOOL,
    BL_TORCH_INT,
    BL_TORCH_REAL,
    BL_TORCH_STRING,
    BL_TORCH_LIST, /* also tuples */
    BL_TORCH_DICT,
    BL_TORCH_TENSOR,
    BL_TORCH_GLOBAL, /* an allowed name, before it is called */
    BL_TORCH_STORAGE
} bl_torch_type;

typedef struct bl_torch_tensor {
    char kind; /* 'u', 'i', 'f', 'b' as in core/npy.h */
    int item_bytes;
    int n_dims;
    size_t shape[BL_TORCH_MAX_DIMS];
    size_t stride[BL_TORCH_MAX_DIMS]; /* in items */
    const unsigned char *data;        /* first item, perhaps unaligned */
} bl_torch_tensor;

/* Small, because a recording lists its tokens one by one: millions of values. */
typedef struct bl_torch_value {
    bl_torch_type type;
    union {
        int64_t integer;               /* INT, BOOL */
        double real;                   /* REAL */
        const char *string;            /* STRING, GLOBAL: "module name"; terminated */
        struct bl_torch_value **items; /* LIST: [n]; DICT: [2 * n] keys and values in turn */
        bl_torch_tensor *tensor;       /* TENSOR; STORAGE: one axis over all of it */
    };
    size_t n, capacity; /* LIST, DICT */
} bl_torch_value;

typedef struct bl_torch bl_torch;

bl_status bl_torch_open(const char *path, bl_torch **torch_p, bl_error *err);
/* The same from memory; `bytes` must outlive the result. */
bl_status bl_torch_parse(const void *bytes, size_t n_bytes, const char *name, bl_torch **torch_p,
                         bl_error *err);
void bl_torch_free(bl_torch *torch); /* NULL is fine */

const bl_torch_value *bl_torch_root(const bl_torch *torch);

/* The value of a string key of a dict, or NULL. */
const bl_torch_value *bl_torch_get(const bl_torch_value *dict, const char *key);

/* The integer at data + offset items of an integer tensor. */
int64_t bl_torch_int(const bl_torch_tensor *tensor, size_t offset);

#endif
