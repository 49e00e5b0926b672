/*
 * trace_imports.h: imports for tests: run one, let one fail, and what the true counts are. All fail the
 * running test when something goes wrong.
 */
#ifndef BL_TESTS_TRACE_IMPORTS_H
#define BL_TESTS_TRACE_IMPORTS_H

#include "core/npy.h"
#include "tests/support/support.h"
#include "tracer/import.h"
#include "tracer/loads.h"

bl_import_result bl_test_import_trace(const char *format, const char *path,
                                      const bl_import_options *options, const char *out);
/* It must fail, with `part` in its message, and leave no file behind. */
void bl_test_import_trace_fails(const char *format, const char *path,
                                const bl_import_options *options, bl_status code, const char *part);
bl_loads bl_test_import_loads(const char *path, const bl_model *model);

/* DeepSeek-V2-Lite: 27 decoder layers, the first one dense, 64 experts, top-6. Static storage. */
bl_model bl_test_lite_model(void);

/* counts[row][expert] of tokens [first, end) straight from an array [token, row, k]. */
void bl_test_count_tokens(const bl_npy *npy, size_t first, size_t end, uint64_t *counts,
                          size_t n_experts);

#endif
