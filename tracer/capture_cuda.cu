/*
 * capture_cuda.cu: tracing from a GPU (include/ballast.h): the ring is pinned and mapped, and one
 * small kernel per call packs into it. All that it decides is in tracer/pack.h, which the CPU tests run
 * too; here is only which thread does what.
 *
 * Nothing here synchronises. Launches are valid inside a stream capture: their arguments are pointers
 * and numbers that hold for every replay (the layer, the size of the buffer), and whatever changes is
 * read from the block and the state in device memory.
 */
extern "C" {
#include "ballast.h"
}

#include "tracer/pack.h"

#include <cuda_runtime.h>
#include <stdlib.h>

extern "C" {
/* capture_cuda_host.c: what the kernels need of a tracer, whose struct is C. */
int bl_capture_cuda_describe(bl_tracer *tracer, void **memory, size_t *bytes, size_t offsets[5],
                             bl_pack_device *device);
int bl_capture_cuda_layer(bl_tracer *tracer, int layer);
void bl_capture_cuda_keep(bl_tracer *tracer, void *cuda);
void *bl_capture_cuda_state(bl_tracer *tracer);
}

namespace {

const int THREADS = 1024;

struct cuda_state {
    void *memory;           /* of the ring, registered */
    bl_pack_device *device; /* in device memory */
    bl_pack_block *block;   /* in device memory */
    uint32_t *counts;       /* in device memory, [n_experts] */
};

__global__ void begin_step(bl_pack_device *d, const bl_pack_block *block) {
    bl_pack_begin_step(d, block);
}

/* What slot `slot` is, and its traces in shared memory. */
__device__ void note(int what, uint64_t slot, unsigned *n_empty, unsigned long long *bad) {
    if (what == 1)
        atomicAdd(n_empty, 1u);
    else if (what == 2)
        atomicMin(bad, (unsigned long long)slot);
}

__device__ void pack_ids(bl_pack_device *d, const void *ids, int id_bytes, uint64_t row_bytes,
                         unsigned *n_empty, unsigned long long *bad) {
    const uint64_t slots = (uint64_t)d->n_tokens * (uint64_t)d->k;
    for (uint64_t slot = threadIdx.x; slot < slots; slot += blockDim.x)
        note(bl_pack_slot(d, slot, ids, id_bytes, row_bytes), slot, n_empty, bad);
    __syncthreads();
    for (uint64_t at = threadIdx.x; *n_empty > 0 && at < (slots + 7) / 8; at += blockDim.x)
        bl_pack_bitmap_byte(d, at, ids, id_bytes, row_bytes);
}

__device__ void pack_counts(bl_pack_device *d, const void *ids, int id_bytes, uint64_t row_bytes,
                            unsigned *n_empty, unsigned long long *bad) {
    const uint64_t slots = (uint64_t)d->n_tokens * (uint64_t)d->k, n_ids = (uint64_t)d->n_ids;
    for (uint64_t id = threadIdx.x; id < n_ids; id += blockDim.x)
        d->counts[id] = 0;
    __syncthreads();
    for (uint64_t slot = threadIdx.x; slot < slots; slot += blockDim.x) {
        int64_t id;
        const int what = bl_pack_counted(d, slot, ids, id_bytes, row_bytes, &id);
        note(what, slot, n_empty, bad);
        if (what == 0)
            atomicAdd(&d->counts[id], 1u);
    }
    __syncthreads();
    for (uint64_t id = threadIdx.x; id < n_ids; id += blockDim.x)
        bl_pack_store_count(d, id);
}

/* One block of threads: reservation, packing and the entry's header follow each other. */
__global__ void push(bl_pack_device *d, const bl_pack_block *block, int layer, const void *ids,
                     int id_bytes, uint32_t max_tokens, uint64_t row_bytes) {
    __shared__ unsigned n_empty;
    __shared__ unsigned long long bad;
    if (threadIdx.x == 0) {
        n_empty = 0;
        bad = ~0ull;
        bl_pack_begin_layer(d, block, max_tokens);
    }
    __syncthreads();
    if (d->entry != 0) {
        if (d->counting)
            pack_counts(d, ids, id_bytes, row_bytes, &n_empty, &bad);
        else
            pack_ids(d, ids, id_bytes, row_bytes, &n_empty, &bad);
        __threadfence_system(); /* what this thread wrote is in host memory before `head` moves */
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        d->n_empty = n_empty;
        if (bad != ~0ull) {
            const uint64_t k = (uint64_t)d->k;
            d->has_bad = 1;
            d->bad_id = bl_pack_id((const unsigned char *)ids + bad / k * row_bytes +
                                       bad % k * (uint64_t)id_bytes,
                                   id_bytes);
        }
        bl_pack_end_layer(d, block, layer);
    }
}

__global__ void end_step(bl_pack_device *d) {
    bl_pack_end_step(d);
}

int status_of(cudaError_t error) {
    switch (error) {
    case cudaSuccess:
        return BL_OK;
    case cudaErrorMemoryAllocation:
        return BL_ERR_NOMEM;
    case cudaErrorNoDevice:
    case cudaErrorInsufficientDriver:
    case cudaErrorStubLibrary:
        return BL_ERR_UNSUPPORTED;
    default:
        return BL_ERR_IO;
    }
}

void release(cuda_state *s) {
    cudaFree(s->device);
    cudaFree(s->block);
    cudaFree(s->counts);
    if (s->memory != 0)
        cudaHostUnregister(s->memory);
    free(s);
}

/* Pin the ring and point the device's copy of the producer at it. */
cudaError_t prepare(cuda_state *s, void *memory, size_t bytes, const size_t offsets[5],
                    bl_pack_device *d) {
    void *seen = 0;
    cudaError_t error =
        cudaHostRegister(memory, bytes, cudaHostRegisterMapped | cudaHostRegisterPortable);
    if (error != cudaSuccess)
        return error;
    s->memory = memory;
    error = cudaHostGetDevicePointer(&seen, memory, 0);
    if (error != cudaSuccess)
        return error;
    unsigned char *base = (unsigned char *)seen;
    d->ring.data = base + offsets[0];
    d->ring.head = (bl_word *)(base + offsets[1]);
    d->ring.tail = (bl_word *)(base + offsets[2]);
    d->control = (bl_word *)(base + offsets[3]);
    d->counters = (bl_pack_counters *)(base + offsets[4]);
    d->drops = (bl_pack_drops *)(base + (size_t)(uintptr_t)d->drops);
    error = cudaMalloc((void **)&s->device, sizeof *d);
    if (error == cudaSuccess)
        error = cudaMalloc((void **)&s->counts, (size_t)d->n_ids * sizeof *s->counts);
    d->counts = s->counts;
    if (error == cudaSuccess)
        error = cudaMalloc((void **)&s->block, sizeof *s->block);
    if (error == cudaSuccess)
        error = cudaMemset(s->block, 0, sizeof *s->block);
    if (error == cudaSuccess)
        error = cudaMemcpy(s->device, d, sizeof *d, cudaMemcpyHostToDevice);
    return error;
}

} // namespace

extern "C" int bl_trace_cuda_open(bl_tracer *tracer, bl_trace_cuda_block **block_p) {
    static_assert(sizeof(bl_trace_cuda_block) == sizeof(bl_pack_block), "one block, two names");
    if (tracer == 0)
        return BL_OK;
    if (block_p == 0)
        return BL_ERR_USAGE;
    void *memory;
    size_t bytes, offsets[5];
    bl_pack_device d;
    const int st = bl_capture_cuda_describe(tracer, &memory, &bytes, offsets, &d);
    if (st < 0)
        return st;
    cuda_state *s = (cuda_state *)calloc(1, sizeof *s);
    if (s == 0)
        return BL_ERR_NOMEM;
    const cudaError_t error = prepare(s, memory, bytes, offsets, &d);
    if (error != cudaSuccess) {
        release(s);
        return status_of(error);
    }
    bl_capture_cuda_keep(tracer, s);
    *block_p = (bl_trace_cuda_block *)s->block;
    return BL_OK;
}

extern "C" int bl_trace_cuda_step_begin(bl_tracer *tracer, void *stream) {
    if (tracer == 0)
        return BL_OK;
    const cuda_state *s = (const cuda_state *)bl_capture_cuda_state(tracer);
    if (s == 0)
        return BL_ERR_STATE;
    begin_step<<<1, 1, 0, (cudaStream_t)stream>>>(s->device, s->block);
    return status_of(cudaPeekAtLastError());
}

extern "C" int bl_trace_push_cuda(bl_tracer *tracer, int layer, const void *ids, int id_bytes,
                                  size_t max_tokens, size_t row_bytes, void *stream) {
    if (tracer == 0)
        return BL_OK;
    const cuda_state *s = (const cuda_state *)bl_capture_cuda_state(tracer);
    if (s == 0)
        return BL_ERR_STATE;
    if (id_bytes != 1 && id_bytes != 2 && id_bytes != 4 && id_bytes != 8)
        return BL_ERR_USAGE;
    if (bl_capture_cuda_layer(tracer, layer) < 0 || max_tokens > UINT32_MAX)
        return BL_ERR_RANGE;
    push<<<1, THREADS, 0, (cudaStream_t)stream>>>(s->device, s->block, layer, ids, id_bytes,
                                                  (uint32_t)max_tokens, row_bytes);
    return status_of(cudaPeekAtLastError());
}

extern "C" int bl_trace_cuda_step_end(bl_tracer *tracer, void *stream) {
    if (tracer == 0)
        return BL_OK;
    const cuda_state *s = (const cuda_state *)bl_capture_cuda_state(tracer);
    if (s == 0)
        return BL_ERR_STATE;
    end_step<<<1, 1, 0, (cudaStream_t)stream>>>(s->device);
    return status_of(cudaPeekAtLastError());
}

extern "C" int bl_trace_cuda_close(bl_tracer *tracer) {
    if (tracer == 0)
        return BL_OK;
    cuda_state *s = (cuda_state *)bl_capture_cuda_state(tracer);
    if (s == 0)
        return BL_ERR_STATE;
    bl_capture_cuda_keep(tracer, 0);
    release(s);
    return BL_OK;
}
