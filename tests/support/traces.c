#include "tests/support/traces.h"

bl_trace_info bl_test_info(int n_layers, const int *layers, int n_experts, int top_k) {
    bl_error err;
    bl_trace_info info;
    assert_ok(
        bl_trace_info_create("test", layers, n_layers, n_experts, top_k, "test", &info, &err));
    return info;
}

bl_blt_writer *bl_test_create(const char *path, const bl_trace_info *info) {
    bl_error err;
    bl_blt_writer *writer = NULL;
    assert_ok(bl_blt_create(path, info, false, &writer, &err));
    return writer;
}

bl_record bl_test_record(uint64_t step, int layer, int rank, int n_ids, int k, uint64_t n_tokens,
                         const int32_t *ids) {
    return (bl_record){.step = step,
                       .layer = layer,
                       .rank = rank,
                       .phase = BL_PHASE_DECODE,
                       .n_ids = n_ids,
                       .n_tokens = n_tokens,
                       .k = k,
                       .ids = ids};
}

void bl_test_put(bl_blt_writer *writer, bl_record record) {
    bl_error err;
    assert_ok(bl_blt_write(writer, &record, &err));
}

void bl_test_close(bl_blt_writer *writer) {
    bl_error err;
    assert_ok(bl_blt_close(writer, &err));
}

bl_loads bl_test_loads(const char *path) {
    bl_error err;
    bl_loads loads = {0};
    const bl_loads_options options = BL_LOADS_OPTIONS_INIT;
    assert_ok(bl_loads_read(&path, 1, NULL, &options, &loads, &err));
    return loads;
}

void bl_test_loads_fail(const char *path, bl_status code, const char *part) {
    bl_error err;
    bl_loads loads = {0};
    const bl_loads_options options = BL_LOADS_OPTIONS_INIT;
    assert_fails(bl_loads_read(&path, 1, NULL, &options, &loads, &err), code, part);
}

void bl_test_row(const bl_loads *loads, size_t step, int layer_index, const uint64_t *want) {
    const uint64_t *row = bl_loads_row(loads, step, layer_index);
    for (int expert = 0; expert < loads->n_experts; expert++)
        assert_int_equal(row[expert], want[expert]);
}

const int32_t bl_test_golden[8] = {0, 2, 0, 2, 0, 1, 1, 3};

void bl_test_write_golden(const char *path) {
    bl_trace_info info = bl_test_info(1, (int[]){3}, 4, 2);
    bl_blt_writer *writer = bl_test_create(path, &info);
    bl_test_put(writer, bl_test_record(0, 3, 0, 4, 2, 4, bl_test_golden));
    bl_test_close(writer);
    bl_trace_info_free(&info);
}
