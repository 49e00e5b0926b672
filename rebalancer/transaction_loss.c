/* When a rank is lost: membership, and what the survivors do without their leader. */
#include "rebalancer/transaction_parts.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

static bool is_majority(int living, int n_members, bool lowest_lives) {
    return 2 * living > n_members || (2 * living == n_members && lowest_lives);
}

/* While a rank comes back: of the view without it and of the one with it. */
static bool is_quorum(const bl_transaction *tx) {
    const int living = bl_tx_n_living(tx);
    if (!is_majority(living, tx->n_members, !tx->lost[tx->lowest_member]))
        return false;
    if (tx->expected < 0)
        return true;
    const bool lowest_lives =
        tx->lowest_joint == tx->expected ? !tx->expected_lost : !tx->lost[tx->lowest_joint];
    return is_majority(living + !tx->expected_lost, tx->n_joint, lowest_lives);
}

/* ---- the survivors' words -------------------------------------------------------------------- */

/* Has `rank` spoken since it follows the same leader as this rank does? */
static bool has_spoken(const bl_transaction *tx, int rank) {
    const bl_tx_word *word = &tx->words[rank];
    return word->follows >= bl_tx_leader(tx) && word->view >= tx->admitted_view;
}

/* Has `rank` said that no step older than the commit step of the wave in hand runs there? */
static bool has_begun(const bl_transaction *tx, int rank) {
    const bl_tx_word *word = &tx->words[rank];
    return word->term == tx->term && word->decided > tx->wave && word->begun;
}

static bool knows_commit(const bl_transaction *tx) {
    for (int rank = 0; rank < tx->n_ranks; rank++) {
        const bl_tx_word *word = &tx->words[rank];
        if (!tx->lost[rank] && word->term == tx->term && word->decided > tx->wave)
            return true;
    }
    return false;
}

static void new_view(bl_transaction *tx) {
    for (int rank = 0; rank < tx->n_ranks; rank++) {
        const bl_tx_word *word = &tx->words[rank];
        if (tx->lost[rank])
            continue;
        if (word->view > tx->view)
            tx->view = word->view;
        if (word->term > tx->term && tx->schedule == NULL)
            tx->term = word->term;
    }
    tx->view++;
    tx->n_members = bl_tx_n_living(tx);
    tx->lowest_member = bl_tx_leader(tx);
    tx->regrouped = false;
    tx->lost_leader = -1;
}

void bl_tx_regroup(bl_transaction *tx) {
    if (bl_tx_n_living(tx) == tx->n_members)
        return;
    tx->n_members = bl_tx_n_living(tx);
    tx->lowest_member = bl_tx_leader(tx);
    tx->regrouped = true;
}

/* When every survivor has spoken: carry out what was decided, take back what was not. */
static void resolve(bl_transaction *tx, bl_tx_actions *out) {
    char reason[BL_TX_REASON];
    for (int rank = 0; rank < tx->n_ranks; rank++) {
        if (!tx->lost[rank] && !has_spoken(tx, rank))
            return;
    }
    snprintf(reason, sizeof reason, "rank %d, which led the move, was lost", tx->lost_leader);
    if (tx->state == BL_TX_PROMISED) {
        tx->hold_ns = 0;
        if (knows_commit(tx)) {
            tx->state = BL_TX_DECIDED;
            tx->decided = tx->wave + 1;
            tx->begun = false;
        } else {
            bl_tx_release(tx, BL_TX_ABORTED, reason, out);
        }
    }
    if (tx->state == BL_TX_DECIDED || tx->state == BL_TX_COMMITTED) {
        tx->orphaned = true;
        bl_tx_set_reason(tx->reason, reason);
    }
    new_view(tx);
    bl_tx_orphan_retire(tx, out);
}

void bl_tx_resolve_message(bl_transaction *tx, const bl_tx_message *m, bl_tx_actions *out) {
    bl_tx_word *word = &tx->words[m->from];
    const bool is_newer = m->view >= tx->admitted_view && word->view < tx->admitted_view;
    if ((m->move <= word->follows && !is_newer) || m->move >= tx->n_ranks) {
        tx->rejected++;
        return;
    }
    *word = (bl_tx_word){.follows = m->move,
                         .begun = m->attempt == 1,
                         .view = m->view,
                         .term = m->term,
                         .decided = m->wave};
    if (tx->lost_leader >= 0)
        resolve(tx, out);
}

/* ---- a wave without a leader ----------------------------------------------------------------- */

void bl_tx_orphan_begun(bl_transaction *tx, const bl_tx_message *m, bl_tx_actions *out) {
    if (tx->schedule == NULL || m->term != tx->term || m->wave != tx->wave)
        return;
    bl_tx_word *word = &tx->words[m->from];
    word->term = m->term;
    word->decided = m->wave + 1;
    word->begun = true;
    bl_tx_orphan_retire(tx, out);
}

void bl_tx_orphan_retire(bl_transaction *tx, bl_tx_actions *out) {
    if (!tx->orphaned || tx->state != BL_TX_COMMITTED || !tx->begun)
        return;
    for (int rank = 0; rank < tx->n_ranks; rank++) {
        if (!tx->lost[rank] && !has_begun(tx, rank))
            return;
    }
    char reason[BL_TX_REASON];
    memcpy(reason, tx->reason, sizeof reason);
    bl_tx_act(out, BL_TX_ACT_RETIRE)->move = tx->schedule->waves[tx->wave].after.layer;
    tx->wave++;
    bl_tx_release(tx, BL_TX_ABORTED, reason, out);
}

/* ---- loss ------------------------------------------------------------------------------------ */

/* To all survivors: whom this rank follows now, and what it knows to be decided. */
static void say_resolve(const bl_transaction *tx, bl_tx_actions *out) {
    bl_tx_message *m = bl_tx_send(tx, out, BL_TX_ALL, BL_TX_RESOLVE, NULL, tx->decided);
    m->move = bl_tx_leader(tx);
    m->attempt = tx->begun ? 1 : 0;
    m->step = tx->commit_step;
}

static void lose_leader(bl_transaction *tx, int leader, bl_tx_actions *out) {
    char reason[BL_TX_REASON];
    tx->lost_leader = leader;
    say_resolve(tx, out);
    if (tx->state == BL_TX_AGREED || tx->state == BL_TX_COPYING ||
        tx->state == BL_TX_VERIFIED_HERE) {
        snprintf(reason, sizeof reason, "rank %d, which led the move, was lost", leader);
        bl_tx_release(tx, BL_TX_ABORTED, reason, out);
    }
}

void bl_tx_lost(bl_transaction *tx, int rank, uint64_t now, bl_tx_actions *out) {
    if (rank >= 0 && rank == tx->expected && !tx->expected_lost) {
        tx->expected_lost = true;
        if (!is_quorum(tx))
            bl_tx_halt(tx, "too few ranks are left to go on", out);
        return;
    }
    if (rank < 0 || rank >= tx->n_ranks || rank == tx->rank || tx->lost[rank])
        return;
    const int leader = bl_tx_leader(tx);
    tx->lost[rank] = true;
    if (!is_quorum(tx)) {
        bl_tx_halt(tx, "too few ranks are left to go on", out);
    } else if (tx->lost_leader >= 0 && tx->state == BL_TX_PROMISED) {
        bl_tx_halt(tx, "a second rank was lost before the survivors knew what was decided", out);
    } else if (rank == leader) {
        lose_leader(tx, leader, out);
    } else if (tx->lost_leader >= 0) {
        resolve(tx, out);
    } else {
        bl_tx_lead_lost(tx, rank, now, out);
    }
    if (tx->state != BL_TX_HALTED)
        bl_tx_orphan_retire(tx, out);
}

/* ---- coming back ----------------------------------------------------------------------------- */

void bl_tx_expect(bl_transaction *tx, int rank) {
    assert(rank < 0 || (tx->lost[rank] && rank != tx->rank));
    tx->expected = rank;
    tx->expected_lost = false;
    tx->n_joint = bl_tx_n_living(tx) + 1;
    tx->lowest_joint = rank >= 0 && rank < bl_tx_leader(tx) ? rank : bl_tx_leader(tx);
}

void bl_tx_readmit(bl_transaction *tx, uint64_t view, uint64_t term, bool late,
                   bl_tx_actions *out) {
    const int rank = tx->expected;
    assert(rank >= 0);
    out->n = 0;
    tx->lost[rank] = false;
    tx->expected = -1;
    tx->n_members = tx->n_joint;
    tx->lowest_member = tx->lowest_joint;
    tx->regrouped = false;
    tx->admitted_view = view;
    if (view > tx->view)
        tx->view = view;
    if (term > tx->term)
        tx->term = term;
    if (!late)
        return;
    /* Others may be waiting for this rank's word about a leader whose loss it has resolved without
     * them; nothing moves, so nothing is in doubt. */
    say_resolve(tx, out);
    if (tx->lost_leader >= 0 && tx->lost_leader < bl_tx_leader(tx))
        resolve(tx, out);
    else
        tx->lost_leader = -1;
}

void bl_tx_join(bl_transaction *tx, uint64_t view, uint64_t term, const bool *lost) {
    tx->view = tx->admitted_view = view;
    tx->term = term;
    memcpy(tx->lost, lost, sizeof *lost * (size_t)tx->n_ranks);
    tx->n_members = bl_tx_n_living(tx);
    tx->lowest_member = bl_tx_leader(tx);
}
