/*
 * gpus.h: how many GPUs there are to test with.
 */
#ifndef BL_TESTS_GPUS_H
#define BL_TESTS_GPUS_H

#include "runtime/launch.h"

#include <cuda_runtime_api.h>
#include <string.h>

#define MAX_GPUS 4

/* CUDA does not survive a fork, so a child counts. */
static bl_status count_gpus(const bl_seat *seat, void *user, bl_error *err) {
    int n = 0;
    (void)user;
    if (cudaGetDeviceCount(&n) != cudaSuccess)
        n = 0;
    return bl_seat_put(seat, &n, sizeof n, err);
}

static int n_gpus(void) {
    const bl_launch_options options = BL_LAUNCH_OPTIONS_INIT;
    bl_error err = BL_ERROR_INIT;
    bl_rank_end end;
    int n = 0;
    if (bl_launch_ranks(1, count_gpus, NULL, &options, &end, &err) == BL_OK)
        memcpy(&n, end.result, sizeof n);
    bl_rank_ends_free(&end, 1);
    return n < MAX_GPUS ? n : MAX_GPUS;
}

#endif
