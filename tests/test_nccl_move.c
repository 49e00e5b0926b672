/* Experts over NCCL: agents on ranks that are threads, the fake library under them, experts in device
 * memory that the CPU cannot touch, messages over the local transport. */
#include "runtime/round.h"
#include "runtime/transport_ops.h"

#include "core/progress.h"
#include "tests/fake/nccl.h"
#include "tests/fake/fake_nccl.h"
#include "tests/support/mover.h"
#include "tests/support/support.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_RANKS 8
#define WATCH_S 1.0 /* after which a group that stands still is given up, where one does */

/* For mutants: less of everything, and an end to what hangs. */
static bool quick;

typedef bl_status post_fn(bl_transport *, const bl_part *, int, bl_error *);

typedef struct rank_thread {
    pthread_t thread;
    bl_transport *transport;
    bl_test_mover_plan plan;
    double watch_s;
    bool on_host;        /* its experts lie in host memory */
    bool without_rounds; /* its transport has none */
    post_fn *post;       /* instead of the transport's; NULL: as it is */
    bl_test_mover out;
    bl_status status;
    bl_error err;
} rank_thread;

static rank_thread ranks[MAX_RANKS];

static int copy_rows(void *user, void *to, size_t to_stride, const void *from, size_t from_stride,
                     size_t row_bytes, size_t rows) {
    (void)user;
    return (int)cudaMemcpy2D(to, to_stride, from, from_stride, row_bytes, rows, cudaMemcpyDefault);
}

/* ---- ranks ----------------------------------------------------------------------------------- */

static post_fn *true_post;

static bl_status serve(rank_thread *r) {
    const int rank = bl_transport_rank(r->transport);
    const bl_nccl_options options = {.device = rank, .max_ctas = 4};
    bl_memory *memory = NULL;
    BL_TRY(bl_transport_nccl_open(&options, r->transport, &r->transport, &r->err));
    bl_transport_set_deadline(r->transport, r->watch_s);
    const bl_transport_ops *const true_ops = r->transport->ops;
    bl_transport_ops ops = *true_ops;
    bl_round_ops rounds = *true_ops->rounds;
    ops.rounds = r->without_rounds ? NULL : &rounds;
    if (r->post != NULL) {
        true_post = rounds.post;
        rounds.post = r->post;
    }
    r->transport->ops = &ops;
    bl_status st = r->on_host ? BL_OK : bl_memory_open(rank, &memory, &r->err);
    if (st >= 0)
        st = bl_test_mover_run(&r->plan, r->transport, memory, &r->out, &r->err);
    bl_memory_close(memory);
    r->transport->ops = true_ops;
    return st;
}

static void *rank_main(void *arg) {
    rank_thread *r = arg;
    r->status = serve(r);
    if (r->out.died)
        bl_transport_abandon(r->transport);
    else
        bl_transport_close(r->transport);
    return NULL;
}

static void prepare(int n_ranks, const bl_test_mover_plan *plan) {
    bl_error err;
    bl_transport *handles[MAX_RANKS];
    fake_nccl_reset();
    assert_ok(bl_transport_local_open(n_ranks, handles, &err));
    for (int rank = 0; rank < n_ranks; rank++)
        ranks[rank] = (rank_thread){.transport = handles[rank],
                                    .plan = *plan,
                                    .watch_s = quick ? 1 : BL_TRANSPORT_DEADLINE_S,
                                    .err = BL_ERROR_INIT};
    for (int rank = 0; rank < n_ranks && quick; rank++)
        ranks[rank].plan.options.transaction.copy_ns = UINT64_C(1500000000);
}

static void run(int n_ranks) {
    for (int rank = 0; rank < n_ranks; rank++)
        assert_true(ranks[rank].plan.experts <= n_ranks * ranks[rank].plan.slots);
    for (int rank = 0; rank < n_ranks; rank++)
        assert_int_equal(pthread_create(&ranks[rank].thread, NULL, rank_main, &ranks[rank]), 0);
    for (int rank = 0; rank < n_ranks; rank++)
        pthread_join(ranks[rank].thread, NULL);
    if (fake_nccl_misuse() != NULL)
        fail_msg("misuse of NCCL: %s", fake_nccl_misuse());
    for (int rank = 0; rank < n_ranks; rank++)
        if (ranks[rank].status < 0)
            fail_msg("rank %d: %s", rank, ranks[rank].err.text);
}

/* All survivors served every step with the same maps, kept the budget and have all their spares. */
static void check(int n_ranks) {
    const rank_thread *first = &ranks[ranks[0].out.died ? 1 : 0];
    for (int rank = 0; rank < n_ranks; rank++) {
        const rank_thread *r = &ranks[rank];
        assert_true(r->out.status.max_step_bytes <= (uint64_t)r->plan.options.step_bytes);
        if (r->out.died)
            continue;
        assert_true(r->out.n_steps == first->out.n_steps);
        assert_true(r->out.epochs == first->out.epochs);
        assert_int_equal(r->out.spares_left, r->plan.spares);
        assert_int_equal(r->out.at_goal, first->out.at_goal);
        assert_true(r->out.n_checked > 0);
        assert_false(r->out.status.busy);
    }
    assert_int_equal(fake_nccl_reset(), 0);
}

static size_t sent_by_all(int n_ranks) {
    size_t sent = 0;
    for (int rank = 0; rank < n_ranks; rank++)
        sent += ranks[rank].out.status.sent_bytes;
    return sent;
}

/* ---- plans ----------------------------------------------------------------------------------- */

/* Random plans on 2, 3, 4 and 8 ranks. Every byte of every move goes over NCCL, once. */
static void carry_out(int n_ranks, bl_test_mover_plan plan, bool on_host) {
    prepare(n_ranks, &plan);
    for (int rank = 0; rank < n_ranks; rank++)
        ranks[rank].on_host = on_host;
    run(n_ranks);
    const bl_test_mover *out = &ranks[0].out;
    for (int goal = 0; goal < plan.n_goals; goal++)
        if (out->outcomes[goal] != BL_TX_MOVED)
            fail_msg("goal %d: %s", goal, out->reasons[goal]);
    assert_int_equal(out->at_goal, plan.n_goals - 1);
    assert_true(out->n_moves > 0);
    assert_int_equal(fake_nccl_sent_bytes(), (size_t)out->n_moves * plan.bundle_bytes);
    assert_int_equal(sent_by_all(n_ranks), (size_t)out->n_moves * (plan.bundle_bytes + 40));
    assert_int_equal(fake_nccl_joined(), n_ranks);
    assert_int_equal(fake_nccl_broken(), 0);
    print_message("# %d ranks, %zu bytes: %d moves, %d groups, %llu steps\n", n_ranks,
                  plan.bundle_bytes, out->n_moves, fake_nccl_groups(),
                  (unsigned long long)out->n_steps);
    check(n_ranks);
}

static void test_plans(void **state) {
    (void)state;
    static const int n_ranks[] = {2, 3, 4, 8};
    for (size_t i = 0; i < sizeof n_ranks / sizeof *n_ranks; i++) {
        bl_test_mover_plan plan = BL_TEST_MOVER_PLAN;
        plan.n_goals = 4;
        plan.seed = 10 + i;
        plan.experts = 6 + (int)i;
        plan.options.step_bytes = 8192;
        carry_out(n_ranks[i], plan, false);
    }
}

/* Chunks: a bundle of several, the last of them short; several beats in a group, across bundles; one
 * byte; a budget of exactly a bundle and its head. */
static void test_sizes(void **state) {
    (void)state;
    static const struct {
        size_t bundle_bytes;
        int64_t step_bytes;
    } sizes[] = {{20000, 4096}, {20000, 65536}, {1, 4096}, {5000, 5040}, {70001, 10000}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        bl_test_mover_plan plan = BL_TEST_MOVER_PLAN;
        plan.n_goals = 2;
        plan.seed = 20 + i;
        plan.bundle_bytes = sizes[i].bundle_bytes;
        plan.options.step_bytes = sizes[i].step_bytes;
        carry_out(4, plan, false);
    }
}

/* By hand: the only move is of one bundle of 10000 bytes; 4096 - 40 a step make three chunks, each a
 * group on its two ranks and on no other. */
static void test_groups_of_a_move(void **state) {
    (void)state;
    bl_test_mover_plan plan = BL_TEST_MOVER_PLAN;
    plan.layers = 1;
    plan.slots = 2;
    plan.experts = 4;
    plan.spares = 1;
    plan.n_goals = 1;
    plan.bundle_bytes = 10000;
    plan.options.step_bytes = 4096;
    for (plan.seed = 1; plan.seed < 100; plan.seed++) {
        prepare(3, &plan);
        run(3);
        const int n_moves = ranks[0].out.n_moves, n_groups = fake_nccl_groups();
        check(3);
        if (n_moves != 1)
            continue;
        assert_int_equal(n_groups, 6);
        return;
    }
    fail_msg("no seed gives a single move");
}

/* An engine's tensors on a GPU: bundles are copied aside, and out of the pool at the commit. */
static void test_tensors(void **state) {
    (void)state;
    bl_test_mover_plan plan = BL_TEST_MOVER_PLAN;
    plan.n_goals = 4;
    plan.copy = copy_rows;
    plan.options.step_bytes = 4096;
    carry_out(4, plan, false);
    plan.options.step_bytes = 32768;
    carry_out(3, plan, false);
}

/* Experts in host memory go by way of the device. */
static void test_host_memory(void **state) {
    (void)state;
    bl_test_mover_plan plan = BL_TEST_MOVER_PLAN;
    plan.n_goals = 2;
    plan.options.step_bytes = 8192;
    carry_out(4, plan, true);
}

/* ---- damage ---------------------------------------------------------------------------------- */

/* One damaged byte: the two ranks settle it by messages, and all else goes on over NCCL. */
static void test_a_damaged_byte_is_repaired(void **state) {
    (void)state;
    bl_test_mover_plan plan = BL_TEST_MOVER_PLAN;
    plan.n_goals = 1;
    plan.options.step_bytes = 8192;
    prepare(4, &plan);
    fake_nccl_damage(3);
    run(4);
    const size_t once = (size_t)ranks[0].out.n_moves * (plan.bundle_bytes + 40);
    assert_int_equal(ranks[0].out.outcomes[0], BL_TX_MOVED);
    assert_true(sent_by_all(4) >= once + plan.bundle_bytes + 40);
    assert_true(sent_by_all(4) < once + 2 * plan.bundle_bytes);
    check(4);
}

/* All that comes over NCCL is damaged: all of it is sent again. */
static void test_a_bad_device(void **state) {
    (void)state;
    bl_test_mover_plan plan = BL_TEST_MOVER_PLAN;
    plan.n_goals = 1;
    plan.options.step_bytes = 8192;
    prepare(4, &plan);
    fake_nccl_damage(-1);
    run(4);
    assert_int_equal(ranks[0].out.outcomes[0], BL_TX_MOVED);
    assert_true(sent_by_all(4) >= 2 * (size_t)ranks[0].out.n_moves * (plan.bundle_bytes + 40));
    check(4);
}

/* ---- ends in the middle ---------------------------------------------------------------------- */

/* The operator aborts at every step of a wave. What was under way is broken off on all ranks, the old
 * placement serves, and the next plan is carried out over a new communicator. */
static void test_the_operator_aborts(void **state) {
    (void)state;
    int n_broken = 0, n_aborted = 0;
    for (int stop_after = 1; stop_after < 16; stop_after += quick ? 4 : 1) {
        bl_test_mover_plan plan = BL_TEST_MOVER_PLAN;
        plan.n_goals = 3;
        plan.stop_after = stop_after;
        plan.goes_on = true;
        plan.bundle_bytes = 20000;
        plan.seed = 40 + (uint64_t)stop_after;
        plan.copy = stop_after % 2 == 0 ? copy_rows : NULL;
        plan.options.step_bytes = 8192;
        prepare(4, &plan);
        run(4);
        const bl_test_mover *out = &ranks[0].out;
        const bool aborted = out->outcomes[0] == BL_TX_ABORTED;
        if (aborted)
            assert_string_equal(out->reasons[0], "the operator says so");
        assert_int_equal(out->outcomes[1], BL_TX_MOVED);
        assert_int_equal(out->outcomes[2], BL_TX_MOVED);
        assert_int_equal(out->at_goal, 2);
        assert_int_equal(fake_nccl_joined(), aborted ? 8 : 4);
        n_aborted += aborted;
        n_broken += fake_nccl_broken();
        check(4);
    }
    print_message("# %d aborted, %d communicators with transfers under way\n", n_aborted, n_broken);
    assert_true(n_aborted >= (quick ? 3 : 10) && n_broken > 0);
}

/* A rank dies at every step of a move, without a word: no survivor waits for it, all end with one map
 * and all their spares. */
static void test_a_rank_dies(void **state) {
    (void)state;
    int n_broken = 0;
    for (int dies_after = 1; dies_after < 14; dies_after += quick ? 4 : 1) {
        bl_test_mover_plan plan = BL_TEST_MOVER_PLAN;
        plan.n_goals = 1;
        plan.dead_rank = dies_after % 4;
        plan.dies_after = dies_after;
        plan.bundle_bytes = 20000;
        plan.seed = 60 + (uint64_t)dies_after;
        plan.options.step_bytes = 8192;
        prepare(4, &plan);
        const double start_s = bl_now_s();
        run(4);
        assert_true(bl_now_s() - start_s < BL_TRANSPORT_DEADLINE_S); /* nobody waited for it */
        n_broken += fake_nccl_broken();
        assert_true(ranks[plan.dead_rank].out.died);
        check(4);
    }
    print_message("# %d communicators with transfers under way\n", n_broken);
    assert_true(n_broken > 0);
}

/* From its first group on, a call of the libraries is to fail. */
static int failing_call;
static bl_status post_and_fail(bl_transport *transport, const bl_part *parts, int n_parts,
                               bl_error *err) {
    if (failing_call > 0)
        fake_nccl_fail_nccl_call(failing_call);
    failing_call = 0;
    return true_post(transport, parts, n_parts, err);
}

/* Whatever call of the libraries fails: the move is aborted or done, and the next ones are carried out. */
static void test_every_failing_call(void **state) {
    (void)state;
    int n_aborted = 0;
    for (int call = 1; call < 40; call++) {
        bl_test_mover_plan plan = BL_TEST_MOVER_PLAN;
        plan.n_goals = 4;
        plan.goes_on = true;
        plan.seed = 80 + (uint64_t)call;
        plan.options.step_bytes = 8192;
        prepare(3, &plan);
        failing_call = call;
        ranks[1].post = post_and_fail;
        run(3);
        const bl_test_mover *out = &ranks[0].out;
        assert_int_equal(out->n_outcomes, 4);
        for (int goal = 0; goal < 4; goal++) {
            n_aborted += out->outcomes[goal] == BL_TX_ABORTED;
            if (out->outcomes[goal] == BL_TX_ABORTED)
                assert_true(out->reasons[goal][0] != '\0');
        }
        assert_int_equal(out->outcomes[3], BL_TX_MOVED);
        check(3);
    }
    print_message("# %d moves aborted\n", n_aborted);
    assert_true(n_aborted >= 3);
}

/* ---- another list ---------------------------------------------------------------------------- */

/* A rank that would cut its groups in another way is refused before anything is sent. */
static void test_another_schedule_is_refused(void **state) {
    (void)state;
    bl_test_mover_plan plan = BL_TEST_MOVER_PLAN;
    plan.n_goals = 1;
    plan.options.step_bytes = 16384;
    prepare(3, &plan);
    ranks[1].plan.options.step_bytes = 4096;
    run(3);
    assert_int_equal(ranks[0].out.outcomes[0], BL_TX_ABORTED);
    bl_test_has(ranks[0].out.reasons[0], "rank 1");
    assert_int_equal(fake_nccl_groups(), 0);
    assert_int_equal(ranks[0].out.at_goal, -1);
    check(3);
}

/* Ranks of which some do not use NCCL cannot agree either. */
static void test_some_without_nccl(void **state) {
    (void)state;
    for (int without = 0; without < 2; without++) {
        bl_test_mover_plan plan = BL_TEST_MOVER_PLAN;
        plan.n_goals = 1;
        prepare(3, &plan);
        ranks[without].without_rounds = true;
        run(3);
        assert_int_equal(ranks[0].out.outcomes[0], BL_TX_ABORTED);
        bl_test_has(ranks[0].out.reasons[0], "over NCCL");
        assert_int_equal(fake_nccl_groups(), 0);
        check(3);
    }
}

/* Rank 1 posts what arrives a byte short. */
static bl_status post_short(bl_transport *transport, const bl_part *parts, int n_parts,
                            bl_error *err) {
    bl_part other[BL_ROUND_PARTS];
    for (int p = 0; p < n_parts; p++) {
        other[p] = parts[p];
        other[p].bytes -= parts[p].to == 1;
    }
    return true_post(transport, other, n_parts, err);
}

/* Rank 1 sends to the other one. */
static bl_status post_astray(bl_transport *transport, const bl_part *parts, int n_parts,
                             bl_error *err) {
    bl_part other[BL_ROUND_PARTS];
    for (int p = 0; p < n_parts; p++) {
        other[p] = parts[p];
        if (parts[p].from == 1)
            other[p].to = 2 - parts[p].to;
    }
    return true_post(transport, other, n_parts, err);
}

/* A group that stands still is found by the watch of a rank that waits, the move is aborted by name,
 * everybody serves on. */
static void test_a_standstill_is_watched(void **state) {
    (void)state;
    post_fn *const posts[] = {post_short, post_astray};
    for (size_t i = 0; i < sizeof posts / sizeof *posts; i++) {
        bl_test_mover_plan plan = BL_TEST_MOVER_PLAN;
        plan.n_goals = 1;
        plan.experts = 9;
        prepare(3, &plan);
        ranks[1].post = posts[i];
        for (int rank = 0; rank < 3; rank++)
            ranks[rank].watch_s = WATCH_S;
        run(3);
        assert_int_equal(ranks[0].out.outcomes[0], BL_TX_ABORTED);
        bl_test_has(ranks[0].out.reasons[0], "stood still");
        bl_test_has(ranks[0].out.reasons[0], "exchanges it with rank");
        assert_true(fake_nccl_broken() > 0);
        check(3);
    }
}

int main(void) {
    quick = getenv("BALLAST_MOVE_QUICK") != NULL;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plans),
        cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_groups_of_a_move),
        cmocka_unit_test(test_tensors),
        cmocka_unit_test(test_host_memory),
        cmocka_unit_test(test_a_damaged_byte_is_repaired),
        cmocka_unit_test(test_a_bad_device),
        cmocka_unit_test(test_the_operator_aborts),
        cmocka_unit_test(test_a_rank_dies),
        cmocka_unit_test(test_every_failing_call),
        cmocka_unit_test(test_another_schedule_is_refused),
        cmocka_unit_test(test_some_without_nccl),
        cmocka_unit_test(test_a_standstill_is_watched),
    };
    for (size_t i = 0; quick && i < sizeof tests / sizeof *tests; i++)
        if (_cmocka_run_group_tests(tests[i].name, &tests[i], 1, NULL, NULL) != 0)
            return 1;
    return quick ? 0 : cmocka_run_group_tests_name("experts over nccl", tests, NULL, NULL);
}
