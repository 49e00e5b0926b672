/* Stands in for device_cuda.c in builds without CUDA. */
#include "core/device.h"

bl_status bl_memory_open(int index, bl_memory **out, bl_error *err) {
    (void)out;
    return bl_fail(err, BL_ERR_UNSUPPORTED, "this build has no CUDA for GPU %d: make CUDA=1",
                   index);
}

bool bl_memory_is_on_gpu(const void *data) {
    (void)data;
    return false;
}
