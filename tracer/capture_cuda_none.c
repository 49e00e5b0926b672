/*
 * capture_cuda_none.c: the GPU calls of ballast.h in a library built without CUDA. With it,
 * capture_cuda.cu takes this file's place.
 */
#include "ballast.h"

int bl_trace_cuda_open(bl_tracer *tracer, bl_trace_cuda_block **block_p) {
    (void)tracer;
    (void)block_p;
    return BL_ERR_UNSUPPORTED;
}

int bl_trace_cuda_step_begin(bl_tracer *tracer, void *stream) {
    (void)tracer;
    (void)stream;
    return BL_ERR_UNSUPPORTED;
}

int bl_trace_push_cuda(bl_tracer *tracer, int layer, const void *ids, int id_bytes,
                       size_t max_tokens, size_t row_bytes, void *stream) {
    (void)tracer;
    (void)layer;
    (void)ids;
    (void)id_bytes;
    (void)max_tokens;
    (void)row_bytes;
    (void)stream;
    return BL_ERR_UNSUPPORTED;
}

int bl_trace_cuda_step_end(bl_tracer *tracer, void *stream) {
    (void)tracer;
    (void)stream;
    return BL_ERR_UNSUPPORTED;
}

int bl_trace_cuda_close(bl_tracer *tracer) {
    (void)tracer;
    return BL_ERR_UNSUPPORTED;
}
