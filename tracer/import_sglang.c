/*
 * import_sglang.c: dumps of SGLang's expert distribution recorder.
 *
 * Modes stat and stat_approx write, on rank 0 only, {"rank", "logical_count" [step, layer, expert],
 * "average_utilization_rate_over_window"}: counts summed over ranks, one row for each decoder
 * layer, dense ones included. The steps are a ring buffer in ring order; those never filled are
 * zero and are left out.
 */
#include "tracer/import_sink.h"

#include "core/mem.h"
#include "tracer/torch.h"

#include <stdlib.h>

static bl_status steps_from_tensor(bl_import_sink *sink, const bl_torch_tensor *count,
                                   bl_error *err) {
    const size_t n_rows = count->shape[1], n_experts = count->shape[2];
    double *load = NULL;
    BL_TRY(BL_CALLOC(load, n_rows * n_experts, err));
    bl_status st = BL_OK;
    for (size_t step = 0; st == BL_OK && step < count->shape[0]; step++) {
        for (size_t row = 0; row < n_rows; row++) {
            for (size_t expert = 0; expert < n_experts; expert++)
                load[row * n_experts + expert] =
                    (double)bl_torch_int(count, step * count->stride[0] + row * count->stride[1] +
                                                    expert * count->stride[2]);
        }
        st = bl_sink_loads(sink, load, 0, err);
    }
    free(load);
    return st;
}

static bl_status import_stat(bl_import_sink *sink, const bl_torch_value *root, const char *path,
                             bl_error *err) {
    const bl_torch_value *value = bl_torch_get(root, "logical_count");
    if (value == NULL && bl_torch_get(root, "records") != NULL)
        return bl_fail_at(
            err, BL_ERR_UNSUPPORTED, bl_at(path),
            "a dump of mode per_pass or per_token; import it with --from sglang-pass");
    if (value == NULL || value->type != BL_TORCH_TENSOR)
        return bl_fail_at(err, BL_ERR_PARSE, bl_at(path), "no tensor under \"logical_count\"");
    const bl_torch_tensor *count = value->tensor;
    if (count->n_dims != 3 || (count->kind != 'i' && count->kind != 'u') ||
        count->shape[1] > BL_MAX_LAYERS || count->shape[2] < 1 || count->shape[2] > BL_MAX_EXPERTS)
        return bl_fail_at(err, BL_ERR_SHAPE, bl_at(path),
                          "\"logical_count\" is not integers [step, layer, expert]");
    const bl_source_shape shape = {.file = path,
                                   .n_rows = (int)count->shape[1],
                                   .n_experts = (int)count->shape[2],
                                   .phase = -1};
    BL_TRY(bl_sink_begin(sink, &shape, err));
    return steps_from_tensor(sink, count, err);
}

bl_status bl_import_sglang_stat(bl_import_sink *sink, const char *path, bl_error *err) {
    bl_torch *torch = NULL;
    BL_TRY(bl_torch_open(path, &torch, err));
    const bl_status st = import_stat(sink, bl_torch_root(torch), path, err);
    bl_torch_free(torch);
    return st;
}
