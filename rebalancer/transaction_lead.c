/* The leader's part: it counts answers and decides. */
#include "rebalancer/transaction_parts.h"

#include <stdio.h>
#include <string.h>

/* ---- answers --------------------------------------------------------------------------------- */

static void forget_answers(bl_tx_lead *lead) {
    memset(lead->heard, 0, sizeof lead->heard);
    lead->n_heard = 0;
}

/* Counts the answer of a rank once; true when it was the last one missing. */
static bool heard_all(bl_transaction *tx, int rank) {
    bl_tx_lead *lead = &tx->lead;
    if (lead->heard[rank])
        return false;
    lead->heard[rank] = true;
    lead->n_heard++;
    return lead->n_heard == bl_tx_n_living(tx);
}

static int first_silent(const bl_transaction *tx) {
    int rank = 0;
    while (rank < tx->n_ranks - 1 && (tx->lost[rank] || tx->lead.heard[rank]))
        rank++;
    return rank;
}

/* ---- phases ---------------------------------------------------------------------------------- */

static bl_tx_message *order(bl_transaction *tx, bl_tx_message_type type, bl_tx_actions *out) {
    bl_tx_message *m = bl_tx_send(tx, out, BL_TX_ALL, type, tx->lead.schedule, tx->lead.wave);
    m->term = tx->lead.term;
    return m;
}

static void enter(bl_tx_lead *lead, bl_tx_phase phase, uint64_t deadline) {
    lead->phase = phase;
    lead->deadline = deadline;
    forget_answers(lead);
}

/* Everybody goes back to stable. */
static void finish(bl_transaction *tx, bl_tx_message_type type, bl_tx_actions *out) {
    bl_tx_lead *lead = &tx->lead;
    bl_tx_set_reason(order(tx, type, out)->reason, tx->reason);
    lead->phase = BL_TX_IDLE;
    lead->schedule = NULL;
    memset(lead->arrived, 0, sizeof lead->arrived);
    tx->outcome = type == BL_TX_DONE ? BL_TX_MOVED : BL_TX_ABORTED;
}

/* The next wave, unless there is none or none is wanted. */
static void begin_wave(bl_transaction *tx, uint64_t now, bl_tx_actions *out) {
    bl_tx_lead *lead = &tx->lead;
    if (lead->abort_wanted || lead->wave == lead->schedule->n_waves) {
        finish(tx, lead->abort_wanted ? BL_TX_ABORT : BL_TX_DONE, out);
        return;
    }
    enter(lead, BL_TX_MOVING, now + tx->options.copy_ns);
    lead->attempt = 0;
    order(tx, BL_TX_BEGIN, out);
}

void bl_tx_lead_apply(bl_transaction *tx, const bl_schedule *schedule, uint64_t now,
                      bl_tx_actions *out) {
    bl_tx_lead *lead = &tx->lead;
    if (tx->regrouped ||
        bl_tx_n_living(tx) < tx->n_members) { /* ranks were lost: the rest is a view of its own */
        tx->view++;
        tx->n_members = bl_tx_n_living(tx);
        tx->lowest_member = tx->rank;
        tx->regrouped = false;
    }
    /* a move that was stopped at once may not have reached this rank's own part yet */
    const uint64_t last = lead->term > tx->term ? lead->term : tx->term;
    *lead = (bl_tx_lead){.term = last + 1, .schedule = schedule};
    enter(lead, BL_TX_AGREEING, now + tx->options.agree_ns);
    tx->outcome = BL_TX_RUNNING;
    bl_tx_set_reason(tx->reason, NULL);
    order(tx, BL_TX_PREPARE, out);
}

static void propose(bl_transaction *tx, uint64_t now, bl_tx_actions *out) {
    bl_tx_lead *lead = &tx->lead;
    if (lead->attempt >= tx->options.max_proposals) {
        bl_tx_lead_abort(tx, "the ranks did not agree on a step to commit at", out);
        return;
    }
    enter(lead, BL_TX_PROMISING, now + tx->options.commit_ns);
    if (tx->step > lead->top_step)
        lead->top_step = tx->step;
    lead->commit_step = lead->top_step + ((uint64_t)tx->options.margin_steps << lead->attempt);
    lead->attempt++;
    bl_tx_message *m = order(tx, BL_TX_PROPOSE, out);
    m->attempt = lead->attempt;
    m->step = lead->commit_step;
}

static void decide(bl_transaction *tx, uint64_t now, bl_tx_actions *out) {
    bl_tx_lead *lead = &tx->lead;
    enter(lead, BL_TX_COMMITTING, now + tx->options.commit_ns);
    bl_tx_message *m = order(tx, BL_TX_COMMIT, out);
    m->attempt = lead->attempt;
    m->step = lead->commit_step;
}

static void retire(bl_transaction *tx, uint64_t now, bl_tx_actions *out) {
    enter(&tx->lead, BL_TX_RETIRING, now + tx->options.commit_ns);
    order(tx, BL_TX_RETIRE, out);
}

static void end_wave(bl_transaction *tx, uint64_t now, bl_tx_actions *out) {
    bl_tx_lead *lead = &tx->lead;
    lead->moves_done += lead->schedule->waves[lead->wave].n_moves;
    lead->waves_done = ++lead->wave;
    memset(lead->arrived, 0, sizeof lead->arrived);
    begin_wave(tx, now, out);
}

void bl_tx_lead_abort(bl_transaction *tx, const char *reason, bl_tx_actions *out) {
    bl_tx_lead *lead = &tx->lead;
    if (lead->phase == BL_TX_IDLE || lead->abort_wanted)
        return;
    bl_tx_set_reason(tx->reason, reason);
    if (lead->phase == BL_TX_COMMITTING || lead->phase == BL_TX_RETIRING)
        lead->abort_wanted = true;
    else
        finish(tx, BL_TX_ABORT, out);
}

/* ---- messages -------------------------------------------------------------------------------- */

static void on_agree(bl_transaction *tx, const bl_tx_message *m, uint64_t now, bl_tx_actions *out) {
    char reason[BL_TX_REASON];
    if (tx->lead.phase != BL_TX_AGREEING)
        return;
    if (m->hash != tx->lead.schedule->hash) {
        snprintf(reason, sizeof reason,
                 "rank %d computes another schedule: its placement or epochs differ", m->from);
        bl_tx_lead_abort(tx, reason, out);
    } else if (heard_all(tx, m->from)) {
        begin_wave(tx, now, out);
    }
}

static void on_failed(bl_transaction *tx, const bl_tx_message *m, bl_tx_actions *out) {
    char reason[BL_TX_REASON];
    snprintf(reason, sizeof reason, "rank %d: %.*s", m->from, BL_TX_REASON - 24, m->reason);
    bl_tx_lead_abort(tx, reason, out);
}

static void on_verified(bl_transaction *tx, const bl_tx_message *m, uint64_t now,
                        bl_tx_actions *out) {
    if (tx->lead.phase == BL_TX_MOVING && heard_all(tx, m->from))
        propose(tx, now, out);
}

static void on_promise(bl_transaction *tx, const bl_tx_message *m, uint64_t now,
                       bl_tx_actions *out) {
    bl_tx_lead *lead = &tx->lead;
    if (lead->phase != BL_TX_PROMISING || m->attempt != lead->attempt)
        return;
    if (m->type == BL_TX_LATE)
        propose(tx, now, out);
    else if (heard_all(tx, m->from))
        decide(tx, now, out);
}

/* Bundles of the wave verified on that rank so far; the count never falls. */
static void on_arrived(bl_transaction *tx, const bl_tx_message *m, uint64_t now) {
    bl_tx_lead *lead = &tx->lead;
    if (lead->phase != BL_TX_MOVING || m->move <= lead->arrived[m->from] ||
        m->move > BL_WAVE_MAX_ARRIVALS)
        return;
    lead->arrived[m->from] = (uint8_t)m->move;
    lead->deadline = now + tx->options.copy_ns;
}

void bl_tx_lead_message(bl_transaction *tx, const bl_tx_message *m, uint64_t now,
                        bl_tx_actions *out) {
    bl_tx_lead *lead = &tx->lead;
    if (lead->phase == BL_TX_IDLE || m->term != lead->term) {
        tx->rejected++;
        return;
    }
    if (m->type == BL_TX_FAILED) {
        on_failed(tx, m, out);
        return;
    }
    if (m->view != tx->view || m->wave != lead->wave ||
        m->epoch != bl_tx_epoch(lead->schedule, lead->wave)) {
        tx->rejected++;
        return;
    }
    if (m->step > lead->top_step)
        lead->top_step = m->step;
    if (m->type == BL_TX_AGREE)
        on_agree(tx, m, now, out);
    else if (m->type == BL_TX_ARRIVED)
        on_arrived(tx, m, now);
    else if (m->type == BL_TX_VERIFIED)
        on_verified(tx, m, now, out);
    else if (m->type == BL_TX_PROMISE || m->type == BL_TX_LATE)
        on_promise(tx, m, now, out);
    else if (m->type == BL_TX_BEGUN && lead->phase == BL_TX_COMMITTING && heard_all(tx, m->from))
        retire(tx, now, out);
    else if (m->type == BL_TX_RETIRED && lead->phase == BL_TX_RETIRING && heard_all(tx, m->from))
        end_wave(tx, now, out);
}

/* ---- steps, time and loss --------------------------------------------------------------------- */

/* A promise that is missing now may be that of a rank which has not heard of the proposal and can answer
 * only when others have gone beyond its step: it is not waited for. */
void bl_tx_lead_step(bl_transaction *tx, uint64_t step, uint64_t now, bl_tx_actions *out) {
    bl_tx_lead *lead = &tx->lead;
    if (lead->phase != BL_TX_PROMISING ||
        step + (uint64_t)tx->options.decide_steps < lead->commit_step)
        return;
    if (step > lead->top_step)
        lead->top_step = step;
    propose(tx, now, out);
}

static int arrived_in_wave(const bl_transaction *tx) {
    int n = 0;
    for (int rank = 0; rank < tx->n_ranks; rank++)
        n += tx->lead.arrived[rank];
    return n;
}

void bl_tx_lead_tick(bl_transaction *tx, uint64_t now, bl_tx_actions *out) {
    static const char *const missed[] = {
        [BL_TX_AGREEING] = "did not answer the plan",
        [BL_TX_MOVING] = "did not verify its experts",
        [BL_TX_PROMISING] = "did not promise to commit",
        [BL_TX_COMMITTING] = "did not begin the commit step",
        [BL_TX_RETIRING] = "did not retire",
    };
    bl_tx_lead *lead = &tx->lead;
    char reason[BL_TX_REASON];
    if (lead->phase == BL_TX_IDLE || now < lead->deadline)
        return;
    snprintf(reason, sizeof reason, "rank %d %s before the deadline", first_silent(tx),
             missed[lead->phase]);
    if (lead->phase == BL_TX_MOVING)
        snprintf(reason + strlen(reason), sizeof reason - strlen(reason), ": %d of %d verified",
                 arrived_in_wave(tx), lead->schedule->waves[lead->wave].n_moves);
    lead->deadline = UINT64_MAX;
    bl_tx_lead_abort(tx, reason, out);
    if (lead->phase == BL_TX_RETIRING) /* all serve the new map: nothing is left to wait for */
        end_wave(tx, now, out);
}

void bl_tx_lead_lost(bl_transaction *tx, int rank, uint64_t now, bl_tx_actions *out) {
    bl_tx_lead *lead = &tx->lead;
    char reason[BL_TX_REASON];
    if (lead->phase == BL_TX_IDLE)
        return;
    snprintf(reason, sizeof reason, "rank %d was lost", rank);
    bl_tx_lead_abort(tx, reason, out);
    if (lead->heard[rank]) {
        lead->heard[rank] = false;
        lead->n_heard--;
    }
    if (lead->n_heard < bl_tx_n_living(tx))
        return;
    if (lead->phase == BL_TX_COMMITTING)
        retire(tx, now, out);
    else if (lead->phase == BL_TX_RETIRING)
        end_wave(tx, now, out);
}
