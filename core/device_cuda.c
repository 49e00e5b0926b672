/* A GPU's memory by the CUDA run time. All copies go over one stream that waits for no other. */
#include "core/device.h"

#include "core/mem.h"

#include <cuda_runtime_api.h>
#include <stdlib.h>
#include <string.h>

typedef struct cuda_device {
    bl_memory base;
    cudaStream_t stream;
} cuda_device;

static cuda_device *cuda_of(bl_memory *memory) {
    return (cuda_device *)(void *)memory;
}

static bl_status cuda_failed(cudaError_t error, int index, const char *doing, bl_error *err) {
    cudaGetLastError(); /* it would be told again */
    return bl_fail(err, error == cudaErrorMemoryAllocation ? BL_ERR_NOMEM : BL_ERR_UNSUPPORTED,
                   "CUDA cannot %s on GPU %d: %s", doing, index, cudaGetErrorString(error));
}

#define CUDA_TRY(call, index, doing, err)                          \
    do {                                                           \
        const cudaError_t cuda_st_ = (call);                       \
        if (cuda_st_ != cudaSuccess)                               \
            return cuda_failed(cuda_st_, (index), (doing), (err)); \
    } while (0)

/* Threads of one process each have a device of their own that is current. */
static bl_status enter(const bl_memory *memory, bl_error *err) {
    CUDA_TRY(cudaSetDevice(memory->index), memory->index, "work", err);
    return BL_OK;
}

static bl_status finish(bl_memory *memory, const char *doing, bl_error *err) {
    CUDA_TRY(cudaStreamSynchronize(cuda_of(memory)->stream), memory->index, doing, err);
    return BL_OK;
}

bool bl_memory_is_on_gpu(const void *data) {
    struct cudaPointerAttributes attributes;
    if (cudaPointerGetAttributes(&attributes, data) != cudaSuccess) {
        cudaGetLastError();
        return false;
    }
    return attributes.type == cudaMemoryTypeDevice || attributes.type == cudaMemoryTypeManaged;
}

static bl_status cuda_copy(bl_memory *memory, void *to, const void *from, size_t bytes,
                           bl_error *err) {
    BL_TRY(enter(memory, err));
    CUDA_TRY(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, cuda_of(memory)->stream),
             memory->index, "copy", err);
    return finish(memory, "copy", err);
}

static bl_status cuda_clear(bl_memory *memory, void *to, size_t bytes, bl_error *err) {
    BL_TRY(enter(memory, err));
    if (!bl_memory_is_on_gpu(to)) {
        memset(to, 0, bytes);
        return BL_OK;
    }
    CUDA_TRY(cudaMemsetAsync(to, 0, bytes, cuda_of(memory)->stream), memory->index, "clear memory",
             err);
    return finish(memory, "clear memory", err);
}

static void cuda_free(bl_memory *memory, void *data) {
    if (enter(memory, NULL) >= 0)
        cudaFree(data);
}

static bl_status cuda_alloc(bl_memory *memory, size_t bytes, void **out, bl_error *err) {
    BL_TRY(enter(memory, err));
    CUDA_TRY(cudaMalloc(out, bytes), memory->index, "take memory", err);
    const bl_status st = cuda_clear(memory, *out, bytes, err);
    if (st < 0) {
        cudaFree(*out);
        *out = NULL;
    }
    return st;
}

static void cuda_close(bl_memory *memory) {
    if (cuda_of(memory)->stream != NULL && enter(memory, NULL) >= 0)
        cudaStreamDestroy(cuda_of(memory)->stream);
    free(memory->piece);
    free(memory);
}

static const bl_memory_ops cuda_ops = {.name = "cuda",
                                       .alloc = cuda_alloc,
                                       .free = cuda_free,
                                       .copy = cuda_copy,
                                       .clear = cuda_clear,
                                       .close = cuda_close};

static bl_status start(cuda_device *cuda, bl_error *err) {
    BL_TRY(BL_CALLOC(cuda->base.piece, BL_MEMORY_PIECE_BYTES, err));
    BL_TRY(enter(&cuda->base, err));
    CUDA_TRY(cudaStreamCreateWithFlags(&cuda->stream, cudaStreamNonBlocking), cuda->base.index,
             "make a stream", err);
    return BL_OK;
}

bl_status bl_memory_open(int index, bl_memory **out, bl_error *err) {
    cuda_device *cuda;
    BL_TRY(BL_CALLOC(cuda, 1, err));
    cuda->base.ops = &cuda_ops;
    cuda->base.index = index;
    const bl_status st = start(cuda, err);
    if (st < 0) {
        cuda_close(&cuda->base);
        return st;
    }
    *out = &cuda->base;
    return BL_OK;
}
