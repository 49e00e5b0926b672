#include "core/npy.h"

#include "core/half.h"
#include "core/io.h"
#include "core/mem.h"

#include <assert.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Layout: "\x93NUMPY", major, minor, header length (u16 in version 1, u32 in 2 and 3,
 * little-endian), the header (a Python dict literal), the data. */
#define MAGIC "\x93NUMPY"
#define MAGIC_BYTES 6
#define MAX_FILE_BYTES ((size_t)8 << 30)

typedef struct header {
    const char *text; /* the dict literal */
    size_t bytes;
    size_t data_at; /* offset of the data in the file */
} header;

static bl_status find_header(const unsigned char *bytes, size_t n_bytes, const char *name,
                             header *out, bl_error *err) {
    if (n_bytes < MAGIC_BYTES + 4 || memcmp(bytes, MAGIC, MAGIC_BYTES) != 0)
        return bl_fail_at(err, BL_ERR_PARSE, bl_at_byte(name, 0), "not an .npy file");
    const unsigned major = bytes[6];
    if (major < 1 || major > 3)
        return bl_fail_at(err, BL_ERR_VERSION, bl_at_byte(name, 6), ".npy version %u is unknown",
                          major);
    const size_t at = major == 1 ? 10 : 12;
    size_t length = (size_t)bytes[8] | (size_t)bytes[9] << 8;
    if (major > 1 && n_bytes >= at)
        length |= (size_t)bytes[10] << 16 | (size_t)bytes[11] << 24;
    if (n_bytes < at || length > n_bytes - at)
        return bl_fail_at(err, BL_ERR_PARSE, bl_at_byte(name, 8),
                          "the header is cut off (the file has %zu bytes)", n_bytes);
    *out = (header){(const char *)bytes + at, length, at + length};
    return BL_OK;
}

/* The text after "'key':" in the dict, or NULL; spaces are skipped. */
static const char *value_of(const header *h, const char *key) {
    const size_t key_bytes = strlen(key);
    for (const char *p = h->text, *end = h->text + h->bytes; p + key_bytes + 2 < end; p++) {
        if ((*p != '\'' && *p != '"') || memcmp(p + 1, key, key_bytes) != 0 ||
            p[key_bytes + 1] != *p)
            continue;
        p += key_bytes + 2;
        while (p < end && (*p == ' ' || *p == ':'))
            p++;
        return p < end ? p : NULL;
    }
    return NULL;
}

static bl_status parse_descr(const header *h, const char *name, bl_npy *out, bl_error *err) {
    const char *p = value_of(h, "descr"), *end = h->text + h->bytes;
    if (p == NULL || end - p < 5 || (*p != '\'' && *p != '"') || p[4] != *p)
        return bl_fail_at(err, BL_ERR_UNSUPPORTED, bl_at(name),
                          "the items are not plain numbers (\"descr\" is %.*s)",
                          p == NULL ? 7 : (int)(end - p < 20 ? end - p : 20),
                          p == NULL ? "missing" : p);
    const char order = p[1], kind = p[2];
    const int item_bytes = p[3] - '0';
    const bool known = (strchr("iu", kind) != NULL && strchr("1248", p[3]) != NULL) ||
                       (kind == 'f' && strchr("248", p[3]) != NULL) ||
                       (kind == 'b' && item_bytes == 1);
    if (!known || kind == '\0' || p[3] == '\0')
        return bl_fail_at(err, BL_ERR_UNSUPPORTED, bl_at(name),
                          "items of type %.3s are not supported", p + 1);
    if (order == '>' && item_bytes > 1)
        return bl_fail_at(err, BL_ERR_UNSUPPORTED, bl_at(name),
                          "big-endian items are not supported; save with .astype('<%c%d')", kind,
                          item_bytes);
    out->kind = kind;
    out->item_bytes = item_bytes;
    return BL_OK;
}

static bl_status parse_shape(const header *h, const char *name, bl_npy *out, bl_error *err) {
    const char *p = value_of(h, "shape"), *end = h->text + h->bytes;
    if (p == NULL || *p != '(')
        return bl_fail_at(err, BL_ERR_PARSE, bl_at(name), "the header has no \"shape\"");
    size_t n_items = 1;
    for (p++; p < end && *p != ')'; p++) {
        if (*p == ' ' || *p == ',' || *p == 'L')
            continue;
        if (*p < '0' || *p > '9' || out->n_dims == BL_NPY_MAX_DIMS)
            return bl_fail_at(err, BL_ERR_PARSE, bl_at(name), "the header's shape is malformed");
        size_t extent = 0;
        for (; p < end && *p >= '0' && *p <= '9'; p++) {
            if (!bl_size_mul(extent, 10, &extent) ||
                !bl_size_add(extent, (size_t)(*p - '0'), &extent))
                return bl_fail_at(err, BL_ERR_RANGE, bl_at(name), "the shape overflows");
        }
        p--;
        out->shape[out->n_dims++] = extent;
        if (!bl_size_mul(n_items, extent, &n_items))
            return bl_fail_at(err, BL_ERR_RANGE, bl_at(name), "the shape overflows");
    }
    if (p >= end)
        return bl_fail_at(err, BL_ERR_PARSE, bl_at(name), "the header's shape is malformed");
    out->n_items = n_items;
    return BL_OK;
}

bl_status bl_npy_parse(const void *bytes, size_t n_bytes, const char *name, bl_npy *out,
                       bl_error *err) {
    header h = {0};
    bl_npy npy = {0};
    BL_TRY(find_header(bytes, n_bytes, name, &h, err));
    BL_TRY(parse_descr(&h, name, &npy, err));
    BL_TRY(parse_shape(&h, name, &npy, err));
    const char *fortran = value_of(&h, "fortran_order");
    if (fortran == NULL || *fortran != 'F')
        return bl_fail_at(err, BL_ERR_UNSUPPORTED, bl_at(name),
                          "the array is not in C order; save numpy.ascontiguousarray(a)");
    size_t data_bytes;
    if (!bl_size_mul(npy.n_items, (size_t)npy.item_bytes, &data_bytes) ||
        n_bytes - h.data_at != data_bytes)
        return bl_fail_at(err, BL_ERR_SHAPE, bl_at_byte(name, (int64_t)h.data_at),
                          "%zu bytes of data, but the header says %zu items of %d bytes",
                          n_bytes - h.data_at, npy.n_items, npy.item_bytes);
    npy.data = (const unsigned char *)bytes + h.data_at;
    *out = npy;
    return BL_OK;
}

bl_status bl_npy_load(const char *path, bl_npy *out, bl_error *err) {
    char *bytes = NULL;
    size_t n_bytes = 0;
    BL_TRY(bl_read_file(path, MAX_FILE_BYTES, &bytes, &n_bytes, err));
    bl_npy npy;
    const bl_status st = bl_npy_parse(bytes, n_bytes, path, &npy, err);
    if (st < 0) {
        free(bytes);
        return st;
    }
    npy.owner = bytes;
    *out = npy;
    return BL_OK;
}

void bl_npy_free(bl_npy *npy) {
    free(npy->owner);
    *npy = (bl_npy){0};
}

/* Little-endian bytes of one item, zero-extended. */
static uint64_t raw_item(const bl_npy *npy, size_t index) {
    assert(index < npy->n_items);
    const unsigned char *p = npy->data + index * (size_t)npy->item_bytes;
    uint64_t bits = 0;
    for (int i = npy->item_bytes - 1; i >= 0; i--)
        bits = bits << 8 | p[i];
    return bits;
}

int64_t bl_npy_int(const bl_npy *npy, size_t index) {
    assert(npy->kind != 'f');
    const uint64_t bits = raw_item(npy, index);
    if (npy->kind != 'i')
        return bits > INT64_MAX ? INT64_MAX : (int64_t)bits;
    switch (npy->item_bytes) { /* sign-extend */
    case 1:
        return (int8_t)bits;
    case 2:
        return (int16_t)bits;
    case 4:
        return (int32_t)bits;
    default:
        return (int64_t)bits;
    }
}

double bl_npy_real(const bl_npy *npy, size_t index) {
    if (npy->kind != 'f')
        return (double)bl_npy_int(npy, index);
    const uint64_t bits = raw_item(npy, index);
    if (npy->item_bytes == 2)
        return bl_half_to_real((uint16_t)bits);
    if (npy->item_bytes == 4) {
        const uint32_t bits32 = (uint32_t)bits;
        float single;
        memcpy(&single, &bits32, sizeof single);
        return single;
    }
    double number;
    memcpy(&number, &bits, sizeof number);
    return number;
}

bl_status bl_npy_write(const char *path, const char *descr, const size_t *shape, int n_dims,
                       const void *data, bl_error *err) {
    char dims[256] = "";
    size_t used = 0, n_items = 1;
    for (int d = 0; d < n_dims; d++) {
        used += (size_t)snprintf(dims + used, sizeof dims - used, "%zu,%s", shape[d],
                                 d + 1 < n_dims ? " " : "");
        n_items *= shape[d];
    }
    /* NumPy pads with spaces so that the data starts at a multiple of 64. */
    char text[512];
    const int length = snprintf(
        text, sizeof text, "{'descr': '%s', 'fortran_order': False, 'shape': (%s), }", descr, dims);
    const size_t total = (10 + (size_t)length + 1 + 63) / 64 * 64, padded = total - 10;
    memset(text + length, ' ', padded - (size_t)length - 1);
    text[padded - 1] = '\n';

    bl_file file;
    BL_TRY(bl_file_create(&file, path, err));
    const unsigned char lead[4] = {1, 0, (unsigned char)padded, (unsigned char)(padded >> 8)};
    const size_t bytes = n_items * (size_t)(descr[2] - '0');
    if (fwrite(MAGIC, 1, MAGIC_BYTES, file.stream) != MAGIC_BYTES ||
        fwrite(lead, 1, 4, file.stream) != 4 || fwrite(text, 1, padded, file.stream) != padded ||
        fwrite(data, 1, bytes, file.stream) != bytes) {
        const int why = errno;
        bl_file_discard(&file);
        return bl_fail_at(err, BL_ERR_IO, bl_at(path), "cannot write: %s", strerror(why));
    }
    return bl_file_commit(&file, err);
}
