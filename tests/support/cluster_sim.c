#include "tests/support/cluster_sim_parts.h"

#include "core/mem.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void bl_sim_violate(sim *s, const char *format, ...) {
    if (s->failed)
        return;
    s->failed = true;
    char text[300];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    snprintf(s->report->violation, sizeof s->report->violation, "%s (event %llu, fault %d)", text,
             (unsigned long long)s->n_events, s->fault);
}

/* ---- actions --------------------------------------------------------------------------------- */

static void stream(sim *s, int rank, const bl_tx_action *action) {
    const sim_rank *r = &s->ranks[rank];
    const bl_wave *wave = &r->tx.schedule->waves[r->tx.wave];
    const int expert = wave->moves[action->move].expert;
    const int buffer = r->table[bl_sim_layer_index(wave->after.layer)][expert];
    if (buffer < 0) {
        bl_sim_violate(s, "rank %d is to send expert %d, which it does not hold", rank, expert);
        return;
    }
    s->report->resent += action->attempt > 0;
    if (action->attempt > 1)
        bl_sim_violate(s, "a bundle is sent a third time");
    if (s->fault == BL_SIM_SILENT_COPY && action->to == s->victim)
        return;
    bl_sim_send_bundle(s, (event){.kind = BUNDLE,
                                  .rank = action->to,
                                  .other = rank,
                                  .move = action->move,
                                  .attempt = action->attempt,
                                  .wave = r->tx.wave,
                                  .term = r->tx.term,
                                  .hash = bl_sim_hash(r->tag[buffer])});
}

static void act(sim *s, int rank, const bl_tx_action *action) {
    sim_rank *r = &s->ranks[rank];
    int buffer;
    switch (action->kind) {
    case BL_TX_ACT_SEND:
        for (int to = 0; to < s->n_ranks; to++) {
            if (action->to == to || (action->to == BL_TX_ALL && !r->tx.lost[to]))
                bl_sim_send(s, rank, to, &action->message);
        }
        break;
    case BL_TX_ACT_RESERVE:
        if (s->fault == BL_SIM_SHRINK && rank == s->victim && below(s, 3) == 0) {
            bl_sim_push(&s->queue, (event){.at = s->now + 1, .kind = SHORT, .rank = rank});
            break;
        }
        buffer = bl_sim_take(r, RESERVED);
        if (buffer < 0)
            bl_sim_violate(s, "rank %d has no spare left to reserve", rank);
        else
            r->reserved_move[buffer] = action->move;
        break;
    case BL_TX_ACT_STREAM:
        stream(s, rank, action);
        break;
    case BL_TX_ACT_RELEASE:
        bl_sim_free_buffers(r, RESERVED);
        break;
    case BL_TX_ACT_COMMIT:
        s->report->waves += rank == 0;
        bl_sim_commit(s, rank);
        break;
    case BL_TX_ACT_RETIRE:
        bl_sim_free_buffers(r, DISPLACED);
        break;
    case BL_TX_ACT_HOLD:
        s->report->holds++;
        break;
    case BL_TX_ACT_HALT:
        if (!r->stopped)
            bl_sim_push(&s->queue, (event){.at = s->now + MS, .kind = DIE, .rank = rank});
        s->report->halted += !r->stopped;
        r->stopped = true;
        break;
    }
}

static void trace(const sim *s, int rank, const bl_tx_event *e, const bl_tx_actions *out) {
    static const char *const events[] = {"apply",  "stop",   "message", "step",
                                         "bundle", "failed", "tick",    "lost"};
    static const char *const actions[] = {"send",   "reserve", "stream", "release",
                                          "commit", "retire",  "hold",   "halt"};
    if (s->report->trace == NULL || (e->kind == BL_TX_EV_TICK && out->n == 0))
        return;
    const bl_transaction *tx = &s->ranks[rank].tx;
    fprintf(s->report->trace, "%9.3f ms rank %d %s", (double)s->now * 1e-6, rank, events[e->kind]);
    if (e->message != NULL)
        fprintf(s->report->trace, " %s from %d, term %llu wave %d attempt %d step %llu",
                bl_tx_message_name(e->message->type), e->message->from,
                (unsigned long long)e->message->term, e->message->wave, e->message->attempt,
                (unsigned long long)e->message->step);
    if (e->kind == BL_TX_EV_STEP)
        fprintf(s->report->trace, " %llu", (unsigned long long)e->step);
    fprintf(s->report->trace, " -> %s wave %d:", bl_tx_state_name(tx), tx->wave);
    for (int i = 0; i < out->n; i++) {
        const bl_tx_action *a = &out->items[i];
        fprintf(s->report->trace, " %s", actions[a->kind]);
        if (a->kind == BL_TX_ACT_SEND)
            fprintf(s->report->trace, " %s to %d", bl_tx_message_name(a->message.type), a->to);
    }
    fputc('\n', s->report->trace);
}

static void handle(sim *s, int rank, const bl_tx_event *e, bl_tx_actions *out) {
    sim_rank *r = &s->ranks[rank];
    bl_tx_step(&r->tx, e, s->now, out);
    trace(s, rank, e, out);
    for (int i = 0; i < out->n; i++)
        act(s, rank, &out->items[i]);
}

/* ---- what happens ---------------------------------------------------------------------------- */

bool bl_sim_is_live(const sim *s, int rank) {
    return !s->ranks[rank].dead && !s->ranks[rank].stopped;
}

static int first_live(const sim *s) {
    for (int rank = 0; rank < s->n_ranks; rank++) {
        if (bl_sim_is_live(s, rank))
            return rank;
    }
    return -1;
}

static const bl_schedule *schedule_for(sim *s, int rank) {
    int spares[MAX_RANKS];
    for (int i = 0; i < s->n_ranks; i++)
        spares[i] = s->n_spares;
    bl_schedule *made = bl_calloc(1, sizeof *made);
    bl_error err = BL_ERROR_INIT;
    const bl_placement *map = &s->ranks[rank].map, *goal = &s->goals[s->next_plan - 1];
    if (made == NULL || bl_schedule_make(map, goal, spares, NULL, made, &err) < 0) {
        bl_sim_violate(s, "no schedule: %s", err.text);
        free(made);
        return NULL;
    }
    s->schedules[s->n_schedules++] = made;
    if (bl_schedule_check(made, map, spares, &err) < 0)
        bl_sim_violate(s, "broken schedule: %s", err.text);
    return made;
}

static void deliver(sim *s, const event *e, bl_tx_actions *out) {
    sim_rank *r = &s->ranks[e->rank];
    if (r->deaf)
        return;
    bl_tx_event in = {.kind = BL_TX_EV_MESSAGE, .message = &e->message};
    if (e->message.type == BL_TX_PREPARE && e->message.term > r->tx.term &&
        r->tx.state == BL_TX_STABLE) {
        in.schedule = r->tx.lead.schedule != NULL ? r->tx.lead.schedule : schedule_for(s, e->rank);
        in.reason = "no schedule";
    }
    handle(s, e->rank, &in, out);
}

/* Where nothing is wrong with ranks and links, a hold is what one message takes, and the step of a leader
 * that is one behind. */
static void check_hold(sim *s, int rank) {
    sim_rank *r = &s->ranks[rank];
    const uint64_t held = r->held_since != 0 ? s->now - r->held_since : 0;
    const bool well = s->fault <= BL_SIM_CORRUPT_ALWAYS;
    r->held_since = 0;
    if (held > s->report->longest_hold_ns)
        s->report->longest_hold_ns = held;
    if (well && held > 20 * MS + s->slow_ns + 4 * MS)
        bl_sim_violate(s, "rank %d held a step for %.1f ms", rank, (double)held * 1e-6);
}

/* A step ends when all ranks have taken part in it: begun it. */
static void finish_step(sim *s, const event *e) {
    sim_rank *r = &s->ranks[e->rank];
    bool all = r->running[0].step == e->step;
    for (int other = 0; other < s->n_ranks; other++)
        all = all && (other == e->rank || !bl_sim_is_live(s, other) || r->tx.lost[other] ||
                      r->seen[other] >= e->step);
    if (!all) {
        event again = *e;
        again.at = s->now + 100000;
        bl_sim_push(&s->queue, again);
        return;
    }
    bl_sim_check_reads(s, e->rank, &r->running[0]);
    r->running[0] = r->running[1];
    r->n_running--;
}

static void bundle(sim *s, const event *e, bl_tx_actions *out) {
    sim_rank *r = &s->ranks[e->rank];
    if (!bl_tx_wants(&r->tx, e->term, e->wave, e->move, e->attempt))
        return; /* of a wave that was taken back, or of an earlier attempt */
    int buffer = 0;
    while (buffer < r->n_buffers &&
           (r->use[buffer] != RESERVED || r->reserved_move[buffer] != e->move))
        buffer++;
    if (buffer == r->n_buffers) {
        bl_sim_violate(s, "rank %d wants a bundle for which it holds no spare", e->rank);
        return;
    }
    const bl_wave *wave = &r->tx.schedule->waves[e->wave];
    int tag = bl_sim_tag(bl_sim_layer_index(wave->after.layer), wave->moves[e->move].expert);
    if ((s->fault == BL_SIM_CORRUPT_ONCE && e->attempt == 0) ||
        (s->fault == BL_SIM_CORRUPT_ALWAYS && e->move == 0))
        tag = DAMAGED;
    r->tag[buffer] = tag;
    handle(s, e->rank,
           &(bl_tx_event){.kind = BL_TX_EV_BUNDLE,
                          .move = e->move,
                          .attempt = e->attempt,
                          .hash_source = e->hash,
                          .hash_here = bl_sim_hash(tag)},
           out);
}

/* Take what has arrived while the rank did not listen. */
static void listen(sim *s, int rank, bl_tx_actions *out) {
    sim_rank *r = &s->ranks[rank];
    for (size_t i = 0; i < r->n_inbox; i++) {
        const event e = r->inbox[i];
        if (e.kind == DELIVER)
            deliver(s, &e, out);
        else
            bundle(s, &e, out);
    }
    r->n_inbox = 0;
    handle(s, rank, &(bl_tx_event){.kind = BL_TX_EV_TICK}, out);
}

static void put_aside(sim *s, const event *e) {
    sim_rank *r = &s->ranks[e->rank];
    void *inbox = r->inbox;
    if (bl_grow(&inbox, &r->inbox_capacity, r->n_inbox + 1, sizeof *e, NULL) < 0)
        abort();
    r->inbox = inbox;
    r->inbox[r->n_inbox++] = *e;
}

/* In step with all that it knows to live, as far as their words reach it. */
static bool may_begin(const sim *s, int rank, uint64_t step) {
    const sim_rank *r = &s->ranks[rank];
    for (int other = 0; other < s->n_ranks; other++) {
        if (other != rank && bl_sim_is_live(s, other) && !r->tx.lost[other] &&
            r->seen[other] + 1 < step)
            return false;
    }
    return r->n_running < s->depth && step < MAX_STEPS;
}

static void begin_step(sim *s, int rank, bl_tx_actions *out) {
    sim_rank *r = &s->ranks[rank];
    const uint64_t step = r->begun + 1;
    bl_sim_push(&s->queue,
                (event){.at = s->now + 50000 + below(s, MS), .kind = STEP, .rank = rank});
    const bool may = may_begin(s, rank, step);
    if (may || !s->in_steps_deaf)
        listen(s, rank, out);
    if (!may)
        return;
    const uint64_t oldest = r->n_running > 0 ? r->running[0].step : step;
    handle(s, rank, &(bl_tx_event){.kind = BL_TX_EV_STEP, .step = step, .oldest = oldest}, out);
    for (int i = 0; i < out->n; i++) {
        if (out->items[i].kind == BL_TX_ACT_HOLD && r->held_since == 0)
            r->held_since = s->now;
        if (out->items[i].kind == BL_TX_ACT_HOLD || out->items[i].kind == BL_TX_ACT_HALT)
            return;
    }
    check_hold(s, rank);
    r->begun = step;
    running_step *running = &r->running[r->n_running++];
    running->step = step;
    memcpy(running->buffer, r->table, sizeof r->table);
    s->report->two_deep += r->n_running == 2;
    s->report->steps++;
    bl_sim_show_step(s, rank);
    bl_sim_check_epochs(s, rank);
    bl_sim_check_reads(s, rank, running);
    bl_sim_push(
        &s->queue,
        (event){.at = s->now + 100000 + below(s, MS), .kind = FINISH, .rank = rank, .step = step});
}

static void apply(sim *s, bl_tx_actions *out) {
    const int lead = first_live(s);
    if (lead < 0 || s->next_plan == s->n_plans || !bl_tx_can_apply(&s->ranks[lead].tx))
        return;
    s->next_plan++;
    const bl_schedule *schedule = schedule_for(s, lead);
    s->plan_open = schedule != NULL;
    s->opened_at = s->now;
    handle(s, lead, &(bl_tx_event){.kind = BL_TX_EV_APPLY, .schedule = schedule}, out);
    /* a second operator, who comes at once and again later, must be refused */
    bl_sim_push(&s->queue,
                (event){.at = s->now + below(s, 20 * MS), .kind = APPLY, .rank = lead, .other = 1});
}

static void second_operator(sim *s, int rank, bl_tx_actions *out) {
    sim_rank *r = &s->ranks[rank];
    if (bl_sim_is_live(s, rank) && !bl_tx_can_apply(&r->tx) && r->tx.lead.schedule != NULL)
        handle(s, rank, &(bl_tx_event){.kind = BL_TX_EV_APPLY, .schedule = r->tx.lead.schedule},
               out);
}

static void notice(sim *s, const event *e, bl_tx_actions *out) {
    if (s->ranks[e->rank].tx.lost[e->other] || e->other == e->rank)
        return;
    listen(s, e->rank, out); /* its step has failed; what arrived before comes first */
    handle(s, e->rank, &(bl_tx_event){.kind = BL_TX_EV_LOST, .rank = e->other}, out);
    bl_sim_break(s, e->rank, e->other);
}

static void happen(sim *s, const event *e, bl_tx_actions *out) {
    if (!bl_sim_is_live(s, e->rank) && e->kind < DIE && !(e->kind == APPLY && e->other == 0))
        return;
    if (bl_sim_put_off(s, e))
        return;
    if (s->in_steps_deaf && s->ranks[e->rank].held_since == 0 &&
        (e->kind == DELIVER || e->kind == BUNDLE)) {
        put_aside(s, e);
        return;
    }
    switch (e->kind) {
    case DELIVER:
        deliver(s, e, out);
        break;
    case SHORT: /* at once, before anything else can happen on the rank */
        handle(s, e->rank, &(bl_tx_event){.kind = BL_TX_EV_FAILED, .reason = "no spare is free"},
               out);
        break;
    case STEP:
        begin_step(s, e->rank, out);
        break;
    case FINISH:
        finish_step(s, e);
        break;
    case TICK:
        if (s->fault == BL_SIM_DEAF && e->other == 1)
            s->ranks[e->rank].deaf = true;
        handle(s, e->rank, &(bl_tx_event){.kind = BL_TX_EV_TICK}, out);
        break;
    case BUNDLE:
        bundle(s, e, out);
        break;
    case APPLY:
        if (e->other == 0)
            apply(s, out);
        else
            second_operator(s, e->rank, out);
        break;
    case STOP:
        s->stop_plan = s->next_plan;
        handle(s, e->rank, &(bl_tx_event){.kind = BL_TX_EV_STOP, .reason = "stopped"}, out);
        break;
    case DIE:
        bl_sim_die(s, e->rank);
        break;
    case NOTICE:
        notice(s, e, out);
        break;
    case BEGIN_FAULT:
        bl_sim_begin_fault(s);
        break;
    case END_FAULT:
        bl_sim_end_fault(s);
        break;
    }
}

/* ---- the end --------------------------------------------------------------------------------- */

static bool all_idle(const sim *s) {
    for (int rank = 0; rank < s->n_ranks; rank++) {
        const bl_transaction *tx = &s->ranks[rank].tx;
        if (bl_sim_is_live(s, rank) && !s->ranks[rank].deaf &&
            (!bl_tx_is_idle(tx) || tx->lost_leader >= 0))
            return false;
    }
    return true;
}

static bool reached(const sim *s, const bl_placement *map, const bl_placement *goal) {
    for (int l = 0; l < s->n_layers; l++) {
        if (bl_layer_moves(&map->layers[l], &goal->layers[l]) > 0 ||
            bl_layer_moves(&goal->layers[l], &map->layers[l]) > 0)
            return false;
    }
    return true;
}

static void check_outcome(sim *s, const bl_transaction *tx, const bl_placement *map, int n_moves) {
    const bool moved = tx->outcome == BL_TX_MOVED;
    switch (s->fault) {
    case BL_SIM_NO_FAULT:
    case BL_SIM_CORRUPT_ONCE:
        if (!moved)
            bl_sim_violate(s, "the plan was aborted without a fault: %s", tx->reason);
        break;
    case BL_SIM_CORRUPT_ALWAYS:
        if (moved && n_moves > 0)
            bl_sim_violate(s, "a damaged bundle was accepted");
        break;
    case BL_SIM_MISMATCH:
        if (moved)
            bl_sim_violate(s, "ranks with different placements agreed");
        break;
    case BL_SIM_STOP:
        if (!moved && s->stop_plan != s->next_plan)
            bl_sim_violate(s, "aborted though nobody asked for it: %s", tx->reason);
        break;
    default:
        break;
    }
    if (moved && !reached(s, map, &s->goals[s->next_plan - 1]))
        bl_sim_violate(s, "the plan is said to be in place and is not");
    if (!moved && tx->outcome == BL_TX_ABORTED && tx->reason[0] == '\0')
        bl_sim_violate(s, "aborted without a reason");
}

/* All ranks are idle: check that nothing leaked and that they agree. */
static void close_plan(sim *s) {
    const int lead = first_live(s);
    if (lead < 0)
        return;
    const bl_placement *map = &s->ranks[lead].map;
    s->plan_open = false;
    for (int rank = 0; rank < s->n_ranks; rank++) {
        const sim_rank *r = &s->ranks[rank];
        if (!bl_sim_is_live(s, rank))
            continue;
        int filled = 0;
        for (int l = 0; l < s->n_layers; l++) {
            for (int expert = 0; expert < s->n_experts; expert++)
                filled += r->table[l][expert] >= 0;
        }
        if (!r->deaf && bl_sim_count(r, FREE) != r->n_buffers - filled)
            bl_sim_violate(s, "rank %d: %d buffers leaked", rank,
                           r->n_buffers - filled - bl_sim_count(r, FREE));
        const bool comparable = !r->deaf && s->fault != BL_SIM_MISMATCH;
        for (int l = 0; l < s->n_layers && comparable; l++) {
            if (r->map.layers[l].epoch != map->layers[l].epoch ||
                bl_layer_moves(&r->map.layers[l], &map->layers[l]) > 0)
                bl_sim_violate(s, "ranks %d and %d end with different maps", rank, lead);
        }
    }
    const bl_transaction *tx = &s->ranks[lead].tx;
    const int n_moves = s->n_schedules > 0 ? s->schedules[s->n_schedules - 1]->n_moves : 0;
    check_outcome(s, tx, map, n_moves);
    s->report->moved += tx->outcome == BL_TX_MOVED;
    s->report->aborted += tx->outcome == BL_TX_ABORTED;
}

static int n_ranks_of(unsigned set) {
    int n = 0;
    for (; set != 0; set &= set - 1)
        n++;
    return n;
}

/* Of two parts the larger one goes on, of halves the one with rank 0, and never the other; unless a rank
 * of it was bound by a promise when it lost the leader and another at once. It halts rather than guess,
 * and may be missed by those that had not resolved either. */
static void check_parts(sim *s) {
    const unsigned all = (1u << s->n_ranks) - 1, other = all & ~s->side;
    const int n = n_ranks_of(s->side), m = n_ranks_of(other);
    const unsigned strong = n > m || (n == m && (s->side & 1) != 0) ? s->side : other;
    unsigned living = 0, doubts = 0;
    for (int rank = 0; rank < s->n_ranks; rank++) {
        const bl_transaction *tx = &s->ranks[rank].tx;
        living |= (unsigned)bl_sim_is_live(s, rank) << rank;
        doubts |= (unsigned)(tx->state == BL_TX_HALTED && tx->in_doubt) << rank;
    }
    if (bl_sim_is_short(s)) {
        s->report->healed++;
        if (living != all)
            bl_sim_violate(s, "a cut that healed in time cost ranks: 0x%x are left", living);
        return;
    }
    s->report->cut++;
    s->report->tied += n == m;
    const bool is_doubtful = (doubts & strong) != 0;
    s->report->in_doubt += is_doubtful;
    if ((living & ~strong) != 0 || (living != strong && !is_doubtful))
        bl_sim_violate(s, "of 0x%x, which should go on, 0x%x do", strong, living);
}

/* Faults that last are over, and everybody has noticed. */
static bool has_settled(const sim *s) {
    return s->now > s->fault_until + SILENCE + 60 * MS;
}

static void run_events(sim *s) {
    static bl_tx_actions out;
    uint64_t quiet_until = 0;
    while (!s->failed) {
        if (s->n_events++ > MAX_EVENTS || s->queue.n == 0) {
            bl_sim_violate(s, "it hangs: nothing comes to an end");
            return;
        }
        const event e = bl_sim_pop(&s->queue);
        s->now = e.at;
        happen(s, &e, &out);
        if (s->plan_open && s->now - s->opened_at > LONGEST_PLAN)
            bl_sim_violate(s, "it hangs: a plan is neither done nor given up after %.0f s",
                           (double)LONGEST_PLAN * 1e-9);
        if (s->plan_open && all_idle(s) && s->n_events > 1) {
            close_plan(s);
            quiet_until = s->now + 20 * MS;
            bl_sim_push(&s->queue, (event){.at = s->now + below(s, 10 * MS), .kind = APPLY});
        }
        if (first_live(s) < 0 || (!s->plan_open && s->next_plan == s->n_plans &&
                                  s->now > quiet_until && (s->fault_at == 0 || has_settled(s))))
            return; /* nobody is left when too much was lost: all halted rather than guess */
    }
}

bool bl_sim_run(uint64_t seed, bl_sim_fault fault, bl_sim_report *report) {
    sim *s = bl_calloc(1, sizeof *s);
    if (s == NULL)
        abort();
    s->fault = fault;
    s->report = report;
    bl_rng_seed(&s->rng, seed);
    bl_sim_set_up(s);
    bl_sim_plant_fault(s);
    run_events(s);
    if (s->fault == BL_SIM_CUT)
        check_parts(s);
    for (int rank = 0; rank < s->n_ranks; rank++) {
        report->rejected += (int)s->ranks[rank].tx.rejected;
        bl_placement_free(&s->ranks[rank].map);
        free(s->ranks[rank].inbox);
    }
    for (int plan = 0; plan < s->n_plans; plan++)
        bl_placement_free(&s->goals[plan]);
    for (int i = 0; i < s->n_schedules; i++) {
        bl_schedule_free(s->schedules[i]);
        free(s->schedules[i]);
    }
    const bool good = !s->failed;
    free(s->queue.items);
    free(s);
    return good;
}
