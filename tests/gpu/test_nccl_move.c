/* Experts over the real NCCL: what tests/test_nccl_move.c does on the fake one, here with a process and a
 * GPU per rank and messages over UCX. Exits 77 with fewer than two GPUs: NCCL takes one rank on each. */
#include "runtime/launch.h"

#include "tests/gpu/gpus.h"
#include "tests/support/mover.h"
#include "tests/support/support.h"
#include "tests/support/transport_body.h"

#include <stdio.h>

static int n_ranks;

static int copy_rows(void *user, void *to, size_t to_stride, const void *from, size_t from_stride,
                     size_t row_bytes, size_t rows) {
    (void)user;
    return (int)cudaMemcpy2D(to, to_stride, from, from_stride, row_bytes, rows, cudaMemcpyDefault);
}

static bl_status run_rank(const bl_seat *seat, void *user, bl_error *err) {
    const bl_ucx_options options = bl_seat_ucx_options(seat, WAIT_S);
    const bl_nccl_options nccl = {.device = seat->rank, .max_ctas = 4};
    bl_transport *carrier, *transport;
    bl_memory *memory = NULL;
    bl_test_mover out = {0};
    BL_TRY(bl_transport_ucx_open(&options, &carrier, err));
    bl_status st = bl_transport_nccl_open(&nccl, carrier, &transport, err);
    if (st < 0) {
        bl_transport_abandon(carrier);
        return st;
    }
    st = bl_memory_open(seat->rank, &memory, err);
    if (st >= 0)
        st = bl_test_mover_run(user, transport, memory, &out, err);
    bl_memory_close(memory);
    bl_transport_close(transport);
    return st >= 0 ? bl_seat_put(seat, &out, sizeof out, err) : st;
}

/* All ranks served every step with the same maps, kept the budget, and have all their spares. */
static void run(bl_test_mover_plan *plan, bl_test_mover *first) {
    const bl_launch_options options = BL_LAUNCH_OPTIONS_INIT;
    bl_error err;
    bl_rank_end ends[MAX_GPUS];
    assert_ok(bl_launch_ranks(n_ranks, run_rank, plan, &options, ends, &err));
    for (int rank = 0; rank < n_ranks; rank++) {
        bl_test_mover out;
        assert_int_equal(ends[rank].result_bytes, sizeof out);
        memcpy(&out, ends[rank].result, sizeof out);
        if (rank == 0)
            *first = out;
        assert_true(out.epochs == first->epochs && out.n_steps == first->n_steps);
        assert_int_equal(out.spares_left, plan->spares);
        assert_true(out.status.max_step_bytes <= (uint64_t)plan->options.step_bytes);
        assert_true(out.n_checked > 0);
    }
    bl_rank_ends_free(ends, n_ranks);
    print_message("# %d moves of %zu bytes in %.3f s, longest step %.3f ms\n", first->n_moves,
                  plan->bundle_bytes, first->moved_s, (double)first->status.max_step_ns * 1e-6);
}

static void carry_out(bl_test_mover_plan plan) {
    bl_test_mover first;
    plan.n_goals = 4;
    plan.experts = 6;
    run(&plan, &first);
    for (int goal = 0; goal < plan.n_goals; goal++)
        if (first.outcomes[goal] != BL_TX_MOVED)
            fail_msg("goal %d: %s", goal, first.reasons[goal]);
    assert_int_equal(first.at_goal, plan.n_goals - 1);
}

static void test_plans(void **state) {
    (void)state;
    bl_test_mover_plan plan = BL_TEST_MOVER_PLAN;
    carry_out(plan);
    plan.bundle_bytes = 9 * MIB + 5; /* three chunks, a group each */
    carry_out(plan);
    plan.options.step_bytes = (int64_t)64 << 20;
    carry_out(plan);
}

static void test_tensors(void **state) {
    (void)state;
    bl_test_mover_plan plan = BL_TEST_MOVER_PLAN;
    plan.copy = copy_rows;
    plan.bundle_bytes = 9 * MIB;
    carry_out(plan);
}

/* A wave is broken off, and the next plans go over a new communicator. */
static void test_the_operator_aborts(void **state) {
    (void)state;
    for (int stop_after = 2; stop_after < 12; stop_after += 3) {
        bl_test_mover_plan plan = BL_TEST_MOVER_PLAN;
        bl_test_mover first;
        plan.n_goals = 3;
        plan.experts = 6;
        plan.goes_on = true;
        plan.stop_after = stop_after;
        plan.bundle_bytes = 40 * MIB;
        run(&plan, &first);
        assert_int_equal(first.outcomes[0], BL_TX_ABORTED);
        assert_int_equal(first.outcomes[1], BL_TX_MOVED);
        assert_int_equal(first.outcomes[2], BL_TX_MOVED);
        assert_int_equal(first.at_goal, 2);
    }
}

int main(void) {
    const int n = n_gpus();
    n_ranks = n;
    if (n < 2) {
        printf("# SKIP two GPUs are needed, %d here\n", n);
        return 77;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plans),
        cmocka_unit_test(test_tensors),
        cmocka_unit_test(test_the_operator_aborts),
    };
    return cmocka_run_group_tests_name("experts over nccl on GPUs", tests, NULL, NULL);
}
