/*
 * cuda_runtime_api.h: what runtime/transport_nccl.c uses of the CUDA run time, for builds without it.
 * In fake_nccl.c device memory is memory, and a stream a list of work that may stand still.
 */
#ifndef BL_FAKE_CUDA_RUNTIME_API_H
#define BL_FAKE_CUDA_RUNTIME_API_H

#include <stddef.h>

typedef enum {
    cudaSuccess = 0,
    cudaErrorInvalidValue = 1,
    cudaErrorMemoryAllocation = 2,
    cudaErrorInvalidDevice = 101,
    cudaErrorNotReady = 600
} cudaError_t;

enum cudaMemcpyKind { cudaMemcpyHostToDevice = 1, cudaMemcpyDeviceToHost = 2 };
enum cudaMemoryType {
    cudaMemoryTypeUnregistered = 0,
    cudaMemoryTypeHost = 1,
    cudaMemoryTypeDevice = 2,
    cudaMemoryTypeManaged = 3
};

typedef struct fake_cuda_stream *cudaStream_t;

struct cudaPointerAttributes {
    enum cudaMemoryType type;
};

#define cudaStreamNonBlocking 1

cudaError_t cudaSetDevice(int device);
cudaError_t cudaMalloc(void **data, size_t bytes);
cudaError_t cudaFree(void *data);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamQuery(cudaStream_t stream);
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t stream);
cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *out, const void *data);
cudaError_t cudaGetLastError(void);
const char *cudaGetErrorString(cudaError_t error);

#endif
