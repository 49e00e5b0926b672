/*
 * nccl.h: what runtime/transport_nccl.c uses of NCCL, for builds without it. fake_nccl.c carries it out
 * on CPUs; with CUDA=1 the same source is compiled against the real header.
 */
#ifndef BL_FAKE_NCCL_H
#define BL_FAKE_NCCL_H

#include "cuda_runtime_api.h"

#include <limits.h>

typedef enum {
    ncclSuccess = 0,
    ncclUnhandledCudaError = 1,
    ncclSystemError = 2,
    ncclInternalError = 3,
    ncclInvalidArgument = 4,
    ncclInvalidUsage = 5,
    ncclRemoteError = 6,
    ncclInProgress = 7
} ncclResult_t;

typedef enum { ncclUint8 = 1 } ncclDataType_t;

typedef struct fake_nccl_comm *ncclComm_t;

typedef struct {
    char internal[128];
} ncclUniqueId;

typedef struct {
    int blocking, maxCTAs;
} ncclConfig_t;
#define NCCL_CONFIG_INITIALIZER \
    { INT_MIN, INT_MIN }

ncclResult_t ncclGetUniqueId(ncclUniqueId *id);
ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int n_ranks, ncclUniqueId id, int rank,
                                    ncclConfig_t *config);
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *state);
ncclResult_t ncclCommAbort(ncclComm_t comm);
ncclResult_t ncclGroupStart(void);
ncclResult_t ncclGroupEnd(void);
ncclResult_t ncclSend(const void *data, size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclRecv(void *data, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream);
const char *ncclGetErrorString(ncclResult_t result);

#endif
