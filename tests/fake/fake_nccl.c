/* NCCL's part: communicators, and groups whose transfers meet or stand still. */
#include "fake_parts.h"

#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_WORLDS 1024
#define LOOKS 4 /* at a call that goes on in the background, until it is over */

struct fake_nccl_comm {
    struct fake_nccl_comm
        *next; /* of all ever made: a handle that is gone is still known as such */
    int world, rank, looks_left;
    bool is_gone;
    ncclResult_t error;
    fake_group *launching;
};

/* Items that have started and not met, in order, per ordered pair of ranks. */
typedef struct post {
    struct post *next;
    fake_item *what;
} post;

typedef struct world {
    ncclUniqueId id;
    int n_ranks, n_joined;
    bool has[FAKE_MAX_RANKS];
    int device[FAKE_MAX_RANKS];
    post *sends[FAKE_MAX_RANKS][FAKE_MAX_RANKS], *receives[FAKE_MAX_RANKS][FAKE_MAX_RANKS];
} world;

static world worlds[MAX_WORLDS];
static ncclComm_t communicators;
static int n_worlds, n_groups, largest_group, n_joined, n_broken;
static atomic_int damage_in, fail_in; /* set by a test's threads, while others are in calls */
static size_t sent_bytes;
static _Thread_local int group_depth, n_pending;
static _Thread_local fake_item pending[FAKE_MAX_GROUP];
static _Thread_local ncclComm_t pending_comm;
static _Thread_local cudaStream_t pending_stream;

int fake_nccl_groups(void) {
    return n_groups;
}
int fake_nccl_largest_group(void) {
    return largest_group;
}
size_t fake_nccl_sent_bytes(void) {
    return sent_bytes;
}
int fake_nccl_joined(void) {
    return n_joined;
}
int fake_nccl_broken(void) {
    return n_broken;
}
void fake_nccl_damage(int n) {
    damage_in = n;
}

void fake_nccl_fail_nccl_call(int n) {
    fail_in = n;
}

static bool fails_now(void) {
    return fake_fails_now() || (fail_in > 0 && --fail_in == 0);
}

static void drop(post **list) {
    while (*list != NULL) {
        post *next = (*list)->next;
        free(*list);
        *list = next;
    }
}

void fake_forget_communicators(void) {
    for (int w = 0; w < n_worlds; w++)
        for (int pair = 0; pair < FAKE_MAX_RANKS * FAKE_MAX_RANKS; pair++) {
            drop(&worlds[w].sends[pair / FAKE_MAX_RANKS][pair % FAKE_MAX_RANKS]);
            drop(&worlds[w].receives[pair / FAKE_MAX_RANKS][pair % FAKE_MAX_RANKS]);
        }
    while (communicators != NULL) {
        ncclComm_t next = communicators->next;
        free(communicators->launching);
        free(communicators);
        communicators = next;
    }
    memset(worlds, 0, sizeof worlds);
    n_worlds = n_groups = largest_group = n_joined = n_broken = 0;
    damage_in = fail_in = 0;
    sent_bytes = 0;
}

/* ---- pairing -------------------------------------------------------------------------------- */

static void append(post **list, fake_item *what) {
    post *made = calloc(1, sizeof *made);
    made->what = what;
    while (*list != NULL)
        list = &(*list)->next;
    *list = made;
}

static void carry(fake_item *send, fake_item *receive) {
    unsigned char *to = fake_on_device(receive->data, receive->bytes);
    const unsigned char *from = fake_on_device(send->data, send->bytes);
    if (to == NULL || from == NULL) {
        fake_note("a buffer that was freed before its transfer was over");
        return;
    }
    memcpy(to, from, send->bytes);
    if (damage_in < 0 || (damage_in > 0 && --damage_in == 0))
        to[send->bytes / 2] ^= 4;
    sent_bytes += send->bytes;
}

/* The heads of both lists meet while they are of one size; another size stands still. */
static void meet(world *w, int from, int to) {
    post **sends = &w->sends[from][to], **receives = &w->receives[from][to];
    while (*sends != NULL && *receives != NULL &&
           (*sends)->what->bytes == (*receives)->what->bytes) {
        post *send = *sends, *receive = *receives;
        carry(send->what, receive->what);
        send->what->is_done = receive->what->is_done = true;
        *sends = send->next;
        *receives = receive->next;
        free(send);
        free(receive);
    }
}

/* What a kernel may still do to its buffers while it is being ended. */
static void spoil(const fake_group *g) {
    for (int i = 0; i < g->n_items; i++) {
        const fake_item *it = &g->items[i];
        unsigned char *to = fake_on_device(it->data, it->bytes);
        if (to == NULL)
            fake_note("a buffer that was freed before its transfer was over");
        else if (!it->is_send && !it->is_done)
            memset(to, 0xab, it->bytes);
    }
}

bool fake_run_group(fake_group *g) {
    world *w = &worlds[g->comm->world];
    if (g->comm->is_gone) {
        if (g->looks_left-- > 0)
            return false;
        spoil(g);
        return true;
    }
    bool done = true;
    for (int i = 0; i < g->n_items; i++) {
        fake_item *it = &g->items[i];
        const int from = it->is_send ? g->comm->rank : it->peer;
        const int to = it->is_send ? it->peer : g->comm->rank;
        if (!it->has_started) {
            it->has_started = true;
            append(it->is_send ? &w->sends[from][to] : &w->receives[from][to], it);
            meet(w, from, to);
        }
    }
    for (int i = 0; i < g->n_items; i++)
        done = done && g->items[i].is_done;
    return done;
}

/* ---- communicators -------------------------------------------------------------------------- */

ncclResult_t ncclGetUniqueId(ncclUniqueId *id) {
    pthread_mutex_lock(&fake_lock);
    if (n_worlds == MAX_WORLDS)
        abort();
    memset(id, 0, sizeof *id);
    snprintf(id->internal, sizeof id->internal, "world %d", n_worlds);
    worlds[n_worlds++].id = *id;
    pthread_mutex_unlock(&fake_lock);
    return ncclSuccess;
}

/* Locked. */
static ncclResult_t join(ncclComm_t *comm, int n_ranks, world *w, int rank) {
    if (rank < 0 || rank >= n_ranks || n_ranks > FAKE_MAX_RANKS ||
        (w->n_ranks != 0 && w->n_ranks != n_ranks) || w->has[rank]) {
        fake_note("a rank that is none of the communicator's, or is there already");
        return ncclInvalidArgument;
    }
    for (int other = 0; other < n_ranks; other++)
        if (w->has[other] && w->device[other] == fake_device())
            return ncclInvalidUsage;
    w->n_ranks = n_ranks;
    w->n_joined++;
    w->has[rank] = true;
    w->device[rank] = fake_device();
    ncclComm_t made = calloc(1, sizeof *made);
    *made = (struct fake_nccl_comm){
        .next = communicators, .world = (int)(w - worlds), .rank = rank, .looks_left = LOOKS};
    communicators = made;
    *comm = made;
    fake_alive++;
    n_joined++;
    return ncclInProgress;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int n_ranks, ncclUniqueId id, int rank,
                                    ncclConfig_t *config) {
    ncclResult_t result = ncclInvalidArgument;
    pthread_mutex_lock(&fake_lock);
    if (config->blocking != 0)
        fake_note("a communicator that blocks cannot be given up");
    for (int w = 0; w < n_worlds; w++)
        if (memcmp(&worlds[w].id, &id, sizeof id) == 0)
            result = fails_now() ? ncclSystemError : join(comm, n_ranks, &worlds[w], rank);
    pthread_mutex_unlock(&fake_lock);
    return result;
}

/* Locked: a handle that may be used, and is not busy with the last call. */
static bool is_ready(ncclComm_t comm) {
    const char *wrong = NULL;
    if (comm->is_gone)
        wrong = "a communicator that was aborted";
    else if (comm->error != ncclSuccess)
        wrong = "a communicator that has failed";
    else if (comm->looks_left > 0 || worlds[comm->world].n_joined < worlds[comm->world].n_ranks)
        wrong = "a call on a communicator that is busy with the last one";
    if (wrong != NULL)
        fake_note(wrong);
    return wrong == NULL;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *state) {
    pthread_mutex_lock(&fake_lock);
    const world *w = &worlds[comm->world];
    if (comm->is_gone)
        fake_note("a communicator that was aborted");
    else if (fails_now())
        comm->error = ncclRemoteError;
    const bool whole = w->n_joined == w->n_ranks;
    if (whole && comm->looks_left > 0 && --comm->looks_left == 0 && comm->launching != NULL) {
        fake_enqueue(comm->launching);
        comm->launching = NULL;
    }
    *state = comm->error != ncclSuccess       ? comm->error
             : whole && comm->looks_left == 0 ? ncclSuccess
                                              : ncclInProgress;
    pthread_mutex_unlock(&fake_lock);
    return ncclSuccess;
}

/* What this rank had posted is gone. Its kernels end when somebody has looked at their stream. */
ncclResult_t ncclCommAbort(ncclComm_t comm) {
    pthread_mutex_lock(&fake_lock);
    world *w = &worlds[comm->world];
    bool standing = comm->launching != NULL;
    if (comm->is_gone)
        fake_note("a communicator that is aborted twice");
    for (int peer = 0; peer < FAKE_MAX_RANKS; peer++) {
        standing =
            standing || w->sends[comm->rank][peer] != NULL || w->receives[peer][comm->rank] != NULL;
        drop(&w->sends[comm->rank][peer]);
        drop(&w->receives[peer][comm->rank]);
    }
    n_broken += standing;
    free(comm->launching);
    comm->launching = NULL;
    comm->is_gone = true;
    fake_alive--;
    pthread_mutex_unlock(&fake_lock);
    return ncclSuccess;
}

const char *ncclGetErrorString(ncclResult_t result) {
    return result == ncclRemoteError ? "remote process exited" : "a fake error";
}

/* ---- groups --------------------------------------------------------------------------------- */

ncclResult_t ncclGroupStart(void) {
    group_depth++;
    return ncclSuccess;
}

static ncclResult_t add(bool is_send, void *data, size_t bytes, int peer, ncclComm_t comm,
                        cudaStream_t stream) {
    const char *wrong = NULL;
    pthread_mutex_lock(&fake_lock);
    const world *w = &worlds[comm->world];
    if (group_depth == 0)
        wrong = "a send or receive outside a group";
    else if (n_pending == FAKE_MAX_GROUP)
        wrong = "a group that is too large";
    else if (peer < 0 || peer >= w->n_ranks)
        wrong = "a peer that is none";
    else if (bytes == 0 || fake_on_device(data, bytes) == NULL)
        wrong = "a buffer that is not device memory, or too small";
    else if (n_pending > 0 && (comm != pending_comm || stream != pending_stream))
        wrong = "a group over several streams";
    if (wrong != NULL)
        fake_note(wrong);
    const bool ready = is_ready(comm);
    const bool fails = fails_now();
    pthread_mutex_unlock(&fake_lock);
    if (wrong != NULL || !ready)
        return ncclInvalidUsage;
    if (fails)
        return ncclSystemError;
    pending[n_pending++] =
        (fake_item){.is_send = is_send, .peer = peer, .data = data, .bytes = bytes};
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
    fake_group *g = calloc(1, sizeof *g);
    g->comm = pending_comm;
    g->stream = pending_stream;
    g->n_items = n_pending;
    g->looks_left = LOOKS;
    memcpy(g->items, pending, sizeof *pending * (size_t)n_pending);
    pthread_mutex_lock(&fake_lock);
    g->comm->launching = g;
    g->comm->looks_left = LOOKS;
    n_groups++;
    largest_group = n_pending > largest_group ? n_pending : largest_group;
    pthread_mutex_unlock(&fake_lock);
    n_pending = 0;
    return ncclInProgress;
}
