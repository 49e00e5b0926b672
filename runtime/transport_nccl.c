/* Rounds over NCCL. Messages go over a carrier, which also tells who is lost: NCCL itself never says
 * that a peer has died or issues something else, its kernels spin for ever. So the communicator does
 * not block, every wait polls with a deadline, and a round that fails aborts the communicator, the one
 * thing that ends a spinning kernel. */
#include "runtime/round.h"
#include "runtime/transport_ops.h"

#include "core/mem.h"
#include "core/progress.h"

#include <cuda_runtime_api.h>
#include <nccl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Between two looks at what the device does. */
#define LOOK_NS 20000

typedef struct nccl_transport {
    bl_transport base;
    bl_transport *carrier;
    ncclComm_t comm; /* NULL before it is made and after an abort */
    cudaStream_t stream;
    int device;
    unsigned char *stage; /* on the device: [BL_ROUND_PARTS][2][BL_ROUND_CHUNK], out and in */
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

/* ---- waiting -------------------------------------------------------------------------------- */

static void look_again_soon(void) {
    nanosleep(&(struct timespec){0, LOOK_NS}, NULL);
}

/* Until the communicator is done with the last call. */
static bl_status settle(const nccl_transport *nccl, double until_s, const char *doing,
                        bl_error *err) {
    for (;;) {
        ncclResult_t state;
        NCCL_TRY(ncclCommGetAsyncError(nccl->comm, &state), doing, err);
        if (state == ncclSuccess)
            return BL_OK;
        if (state != ncclInProgress)
            return nccl_failed(state, doing, err);
        const int lost = bl_transport_lost(nccl->carrier);
        if (lost >= 0)
            return bl_transport_fail_gone(nccl->carrier, lost, nccl->carrier->room->peers[lost],
                                          err);
        if (bl_now_s() >= until_s)
            return bl_fail(err, BL_ERR_TIMEOUT, "rank %d waited %g s for NCCL to %s",
                           nccl->base.rank, nccl->base.deadline_s, doing);
        look_again_soon();
    }
}

/* The other side of this rank's part in a chunk, or -1 when it has none. */
static int partner_in(const nccl_transport *nccl, const bl_part *part, uint64_t chunk) {
    if (bl_part_chunk_bytes(part, chunk) == 0)
        return -1;
    if (part->from == nccl->base.rank)
        return part->to;
    return part->to == nccl->base.rank ? part->from : -1;
}

/* All of them in a group, once each, for messages: "1, 3". */
static void name_partners(const nccl_transport *nccl, const bl_part *parts, const bl_group *group,
                          char *out, size_t room) {
    size_t used = 0;
    out[0] = '\0';
    for (int p = group->first; p < group->last && used + 16 < room; p++) {
        const int partner = partner_in(nccl, &parts[p], group->chunk);
        bool is_named = partner < 0;
        for (int before = group->first; before < p && !is_named; before++)
            is_named = partner_in(nccl, &parts[before], group->chunk) == partner;
        if (!is_named)
            used +=
                (size_t)snprintf(out + used, room - used, "%s%d", used > 0 ? ", " : "", partner);
    }
}

static bl_status wait_for_group(const nccl_transport *nccl, const bl_part *parts,
                                const bl_group *group, bl_error *err) {
    const double until_s = bl_now_s() + nccl->base.deadline_s;
    for (;;) {
        const cudaError_t state = cudaStreamQuery(nccl->stream);
        if (state == cudaSuccess)
            return BL_OK;
        if (state != cudaErrorNotReady)
            return cuda_failed(state, "finish a transfer", err);
        ncclResult_t error;
        NCCL_TRY(ncclCommGetAsyncError(nccl->comm, &error), "transfer", err);
        NCCL_TRY(error, "transfer", err);
        const int lost = bl_transport_lost(nccl->carrier);
        if (lost >= 0)
            return bl_transport_fail_gone(nccl->carrier, lost, nccl->carrier->room->peers[lost],
                                          err);
        if (bl_now_s() >= until_s) {
            char partners[128];
            name_partners(nccl, parts, group, partners, sizeof partners);
            return bl_fail(
                err, BL_ERR_TIMEOUT,
                "chunk %llu of parts %d to %d stood still for %g s: rank %d exchanges it "
                "with rank %s, one of which does not, or has another list",
                (unsigned long long)group->chunk, group->first, group->last - 1,
                nccl->base.deadline_s, nccl->base.rank, partners);
        }
        look_again_soon();
    }
}

/* ---- a group -------------------------------------------------------------------------------- */

static bool is_on_device(const void *data) {
    struct cudaPointerAttributes attributes;
    if (cudaPointerGetAttributes(&attributes, data) != cudaSuccess) {
        cudaGetLastError();
        return false;
    }
    return attributes.type == cudaMemoryTypeDevice || attributes.type == cudaMemoryTypeManaged;
}

/* One rank's side of one part of a group: where its bytes are on the device. */
typedef struct side {
    unsigned char *host; /* staged from or to here; NULL: they are on the device themselves */
    unsigned char *device;
    size_t bytes;
} side;

static side side_of(const nccl_transport *nccl, const bl_part *part, const bl_group *group,
                    int index, bool leaves) {
    const size_t offset = (size_t)group->chunk * BL_ROUND_CHUNK;
    /* The source is only read. */
    unsigned char *data = leaves ? (unsigned char *)(uintptr_t)part->source : part->target;
    const size_t slot = 2 * (size_t)index + (leaves ? 0 : 1);
    const bool direct = is_on_device(data);
    return (side){.host = direct ? NULL : data + offset,
                  .device = direct ? data + offset : nccl->stage + slot * BL_ROUND_CHUNK,
                  .bytes = bl_part_chunk_bytes(part, group->chunk)};
}

/* To the device before, or from it after. */
static bl_status stage(const nccl_transport *nccl, const bl_part *parts, const bl_group *group,
                       bool leaves, bl_error *err) {
    for (int p = group->first; p < group->last; p++) {
        if ((leaves ? parts[p].from : parts[p].to) != nccl->base.rank)
            continue;
        const side s = side_of(nccl, &parts[p], group, p - group->first, leaves);
        if (s.bytes == 0 || s.host == NULL)
            continue;
        CUDA_TRY(
            leaves
                ? cudaMemcpyAsync(s.device, s.host, s.bytes, cudaMemcpyHostToDevice, nccl->stream)
                : cudaMemcpyAsync(s.host, s.device, s.bytes, cudaMemcpyDeviceToHost, nccl->stream),
            leaves ? "copy to the device" : "copy from the device", err);
    }
    return BL_OK;
}

/* Issue the group's sends and receives in the order of the list. */
static bl_status issue(const nccl_transport *nccl, const bl_part *parts, const bl_group *group,
                       bl_error *err) {
    for (int p = group->first; p < group->last; p++) {
        const bl_part *part = &parts[p];
        if (bl_part_chunk_bytes(part, group->chunk) == 0)
            continue;
        if (part->from == nccl->base.rank) {
            const side s = side_of(nccl, part, group, p - group->first, true);
            NCCL_TRY(ncclSend(s.device, s.bytes, ncclUint8, part->to, nccl->comm, nccl->stream),
                     "send", err);
        }
        if (part->to == nccl->base.rank) {
            const side s = side_of(nccl, part, group, p - group->first, false);
            NCCL_TRY(ncclRecv(s.device, s.bytes, ncclUint8, part->from, nccl->comm, nccl->stream),
                     "receive", err);
        }
    }
    return BL_OK;
}

static bool takes_part(const nccl_transport *nccl, const bl_part *parts, const bl_group *group) {
    for (int p = group->first; p < group->last; p++)
        if (partner_in(nccl, &parts[p], group->chunk) >= 0)
            return true;
    return false;
}

static bl_status run_group(const nccl_transport *nccl, const bl_part *parts, const bl_group *group,
                           bl_error *err) {
    BL_TRY(stage(nccl, parts, group, true, err));
    NCCL_TRY(ncclGroupStart(), "start a group", err);
    const bl_status st = issue(nccl, parts, group, err);
    const ncclResult_t ended = ncclGroupEnd(); /* also after a failure: groups are per thread */
    BL_TRY(st);
    NCCL_TRY(ended, "end a group", err);
    BL_TRY(settle(nccl, bl_now_s() + nccl->base.deadline_s, "start a transfer", err));
    /* A copy to pageable memory would block behind a kernel that spins: so wait before and after. */
    BL_TRY(wait_for_group(nccl, parts, group, err));
    BL_TRY(stage(nccl, parts, group, false, err));
    return wait_for_group(nccl, parts, group, err);
}

static bl_status run_round(const nccl_transport *nccl, const bl_part *parts, int n_parts,
                           bl_error *err) {
    bl_group group = bl_group_first();
    CUDA_TRY(cudaSetDevice(nccl->device), "use its device", err);
    while (bl_group_next(parts, n_parts, &group))
        if (takes_part(nccl, parts, &group))
            BL_TRY(run_group(nccl, parts, &group, err));
    return BL_OK;
}

static bl_status nccl_round(bl_transport *transport, const bl_part *parts, int n_parts,
                            bl_error *err) {
    nccl_transport *nccl = nccl_of(transport);
    if (nccl->comm == NULL)
        return bl_fail(err, BL_ERR_STATE,
                       "rank %d has no communicator since a round failed: open the transport anew",
                       transport->rank);
    const bl_status st = run_round(nccl, parts, n_parts, err);
    if (st < 0) {
        ncclCommAbort(nccl->comm);
        nccl->comm = NULL;
    }
    return st;
}

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
    if (nccl->comm != NULL)
        ncclCommAbort(nccl->comm);
    if (nccl->stage != NULL)
        cudaFree(nccl->stage);
    if (nccl->stream != NULL)
        cudaStreamDestroy(nccl->stream);
}

static void nccl_close(bl_transport *transport, bool orderly) {
    nccl_transport *nccl = nccl_of(transport);
    bl_transport *carrier = nccl->carrier;
    /* No wait for the others here, who may be gone; rounds are complete when they return. */
    free_device(nccl);
    carrier->deadline_s = transport->deadline_s;
    free(nccl);
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
};

/* ---- open ----------------------------------------------------------------------------------- */

#define ID_MARK UINT64_C(0x4e43434c4944) /* "NCCLID" */

/* Rank 0 makes the communicator's id and tells it. */
static bl_status share_id(const nccl_transport *nccl, ncclUniqueId *id, bl_error *err) {
    bl_transport *carrier = nccl->carrier;
    if (nccl->base.rank == 0) {
        NCCL_TRY(ncclGetUniqueId(id), "name a communicator", err);
        for (int rank = 1; rank < nccl->base.n_ranks; rank++)
            BL_TRY(
                bl_transport_send(carrier, rank, BL_CHANNEL_CONTROL, ID_MARK, id, sizeof *id, err));
        return BL_OK;
    }
    bl_message message;
    BL_TRY(bl_transport_receive(carrier, 0, BL_CHANNEL_CONTROL, ID_MARK, nccl->base.deadline_s,
                                &message, err));
    const size_t bytes = message.bytes;
    if (bytes == sizeof *id)
        memcpy(id, message.data, sizeof *id);
    bl_message_free(&message);
    if (bytes != sizeof *id)
        return bl_fail(err, BL_ERR_STATE, "rank 0 names a communicator of another NCCL");
    return BL_OK;
}

static bl_status start(nccl_transport *nccl, const bl_nccl_options *options, bl_error *err) {
    ncclUniqueId id;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    config.maxCTAs = options->max_ctas;
    CUDA_TRY(cudaSetDevice(options->device), "use its device", err);
    CUDA_TRY(cudaStreamCreateWithFlags(&nccl->stream, cudaStreamNonBlocking), "make a stream", err);
    void *stage_memory;
    CUDA_TRY(cudaMalloc(&stage_memory, 2 * BL_ROUND_PARTS * BL_ROUND_CHUNK), "stage transfers",
             err);
    nccl->stage = stage_memory;
    BL_TRY(share_id(nccl, &id, err));
    NCCL_TRY(ncclCommInitRankConfig(&nccl->comm, nccl->base.n_ranks, id, nccl->base.rank, &config),
             "make a communicator", err);
    return settle(nccl, bl_now_s() + nccl->base.deadline_s, "make a communicator", err);
}

bl_status bl_transport_nccl_open(const bl_nccl_options *options, bl_transport *carrier,
                                 bl_transport **out, bl_error *err) {
    nccl_transport *nccl;
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
    const bl_status st = start(nccl, options, err);
    if (st < 0) {
        free_device(nccl);
        free(nccl);
        return st;
    }
    *out = &nccl->base;
    return BL_OK;
}
