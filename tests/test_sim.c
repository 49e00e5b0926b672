/* What only a simulated cluster has: its own clock, the same run again, and faults at a given time. */
#include "runtime/exchange.h"
#include "runtime/transport_sim.h"

#include "core/progress.h"
#include "tests/support/cluster.h"
#include "tests/support/support.h"
#include "tests/support/transport_body.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

typedef bl_status body_fn(bl_transport *t, bl_error *err);

typedef struct rank_thread {
    pthread_t thread;
    bl_transport *transport;
    body_fn *body;
    uint64_t history; /* when its body was done */
    double end_s;
    bl_status status;
    bl_error err;
} rank_thread;

static void *run_rank(void *arg) {
    rank_thread *rank = arg;
    rank->status = rank->body(rank->transport, &rank->err);
    rank->history = bl_transport_sim_history(rank->transport);
    rank->end_s = bl_transport_now_s(rank->transport);
    bl_transport_close(rank->transport);
    return NULL;
}

static void run(int n_ranks, const bl_sim_options *options, body_fn *body, rank_thread *ranks) {
    bl_error err;
    bl_transport *handles[8];
    assert_ok(bl_transport_sim_open(n_ranks, options, handles, &err));
    for (int rank = 0; rank < n_ranks; rank++) {
        ranks[rank] = (rank_thread){.transport = handles[rank], .body = body, .err = BL_ERROR_INIT};
        assert_int_equal(pthread_create(&ranks[rank].thread, NULL, run_rank, &ranks[rank]), 0);
    }
    for (int rank = 0; rank < n_ranks; rank++)
        pthread_join(ranks[rank].thread, NULL);
}

static void assert_all_well(const rank_thread *ranks, int n_ranks) {
    for (int rank = 0; rank < n_ranks; rank++)
        if (ranks[rank].status < 0)
            fail_msg("rank %d: %s", rank, ranks[rank].err.text);
}

/* ---- the same again -------------------------------------------------------------------------- */

static bl_status body_traffic(bl_transport *t, bl_error *err) {
    const int n_ranks = bl_transport_n_ranks(t);
    for (uint64_t mark = 0; mark < 100; mark++) {
        for (int peer = 0; peer < n_ranks; peer++)
            BL_TRY(bl_test_send(t, peer, BL_CHANNEL_STEP, mark, mark * 31 % 1000, err));
        for (int peer = 0; peer < n_ranks; peer++)
            BL_TRY(bl_test_receive(t, peer, BL_CHANNEL_STEP, mark, mark * 31 % 1000, err));
    }
    return BL_OK;
}

static void test_a_seed_is_one_run(void **state) {
    (void)state;
    uint64_t history[4][2];
    double end_s[4][2];
    rank_thread ranks[5];
    bl_sim_options options = BL_SIM_OPTIONS_INIT;
    options.lose = options.again = 0.3;
    for (uint64_t seed = 0; seed < 4; seed++)
        for (int again = 0; again < 2; again++) {
            options.seed = seed;
            run(5, &options, body_traffic, ranks);
            assert_all_well(ranks, 5);
            history[seed][again] = ranks[3].history;
            end_s[seed][again] = ranks[3].end_s;
        }
    for (int seed = 0; seed < 4; seed++) {
        assert_true(history[seed][0] == history[seed][1]);
        assert_true(end_s[seed][0] == end_s[seed][1]);
        for (int other = 0; other < seed; other++)
            assert_true(history[seed][0] != history[other][0]);
    }
}

/* ---- the clock ------------------------------------------------------------------------------- */

static bl_status body_hour(bl_transport *t, bl_error *err) {
    bl_message message;
    REQUIRE_FAILS(bl_transport_receive(t, 1 - bl_transport_rank(t), BL_CHANNEL_STEP, 0, 3600,
                                       &message, &seen),
                  BL_ERR_TIMEOUT, "waited 3600 s");
    REQUIRE(bl_transport_now_s(t) >= 3600 && bl_transport_now_s(t) < 3601);
    return BL_OK;
}

static void test_waiting_takes_no_time(void **state) {
    (void)state;
    rank_thread ranks[2];
    const double start_s = bl_now_s();
    const bl_sim_options options = BL_SIM_OPTIONS_INIT;
    run(2, &options, body_hour, ranks);
    assert_all_well(ranks, 2);
    assert_true(bl_now_s() - start_s < 600);
}

/* 8 MiB at 1 GB/s with a latency of 2 ms, by hand: 2 ms + 8.388608 ms. */
static bl_status body_one_message(bl_transport *t, bl_error *err) {
    if (bl_transport_rank(t) == 0)
        return bl_test_send(t, 1, BL_CHANNEL_MOVE, 0, 8 * MIB, err);
    BL_TRY(bl_test_receive(t, 0, BL_CHANNEL_MOVE, 0, 8 * MIB, err));
    const double took_s = bl_transport_now_s(t);
    REQUIRE(took_s > 0.010388 && took_s < 0.010389 + 1e-5);
    return BL_OK;
}

static void test_bytes_take_their_time(void **state) {
    (void)state;
    rank_thread ranks[2];
    const bl_sim_options options = {.latency_s = 2e-3, .bytes_per_s = 1e9, .silence_s = 3};
    run(2, &options, body_one_message, ranks);
    assert_all_well(ranks, 2);
}

/* ---- faults ---------------------------------------------------------------------------------- */

/* Exchange until something is lost; then its name must be that of a rank that is at fault. */
static bl_status until_lost(bl_transport *t, int *lost, double *at_s) {
    bl_exchange exchange = bl_exchange_over(t, 100);
    uint64_t all[8];
    bl_status st = BL_OK;
    bl_error seen = BL_ERROR_INIT;
    while (st == BL_OK)
        st = bl_exchange_allgather(&exchange, &exchange.sequence, 8, all, &seen);
    *lost = bl_transport_lost(t);
    *at_s = bl_transport_now_s(t);
    return st;
}

static bl_status body_kill(bl_transport *t, bl_error *err) {
    int lost;
    double at_s;
    const bl_status st = until_lost(t, &lost, &at_s);
    if (bl_transport_rank(t) == 2) {
        REQUIRE(st == BL_ERR_ABORTED);
        REQUIRE_FAILS(bl_test_send(t, 0, BL_CHANNEL_STEP, 0, 8, &seen), BL_ERR_ABORTED,
                      "rank 2 was killed by the simulation");
        return BL_OK;
    }
    REQUIRE(st == BL_ERR_PEER && lost == 2);
    REQUIRE(at_s >= 1 && at_s < 1.01); /* at once */
    return BL_OK;
}

static void test_a_killed_rank_is_lost_at_once(void **state) {
    (void)state;
    rank_thread ranks[4];
    const bl_sim_fault fault = {.kind = BL_SIM_KILL, .at_s = 1, .ranks = 1 << 2};
    for (uint64_t seed = 0; seed < 20; seed++) {
        bl_sim_options options = BL_SIM_OPTIONS_INIT;
        options.seed = seed;
        options.latency_s = 1e-3;
        options.faults = &fault;
        options.n_faults = 1;
        run(4, &options, body_kill, ranks);
        assert_all_well(ranks, 4);
    }
}

/* Stopped from 1 s to 100 s: lost to the others after 3 s, and it finds itself alone afterwards. */
static bl_status body_stop(bl_transport *t, bl_error *err) {
    int lost;
    double at_s;
    REQUIRE(until_lost(t, &lost, &at_s) == BL_ERR_PEER);
    if (bl_transport_rank(t) == 2) {
        REQUIRE(at_s >= 100 && lost >= 0);
        return BL_OK;
    }
    REQUIRE(lost == 2 && at_s >= 4 && at_s < 4.1);
    return BL_OK;
}

static void test_a_stopped_rank_is_lost_after_its_silence(void **state) {
    (void)state;
    rank_thread ranks[4];
    const bl_sim_fault fault = {BL_SIM_STOP, 1, 100, 1 << 2};
    bl_sim_options options = BL_SIM_OPTIONS_INIT;
    options.latency_s = 1e-3;
    options.faults = &fault;
    options.n_faults = 1;
    run(4, &options, body_stop, ranks);
    assert_all_well(ranks, 4);
}

/* A stop shorter than the silence is only a delay. */
static bl_status body_short_stop(bl_transport *t, bl_error *err) {
    bl_exchange exchange = bl_exchange_over(t, 100);
    for (int round = 0; round < 2000; round++) {
        double now_s = bl_transport_now_s(t), all[4];
        BL_TRY(bl_exchange_allgather(&exchange, &now_s, sizeof now_s, all, err));
        double first_s = all[0];
        for (int rank = 1; rank < 4; rank++)
            first_s = all[rank] < first_s ? all[rank] : first_s;
        if (first_s > 5)
            return bl_transport_lost(t) == -1 ? BL_OK : BL_ERR_INTERNAL;
    }
    return bl_fail(err, BL_ERR_INTERNAL, "time does not pass");
}

static void test_a_short_stop_is_a_delay(void **state) {
    (void)state;
    rank_thread ranks[4];
    const bl_sim_fault fault = {BL_SIM_STOP, 1, 3.5, 1 << 2};
    bl_sim_options options = BL_SIM_OPTIONS_INIT;
    options.latency_s = 5e-3;
    options.faults = &fault;
    options.n_faults = 1;
    run(4, &options, body_short_stop, ranks);
    assert_all_well(ranks, 4);
}

/* {0, 1} and {2, 3} are cut apart at 1 s for good: each loses the other, and only the other. */
static bl_status body_partition(bl_transport *t, bl_error *err) {
    const int rank = bl_transport_rank(t), friend = rank ^ 1;
    int lost;
    double at_s;
    bl_message message;
    REQUIRE(until_lost(t, &lost, &at_s) == BL_ERR_PEER);
    REQUIRE(lost == (rank < 2 ? 2 : 0) && at_s >= 4 && at_s < 4.1);
    for (int peer = rank < 2 ? 2 : 0, i = 0; i < 2; i++)
        REQUIRE_FAILS(bl_transport_receive(t, peer + i, BL_CHANNEL_MOVE, 0, 10, &message, &seen),
                      BL_ERR_PEER, "it was stopped or cut off");
    BL_TRY(bl_test_send(t, friend, BL_CHANNEL_CONTROL, 7, 100, err));
    return bl_test_receive(t, friend, BL_CHANNEL_CONTROL, 7, 100, err);
}

static void test_a_partition_splits_in_two(void **state) {
    (void)state;
    rank_thread ranks[4];
    const bl_sim_fault fault = {BL_SIM_PARTITION, 1, 1000, 3};
    for (uint64_t seed = 0; seed < 10; seed++) {
        bl_sim_options options = BL_SIM_OPTIONS_INIT;
        options.seed = seed;
        options.latency_s = 1e-3;
        options.faults = &fault;
        options.n_faults = 1;
        run(4, &options, body_partition, ranks);
        assert_all_well(ranks, 4);
    }
}

/* Rank 2 is cut off at 1 s and killed at 2 s: of its death nobody hears, so it is missed with the cut. */
static bl_status body_death_behind_a_cut(bl_transport *t, bl_error *err) {
    int lost;
    double at_s;
    const bl_status st = until_lost(t, &lost, &at_s);
    if (bl_transport_rank(t) == 2) {
        REQUIRE(st == BL_ERR_ABORTED);
        return BL_OK;
    }
    REQUIRE(st == BL_ERR_PEER && lost == 2 && at_s >= 4 && at_s < 4.1);
    return BL_OK;
}

static void test_a_death_behind_a_cut_is_missed(void **state) {
    (void)state;
    rank_thread ranks[4];
    const bl_sim_fault faults[] = {{BL_SIM_PARTITION, 1, 1000, 1 << 2},
                                   {.kind = BL_SIM_KILL, .at_s = 2, .ranks = 1 << 2}};
    bl_sim_options options = BL_SIM_OPTIONS_INIT;
    options.latency_s = 1e-3;
    options.faults = faults;
    options.n_faults = 2;
    run(4, &options, body_death_behind_a_cut, ranks);
    assert_all_well(ranks, 4);
}

/* ---- an engine ------------------------------------------------------------------------------- */

#define N_TOKENS 24

/* Rank 0 has a sequence, the others none; its logits go to `user`. */
static bl_status one_step(bl_test_rank *rank, bl_error *err) {
    int32_t tokens[N_TOKENS];
    bl_step_result result;
    for (int t = 0; t < N_TOKENS; t++)
        tokens[t] = (t * 37 + 11) % bl_qwen3_config_of(rank->model)->vocab;
    const bl_chunk chunk = {.sequence = 0,
                            .n_tokens = N_TOKENS,
                            .tokens = tokens,
                            .every_token = true,
                            .logits = rank->user};
    const int n = rank->rank == 0;
    return bl_engine_step(rank->engine, &chunk, n, n, &result, err);
}

/* Whatever the network does, the logits are those of threads that share memory, bit for bit. */
static void test_an_engine_on_any_network(void **state) {
    (void)state;
    bl_error err;
    bl_qwen3 *model;
    bl_placement placement;
    assert_ok(bl_qwen3_open("examples/tiny-moe", &model, &err));
    assert_ok(bl_test_random_placement(model, 4, 5, &placement, &err));
    const size_t n = N_TOKENS * (size_t)bl_qwen3_config_of(model)->vocab;
    float *want = calloc(n, sizeof *want), *got = calloc(n, sizeof *got);
    bl_test_cluster_options options = {.max_sequences = 1};
    assert_ok(bl_test_cluster(model, &placement, &options, one_step, want, &err));
    for (uint64_t seed = 0; seed < 5; seed++) {
        bl_sim_options sim = BL_SIM_OPTIONS_INIT;
        sim.seed = seed;
        sim.lose = sim.again = 0.1 * (double)seed;
        options.sim = &sim;
        memset(got, 0, n * sizeof *got);
        assert_ok(bl_test_cluster(model, &placement, &options, one_step, got, &err));
        assert_memory_equal(want, got, n * sizeof *want);
    }
    free(want);
    free(got);
    bl_placement_free(&placement);
    bl_qwen3_free(model);
}

static void test_wrong_options(void **state) {
    (void)state;
    bl_error err;
    bl_transport *handles[8];
    bl_sim_options options = BL_SIM_OPTIONS_INIT;
    const bl_sim_fault fault = {BL_SIM_STOP, 2, 1, 1};
    assert_fails(bl_transport_sim_open(0, &options, handles, &err), BL_ERR_RANGE, "0 ranks");
    assert_fails(bl_transport_sim_open(65, &options, handles, &err), BL_ERR_RANGE, "65 ranks");
    options.lose = 1;
    assert_fails(bl_transport_sim_open(2, &options, handles, &err), BL_ERR_RANGE, "network");
    options.lose = 0;
    options.faults = &fault;
    options.n_faults = 1;
    assert_fails(bl_transport_sim_open(2, &options, handles, &err), BL_ERR_RANGE, "fault 0 ends");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_seed_is_one_run),
        cmocka_unit_test(test_waiting_takes_no_time),
        cmocka_unit_test(test_bytes_take_their_time),
        cmocka_unit_test(test_a_killed_rank_is_lost_at_once),
        cmocka_unit_test(test_a_stopped_rank_is_lost_after_its_silence),
        cmocka_unit_test(test_a_short_stop_is_a_delay),
        cmocka_unit_test(test_a_partition_splits_in_two),
        cmocka_unit_test(test_a_death_behind_a_cut_is_missed),
        cmocka_unit_test(test_an_engine_on_any_network),
        cmocka_unit_test(test_wrong_options),
    };
    return cmocka_run_group_tests_name("sim", tests, NULL, NULL);
}
