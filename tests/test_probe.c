/* The order in which pairs are measured, and a probe over threads. */
#include "runtime/probe.h"

#include "core/mem.h"
#include "tests/support/support.h"
#include "topologies/topology.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static int rounds_of(const int *host, int n_ranks, int *round) {
    bl_error err;
    int n_rounds = -1;
    assert_ok(bl_probe_rounds(host, n_ranks, round, &n_rounds, &err));
    return n_rounds;
}

static void assert_no_collision(const int *host, int n, const int *round, int n_rounds) {
    for (int r = 0; r < n_rounds; r++) {
        int used[64] = {0}, n_pairs = 0;
        for (int a = 0; a < n; a++)
            for (int b = a + 1; b < n; b++)
                if (round[a * n + b] == r) {
                    n_pairs++;
                    assert_int_equal(used[host[a]], 0);
                    used[host[a]] = 1;
                    if (host[b] != host[a])
                        assert_int_equal(used[host[b]], 0);
                    used[host[b]] = 1;
                }
        assert_true(n_pairs > 0);
    }
    for (int a = 0; a < n; a++)
        for (int b = a + 1; b < n; b++)
            assert_in_range(round[a * n + b], 0, n_rounds - 1);
}

static void test_rounds_never_collide(void **state) {
    (void)state;
    int host[64], round[64 * 64];
    for (int n = 2; n <= 32; n++)
        for (int per_host = 1; per_host <= 8; per_host *= 2) {
            for (int rank = 0; rank < n; rank++)
                host[rank] = rank / per_host;
            assert_no_collision(host, n, round, rounds_of(host, n, round));
        }
    for (int rank = 0; rank < 30; rank++)
        host[rank] = rank % 4; /* interleaved */
    assert_no_collision(host, 30, round, rounds_of(host, 30, round));
}

/* By hand: 4 ranks with a host each need 3 rounds of 2 pairs; on one host 6 of one. */
static void test_rounds_are_few(void **state) {
    (void)state;
    const int apart[4] = {0, 1, 2, 3}, together[4] = {0, 0, 0, 0};
    int round[16];
    assert_int_equal(rounds_of(apart, 4, round), 3);
    assert_int_equal(round[0 * 4 + 1], round[2 * 4 + 3]);
    assert_int_equal(round[0 * 4 + 2], round[1 * 4 + 3]);
    assert_int_equal(round[0 * 4 + 3], round[1 * 4 + 2]);
    assert_int_equal(rounds_of(together, 4, round), 6);
}

typedef struct rank_thread {
    pthread_t thread;
    bl_transport *transport;
    bl_probe probe;
    bl_status status;
    bl_error err;
} rank_thread;

static void *run_rank(void *arg) {
    rank_thread *rank = arg;
    const bl_probe_options options = {0.002, 60};
    rank->status = bl_probe_run(rank->transport, &options, &rank->probe, &rank->err);
    bl_transport_close(rank->transport);
    return NULL;
}

static void assert_is_topology(const bl_probe *probe) {
    bl_error err;
    json_t *root, *devices;
    bl_topology topology;
    assert_ok(bl_probe_this_device(probe->n_ranks, &devices, &err));
    assert_ok(bl_probe_to_json(probe, "local", devices, &root, &err));
    assert_ok(bl_topology_from_json(root, NULL, NULL, "probe", &topology, &err));
    assert_int_equal(topology.n_ranks, probe->n_ranks);
    assert_int_equal(topology.n_hosts, probe->n_hosts);
    for (int a = 0; a < probe->n_ranks; a++)
        for (int b = 0; b < probe->n_ranks; b++)
            if (a != b) {
                const int at = a * probe->n_ranks + b;
                assert_true(bl_topology_latency_s(&topology, a, b) == probe->latency_s[at]);
                assert_true(bl_topology_bytes_per_s(&topology, a, b) == probe->bytes_per_s[at]);
            }
    bl_topology_free(&topology);
    json_decref(root);
    json_decref(devices);
}

static void test_threads_are_measured(void **state) {
    (void)state;
    bl_error err;
    bl_transport *handles[3];
    rank_thread ranks[3];
    assert_ok(bl_transport_local_open(3, handles, &err));
    for (int rank = 0; rank < 3; rank++) {
        ranks[rank] = (rank_thread){.transport = handles[rank], .err = BL_ERROR_INIT};
        assert_int_equal(pthread_create(&ranks[rank].thread, NULL, run_rank, &ranks[rank]), 0);
    }
    for (int rank = 0; rank < 3; rank++) {
        pthread_join(ranks[rank].thread, NULL);
        if (ranks[rank].status < 0)
            fail_msg("rank %d: %s", rank, ranks[rank].err.text);
    }
    const bl_probe *probe = &ranks[0].probe;
    assert_int_equal(probe->n_hosts, 1);
    assert_int_equal(probe->n_rounds, 3);
    for (int at = 0; at < 9; at++) {
        assert_int_equal(probe->latency_s[at] > 0, at % 4 != 0);
        assert_int_equal(probe->bytes_per_s[at] > 0, at % 4 != 0);
    }
    for (int rank = 0; rank < 3; rank++) {
        assert_true(probe->inside_bytes_per_s[rank] > 0);
        assert_true(probe->outside_bytes_per_s[rank] == 0);
        assert_int_equal(ranks[rank].probe.n_ranks, rank == 0 ? 3 : 0);
    }
    assert_is_topology(probe);
    bl_probe_free(&ranks[0].probe);
}

/* Two hosts of two: figures set by hand come out as levels and matrix. */
static void test_figures_become_levels(void **state) {
    (void)state;
    int host[4] = {0, 0, 1, 1};
    char names[2][64] = {"a", "b"};
    double latency[16], message[16] = {0}, rate[16], inside[4] = {8e9, 8e9, 8e9, 8e9};
    double outside[4] = {1e9, 2e9, 1e9, 2e9};
    for (int at = 0; at < 16; at++) {
        const bool same = host[at / 4] == host[at % 4];
        latency[at] = at % 5 == 0 ? 0 : same ? 1e-6 : 10e-6;
        rate[at] = at % 5 == 0 ? 0 : same ? 9e9 : 4e9;
    }
    const bl_probe probe = {4, 2, 1, host, names, latency, message, rate, inside, outside};
    bl_error err;
    json_t *root, *devices;
    bl_topology topology;
    assert_ok(bl_probe_this_device(2, &devices, &err));
    assert_ok(bl_probe_to_json(&probe, "ucx", devices, &root, &err));
    assert_ok(bl_topology_from_json(root, NULL, NULL, "probe", &topology, &err));
    assert_int_equal(topology.n_levels, 2);
    assert_string_equal(topology.levels[1].name, "host");
    assert_int_equal(topology.levels[1].n_domains, 2);
    assert_true(topology.levels[1].latency_s.value == 1e-6);
    assert_true(topology.levels[1].out_bytes_per_s.value == 8e9);
    assert_true(topology.levels[2].latency_s.value == 10e-6);
    assert_true(topology.levels[2].out_bytes_per_s.value == 3e9); /* of a host's two ranks */
    assert_int_equal(topology.levels[2].out_bytes_per_s.source, BL_MEASURED);
    assert_true(bl_topology_bytes_per_s(&topology, 0, 1) == 9e9);
    assert_true(bl_topology_bytes_per_s(&topology, 1, 2) == 4e9);
    assert_false(bl_topology_same_host(&topology, 1, 2));
    bl_topology_free(&topology);
    json_decref(root);
    json_decref(devices);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rounds_never_collide),
        cmocka_unit_test(test_rounds_are_few),
        cmocka_unit_test(test_threads_are_measured),
        cmocka_unit_test(test_figures_become_levels),
    };
    return cmocka_run_group_tests_name("probe", tests, NULL, NULL);
}
