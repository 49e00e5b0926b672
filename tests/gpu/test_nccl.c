/* Rounds over the real NCCL, one process per GPU, from host and from device memory. With one GPU the
 * rank sends to itself; exits 77 where there is none. */
#include "runtime/launch.h"
#include "runtime/round.h"

#include "tests/gpu/gpus.h"
#include "tests/support/support.h"
#include "tests/support/transport_body.h"

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PART_BYTES (9 * MIB + 5)

/* A ring: rank r sends to r + 1, first between host buffers, then between device buffers. */
static bl_status ring(bl_transport *t, bl_error *err) {
    const int rank = bl_transport_rank(t), n = bl_transport_n_ranks(t);
    bl_part parts[MAX_GPUS];
    for (uint64_t round = 0; round < 2; round++) {
        unsigned char *mine = bl_test_content(rank, round, PART_BYTES),
                      *got = calloc(1, PART_BYTES);
        unsigned char *want = bl_test_content((rank + n - 1) % n, round, PART_BYTES);
        void *device[2] = {NULL, NULL};
        if (round == 1) {
            REQUIRE(cudaMalloc(&device[0], PART_BYTES) == cudaSuccess);
            REQUIRE(cudaMalloc(&device[1], PART_BYTES) == cudaSuccess);
            REQUIRE(cudaMemcpy(device[0], mine, PART_BYTES, cudaMemcpyHostToDevice) == cudaSuccess);
        }
        for (int p = 0; p < n; p++)
            parts[p] = (bl_part){.from = p,
                                 .to = (p + 1) % n,
                                 .bytes = PART_BYTES,
                                 .source = round == 1 ? device[0] : mine,
                                 .target = round == 1 ? device[1] : got};
        BL_TRY(bl_transport_round(t, parts, n, round, err));
        if (round == 1)
            REQUIRE(cudaMemcpy(got, device[1], PART_BYTES, cudaMemcpyDeviceToHost) == cudaSuccess);
        REQUIRE(memcmp(got, want, PART_BYTES) == 0);
        cudaFree(device[0]);
        cudaFree(device[1]);
        free(mine);
        free(got);
        free(want);
    }
    return bl_test_meet(t, 0, err);
}

static bl_status run_rank(const bl_seat *seat, void *user, bl_error *err) {
    const bl_ucx_options options = bl_seat_ucx_options(seat, WAIT_S);
    const bl_nccl_options nccl = {.device = seat->rank, .max_ctas = 4};
    bl_transport *carrier, *transport;
    (void)user;
    BL_TRY(bl_transport_ucx_open(&options, &carrier, err));
    bl_status st = bl_transport_nccl_open(&nccl, carrier, &transport, err);
    if (st < 0) {
        bl_transport_abandon(carrier);
        return st;
    }
    st = ring(transport, err);
    bl_transport_close(transport);
    return st;
}

static void test_ring(void **state) {
    const int n_ranks = *(const int *)*state;
    const bl_launch_options options = BL_LAUNCH_OPTIONS_INIT;
    bl_error err;
    bl_rank_end ends[MAX_GPUS];
    print_message("%d GPUs\n", n_ranks);
    assert_ok(bl_launch_ranks(n_ranks, run_rank, NULL, &options, ends, &err));
    bl_rank_ends_free(ends, n_ranks);
}

int main(void) {
    static int n;
    n = n_gpus();
    if (n == 0) {
        puts("# SKIP no GPU here");
        return 77;
    }
    const struct CMUnitTest tests[] = {{"a ring of all GPUs", test_ring, NULL, NULL, &n}};
    return cmocka_run_group_tests_name("nccl on GPUs", tests, NULL, NULL);
}
