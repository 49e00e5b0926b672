#include "runtime/launch.h"

#include "core/progress.h"
#include "tests/support/support.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static void assert_no_child_left(void) {
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
    assert_int_equal(errno, ECHILD);
}

static void sleep_s(double seconds) {
    struct timespec left = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
    while (nanosleep(&left, &left) != 0 && errno == EINTR)
        ;
}

/* Wait to be ended by a signal; a test that hangs here fails by its launcher's result. */
static bl_status hang(bl_error *err) {
    sleep_s(300);
    return bl_fail(err, BL_ERR_INTERNAL, "nobody ended this rank");
}

static bl_launch_options quick(void) {
    bl_launch_options options = BL_LAUNCH_OPTIONS_INIT;
    options.grace_s = 0.2;
    return options;
}

/* ---- results -------------------------------------------------------------------------------- */

/* Rank r reports r * 1 000 003 bytes of value r in three pieces, the middle one empty. */
static bl_status body_results(const bl_seat *seat, void *user, bl_error *err) {
    if (seat->n_ranks != 4 || *(int *)user != 42 || (seat->rendezvous_fd >= 0) != (seat->rank == 0))
        return bl_fail(err, BL_ERR_INTERNAL, "a wrong seat");
    const size_t bytes = (size_t)seat->rank * 1000003;
    unsigned char *data = malloc(bytes + 1);
    memset(data, seat->rank, bytes);
    bl_status st = bl_seat_put(seat, data, bytes / 3, err);
    if (st == BL_OK)
        st = bl_seat_put(seat, data, 0, err);
    if (st == BL_OK)
        st = bl_seat_put(seat, data, bytes - bytes / 3, err);
    free(data);
    return st;
}

static void test_all_results_arrive(void **state) {
    (void)state;
    bl_error err;
    int answer = 42;
    bl_rank_end ends[4];
    const bl_launch_options options = BL_LAUNCH_OPTIONS_INIT;
    assert_ok(bl_launch_ranks(4, body_results, &answer, &options, ends, &err));
    for (int rank = 0; rank < 4; rank++) {
        assert_int_equal(ends[rank].status, BL_OK);
        assert_int_equal(ends[rank].exit_code, 0);
        assert_int_equal(ends[rank].signal, 0);
        assert_int_equal(ends[rank].result_bytes, (size_t)rank * 1000003);
        for (size_t i = 0; i < ends[rank].result_bytes; i++)
            if (ends[rank].result[i] != rank)
                fail_msg("byte %zu of rank %d is %d", i, rank, ends[rank].result[i]);
    }
    bl_rank_ends_free(ends, 4);
    assert_no_child_left();
}

static bl_status body_positive(const bl_seat *seat, void *user, bl_error *err) {
    (void)user, (void)err;
    return seat->rank == 1 ? BL_LIMIT : BL_OK;
}

static void test_done_but_is_not_a_failure(void **state) {
    (void)state;
    bl_error err;
    bl_rank_end ends[2];
    const bl_launch_options options = quick();
    assert_ok(bl_launch_ranks(2, body_positive, NULL, &options, ends, &err));
    assert_int_equal(ends[1].status, BL_LIMIT);
    assert_int_equal(ends[1].exit_code, 0);
}

static void test_impossible_numbers_are_refused(void **state) {
    (void)state;
    bl_error err;
    bl_rank_end ends[1];
    const bl_launch_options options = quick();
    assert_fails(bl_launch_ranks(0, body_positive, NULL, &options, ends, &err), BL_ERR_RANGE, "0");
    assert_fails(bl_launch_ranks(257, body_positive, NULL, &options, ends, &err), BL_ERR_RANGE,
                 "257 ranks");
}

/* Every rank can reach rank 0 through its seat, and rank 0 accepts on the inherited socket. */
static bl_status body_meet(const bl_seat *seat, void *user, bl_error *err) {
    (void)user;
    if (seat->rank == 0) {
        int sum = 0;
        for (int i = 1; i < seat->n_ranks; i++) {
            const int fd = accept(seat->rendezvous_fd, NULL, NULL);
            unsigned char rank = 0;
            if (fd < 0 || read(fd, &rank, 1) != 1)
                return bl_fail(err, BL_ERR_IO, "accept: %s", strerror(errno));
            close(fd);
            sum += rank;
        }
        return bl_seat_put(seat, &sum, sizeof sum, err);
    }
    unsigned port;
    if (sscanf(seat->rendezvous, "127.0.0.1:%u", &port) != 1)
        return bl_fail(err, BL_ERR_INTERNAL, "met at %s", seat->rendezvous);
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    const unsigned char rank = (unsigned char)seat->rank;
    if (connect(fd, (struct sockaddr *)&to, sizeof to) != 0 || write(fd, &rank, 1) != 1)
        return bl_fail(err, BL_ERR_IO, "connect: %s", strerror(errno));
    close(fd);
    return bl_seat_put(seat, &seat->job, sizeof seat->job, err);
}

static void test_ranks_meet(void **state) {
    (void)state;
    bl_error err;
    bl_rank_end ends[8];
    const bl_launch_options options = BL_LAUNCH_OPTIONS_INIT;
    assert_ok(bl_launch_ranks(8, body_meet, NULL, &options, ends, &err));
    int sum;
    assert_int_equal(ends[0].result_bytes, sizeof sum);
    memcpy(&sum, ends[0].result, sizeof sum);
    assert_int_equal(sum, 28);
    for (int rank = 2; rank < 8; rank++) /* one job for all */
        assert_memory_equal(ends[rank].result, ends[1].result, sizeof(uint64_t));
    bl_rank_ends_free(ends, 8);
}

/* ---- failures ------------------------------------------------------------------------------- */

/* Rank 2 is killed when all have reported; 0 and 1 notice and give up as ranks do, 3 hangs. `user`
 * is a pipe on which each says that it has reported. */
static bl_status body_kill_9(const bl_seat *seat, void *user, bl_error *err) {
    const int *ready = user;
    char byte = 'r';
    BL_TRY(bl_seat_put(seat, &seat->rank, sizeof seat->rank, err));
    if (seat->rank == 2) {
        for (int i = 0; i < 3; i++)
            if (read(ready[0], &byte, 1) != 1)
                return bl_fail(err, BL_ERR_IO, "read");
        raise(SIGKILL);
    }
    if (write(ready[1], &byte, 1) != 1)
        return bl_fail(err, BL_ERR_IO, "write");
    if (seat->rank == 3)
        return hang(err);
    sleep_s(0.05);
    return bl_fail(err, BL_ERR_PEER, "rank 2 is lost");
}

static void test_a_killed_rank_is_named(void **state) {
    (void)state;
    bl_error err;
    bl_rank_end ends[4];
    bl_launch_options options = quick();
    options.grace_s = 1;
    int ready[2];
    assert_int_equal(pipe(ready), 0);
    assert_fails(bl_launch_ranks(4, body_kill_9, ready, &options, ends, &err), BL_ERR_PEER,
                 "rank 2 was ended by signal 9 (Killed)");
    assert_int_equal(ends[2].signal, SIGKILL);
    assert_int_equal(ends[2].exit_code, -1);
    assert_int_equal(ends[2].status, BL_ERR_PEER);
    assert_false(ends[2].ended_by_us);
    assert_int_equal(ends[0].status, BL_ERR_PEER);
    assert_int_equal(ends[0].exit_code, 1);
    assert_int_equal(ends[3].signal, SIGTERM);
    assert_true(ends[3].ended_by_us);
    for (int rank = 0; rank < 4; rank++) { /* what they said before counts */
        assert_int_equal(ends[rank].result_bytes, sizeof(int));
        assert_memory_equal(ends[rank].result, &rank, sizeof rank);
    }
    close(ready[0]);
    close(ready[1]);
    bl_rank_ends_free(ends, 4);
    assert_no_child_left();
}

static bl_status body_error(const bl_seat *seat, void *user, bl_error *err) {
    (void)user;
    if (seat->rank == 1) {
        sleep_s(0.05); /* the echo of the others is heard first */
        return bl_fail_at(err, BL_ERR_CHECKSUM, bl_at_expert("weights.bin", 3, 7), "bytes differ");
    }
    return bl_fail(err, BL_ERR_PEER, "rank 1 has closed its connection");
}

static void test_the_cause_is_reported_not_its_echo(void **state) {
    (void)state;
    bl_error err;
    bl_rank_end ends[3];
    const bl_launch_options options = {60, 1000, false, NULL}; /* all end by themselves */
    assert_fails(bl_launch_ranks(3, body_error, NULL, &options, ends, &err), BL_ERR_CHECKSUM,
                 "rank 1: bytes differ");
    assert_string_equal(err.file, "weights.bin");
    assert_int_equal(err.layer, 3);
    assert_int_equal(err.expert, 7);
    assert_int_equal(ends[1].status, BL_ERR_CHECKSUM);
    assert_no_child_left();
}

static bl_status body_exit(const bl_seat *seat, void *user, bl_error *err) {
    (void)user, (void)err;
    if (seat->rank == 1)
        _exit(7);
    return BL_OK;
}

static void test_an_early_exit_is_named_with_its_code(void **state) {
    (void)state;
    bl_error err;
    bl_rank_end ends[2];
    const bl_launch_options options = quick();
    assert_fails(bl_launch_ranks(2, body_exit, NULL, &options, ends, &err), BL_ERR_PEER,
                 "rank 1 exited with code 7");
    assert_int_equal(ends[1].exit_code, 7);
    assert_int_equal(ends[0].status, BL_OK);
}

static bl_status body_stubborn(const bl_seat *seat, void *user, bl_error *err) {
    (void)user;
    if (seat->rank == 0)
        return bl_fail(err, BL_ERR_MODEL, "no such model");
    signal(SIGTERM, SIG_IGN);
    return hang(err);
}

static void test_a_rank_that_ignores_sigterm_is_killed(void **state) {
    (void)state;
    bl_error err;
    bl_rank_end ends[2];
    const bl_launch_options options = quick();
    assert_fails(bl_launch_ranks(2, body_stubborn, NULL, &options, ends, &err), BL_ERR_MODEL,
                 "rank 0: no such model");
    /* SIGTERM also ends a rank that was not scheduled before the grace period was over. */
    assert_true(ends[1].signal == SIGKILL || ends[1].signal == SIGTERM);
    assert_true(ends[1].ended_by_us);
    assert_no_child_left();
}

static bl_status body_survivors(const bl_seat *seat, void *user, bl_error *err) {
    (void)user;
    if (seat->rank == 0)
        raise(SIGKILL);
    sleep_s(0.8); /* well past the grace period */
    return bl_seat_put(seat, "on", 2, err);
}

static void test_others_go_on_when_asked(void **state) {
    (void)state;
    bl_error err;
    bl_rank_end ends[3];
    bl_launch_options options = quick();
    options.others_go_on = true;
    assert_fails(bl_launch_ranks(3, body_survivors, NULL, &options, ends, &err), BL_ERR_PEER,
                 "rank 0 was ended by signal 9");
    for (int rank = 1; rank < 3; rank++) {
        assert_int_equal(ends[rank].status, BL_OK);
        assert_int_equal(ends[rank].result_bytes, 2);
    }
    bl_rank_ends_free(ends, 3);
}

static bl_status body_talkative(const bl_seat *seat, void *user, bl_error *err) {
    (void)user;
    char block[1000] = {0};
    for (int i = 0; seat->rank == 1 && i < 11; i++)
        BL_TRY(bl_seat_put(seat, block, sizeof block, err));
    return BL_OK;
}

static void test_a_result_is_bounded(void **state) {
    (void)state;
    bl_error err;
    bl_rank_end ends[2];
    bl_launch_options options = quick();
    options.max_result_bytes = 10999;
    assert_fails(bl_launch_ranks(2, body_talkative, NULL, &options, ends, &err), BL_ERR_RANGE,
                 "the result of rank 1");
    assert_int_equal(ends[1].result_bytes, 10000);
    bl_rank_ends_free(ends, 2);
    options.max_result_bytes = 11000;
    assert_ok(bl_launch_ranks(2, body_talkative, NULL, &options, ends, &err));
    bl_rank_ends_free(ends, 2);
}

/* ---- signals -------------------------------------------------------------------------------- */

/* Rank 0 signals the launcher once all ranks are ready, as `kill -INT` would. */
static bl_status body_interrupted(const bl_seat *seat, void *user, bl_error *err) {
    const bool graceful = *(bool *)user;
    sigset_t mask;
    sigemptyset(&mask);
    sigaddset(&mask, SIGINT);
    if (graceful)
        sigprocmask(SIG_BLOCK, &mask, NULL);
    BL_TRY(body_meet(seat, NULL, err));
    if (seat->rank == 0)
        kill(getppid(), SIGINT);
    if (!graceful)
        return hang(err);
    int got = 0;
    if (sigwait(&mask, &got) != 0 || got != SIGINT)
        return bl_fail(err, BL_ERR_INTERNAL, "no signal was passed on");
    return BL_OK;
}

static void test_ctrl_c_reaches_every_rank(void **state) {
    (void)state;
    bl_error err;
    bl_rank_end ends[3];
    const bl_launch_options options = quick();
    bool graceful = true;
    assert_ok(bl_launch_ranks(3, body_interrupted, &graceful, &options, ends, &err));
    bl_rank_ends_free(ends, 3);
    graceful = false;
    assert_fails(bl_launch_ranks(3, body_interrupted, &graceful, &options, ends, &err),
                 BL_ERR_ABORTED, "interrupted by signal 2");
    for (int rank = 0; rank < 3; rank++)
        assert_int_equal(ends[rank].signal, SIGINT);
    bl_rank_ends_free(ends, 3);
    assert_no_child_left();
    sigset_t mask;
    sigprocmask(SIG_SETMASK, NULL, &mask); /* the caller's mask is back */
    assert_int_equal(sigismember(&mask, SIGINT), 0);
    assert_int_equal(sigismember(&mask, SIGCHLD), 0);
}

/* A caller that ignores SIGCHLD still learns how its ranks ended. */
static void test_ignored_sigchld_does_no_harm(void **state) {
    (void)state;
    bl_error err;
    bl_rank_end ends[2];
    const bl_launch_options options = quick();
    signal(SIGCHLD, SIG_IGN);
    assert_fails(bl_launch_ranks(2, body_exit, NULL, &options, ends, &err), BL_ERR_PEER, "code 7");
    assert_ptr_equal(signal(SIGCHLD, SIG_DFL), SIG_IGN);
}

/* Each rank holds the write end of a pipe: its end of file tells that all are gone. */
static bl_status body_orphan(const bl_seat *seat, void *user, bl_error *err) {
    (void)seat;
    const char ready = 'r';
    if (write(*(int *)user, &ready, 1) != 1)
        return bl_fail(err, BL_ERR_IO, "write");
    return hang(err);
}

static void test_no_rank_outlives_its_launcher(void **state) {
    (void)state;
    int ends[2];
    char ready;
    assert_int_equal(pipe(ends), 0);
    const pid_t launcher = fork();
    if (launcher == 0) {
        bl_rank_end rank_ends[3];
        const bl_launch_options options = quick();
        bl_launch_ranks(3, body_orphan, &ends[1], &options, rank_ends, NULL);
        _exit(1);
    }
    close(ends[1]);
    for (int rank = 0; rank < 3; rank++)
        assert_int_equal(read(ends[0], &ready, 1), 1);
    kill(launcher, SIGKILL);
    assert_int_equal(read(ends[0], &ready, 1), 0);
    close(ends[0]);
    assert_int_equal(waitpid(launcher, NULL, 0), launcher);
}

/* ---- the seat ------------------------------------------------------------------------------- */

static bl_status body_stdin(const bl_seat *seat, void *user, bl_error *err) {
    (void)seat, (void)user;
    return getchar() == EOF ? BL_OK : bl_fail(err, BL_ERR_INTERNAL, "read the launcher's input");
}

static void test_standard_input_stays_with_the_launcher(void **state) {
    (void)state;
    bl_error err;
    bl_rank_end ends[2];
    int input[2];
    const bl_launch_options options = quick();
    const int kept = dup(STDIN_FILENO);
    assert_int_equal(pipe(input), 0);
    assert_int_equal(write(input[1], "x", 1), 1);
    dup2(input[0], STDIN_FILENO);
    const bl_status st = bl_launch_ranks(2, body_stdin, NULL, &options, ends, &err);
    dup2(kept, STDIN_FILENO);
    close(kept);
    close(input[0]);
    close(input[1]);
    assert_int_equal(st, BL_OK);
}

static void test_seat_becomes_transport_options(void **state) {
    (void)state;
    const bl_seat seat = {2, 4, -1, "127.0.0.1:99", 77, 5};
    const bl_ucx_options options = bl_seat_ucx_options(&seat, 3.5);
    assert_int_equal(options.rank, 2);
    assert_int_equal(options.n_ranks, 4);
    assert_int_equal(options.rendezvous_fd, -1);
    assert_ptr_equal(options.rendezvous, seat.rendezvous);
    assert_int_equal(options.job, 77);
    assert_true(options.deadline_s == 3.5);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_results_arrive),
        cmocka_unit_test(test_done_but_is_not_a_failure),
        cmocka_unit_test(test_impossible_numbers_are_refused),
        cmocka_unit_test(test_ranks_meet),
        cmocka_unit_test(test_a_killed_rank_is_named),
        cmocka_unit_test(test_the_cause_is_reported_not_its_echo),
        cmocka_unit_test(test_an_early_exit_is_named_with_its_code),
        cmocka_unit_test(test_a_rank_that_ignores_sigterm_is_killed),
        cmocka_unit_test(test_others_go_on_when_asked),
        cmocka_unit_test(test_a_result_is_bounded),
        cmocka_unit_test(test_ctrl_c_reaches_every_rank),
        cmocka_unit_test(test_ignored_sigchld_does_no_harm),
        cmocka_unit_test(test_no_rank_outlives_its_launcher),
        cmocka_unit_test(test_standard_input_stays_with_the_launcher),
        cmocka_unit_test(test_seat_becomes_transport_options),
    };
    return cmocka_run_group_tests_name("launch", tests, NULL, NULL);
}
