/* The commit protocol, exhaustively: every order in which messages, steps, bundles, deaths, time-outs and
 * the operator can come, over the same object file that runs on the ranks (rebalancer/transaction.c),
 * for clusters of two and three ranks. States that were seen are known by their hash.
 *
 * In every state reached:
 *   - ranks that begin the same step have committed the same number of waves;
 *   - a commit finds all its bundles, undamaged;
 *   - buffers are freed only when no living rank is still in a step before the commit;
 *   - where nothing more can happen, all living ranks are idle, or halted for a reason, with equal
 *     maps and nothing reserved: no deadlock and no leak.
 */
#include "tests/support/support.h"

#include "core/hash.h"
#include "core/mem.h"
#include "rebalancer/transaction.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RANKS = 3, QUEUE = 16, STREAMS = 8, LAST_STEP = 7, MOVES = 8, MAX_DEPTH = 400 };
#define LATE UINT64_C(1000000000000000)

/* A message without its text, which decides nothing. */
typedef struct letter {
    int32_t type, from, wave, move, attempt;
    uint64_t view, term, epoch, step, hash;
} letter;

typedef struct queue {
    int n;
    letter items[QUEUE];
} queue;

typedef struct stream {
    int to, move, attempt, wave;
    uint64_t term;
} stream;

/* Everything but the transactions. */
typedef struct world {
    queue wire[RANKS][RANKS]; /* from, to */
    stream streams[STREAMS];
    int n_streams;
    bool dead[RANKS], noticed[RANKS][RANKS]; /* rank, of whom */
    int step[RANKS], commits[RANKS];
    bool reserved[RANKS][MOVES], filled[RANKS][MOVES];
    uint64_t displaced_at[RANKS]; /* commit step of buffers that are not freed yet, 0: none */
    int commits_at[RANKS][LAST_STEP + 1]; /* when the rank began the step, -1: it has not */
    int late, deaths, damages, stops;     /* faults that may still come */
    uint64_t now;
} world;

typedef struct frame {
    world before;
    bl_transaction tx;
} frame;

typedef struct search {
    int n;
    bl_schedule schedule;
    world w;
    bl_transaction *tx; /* [n] */
    frame *frames;      /* [MAX_DEPTH] */
    uint64_t *seen;     /* open addressing; 0 is free */
    size_t n_seen, capacity, n_ends, n_moved, n_halts, n_transitions, limit;
    bool cut; /* the limit of states was reached */
    char violation[200];
} search;

static void violate(search *s, const char *what, int rank) {
    if (s->violation[0] == '\0')
        snprintf(s->violation, sizeof s->violation, "rank %d: %s", rank, what);
}

/* ---- states ---------------------------------------------------------------------------------- */

static uint64_t mix(uint64_t hash, const void *data, size_t bytes) {
    return (hash ^ bl_hash64(data, bytes)) * UINT64_C(0x9e3779b97f4a7c15) + (hash >> 29);
}

#define MIX(field) hash = mix(hash, &(field), sizeof(field))

static uint64_t hash_transaction(uint64_t hash, const bl_transaction *tx, int n) {
    const size_t ranks = (size_t)n;
    MIX(tx->state), MIX(tx->view), MIX(tx->term), MIX(tx->wave), MIX(tx->decided), MIX(tx->step);
    MIX(tx->oldest), MIX(tx->commit_step), MIX(tx->attempt), MIX(tx->begun), MIX(tx->hold_ns);
    MIX(tx->heard_ns), MIX(tx->n_members), MIX(tx->lowest_member), MIX(tx->lost_leader);
    MIX(tx->orphaned), MIX(tx->outcome), MIX(tx->n_arrivals);
    for (int i = 0; i < tx->n_arrivals; i++) {
        MIX(tx->arrivals[i].move);
        MIX(tx->arrivals[i].attempt);
        MIX(tx->arrivals[i].verified);
    }
    hash = mix(hash, tx->lost, ranks);
    for (int rank = 0; rank < n; rank++) {
        const bl_tx_word *word = &tx->words[rank];
        MIX(word->follows), MIX(word->begun), MIX(word->view), MIX(word->term), MIX(word->decided);
    }
    MIX(tx->lead.phase), MIX(tx->lead.term), MIX(tx->lead.wave), MIX(tx->lead.attempt);
    MIX(tx->lead.commit_step), MIX(tx->lead.top_step), MIX(tx->lead.deadline);
    MIX(tx->lead.abort_wanted), MIX(tx->lead.n_heard);
    hash = mix(hash, tx->lead.heard, ranks);
    return mix(hash, tx->lead.arrived, ranks);
}

static uint64_t hash_state(const search *s) {
    const world *w = &s->w;
    uint64_t hash = 1;
    for (int from = 0; from < s->n; from++) {
        for (int to = 0; to < s->n; to++) {
            MIX(w->wire[from][to].n);
            hash = mix(hash, w->wire[from][to].items, sizeof(letter) * (size_t)w->wire[from][to].n);
        }
    }
    for (int i = 0; i < w->n_streams; i++)
        MIX(w->streams[i]);
    hash = mix(hash, (const char *)w + offsetof(world, n_streams),
               sizeof *w - offsetof(world, n_streams));
    for (int rank = 0; rank < s->n; rank++)
        hash = hash_transaction(hash, &s->tx[rank], s->n);
    return hash != 0 ? hash : 1;
}

/* False when the state was there before. */
static bool remember(search *s) {
    const uint64_t hash = hash_state(s);
    size_t at = (size_t)hash & (s->capacity - 1);
    for (; s->seen[at] != 0; at = (at + 1) & (s->capacity - 1)) {
        if (s->seen[at] == hash)
            return false;
    }
    s->seen[at] = hash;
    s->n_seen++;
    return true;
}

/* ---- actions --------------------------------------------------------------------------------- */

static void give(search *s, int rank, const bl_tx_event *event);

static void post(search *s, int from, int to, const bl_tx_message *m) {
    queue *q = &s->w.wire[from][to];
    if (s->w.dead[to])
        return;
    if (q->n == QUEUE) {
        violate(s, "more messages than there is room for", from);
        return;
    }
    letter *l = &q->items[q->n++];
    memset(l, 0, sizeof *l);
    l->type = (int32_t)m->type, l->from = m->from, l->wave = m->wave, l->move = m->move;
    l->attempt = m->attempt, l->view = m->view, l->term = m->term, l->epoch = m->epoch;
    l->step = m->step, l->hash = m->hash;
}

static void commit(search *s, int rank) {
    world *w = &s->w;
    const bl_wave *wave = &s->schedule.waves[s->tx[rank].wave];
    for (int m = 0; m < wave->n_moves; m++) {
        if (wave->moves[m].destination != rank)
            continue;
        if (!w->reserved[rank][m] || !w->filled[rank][m])
            violate(s, "commits without a bundle", rank);
        w->reserved[rank][m] = w->filled[rank][m] = false;
    }
    if (w->displaced_at[rank] != 0)
        violate(s, "commits before the last commit was retired", rank);
    w->displaced_at[rank] = s->tx[rank].commit_step;
    w->commits[rank]++;
}

/* A step before the commit reads, on any rank, what is freed here. */
static void retire(search *s, int rank) {
    world *w = &s->w;
    for (int other = 0; other < s->n; other++) {
        if (!w->dead[other] && s->tx[other].state != BL_TX_HALTED &&
            (uint64_t)w->step[other] < w->displaced_at[rank])
            violate(s, "frees what an older step may read", rank);
    }
    w->displaced_at[rank] = 0;
}

static void act(search *s, int rank, const bl_tx_action *a) {
    world *w = &s->w;
    switch (a->kind) {
    case BL_TX_ACT_SEND:
        for (int to = 0; to < s->n; to++) {
            if (a->to == to || (a->to == BL_TX_ALL && !s->tx[rank].lost[to]))
                post(s, rank, to, &a->message);
        }
        break;
    case BL_TX_ACT_RESERVE:
        if (w->reserved[rank][a->move])
            violate(s, "reserves twice", rank);
        w->reserved[rank][a->move] = true;
        break;
    case BL_TX_ACT_STREAM:
        if (w->n_streams == STREAMS)
            violate(s, "more streams than there is room for", rank);
        else
            w->streams[w->n_streams++] =
                (stream){a->to, a->move, a->attempt, s->tx[rank].wave, s->tx[rank].term};
        break;
    case BL_TX_ACT_RELEASE:
        memset(w->reserved[rank], 0, sizeof w->reserved[rank]);
        memset(w->filled[rank], 0, sizeof w->filled[rank]);
        break;
    case BL_TX_ACT_COMMIT:
        commit(s, rank);
        break;
    case BL_TX_ACT_RETIRE:
        retire(s, rank);
        break;
    case BL_TX_ACT_HOLD:
    case BL_TX_ACT_HALT:
        break;
    }
}

static bool answered(const bl_tx_actions *out, bl_tx_action_kind kind) {
    for (int i = 0; i < out->n; i++) {
        if (out->items[i].kind == kind)
            return true;
    }
    return false;
}

/* One message of a link; what a rank sends itself comes before everything else. */
static void deliver(search *s, int from, int to) {
    queue *q = &s->w.wire[from][to];
    const letter l = q->items[0];
    memmove(q->items, q->items + 1, sizeof l * (size_t)--q->n);
    const bl_tx_message m = {.type = (bl_tx_message_type)l.type,
                             .from = l.from,
                             .view = l.view,
                             .term = l.term,
                             .wave = l.wave,
                             .epoch = l.epoch,
                             .move = l.move,
                             .attempt = l.attempt,
                             .step = l.step,
                             .hash = l.hash,
                             .reason = "x"};
    bl_tx_event event = {.kind = BL_TX_EV_MESSAGE, .message = &m, .reason = "x"};
    if (m.type == BL_TX_PREPARE)
        event.schedule = &s->schedule;
    give(s, to, &event);
}

static void carry_out(search *s, int rank, const bl_tx_actions *out) {
    for (int i = 0; i < out->n; i++)
        act(s, rank, &out->items[i]);
    while (s->w.wire[rank][rank].n > 0 && !s->w.dead[rank])
        deliver(s, rank, rank);
}

static void give(search *s, int rank, const bl_tx_event *event) {
    bl_tx_actions out;
    bl_tx_step(&s->tx[rank], event, s->w.now, &out);
    carry_out(s, rank, &out);
}

/* ---- transitions ----------------------------------------------------------------------------- */

typedef enum kind { DELIVER, STEP, BUNDLE, DAMAGED, NOTICE, DIE, TIMEOUT, STOP, N_KINDS } kind;

static bool is_live(const search *s, int rank) {
    return !s->w.dead[rank];
}

/* Nobody is more than one step ahead of a living, serving rank. */
static bool may_step(const search *s, int rank) {
    const int next = s->w.step[rank] + 1;
    if (s->tx[rank].state == BL_TX_HALTED || next > LAST_STEP)
        return false;
    for (int other = 0; other < s->n; other++) {
        if (is_live(s, other) && s->tx[other].state != BL_TX_HALTED && s->w.step[other] + 1 < next)
            return false;
    }
    return true;
}

static bool enabled(const search *s, kind k, int a, int b) {
    const world *w = &s->w;
    switch (k) {
    case DELIVER:
        return a != b && is_live(s, b) && w->wire[a][b].n > 0 && !w->noticed[b][a];
    case STEP:
        return b == 0 && is_live(s, a) && may_step(s, a);
    case BUNDLE:
        return b == 0 && a < w->n_streams;
    case DAMAGED:
        return b == 0 && a < w->n_streams && w->damages > 0;
    case NOTICE:
        return is_live(s, a) && w->dead[b] && !w->noticed[a][b];
    case DIE:
        return b == 0 && is_live(s, a) && w->deaths > 0;
    case TIMEOUT:
        return b == 0 && is_live(s, a) && w->late > 0;
    case STOP:
        return b == 0 && a == 0 && is_live(s, a) && w->stops > 0 &&
               s->tx[a].lead.phase != BL_TX_IDLE;
    default:
        return false;
    }
}

static void begin_step(search *s, int rank) {
    world *w = &s->w;
    const uint64_t step = (uint64_t)w->step[rank] + 1;
    bl_tx_actions out;
    bl_tx_step(&s->tx[rank], &(bl_tx_event){.kind = BL_TX_EV_STEP, .step = step, .oldest = step},
               w->now, &out);
    const bool begins = !answered(&out, BL_TX_ACT_HOLD) && !answered(&out, BL_TX_ACT_HALT);
    if (begins)
        w->step[rank]++; /* it runs before anything that follows from it */
    carry_out(s, rank, &out);
    if (!begins)
        return;
    w->commits_at[rank][step] = w->commits[rank];
    for (int other = 0; other < s->n; other++) { /* what a dead rank began is taken again */
        const int theirs = w->commits_at[other][step];
        if (is_live(s, other) && theirs >= 0 && theirs != w->commits[rank])
            violate(s, "begins a step with another map than the others", rank);
    }
}

static void arrive(search *s, int i, bool damaged) {
    world *w = &s->w;
    const stream from = w->streams[i];
    w->streams[i] = w->streams[--w->n_streams];
    memset(&w->streams[w->n_streams], 0, sizeof from);
    w->damages -= damaged;
    if (w->dead[from.to] ||
        !bl_tx_wants(&s->tx[from.to], from.term, from.wave, from.move, from.attempt))
        return;
    w->filled[from.to][from.move] = !damaged;
    give(s, from.to,
         &(bl_tx_event){.kind = BL_TX_EV_BUNDLE,
                        .move = from.move,
                        .attempt = from.attempt,
                        .hash_source = 1,
                        .hash_here = damaged ? 2 : 1});
}

/* The rank whose transaction changes; -1: none. */
static int apply(search *s, kind k, int a, int b) {
    world *w = &s->w;
    switch (k) {
    case DELIVER:
        deliver(s, a, b);
        break;
    case STEP:
        begin_step(s, a);
        break;
    case BUNDLE:
    case DAMAGED:
        arrive(s, a, k == DAMAGED);
        break;
    case NOTICE: /* what was still on its way from the dead is gone with it */
        w->noticed[a][b] = true;
        w->wire[b][a].n = 0;
        give(s, a, &(bl_tx_event){.kind = BL_TX_EV_LOST, .rank = b});
        break;
    case DIE:
        w->dead[a] = true;
        w->deaths--;
        for (int other = 0; other < s->n; other++)
            w->wire[other][a].n = 0;
        break;
    case TIMEOUT:
        w->late--;
        w->now += LATE;
        give(s, a, &(bl_tx_event){.kind = BL_TX_EV_TICK});
        break;
    case STOP:
        w->stops--;
        give(s, a, &(bl_tx_event){.kind = BL_TX_EV_STOP, .reason = "x"});
        break;
    default:
        break;
    }
    return 0;
}

static int changes(const search *s, kind k, int a, int b) {
    return k == DELIVER ? b : k == BUNDLE || k == DAMAGED ? s->w.streams[a].to : a;
}

/* ---- the end of a path ----------------------------------------------------------------------- */

/* Nothing but faults can happen. Ranks that ran out of steps say nothing. */
static void check_end(search *s) {
    const world *w = &s->w;
    int first = -1;
    s->n_ends++;
    for (int rank = 0; rank < s->n; rank++) {
        const bl_transaction *tx = &s->tx[rank];
        if (!is_live(s, rank))
            continue;
        if (tx->state == BL_TX_HALTED) {
            s->n_halts++;
            if (tx->reason[0] == '\0')
                violate(s, "halts without a reason", rank);
            continue;
        }
        if (!bl_tx_is_idle(tx) || tx->lost_leader >= 0) {
            if (w->step[rank] < LAST_STEP)
                violate(s, "waits for ever", rank);
            continue;
        }
        for (int m = 0; m < MOVES; m++) {
            if (w->reserved[rank][m])
                violate(s, "keeps a buffer reserved", rank);
        }
        if (w->displaced_at[rank] != 0)
            violate(s, "never frees displaced buffers", rank);
        if (first >= 0 && w->commits[rank] != w->commits[first])
            violate(s, "ends with another map than the others", rank);
        first = first < 0 ? rank : first;
        s->n_moved += tx->outcome == BL_TX_MOVED;
    }
}

static void explore(search *s, int depth) {
    bool moved = false;
    if (s->n_seen >= s->limit || depth >= MAX_DEPTH) {
        s->cut = true;
        return;
    }
    frame *f = &s->frames[depth];
    for (int k = 0; k < N_KINDS && s->violation[0] == '\0'; k++) {
        const int most = k == BUNDLE || k == DAMAGED ? STREAMS : s->n;
        for (int a = 0; a < most && s->violation[0] == '\0'; a++) {
            for (int b = 0; b < s->n && s->violation[0] == '\0'; b++) {
                if (!enabled(s, (kind)k, a, b))
                    continue;
                const int rank = changes(s, (kind)k, a, b);
                f->before = s->w;
                f->tx = s->tx[rank];
                moved = moved || k <= NOTICE;
                apply(s, (kind)k, a, b);
                s->n_transitions++;
                if (s->violation[0] == '\0' && remember(s))
                    explore(s, depth + 1);
                s->w = f->before;
                s->tx[rank] = f->tx;
            }
        }
    }
    if (!moved)
        check_end(s);
}

/* ---- clusters -------------------------------------------------------------------------------- */

typedef struct cluster {
    const char *name;
    int n, waves; /* ranks; 1 or 2 */
    int late, deaths, damages, stops;
    size_t limit; /* of states */
} cluster;

static bl_schedule make_schedule(const cluster *c) {
    bl_error err;
    bl_placement now, goal;
    bl_schedule made;
    const int layer = 0, slots[] = {2, 2, 2}, spares[] = {1, 1, 1};
    assert_ok(bl_placement_create(c->n, 2 * c->n, &layer, 1, slots, &now, &err));
    bl_placement_fill_contiguous(&now);
    assert_ok(bl_placement_copy(&now, &goal, &err));
    for (int rank = 0; rank < c->n; rank++) { /* round by one rank: first slots, or both */
        for (int slot = 0; slot < c->waves; slot++)
            goal.layers[0].expert[(rank + 1) % c->n * 2 + slot] =
                now.layers[0].expert[rank * 2 + slot];
    }
    assert_ok(bl_schedule_make(&now, &goal, spares, NULL, &made, &err));
    assert_int_equal(made.n_waves, c->waves);
    bl_placement_free(&now);
    bl_placement_free(&goal);
    return made;
}

static void run(const cluster *c) {
    bl_tx_options options = BL_TX_OPTIONS_INIT;
    options.margin_steps = 1;
    options.decide_steps = 0;
    options.max_proposals = 2;
    options.agree_ns = options.copy_ns = options.commit_ns = options.orphan_ns = options.hold_ns =
        LATE / 2;
    search s = {.n = c->n, .limit = c->limit, .capacity = 1};
    while (s.capacity < 2 * c->limit)
        s.capacity *= 2;
    s.schedule = make_schedule(c);
    s.tx = bl_calloc((size_t)c->n, sizeof *s.tx);
    s.frames = bl_calloc(MAX_DEPTH, sizeof *s.frames);
    s.seen = bl_calloc(s.capacity, sizeof *s.seen);
    assert_true(s.tx != NULL && s.frames != NULL && s.seen != NULL);
    for (int rank = 0; rank < c->n; rank++)
        bl_tx_init(&s.tx[rank], rank, c->n, &options);
    s.w.late = c->late, s.w.deaths = c->deaths, s.w.damages = c->damages, s.w.stops = c->stops;
    s.w.now = 1;
    memset(s.w.commits_at, 0xff, sizeof s.w.commits_at);
    give(&s, 0, &(bl_tx_event){.kind = BL_TX_EV_APPLY, .schedule = &s.schedule});
    remember(&s);
    explore(&s, 0);
    print_message("# %s: %zu states, %zu transitions, %zu ends, %zu moved, %zu halted%s\n", c->name,
                  s.n_seen, s.n_transitions, s.n_ends, s.n_moved, s.n_halts,
                  s.cut ? ", cut short" : ", all");
    if (s.violation[0] != '\0') {
        if (getenv("BALLAST_SIM_QUICK") != NULL)
            exit(1);
        fail_msg("%s: %s", c->name, s.violation);
    }
    assert_true(s.n_ends > 0);
    free(s.tx);
    free(s.frames);
    free(s.seen);
    bl_schedule_free(&s.schedule);
}

static void test_two_ranks(void **state) {
    (void)state;
    run(&(cluster){"2 ranks", 2, 1, 0, 0, 0, 0, 2000000});
    run(&(cluster){"2 ranks, a damaged bundle", 2, 1, 0, 0, 2, 0, 2000000});
    run(&(cluster){"2 ranks, the operator stops", 2, 1, 0, 0, 0, 1, 2000000});
    run(&(cluster){"2 ranks, a time-out", 2, 1, 1, 0, 0, 0, 2000000});
    run(&(cluster){"2 ranks, a death", 2, 1, 0, 1, 0, 0, 2000000});
}

static void test_two_waves(void **state) {
    (void)state;
    run(&(cluster){"2 ranks, 2 waves, a death and a stop", 2, 2, 0, 1, 0, 1, 2000000});
}

static void test_three_ranks(void **state) {
    (void)state;
    const size_t limit = getenv("BALLAST_PROTOCOL_STATES") != NULL
                             ? (size_t)strtoul(getenv("BALLAST_PROTOCOL_STATES"), NULL, 10)
                             : 300000;
    run(&(cluster){"3 ranks, a death", 3, 1, 0, 1, 0, 0, limit});
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_two_ranks),
        cmocka_unit_test(test_two_waves),
        cmocka_unit_test(test_three_ranks),
    };
    return cmocka_run_group_tests_name("protocol", tests, NULL, NULL);
}
