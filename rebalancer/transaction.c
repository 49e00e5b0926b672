#include "rebalancer/transaction_parts.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

const char *bl_tx_message_name(bl_tx_message_type type) {
    static const char *const names[] = {
#define NAME(name) #name,
        BL_TX_MESSAGES(NAME)
#undef NAME
    };
    return type >= 0 && type < BL_TX_N_MESSAGES ? names[type] : "?";
}

const char *bl_tx_state_name(const bl_transaction *tx) {
    static const char *const names[] = {"stable",   "agreed",   "copying",   "verified",
                                        "verified", "verified", "committed", "halted"};
    return names[tx->state];
}

void bl_tx_init(bl_transaction *tx, int rank, int n_ranks, const bl_tx_options *options) {
    assert(n_ranks >= 1 && n_ranks <= BL_TX_MAX_RANKS && rank >= 0 && rank < n_ranks);
    *tx = (bl_transaction){.rank = rank,
                           .n_ranks = n_ranks,
                           .options = *options,
                           .view = 1,
                           .n_members = n_ranks,
                           .expected = -1,
                           .lost_leader = -1};
}

int bl_tx_leader(const bl_transaction *tx) {
    int rank = 0;
    while (tx->lost[rank])
        rank++;
    return rank;
}

int bl_tx_n_living(const bl_transaction *tx) {
    int n = 0;
    for (int rank = 0; rank < tx->n_ranks; rank++)
        n += !tx->lost[rank];
    return n;
}

bool bl_tx_is_idle(const bl_transaction *tx) {
    return (tx->state == BL_TX_STABLE || tx->state == BL_TX_HALTED) && tx->lead.phase == BL_TX_IDLE;
}

bool bl_tx_can_apply(const bl_transaction *tx) {
    return bl_tx_leader(tx) == tx->rank && tx->state == BL_TX_STABLE &&
           tx->lead.phase == BL_TX_IDLE && tx->lost_leader < 0;
}

int bl_tx_moves_done(const bl_transaction *tx) {
    int n = tx->lead.moves_done;
    for (int rank = 0; rank < tx->n_ranks; rank++)
        n += tx->lead.arrived[rank];
    return n;
}

/* ---- small parts ----------------------------------------------------------------------------- */

void bl_tx_set_reason(char *to, const char *reason) {
    snprintf(to, BL_TX_REASON, "%s", reason != NULL ? reason : "");
}

bl_tx_action *bl_tx_act(bl_tx_actions *out, bl_tx_action_kind kind) {
    assert(out->n < BL_TX_MAX_ACTIONS);
    bl_tx_action *action = &out->items[out->n++];
    *action = (bl_tx_action){.kind = kind};
    return action;
}

uint64_t bl_tx_epoch(const bl_schedule *schedule, int wave) {
    const bool known = schedule != NULL && wave < schedule->n_waves;
    return known ? schedule->waves[wave].after.epoch - 1 : 0;
}

bl_tx_message *bl_tx_send(const bl_transaction *tx, bl_tx_actions *out, int to,
                          bl_tx_message_type type, const bl_schedule *schedule, int wave) {
    bl_tx_action *action = bl_tx_act(out, BL_TX_ACT_SEND);
    action->to = to;
    action->message = (bl_tx_message){.type = type,
                                      .from = tx->rank,
                                      .view = tx->view,
                                      .term = tx->term,
                                      .wave = wave,
                                      .epoch = bl_tx_epoch(schedule, wave)};
    return &action->message;
}

/* To the leader, about the wave in hand. */
static bl_tx_message *tell(const bl_transaction *tx, bl_tx_actions *out, bl_tx_message_type type) {
    return bl_tx_send(tx, out, bl_tx_leader(tx), type, tx->schedule, tx->wave);
}

void bl_tx_release(bl_transaction *tx, bl_tx_outcome outcome, const char *reason,
                   bl_tx_actions *out) {
    bl_tx_act(out, BL_TX_ACT_RELEASE);
    tx->state = BL_TX_STABLE;
    tx->schedule = NULL;
    tx->hold_ns = 0;
    tx->orphaned = false;
    tx->outcome = outcome;
    bl_tx_set_reason(tx->reason, reason);
}

void bl_tx_halt(bl_transaction *tx, const char *reason, bl_tx_actions *out) {
    tx->in_doubt = tx->state > BL_TX_VERIFIED_HERE;
    tx->state = BL_TX_HALTED;
    tx->lead.phase = BL_TX_IDLE;
    tx->outcome = BL_TX_ABORTED;
    bl_tx_set_reason(tx->reason, reason);
    bl_tx_act(out, BL_TX_ACT_HALT);
}

/* This rank gives up by itself, which it may until it has promised. */
static void give_up(bl_transaction *tx, const char *reason, bl_tx_actions *out) {
    bl_tx_set_reason(tell(tx, out, BL_TX_FAILED)->reason, reason);
    bl_tx_release(tx, BL_TX_ABORTED, reason, out);
}

static bool may_give_up(const bl_transaction *tx) {
    return tx->state == BL_TX_AGREED || tx->state == BL_TX_COPYING ||
           tx->state == BL_TX_VERIFIED_HERE;
}

static const bl_move *move_at(const bl_transaction *tx, int move) {
    const bl_wave *wave = &tx->schedule->waves[tx->wave];
    return move >= 0 && move < wave->n_moves ? &wave->moves[move] : NULL;
}

/* ---- agree and copy -------------------------------------------------------------------------- */

static void on_prepare(bl_transaction *tx, const bl_tx_event *event, uint64_t now,
                       bl_tx_actions *out) {
    const bl_tx_message *m = event->message;
    if (m->from != bl_tx_leader(tx) || m->term <= tx->term || m->view < tx->view) {
        tx->rejected++;
        return;
    }
    if (tx->state != BL_TX_STABLE || tx->lost_leader >= 0) {
        bl_tx_message *answer = bl_tx_send(tx, out, m->from, BL_TX_FAILED, NULL, 0);
        answer->term = m->term;
        bl_tx_set_reason(answer->reason, "it is busy with another move");
        return;
    }
    if (m->view > tx->view) {
        tx->view = m->view;
        tx->n_members = bl_tx_n_living(tx);
        tx->lowest_member = bl_tx_leader(tx);
        tx->regrouped = false;
    }
    tx->term = m->term;
    tx->wave = tx->decided = tx->attempt = 0;
    tx->begun = false;
    tx->heard_ns = now;
    if (event->schedule == NULL) {
        bl_tx_set_reason(tell(tx, out, BL_TX_FAILED)->reason, event->reason);
        return;
    }
    tx->schedule = event->schedule;
    tx->state = BL_TX_AGREED;
    tx->outcome = BL_TX_RUNNING;
    bl_tx_set_reason(tx->reason, NULL);
    tell(tx, out, BL_TX_AGREE)->hash = event->schedule->hash;
}

static void fetch(const bl_transaction *tx, const bl_tx_arrival *arrival, bl_tx_actions *out) {
    const int source = move_at(tx, arrival->move)->source;
    bl_tx_message *m = bl_tx_send(tx, out, source, BL_TX_FETCH, tx->schedule, tx->wave);
    m->move = arrival->move;
    m->attempt = arrival->attempt;
}

static int n_verified(const bl_transaction *tx) {
    int n = 0;
    for (int i = 0; i < tx->n_arrivals; i++)
        n += tx->arrivals[i].verified;
    return n;
}

static void say_if_verified(bl_transaction *tx, bl_tx_actions *out) {
    if (n_verified(tx) < tx->n_arrivals)
        return;
    tx->state = BL_TX_VERIFIED_HERE;
    tell(tx, out, BL_TX_VERIFIED)->step = tx->step;
}

static void on_begin(bl_transaction *tx, bl_tx_actions *out) {
    if (tx->state != BL_TX_AGREED || tx->wave >= tx->schedule->n_waves)
        return;
    const bl_wave *wave = &tx->schedule->waves[tx->wave];
    tx->state = BL_TX_COPYING;
    tx->attempt = 0;
    tx->n_arrivals = 0;
    for (int move = 0; move < wave->n_moves; move++) {
        if (wave->moves[move].destination != tx->rank)
            continue;
        assert(tx->n_arrivals < BL_WAVE_MAX_ARRIVALS);
        bl_tx_arrival *arrival = &tx->arrivals[tx->n_arrivals++];
        *arrival = (bl_tx_arrival){.move = move};
        bl_tx_act(out, BL_TX_ACT_RESERVE)->move = move;
        fetch(tx, arrival, out);
    }
    say_if_verified(tx, out);
}

/* The asking rank may have begun the wave before this one has: what it asks for is in the placement
 * in force, which holds still until all have verified. */
static void on_fetch(bl_transaction *tx, const bl_tx_message *m, bl_tx_actions *out) {
    const bl_move *move = may_give_up(tx) ? move_at(tx, m->move) : NULL;
    if (move == NULL || move->source != tx->rank || move->destination != m->from) {
        tx->rejected++;
        return;
    }
    bl_tx_action *stream = bl_tx_act(out, BL_TX_ACT_STREAM);
    stream->to = m->from;
    stream->move = m->move;
    stream->attempt = m->attempt;
}

static int find_arrival(const bl_transaction *tx, int move) {
    int i = 0;
    while (i < tx->n_arrivals && tx->arrivals[i].move != move)
        i++;
    return i;
}

bool bl_tx_wants(const bl_transaction *tx, uint64_t term, int wave, int move, int attempt) {
    const int i = find_arrival(tx, move);
    return tx->state == BL_TX_COPYING && tx->term == term && tx->wave == wave &&
           i < tx->n_arrivals && !tx->arrivals[i].verified && tx->arrivals[i].attempt == attempt;
}

/* A bundle that does not match its source is fetched once more; then this rank gives up. */
static void on_bundle(bl_transaction *tx, const bl_tx_event *event, bl_tx_actions *out) {
    if (!bl_tx_wants(tx, tx->term, tx->wave, event->move, event->attempt))
        return;
    bl_tx_arrival *arrival = &tx->arrivals[find_arrival(tx, event->move)];
    if (event->hash_source == event->hash_here) {
        arrival->verified = true;
        tell(tx, out, BL_TX_ARRIVED)->move = n_verified(tx);
        say_if_verified(tx, out);
    } else if (arrival->attempt == 0) {
        arrival->attempt = 1;
        fetch(tx, arrival, out);
    } else {
        const bl_move *move = move_at(tx, arrival->move);
        char reason[BL_TX_REASON];
        snprintf(reason, sizeof reason,
                 "layer %d: expert %d arrived damaged twice on its way from rank %d to rank %d",
                 tx->schedule->waves[tx->wave].after.layer, move->expert, move->source, tx->rank);
        give_up(tx, reason, out);
    }
}

/* ---- commit and retire ----------------------------------------------------------------------- */

/* A later proposal replaces an earlier one: the leader decides on its latest only. */
static void on_propose(bl_transaction *tx, const bl_tx_message *m, bl_tx_actions *out) {
    if ((tx->state != BL_TX_VERIFIED_HERE && tx->state != BL_TX_PROMISED) ||
        m->attempt <= tx->attempt)
        return;
    tx->attempt = m->attempt;
    tx->hold_ns = 0;
    const bool in_time = tx->step < m->step;
    tx->state = in_time ? BL_TX_PROMISED : BL_TX_VERIFIED_HERE;
    tx->commit_step = m->step;
    bl_tx_message *answer = tell(tx, out, in_time ? BL_TX_PROMISE : BL_TX_LATE);
    answer->attempt = m->attempt;
    answer->step = tx->step;
}

static void on_commit(bl_transaction *tx, const bl_tx_message *m) {
    if (tx->state != BL_TX_PROMISED || m->attempt != tx->attempt || m->step != tx->commit_step)
        return;
    tx->state = BL_TX_DECIDED;
    tx->decided = tx->wave + 1;
    tx->begun = false;
    tx->hold_ns = 0;
}

static void say_if_begun(bl_transaction *tx, bl_tx_actions *out) {
    if (tx->state != BL_TX_COMMITTED || tx->begun || tx->oldest < tx->commit_step)
        return;
    tx->begun = true;
    if (tx->orphaned || tx->lost_leader >= 0)
        bl_tx_send(tx, out, BL_TX_ALL, BL_TX_BEGUN, tx->schedule, tx->wave);
    else
        tell(tx, out, BL_TX_BEGUN);
}

static void on_step(bl_transaction *tx, const bl_tx_event *event, uint64_t now,
                    bl_tx_actions *out) {
    if (tx->state == BL_TX_HALTED) {
        bl_tx_act(out, BL_TX_ACT_HALT);
        return;
    }
    bl_tx_lead_step(tx, event->step, now, out);
    if (tx->state == BL_TX_PROMISED && event->step >= tx->commit_step) {
        bl_tx_act(out, BL_TX_ACT_HOLD);
        if (tx->hold_ns == 0)
            tx->hold_ns = now;
        return;
    }
    if (tx->state == BL_TX_DECIDED && event->step >= tx->commit_step) {
        tx->state = BL_TX_COMMITTED;
        bl_tx_act(out, BL_TX_ACT_COMMIT);
    }
    tx->step = event->step;
    tx->oldest = event->oldest;
    say_if_begun(tx, out);
    if (tx->orphaned)
        bl_tx_orphan_retire(tx, out);
}

static void on_retire(bl_transaction *tx, bl_tx_actions *out) {
    if (tx->state != BL_TX_COMMITTED || !tx->begun)
        return;
    bl_tx_act(out, BL_TX_ACT_RETIRE)->move = tx->schedule->waves[tx->wave].after.layer;
    tell(tx, out, BL_TX_RETIRED);
    tx->wave++;
    tx->state = BL_TX_AGREED;
}

static void on_abort(bl_transaction *tx, const bl_tx_message *m, bl_tx_actions *out) {
    if (may_give_up(tx) || tx->state == BL_TX_PROMISED)
        bl_tx_release(tx, BL_TX_ABORTED, m->reason, out);
}

/* ---- events ---------------------------------------------------------------------------------- */

static void from_leader(bl_transaction *tx, const bl_tx_message *m, uint64_t now,
                        bl_tx_actions *out) {
    if (m->from != bl_tx_leader(tx) || m->view != tx->view || m->term != tx->term ||
        tx->state == BL_TX_STABLE) {
        tx->rejected++;
        return;
    }
    tx->heard_ns = now;
    if (m->type == BL_TX_ABORT) {
        on_abort(tx, m, out);
    } else if (m->wave != tx->wave || m->epoch != bl_tx_epoch(tx->schedule, tx->wave)) {
        tx->rejected++;
    } else if (m->type == BL_TX_BEGIN) {
        on_begin(tx, out);
    } else if (m->type == BL_TX_PROPOSE) {
        on_propose(tx, m, out);
    } else if (m->type == BL_TX_COMMIT) {
        on_commit(tx, m);
    } else if (m->type == BL_TX_RETIRE) {
        on_retire(tx, out);
    } else if (tx->state == BL_TX_AGREED) { /* DONE */
        bl_tx_release(tx, BL_TX_MOVED, NULL, out);
    }
}

static void on_message(bl_transaction *tx, const bl_tx_event *event, uint64_t now,
                       bl_tx_actions *out) {
    const bl_tx_message *m = event->message;
    const bool is_known = m->from >= 0 && m->from < tx->n_ranks;
    if (!is_known || (tx->lost[m->from] && (m->from != tx->expected || m->type != BL_TX_RESOLVE))) {
        tx->rejected++;
        return;
    }
    switch (m->type) {
    case BL_TX_PREPARE:
        on_prepare(tx, event, now, out);
        break;
    case BL_TX_BEGIN:
    case BL_TX_PROPOSE:
    case BL_TX_COMMIT:
    case BL_TX_RETIRE:
    case BL_TX_DONE:
    case BL_TX_ABORT:
        from_leader(tx, m, now, out);
        break;
    case BL_TX_FETCH:
        if (m->view == tx->view && m->term == tx->term && tx->schedule != NULL &&
            m->wave == tx->wave && tx->wave < tx->schedule->n_waves &&
            m->epoch == bl_tx_epoch(tx->schedule, tx->wave))
            on_fetch(tx, m, out);
        else
            tx->rejected++;
        break;
    case BL_TX_RESOLVE:
        bl_tx_resolve_message(tx, m, out);
        break;
    case BL_TX_BEGUN:
        bl_tx_orphan_begun(tx, m, out);
        bl_tx_lead_message(tx, m, now, out);
        break;
    default:
        bl_tx_lead_message(tx, m, now, out);
    }
}

static void on_failed(bl_transaction *tx, const char *reason, bl_tx_actions *out) {
    if (may_give_up(tx))
        give_up(tx, reason, out);
    else if (tx->state != BL_TX_STABLE)
        bl_tx_halt(tx, reason, out); /* bound by a promise that it cannot keep */
}

static void on_tick(bl_transaction *tx, uint64_t now, bl_tx_actions *out) {
    bl_tx_lead_tick(tx, now, out);
    if (tx->hold_ns != 0 && now - tx->hold_ns > tx->options.hold_ns)
        bl_tx_halt(tx, "no decision came while this rank held its step; it cannot serve on", out);
    else if (may_give_up(tx) && tx->lost_leader < 0 && now - tx->heard_ns > tx->options.orphan_ns)
        give_up(tx, "the leader fell silent", out);
}

void bl_tx_step(bl_transaction *tx, const bl_tx_event *event, uint64_t now, bl_tx_actions *out) {
    out->n = 0;
    if (tx->state == BL_TX_HALTED && event->kind != BL_TX_EV_STEP)
        return;
    switch (event->kind) {
    case BL_TX_EV_APPLY:
        if (bl_tx_can_apply(tx))
            bl_tx_lead_apply(tx, event->schedule, now, out);
        break;
    case BL_TX_EV_STOP:
        bl_tx_lead_abort(tx, event->reason, out);
        break;
    case BL_TX_EV_MESSAGE:
        on_message(tx, event, now, out);
        break;
    case BL_TX_EV_STEP:
        on_step(tx, event, now, out);
        break;
    case BL_TX_EV_BUNDLE:
        on_bundle(tx, event, out);
        break;
    case BL_TX_EV_FAILED:
        on_failed(tx, event->reason, out);
        break;
    case BL_TX_EV_TICK:
        on_tick(tx, now, out);
        break;
    case BL_TX_EV_LOST:
        bl_tx_lost(tx, event->rank, now, out);
        break;
    }
}
