#include "tests/support/cluster_sim.h"
#include "tests/support/support.h"
#include "rebalancer/transaction.h"

#include <stdio.h>
#include <stdlib.h>

static int n_seeds(void) {
    const char *text = getenv("BALLAST_SIM_SEEDS");
    return text != NULL ? atoi(text) : 200;
}

/* BALLAST_SIM_TRACE="FAULT SEED" in the environment: print one run, event by event. */
static void trace_one(void) {
    int fault, seed;
    const char *text = getenv("BALLAST_SIM_TRACE");
    if (text == NULL || sscanf(text, "%d %d", &fault, &seed) != 2)
        return;
    bl_sim_report report = {.trace = stderr};
    bl_sim_run((uint64_t)seed * 16 + (uint64_t)fault, (bl_sim_fault)fault, &report);
    fprintf(stderr, "%s\n", report.violation);
    exit(report.violation[0] != '\0');
}

static bl_sim_report run(bl_sim_fault fault) {
    bl_sim_report report = {0};
    for (int seed = 1; seed <= n_seeds(); seed++) {
        if (bl_sim_run((uint64_t)seed * 16 + (uint64_t)fault, fault, &report))
            continue;
        print_message("seed %d: %s\n", seed, report.violation);
        if (getenv("BALLAST_SIM_QUICK") != NULL) /* for tests/mutants: one violation is enough */
            exit(1);
        fail_msg("seed %d: %s", seed, report.violation);
    }
    print_message("# %d moved, %d aborted, %d waves, %d holds, %d late, %d resent, %d rejected, %d "
                  "halted, %d two deep, %llu steps, %llu messages, longest hold %.1f ms\n",
                  report.moved, report.aborted, report.waves, report.holds, report.late,
                  report.resent, report.rejected, report.halted, report.two_deep,
                  (unsigned long long)report.steps, (unsigned long long)report.messages,
                  (double)report.longest_hold_ns * 1e-6);
    return report;
}

/* ---- clusters with faults --------------------------------------------------------------------
 * Each test also asks that what it is about has happened, or it would prove nothing. */

static void test_no_fault(void **state) {
    (void)state;
    const bl_sim_report report = run(BL_SIM_NO_FAULT);
    assert_int_equal(report.aborted + report.halted, 0);
    assert_true(report.moved > 0 && report.waves > 0 && report.rejected > 0);
    assert_true(report.holds > 0 && report.late > 0 && report.two_deep > 0);
}

static void test_damaged_once_is_sent_again(void **state) {
    (void)state;
    const bl_sim_report report = run(BL_SIM_CORRUPT_ONCE);
    assert_int_equal(report.aborted, 0);
    assert_true(report.resent > 0);
}

static void test_damaged_always_aborts(void **state) {
    (void)state;
    const bl_sim_report report = run(BL_SIM_CORRUPT_ALWAYS);
    assert_true(report.aborted > 0 && report.resent > 0);
}

static void test_other_placement_is_refused(void **state) {
    (void)state;
    const bl_sim_report report = run(BL_SIM_MISMATCH);
    assert_true(report.moved == 0 && report.waves == 0 && report.aborted > 0);
}

static void test_bundles_that_never_arrive(void **state) {
    (void)state;
    assert_true(run(BL_SIM_SILENT_COPY).aborted > 0);
}

static void test_a_deaf_rank(void **state) {
    (void)state;
    const bl_sim_report report = run(BL_SIM_DEAF);
    assert_true(report.aborted > 0 && report.halted > 0);
}

static void test_operator_stops(void **state) {
    (void)state;
    const bl_sim_report report = run(BL_SIM_STOP);
    assert_true(report.aborted > 0 && report.moved > 0);
}

static void test_a_rank_runs_short_of_spares(void **state) {
    (void)state;
    const bl_sim_report report = run(BL_SIM_SHRINK);
    assert_true(report.aborted > 0 && report.halted == 0);
}

static void test_a_rank_is_lost(void **state) {
    (void)state;
    const bl_sim_report report = run(BL_SIM_LOSE_RANK);
    assert_true(report.aborted > 0 && report.moved > 0 && report.halted == 0);
}

static void test_the_leader_is_lost(void **state) {
    (void)state;
    const bl_sim_report report = run(BL_SIM_LOSE_LEADER);
    assert_true(report.aborted > 0 && report.moved > 0 && report.halted == 0);
}

static void test_two_are_lost(void **state) {
    (void)state;
    assert_true(run(BL_SIM_LOSE_TWO).aborted > 0);
}

static void test_words_that_come_late(void **state) {
    (void)state;
    const bl_sim_report report = run(BL_SIM_LATE);
    assert_true(report.aborted > 0 && report.moved > 0);
}

static void test_a_rank_stands_still(void **state) {
    (void)state;
    const bl_sim_report report = run(BL_SIM_STALL);
    assert_true(report.aborted > 0 && report.moved > 0 && report.halted > 0);
}

/* Cut apart: for a moment, for good, both ways or one. Whoever was bound by a promise when it lost the
 * leader and another at once halts, also in the larger part. */
static void test_a_cluster_is_cut_apart(void **state) {
    (void)state;
    const bl_sim_report report = run(BL_SIM_CUT);
    print_message("# %d healed in time, %d did not, %d of them in halves; %d ended in doubt\n",
                  report.healed, report.cut, report.tied, report.in_doubt);
    assert_true(report.healed > 0 && report.cut > 0 && report.tied > 0);
    assert_true(report.in_doubt * 20 <= report.cut);
}

/* ---- by hand --------------------------------------------------------------------------------- */

static bl_tx_actions out;

static void give(bl_transaction *tx, bl_tx_event event) {
    bl_tx_step(tx, &event, 1000, &out);
}

static void give_message(bl_transaction *tx, bl_tx_message message) {
    give(tx, (bl_tx_event){.kind = BL_TX_EV_MESSAGE, .message = &message, .reason = "no"});
}

static void test_a_half_goes_on_with_the_lowest_rank(void **state) {
    (void)state;
    const bl_tx_options options = BL_TX_OPTIONS_INIT;
    static bl_transaction tx[4];
    for (int rank = 0; rank < 4; rank++)
        bl_tx_init(&tx[rank], rank, 4, &options);
    give(&tx[0], (bl_tx_event){.kind = BL_TX_EV_LOST, .rank = 2});
    give(&tx[0], (bl_tx_event){.kind = BL_TX_EV_LOST, .rank = 3});
    assert_int_equal(tx[0].state, BL_TX_STABLE);
    assert_true(bl_tx_can_apply(&tx[0]));
    give(&tx[0], (bl_tx_event){.kind = BL_TX_EV_LOST, .rank = 1});
    assert_int_equal(tx[0].state, BL_TX_HALTED);

    give(&tx[2], (bl_tx_event){.kind = BL_TX_EV_LOST, .rank = 0});
    assert_int_equal(tx[2].state, BL_TX_STABLE);
    assert_int_equal(bl_tx_leader(&tx[2]), 1);
    give(&tx[2], (bl_tx_event){.kind = BL_TX_EV_LOST, .rank = 1});
    assert_int_equal(tx[2].state, BL_TX_HALTED);
    bl_test_has(tx[2].reason, "too few ranks");
    give(&tx[2], (bl_tx_event){.kind = BL_TX_EV_STEP, .step = 1, .oldest = 1});
    assert_int_equal(out.items[0].kind, BL_TX_ACT_HALT);
}

/* A plan that this rank cannot carry out is refused with the reason; an older term is not heard. */
static void test_refusal_and_terms(void **state) {
    (void)state;
    const bl_tx_options options = BL_TX_OPTIONS_INIT;
    static bl_transaction tx;
    bl_tx_init(&tx, 1, 2, &options);
    give_message(&tx, (bl_tx_message){.type = BL_TX_PREPARE, .from = 0, .view = 1, .term = 5});
    assert_int_equal(out.n, 1);
    assert_int_equal(out.items[0].message.type, BL_TX_FAILED);
    assert_int_equal(out.items[0].message.term, 5);
    assert_string_equal(out.items[0].message.reason, "no");
    const uint64_t rejected = tx.rejected;
    give_message(&tx, (bl_tx_message){.type = BL_TX_PREPARE, .from = 0, .view = 1, .term = 5});
    give_message(&tx, (bl_tx_message){.type = BL_TX_PREPARE, .from = 0, .view = 1, .term = 4});
    give_message(&tx, (bl_tx_message){.type = BL_TX_PREPARE, .from = 0, .view = 0, .term = 6});
    give_message(&tx, (bl_tx_message){.type = BL_TX_PREPARE, .from = 1, .view = 1, .term = 6});
    give_message(&tx, (bl_tx_message){.type = BL_TX_ABORT, .from = 7, .view = 1, .term = 5});
    assert_int_equal(tx.rejected - rejected, 5);
    assert_true(bl_tx_is_idle(&tx));
    assert_string_equal(bl_tx_message_name(BL_TX_RESOLVE), "RESOLVE");
}

/* Applied, stopped and applied again before the leader hears itself: two moves, two terms, or answers to
 * the first would count for the second. */
static void test_a_move_stopped_at_once_keeps_its_term(void **state) {
    (void)state;
    const bl_tx_options options = BL_TX_OPTIONS_INIT;
    static bl_transaction tx;
    const bl_schedule schedule = {0};
    bl_tx_init(&tx, 0, 2, &options);
    give(&tx, (bl_tx_event){.kind = BL_TX_EV_APPLY, .schedule = &schedule});
    assert_int_equal(out.items[0].message.term, 1);
    give(&tx, (bl_tx_event){.kind = BL_TX_EV_STOP, .reason = "stopped"});
    assert_int_equal(out.items[0].message.type, BL_TX_ABORT);
    give(&tx, (bl_tx_event){.kind = BL_TX_EV_APPLY, .schedule = &schedule});
    assert_int_equal(out.items[0].message.type, BL_TX_PREPARE);
    assert_int_equal(out.items[0].message.term, 2);
}

int main(void) {
    trace_one();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_fault),
        cmocka_unit_test(test_damaged_once_is_sent_again),
        cmocka_unit_test(test_damaged_always_aborts),
        cmocka_unit_test(test_other_placement_is_refused),
        cmocka_unit_test(test_bundles_that_never_arrive),
        cmocka_unit_test(test_a_deaf_rank),
        cmocka_unit_test(test_operator_stops),
        cmocka_unit_test(test_a_rank_runs_short_of_spares),
        cmocka_unit_test(test_a_rank_is_lost),
        cmocka_unit_test(test_the_leader_is_lost),
        cmocka_unit_test(test_two_are_lost),
        cmocka_unit_test(test_words_that_come_late),
        cmocka_unit_test(test_a_rank_stands_still),
        cmocka_unit_test(test_a_cluster_is_cut_apart),
        cmocka_unit_test(test_a_half_goes_on_with_the_lowest_rank),
        cmocka_unit_test(test_refusal_and_terms),
        cmocka_unit_test(test_a_move_stopped_at_once_keeps_its_term),
    };
    return cmocka_run_group_tests_name("transaction", tests, NULL, NULL);
}
