#include "runtime/rendezvous.h"

#include "tests/support/support.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* ---- meetings of threads -------------------------------------------------------------------- */

typedef struct visitor {
    pthread_t thread;
    bl_ucx_options options;
    uint16_t port; /* that it tells */
    double late_s; /* it comes this much later */
    double slow_s; /* and thinks for so long before it says who it is */
    bl_status status;
    atomic_bool is_done;
    bl_error err;
    bl_peer_card cards[8];
} visitor;

static void wait_s(double seconds) {
    nanosleep(&(struct timespec){(time_t)seconds, (long)((seconds - (int)seconds) * 1e9)}, NULL);
}

static void *visit(void *arg) {
    visitor *v = arg;
    bl_rendezvous meeting;
    v->err = BL_ERROR_INIT;
    wait_s(v->late_s);
    v->status = bl_rendezvous_open(&v->options, &meeting, &v->err);
    wait_s(v->slow_s);
    if (v->status == BL_OK) {
        v->status = bl_rendezvous_exchange(&meeting, v->port, (uint16_t)(v->port + 1000), v->cards,
                                           &v->err);
        bl_rendezvous_close(&meeting);
    }
    v->is_done = true;
    return NULL;
}

static void start(visitor *v) {
    assert_int_equal(pthread_create(&v->thread, NULL, visit, v), 0);
}

static void finish(visitor *v) {
    pthread_join(v->thread, NULL);
}

static visitor visitor_of(int rank, int n_ranks, const char *where, double deadline_s) {
    return (visitor){.options = {rank, n_ranks, where, -1, 77, deadline_s, 0},
                     .port = (uint16_t)(5000 + rank)};
}

/* A listening socket on a free port, and its name. */
static int listen_somewhere(char *where, size_t bytes) {
    struct sockaddr_in address = {.sin_family = AF_INET};
    socklen_t length = sizeof address;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(listen(fd, 256), 0); /* all of a test's guests at once */
    assert_int_equal(getsockname(fd, (struct sockaddr *)&address, &length), 0);
    snprintf(where, bytes, "127.0.0.1:%d", ntohs(address.sin_port));
    return fd;
}

static int connect_to(const char *where) {
    struct sockaddr_in to = {.sin_family = AF_INET};
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    to.sin_port = htons((uint16_t)atoi(strchr(where, ':') + 1));
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
    return fd;
}

static void assert_knows_all(const visitor *v) {
    for (int rank = 0; rank < v->options.n_ranks; rank++) {
        const bl_peer_card *card = &v->cards[rank];
        assert_int_equal(bl_address_port(&card->address), 5000 + rank);
        assert_int_equal(card->pulse_port, 6000 + rank);
        assert_int_equal(card->pid, getpid());
        assert_true(card->host == bl_host_identity() && card->host != 0);
        if (rank == v->options.rank)
            continue;
        const struct sockaddr_in *address = (const struct sockaddr_in *)&card->address;
        assert_int_equal(address->sin_family, AF_INET);
        assert_int_equal(address->sin_addr.s_addr, htonl(INADDR_LOOPBACK));
    }
}

static void meet(const char *where, int fd, int n_ranks, double late_s) {
    visitor all[4];
    for (int rank = n_ranks - 1; rank >= 0; rank--) {
        all[rank] = visitor_of(rank, n_ranks, where, 60);
        all[rank].options.rendezvous_fd = rank == 0 ? fd : -1;
        all[rank].late_s = rank == 0 ? late_s : 0;
        start(&all[rank]);
    }
    for (int rank = 0; rank < n_ranks; rank++) {
        finish(&all[rank]);
        if (all[rank].status < 0)
            fail_msg("rank %d: %s", rank, all[rank].err.text);
        assert_knows_all(&all[rank]);
    }
}

static void test_ranks_learn_all_addresses(void **state) {
    (void)state;
    char where[64];
    int fd = listen_somewhere(where, sizeof where);
    meet(where, fd, 4, 0);
    fd = listen_somewhere(where, sizeof where);
    meet(where, fd, 1, 0);
}

/* Rank 0 binds the address itself, after the others began to knock. */
static void test_rank_0_may_come_last(void **state) {
    (void)state;
    char where[64];
    close(listen_somewhere(where, sizeof where)); /* a port that was free a moment ago */
    meet(where, -1, 3, 0.1);
}

static void test_strangers_are_ignored(void **state) {
    (void)state;
    char where[64];
    const int fd = listen_somewhere(where, sizeof where);
    close(connect_to(where));             /* says nothing and goes */
    const int noisy = connect_to(where);  /* speaks something else */
    const int silent = connect_to(where); /* says nothing and stays */
    const char request[] = "GET / HTTP/1.1\r\nHost: a-host-that-is-quite-mistaken\r\n\r\n";
    assert_int_equal(write(noisy, request, sizeof request), sizeof request);
    meet(where, fd, 3, 0);
    close(noisy);
    close(silent);
}

/* On a busy machine a rank may take seconds between coming and saying who it is; rank 0 hears the others
 * meanwhile, strangers that say nothing among them. It used to turn away who was slower than two. */
static void test_slow_ranks_are_let_in(void **state) {
    (void)state;
    char where[64];
    int strangers[40];
    visitor all[3];
    const int fd = listen_somewhere(where, sizeof where);
    for (int i = 0; i < 40; i++) /* while somebody is sure to listen */
        strangers[i] = connect_to(where);
    for (int rank = 2; rank >= 0; rank--) {
        all[rank] = visitor_of(rank, 3, where, 60);
        all[rank].options.rendezvous_fd = rank == 0 ? fd : -1;
        all[rank].slow_s = rank == 1 ? 2.5 : 0;
        all[rank].late_s = rank == 2 ? 0.2 : 0;
        start(&all[rank]);
    }
    for (int rank = 0; rank < 3; rank++) {
        finish(&all[rank]);
        if (all[rank].status < 0)
            fail_msg("rank %d: %s", rank, all[rank].err.text);
        assert_knows_all(&all[rank]);
    }
    for (int i = 0; i < 40; i++)
        close(strangers[i]);
}

/* A hundred connections that say nothing do not keep the ranks out that come behind them. */
static void test_many_strangers(void **state) {
    (void)state;
    char where[64];
    int strangers[100];
    visitor rank_0;
    rank_0 = visitor_of(0, 2, where, 60);
    rank_0.options.rendezvous_fd = listen_somewhere(where, sizeof where);
    start(&rank_0);
    for (int i = 0; i < 100; i++)
        strangers[i] = connect_to(where);
    visitor rank_1 = visitor_of(1, 2, where, 60);
    start(&rank_1);
    finish(&rank_0);
    finish(&rank_1);
    assert_int_equal(rank_0.status, BL_OK);
    assert_int_equal(rank_1.status, BL_OK);
    for (int i = 0; i < 100; i++)
        close(strangers[i]);
}

static void test_missing_ranks_are_named(void **state) {
    (void)state;
    char where[64];
    visitor host = visitor_of(0, 4, where, 1), guest = visitor_of(2, 4, where, 60);
    host.options.rendezvous_fd = listen_somewhere(where, sizeof where);
    start(&guest);
    start(&host);
    finish(&host);
    finish(&guest);
    assert_int_equal(host.status, BL_ERR_TIMEOUT);
    bl_test_has(host.err.text, "did not come: 1");
    bl_test_has(host.err.text, " 3");
    assert_int_equal(guest.status, BL_ERR_PEER);
    bl_test_has(guest.err.text, "no answer from rank 0");
}

static void test_rank_0_that_never_comes(void **state) {
    (void)state;
    bl_error err;
    char where[64];
    close(listen_somewhere(where, sizeof where));
    const bl_ucx_options options = {1, 2, where, -1, 77, 0.1, 0};
    bl_rendezvous meeting;
    assert_fails(bl_rendezvous_open(&options, &meeting, &err), BL_ERR_TIMEOUT,
                 "could not reach rank 0 at 127.0.0.1:");
}

/* Each wrong guest is told why, and the right one still gets in. */
static void test_wrong_guests_are_turned_away(void **state) {
    (void)state;
    char where[64];
    visitor host = visitor_of(0, 3, where, 60);
    visitor other_run = visitor_of(1, 3, where, 60), other_size = visitor_of(1, 4, where, 60);
    visitor first = visitor_of(1, 3, where, 60), last = visitor_of(2, 3, where, 60);
    host.options.rendezvous_fd = listen_somewhere(where, sizeof where);
    other_run.options.job++;
    start(&host);
    start(&other_run);
    finish(&other_run);
    start(&other_size);
    finish(&other_size);
    start(&first);
    start(&last);
    finish(&first);
    finish(&last);
    finish(&host);
    assert_int_equal(other_run.status, BL_ERR_STATE);
    bl_test_has(other_run.err.text, "belongs to another run");
    assert_int_equal(other_size.status, BL_ERR_USAGE);
    bl_test_has(other_size.err.text, "rank 0 expects 3 ranks, not 4");
    assert_int_equal(host.status, BL_OK);
    assert_int_equal(first.status, BL_OK);
    assert_int_equal(last.status, BL_OK);
}

static void test_a_number_is_given_once(void **state) {
    (void)state;
    char where[64];
    visitor host = visitor_of(0, 3, where, 60), last = visitor_of(2, 3, where, 60);
    visitor twins[2] = {visitor_of(1, 3, where, 60), visitor_of(1, 3, where, 60)};
    host.options.rendezvous_fd = listen_somewhere(where, sizeof where);
    start(&host);
    start(&twins[0]);
    start(&twins[1]);
    while (!twins[0].is_done && !twins[1].is_done) /* one is refused, the other waits */
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    start(&last);
    finish(&twins[0]);
    finish(&twins[1]);
    finish(&last);
    finish(&host);
    assert_int_equal(host.status, BL_OK);
    assert_int_equal((twins[0].status == BL_OK) + (twins[1].status == BL_OK), 1);
    const visitor *refused = &twins[twins[0].status == BL_OK];
    assert_int_equal(refused->status, BL_ERR_USAGE);
    bl_test_has(refused->err.text, "another process is rank 1 already");
}

static void test_malformed_meeting_points(void **state) {
    (void)state;
    bl_error err;
    const char *const wrong[] = {"",
                                 "host",
                                 ":99",
                                 NULL,
                                 "127.0.0.1:http",
                                 "127.0.0.1:",
                                 "127.0.0.1:0",
                                 "127.0.0.1:65536",
                                 "127.0.0.1:-1"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        const bl_ucx_options options = {0, 2, wrong[i], -1, 0, 1, 0};
        bl_rendezvous meeting;
        assert_true(bl_rendezvous_open(&options, &meeting, &err) < 0);
    }
    const bl_ucx_options options = {0, 2, "host", -1, 0, 1, 0};
    bl_rendezvous meeting;
    assert_fails(bl_rendezvous_open(&options, &meeting, &err), BL_ERR_USAGE, "is not HOST:PORT");
}

/* ---- launchers' variables -------------------------------------------------------------------- */

static const char *const variables[] = {"RANK",
                                        "WORLD_SIZE",
                                        "MASTER_ADDR",
                                        "MASTER_PORT",
                                        "TORCHELASTIC_USE_AGENT_STORE",
                                        "TORCHELASTIC_RUN_ID",
                                        "BALLAST_RENDEZVOUS",
                                        "OMPI_COMM_WORLD_RANK",
                                        "OMPI_COMM_WORLD_SIZE",
                                        "OMPI_COMM_WORLD_LOCAL_SIZE",
                                        "PMIX_NAMESPACE",
                                        "PMI_RANK",
                                        "PMI_SIZE",
                                        "MPI_LOCALNRANKS"};

/* values[i] for variables[i]; NULL: not set */
static void set_env(const char *const *values) {
    for (size_t i = 0; i < sizeof variables / sizeof *variables; i++) {
        if (values[i] != NULL)
            setenv(variables[i], values[i], 1);
        else
            unsetenv(variables[i]);
    }
}

typedef struct env_case {
    const char *values[14];
    const char *rendezvous; /* expected, or NULL */
    const char *error;      /* expected, or NULL */
} env_case;

static void test_options_from_torchrun(void **state) {
    (void)state;
    static const env_case cases[] = {
        {{NULL}, NULL, NULL},
        {{"1", "4", "host-a", "29500", NULL, NULL, NULL}, "host-a:29500", NULL},
        {{"1", "4", "host-a", "29500", "True", "7", NULL}, "host-a:29501", NULL},
        {{"1", "4", "host-a", "29500", "False", NULL, NULL}, "host-a:29500", NULL},
        {{"1", "4", "fe80::1", "29500", NULL, NULL, NULL}, "[fe80::1]:29500", NULL},
        {{"1", "4", NULL, NULL, NULL, NULL, "b:1"}, "b:1", NULL},
        {{"4", "4", "a", "1", NULL, NULL, NULL}, NULL, "RANK=4 is not a number from 0 to 3"},
        {{"-1", "4", "a", "1", NULL, NULL, NULL}, NULL, "RANK=-1"},
        {{"1x", "4", "a", "1", NULL, NULL, NULL}, NULL, "RANK=1x"},
        {{"", "4", "a", "1", NULL, NULL, NULL}, NULL, "RANK="},
        {{"0", "0", "a", "1", NULL, NULL, NULL}, NULL, "WORLD_SIZE=0"},
        {{"0", "99999999999999999999", "a", "1", NULL, NULL, NULL}, NULL, "WORLD_SIZE=9"},
        {{"1", NULL, "a", "1", NULL, NULL, NULL}, NULL, "WORLD_SIZE is not set"},
        {{NULL, "4", "a", "1", NULL, NULL, NULL}, NULL, "RANK is not set"},
        {{"1", "4", NULL, "1", NULL, NULL, NULL}, NULL, "MASTER_ADDR is not set"},
        {{"1", "4", "a", NULL, NULL, NULL, NULL}, NULL, "MASTER_PORT is not set"},
        {{"1", "4", "a", "65535", NULL, NULL, NULL}, NULL, "MASTER_PORT=65535"},
        {{"1", "4", "a-host-name-of-some-length", "1", NULL, NULL, NULL}, NULL, "longer than 19"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        bl_error err = BL_ERROR_INIT;
        char text[20];
        bl_ucx_options options = BL_UCX_OPTIONS_INIT;
        bool found = true;
        set_env(cases[i].values);
        const bl_status st = bl_ucx_options_from_env(&options, text, sizeof text, &found, &err);
        if (cases[i].error != NULL) {
            assert_int_equal(st, BL_ERR_USAGE);
            bl_test_has(err.text, cases[i].error);
            assert_null(options.rendezvous); /* outputs only on success */
            continue;
        }
        assert_int_equal(st, BL_OK);
        assert_int_equal(found, cases[i].rendezvous != NULL);
        if (!found)
            continue;
        assert_string_equal(options.rendezvous, cases[i].rendezvous);
        assert_int_equal(options.rank, 1);
        assert_int_equal(options.n_ranks, 4);
        assert_int_equal(options.rendezvous_fd, -1);
        assert_int_equal(options.job != 0, cases[i].values[5] != NULL);
    }
    set_env(cases[0].values);
}

typedef struct mpi_case {
    const char *values[14];
    const char *rendezvous; /* how it begins */
    const char *error;
} mpi_case;

static void test_options_from_mpirun(void **state) {
    (void)state;
#define NO_TORCH NULL, NULL
    static const mpi_case cases[] = {
        /* Open MPI on one host: a port that every rank works out */
        {{NO_TORCH, NULL, NULL, NULL, NULL, NULL, "1", "4", "4", "job-a"}, "127.0.0.1:2", NULL},
        {{NO_TORCH, NULL, NULL, NULL, NULL, NULL, "1", "4", "4", NULL}, "127.0.0.1:2", NULL},
        {{NO_TORCH, NULL, NULL, NULL, NULL, "b:1", "1", "4", "2", "job-a"}, "b:1", NULL},
        {{NO_TORCH, "h", "29500", NULL, NULL, NULL, "1", "4", "2", "job-a"}, "h:29500", NULL},
        {{NO_TORCH, NULL, NULL, NULL, NULL, NULL, "1", "4", "2", "job-a"},
         NULL,
         "2 of 4 ranks are on this host: set BALLAST_RENDEZVOUS"},
        {{NO_TORCH, NULL, NULL, NULL, NULL, NULL, "1", "4", NULL, "job-a"},
         NULL,
         "mpirun does not say where the ranks can meet"},
        {{NO_TORCH, NULL, NULL, NULL, NULL, NULL, "1", NULL, "4", NULL},
         NULL,
         "OMPI_COMM_WORLD_SIZE is not set, though others of mpirun's variables are"},
        {{NO_TORCH, NULL, NULL, NULL, NULL, NULL, "4", "4", "4", NULL},
         NULL,
         "OMPI_COMM_WORLD_RANK=4 is not a number from 0 to 3"},
        /* MPICH, Intel MPI, srun */
        {{NO_TORCH, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, "1", "4", "4"},
         "127.0.0.1:2",
         NULL},
        {{NO_TORCH, NULL, NULL, NULL, NULL, "b:1", NULL, NULL, NULL, NULL, "1", "4", NULL},
         "b:1",
         NULL},
        {{NO_TORCH, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, "1", "4", NULL},
         NULL,
         "mpiexec does not say where"},
        /* torchrun below mpirun: the inner one counts */
        {{"1", "4", "h", "7", NULL, NULL, NULL, "0", "2", "2", "job-a"}, "h:7", NULL},
    };
    char first[64] = "";
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        bl_error err = BL_ERROR_INIT;
        char text[64];
        bl_ucx_options options = BL_UCX_OPTIONS_INIT;
        bool found = false;
        set_env(cases[i].values);
        const bl_status st = bl_ucx_options_from_env(&options, text, sizeof text, &found, &err);
        if (cases[i].error != NULL) {
            assert_int_equal(st, BL_ERR_USAGE);
            bl_test_has(err.text, cases[i].error);
            continue;
        }
        if (st < 0)
            fail_msg("case %zu: %s", i, err.text);
        assert_true(found && options.rank == 1 && options.n_ranks == 4);
        assert_memory_equal(text, cases[i].rendezvous, strlen(cases[i].rendezvous));
        if (i == 0)
            snprintf(first, sizeof first, "%s", text);
    }
    /* The port depends on the run and on nothing that differs between its ranks. */
    char text[64];
    bool found;
    bl_error err;
    bl_ucx_options options = BL_UCX_OPTIONS_INIT;
    set_env((const char *[14]){NO_TORCH, NULL, NULL, NULL, NULL, NULL, "0", "4", "4", "job-a"});
    assert_ok(bl_ucx_options_from_env(&options, text, sizeof text, &found, &err));
    assert_string_equal(text, first);
    assert_true(options.job != 0);
    set_env((const char *[14]){NULL});
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_options_from_mpirun),
        cmocka_unit_test(test_ranks_learn_all_addresses),
        cmocka_unit_test(test_rank_0_may_come_last),
        cmocka_unit_test(test_strangers_are_ignored),
        cmocka_unit_test(test_slow_ranks_are_let_in),
        cmocka_unit_test(test_many_strangers),
        cmocka_unit_test(test_missing_ranks_are_named),
        cmocka_unit_test(test_rank_0_that_never_comes),
        cmocka_unit_test(test_wrong_guests_are_turned_away),
        cmocka_unit_test(test_a_number_is_given_once),
        cmocka_unit_test(test_malformed_meeting_points),
        cmocka_unit_test(test_options_from_torchrun),
    };
    return cmocka_run_group_tests_name("rendezvous", tests, NULL, NULL);
}
