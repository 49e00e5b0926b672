/*
 * traces.h: small traces for tests: make one record by record, read its loads, compare rows. All fail
 * the running test when something goes wrong.
 */
#ifndef BL_TESTS_TRACES_H
#define BL_TESTS_TRACES_H

#include "tests/support/support.h"
#include "tracer/blt.h"
#include "tracer/loads.h"

/* 4 tokens, 4 experts, top-2: T1 -> E1,E3  T2 -> E1,E3  T3 -> E1,E2  T4 -> E2,E4: rows 3, 2, 2, 1. */
extern const int32_t bl_test_golden[8];

bl_trace_info bl_test_info(int n_layers, const int *layers, int n_experts, int top_k);
bl_blt_writer *bl_test_create(const char *path, const bl_trace_info *info);
/* A decode record of logical ids. */
bl_record bl_test_record(uint64_t step, int layer, int rank, int n_ids, int k, uint64_t n_tokens,
                         const int32_t *ids);
void bl_test_put(bl_blt_writer *writer, bl_record record);
void bl_test_close(bl_blt_writer *writer);
/* The golden routing in step 0, layer 3, rank 0. */
void bl_test_write_golden(const char *path);

bl_loads bl_test_loads(const char *path);
void bl_test_loads_fail(const char *path, bl_status code, const char *part);
void bl_test_row(const bl_loads *loads, size_t step, int layer_index, const uint64_t *want);

#endif
