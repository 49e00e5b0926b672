/* The small parts of coming back: what a rank is welcomed with, and whose majority counts meanwhile. */
#include "tests/support/support.h"

#include "core/mem.h"
#include "rebalancer/messages.h"
#include "rebalancer/recovery.h"

#include <stdlib.h>
#include <string.h>

/* ---- the welcome ------------------------------------------------------------------------------- */

enum { RANKS = 3, SELF = 1, HEAD = 64 };

static void put(unsigned char *at, uint64_t value, int n_bytes) {
    for (int i = 0; i < n_bytes; i++)
        at[i] = (unsigned char)(value >> (8 * i));
}

/* As the header draws it: two layers of 3 experts, rank 1 has come back, rank 2 is lost. `own`: what is in
 * the first slot of rank 1. */
static unsigned char *make_welcome(int32_t own, size_t *bytes_p) {
    bl_error err;
    bl_placement maps;
    unsigned char *goal;
    size_t goal_bytes;
    const int layers[] = {2, 5}, slots[] = {3, 2, 1};
    assert_ok(bl_placement_create(RANKS, 3, layers, 2, slots, &maps, &err));
    for (int l = 0; l < 2; l++) {
        const int32_t experts[] = {2, 0, 1, own, -1, -1};
        memcpy(maps.layers[l].expert, experts, sizeof experts);
    }
    assert_ok(bl_wire_encode_goal(&maps, &goal, &goal_bytes, &err));
    const size_t bytes = HEAD + 2 * 8 + goal_bytes + 1;
    unsigned char *data = calloc(bytes, 1);
    assert_non_null(data);
    memcpy(data, "BLW1", 4);
    put(data + 4, SELF, 4);
    for (int i = 0; i < 6; i++)
        put(data + 8 + 8 * i, 100 + (uint64_t)i, 8);
    put(data + 56, 2, 4);
    put(data + 60, goal_bytes, 4);
    put(data + HEAD, 7, 8);
    put(data + HEAD + 8, 9, 8);
    memcpy(data + HEAD + 16, goal, goal_bytes);
    data[bytes - 1] = 1 << 2;
    free(goal);
    bl_placement_free(&maps);
    *bytes_p = bytes;
    return data;
}

static void test_a_welcome_is_read(void **state) {
    (void)state;
    bl_error err;
    bl_welcome w;
    size_t bytes;
    unsigned char *data = make_welcome(BL_NO_EXPERT, &bytes);
    assert_ok(bl_welcome_decode(data, bytes, SELF, RANKS, &w, &err));
    assert_int_equal(w.step, 100);
    assert_int_equal(w.sequence, 101);
    assert_int_equal(w.view, 102);
    assert_int_equal(w.term, 103);
    assert_int_equal(w.era, 104);
    assert_int_equal(w.tries, 105);
    assert_true(!w.lost[0] && !w.lost[1] && w.lost[2]);
    assert_int_equal(w.placement.layers[0].epoch, 7);
    assert_int_equal(w.placement.layers[1].layer, 5);
    assert_int_equal(w.placement.layers[1].epoch, 9);
    assert_int_equal(w.placement.layers[1].expert[0], 2);
    bl_welcome_free(&w);
    free(data);
}

static void test_what_is_no_welcome_is_refused(void **state) {
    (void)state;
    bl_error err;
    bl_welcome w;
    size_t bytes;
    unsigned char *data = make_welcome(BL_NO_EXPERT, &bytes);
    for (size_t cut = 0; cut < bytes; cut++)
        assert_true(bl_welcome_decode(data, cut, SELF, RANKS, &w, &err) < 0);
    assert_fails(bl_welcome_decode(data, bytes, 0, RANKS, &w, &err), BL_ERR_PARSE, "damaged");
    assert_fails(bl_welcome_decode(data, bytes, SELF, 4, &w, &err), BL_ERR_PARSE, "damaged");
    for (size_t at = 0; at < bytes; at++) { /* any answer will do but a crash */
        data[at] ^= 0xff;
        if (bl_welcome_decode(data, bytes, SELF, RANKS, &w, NULL) >= 0)
            bl_welcome_free(&w);
        data[at] ^= 0xff;
    }
    free(data);
    data = make_welcome(1, &bytes); /* it holds nothing yet */
    assert_fails(bl_welcome_decode(data, bytes, SELF, RANKS, &w, &err), BL_ERR_PARSE, "damaged");
    free(data);
}

/* ---- whose majority ---------------------------------------------------------------------------- */

static bl_tx_actions out;

static bl_transaction *member(int rank, int n_ranks) {
    const bl_tx_options options = BL_TX_OPTIONS_INIT;
    bl_transaction *tx = calloc(1, sizeof *tx);
    assert_non_null(tx);
    bl_tx_init(tx, rank, n_ranks, &options);
    return tx;
}

static void lose(bl_transaction *tx, int rank) {
    bl_tx_step(tx, &(bl_tx_event){.kind = BL_TX_EV_LOST, .rank = rank}, 1, &out);
}

static bool halts(const bl_transaction *tx) {
    return tx->state == BL_TX_HALTED;
}

/* Ranks 0 and 2 are left of three and are a view; 1 comes back. */
static bl_transaction *expecting(int self) {
    bl_transaction *tx = member(self, 3);
    lose(tx, 1);
    bl_tx_regroup(tx);
    bl_tx_expect(tx, 1);
    return tx;
}

static void test_a_loss_while_one_comes_back_counts_in_both_views(void **state) {
    (void)state;
    bl_transaction *tx = expecting(0);
    lose(tx, 2); /* 1 of 2 with the lowest, and 2 of 3 */
    assert_false(halts(tx));
    lose(tx, 1); /* 1 of 3: 2 and 1 may go on together */
    assert_true(halts(tx));
    free(tx);

    tx = expecting(2);
    lose(tx, 0); /* 1 of 2 without the lowest */
    assert_true(halts(tx));
    free(tx);

    tx = expecting(0);
    lose(tx, 1); /* the one that comes back alone: 2 of 2, and 2 of 3 */
    assert_false(halts(tx));
    bl_tx_expect(tx, -1);
    lose(tx, 2); /* and now it is as before: half, with the lowest */
    assert_false(halts(tx));
    free(tx);
}

static void test_readmitted_it_is_a_member_of_a_later_view(void **state) {
    (void)state;
    bl_transaction *tx = member(1, 3);
    lose(tx, 0);
    bl_tx_step(tx, &(bl_tx_event){.kind = BL_TX_EV_TICK}, 2, &out);
    assert_int_equal(bl_tx_leader(tx), 1);
    const uint64_t view = tx->view + 5;
    bl_tx_regroup(tx);
    bl_tx_expect(tx, 0);
    assert_int_equal(bl_tx_leader(tx), 1); /* not yet */
    bl_tx_readmit(tx, view, 9, false, &out);
    assert_int_equal(out.n, 0);
    assert_int_equal(bl_tx_leader(tx), 0);
    assert_int_equal(tx->view, view);
    assert_int_equal(tx->term, 9);
    assert_int_equal(tx->n_members, 3);
    assert_false(bl_tx_can_apply(tx)); /* the other leads */
    free(tx);

    tx = member(0, 3);
    bl_tx_join(tx, view, 9, (const bool[]){false, false, true});
    assert_int_equal(tx->n_members, 2);
    assert_int_equal(tx->view, view);
    assert_true(bl_tx_can_apply(tx));
    free(tx);
}

/* What a survivor said about the leader's loss before that one came back says nothing about its next. */
static void test_words_of_an_older_view_do_not_count(void **state) {
    (void)state;
    bl_transaction *tx = member(1, 3);
    bl_tx_message word = {.type = BL_TX_RESOLVE, .from = 2, .view = 1, .move = 1};
    const bl_tx_event says = {.kind = BL_TX_EV_MESSAGE, .message = &word};
    lose(tx, 0);
    bl_tx_step(tx, &says, 2, &out);
    word.from = 1;
    bl_tx_step(tx, &says, 2, &out);
    assert_int_equal(tx->lost_leader, -1); /* both have spoken */
    bl_tx_regroup(tx);
    bl_tx_expect(tx, 0);
    bl_tx_readmit(tx, tx->view + 1, 0, false, &out);
    lose(tx, 0); /* once more */
    word = (bl_tx_message){.type = BL_TX_RESOLVE, .from = 1, .view = tx->view, .move = 1};
    bl_tx_step(tx, &says, 3, &out);
    assert_int_equal(tx->lost_leader, 0); /* 2 has not said anything about this loss */
    word.from = 2;
    word.view = 1; /* late, about the first */
    bl_tx_step(tx, &says, 3, &out);
    assert_int_equal(tx->lost_leader, 0);
    word.view = tx->view;
    bl_tx_step(tx, &says, 3, &out);
    assert_int_equal(tx->lost_leader, -1);
    free(tx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_welcome_is_read),
        cmocka_unit_test(test_what_is_no_welcome_is_refused),
        cmocka_unit_test(test_a_loss_while_one_comes_back_counts_in_both_views),
        cmocka_unit_test(test_readmitted_it_is_a_member_of_a_later_view),
        cmocka_unit_test(test_words_of_an_older_view_do_not_count),
    };
    return cmocka_run_group_tests_name("recovery_join", tests, NULL, NULL);
}
