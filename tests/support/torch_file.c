#include "tests/support/torch_file.h"

#include "core/io.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void put_u32_at(unsigned char *at, size_t value) {
    for (int b = 0; b < 4; b++)
        at[b] = (unsigned char)(value >> 8 * b);
}

size_t bl_test_zip(unsigned char *out, const char *const *names, const unsigned char *const *data,
                   const size_t *sizes, size_t n) {
    size_t at = 0, offsets[BL_TEST_PT_STORAGES + 1], start;
    for (size_t i = 0; i < n; i++) {
        const size_t length = strlen(names[i]);
        offsets[i] = at;
        memset(out + at, 0, 30);
        memcpy(out + at, "PK\3\4", 4);
        out[at + 26] = (unsigned char)length;
        memcpy(out + at + 30, names[i], length);
        memcpy(out + at + 30 + length, data[i], sizes[i]);
        at += 30 + length + sizes[i];
    }
    start = at;
    for (size_t i = 0; i < n; i++) {
        const size_t length = strlen(names[i]);
        memset(out + at, 0, 46);
        memcpy(out + at, "PK\1\2", 4);
        put_u32_at(out + at + 20, sizes[i]);
        put_u32_at(out + at + 24, sizes[i]);
        put_u32_at(out + at + 42, offsets[i]);
        out[at + 28] = (unsigned char)length;
        memcpy(out + at + 46, names[i], length);
        at += 46 + length;
    }
    memset(out + at, 0, 22);
    memcpy(out + at, "PK\5\6", 4);
    out[at + 8] = out[at + 10] = (unsigned char)n;
    put_u32_at(out + at + 12, at - start);
    put_u32_at(out + at + 16, start);
    return at + 22;
}

void bl_test_pt_open(bl_test_pt *pt) {
    memset(pt, 0, sizeof *pt);
    bl_test_pt_ops(pt, "\x80\2");
}

void bl_test_pt_ops(bl_test_pt *pt, const char *ops) {
    const size_t n = strlen(ops);
    assert_true(pt->n_pickle + n <= sizeof pt->pickle);
    memcpy(pt->pickle + pt->n_pickle, ops, n);
    pt->n_pickle += n;
}

static void put_u32(bl_test_pt *pt, char op, uint32_t value) {
    const unsigned char bytes[5] = {(unsigned char)op, (unsigned char)value,
                                    (unsigned char)(value >> 8), (unsigned char)(value >> 16),
                                    (unsigned char)(value >> 24)};
    assert_true(pt->n_pickle + sizeof bytes <= sizeof pt->pickle);
    memcpy(pt->pickle + pt->n_pickle, bytes, sizeof bytes);
    pt->n_pickle += sizeof bytes;
}

void bl_test_pt_string(bl_test_pt *pt, const char *text) {
    put_u32(pt, 'X', (uint32_t)strlen(text));
    bl_test_pt_ops(pt, text);
}

void bl_test_pt_int(bl_test_pt *pt, int value) {
    put_u32(pt, 'J', (uint32_t)value);
}

static void put_tuple(bl_test_pt *pt, const int *values, int n) {
    bl_test_pt_ops(pt, "(");
    for (int d = 0; d < n; d++)
        bl_test_pt_int(pt, values[d]);
    bl_test_pt_ops(pt, "t");
}

void bl_test_pt_tensor(bl_test_pt *pt, const int32_t *items, const int *shape, int n_dims) {
    char key[16];
    int strides[8], n = 1;
    assert_true(pt->n_storages < BL_TEST_PT_STORAGES);
    for (int d = n_dims - 1; d >= 0; d--) {
        strides[d] = n;
        n *= shape[d];
    }
    const size_t at = pt->n_storages++, bytes = (size_t)n * sizeof *items;
    assert_true(bytes <= sizeof pt->storage[at]);
    memcpy(pt->storage[at], items, bytes);
    pt->storage_bytes[at] = bytes;
    snprintf(key, sizeof key, "%zu", at);
    bl_test_pt_ops(pt, "ctorch._utils\n_rebuild_tensor_v2\n((");
    bl_test_pt_string(pt, "storage");
    bl_test_pt_ops(pt, "ctorch\nIntStorage\n");
    bl_test_pt_string(pt, key);
    bl_test_pt_string(pt, "cpu");
    bl_test_pt_int(pt, n);
    bl_test_pt_ops(pt, "tQ");
    bl_test_pt_int(pt, 0);
    put_tuple(pt, shape, n_dims);
    put_tuple(pt, strides, n_dims);
    bl_test_pt_ops(pt, "\x89)tR");
}

const char *bl_test_pt_write(bl_test_pt *pt, const char *name) {
    bl_error err;
    static unsigned char file[1 << 17];
    static char names[BL_TEST_PT_STORAGES + 1][40];
    const char *name_of[BL_TEST_PT_STORAGES + 1];
    const unsigned char *data[BL_TEST_PT_STORAGES + 1];
    size_t sizes[BL_TEST_PT_STORAGES + 1];
    bl_test_pt_ops(pt, ".");
    snprintf(names[0], sizeof names[0], "archive/data.pkl");
    name_of[0] = names[0];
    data[0] = pt->pickle;
    sizes[0] = pt->n_pickle;
    for (size_t i = 0; i < pt->n_storages; i++) {
        snprintf(names[i + 1], sizeof names[i + 1], "archive/data/%zu", i);
        name_of[i + 1] = names[i + 1];
        data[i + 1] = pt->storage[i];
        sizes[i + 1] = pt->storage_bytes[i];
    }
    const size_t n = bl_test_zip(file, name_of, data, sizes, pt->n_storages + 1);
    const char *path = bl_test_temp(name);
    assert_ok(bl_write_file(path, file, n, &err));
    return path;
}
