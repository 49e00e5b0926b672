#include "tests/fake/fake_nccl.h"

#include "nccl.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_WORLDS 64
#define MAX_RANKS 8
#define MAX_BLOCKS 64

typedef struct item {
    bool is_send, is_done, has_met;
    int peer;
    void *data;
    size_t bytes;
} item;

/* What a stream has before it: a group. Copies are done at once. */
typedef struct group {
    struct group *next;
    ncclComm_t comm;
    int n_items;
    item items[FAKE_MAX_GROUP];
} group;

struct fake_cuda_stream {
    group *first, **last;
};

struct fake_nccl_comm {
    int world, rank;
    bool is_aborted;
};

/* Items that have started and not met, in order, per ordered pair of ranks. */
typedef struct post {
    struct post *next;
    item *what;
} post;

typedef struct world {
    ncclUniqueId id;
    int n_ranks, n_joined;
    post *sends[MAX_RANKS][MAX_RANKS], *receives[MAX_RANKS][MAX_RANKS]; /* [from][to] */
} world;

/* One library in one process: globals, as in the real one. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static world worlds[MAX_WORLDS];
static int n_worlds, n_groups, largest_group, fail_in, n_alive;
static size_t sent_bytes;
static char misuse_text[256];
static struct {
    unsigned char *data;
    size_t bytes;
} blocks[MAX_BLOCKS];
static _Thread_local int group_depth, n_pending;
static _Thread_local item pending[FAKE_MAX_GROUP];
static _Thread_local ncclComm_t pending_comm;
static _Thread_local cudaStream_t pending_stream;

static void note_misuse(const char *what) {
    if (misuse_text[0] == '\0')
        snprintf(misuse_text, sizeof misuse_text, "%s", what);
}

/* Locked: whether this call is to fail. */
static bool fails_now(void) {
    return fail_in > 0 && --fail_in == 0;
}

int fake_nccl_reset(void) {
    const int left = n_alive;
    memset(worlds, 0, sizeof worlds);
    memset(blocks, 0, sizeof blocks);
    n_worlds = n_groups = largest_group = fail_in = n_alive = 0;
    sent_bytes = 0;
    misuse_text[0] = '\0';
    return left;
}

const char *fake_nccl_misuse(void) {
    return misuse_text[0] != '\0' ? misuse_text : NULL;
}
int fake_nccl_groups(void) {
    return n_groups;
}
int fake_nccl_largest_group(void) {
    return largest_group;
}
size_t fake_nccl_sent_bytes(void) {
    return sent_bytes;
}
void fake_nccl_fail_call(int n) {
    fail_in = n;
}

/* ---- CUDA ----------------------------------------------------------------------------------- */

cudaError_t cudaSetDevice(int device) {
    return device >= 0 && device < MAX_RANKS ? cudaSuccess : cudaErrorInvalidDevice;
}

cudaError_t cudaMalloc(void **data, size_t bytes) {
    cudaError_t result = cudaErrorMemoryAllocation;
    pthread_mutex_lock(&lock);
    for (int b = 0; b < MAX_BLOCKS && !fails_now(); b++) {
        if (blocks[b].data != NULL)
            continue;
        blocks[b].data = malloc(bytes);
        blocks[b].bytes = bytes;
        n_alive++;
        *data = blocks[b].data;
        result = cudaSuccess;
        break;
    }
    pthread_mutex_unlock(&lock);
    return result;
}

cudaError_t cudaFree(void *data) {
    pthread_mutex_lock(&lock);
    for (int b = 0; b < MAX_BLOCKS; b++) {
        if (blocks[b].data != data)
            continue;
        free(data);
        blocks[b].data = NULL;
        n_alive--;
    }
    pthread_mutex_unlock(&lock);
    return cudaSuccess;
}

/* Locked: does [data, data + bytes) lie in device memory? */
static bool on_device(const void *data, size_t bytes) {
    const uintptr_t at = (uintptr_t)data;
    for (int b = 0; b < MAX_BLOCKS; b++) {
        const uintptr_t start = (uintptr_t)blocks[b].data;
        if (blocks[b].data != NULL && at >= start && at + bytes <= start + blocks[b].bytes)
            return true;
    }
    return false;
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *out, const void *data) {
    pthread_mutex_lock(&lock);
    out->type = on_device(data, 1) ? cudaMemoryTypeDevice : cudaMemoryTypeUnregistered;
    pthread_mutex_unlock(&lock);
    return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags) {
    (void)flags;
    *stream = calloc(1, sizeof **stream);
    (*stream)->last = &(*stream)->first;
    pthread_mutex_lock(&lock);
    n_alive++;
    pthread_mutex_unlock(&lock);
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    pthread_mutex_lock(&lock);
    while (stream->first != NULL) {
        group *next = stream->first->next;
        free(stream->first);
        stream->first = next;
    }
    n_alive--;
    free(stream);
    pthread_mutex_unlock(&lock);
    return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t stream) {
    cudaError_t result = cudaSuccess;
    pthread_mutex_lock(&lock);
    const void *device = kind == cudaMemcpyHostToDevice ? to : from;
    const void *host = kind == cudaMemcpyHostToDevice ? from : to;
    if (!on_device(device, bytes) || on_device(host, bytes)) {
        note_misuse("a copy that does not go between host and device as it says");
        result = cudaErrorInvalidValue;
    } else if (stream->first != NULL) {
        note_misuse("a copy of pageable memory behind a group that is not done would block");
        result = cudaErrorInvalidValue;
    } else if (fails_now()) {
        result = cudaErrorInvalidValue;
    } else {
        memcpy(to, from, bytes);
    }
    pthread_mutex_unlock(&lock);
    return result;
}

/* ---- pairing -------------------------------------------------------------------------------- */

static void append(post **list, item *what) {
    post *made = calloc(1, sizeof *made);
    made->what = what;
    while (*list != NULL)
        list = &(*list)->next;
    *list = made;
}

/* The heads of both lists meet while they are of one size; another size stands still. */
static void meet(world *w, int from, int to) {
    post **sends = &w->sends[from][to], **receives = &w->receives[from][to];
    while (*sends != NULL && *receives != NULL &&
           (*sends)->what->bytes == (*receives)->what->bytes) {
        post *send = *sends, *receive = *receives;
        memcpy(receive->what->data, send->what->data, send->what->bytes);
        sent_bytes += send->what->bytes;
        send->what->is_done = receive->what->is_done = true;
        *sends = send->next;
        *receives = receive->next;
        free(send);
        free(receive);
    }
}

static void start_group(group *g) {
    world *w = &worlds[g->comm->world];
    for (int i = 0; i < g->n_items; i++) {
        item *it = &g->items[i];
        if (it->has_met)
            continue;
        it->has_met = true;
        const int from = it->is_send ? g->comm->rank : it->peer;
        const int to = it->is_send ? it->peer : g->comm->rank;
        append(it->is_send ? &w->sends[from][to] : &w->receives[from][to], it);
        meet(w, from, to);
    }
}

static bool is_done(const group *g) {
    for (int i = 0; i < g->n_items; i++)
        if (!g->items[i].is_done)
            return false;
    return true;
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
    pthread_mutex_lock(&lock);
    while (stream->first != NULL) {
        group *g = stream->first;
        start_group(g);
        if (!is_done(g))
            break;
        stream->first = g->next;
        if (stream->first == NULL)
            stream->last = &stream->first;
        free(g);
    }
    const bool idle = stream->first == NULL;
    pthread_mutex_unlock(&lock);
    return idle ? cudaSuccess : cudaErrorNotReady;
}

/* ---- NCCL ----------------------------------------------------------------------------------- */

ncclResult_t ncclGetUniqueId(ncclUniqueId *id) {
    pthread_mutex_lock(&lock);
    memset(id, 0, sizeof *id);
    snprintf(id->internal, sizeof id->internal, "world %d", n_worlds);
    worlds[n_worlds++].id = *id;
    pthread_mutex_unlock(&lock);
    return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int n_ranks, ncclUniqueId id, int rank,
                                    ncclConfig_t *config) {
    ncclResult_t result = ncclInvalidArgument;
    pthread_mutex_lock(&lock);
    for (int w = 0; w < n_worlds; w++) {
        if (memcmp(&worlds[w].id, &id, sizeof id) != 0 || n_ranks > MAX_RANKS || fails_now())
            continue;
        if (config->blocking != 0)
            note_misuse("a communicator that blocks cannot be given up");
        worlds[w].n_ranks = n_ranks;
        worlds[w].n_joined++;
        *comm = calloc(1, sizeof **comm);
        **comm = (struct fake_nccl_comm){.world = w, .rank = rank};
        n_alive++;
        result = ncclInProgress;
    }
    pthread_mutex_unlock(&lock);
    return result;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *state) {
    pthread_mutex_lock(&lock);
    const world *w = &worlds[comm->world];
    *state = w->n_joined < w->n_ranks ? ncclInProgress : ncclSuccess;
    if (fails_now())
        *state = ncclRemoteError;
    pthread_mutex_unlock(&lock);
    return ncclSuccess;
}

static void drop(post **list, const ncclComm_t comm, bool is_mine) {
    (void)comm;
    while (is_mine && *list != NULL) {
        post *next = (*list)->next;
        free(*list);
        *list = next;
    }
}

/* What this rank had posted is gone: its memory may be, too. */
ncclResult_t ncclCommAbort(ncclComm_t comm) {
    pthread_mutex_lock(&lock);
    world *w = &worlds[comm->world];
    for (int peer = 0; peer < MAX_RANKS; peer++) {
        drop(&w->sends[comm->rank][peer], comm, true);
        drop(&w->receives[peer][comm->rank], comm, true);
    }
    n_alive--;
    free(comm);
    pthread_mutex_unlock(&lock);
    return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
    (void)comm;
    return ncclSuccess;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
    return ncclCommAbort(comm);
}

ncclResult_t ncclGroupStart(void) {
    group_depth++;
    return ncclSuccess;
}

static ncclResult_t add(bool is_send, void *data, size_t bytes, int peer, ncclComm_t comm,
                        cudaStream_t stream) {
    const char *wrong = NULL;
    pthread_mutex_lock(&lock);
    const world *w = &worlds[comm->world];
    if (group_depth == 0)
        wrong = "a send or receive outside a group";
    else if (n_pending == FAKE_MAX_GROUP)
        wrong = "a group that is too large";
    else if (peer < 0 || peer >= w->n_ranks)
        wrong = "a peer that is none";
    else if (bytes == 0 || !on_device(data, bytes))
        wrong = "a buffer that is not device memory, or too small";
    else if (n_pending > 0 && (comm != pending_comm || stream != pending_stream))
        wrong = "a group over several streams";
    if (wrong != NULL)
        note_misuse(wrong);
    const bool fails = fails_now();
    pthread_mutex_unlock(&lock);
    if (wrong != NULL)
        return ncclInvalidUsage;
    if (fails)
        return ncclSystemError;
    pending[n_pending++] = (item){.is_send = is_send, .peer = peer, .data = data, .bytes = bytes};
    pending_comm = comm;
    pending_stream = stream;
    return ncclSuccess;
}

ncclResult_t ncclSend(const void *data, size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t stream) {
    (void)type;
    return add(true, (void *)(uintptr_t)data, count, peer, comm, stream);
}

ncclResult_t ncclRecv(void *data, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
    (void)type;
    return add(false, data, count, peer, comm, stream);
}

ncclResult_t ncclGroupEnd(void) {
    if (--group_depth > 0 || n_pending == 0)
        return ncclSuccess;
    group *g = calloc(1, sizeof *g);
    g->comm = pending_comm;
    g->n_items = n_pending;
    memcpy(g->items, pending, sizeof *pending * (size_t)n_pending);
    pthread_mutex_lock(&lock);
    *pending_stream->last = g;
    pending_stream->last = &g->next;
    n_groups++;
    largest_group = n_pending > largest_group ? n_pending : largest_group;
    pthread_mutex_unlock(&lock);
    n_pending = 0;
    return ncclInProgress;
}

cudaError_t cudaGetLastError(void) {
    return cudaSuccess;
}

const char *cudaGetErrorString(cudaError_t error) {
    return error == cudaErrorMemoryAllocation ? "out of memory" : "a fake error";
}

const char *ncclGetErrorString(ncclResult_t result) {
    return result == ncclRemoteError ? "remote process exited" : "a fake error";
}
