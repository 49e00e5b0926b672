/* What only processes have: they are stopped, and read each other's memory. Every case is the body of
 * a rank of a launched run. */
#include "runtime/launch.h"

#include "core/progress.h"
#include "tests/support/support.h"
#include "tests/support/transport_body.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define SILENCE_S 1.5
#define MANY_S 120.0 /* deadline and silence where many processes share a core */

typedef bl_status body_fn(bl_transport *t, bl_error *err);

typedef struct test_case {
    const char *name;
    int n_ranks; /* 0: many */
    double silence_s;
    body_fn *body;
} test_case;

static void sleep_s(double seconds) {
    nanosleep(&(struct timespec){(time_t)seconds, (long)((seconds - (int)seconds) * 1e9)}, NULL);
}

/* Everybody learns the process of rank `whose`. */
static bl_status learn_pid(bl_transport *t, int whose, pid_t *pid, bl_error *err) {
    const pid_t mine = getpid();
    bl_message message;
    for (int peer = 0; bl_transport_rank(t) == whose && peer < bl_transport_n_ranks(t); peer++)
        BL_TRY(bl_transport_send(t, peer, BL_CHANNEL_CONTROL, 1000, &mine, sizeof mine, err));
    BL_TRY(bl_transport_receive(t, whose, BL_CHANNEL_CONTROL, 1000, WAIT_S, &message, err));
    memcpy(pid, message.data, sizeof *pid);
    bl_message_free(&message);
    return bl_test_meet(t, 1001, err);
}

/* ---- stopped ranks -------------------------------------------------------------------------- */

/* Rank 2 of 4 is stopped: all others say so within the stated time, and go on among themselves. */
static bl_status body_stop(bl_transport *t, bl_error *err) {
    const int rank = bl_transport_rank(t);
    pid_t pid;
    BL_TRY(learn_pid(t, 2, &pid, err));
    if (rank == 2) {
        raise(SIGSTOP);
        return bl_fail(err, BL_ERR_INTERNAL, "nobody killed the stopped rank");
    }
    bl_message message;
    const double start_s = bl_now_s();
    REQUIRE_FAILS(bl_transport_receive(t, 2, BL_CHANNEL_STEP, 0, WAIT_S, &message, &seen),
                  BL_ERR_PEER, "rank 2 is lost: rank");
    REQUIRE_FAILS(bl_test_send(t, 2, BL_CHANNEL_STEP, 0, 10, &seen), BL_ERR_PEER,
                  "has not heard of it for 1.5 s, it was stopped or cut off");
    REQUIRE(bl_now_s() - start_s < WAIT_S / 2); /* by its silence, not by a deadline */
    REQUIRE(bl_transport_lost(t) == 2);
    for (uint64_t mark = 0; mark < 20; mark++)
        for (int peer = 0; peer < 4; peer++)
            if (peer != 2) {
                BL_TRY(bl_test_send(t, peer, BL_CHANNEL_MOVE, mark, mark * 10000, err));
                BL_TRY(bl_test_receive(t, peer, BL_CHANNEL_MOVE, mark, mark * 10000, err));
            }
    return rank == 0 && kill(pid, SIGKILL) != 0 ? BL_ERR_INTERNAL : BL_OK;
}

/* A large message is on offer when its reader is stopped. */
static bl_status body_stop_while_sending(bl_transport *t, bl_error *err) {
    pid_t pid;
    BL_TRY(learn_pid(t, 1, &pid, err));
    if (bl_transport_rank(t) == 1)
        raise(SIGSTOP);
    REQUIRE_FAILS(bl_test_send(t, 1, BL_CHANNEL_MOVE, 0, 8 * MIB, &seen), BL_ERR_PEER,
                  "rank 1 is lost: rank 0 has not heard of it");
    return kill(pid, SIGKILL) != 0 ? BL_ERR_INTERNAL : BL_OK;
}

/* Who is let go on after that finds itself out of the run, and does not wait for ever. */
static bl_status body_stop_and_go_on(bl_transport *t, bl_error *err) {
    pid_t pid;
    bl_message message;
    BL_TRY(learn_pid(t, 1, &pid, err));
    if (bl_transport_rank(t) == 1)
        raise(SIGSTOP);
    REQUIRE_FAILS(bl_transport_receive(t, 1 - bl_transport_rank(t), BL_CHANNEL_STEP, 0, WAIT_S,
                                       &message, &seen),
                  BL_ERR_PEER, "is lost");
    if (bl_transport_rank(t) == 0)
        kill(pid, SIGCONT);
    return BL_OK;
}

/* Without a heartbeat the deadline is what names it. */
static bl_status body_no_heartbeat(bl_transport *t, bl_error *err) {
    pid_t pid;
    bl_message message;
    BL_TRY(learn_pid(t, 1, &pid, err));
    if (bl_transport_rank(t) == 1)
        raise(SIGSTOP);
    REQUIRE_FAILS(bl_transport_receive(t, 1, BL_CHANNEL_STEP, 0, 2.5, &message, &seen),
                  BL_ERR_TIMEOUT, "message 0 of rank 1");
    REQUIRE(bl_transport_lost(t) == -1);
    return kill(pid, SIGKILL) != 0 ? BL_ERR_INTERNAL : BL_OK;
}

/* A main thread that computes for long is no silence. */
static bl_status body_busy(bl_transport *t, bl_error *err) {
    BL_TRY(bl_test_meet(t, 0, err));
    if (bl_transport_rank(t) == 1)
        sleep_s(2.5 * SILENCE_S);
    BL_TRY(bl_test_meet(t, 1, err));
    REQUIRE(bl_transport_lost(t) == -1);
    return BL_OK;
}

/* ---- large messages inside one host ---------------------------------------------------------- */

/* A sender that gave up has its buffer back; what it writes there is not received. */
static bl_status body_withdrawn(bl_transport *t, bl_error *err) {
    bl_message message;
    BL_TRY(bl_test_meet(t, 0, err));
    if (bl_transport_rank(t) == 0) {
        bl_transport_set_deadline(t, 0.2);
        REQUIRE_FAILS(bl_test_send(t, 1, BL_CHANNEL_MOVE, 0, 8 * MIB, &seen), BL_ERR_TIMEOUT,
                      "rank 1 stopped in the middle of 8388608 bytes from rank 0 for 0.2 s");
        sleep_s(1.5);
        return BL_OK;
    }
    sleep_s(1);
    REQUIRE_FAILS(bl_transport_receive(t, 0, BL_CHANNEL_MOVE, 0, WAIT_S, &message, &seen),
                  BL_ERR_PEER, "rank 0 is lost");
    return BL_OK;
}

/* Where one process may not read the other, the pair goes on through UCX, in order. Rank 1 gives up
 * root's rights; it may then not read rank 0, which may still read it. */
static bl_status body_refused(bl_transport *t, bl_error *err) {
    if (bl_transport_rank(t) == 1)
        REQUIRE(seteuid(65534) == 0);
    for (uint64_t mark = 0; mark < 10; mark++) {
        const size_t bytes = mark % 3 == 0 ? 100 : mark * 300000;
        BL_TRY(bl_test_send(t, 1 - bl_transport_rank(t), BL_CHANNEL_MOVE, mark, bytes, err));
    }
    for (uint64_t mark = 0; mark < 10; mark++) {
        const size_t bytes = mark % 3 == 0 ? 100 : mark * 300000;
        BL_TRY(bl_test_receive(t, 1 - bl_transport_rank(t), BL_CHANNEL_MOVE, mark, bytes, err));
    }
    return BL_OK;
}

/* ---- many ------------------------------------------------------------------------------------ */

/* Every rank has an endpoint to every other: n (n - 1) in all, on this host. BALLAST_TEST_RANKS=256, the
 * most that -n starts, takes a minute on two cores. */
#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
#define MANY 64
#else
#define MANY 128
#endif

static int n_many(void) {
    const char *text = getenv("BALLAST_TEST_RANKS");
    const int n = text != NULL ? atoi(text) : 0;
    return n > 0 && n <= BL_LAUNCH_MAX_RANKS ? n : MANY;
}

static bl_status body_all_to_all(bl_transport *t, bl_error *err) {
    const int n_ranks = bl_transport_n_ranks(t), rank = bl_transport_rank(t);
    for (uint64_t round = 0; round < 2; round++) {
        for (int i = 0; i < n_ranks; i++)
            BL_TRY(bl_test_send(t, (rank + i) % n_ranks, BL_CHANNEL_STEP, round, 64, err));
        for (int peer = 0; peer < n_ranks; peer++)
            BL_TRY(bl_test_receive(t, peer, BL_CHANNEL_STEP, round, 64, err));
    }
    REQUIRE(bl_transport_lost(t) == -1);
    return BL_OK;
}

/* ---- running --------------------------------------------------------------------------------- */

static bl_status run_process(const bl_seat *seat, void *user, bl_error *err) {
    const test_case *test = user;
    bl_ucx_options options = bl_seat_ucx_options(seat, seat->n_ranks < MANY ? WAIT_S : MANY_S);
    options.silence_s = test->silence_s;
    bl_transport *transport;
    BL_TRY(bl_transport_ucx_open(&options, &transport, err));
    const bl_status st = test->body(transport, err);
    bl_transport_close(transport);
    return st;
}

static void run_case(void **state) {
    const test_case *test = *state;
    bl_error err = BL_ERROR_INIT;
    bl_rank_end ends[BL_LAUNCH_MAX_RANKS];
    const int n_ranks = test->n_ranks > 0 ? test->n_ranks : n_many();
    bl_launch_options options = BL_LAUNCH_OPTIONS_INIT;
    options.others_go_on = true;
    if (test->body == body_refused && geteuid() != 0) {
        print_message("only root can give its rights up\n");
        skip();
    }
    bl_launch_ranks(n_ranks, run_process, (void *)(uintptr_t)test, &options, ends, &err);
    for (int rank = 0; rank < n_ranks; rank++)
        if (ends[rank].status < 0 && ends[rank].signal != SIGKILL)
            fail_msg("rank %d: %s; %s", rank, bl_status_name(ends[rank].status), err.text);
}

static const test_case cases[] = {
    {"a stopped rank is named by all and the others go on", 4, SILENCE_S, body_stop},
    {"a rank is stopped before it took a large message", 2, SILENCE_S, body_stop_while_sending},
    {"a rank that goes on after it was given up", 2, SILENCE_S, body_stop_and_go_on},
    {"without a heartbeat deadlines count", 2, 0, body_no_heartbeat},
    {"a busy rank is not a silent one", 3, SILENCE_S, body_busy},
    {"a withdrawn message is not received", 2, BL_TRANSPORT_SILENCE_S, body_withdrawn},
    {"memory that may not be read", 2, BL_TRANSPORT_SILENCE_S, body_refused},
    {"hundreds of endpoints, all to all", 0, MANY_S, body_all_to_all},
};
#define N_CASES (sizeof cases / sizeof *cases)

int main(void) {
    struct CMUnitTest tests[N_CASES];
    for (size_t i = 0; i < N_CASES; i++)
        tests[i] =
            (struct CMUnitTest){cases[i].name, run_case, NULL, NULL, (void *)(uintptr_t)&cases[i]};
    return cmocka_run_group_tests_name("ucx", tests, NULL, NULL);
}
