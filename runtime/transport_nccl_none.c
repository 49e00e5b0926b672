/* Stands in for transport_nccl.c in builds without NCCL. */
#include "runtime/transport.h"

bl_status bl_transport_nccl_open(const bl_nccl_options *options, bl_transport *carrier,
                                 bl_transport **out, bl_error *err) {
    (void)options, (void)carrier, (void)out;
    return bl_fail(err, BL_ERR_UNSUPPORTED, "this build has no NCCL: make CUDA=1");
}
