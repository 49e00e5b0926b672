#include "tests/support/cluster_sim.h"

#include "core/mem.h"
#include "core/rng.h"
#include "tests/support/cluster_sim_queue.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    MAX_RANKS = 6,
    MAX_LAYERS = 3,
    MAX_EXPERTS = 12,
    MAX_SLOTS = 6, /* of one rank in one layer */
    MAX_SPARES = 3,
    MAX_BUFFERS = MAX_LAYERS * MAX_SLOTS + MAX_SPARES,
    MAX_DEPTH = 2,
    MAX_PLANS = 3,
    MAX_STEPS = 1 << 15,
    MAX_EVENTS = 400000
};

static const uint64_t MS = 1000000;
static const int GARBAGE = -1, DAMAGED = -2;

/* ---- events ---------------------------------------------------------------------------------- */

typedef enum use { FREE, RESERVED, IN_SLOT, DISPLACED } use;

typedef struct running_step {
    uint64_t step;
    int buffer[MAX_LAYERS][MAX_EXPERTS]; /* -1: not held */
} running_step;

typedef struct sim_rank {
    bl_transaction tx;
    bool dead, deaf, stopped;
    bl_placement map;
    int table[MAX_LAYERS][MAX_EXPERTS]; /* expert -> buffer, -1: not held */
    int tag[MAX_BUFFERS];
    use use[MAX_BUFFERS];
    int reserved_move[MAX_BUFFERS];
    int n_buffers;
    uint64_t begun;
    uint64_t held_since; /* 0: it does not hold */
    int n_running;
    running_step running[MAX_DEPTH];
} sim_rank;

typedef struct sim {
    bl_rng rng;
    bl_sim_fault fault;
    bl_sim_report *report;
    int n_ranks, n_layers, n_experts, n_spares, depth, n_plans, next_plan;
    int victim;       /* rank or move that the fault is about */
    int stop_plan;    /* plan that the operator stopped, from 1 */
    uint64_t slow_ns; /* longest usual delay of a message */
    uint64_t now, n_events;
    bl_sim_queue queue;
    uint64_t last_delivery[MAX_RANKS][MAX_RANKS];
    sim_rank ranks[MAX_RANKS];
    bl_placement goals[MAX_PLANS];
    bl_schedule *schedules[MAX_PLANS * (MAX_RANKS + 1) * 4];
    int n_schedules;
    bool plan_open;
    uint64_t epochs[MAX_STEPS][MAX_LAYERS]; /* of the first living rank to begin it */
    bool failed;
} sim;

static void violate(sim *s, const char *format, ...) BL_PRINTF(2, 3);
static void violate(sim *s, const char *format, ...) {
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

static uint64_t below(sim *s, uint64_t n) {
    return bl_rng_below(&s->rng, (uint32_t)n);
}

static void push(sim *s, event e) {
    bl_sim_push(&s->queue, e);
}

/* ---- stores ---------------------------------------------------------------------------------- */

static int tag_of(int layer, int expert) {
    return (layer + 1) * 1000 + expert;
}

static uint64_t hash_of(int tag) {
    uint64_t state = (uint64_t)tag;
    return bl_splitmix64(&state);
}

static int take(sim_rank *r, use as) {
    for (int buffer = 0; buffer < r->n_buffers; buffer++) {
        if (r->use[buffer] == FREE) {
            r->use[buffer] = as;
            return buffer;
        }
    }
    return -1;
}

static int count(const sim_rank *r, use what) {
    int n = 0;
    for (int buffer = 0; buffer < r->n_buffers; buffer++)
        n += r->use[buffer] == what;
    return n;
}

static void fill_store(sim *s, int rank, const bl_placement *initial) {
    sim_rank *r = &s->ranks[rank];
    if (bl_placement_copy(initial, &r->map, NULL) < 0)
        abort();
    r->n_buffers = s->n_spares;
    for (int l = 0; l < s->n_layers; l++) {
        const bl_layer_placement *map = &r->map.layers[l];
        r->n_buffers += map->begin[rank + 1] - map->begin[rank];
    }
    for (int l = 0; l < s->n_layers; l++) {
        const bl_layer_placement *map = &r->map.layers[l];
        for (int expert = 0; expert < s->n_experts; expert++) {
            r->table[l][expert] = -1;
            if (bl_layer_find(map, rank, expert) < 0)
                continue;
            r->table[l][expert] = take(r, IN_SLOT);
            r->tag[r->table[l][expert]] = tag_of(l, expert);
        }
    }
}

/* The index of a decoder layer in our arrays: layer ids are 1, 3, 5. */
static int index_of(int layer) {
    return layer / 2;
}

static void commit(sim *s, int rank) {
    sim_rank *r = &s->ranks[rank];
    const bl_wave *wave = &r->tx.schedule->waves[r->tx.wave];
    const int l = index_of(wave->after.layer);
    bl_layer_placement *map = &r->map.layers[l];
    if (wave->after.epoch != map->epoch + 1)
        violate(s, "rank %d commits an epoch that does not follow", rank);
    if (count(r, DISPLACED) > 0)
        violate(s, "rank %d commits before the last commit was retired", rank);
    int table[MAX_EXPERTS];
    for (int expert = 0; expert < s->n_experts; expert++) {
        table[expert] = -1;
        if (bl_layer_find(&wave->after, rank, expert) < 0)
            continue;
        table[expert] = r->table[l][expert];
        for (int buffer = 0; buffer < r->n_buffers && table[expert] < 0; buffer++) {
            if (r->use[buffer] == RESERVED &&
                wave->moves[r->reserved_move[buffer]].expert == expert)
                table[expert] = buffer;
        }
        if (table[expert] < 0)
            violate(s, "rank %d commits without expert %d", rank, expert);
    }
    for (int expert = 0; expert < s->n_experts; expert++) {
        if (r->table[l][expert] >= 0)
            r->use[r->table[l][expert]] = DISPLACED;
    }
    for (int expert = 0; expert < s->n_experts; expert++) {
        r->table[l][expert] = table[expert];
        if (table[expert] >= 0)
            r->use[table[expert]] = IN_SLOT;
    }
    memcpy(map->expert, wave->after.expert, sizeof *map->expert * (size_t)bl_layer_n_slots(map));
    map->epoch = wave->after.epoch;
}

static void free_buffers(sim_rank *r, use which) {
    for (int buffer = 0; buffer < r->n_buffers; buffer++) {
        if (r->use[buffer] == which) {
            r->use[buffer] = FREE;
            r->tag[buffer] = GARBAGE; /* a spare is overwritten at any time */
        }
    }
}

static void check_reads(sim *s, int rank, const running_step *step) {
    const sim_rank *r = &s->ranks[rank];
    for (int l = 0; l < s->n_layers; l++) {
        for (int expert = 0; expert < s->n_experts; expert++) {
            const int buffer = step->buffer[l][expert];
            if (buffer >= 0 && r->tag[buffer] != tag_of(l, expert))
                violate(s, "rank %d, step %llu, layer %d: reads %d where expert %d should be", rank,
                        (unsigned long long)step->step, l, r->tag[buffer], expert);
        }
    }
}

/* ---- actions --------------------------------------------------------------------------------- */

static uint64_t delay(sim *s) {
    const uint64_t usual = 10000 + below(s, s->slow_ns);
    return below(s, 50) == 0 ? usual + below(s, 20 * MS) : usual;
}

static void send(sim *s, int from, int to, const bl_tx_message *message) {
    uint64_t at = s->now + (from == to ? 1000 : delay(s));
    if (at <= s->last_delivery[from][to])
        at = s->last_delivery[from][to] + 1;
    s->last_delivery[from][to] = at;
    event e = {.at = at, .kind = DELIVER, .rank = to, .other = from, .message = *message};
    push(s, e);
    if (below(s, 12) == 0) { /* the same message again, late: it must change nothing */
        e.at += below(s, 4) == 0 ? below(s, 200 * MS) : below(s, 5 * MS);
        push(s, e);
    }
    s->report->messages++;
    s->report->late += message->type == BL_TX_LATE;
}

static void stream(sim *s, int rank, const bl_tx_action *action) {
    const sim_rank *r = &s->ranks[rank];
    const bl_wave *wave = &r->tx.schedule->waves[r->tx.wave];
    const int expert = wave->moves[action->move].expert;
    const int buffer = r->table[index_of(wave->after.layer)][expert];
    if (buffer < 0) {
        violate(s, "rank %d is to send expert %d, which it does not hold", rank, expert);
        return;
    }
    s->report->resent += action->attempt > 0;
    if (action->attempt > 1)
        violate(s, "a bundle is sent a third time");
    if (s->fault == BL_SIM_SILENT_COPY && action->to == s->victim)
        return;
    push(s, (event){.at = s->now + delay(s) + delay(s),
                    .kind = BUNDLE,
                    .rank = action->to,
                    .other = rank,
                    .move = action->move,
                    .attempt = action->attempt,
                    .wave = r->tx.wave,
                    .term = r->tx.term,
                    .hash = hash_of(r->tag[buffer])});
}

static void act(sim *s, int rank, const bl_tx_action *action) {
    sim_rank *r = &s->ranks[rank];
    int buffer;
    switch (action->kind) {
    case BL_TX_ACT_SEND:
        for (int to = 0; to < s->n_ranks; to++) {
            if (action->to == to || (action->to == BL_TX_ALL && !r->tx.lost[to]))
                send(s, rank, to, &action->message);
        }
        break;
    case BL_TX_ACT_RESERVE:
        if (s->fault == BL_SIM_SHRINK && rank == s->victim && below(s, 3) == 0) {
            push(s, (event){.at = s->now + 1, .kind = SHORT, .rank = rank});
            break;
        }
        buffer = take(r, RESERVED);
        if (buffer < 0)
            violate(s, "rank %d has no spare left to reserve", rank);
        else
            r->reserved_move[buffer] = action->move;
        break;
    case BL_TX_ACT_STREAM:
        stream(s, rank, action);
        break;
    case BL_TX_ACT_RELEASE:
        free_buffers(r, RESERVED);
        break;
    case BL_TX_ACT_COMMIT:
        s->report->waves += rank == 0;
        commit(s, rank);
        break;
    case BL_TX_ACT_RETIRE:
        free_buffers(r, DISPLACED);
        break;
    case BL_TX_ACT_HOLD:
        s->report->holds++;
        break;
    case BL_TX_ACT_HALT:
        if (!r->stopped)
            push(s, (event){.at = s->now + MS, .kind = DIE, .rank = rank});
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

static bool is_live(const sim *s, int rank) {
    return !s->ranks[rank].dead && !s->ranks[rank].stopped;
}

static int first_live(const sim *s) {
    for (int rank = 0; rank < s->n_ranks; rank++) {
        if (is_live(s, rank))
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
        violate(s, "no schedule: %s", err.text);
        free(made);
        return NULL;
    }
    s->schedules[s->n_schedules++] = made;
    if (bl_schedule_check(made, map, spares, &err) < 0)
        violate(s, "broken schedule: %s", err.text);
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

/* All living ranks begin a step with the same epochs. What a rank did that died is retried: a step
 * that nobody else had begun was never completed. */
static void check_epochs(sim *s, int rank) {
    const sim_rank *r = &s->ranks[rank];
    const uint64_t step = r->begun;
    bool first = true;
    for (int other = 0; other < s->n_ranks; other++)
        first = first && (other == rank || !is_live(s, other) || s->ranks[other].begun < step);
    for (int l = 0; l < s->n_layers; l++) {
        const bl_layer_placement *map = &r->map.layers[l];
        if (first)
            s->epochs[step][l] = map->epoch;
        if (s->epochs[step][l] != map->epoch && s->fault != BL_SIM_MISMATCH)
            violate(s, "rank %d begins step %llu with another epoch of layer %d", rank,
                    (unsigned long long)step, l);
        if (bl_layer_placement_check(map, NULL, NULL) < 0)
            violate(s, "step %llu is served by a map that does not cover layer %d",
                    (unsigned long long)step, l);
    }
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
        violate(s, "rank %d held a step for %.1f ms", rank, (double)held * 1e-6);
}

static void begin_step(sim *s, int rank, bl_tx_actions *out) {
    sim_rank *r = &s->ranks[rank];
    const uint64_t step = r->begun + 1;
    push(s, (event){.at = s->now + 50000 + below(s, MS), .kind = STEP, .rank = rank});
    handle(s, rank, &(bl_tx_event){.kind = BL_TX_EV_TICK}, out);
    for (int other = 0; other < s->n_ranks; other++) {
        if (is_live(s, other) && s->ranks[other].begun + 1 < step)
            return;
    }
    if (r->n_running == s->depth || step >= MAX_STEPS)
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
    check_epochs(s, rank);
    check_reads(s, rank, running);
    push(s,
         (event){.at = s->now + 100000 + below(s, MS), .kind = FINISH, .rank = rank, .step = step});
}

/* A step ends when all ranks have taken part in it: begun it. */
static void finish_step(sim *s, const event *e) {
    sim_rank *r = &s->ranks[e->rank];
    bool all = r->running[0].step == e->step;
    for (int other = 0; other < s->n_ranks; other++)
        all = all && (!is_live(s, other) || s->ranks[other].begun >= e->step);
    if (!all) {
        event again = *e;
        again.at = s->now + 100000;
        push(s, again);
        return;
    }
    check_reads(s, e->rank, &r->running[0]);
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
        violate(s, "rank %d wants a bundle for which it holds no spare", e->rank);
        return;
    }
    const bl_wave *wave = &r->tx.schedule->waves[e->wave];
    int tag = tag_of(index_of(wave->after.layer), wave->moves[e->move].expert);
    if ((s->fault == BL_SIM_CORRUPT_ONCE && e->attempt == 0) ||
        (s->fault == BL_SIM_CORRUPT_ALWAYS && e->move == 0))
        tag = DAMAGED;
    r->tag[buffer] = tag;
    handle(s, e->rank,
           &(bl_tx_event){.kind = BL_TX_EV_BUNDLE,
                          .move = e->move,
                          .attempt = e->attempt,
                          .hash_source = e->hash,
                          .hash_here = hash_of(tag)},
           out);
}

static void apply(sim *s, bl_tx_actions *out) {
    const int lead = first_live(s);
    if (lead < 0 || s->next_plan == s->n_plans || !bl_tx_can_apply(&s->ranks[lead].tx))
        return;
    s->next_plan++;
    const bl_schedule *schedule = schedule_for(s, lead);
    s->plan_open = schedule != NULL;
    handle(s, lead, &(bl_tx_event){.kind = BL_TX_EV_APPLY, .schedule = schedule}, out);
    /* a second operator, who comes at once and again later, must be refused */
    push(s, (event){.at = s->now + below(s, 20 * MS), .kind = APPLY, .rank = lead, .other = 1});
}

static void second_operator(sim *s, int rank, bl_tx_actions *out) {
    sim_rank *r = &s->ranks[rank];
    if (is_live(s, rank) && !bl_tx_can_apply(&r->tx) && r->tx.lead.schedule != NULL)
        handle(s, rank, &(bl_tx_event){.kind = BL_TX_EV_APPLY, .schedule = r->tx.lead.schedule},
               out);
}

/* What is on its way from a dead rank arrives in order up to some moment, and then no more. */
static void die(sim *s, int rank) {
    if (s->ranks[rank].dead)
        return;
    s->ranks[rank].dead = true;
    for (int to = 0; to < s->n_ranks; to++) {
        const uint64_t cut = s->now + below(s, 2 * s->slow_ns);
        for (size_t i = 0; i < s->queue.n; i++) {
            event *e = &s->queue.items[i];
            if ((e->kind == DELIVER || e->kind == BUNDLE) && e->other == rank && e->rank == to &&
                e->at > cut)
                e->kind = NOTICE, e->other = to; /* of oneself: nothing happens */
        }
        push(s,
             (event){
                 .at = s->now + MS + below(s, 10 * MS), .kind = NOTICE, .rank = to, .other = rank});
    }
}

static void happen(sim *s, const event *e, bl_tx_actions *out) {
    if (!is_live(s, e->rank) && e->kind != DIE && !(e->kind == APPLY && e->other == 0))
        return;
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
        die(s, e->rank);
        break;
    case NOTICE:
        handle(s, e->rank, &(bl_tx_event){.kind = BL_TX_EV_LOST, .rank = e->other}, out);
        break;
    }
}

/* ---- setting up ------------------------------------------------------------------------------ */

static void random_placement(sim *s, const int *slots, bl_placement *out) {
    int layers[MAX_LAYERS];
    for (int l = 0; l < s->n_layers; l++)
        layers[l] = 2 * l + 1;
    if (bl_placement_create(s->n_ranks, s->n_experts, layers, s->n_layers, slots, out, NULL) < 0)
        abort();
    for (int l = 0; l < s->n_layers; l++) {
        bl_layer_placement *layer = &out->layers[l];
        const uint64_t n_slots = (uint64_t)bl_layer_n_slots(layer);
        for (int expert = 0; expert < s->n_experts; expert++) {
            int slot = (int)below(s, n_slots);
            while (layer->expert[slot] != BL_NO_EXPERT)
                slot = (int)below(s, n_slots);
            layer->expert[slot] = expert;
        }
        for (int slot = 0; slot < (int)n_slots; slot++) {
            const int expert = (int)below(s, (uint64_t)s->n_experts);
            if (layer->expert[slot] == BL_NO_EXPERT &&
                bl_layer_find(layer, bl_layer_rank_of(layer, slot), expert) < 0)
                layer->expert[slot] = expert;
        }
    }
}

static void set_up(sim *s) {
    int slots[MAX_RANKS], total = 0;
    s->n_ranks = s->fault == BL_SIM_LOSE_TWO    ? 5 + (int)below(s, 2)
                 : s->fault >= BL_SIM_LOSE_RANK ? 3 + (int)below(s, 4)
                                                : 2 + (int)below(s, 5);
    s->n_layers = 1 + (int)below(s, MAX_LAYERS);
    s->n_spares = 1 + (int)below(s, MAX_SPARES);
    s->depth = 1 + (int)below(s, MAX_DEPTH);
    s->n_plans = s->fault == BL_SIM_STOP   ? MAX_PLANS
                 : s->fault >= BL_SIM_DEAF ? 1
                                           : 1 + (int)below(s, MAX_PLANS);
    s->slow_ns = below(s, 2) == 0 ? MS / 5 : 2 * MS;
    for (int rank = 0; rank < s->n_ranks; rank++)
        total += slots[rank] = 1 + (int)below(s, MAX_SLOTS);
    const int most = total < MAX_EXPERTS ? total : MAX_EXPERTS;
    s->n_experts = 1 + (int)below(s, (uint64_t)most);
    bl_placement initial, other;
    random_placement(s, slots, &initial);
    random_placement(s, slots, &other);
    const bool other_map = below(s, 2) == 0;
    s->victim = s->fault == BL_SIM_SILENT_COPY ? (int)below(s, (uint64_t)s->n_ranks)
                                               : 1 + (int)below(s, (uint64_t)s->n_ranks - 1);
    const bl_tx_options options = {.agree_ns = 300 * MS,
                                   .copy_ns = 300 * MS,
                                   .commit_ns = 500 * MS,
                                   .orphan_ns = 5000 * MS,
                                   .hold_ns = 1000 * MS,
                                   .margin_steps = 2 + (int)below(s, 5),
                                   .decide_steps = (int)below(s, 3),
                                   .max_proposals = 10};
    for (int rank = 0; rank < s->n_ranks; rank++) {
        bl_tx_init(&s->ranks[rank].tx, rank, s->n_ranks, &options);
        const bool differs = s->fault == BL_SIM_MISMATCH && rank == s->victim;
        fill_store(s, rank, differs && other_map ? &other : &initial);
        if (differs) /* another epoch alone is enough */
            s->ranks[rank].map.layers[0].epoch++;
        push(s, (event){.at = 1 + below(s, MS), .kind = STEP, .rank = rank});
    }
    for (int plan = 0; plan < s->n_plans; plan++)
        random_placement(s, slots, &s->goals[plan]);
    bl_placement_free(&initial);
    bl_placement_free(&other);
}

static void plant_fault(sim *s) {
    const uint64_t when = 5 * MS + below(s, 60 * MS);
    if (s->fault == BL_SIM_STOP)
        push(s, (event){.at = when, .kind = STOP, .rank = 0});
    else if (s->fault == BL_SIM_DEAF)
        push(s, (event){.at = when, .kind = TICK, .rank = s->victim, .other = 1});
    else if (s->fault == BL_SIM_LOSE_RANK)
        push(s, (event){.at = when, .kind = DIE, .rank = s->victim});
    else if (s->fault == BL_SIM_LOSE_LEADER || s->fault == BL_SIM_LOSE_TWO)
        push(s, (event){.at = when, .kind = DIE, .rank = 0});
    if (s->fault == BL_SIM_LOSE_TWO)
        push(s, (event){.at = when + below(s, 30 * MS), .kind = DIE, .rank = s->victim});
    push(s, (event){.at = 5 * MS, .kind = APPLY});
}

/* ---- the end --------------------------------------------------------------------------------- */

static bool all_idle(const sim *s) {
    for (int rank = 0; rank < s->n_ranks; rank++) {
        const bl_transaction *tx = &s->ranks[rank].tx;
        if (is_live(s, rank) && !s->ranks[rank].deaf &&
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
            violate(s, "the plan was aborted without a fault: %s", tx->reason);
        break;
    case BL_SIM_CORRUPT_ALWAYS:
        if (moved && n_moves > 0)
            violate(s, "a damaged bundle was accepted");
        break;
    case BL_SIM_MISMATCH:
        if (moved)
            violate(s, "ranks with different placements agreed");
        break;
    case BL_SIM_STOP:
        if (!moved && s->stop_plan != s->next_plan)
            violate(s, "aborted though nobody asked for it: %s", tx->reason);
        break;
    default:
        break;
    }
    if (moved && !reached(s, map, &s->goals[s->next_plan - 1]))
        violate(s, "the plan is said to be in place and is not");
    if (!moved && tx->outcome == BL_TX_ABORTED && tx->reason[0] == '\0')
        violate(s, "aborted without a reason");
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
        if (!is_live(s, rank))
            continue;
        int filled = 0;
        for (int l = 0; l < s->n_layers; l++) {
            for (int expert = 0; expert < s->n_experts; expert++)
                filled += r->table[l][expert] >= 0;
        }
        if (!r->deaf && count(r, FREE) != r->n_buffers - filled)
            violate(s, "rank %d: %d buffers leaked", rank, r->n_buffers - filled - count(r, FREE));
        const bool comparable = !r->deaf && s->fault != BL_SIM_MISMATCH;
        for (int l = 0; l < s->n_layers && comparable; l++) {
            if (r->map.layers[l].epoch != map->layers[l].epoch ||
                bl_layer_moves(&r->map.layers[l], &map->layers[l]) > 0)
                violate(s, "ranks %d and %d end with different maps", rank, lead);
        }
    }
    const bl_transaction *tx = &s->ranks[lead].tx;
    const int n_moves = s->n_schedules > 0 ? s->schedules[s->n_schedules - 1]->n_moves : 0;
    check_outcome(s, tx, map, n_moves);
    s->report->moved += tx->outcome == BL_TX_MOVED;
    s->report->aborted += tx->outcome == BL_TX_ABORTED;
}

static void run_events(sim *s) {
    static bl_tx_actions out;
    uint64_t quiet_until = 0;
    while (!s->failed) {
        if (s->n_events++ > MAX_EVENTS || s->queue.n == 0) {
            violate(s, "it hangs");
            return;
        }
        const event e = bl_sim_pop(&s->queue);
        s->now = e.at;
        happen(s, &e, &out);
        if (s->plan_open && all_idle(s) && s->n_events > 1) {
            close_plan(s);
            quiet_until = s->now + 20 * MS;
            push(s, (event){.at = s->now + below(s, 10 * MS), .kind = APPLY});
        }
        if (first_live(s) < 0 ||
            (!s->plan_open && s->next_plan == s->n_plans && s->now > quiet_until))
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
    set_up(s);
    plant_fault(s);
    run_events(s);
    for (int rank = 0; rank < s->n_ranks; rank++) {
        report->rejected += (int)s->ranks[rank].tx.rejected;
        bl_placement_free(&s->ranks[rank].map);
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
