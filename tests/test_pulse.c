/* Heartbeats between threads that stand for ranks; a rank that is stopped is one that never starts
 * to beat again. */
#include "runtime/pulse.h"

#include "core/progress.h"
#include "tests/support/support.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define SILENCE_S 0.6
#define N 4

typedef struct cluster {
    bl_pulse *pulses[N];
    struct sockaddr_storage addresses[N];
} cluster;

static struct sockaddr_storage loopback(void) {
    struct sockaddr_storage address = {.ss_family = AF_INET};
    ((struct sockaddr_in *)&address)->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return address;
}

static void open_all(cluster *c, uint64_t key_of_last) {
    bl_error err;
    for (int rank = 0; rank < N; rank++) {
        uint16_t port;
        c->addresses[rank] = loopback();
        assert_ok(bl_pulse_open(rank, N, rank == N - 1 ? key_of_last : 7, SILENCE_S,
                                &c->addresses[rank], &c->pulses[rank], &port, &err));
        assert_true(port != 0);
        ((struct sockaddr_in *)&c->addresses[rank])->sin_port = htons(port);
    }
}

static void start(cluster *c, int rank) {
    bl_error err;
    assert_ok(bl_pulse_start(c->pulses[rank], c->addresses, &err));
}

static void close_all(cluster *c) {
    for (int rank = 0; rank < N; rank++)
        bl_pulse_close(c->pulses[rank]);
}

static void sleep_s(double seconds) {
    nanosleep(&(struct timespec){(time_t)seconds, (long)((seconds - (int)seconds) * 1e9)}, NULL);
}

/* Seconds until the pulse has news, or -1 after `patience_s`. */
static double wait_for_news(const bl_pulse *pulse, double patience_s) {
    const double start_s = bl_now_s();
    struct pollfd polled = {bl_pulse_fd(pulse), POLLIN, 0};
    return poll(&polled, 1, (int)(patience_s * 1e3)) > 0 ? bl_now_s() - start_s : -1;
}

static void test_who_stops_is_named_by_all(void **state) {
    (void)state;
    cluster c;
    open_all(&c, 7);
    for (int rank = 0; rank < N; rank++)
        start(&c, rank);
    sleep_s(3 * SILENCE_S); /* all is well for longer than a silence */
    for (int rank = 0; rank < N; rank++)
        assert_false(bl_pulse_read_news(c.pulses[rank]));
    bl_pulse_close(c.pulses[2]);
    c.pulses[2] = NULL;
    for (int rank = 0; rank < N; rank++) {
        if (rank == 2)
            continue;
        assert_true(wait_for_news(c.pulses[rank], 30) >= 0);
        assert_true(bl_pulse_read_news(c.pulses[rank]));
        assert_false(bl_pulse_read_news(c.pulses[rank])); /* told once */
        for (int peer = 0; peer < N; peer++)
            assert_int_equal(bl_pulse_is_silent(c.pulses[rank], peer), peer == 2);
    }
    close_all(&c);
}

/* Not sooner than half the stated time, so that a hiccup costs nobody its place. */
static void test_a_silence_takes_its_time(void **state) {
    (void)state;
    cluster c;
    open_all(&c, 7);
    for (int rank = 0; rank < N; rank++)
        start(&c, rank);
    sleep_s(SILENCE_S);
    bl_pulse_close(c.pulses[1]);
    c.pulses[1] = NULL;
    const double took_s = wait_for_news(c.pulses[0], 30);
    assert_true(took_s >= SILENCE_S / 2 - 0.001);
    close_all(&c);
}

/* A way that never let a beat through tells nothing, nor do the beats of another run. */
static void test_the_unheard_are_not_watched(void **state) {
    (void)state;
    cluster c;
    open_all(&c, 8);
    for (int rank = 0; rank < N; rank++)
        if (rank != 1)
            start(&c, rank); /* rank 1 never beats, rank 3 is of another run */
    assert_true(wait_for_news(c.pulses[0], 2 * SILENCE_S) < 0);
    for (int peer = 0; peer < N; peer++)
        assert_false(bl_pulse_is_silent(c.pulses[0], peer));
    close_all(&c);
}

/* Whatever else arrives on the port is not a beat and does no harm. */
static void test_strangers_are_not_heard(void **state) {
    (void)state;
    cluster c;
    open_all(&c, 7);
    start(&c, 0);
    const int fd = socket(AF_INET, SOCK_DGRAM, 0);
    const unsigned char noise[64] = "BLSPULS1 and what follows";
    for (size_t bytes = 0; bytes <= sizeof noise; bytes += 8)
        sendto(fd, noise, bytes, 0, (struct sockaddr *)&c.addresses[0], sizeof(struct sockaddr_in));
    assert_true(wait_for_news(c.pulses[0], 2 * SILENCE_S) < 0);
    close(fd);
    close_all(&c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_who_stops_is_named_by_all),
        cmocka_unit_test(test_a_silence_takes_its_time),
        cmocka_unit_test(test_the_unheard_are_not_watched),
        cmocka_unit_test(test_strangers_are_not_heard),
    };
    return cmocka_run_group_tests_name("pulse", tests, NULL, NULL);
}
