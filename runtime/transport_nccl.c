/* Rounds over NCCL. Messages go over a carrier, which also tells who is lost: NCCL itself never says
 * that a peer has died or issues something else, its kernels spin for ever. So the communicator does
 * not block, every wait polls with a deadline, and a round that fails aborts the communicator, the one
 * thing that ends a spinning kernel. */
#include "runtime/round.h"
#include "runtime/transport_ops.h"

#include "core/device.h"
#include "core/mem.h"
#include "core/progress.h"

#include <cuda_runtime_api.h>
#include <nccl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

_Static_assert(sizeof(ncclUniqueId) == BL_ROUND_NAME_BYTES,
               "a name is what NCCL calls a unique id");

/* Between two looks at what the device does. */
#define LOOK_NS 20000

/* What is under way. A communicator that does not block is still at it when a call returns: until it
 * says so, the transfers of a group are not even on the stream, which then looks idle. */
typedef enum nccl_phase {
    PHASE_OUT,       /* no communicator */
    PHASE_JOINING,   /* being made */
    PHASE_IDLE,      /* nothing */
    PHASE_LAUNCHING, /* NCCL puts the group on the stream */
    PHASE_RUNNING,   /* the stream carries it out */
    PHASE_UNSTAGING  /* the stream copies what arrived to the host */
} nccl_phase;

typedef struct nccl_transport {
    bl_transport base;
    bl_transport *carrier;
    ncclComm_t comm;   /* NULL in PHASE_OUT */
    ncclUniqueId name; /* of the communicator, or of the last one */
    bool *members;     /* [n_ranks] of it */
    int *seats;        /* [n_ranks] each member's rank in it */
    nccl_phase phase;
    double until_s; /* deadline of the phase */
    cudaStream_t stream;
    int device, max_ctas;
    unsigned char
        *stage;  /* on the device: [BL_ROUND_PARTS][2][BL_ROUND_CHUNK], out and in; NULL until
                             a part lies in host memory */
    int n_parts; /* of the group under way */
    bl_part parts[BL_ROUND_PARTS];
} nccl_transport;

static nccl_transport *nccl_of(bl_transport *transport) {
    return (nccl_transport *)(void *)transport;
}

static bl_status cuda_failed(cudaError_t error, const char *doing, bl_error *err) {
    cudaGetLastError(); /* it would be told again */
    return bl_fail(err, error == cudaErrorMemoryAllocation ? BL_ERR_NOMEM : BL_ERR_UNSUPPORTED,
                   "CUDA cannot %s: %s", doing, cudaGetErrorString(error));
}

static bl_status nccl_failed(ncclResult_t result, const char *doing, bl_error *err) {
    return bl_fail(err, result == ncclRemoteError ? BL_ERR_PEER : BL_ERR_IO, "NCCL cannot %s: %s",
                   doing, ncclGetErrorString(result));
}

#define CUDA_TRY(call, doing, err)                        \
    do {                                                  \
        const cudaError_t cuda_st_ = (call);              \
        if (cuda_st_ != cudaSuccess)                      \
            return cuda_failed(cuda_st_, (doing), (err)); \
    } while (0)

/* A communicator that does not block may still be at it when a call returns. */
#define NCCL_TRY(call, doing, err)                                 \
    do {                                                           \
        const ncclResult_t nccl_st_ = (call);                      \
        if (nccl_st_ != ncclSuccess && nccl_st_ != ncclInProgress) \
            return nccl_failed(nccl_st_, (doing), (err));          \
    } while (0)

/* ---- a group -------------------------------------------------------------------------------- */

/* This rank's side of one part of the group: where its bytes are on the device. */
typedef struct side {
    unsigned char *host; /* staged from or to here; NULL: they are on the device themselves */
    unsigned char *device;
    size_t bytes; /* 0: it has no such side */
} side;

static bl_status side_of(nccl_transport *nccl, int p, bool leaves, side *out, bl_error *err) {
    const bl_part *part = &nccl->parts[p];
    *out = (side){0};
    if ((leaves ? part->from : part->to) != nccl->base.rank || part->bytes == 0)
        return BL_OK;
    /* The source is only read. */
    unsigned char *data = leaves ? (unsigned char *)(uintptr_t)part->source : part->target;
    *out = (side){.device = data, .bytes = part->bytes};
    if (bl_memory_is_on_gpu(data))
        return BL_OK;
    if (nccl->stage == NULL) {
        void *stage_memory;
        CUDA_TRY(cudaMalloc(&stage_memory, 2 * BL_ROUND_PARTS * BL_ROUND_CHUNK), "stage transfers",
                 err);
        nccl->stage = stage_memory;
    }
    out->host = data;
    out->device = nccl->stage + (2 * (size_t)p + (leaves ? 0 : 1)) * BL_ROUND_CHUNK;
    return BL_OK;
}

/* To the device before, or from it after. *any: something was. A copy to pageable memory would block
 * behind a kernel that spins, so the stream is idle whenever this is called. */
static bl_status stage(nccl_transport *nccl, bool leaves, bool *any, bl_error *err) {
    *any = false;
    for (int p = 0; p < nccl->n_parts; p++) {
        side s;
        BL_TRY(side_of(nccl, p, leaves, &s, err));
        if (s.bytes == 0 || s.host == NULL)
            continue;
        *any = true;
        CUDA_TRY(
            leaves
                ? cudaMemcpyAsync(s.device, s.host, s.bytes, cudaMemcpyHostToDevice, nccl->stream)
                : cudaMemcpyAsync(s.host, s.device, s.bytes, cudaMemcpyDeviceToHost, nccl->stream),
            leaves ? "copy to the device" : "copy from the device", err);
    }
    return BL_OK;
}

/* The group's sends and receives in the order of the list. */
static bl_status issue(nccl_transport *nccl, bl_error *err) {
    for (int p = 0; p < nccl->n_parts; p++) {
        const bl_part *part = &nccl->parts[p];
        side s;
        BL_TRY(side_of(nccl, p, true, &s, err));
        if (s.bytes > 0)
            NCCL_TRY(ncclSend(s.device, s.bytes, ncclUint8, nccl->seats[part->to], nccl->comm,
                              nccl->stream),
                     "send", err);
        BL_TRY(side_of(nccl, p, false, &s, err));
        if (s.bytes > 0)
            NCCL_TRY(ncclRecv(s.device, s.bytes, ncclUint8, nccl->seats[part->from], nccl->comm,
                              nccl->stream),
                     "receive", err);
    }
    return BL_OK;
}

static void enter_phase(nccl_transport *nccl, nccl_phase phase) {
    nccl->phase = phase;
    nccl->until_s = bl_now_s() + nccl->base.deadline_s;
}

/* Whose side of a part this rank waits for, or -1 when it takes no part in it. */
static int partner_in(const nccl_transport *nccl, const bl_part *part) {
    if (part->from == nccl->base.rank)
        return part->to;
    return part->to == nccl->base.rank ? part->from : -1;
}

/* Keep what concerns this rank of a list: chunk `chunk` of each part. */
static void take_parts(nccl_transport *nccl, const bl_part *parts, int n_parts, uint64_t chunk) {
    const size_t offset = (size_t)chunk * BL_ROUND_CHUNK;
    nccl->n_parts = 0;
    for (int p = 0; p < n_parts; p++) {
        bl_part part = parts[p];
        part.bytes = bl_part_chunk_bytes(&parts[p], chunk);
        if (part.bytes == 0 || partner_in(nccl, &part) < 0)
            continue;
        if (part.from == nccl->base.rank)
            part.source = (const unsigned char *)part.source + offset;
        if (part.to == nccl->base.rank)
            part.target = (unsigned char *)part.target + offset;
        nccl->parts[nccl->n_parts++] = part;
    }
}

static bl_status check_members(const nccl_transport *nccl, bl_error *err) {
    for (int p = 0; p < nccl->n_parts; p++) {
        const int partner = partner_in(nccl, &nccl->parts[p]);
        if (!nccl->members[partner])
            return bl_fail(err, BL_ERR_STATE, "rank %d is not in the communicator of rank %d",
                           partner, nccl->base.rank);
    }
    return BL_OK;
}

static bl_status post_group(nccl_transport *nccl, bl_error *err) {
    bool any;
    BL_TRY(check_members(nccl, err));
    CUDA_TRY(cudaSetDevice(nccl->device), "use its device", err);
    BL_TRY(stage(nccl, true, &any, err));
    NCCL_TRY(ncclGroupStart(), "start a group", err);
    const bl_status st = issue(nccl, err);
    const ncclResult_t ended = ncclGroupEnd(); /* also after a failure: groups are per thread */
    BL_TRY(st);
    NCCL_TRY(ended, "end a group", err);
    enter_phase(nccl, PHASE_LAUNCHING);
    return BL_OK;
}

/* ---- how it stands --------------------------------------------------------------------------- */

/* All partners of the group, once each, for messages: "1, 3". */
static void name_partners(const nccl_transport *nccl, char *out, size_t room) {
    size_t used = 0;
    out[0] = '\0';
    for (int p = 0; p < nccl->n_parts && used + 16 < room; p++) {
        const int partner = partner_in(nccl, &nccl->parts[p]);
        bool is_named = false;
        for (int before = 0; before < p && !is_named; before++)
            is_named = partner_in(nccl, &nccl->parts[before]) == partner;
        if (!is_named)
            used +=
                (size_t)snprintf(out + used, room - used, "%s%d", used > 0 ? ", " : "", partner);
    }
}

/* It is not done yet: may it still become so? */
static bl_status check_hope(const nccl_transport *nccl, bl_error *err) {
    if (bl_transport_lost(nccl->carrier) >= 0) {
        for (int rank = 0; rank < nccl->base.n_ranks; rank++)
            if (nccl->members[rank] && bl_transport_is_lost(nccl->carrier, rank))
                return bl_transport_fail_gone(nccl->carrier, rank, nccl->carrier->room->peers[rank],
                                              err);
    }
    if (bl_now_s() < nccl->until_s)
        return BL_OK;
    if (nccl->phase == PHASE_JOINING)
        return bl_fail(err, BL_ERR_TIMEOUT, "rank %d waited %g s for NCCL to make a communicator",
                       nccl->base.rank, nccl->base.deadline_s);
    char partners[128];
    name_partners(nccl, partners, sizeof partners);
    return bl_fail(
        err, BL_ERR_TIMEOUT,
        "a group of %d parts stood still for %g s: rank %d exchanges it with rank %s, one "
        "of which does not, or has another list",
        nccl->n_parts, nccl->base.deadline_s, nccl->base.rank, partners);
}

/* One look; a phase that is over leads to the next. */
static bl_status look(nccl_transport *nccl, bl_error *err) {
    ncclResult_t state = ncclSuccess;
    NCCL_TRY(ncclCommGetAsyncError(nccl->comm, &state), "transfer", err);
    const bool making = nccl->phase == PHASE_JOINING;
    if (state != ncclSuccess && state != ncclInProgress)
        return nccl_failed(state, making ? "make a communicator" : "transfer", err);
    if (making || nccl->phase == PHASE_LAUNCHING) {
        if (state == ncclSuccess)
            enter_phase(nccl, making ? PHASE_IDLE : PHASE_RUNNING);
        return BL_OK;
    }
    const cudaError_t stream = cudaStreamQuery(nccl->stream);
    if (stream == cudaErrorNotReady)
        return BL_OK;
    if (stream != cudaSuccess)
        return cuda_failed(stream, "finish a transfer", err);
    bool any = false;
    if (nccl->phase == PHASE_RUNNING)
        BL_TRY(stage(nccl, false, &any, err));
    enter_phase(nccl, any ? PHASE_UNSTAGING : PHASE_IDLE);
    return BL_OK;
}

static bl_status no_communicator(const nccl_transport *nccl, bl_error *err) {
    return bl_fail(err, BL_ERR_STATE,
                   "rank %d has no communicator, or none since a round failed: join one",
                   nccl->base.rank);
}

static bl_status poll(nccl_transport *nccl, bl_error *err) {
    if (nccl->phase == PHASE_OUT)
        return no_communicator(nccl, err);
    CUDA_TRY(cudaSetDevice(nccl->device), "use its device", err);
    while (nccl->phase != PHASE_IDLE) {
        const nccl_phase before = nccl->phase;
        BL_TRY(look(nccl, err));
        if (nccl->phase == before)
            return check_hope(nccl, err);
    }
    return BL_OK;
}

static void look_again_soon(void) {
    nanosleep(&(struct timespec){0, LOOK_NS}, NULL);
}

static bl_status wait_until_idle(nccl_transport *nccl, bl_error *err) {
    BL_TRY(poll(nccl, err));
    while (nccl->phase != PHASE_IDLE) {
        look_again_soon();
        BL_TRY(poll(nccl, err));
    }
    return BL_OK;
}

/* ---- communicators --------------------------------------------------------------------------- */

/* The abort tells kernels to end; they have when the stream is idle. */
static bl_status leave(nccl_transport *nccl, bl_error *err) {
    const double until_s = bl_now_s() + nccl->base.deadline_s;
    if (nccl->phase == PHASE_OUT)
        return BL_OK;
    cudaSetDevice(nccl->device);
    ncclCommAbort(nccl->comm);
    nccl->comm = NULL;
    nccl->phase = PHASE_OUT;
    while (cudaStreamQuery(nccl->stream) == cudaErrorNotReady) {
        if (bl_now_s() >= until_s)
            return bl_fail(err, BL_ERR_TIMEOUT,
                           "transfers of rank %d go on %g s after they were broken off",
                           nccl->base.rank, nccl->base.deadline_s);
        look_again_soon();
    }
    cudaGetLastError(); /* an error on the stream is of what was broken off */
    return BL_OK;
}

static bool has_members(const nccl_transport *nccl, const bool *members) {
    return memcmp(nccl->members, members, sizeof *members * (size_t)nccl->base.n_ranks) == 0;
}

static bl_status nccl_name(bl_transport *transport, const bool *members, unsigned char *name,
                           bl_error *err) {
    nccl_transport *nccl = nccl_of(transport);
    ncclUniqueId id = nccl->name;
    if (nccl->phase == PHASE_OUT || !has_members(nccl, members))
        NCCL_TRY(ncclGetUniqueId(&id), "name a communicator", err);
    memcpy(name, &id, sizeof id);
    return BL_OK;
}

/* Members keep their order. */
static int take_seats(nccl_transport *nccl, const bool *members) {
    int n = 0;
    for (int rank = 0; rank < nccl->base.n_ranks; rank++) {
        nccl->members[rank] = members[rank];
        nccl->seats[rank] = members[rank] ? n++ : -1;
    }
    return n;
}

static bl_status nccl_join(bl_transport *transport, const bool *members, const unsigned char *name,
                           bl_error *err) {
    nccl_transport *nccl = nccl_of(transport);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    if (memcmp(name, &nccl->name, sizeof nccl->name) == 0)
        return nccl->phase != PHASE_OUT ? BL_OK : no_communicator(nccl, err);
    if (!members[transport->rank])
        return bl_fail(err, BL_ERR_STATE, "rank %d is not a member", transport->rank);
    BL_TRY(leave(nccl, err));
    config.blocking = 0;
    config.maxCTAs = nccl->max_ctas;
    memcpy(&nccl->name, name, sizeof nccl->name);
    const int n = take_seats(nccl, members);
    CUDA_TRY(cudaSetDevice(nccl->device), "use its device", err);
    NCCL_TRY(
        ncclCommInitRankConfig(&nccl->comm, n, nccl->name, nccl->seats[transport->rank], &config),
        "make a communicator", err);
    enter_phase(nccl, PHASE_JOINING);
    return BL_OK;
}

/* ---- rounds ---------------------------------------------------------------------------------- */

/* What failed is broken off, and says why. */
static bl_status give_up(nccl_transport *nccl, bl_status st) {
    if (st < 0)
        leave(nccl, NULL);
    return st;
}

static bl_status nccl_post(bl_transport *transport, const bl_part *parts, int n_parts,
                           bl_error *err) {
    nccl_transport *nccl = nccl_of(transport);
    if (nccl->phase == PHASE_OUT)
        return no_communicator(nccl, err);
    if (nccl->phase != PHASE_IDLE)
        return bl_fail(err, BL_ERR_STATE, "rank %d has not done with the group before",
                       transport->rank);
    take_parts(nccl, parts, n_parts, 0);
    return nccl->n_parts > 0 ? give_up(nccl, post_group(nccl, err)) : BL_OK;
}

static bl_status nccl_poll(bl_transport *transport, bool *done, bl_error *err) {
    nccl_transport *nccl = nccl_of(transport);
    const bl_status st = give_up(nccl, poll(nccl, err));
    *done = nccl->phase == PHASE_IDLE;
    return st;
}

static bl_status nccl_leave_rounds(bl_transport *transport, bl_error *err) {
    return leave(nccl_of(transport), err);
}

static bl_status run_round(nccl_transport *nccl, const bl_part *parts, int n_parts, bl_error *err) {
    bl_group group = bl_group_first();
    BL_TRY(wait_until_idle(nccl, err));
    while (bl_group_next(parts, n_parts, &group)) {
        take_parts(nccl, parts + group.first, group.last - group.first, group.chunk);
        if (nccl->n_parts == 0)
            continue;
        BL_TRY(post_group(nccl, err));
        BL_TRY(wait_until_idle(nccl, err));
    }
    return BL_OK;
}

static bl_status nccl_round(bl_transport *transport, const bl_part *parts, int n_parts,
                            bl_error *err) {
    nccl_transport *nccl = nccl_of(transport);
    return give_up(nccl, run_round(nccl, parts, n_parts, err));
}

static const bl_round_ops nccl_rounds = {.name = nccl_name,
                                         .join = nccl_join,
                                         .post = nccl_post,
                                         .poll = nccl_poll,
                                         .leave = nccl_leave_rounds};

/* ---- messages: the carrier's ----------------------------------------------------------------- */

static void nccl_enter(bl_transport *transport) {
    bl_transport *carrier = nccl_of(transport)->carrier;
    carrier->ops->enter(carrier);
}

static void nccl_leave(bl_transport *transport) {
    bl_transport *carrier = nccl_of(transport)->carrier;
    carrier->ops->leave(carrier);
}

static bl_status nccl_sleep(bl_transport *transport, double until_s, bl_error *err) {
    bl_transport *carrier = nccl_of(transport)->carrier;
    return carrier->ops->sleep(carrier, until_s, err);
}

static void nccl_taken(bl_transport *transport, int peer, bl_channel channel, size_t weight) {
    bl_transport *carrier = nccl_of(transport)->carrier;
    carrier->ops->taken(carrier, peer, channel, weight);
}

static bl_status nccl_send(bl_transport *transport, int peer, bl_channel channel, uint64_t mark,
                           const void *data, size_t bytes, bl_error *err) {
    bl_transport *carrier = nccl_of(transport)->carrier;
    carrier->deadline_s = transport->deadline_s;
    return carrier->ops->send(carrier, peer, channel, mark, data, bytes, err);
}

static void free_device(nccl_transport *nccl) {
    leave(nccl, NULL);
    if (nccl->stage != NULL)
        cudaFree(nccl->stage);
    if (nccl->stream != NULL)
        cudaStreamDestroy(nccl->stream);
    free(nccl->members);
    free(nccl->seats);
    free(nccl);
}

static void nccl_close(bl_transport *transport, bool orderly) {
    nccl_transport *nccl = nccl_of(transport);
    bl_transport *carrier = nccl->carrier;
    /* No wait for the others here, who may be gone; rounds are complete when they return. */
    carrier->deadline_s = transport->deadline_s;
    free_device(nccl);
    carrier->ops->close(carrier, orderly);
}

static const bl_transport_ops nccl_ops = {
    .name = "nccl",
    .enter = nccl_enter,
    .leave = nccl_leave,
    .sleep = nccl_sleep,
    .taken = nccl_taken,
    .send = nccl_send,
    .close = nccl_close,
    .round = nccl_round,
    .rounds = &nccl_rounds,
};

/* ---- open ----------------------------------------------------------------------------------- */

#define ID_MARK UINT64_C(0x4e43434c4944) /* "NCCLID" */

/* Rank 0 names the first communicator and tells the others. */
static bl_status share_name(nccl_transport *nccl, const bool *members, unsigned char *name,
                            bl_error *err) {
    bl_transport *carrier = nccl->carrier;
    if (nccl->base.rank == 0) {
        BL_TRY(nccl_name(&nccl->base, members, name, err));
        for (int rank = 1; rank < nccl->base.n_ranks; rank++)
            BL_TRY(bl_transport_send(carrier, rank, BL_CHANNEL_CONTROL, ID_MARK, name,
                                     BL_ROUND_NAME_BYTES, err));
        return BL_OK;
    }
    bl_message message;
    BL_TRY(bl_transport_receive(carrier, 0, BL_CHANNEL_CONTROL, ID_MARK, nccl->base.deadline_s,
                                &message, err));
    const size_t bytes = message.bytes;
    if (bytes == BL_ROUND_NAME_BYTES)
        memcpy(name, message.data, BL_ROUND_NAME_BYTES);
    bl_message_free(&message);
    if (bytes != BL_ROUND_NAME_BYTES)
        return bl_fail(err, BL_ERR_STATE, "rank 0 names a communicator of another NCCL");
    return BL_OK;
}

static bl_status start(nccl_transport *nccl, bool *members, bool join_later, bl_error *err) {
    unsigned char name[BL_ROUND_NAME_BYTES];
    for (int rank = 0; rank < nccl->base.n_ranks; rank++)
        members[rank] = true;
    BL_TRY(BL_CALLOC(nccl->members, nccl->base.n_ranks, err));
    BL_TRY(BL_CALLOC(nccl->seats, nccl->base.n_ranks, err));
    CUDA_TRY(cudaSetDevice(nccl->device), "use its device", err);
    CUDA_TRY(cudaStreamCreateWithFlags(&nccl->stream, cudaStreamNonBlocking), "make a stream", err);
    if (join_later)
        return BL_OK;
    BL_TRY(share_name(nccl, members, name, err));
    BL_TRY(nccl_join(&nccl->base, members, name, err));
    return wait_until_idle(nccl, err);
}

bl_status bl_transport_nccl_open(const bl_nccl_options *options, bl_transport *carrier,
                                 bl_transport **out, bl_error *err) {
    nccl_transport *nccl;
    bool *members;
    if (options->max_ctas < 1 || options->max_ctas > 64)
        return bl_fail(err, BL_ERR_RANGE, "%d blocks for transfers; 1 to 64 is what NCCL takes",
                       options->max_ctas);
    BL_TRY(BL_CALLOC(nccl, 1, err));
    nccl->base.ops = &nccl_ops;
    nccl->base.rank = carrier->rank;
    nccl->base.n_ranks = carrier->n_ranks;
    nccl->base.deadline_s = carrier->deadline_s;
    nccl->base.silence_s = carrier->silence_s;
    nccl->base.room = carrier->room;
    nccl->carrier = carrier;
    nccl->device = options->device;
    nccl->max_ctas = options->max_ctas;
    bl_status st = BL_CALLOC(members, carrier->n_ranks, err);
    if (st >= 0)
        st = start(nccl, members, options->join_later, err);
    free(members);
    if (st < 0) {
        free_device(nccl);
        return st;
    }
    *out = &nccl->base;
    return BL_OK;
}
