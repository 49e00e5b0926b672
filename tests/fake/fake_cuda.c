/* The CUDA run time's part: memory that the CPU cannot touch, and streams that may stand still. */
#define _GNU_SOURCE 1 /* memfd_create() */
#include "fake_parts.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define MAX_BLOCKS 256

pthread_mutex_t fake_lock = PTHREAD_MUTEX_INITIALIZER;
int fake_alive;

/* The same pages twice: where the program sees them, without any right, and where this file does. */
static struct {
    unsigned char *seen, *pages;
    size_t bytes;
} blocks[MAX_BLOCKS];
static int fail_in;
static char misuse_text[256];
static _Thread_local int device_now;

void fake_note(const char *misuse) {
    if (misuse_text[0] == '\0')
        snprintf(misuse_text, sizeof misuse_text, "%s", misuse);
}

bool fake_fails_now(void) {
    return fail_in > 0 && --fail_in == 0;
}

int fake_device(void) {
    return device_now;
}

const char *fake_nccl_misuse(void) {
    return misuse_text[0] != '\0' ? misuse_text : NULL;
}

void fake_nccl_fail_call(int n) {
    fail_in = n;
}

/* ---- memory --------------------------------------------------------------------------------- */

static void forget_block(int b) {
    if (blocks[b].seen == NULL)
        return;
    munmap(blocks[b].seen, blocks[b].bytes);
    munmap(blocks[b].pages, blocks[b].bytes);
    memset(&blocks[b], 0, sizeof blocks[b]);
}

int fake_nccl_reset(void) {
    const int left = fake_alive;
    fake_forget_communicators();
    for (int b = 0; b < MAX_BLOCKS; b++)
        forget_block(b);
    fail_in = fake_alive = 0;
    misuse_text[0] = '\0';
    return left;
}

static bool map_block(int b, size_t bytes) {
    const int fd = memfd_create("device", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, (off_t)bytes) != 0)
        return false;
    void *seen = mmap(NULL, bytes, PROT_NONE, MAP_SHARED, fd, 0);
    void *pages = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (seen == MAP_FAILED || pages == MAP_FAILED)
        abort();
    blocks[b].seen = seen;
    blocks[b].pages = pages;
    blocks[b].bytes = bytes;
    return true;
}

cudaError_t cudaSetDevice(int device) {
    if (device < 0 || device >= FAKE_MAX_RANKS)
        return cudaErrorInvalidDevice;
    device_now = device;
    return cudaSuccess;
}

cudaError_t cudaMalloc(void **data, size_t bytes) {
    cudaError_t result = cudaErrorMemoryAllocation;
    pthread_mutex_lock(&fake_lock);
    int b = 0;
    while (b < MAX_BLOCKS && blocks[b].seen != NULL)
        b++;
    if (!fake_fails_now() && b < MAX_BLOCKS && bytes > 0 && map_block(b, bytes)) {
        fake_alive++;
        memset(blocks[b].pages, 0x5a, bytes < 4096 ? bytes : 4096); /* nobody said zero */
        *data = blocks[b].seen;
        result = cudaSuccess;
    }
    pthread_mutex_unlock(&fake_lock);
    return result;
}

cudaError_t cudaFree(void *data) {
    pthread_mutex_lock(&fake_lock);
    for (int b = 0; b < MAX_BLOCKS && data != NULL; b++) {
        if (blocks[b].seen != data)
            continue;
        forget_block(b);
        fake_alive--;
    }
    pthread_mutex_unlock(&fake_lock);
    return cudaSuccess;
}

unsigned char *fake_on_device(const void *data, size_t bytes) {
    const uintptr_t at = (uintptr_t)data;
    for (int b = 0; b < MAX_BLOCKS; b++) {
        const uintptr_t start = (uintptr_t)blocks[b].seen;
        if (blocks[b].seen != NULL && at >= start && at + bytes <= start + blocks[b].bytes)
            return blocks[b].pages + (at - start);
    }
    return NULL;
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *out, const void *data) {
    pthread_mutex_lock(&fake_lock);
    out->type = fake_on_device(data, 1) != NULL ? cudaMemoryTypeDevice : cudaMemoryTypeUnregistered;
    pthread_mutex_unlock(&fake_lock);
    return cudaSuccess;
}

/* ---- streams -------------------------------------------------------------------------------- */

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags) {
    (void)flags;
    *stream = calloc(1, sizeof **stream);
    (*stream)->last = &(*stream)->first;
    pthread_mutex_lock(&fake_lock);
    fake_alive++;
    pthread_mutex_unlock(&fake_lock);
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    pthread_mutex_lock(&fake_lock);
    if (stream->first != NULL)
        fake_note("a stream that is destroyed before its transfers are over");
    while (stream->first != NULL) {
        fake_group *next = stream->first->next;
        free(stream->first);
        stream->first = next;
    }
    fake_alive--;
    free(stream);
    pthread_mutex_unlock(&fake_lock);
    return cudaSuccess;
}

void fake_enqueue(fake_group *group) {
    group->next = NULL;
    *group->stream->last = group;
    group->stream->last = &group->next;
}

/* Locked. */
static bool is_idle(cudaStream_t stream) {
    while (stream->first != NULL && fake_run_group(stream->first)) {
        fake_group *over = stream->first;
        stream->first = over->next;
        if (stream->first == NULL)
            stream->last = &stream->first;
        free(over);
    }
    return stream->first == NULL;
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
    pthread_mutex_lock(&fake_lock);
    const bool idle = is_idle(stream);
    pthread_mutex_unlock(&fake_lock);
    return idle ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    pthread_mutex_lock(&fake_lock);
    const bool idle = is_idle(stream);
    if (!idle)
        fake_note("a wait for a stream that may stand still for ever");
    pthread_mutex_unlock(&fake_lock);
    return idle ? cudaSuccess : cudaErrorInvalidValue;
}

/* ---- copies --------------------------------------------------------------------------------- */

/* Locked: the area as the CPU may touch it. */
static unsigned char *reach(const void *data, size_t bytes) {
    unsigned char *pages = fake_on_device(data, bytes);
    return pages != NULL ? pages : (unsigned char *)(uintptr_t)data;
}

static cudaError_t copy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                        cudaStream_t stream) {
    const bool to_device = fake_on_device(to, bytes) != NULL;
    const bool from_device = fake_on_device(from, bytes) != NULL;
    if (kind != cudaMemcpyDefault && (to_device != (kind != cudaMemcpyDeviceToHost) ||
                                      from_device != (kind != cudaMemcpyHostToDevice))) {
        fake_note("a copy that does not go between host and device as it says");
        return cudaErrorInvalidValue;
    }
    if (stream != NULL && !is_idle(stream)) {
        fake_note("a copy of pageable memory behind a group that is not done would block");
        return cudaErrorInvalidValue;
    }
    if (fake_fails_now())
        return cudaErrorInvalidValue;
    memcpy(reach(to, bytes), reach(from, bytes), bytes);
    return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t stream) {
    pthread_mutex_lock(&fake_lock);
    const cudaError_t result = copy(to, from, bytes, kind, stream);
    pthread_mutex_unlock(&fake_lock);
    return result;
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind) {
    return cudaMemcpyAsync(to, from, bytes, kind, NULL);
}

cudaError_t cudaMemcpy2D(void *to, size_t to_stride, const void *from, size_t from_stride,
                         size_t width, size_t rows, enum cudaMemcpyKind kind) {
    cudaError_t result = cudaSuccess;
    for (size_t row = 0; row < rows && result == cudaSuccess; row++)
        result = cudaMemcpy((unsigned char *)to + row * to_stride,
                            (const unsigned char *)from + row * from_stride, width, kind);
    return result;
}

cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream) {
    pthread_mutex_lock(&fake_lock);
    unsigned char *pages = fake_on_device(to, bytes);
    if (pages == NULL || !is_idle(stream))
        fake_note("memory that is cleared where it is not, or behind a group that is not done");
    else
        memset(pages, value, bytes);
    pthread_mutex_unlock(&fake_lock);
    return pages != NULL ? cudaSuccess : cudaErrorInvalidValue;
}

cudaError_t cudaGetLastError(void) {
    return cudaSuccess;
}

const char *cudaGetErrorString(cudaError_t error) {
    return error == cudaErrorMemoryAllocation ? "out of memory" : "a fake error";
}
