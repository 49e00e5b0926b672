/* When a rank is lost: membership, and what the survivors do without their leader. */
#include "rebalancer/transaction_parts.h"

#include <stdio.h>
#include <string.h>

static bool is_quorum(const bl_transaction *tx) {
    const int living = bl_tx_n_living(tx);
    return 2 * living > tx->n_members ||
           (2 * living == tx->n_members && !tx->lost[tx->lowest_member]);
}

/* ---- the survivors' words -------------------------------------------------------------------- */

/* Has `rank` spoken since it follows the same leader as this rank does? */
static bool has_spoken(const bl_transaction *tx, int rank) {
    return tx->words[rank].follows >= bl_tx_leader(tx);
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
    if (m->move <= word->follows || m->move >= tx->n_ranks) {
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

static void lose_leader(bl_transaction *tx, int leader, bl_tx_actions *out) {
    char reason[BL_TX_REASON];
    tx->lost_leader = leader;
    bl_tx_message *m = bl_tx_send(tx, out, BL_TX_ALL, BL_TX_RESOLVE, NULL, tx->decided);
    m->move = bl_tx_leader(tx);
    m->attempt = tx->begun ? 1 : 0;
    m->step = tx->commit_step;
    if (tx->state == BL_TX_AGREED || tx->state == BL_TX_COPYING ||
        tx->state == BL_TX_VERIFIED_HERE) {
        snprintf(reason, sizeof reason, "rank %d, which led the move, was lost", leader);
        bl_tx_release(tx, BL_TX_ABORTED, reason, out);
    }
}

void bl_tx_lost(bl_transaction *tx, int rank, uint64_t now, bl_tx_actions *out) {
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
