#include "runtime/transport_sim.h"

#include "core/hash.h"
#include "core/mem.h"
#include "core/rng.h"
#include "runtime/transport_ops.h"

#include <assert.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define CALL_S 1e-7

/* A lost message is sent anew after this many latencies. */
#define RESEND 4

/* One call in so many passes the baton on though it need not. */
#define CALLS_PER_PASS 8

typedef enum event_kind {
    DELIVER,
    CLOSED,
    ABANDONED,
    BROKEN,
    KILL,
    STOP,
    SILENT,
    RESUME,
    KNOCK
} event_kind;

typedef struct event {
    struct event *next; /* by time, then by order of making */
    double at_s;
    event_kind kind;
    int from,
        to;   /* of DELIVER, CLOSED, ABANDONED, BROKEN, SILENT (`to` loses `from`); else `from` */
    int lost; /* CLOSED: whom it had lost, or -1 */
    uint64_t incarnation; /* KNOCK */
    bl_channel channel;
    bl_envelope *envelope;
} event;

typedef enum rank_state { ABSENT, READY, RUNNING, ASLEEP, DONE } rank_state;

typedef struct sim_rank {
    pthread_cond_t turn;
    rank_state state;
    double until_s; /* ASLEEP */
    bool is_killed;
    uint64_t incarnation; /* how often it has come back */
    int stops;            /* how many stops it is in */
    bl_mailroom room;
} sim_rank;

typedef struct partition {
    double at_s, until_s;
    uint64_t ranks;
} partition;

typedef struct sim {
    pthread_mutex_t lock;
    bl_sim_options options;
    bl_rng rng;
    double now_s;
    uint64_t history;
    int n_ranks, n_absent, n_open;
    event *events;
    partition *partitions;
    int n_partitions;
    sim_rank *ranks;
    size_t *weights;   /* [BL_N_CHANNELS][from][to] on its way or not taken */
    uint64_t *numbers; /* likewise: number of the next message */
    int *n_on_way;     /* [from][to] messages that have not arrived */
} sim;

typedef struct sim_transport {
    bl_transport base;
    sim *cluster;
} sim_transport;

static sim *sim_of(const bl_transport *transport) {
    return ((const sim_transport *)(const void *)transport)->cluster;
}

static size_t link_index(const sim *s, int channel, int from, int to) {
    return ((size_t)channel * (size_t)s->n_ranks + (size_t)from) * (size_t)s->n_ranks + (size_t)to;
}

static double chance(sim *s) {
    return (double)(bl_rng_next(&s->rng) >> 11) * 0x1p-53;
}

static void remember(sim *s, int what, int from, int to) {
    const double words[4] = {s->now_s, what, from, to};
    s->history = bl_hash64(words, sizeof words) + 31 * s->history;
}

/* ---- events --------------------------------------------------------------------------------- */

static void put(sim *s, event *made) {
    event **link = &s->events;
    while (*link != NULL && (*link)->at_s <= made->at_s)
        link = &(*link)->next;
    made->next = *link;
    *link = made;
}

/* An event that could not be made for want of memory would be lost silently: this is for tests. */
static event *add(sim *s, double at_s, event_kind kind, int from, int to) {
    event *made = calloc(1, sizeof *made);
    if (made == NULL)
        abort();
    *made = (event){.at_s = at_s, .kind = kind, .from = from, .to = to, .lost = -1};
    put(s, made);
    return made;
}

static bool is_cut(const sim *s, int a, int b, double at_s, double *until_s) {
    for (int i = 0; i < s->n_partitions; i++) {
        const partition *cut = &s->partitions[i];
        if (at_s >= cut->at_s && at_s < cut->until_s &&
            (cut->ranks >> a & 1) != (cut->ranks >> b & 1)) {
            *until_s = cut->until_s;
            return true;
        }
    }
    return false;
}

/* When something sent now arrives: later if it is lost on the way, or the way is cut. */
static double arrival_s(sim *s, int from, int to, size_t bytes) {
    const bl_sim_options *o = &s->options;
    double at_s = s->now_s, until_s;
    while (chance(s) < o->lose)
        at_s += RESEND * o->latency_s;
    if (is_cut(s, from, to, at_s, &until_s))
        at_s = until_s;
    return at_s + o->latency_s + o->jitter_s * chance(s) + (double)bytes / o->bytes_per_s;
}

static void wake(sim *s, int rank) {
    if (s->ranks[rank].state == ASLEEP)
        s->ranks[rank].state = READY;
}

/* `to` has lost `from`, or been left by it. */
static void set_peer(sim *s, int from, int to, bl_peer_state state) {
    bl_peer_state *peer = &s->ranks[to].room.peers[from];
    s->ranks[to].room.knocking[from] = 0;
    if (*peer != BL_PEER_LIVE || s->ranks[to].state == DONE)
        return;
    *peer = state;
    wake(s, to);
}

static void deliver(sim *s, event *e) {
    sim_rank *to = &s->ranks[e->to];
    s->n_on_way[e->from * s->n_ranks + e->to]--;
    const bool is_lost =
        bl_peer_is_lost(to->room.peers[e->from]) && to->room.knocking[e->from] == 0;
    if (to->state == DONE || to->is_killed || is_lost ||
        !bl_mailbox_put(bl_mailroom_box(&to->room, e->channel, e->from), e->envelope)) {
        bl_envelope_free(e->envelope); /* nobody to take it, or it came twice */
        return;
    }
    wake(s, e->to);
}

/* What a rank says as it goes arrives when all that it sent before has. */
static void deliver_end(sim *s, const event *e) {
    if (s->n_on_way[e->from * s->n_ranks + e->to] > 0 && s->ranks[e->to].state != DONE) {
        event *later = add(s, s->now_s + s->options.latency_s, e->kind, e->from, e->to);
        later->lost = e->lost;
        return;
    }
    if (e->kind == ABANDONED) {
        set_peer(s, e->from, e->to, BL_PEER_LOST);
        return;
    }
    if (e->lost >= 0 && e->lost != e->to && s->n_on_way[e->lost * s->n_ranks + e->to] == 0)
        set_peer(s, e->lost, e->to, BL_PEER_LOST);
    set_peer(s, e->from, e->to, BL_PEER_CLOSED);
}

/* All others see this rank break off; what it had sent may have gone with it. */
static void break_off(sim *s, int rank) {
    for (event **link = &s->events; *link != NULL;) {
        event *e = *link;
        if (e->kind == DELIVER && e->from == rank && chance(s) < 0.5) {
            *link = e->next;
            s->n_on_way[e->from * s->n_ranks + e->to]--;
            bl_envelope_free(e->envelope);
            free(e);
        } else {
            link = &e->next;
        }
    }
    for (int peer = 0; peer < s->n_ranks; peer++)
        if (peer != rank)
            add(s, arrival_s(s, rank, peer, 0), BROKEN, rank, peer);
}

static void kill_rank(sim *s, int rank) {
    sim_rank *victim = &s->ranks[rank];
    if (victim->is_killed || victim->state == DONE)
        return;
    victim->is_killed = true;
    for (int box = 0; box < s->n_ranks * BL_N_CHANNELS; box++) {
        bl_message message;
        while (bl_mailbox_peek(&victim->room.boxes[box]) != NULL) {
            bl_mailbox_take(&victim->room.boxes[box], &message);
            bl_message_free(&message);
        }
    }
    wake(s, rank);
    break_off(s, rank);
}

/* A silence that lasted: whoever still does not hear of it has lost it. */
static void find_silent(sim *s, int from, int to) {
    double until_s;
    const bool stopped = s->ranks[from].stops > 0 && s->ranks[from].state != DONE;
    /* whoever has gone behind a cut is missed like all there: its leave does not get through */
    if ((stopped || is_cut(s, from, to, s->now_s, &until_s)) && s->ranks[to].stops == 0) {
        set_peer(s, from, to, BL_PEER_SILENT);
        add(s, arrival_s(s, to, from, 0), BROKEN, to, from); /* it hears of that when it can */
    }
}

static void knock(sim *s, const event *e) {
    sim_rank *to = &s->ranks[e->to];
    const sim_rank *from = &s->ranks[e->from];
    if (to->state == DONE || to->is_killed || from->is_killed ||
        from->incarnation != e->incarnation || !bl_peer_is_lost(to->room.peers[e->from]))
        return;
    to->room.knocking[e->from] = e->incarnation;
    wake(s, e->to);
}

static void happen(sim *s, event *e) {
    s->now_s = e->at_s > s->now_s ? e->at_s : s->now_s;
    remember(s, (int)e->kind, e->from, e->to);
    switch (e->kind) {
    case DELIVER:
        deliver(s, e);
        break;
    case CLOSED:
    case ABANDONED:
        deliver_end(s, e);
        break;
    case BROKEN:
        set_peer(s, e->from, e->to, BL_PEER_LOST);
        break;
    case KILL:
        kill_rank(s, e->from);
        break;
    case STOP:
        s->ranks[e->from].stops++;
        break;
    case RESUME:
        s->ranks[e->from].stops--;
        break;
    case SILENT:
        find_silent(s, e->from, e->to);
        break;
    case KNOCK:
        knock(s, e);
        break;
    }
    free(e);
}

/* ---- turns ---------------------------------------------------------------------------------- */

/* A rank that may run, by chance, or -1. */
static int choose(sim *s) {
    int may[BL_SIM_MAX_RANKS], n = 0;
    for (int rank = 0; rank < s->n_ranks; rank++)
        if (s->ranks[rank].state == READY && s->ranks[rank].stops == 0)
            may[n++] = rank;
    return n > 0 ? may[bl_rng_below(&s->rng, (uint32_t)n)] : -1;
}

/* The next moment at which a sleeper wakes by itself. */
static double next_waking_s(const sim *s) {
    double at_s = INFINITY;
    for (int rank = 0; rank < s->n_ranks; rank++)
        if (s->ranks[rank].state == ASLEEP && s->ranks[rank].stops == 0)
            at_s = fmin(at_s, s->ranks[rank].until_s);
    return at_s;
}

static void wake_sleepers(sim *s) {
    for (int rank = 0; rank < s->n_ranks; rank++)
        if (s->ranks[rank].state == ASLEEP && s->ranks[rank].until_s <= s->now_s)
            s->ranks[rank].state = READY;
}

/* Locked, nobody runs: let things happen until somebody can, and give that one the baton. */
static void pass_on(sim *s) {
    if (s->n_absent > 0)
        return; /* the last one to come passes it on */
    for (;;) {
        while (s->events != NULL && s->events->at_s <= s->now_s) {
            event *e = s->events;
            s->events = e->next;
            happen(s, e);
        }
        wake_sleepers(s);
        const int next = choose(s);
        if (next >= 0) {
            s->ranks[next].state = RUNNING;
            remember(s, -1, next, next);
            pthread_cond_signal(&s->ranks[next].turn);
            return;
        }
        const double waking_s = next_waking_s(s);
        const double event_s = s->events != NULL ? s->events->at_s : INFINITY;
        if (isinf(waking_s) && isinf(event_s))
            return; /* all are done */
        s->now_s = fmax(s->now_s, fmin(waking_s, event_s));
    }
}

static void wait_for_turn(sim *s, int rank) {
    while (s->ranks[rank].state != RUNNING)
        pthread_cond_wait(&s->ranks[rank].turn, &s->lock);
}

/* Locked: this rank's thread makes a call. Returns with the baton. */
static void come_in(sim *s, int rank) {
    sim_rank *me = &s->ranks[rank];
    if (me->state == ABSENT) {
        me->state = READY;
        if (--s->n_absent == 0)
            pass_on(s);
        wait_for_turn(s, rank);
        return;
    }
    s->now_s += CALL_S;
    if (bl_rng_below(&s->rng, CALLS_PER_PASS) == 0) {
        me->state = READY;
        pass_on(s);
        wait_for_turn(s, rank);
    }
}

static void fall_asleep(sim *s, int rank, double until_s) {
    s->ranks[rank].state = ASLEEP;
    s->ranks[rank].until_s = until_s;
    pass_on(s);
    wait_for_turn(s, rank);
}

static bl_status fail_killed(const sim *s, int rank, bl_error *err) {
    return bl_fail(err, BL_ERR_ABORTED, "rank %d was killed by the simulation (at %g s by now)",
                   rank, s->now_s);
}

/* ---- hooks ---------------------------------------------------------------------------------- */

static void sim_enter(bl_transport *transport) {
    sim *s = sim_of(transport);
    pthread_mutex_lock(&s->lock);
    come_in(s, transport->rank);
}

static void sim_leave(bl_transport *transport) {
    pthread_mutex_unlock(&sim_of(transport)->lock);
}

static bl_status sim_sleep(bl_transport *transport, double until_s, bl_error *err) {
    sim *s = sim_of(transport);
    if (!s->ranks[transport->rank].is_killed)
        fall_asleep(s, transport->rank, until_s);
    return s->ranks[transport->rank].is_killed ? fail_killed(s, transport->rank, err) : BL_OK;
}

static void sim_taken(bl_transport *transport, int peer, bl_channel channel, size_t weight) {
    sim *s = sim_of(transport);
    s->weights[link_index(s, (int)channel, peer, transport->rank)] -= weight;
    wake(s, peer);
}

static double sim_now(const bl_transport *transport) {
    return sim_of(transport)->now_s;
}

/* Locked, with the baton: until the link has room. */
static bl_status wait_for_room(bl_transport *transport, int peer, bl_channel channel, size_t weight,
                               bl_error *err) {
    sim *s = sim_of(transport);
    const sim_rank *me = &s->ranks[transport->rank];
    const double until_s = s->now_s + transport->deadline_s;
    for (;;) {
        if (me->is_killed)
            return fail_killed(s, transport->rank, err);
        if (me->room.peers[peer] != BL_PEER_LIVE)
            return bl_transport_fail_gone(transport, peer, me->room.peers[peer], err);
        if (bl_link_accepts(s->weights[link_index(s, (int)channel, transport->rank, peer)], weight))
            return BL_OK;
        if (s->now_s >= until_s)
            return bl_transport_fail_full(transport, peer, channel, err);
        fall_asleep(s, transport->rank, until_s);
    }
}

/* A copy of the message on its way. */
static bool launch(sim *s, int from, int to, bl_channel channel, uint64_t number, uint64_t mark,
                   const void *data, size_t bytes) {
    bl_envelope *envelope = bl_envelope_new(from, number, mark, bytes);
    if (envelope == NULL)
        return false;
    if (bytes > 0)
        memcpy(envelope->message.data, data, bytes);
    envelope->complete = true;
    event *e = add(s, arrival_s(s, from, to, bytes), DELIVER, from, to);
    e->channel = channel;
    e->envelope = envelope;
    s->n_on_way[from * s->n_ranks + to]++;
    return true;
}

static bl_status send_locked(bl_transport *transport, int peer, bl_channel channel, uint64_t mark,
                             const void *data, size_t bytes, bl_error *err) {
    sim *s = sim_of(transport);
    const int rank = transport->rank;
    const size_t weight = bl_message_weight(bytes), at = link_index(s, (int)channel, rank, peer);
    BL_TRY(wait_for_room(transport, peer, channel, weight, err));
    if (!launch(s, rank, peer, channel, s->numbers[at], mark, data, bytes))
        return bl_fail(err, BL_ERR_NOMEM, "out of memory: a message of %zu bytes", bytes);
    if (chance(s) < s->options.again)
        launch(s, rank, peer, channel, s->numbers[at], mark, data, bytes);
    s->numbers[at]++;
    s->weights[at] += weight;
    return BL_OK;
}

static bl_status sim_send(bl_transport *transport, int peer, bl_channel channel, uint64_t mark,
                          const void *data, size_t bytes, bl_error *err) {
    sim_enter(transport);
    const bl_status st = send_locked(transport, peer, channel, mark, data, bytes, err);
    sim_leave(transport);
    return st;
}

static void sim_free(sim *s) {
    while (s->events != NULL) {
        event *next = s->events->next;
        bl_envelope_free(s->events->envelope);
        free(s->events);
        s->events = next;
    }
    for (int rank = 0; s->ranks != NULL && rank < s->n_ranks; rank++) {
        bl_mailroom_free(&s->ranks[rank].room);
        pthread_cond_destroy(&s->ranks[rank].turn);
    }
    pthread_mutex_destroy(&s->lock);
    free(s->partitions);
    free(s->ranks);
    free(s->weights);
    free(s->numbers);
    free(s->n_on_way);
    free(s);
}

static void sim_close(bl_transport *transport, bool orderly) {
    sim *s = sim_of(transport);
    const int rank = transport->rank;
    sim_enter(transport);
    for (int peer = 0; !s->ranks[rank].is_killed && peer < s->n_ranks; peer++)
        if (peer != rank)
            add(s, arrival_s(s, rank, peer, 0), orderly ? CLOSED : ABANDONED, rank, peer)->lost =
                bl_mailroom_lost(&s->ranks[rank].room);
    s->ranks[rank].state = DONE;
    const bool last = --s->n_open == 0;
    if (!last)
        pass_on(s);
    sim_leave(transport);
    if (last)
        sim_free(s);
    free(transport);
}

static void sim_give_up(bl_transport *transport, int peer) {
    sim *s = sim_of(transport);
    set_peer(s, peer, transport->rank, BL_PEER_LOST);
    add(s, arrival_s(s, transport->rank, peer, 0), BROKEN, transport->rank, peer);
}

/* Nothing of a rank's former life is left on the way, and all others know that it is over. */
static void bury(sim *s, int rank) {
    for (event **link = &s->events; *link != NULL;) {
        event *e = *link;
        const bool is_word = e->kind == DELIVER || e->kind == CLOSED || e->kind == ABANDONED ||
                             e->kind == BROKEN || e->kind == KNOCK;
        if (is_word && (e->from == rank || e->to == rank)) {
            *link = e->next;
            bl_envelope_free(e->envelope);
            free(e);
        } else {
            link = &e->next;
        }
    }
    for (int peer = 0; peer < s->n_ranks; peer++) {
        s->n_on_way[rank * s->n_ranks + peer] = s->n_on_way[peer * s->n_ranks + rank] = 0;
        for (int channel = 0; channel < BL_N_CHANNELS; channel++) {
            const size_t out = link_index(s, channel, rank, peer),
                         in = link_index(s, channel, peer, rank);
            s->weights[out] = s->weights[in] = s->numbers[out] = s->numbers[in] = 0;
        }
        bl_mailroom_clear_peer(&s->ranks[rank].room, peer);
        if (peer == rank)
            continue;
        set_peer(s, rank, peer, BL_PEER_LOST);
        bl_mailroom_clear_peer(&s->ranks[peer].room, rank);
    }
}

/* Has this rank come back without being let in everywhere? Whoever else comes back hears it knock, too. */
static bool is_waiting(const sim *s, int rank) {
    for (int peer = 0; peer < s->n_ranks; peer++) {
        const sim_rank *other = &s->ranks[peer];
        if (peer != rank && !other->is_killed && other->state != DONE &&
            bl_peer_is_lost(other->room.peers[rank]))
            return s->ranks[rank].incarnation > 0;
    }
    return false;
}

/* Locked, with the baton. */
static void start_anew(sim *s, int rank) {
    sim_rank *me = &s->ranks[rank];
    bury(s, rank);
    me->is_killed = false;
    me->incarnation++;
    for (int peer = 0; peer < s->n_ranks; peer++) {
        const sim_rank *other = &s->ranks[peer];
        const bool waits = peer != rank && !other->is_killed && is_waiting(s, peer);
        me->room.knocking[peer] = waits ? other->incarnation : 0;
        me->room.peers[peer] = other->is_killed || waits ? BL_PEER_LOST
                               : other->state == DONE    ? BL_PEER_CLOSED
                                                         : BL_PEER_LIVE;
        me->room.forgiven[peer] = other->is_killed || waits;
        if (peer != rank)
            add(s, arrival_s(s, rank, peer, 0), KNOCK, rank, peer)->incarnation = me->incarnation;
    }
}

static const bl_transport_ops sim_ops = {
    .name = "sim",
    .enter = sim_enter,
    .leave = sim_leave,
    .sleep = sim_sleep,
    .taken = sim_taken,
    .send = sim_send,
    .close = sim_close,
    .now = sim_now,
    .give_up = sim_give_up,
};

void bl_transport_sim_come_back(bl_transport *transport, double pause_s) {
    sim *s = sim_of(transport);
    assert(transport->ops == &sim_ops);
    sim_enter(transport);
    const double until_s = s->now_s + pause_s;
    while (s->now_s < until_s)
        fall_asleep(s, transport->rank, until_s);
    start_anew(s, transport->rank);
    memset(transport->floor, 0, sizeof transport->floor);
    memset(transport->self_sent, 0, sizeof transport->self_sent);
    sim_leave(transport);
}

/* ---- open ----------------------------------------------------------------------------------- */

static bl_status check(int n_ranks, const bl_sim_options *o, bl_error *err) {
    if (n_ranks < 1 || n_ranks > BL_SIM_MAX_RANKS)
        return bl_fail(err, BL_ERR_RANGE, "cannot simulate %d ranks; 1 to %d is what works",
                       n_ranks, BL_SIM_MAX_RANKS);
    if (!(o->latency_s > 0) || !(o->jitter_s >= 0) || !(o->bytes_per_s > 0) || !(o->lose >= 0) ||
        !(o->lose < 1) || !(o->again >= 0) || !(o->again < 1) || !(o->silence_s > 0))
        return bl_fail(err, BL_ERR_RANGE, "a network cannot be like that");
    for (int f = 0; f < o->n_faults; f++)
        if (!(o->faults[f].at_s >= 0) ||
            (o->faults[f].kind != BL_SIM_KILL && !(o->faults[f].until_s > o->faults[f].at_s)))
            return bl_fail(err, BL_ERR_RANGE, "fault %d ends before it begins", f);
    return BL_OK;
}

/* Whoever does not hear `from` any more notices after the silence. */
static void watch(sim *s, double at_s, int from, int to) {
    if (from != to)
        add(s, at_s + s->options.silence_s, SILENT, from, to);
}

static void plan_fault(sim *s, const bl_sim_fault *fault) {
    for (int rank = 0; rank < s->n_ranks; rank++) {
        const bool is_in = fault->ranks >> rank & 1;
        if (fault->kind == BL_SIM_KILL && is_in)
            add(s, fault->at_s, KILL, rank, rank);
        if (fault->kind == BL_SIM_STOP && is_in) {
            add(s, fault->at_s, STOP, rank, rank);
            add(s, fault->until_s, RESUME, rank, rank);
        }
        for (int peer = 0; peer < s->n_ranks; peer++)
            if ((fault->kind == BL_SIM_STOP && is_in) ||
                (fault->kind == BL_SIM_PARTITION && is_in != (fault->ranks >> peer & 1)))
                watch(s, fault->at_s, rank, peer);
    }
    if (fault->kind == BL_SIM_PARTITION)
        s->partitions[s->n_partitions++] = (partition){fault->at_s, fault->until_s, fault->ranks};
}

static bl_status fill(sim *s, const bl_sim_options *options, bl_error *err) {
    const size_t n = (size_t)s->n_ranks;
    BL_TRY(BL_CALLOC(s->weights, BL_N_CHANNELS * n * n, err));
    BL_TRY(BL_CALLOC(s->numbers, BL_N_CHANNELS * n * n, err));
    BL_TRY(BL_CALLOC(s->n_on_way, n * n, err));
    BL_TRY(BL_CALLOC(s->partitions, options->n_faults + 1, err));
    BL_TRY(BL_CALLOC(s->ranks, n, err));
    for (int rank = 0; rank < s->n_ranks; rank++)
        pthread_cond_init(&s->ranks[rank].turn, NULL);
    for (int rank = 0; rank < s->n_ranks; rank++)
        BL_TRY(bl_mailroom_create(s->n_ranks, &s->ranks[rank].room, err));
    for (int f = 0; f < options->n_faults; f++)
        plan_fault(s, &options->faults[f]);
    return BL_OK;
}

static bl_status create(int n_ranks, const bl_sim_options *options, sim **out, bl_error *err) {
    sim *s;
    BL_TRY(BL_CALLOC(s, 1, err));
    pthread_mutex_init(&s->lock, NULL);
    s->options = *options;
    s->n_ranks = s->n_absent = s->n_open = n_ranks;
    bl_rng_seed(&s->rng, options->seed);
    const bl_status st = fill(s, options, err);
    if (st < 0) {
        sim_free(s);
        return st;
    }
    *out = s;
    return BL_OK;
}

bl_status bl_transport_sim_open(int n_ranks, const bl_sim_options *options, bl_transport **handles,
                                bl_error *err) {
    sim *s;
    sim_transport *made[BL_SIM_MAX_RANKS] = {NULL};
    BL_TRY(check(n_ranks, options, err));
    BL_TRY(create(n_ranks, options, &s, err));
    bl_status st = BL_OK;
    for (int rank = 0; st == BL_OK && rank < n_ranks; rank++)
        st = BL_CALLOC(made[rank], 1, err);
    for (int rank = 0; rank < n_ranks; rank++) {
        if (st < 0) {
            free(made[rank]);
            continue;
        }
        made[rank]->cluster = s;
        made[rank]->base = (bl_transport){.ops = &sim_ops,
                                          .rank = rank,
                                          .n_ranks = n_ranks,
                                          .deadline_s = BL_TRANSPORT_DEADLINE_S,
                                          .silence_s = options->silence_s,
                                          .room = &s->ranks[rank].room};
        handles[rank] = &made[rank]->base;
    }
    if (st < 0)
        sim_free(s);
    return st;
}

uint64_t bl_transport_sim_history(const bl_transport *transport) {
    assert(transport->ops == &sim_ops);
    return sim_of(transport)->history;
}
