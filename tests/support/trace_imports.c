#include "tests/support/trace_imports.h"

#include <string.h>
#include <unistd.h>

bl_import_result bl_test_import_trace(const char *format, const char *path,
                                      const bl_import_options *options, const char *out) {
    bl_error err;
    bl_import_result result = {0};
    assert_ok(bl_import(format, &path, 1, options, out, &result, &err));
    return result;
}

void bl_test_import_trace_fails(const char *format, const char *path,
                                const bl_import_options *options, bl_status code,
                                const char *part) {
    bl_error err;
    bl_import_result result;
    const char *out = bl_test_temp("never.blt");
    assert_fails(bl_import(format, &path, 1, options, out, &result, &err), code, part);
    assert_true(access(out, F_OK) != 0); /* nothing half-written */
}

bl_loads bl_test_import_loads(const char *path, const bl_model *model) {
    bl_error err;
    bl_loads loads = {0};
    const bl_loads_options options = BL_LOADS_OPTIONS_INIT;
    assert_ok(bl_loads_read(&path, 1, model, &options, &loads, &err));
    return loads;
}

void bl_test_count_tokens(const bl_npy *npy, size_t first, size_t end, uint64_t *counts,
                          size_t n_experts) {
    const size_t n_rows = npy->shape[1], k = npy->shape[2];
    memset(counts, 0, n_rows * n_experts * sizeof *counts);
    for (size_t token = first; token < end; token++) {
        for (size_t row = 0; row < n_rows; row++) {
            for (size_t j = 0; j < k; j++)
                counts[row * n_experts + (size_t)bl_npy_int(npy, (token * n_rows + row) * k + j)]++;
        }
    }
}

bl_model bl_test_lite_model(void) {
    static int moe[26];
    for (int l = 0; l < 26; l++)
        moe[l] = l + 1;
    return (bl_model){.name = "DeepSeek-V2-Lite",
                      .n_layers = 27,
                      .n_moe_layers = 26,
                      .moe_layers = moe,
                      .n_experts = 64,
                      .top_k = 6};
}
