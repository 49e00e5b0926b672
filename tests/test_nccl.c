/* What only rounds over NCCL can do wrong: stand still. Ranks are threads, over the fake library. */
#include "runtime/round.h"

#include "core/progress.h"
#include "tests/fake/nccl.h"
#include "tests/fake/fake_nccl.h"
#include "tests/support/support.h"
#include "tests/support/transport_body.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

typedef bl_status body_fn(bl_transport *t, bl_error *err);

#define SOON_S 0.5 /* when the ranks of a round that stands still give up */

typedef struct rank_thread {
    pthread_t thread;
    bl_transport *transport;
    body_fn *body;
    double deadline_s;
    bl_status opened, status;
    bl_error err;
} rank_thread;

static void *run_rank(void *arg) {
    rank_thread *rank = arg;
    const bl_nccl_options options = {.device = bl_transport_rank(rank->transport), .max_ctas = 4};
    bl_transport_set_deadline(rank->transport, rank->deadline_s);
    rank->opened = bl_transport_nccl_open(&options, rank->transport, &rank->transport, &rank->err);
    rank->status = rank->opened == BL_OK ? rank->body(rank->transport, &rank->err) : rank->opened;
    bl_transport_close(rank->transport);
    return NULL;
}

static void run_all(int n_ranks, body_fn *body, double deadline_s, rank_thread *ranks) {
    bl_error err;
    bl_transport *handles[8];
    assert_ok(bl_transport_local_open(n_ranks, handles, &err));
    for (int rank = 0; rank < n_ranks; rank++) {
        ranks[rank] = (rank_thread){.transport = handles[rank],
                                    .body = body,
                                    .deadline_s = deadline_s,
                                    .err = BL_ERROR_INIT};
        assert_int_equal(pthread_create(&ranks[rank].thread, NULL, run_rank, &ranks[rank]), 0);
    }
    for (int rank = 0; rank < n_ranks; rank++)
        pthread_join(ranks[rank].thread, NULL);
}

static void run_well(int n_ranks, body_fn *body) {
    rank_thread ranks[8];
    fake_nccl_reset();
    run_all(n_ranks, body, WAIT_S, ranks);
    for (int rank = 0; rank < n_ranks; rank++)
        if (ranks[rank].status < 0)
            fail_msg("rank %d: %s", rank, ranks[rank].err.text);
    if (fake_nccl_misuse() != NULL)
        fail_msg("misuse of NCCL: %s", fake_nccl_misuse());
}

static void assert_all_given_back(void) {
    assert_int_equal(fake_nccl_reset(), 0);
}

/* ---- order ---------------------------------------------------------------------------------- */

/* 20 parts of 9 MiB from 0 to 1 are groups of 16 and of 4 parts, three chunks each; by hand, six on
 * either side. */
static bl_status body_groups(bl_transport *t, bl_error *err) {
    static unsigned char source[9 * MIB], target[20][9 * MIB];
    bl_part parts[20];
    for (int p = 0; p < 20; p++)
        parts[p] =
            (bl_part){.from = 0, .to = 1, .bytes = 9 * MIB, .source = source, .target = target[p]};
    return bl_transport_round(t, parts, 20, 3, err);
}

static void test_groups_are_chunks_of_sixteen_parts(void **state) {
    (void)state;
    run_well(2, body_groups);
    assert_int_equal(fake_nccl_groups(), 12);
    assert_int_equal(fake_nccl_largest_group(), 16);
    assert_int_equal(fake_nccl_sent_bytes(), 20 * 9 * MIB);
    assert_all_given_back();
}

/* A cycle: each sends before it receives, which only a group lets pass. */
static bl_status body_cycle(bl_transport *t, bl_error *err) {
    const int rank = bl_transport_rank(t), n = bl_transport_n_ranks(t);
    unsigned char *mine = bl_test_content(rank, 1, 5 * MIB), *theirs = malloc(5 * MIB);
    unsigned char *want = bl_test_content((rank + n - 1) % n, 1, 5 * MIB);
    bl_part parts[4];
    for (int p = 0; p < n; p++)
        parts[p] = (bl_part){
            .from = p, .to = (p + 1) % n, .bytes = 5 * MIB, .source = mine, .target = theirs};
    const bl_status st = bl_transport_round(t, parts, n, 0, err);
    const bool same = st == BL_OK && memcmp(theirs, want, 5 * MIB) == 0;
    free(mine);
    free(theirs);
    free(want);
    BL_TRY(st);
    REQUIRE(same);
    return BL_OK;
}

static void test_a_cycle_does_not_stand_still(void **state) {
    (void)state;
    run_well(4, body_cycle);
    assert_all_given_back();
}

/* Bundles that lie on the device are sent from there and received into there. */
static bl_status body_on_device(bl_transport *t, bl_error *err) {
    static unsigned char host[2][MIB];
    unsigned char *mine = host[bl_transport_rank(t)];
    void *data;
    memset(mine, bl_transport_rank(t) == 0 ? 7 : 0, MIB);
    REQUIRE(cudaMalloc(&data, MIB) == cudaSuccess);
    REQUIRE(cudaMemcpy(data, mine, MIB, cudaMemcpyHostToDevice) == cudaSuccess);
    const bl_part part = {.from = 0, .to = 1, .bytes = MIB, .source = data, .target = data};
    const bl_status st = bl_transport_round(t, &part, 1, 0, err);
    REQUIRE(cudaMemcpy(mine, data, MIB, cudaMemcpyDeviceToHost) == cudaSuccess);
    const bool same = mine[0] == 7 && mine[MIB - 1] == 7;
    cudaFree(data);
    BL_TRY(st);
    REQUIRE(same);
    return BL_OK;
}

static void test_device_memory_is_used_in_place(void **state) {
    (void)state;
    run_well(2, body_on_device);
    assert_all_given_back();
}

/* ---- standing still -------------------------------------------------------------------------- */

static unsigned char buffer[2][64];

/* Both sides must give up by name, and say that there is no communicator any more. */
static bl_status expect_standstill(bl_transport *t, const bl_part *part, int n_parts,
                                   const char *partner, bl_error *err) {
    const double start_s = bl_now_s();
    bl_transport_set_deadline(t, SOON_S);
    REQUIRE_FAILS(bl_transport_round(t, part, n_parts, 0, &seen), BL_ERR_TIMEOUT, partner);
    REQUIRE(bl_now_s() - start_s >= SOON_S);
    bl_error again = BL_ERROR_INIT;
    REQUIRE(bl_transport_round(t, part, n_parts, 1, &again) == BL_ERR_STATE);
    REQUIRE(strstr(again.text, "no communicator") != NULL);
    bl_transport_set_deadline(t, WAIT_S);
    return bl_test_meet(t, 9, err); /* messages still go */
}

static bl_status body_other_size(bl_transport *t, bl_error *err) {
    const int rank = bl_transport_rank(t);
    const bl_part part = {
        .from = 0, .to = 1, .bytes = rank == 0 ? 64 : 32, .source = buffer[0], .target = buffer[1]};
    return expect_standstill(
        t, &part, 1, rank == 0 ? "exchanges it with rank 1," : "exchanges it with rank 0,", err);
}

/* 0 sends to 1 while 1 sends to 0: each waits for the other to receive. */
static bl_status body_both_send(bl_transport *t, bl_error *err) {
    const int rank = bl_transport_rank(t);
    const bl_part part = {
        .from = rank, .to = 1 - rank, .bytes = 64, .source = buffer[0], .target = buffer[1]};
    return expect_standstill(
        t, &part, 1, rank == 0 ? "exchanges it with rank 1," : "exchanges it with rank 0,", err);
}

/* The same parts in another order: sizes no longer pair. */
static bl_status body_other_order(bl_transport *t, bl_error *err) {
    const int rank = bl_transport_rank(t);
    bl_part parts[2];
    for (int p = 0; p < 2; p++)
        parts[p] = (bl_part){.from = 0,
                             .to = 1,
                             .bytes = p == rank ? 16 : 48,
                             .source = buffer[0],
                             .target = buffer[1]};
    return expect_standstill(
        t, parts, 2, rank == 0 ? "exchanges it with rank 1," : "exchanges it with rank 0,", err);
}

/* Rank 1 never enters the round. */
static bl_status body_absent(bl_transport *t, bl_error *err) {
    const bl_part part = {
        .from = 0, .to = 1, .bytes = 64, .source = buffer[0], .target = buffer[1]};
    if (bl_transport_rank(t) == 0)
        return expect_standstill(t, &part, 1, "exchanges it with rank 1,", err);
    return bl_test_meet(t, 9, err);
}

static void test_mismatches_end_by_name(void **state) {
    (void)state;
    body_fn *const bodies[] = {body_other_size, body_both_send, body_other_order, body_absent};
    for (size_t b = 0; b < sizeof bodies / sizeof *bodies; b++) {
        run_well(2, bodies[b]);
        assert_all_given_back();
    }
}

/* ---- rounds that do not wait ------------------------------------------------------------------ */

static bl_status finish(bl_transport *t, bl_error *err) {
    bool done = false;
    while (!done)
        BL_TRY(bl_rounds_poll(t, &done, err));
    return BL_OK;
}

/* Rank 0's word to the others, and its name for a communicator. */
static bl_status share(bl_transport *t, const bool *members, unsigned char *name, bl_error *err) {
    if (bl_transport_rank(t) == 0) {
        BL_TRY(bl_rounds_name(t, members, name, err));
        for (int rank = 1; rank < bl_transport_n_ranks(t); rank++)
            BL_TRY(
                bl_transport_send(t, rank, BL_CHANNEL_CONTROL, 5, name, BL_ROUND_NAME_BYTES, err));
        return BL_OK;
    }
    bl_message message;
    BL_TRY(bl_transport_receive(t, 0, BL_CHANNEL_CONTROL, 5, WAIT_S, &message, err));
    memcpy(name, message.data, BL_ROUND_NAME_BYTES);
    bl_message_free(&message);
    return BL_OK;
}

/* Three ranks, then 0 and 2 without 1: what is left keeps its numbers, and the old name is spent. */
static bl_status body_members(bl_transport *t, bl_error *err) {
    static unsigned char data[3][64];
    const int rank = bl_transport_rank(t);
    unsigned char name[BL_ROUND_NAME_BYTES], again[BL_ROUND_NAME_BYTES];
    const bool all[] = {true, true, true}, some[] = {true, false, true};
    const bl_part part = {.from = 2, .to = 0, .bytes = 64, .source = data[2], .target = data[0]};
    memset(data[rank], rank, 64);
    BL_TRY(share(t, all, name, err));
    BL_TRY(bl_rounds_join(t, all, name, err)); /* it is the one in use */
    BL_TRY(finish(t, err));
    BL_TRY(share(t, some, again, err));
    REQUIRE(memcmp(name, again, sizeof name) != 0);
    BL_TRY(bl_rounds_leave(t, err));
    BL_TRY(bl_rounds_leave(t, err));
    REQUIRE_FAILS(bl_rounds_join(t, all, name, &seen), BL_ERR_STATE, "no communicator");
    if (rank == 1) {
        REQUIRE_FAILS(bl_rounds_join(t, some, again, &seen), BL_ERR_STATE, "not a member");
        REQUIRE_FAILS(bl_rounds_post(t, &part, 1, &seen), BL_ERR_STATE, "no communicator");
        return bl_test_meet(t, 9, err);
    }
    BL_TRY(bl_rounds_join(t, some, again, err));
    BL_TRY(finish(t, err));
    const bl_part astray = {.from = rank, .to = 1, .bytes = 64, .source = data[rank]};
    REQUIRE_FAILS(bl_rounds_post(t, &astray, 1, &seen), BL_ERR_STATE, "rank 1 is not in");
    return bl_test_meet(t, 9, err);
}

/* A post with work is not done at once, a second one must wait, and its bytes are there when it is. */
static bl_status body_post(bl_transport *t, bl_error *err) {
    static unsigned char data[2][64];
    const int rank = bl_transport_rank(t);
    const bl_part part = {.from = 1, .to = 0, .bytes = 64, .source = data[1], .target = data[0]};
    bl_part parts[BL_ROUND_PARTS + 1] = {part};
    bool done;
    memset(data[rank], 3 + rank, 64);
    BL_TRY(bl_rounds_post(t, &part, 1, err));
    BL_TRY(bl_rounds_poll(t, &done, err));
    REQUIRE(!done);
    REQUIRE_FAILS(bl_rounds_post(t, &part, 1, &seen), BL_ERR_STATE, "has not done with");
    BL_TRY(finish(t, err));
    REQUIRE(rank == 1 || (data[0][0] == 4 && data[0][63] == 4));
    REQUIRE_FAILS(bl_rounds_post(t, parts, BL_ROUND_PARTS + 1, &seen), BL_ERR_RANGE, "17 parts");
    parts[0].bytes = BL_ROUND_CHUNK + 1;
    REQUIRE_FAILS(bl_rounds_post(t, parts, 1, &seen), BL_ERR_RANGE, "part 0 of a group has");
    return bl_test_meet(t, 9, err);
}

static void test_rounds_that_do_not_wait(void **state) {
    (void)state;
    run_well(3, body_members);
    assert_int_equal(fake_nccl_joined(), 5);
    assert_all_given_back();
    run_well(2, body_post);
    assert_all_given_back();
}

/* Without NCCL there are none. */
static void test_none_by_messages(void **state) {
    (void)state;
    bl_error err;
    bl_transport *t;
    bool done = true;
    assert_ok(bl_transport_local_open(1, &t, &err));
    assert_false(bl_rounds_are_offered(t));
    assert_fails(bl_rounds_poll(t, &done, &err), BL_ERR_UNSUPPORTED, "by messages");
    assert_false(done);
    assert_ok(bl_rounds_leave(t, &err));
    bl_transport_close(t);
}

/* ---- failures of the library ------------------------------------------------------------------ */

static bl_status body_round(bl_transport *t, bl_error *err) {
    const bl_part part = {
        .from = 0, .to = 1, .bytes = 64, .source = buffer[0], .target = buffer[1]};
    return bl_transport_round(t, &part, 1, 0, err);
}

/* Whatever call fails, both ranks come back with an error or none, and everything is given back. */
static void test_every_failing_call_is_survived(void **state) {
    (void)state;
    int n_failed = 0;
    for (int call = 1; call <= 16; call++) {
        rank_thread ranks[2];
        fake_nccl_reset();
        fake_nccl_fail_call(call);
        run_all(2, body_round, SOON_S, ranks);
        n_failed += ranks[0].status < 0 || ranks[1].status < 0;
        for (int rank = 0; rank < 2; rank++)
            assert_true(ranks[rank].status == BL_OK || ranks[rank].err.text[0] != '\0');
        assert_null(fake_nccl_misuse());
        assert_all_given_back();
    }
    assert_true(n_failed >= 4);
}

static void test_options(void **state) {
    (void)state;
    bl_error err;
    bl_transport *carrier, *transport;
    assert_ok(bl_transport_local_open(1, &carrier, &err));
    assert_fails(
        bl_transport_nccl_open(&(bl_nccl_options){.max_ctas = 0}, carrier, &transport, &err),
        BL_ERR_RANGE, "0 blocks");
    assert_fails(bl_transport_nccl_open(&(bl_nccl_options){.device = 99, .max_ctas = 4}, carrier,
                                        &transport, &err),
                 BL_ERR_UNSUPPORTED, "CUDA cannot use its device");
    bl_transport_close(carrier); /* still ours */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_groups_are_chunks_of_sixteen_parts),
        cmocka_unit_test(test_a_cycle_does_not_stand_still),
        cmocka_unit_test(test_device_memory_is_used_in_place),
        cmocka_unit_test(test_mismatches_end_by_name),
        cmocka_unit_test(test_rounds_that_do_not_wait),
        cmocka_unit_test(test_none_by_messages),
        cmocka_unit_test(test_every_failing_call_is_survived),
        cmocka_unit_test(test_options),
    };
    return cmocka_run_group_tests_name("nccl", tests, NULL, NULL);
}
