/*
 * torch_file.h: files as torch.save writes them, made in memory: a pickle that is put together piece by
 * piece, and the storages of its tensors.
 *
 *     bl_test_pt_open(&pt);
 *     bl_test_pt_ops(&pt, "}(");           an empty dict, a mark
 *     bl_test_pt_string(&pt, "rank");
 *     bl_test_pt_int(&pt, 3);
 *     bl_test_pt_ops(&pt, "u");            set the items above the mark
 *     path = bl_test_pt_write(&pt, "x.pt");
 */
#ifndef BL_TESTS_TORCH_FILE_H
#define BL_TESTS_TORCH_FILE_H

#include "tests/support/support.h"

#define BL_TEST_PT_STORAGES 64

typedef struct bl_test_pt {
    unsigned char pickle[1 << 15];
    size_t n_pickle;
    unsigned char storage[BL_TEST_PT_STORAGES][1024];
    size_t storage_bytes[BL_TEST_PT_STORAGES];
    size_t n_storages;
} bl_test_pt;

/* A zip of stored entries without checksums into `out`; returns its size. At most
 * BL_TEST_PT_STORAGES + 1 entries. */
size_t bl_test_zip(unsigned char *out, const char *const *names, const unsigned char *const *data,
                   const size_t *sizes, size_t n);

void bl_test_pt_open(bl_test_pt *pt);
void bl_test_pt_ops(bl_test_pt *pt, const char *ops);
void bl_test_pt_string(bl_test_pt *pt, const char *text);
void bl_test_pt_int(bl_test_pt *pt, int value);
/* An int32 tensor of its own storage. */
void bl_test_pt_tensor(bl_test_pt *pt, const int32_t *items, const int *shape, int n_dims);
/* Returns bl_test_temp(name). */
const char *bl_test_pt_write(bl_test_pt *pt, const char *name);

#endif
