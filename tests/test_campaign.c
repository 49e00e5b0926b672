/* All that can go wrong, drawn from a seed: clusters of five ranks with real stores, agents, recoveries and
 * an operator who speaks through control, on a simulated network with its own clock. Each run has one or
 * two faults (FAULTS below). A step asks the owners of random experts for tokens, which are known
 * beforehand, so that these can be told, whatever happens:
 *
 *   token    every answer is that of the right weights
 *   mixed    ranks that serve a step together serve it with the same epochs
 *   hang     no move outlives its deadlines, no exchange its own
 *   lost     every expert has a living owner in every step: its sources never run out here
 *   leak     in the end all spares are free, and the survivors hold one map
 *   split    whoever goes on is one group
 *
 * BALLAST_CAMPAIGN_SEEDS: how many runs (36); BALLAST_CAMPAIGN_SEED: this one only. Breaking the harness
 * on purpose shows that each of the six is told (`sabotage`). */
#include "tests/support/support.h"

#include "core/hash.h"
#include "core/json.h"
#include "core/mem.h"
#include "core/rng.h"
#include "rebalancer/control.h"
#include "rebalancer/recovery.h"
#include "runtime/exchange.h"
#include "runtime/transport_ops.h"
#include "runtime/transport_sim.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

enum {
    RANKS = 5,
    LAYERS = 2,
    EXPERTS = 12,
    TOP_K = 2,
    SLOTS = 6,
    SPARES = 2,
    BUNDLE = 3000,
    GOALS = 4,
    STEPS = 90,
    TOKENS = 4, /* of a rank, step and layer */
    MAX_FAULTS = 2
};
static const int layers[LAYERS] = {1, 4};
#define MS UINT64_C(1000000)
#define MOVE_S 12.0 /* longest life of a move: its deadlines, and what a short stop or cut adds */
#define EXCHANGE_S 30.0

/* name, what it is */
#define FAULTS(X)                                                               \
    X(NONE)        /* nothing */                                                \
    X(KILL)        /* a rank dies */                                            \
    X(STOP)        /* a rank stands still, briefly or until it is given up */   \
    X(PARTITION)   /* two parts are cut apart, briefly or until they give up */ \
    X(CORRUPT)     /* pieces of bundles arrive damaged: some, or all */         \
    X(DROP)        /* pieces of bundles never arrive, for a while */            \
    X(LATE)        /* messages take longer than steps, by chance */             \
    X(DISK_FULL)   /* the journal's disk is full for a while */                 \
    X(TWO)         /* a second operator asks in the middle of a move */         \
    X(STALE)       /* plans made from a placement that is no longer in force */ \
    X(WRONG_MODEL) /* plans for other experts, top-k, layers, ranks or slots */ \
    X(SHRINK)      /* another user of the pool takes a rank's spares meanwhile */

typedef enum fault {
#define FAULT_ENUM(name) name,
    FAULTS(FAULT_ENUM)
#undef FAULT_ENUM
        N_FAULTS
} fault;

static const char *const fault_names[] = {
#define FAULT_NAME(name) #name,
    FAULTS(FAULT_NAME)
#undef FAULT_NAME
};

/* What the harness breaks on purpose. */
typedef enum sabotage { HONEST, WRONG_WEIGHTS, OTHER_EPOCH, NO_END, NO_OWNER, KEPT_SPARE } sabotage;

typedef struct totals {
    int runs, moved, aborted, refused, recovered, stopped, of[N_FAULTS];
} totals;

typedef struct campaign {
    uint64_t seed;
    bool has[N_FAULTS];
    sabotage sabotage;
    double damage, drop; /* chances on channel MOVE */
    int shrunk;          /* rank whose spares are taken, or -1 */
    bl_journal *journal;
    struct rlimit room;
    totals *sum;
} campaign;

typedef struct rank {
    int rank;
    campaign *c;
    bl_rng rng;
    bl_transport *transport;
    bl_exchange exchange;
    bl_store *store;
    bl_agent *agent;
    bl_recovery *recovery;
    bl_control_epochs epochs;
    uint64_t step, last_move;
    int completed, taken[SPARES], n_taken;
    double busy_since_s; /* 0: no move is under way */
    bool disk_is_full;
    bl_status status;
    bl_error error;
    pthread_t thread;
} rank;

static bl_placement start, goals[GOALS];

static uint64_t token_of(int layer, int expert, uint32_t row) {
    const uint64_t words[] = {(uint64_t)layer, (uint64_t)expert, row};
    return bl_hash64(words, sizeof words);
}

static void fill_bundle(void *bundle, int layer, int expert) {
    unsigned char *bytes = bundle;
    bl_rng rng;
    bl_rng_seed(&rng, (uint64_t)(layer * 100 + expert));
    for (int i = 0; i < BUNDLE; i++)
        bytes[i] = (unsigned char)bl_rng_next(&rng);
}

static bl_status load(void *user, int layer, int expert, void *bundle, bl_error *err) {
    (void)user, (void)err;
    fill_bundle(bundle, layer, expert);
    return BL_OK;
}

static void hear(void *user, int from, const void *data, size_t bytes) {
    rank *r = user;
    bl_recovery_hear(r->recovery, from, data, bytes);
}

/* ---- a network that damages and drops bundles ------------------------------------------------ */

static const bl_transport_ops *true_ops;
static campaign *damaged; /* one rank runs at a time: the simulation sees to that */

static bl_status damaging_send(bl_transport *transport, int peer, bl_channel channel, uint64_t mark,
                               const void *data, size_t bytes, bl_error *err) {
    static bl_rng rng;
    static uint64_t seeded;
    static unsigned char copy[BUNDLE + 256];
    if (channel != BL_CHANNEL_MOVE || bytes > sizeof copy)
        return true_ops->send(transport, peer, channel, mark, data, bytes, err);
    if (seeded != damaged->seed + 1)
        bl_rng_seed(&rng, seeded = damaged->seed + 1);
    const double drop = (double)bl_rng_below(&rng, 1000) * 1e-3,
                 damage = (double)bl_rng_below(&rng, 1000) * 1e-3;
    if (drop < damaged->drop)
        return BL_OK;
    memcpy(copy, data, bytes);
    copy[bytes - 1] = (unsigned char)(copy[bytes - 1] ^ (damage < damaged->damage ? 16 : 0));
    return true_ops->send(transport, peer, channel, mark, copy, bytes, err);
}

static void damage(campaign *c, rank *ranks) {
    static bl_transport_ops ops;
    true_ops = ranks[0].transport->ops;
    ops = *true_ops;
    ops.send = damaging_send;
    damaged = c;
    for (int g = 0; g < RANKS; g++)
        ranks[g].transport->ops = &ops;
}

/* ---- a step ---------------------------------------------------------------------------------- */

typedef struct note {
    int done, busy;
} note;

/* Asked of an owner: with which maps, and which rows of which experts. */
typedef struct question {
    uint64_t epochs[LAYERS];
    int n;
    struct {
        int layer, expert;
        uint32_t row;
    } rows[LAYERS * TOKENS];
} question;

static bool is_whole(const void *bundle, int layer, int expert) {
    unsigned char right[BUNDLE];
    fill_bundle(right, layer, expert);
    return bundle != NULL && memcmp(bundle, right, BUNDLE) == 0;
}

/* What the weights at hand make of a row; of wrong ones something else. */
static uint64_t compute(rank *r, int layer, int expert, uint32_t row) {
    const void *bundle = bl_store_expert(r->store, layer, expert);
    if (!is_whole(bundle, layer, expert) || (r->c->sabotage == WRONG_WEIGHTS && r->completed == 20))
        return 0;
    return token_of(layer, expert, row);
}

/* A living rank that the map names for the expert: any of them, by chance. */
static bl_status find_owner(rank *r, const bl_layer_placement *map, int expert, int *owner,
                            bl_error *err) {
    int owners[RANKS], n = 0;
    for (int g = 0; g < RANKS; g++) {
        if (bl_layer_find(map, g, expert) >= 0 && !bl_recovery_lost(r->recovery)[g])
            owners[n++] = g;
    }
    if (n == 0 || (r->c->sabotage == NO_OWNER && r->completed == 20))
        return bl_fail(err, BL_ERR_INTERNAL, "lost: layer %d: expert %d is on no living rank",
                       map->layer, expert);
    *owner = owners[bl_rng_below(&r->rng, (uint32_t)n)];
    return BL_OK;
}

static bl_status ask(rank *r, question *questions, bl_error *err) {
    memset(questions, 0, sizeof *questions * RANKS);
    for (int l = 0; l < LAYERS; l++) {
        const bl_layer_placement *map = bl_store_map(r->store, layers[l]);
        for (int to = 0; to < RANKS; to++)
            questions[to].epochs[l] =
                map->epoch + (r->c->sabotage == OTHER_EPOCH && r->completed == 20 && r->rank == 1);
        for (int t = 0; t < TOKENS; t++) {
            const int expert = (int)bl_rng_below(&r->rng, EXPERTS);
            int owner = 0;
            BL_TRY(find_owner(r, map, expert, &owner, err));
            question *q = &questions[owner];
            q->rows[q->n].layer = layers[l], q->rows[q->n].expert = expert;
            q->rows[q->n++].row = (uint32_t)bl_rng_next(&r->rng);
        }
    }
    return BL_OK;
}

/* Answer what came from `from`. */
static bl_status answer(rank *r, const bl_message *m, int from, uint64_t *tokens, int *n,
                        bl_error *err) {
    question q = {0};
    if (m->bytes == sizeof q)
        memcpy(&q, m->data, sizeof q);
    for (int l = 0; l < LAYERS && m->bytes == sizeof q; l++) {
        if (q.epochs[l] != bl_store_map(r->store, layers[l])->epoch)
            return bl_fail(err, BL_ERR_INTERNAL,
                           "mixed: ranks %d and %d serve layer %d with "
                           "different epochs",
                           r->rank, from, layers[l]);
    }
    for (int i = 0; i < q.n; i++)
        tokens[i] = compute(r, q.rows[i].layer, q.rows[i].expert, q.rows[i].row);
    *n = q.n;
    return BL_OK;
}

static bl_status check_tokens(const rank *r, const question *q, const bl_message *m,
                              bl_error *err) {
    for (int i = 0; i < q->n; i++) {
        uint64_t token = 0;
        if (m->bytes == sizeof token * (size_t)q->n)
            memcpy(&token, m->data + sizeof token * (size_t)i, sizeof token);
        if (token != token_of(q->rows[i].layer, q->rows[i].expert, q->rows[i].row))
            return bl_fail(err, BL_ERR_INTERNAL, "token: rank %d: layer %d, expert %d of rank %d",
                           r->rank, q->rows[i].layer, q->rows[i].expert, m->from);
    }
    return BL_OK;
}

static bl_status serve(rank *r, bl_error *err) {
    question questions[RANKS];
    uint64_t tokens[RANKS][LAYERS * TOKENS];
    bl_outgoing outgoing[RANKS];
    bl_message incoming[RANKS];
    BL_TRY(ask(r, questions, err));
    for (int g = 0; g < RANKS; g++)
        outgoing[g] = (bl_outgoing){&questions[g], sizeof questions[g]};
    BL_TRY(bl_exchange_alltoallv(&r->exchange, outgoing, incoming, err));
    bl_status st = BL_OK;
    for (int g = 0; g < RANKS && st >= 0; g++) {
        int n = 0;
        if (!bl_recovery_lost(r->recovery)[g])
            st = answer(r, &incoming[g], g, tokens[g], &n, err);
        outgoing[g] = (bl_outgoing){tokens[g], sizeof tokens[g][0] * (size_t)n};
    }
    bl_exchange_release(incoming, RANKS);
    BL_TRY(st);
    BL_TRY(bl_exchange_alltoallv(&r->exchange, outgoing, incoming, err));
    for (int g = 0; g < RANKS && st >= 0; g++) {
        if (!bl_recovery_lost(r->recovery)[g])
            st = check_tokens(r, &questions[g], &incoming[g], err);
    }
    bl_exchange_release(incoming, RANKS);
    return st;
}

/* A move ends before its deadlines are over, on the network's clock. */
static bl_status watch_move(rank *r, bl_error *err) {
    const double now_s = bl_transport_now_s(r->transport);
    if (!bl_agent_is_busy(r->agent))
        r->busy_since_s = 0;
    else if (r->busy_since_s == 0)
        r->busy_since_s = now_s;
    else if (now_s - r->busy_since_s > MOVE_S)
        return bl_fail(err, BL_ERR_INTERNAL, "hang: rank %d moves for %.0f s: %s", r->rank,
                       now_s - r->busy_since_s, bl_agent_state(r->agent));
    return BL_OK;
}

static bl_status step_once(rank *r, bool *over, bl_error *err) {
    note mine = {0}, all[RANKS];
    BL_TRY(bl_agent_hear(r->agent, err));
    if (bl_recovery_is_due(r->recovery))
        return bl_fail(err, BL_ERR_PEER, "a rank was lost");
    mine.done = r->completed >= STEPS;
    mine.busy = bl_agent_is_busy(r->agent);
    BL_TRY(bl_exchange_allgather(&r->exchange, &mine, sizeof mine, all, err));
    BL_TRY(bl_agent_at_step(r->agent, r->step, err));
    BL_TRY(watch_move(r, err));
    BL_TRY(serve(r, err));
    bool done = true, busy = false;
    for (int g = 0; g < RANKS; g++) {
        if (bl_recovery_lost(r->recovery)[g])
            continue;
        done = done && all[g].done;
        busy = busy || all[g].busy;
    }
    r->step++;
    r->completed++;
    *over = done && !busy;
    return BL_OK;
}

/* ---- the operator ---------------------------------------------------------------------------- */

/* A plan as its file has it; of ranks that were lost it has no slots. */
static json_t *plan_of(const rank *r, const bl_placement *goal, int n_experts, int top_k,
                       uint64_t epoch) {
    json_t *all = json_array();
    for (int l = 0; l < LAYERS; l++) {
        const bl_layer_placement *layer = &goal->layers[l];
        json_t *slots = json_array();
        for (int g = 0; g < RANKS; g++) {
            json_t *mine = json_array();
            for (int slot = layer->begin[g];
                 slot < layer->begin[g + 1] && bl_agent_lives(r->agent, g); slot++)
                json_array_append_new(mine, json_integer(layer->expert[slot]));
            json_array_append_new(slots, mine);
        }
        json_array_append_new(all, json_pack("{s:i, s:o, s:{s:s}}", "layer", layer->layer, "slots",
                                             slots, "split", "rule", "even"));
    }
    return json_pack("{s:s, s:i, s:{s:s, s:i, s:i}, s:i, s:I, s:o}", "format", "ballast-plan",
                     "version", 1, "model", "name", "m", "experts", n_experts, "top_k", top_k,
                     "ranks", RANKS, "epoch", (json_int_t)epoch, "layers", all);
}

static bl_control_cluster cluster_of(const rank *r) {
    return (bl_control_cluster){.n_experts = EXPERTS,
                                .top_k = TOP_K,
                                .n_ranks = RANKS,
                                .rule = "even",
                                .journal = r->c->journal};
}

/* Control's answer to a request (taken over): moves that it starts, or -1 when it refuses; `why` then. */
static int request(rank *r, json_t *asked, char *why, size_t why_bytes) {
    const bl_control_cluster cluster = cluster_of(r);
    bl_control_request parsed = {0};
    bl_error err = BL_ERROR_INIT;
    char *line = json_dumps(asked, JSON_COMPACT);
    json_decref(asked);
    json_t *told = bl_control_parse(line, strlen(line), &parsed, &err) < 0
                       ? bl_control_refusal(&err)
                       : bl_control_answer(&parsed, true, &cluster, &r->epochs, r->agent);
    while (told == NULL) { /* the journal's thread is at work; no time passes on the network */
        const struct timespec pause = {0, 200000};
        nanosleep(&pause, NULL);
        told = bl_control_answer(&parsed, true, &cluster, &r->epochs, r->agent);
    }
    free(line);
    bl_control_request_free(&parsed);
    const int moves = json_is_true(json_object_get(told, "ok"))
                          ? (int)json_integer_value(json_object_get(told, "moves"))
                          : -1;
    const json_t *text = json_object_get(json_object_get(told, "error"), "message");
    snprintf(why, why_bytes, "%s", json_is_string(text) ? json_string_value(text) : "");
    json_decref(told);
    r->c->sum->refused += moves < 0;
    return moves;
}

static json_t *apply_of(json_t *plan) {
    return json_pack("{s:s, s:o}", "op", "apply", "plan", plan);
}

/* A plan that must be refused, and is. */
static bl_status refuse(rank *r, json_t *plan, const char *what, bl_error *err) {
    char why[300];
    const bool was_busy = bl_agent_is_busy(r->agent);
    if (request(r, apply_of(plan), why, sizeof why) > 0 ||
        (!was_busy && bl_agent_is_busy(r->agent)))
        return bl_fail(err, BL_ERR_INTERNAL, "accepted: %s", what);
    return BL_OK;
}

static bl_status ask_wrongly(rank *r, const bl_placement *goal, bl_error *err) {
    const int kind = (int)bl_rng_below(&r->rng, 5);
    json_t *plan = plan_of(r, goal, EXPERTS + (kind == 0), TOP_K + (kind == 1), 0);
    json_t *layer = json_array_get(json_object_get(plan, "layers"), 0);
    json_t *slots = json_object_get(layer, "slots");
    if (kind == 2)
        json_object_set_new(layer, "layer", json_integer(2));
    else if (kind == 3)
        json_array_append_new(slots, json_array());
    else if (kind == 4)
        json_array_append_new(json_array_get(slots, 0), json_integer(0));
    return refuse(r, plan, "a plan for another model or cluster", err);
}

static bl_status operate(rank *r, bl_error *err) {
    const campaign *c = r->c;
    const bl_control_cluster cluster = cluster_of(r);
    const bl_placement *goal = &goals[bl_rng_below(&r->rng, GOALS)];
    const bool busy = bl_agent_is_busy(r->agent);
    const uint32_t dice = bl_rng_below(&r->rng, 12);
    char why[300];
    bl_control_settle(&cluster, &r->epochs, r->agent);
    if (r->completed >= STEPS)
        return BL_OK;
    if (c->has[WRONG_MODEL] && dice < 3)
        BL_TRY(ask_wrongly(r, goal, err));
    if (c->has[STALE] && dice < 6) {
        const uint64_t never = r->epochs.in_force + 2 + dice;
        BL_TRY(refuse(r, plan_of(r, goal, EXPERTS, TOP_K, never), "a stale plan", err));
    }
    if (c->has[TWO] && busy && dice < 6)
        BL_TRY(refuse(r, plan_of(r, goal, EXPERTS, TOP_K, 0), "a second operator's plan", err));
    if (busy && dice == 11 && bl_rng_below(&r->rng, 30) == 0)
        request(r, json_pack("{s:s}", "op", "abort"), why, sizeof why);
    if (!busy && r->disk_is_full)
        return refuse(r, plan_of(r, goal, EXPERTS, TOP_K, 0), "a move that is not recorded", err);
    if (!busy && dice < 4)
        request(r, apply_of(plan_of(r, goal, EXPERTS, TOP_K, 0)), why, sizeof why);
    return BL_OK;
}

/* ---- faults of one's own --------------------------------------------------------------------- */

static void fill_disk(rank *r, bool full) {
    struct rlimit room = r->c->room;
    if (r->disk_is_full == full)
        return;
    if (full)
        room.rlim_cur = 1;
    if (setrlimit(RLIMIT_FSIZE, &room) == 0)
        r->disk_is_full = full;
}

static void take_spares(rank *r, bool take) {
    while (take && r->n_taken < SPARES &&
           bl_store_reserve(r->store, &r->taken[r->n_taken], NULL) >= 0)
        r->n_taken++;
    while (!take && r->n_taken > (r->c->sabotage == KEPT_SPARE && r->rank == 2))
        bl_store_unreserve(r->store, r->taken[--r->n_taken]);
}

static void misbehave(rank *r) {
    campaign *c = r->c;
    const bool meanwhile = r->completed >= 15 && r->completed < 50;
    const bool leads = bl_agent_leader(r->agent) == r->rank;
    if (r->rank == c->shrunk)
        take_spares(r, meanwhile);
    if (c->has[DISK_FULL] && leads)
        fill_disk(r, meanwhile);
    if (c->has[DROP] && leads)
        c->drop = meanwhile ? 1 : 0;
}

static bl_status recover(rank *r, const bl_error *why, bl_error *err) {
    bl_recovered made;
    char text[sizeof why->text];
    memcpy(text, why->text, sizeof text);
    const bl_status st = bl_recovery_run(r->recovery, r->step, r->exchange.sequence, &made, err);
    if (st < 0)
        return bl_fail(&r->error, st, "%.150s; after: %.80s", err->text, text);
    if (st == BL_OK) {
        r->step = made.step;
        bl_exchange_restart(&r->exchange, made.sequence, bl_recovery_lost(r->recovery));
        r->c->sum->recovered++;
    }
    return st;
}

static void count_moves(rank *r) {
    bl_agent_status status;
    bl_agent_get_status(r->agent, &status);
    if (!status.leads || status.busy || status.term == r->last_move)
        return;
    r->last_move = status.term;
    r->c->sum->moved += status.outcome == BL_TX_MOVED;
    r->c->sum->aborted += status.outcome == BL_TX_ABORTED;
}

static bl_status run(rank *r) {
    for (bool over = false; !over;) {
        bl_error err = BL_ERROR_INIT;
        bl_status st = BL_OK;
        misbehave(r);
        if (bl_agent_leader(r->agent) == r->rank)
            st = operate(r, &err);
        if (st >= 0)
            st = step_once(r, &over, &err);
        if (st == BL_ERR_PEER) {
            const bl_error why = err;
            err = BL_ERROR_INIT;
            st = recover(r, &why, &err);
        }
        count_moves(r);
        if (st < 0 && r->error.code >= 0)
            r->error = err;
        if (st != BL_OK)
            return st == BL_LIMIT ? BL_OK : st;
    }
    return BL_OK;
}

static void *rank_main(void *user) {
    rank *r = user;
    r->status = run(r);
    take_spares(r, false);
    fill_disk(r, false);
    if (r->status < 0)
        bl_transport_abandon(r->transport);
    else
        bl_transport_close(r->transport);
    return NULL;
}

/* ---- a run ----------------------------------------------------------------------------------- */

static int open_rank(rank *r, campaign *c, bl_transport *transport) {
    bl_error err;
    bl_agent_options options = BL_AGENT_OPTIONS_INIT;
    const int g = r->rank;
    *r = (rank){.rank = g, .c = c, .transport = transport, .error = BL_ERROR_INIT};
    bl_rng_seed(&r->rng, c->seed * 16 + (uint64_t)g);
    r->exchange = bl_exchange_over(transport, EXCHANGE_S);
    options.step_bytes = 2 * BL_AGENT_MIN_STEP_BYTES;
    options.transaction.agree_ns = options.transaction.copy_ns =
        c->sabotage == NO_END ? UINT64_MAX / 4 : 5 * MS;
    options.transaction.commit_ns = 500 * MS;
    assert_ok(bl_store_create(&start, g, BUNDLE, SPARES, &r->store, &err));
    for (int l = 0; l < LAYERS; l++) {
        const bl_layer_placement *map = bl_store_map(r->store, layers[l]);
        for (int slot = map->begin[g]; slot < map->begin[g + 1]; slot++) {
            if (map->expert[slot] != BL_NO_EXPERT)
                fill_bundle(bl_store_slot(r->store, layers[l], slot), layers[l], map->expert[slot]);
        }
    }
    assert_ok(bl_agent_create(r->store, transport, layers, LAYERS, &options, &r->agent, &err));
    assert_ok(bl_recovery_create(r->agent, r->store, transport, load, NULL, EXCHANGE_S,
                                 &r->recovery, &err));
    bl_agent_on_told(r->agent, hear, r);
    return 0;
}

static int n_bits(uint64_t set) {
    int n = 0;
    for (; set != 0; set &= set - 1)
        n++;
    return n;
}

/* What the network does to this run; returns who must go on, 0: hard to say. */
static uint64_t draw_network(campaign *c, bl_rng *rng, bl_sim_options *options,
                             bl_sim_fault *faults) {
    const uint64_t everybody = (1 << RANKS) - 1;
    uint64_t go_on = everybody;
    int n = 0, losses = 0;
    *options = BL_SIM_OPTIONS_INIT;
    options->seed = c->seed;
    options->lose = 0.1 * (double)bl_rng_below(rng, 3);
    if (c->has[LATE])
        options->jitter_s = 2e-3;
    if (c->sabotage == NO_END)
        options->latency_s = 0.1;
    for (int kind = KILL; kind <= PARTITION; kind++) {
        if (!c->has[kind])
            continue;
        const bool brief = kind != KILL && bl_rng_below(rng, 2) == 0;
        const double at_s = 1e-6 * (double)(1 + bl_rng_below(rng, 16000));
        const double lasts_s = brief ? 0.1 + 0.1 * (double)bl_rng_below(rng, 28) : 1e6;
        const uint64_t part = kind == PARTITION ? 1 + bl_rng_below(rng, (uint32_t)everybody - 1)
                                                : (uint64_t)1 << bl_rng_below(rng, RANKS);
        faults[n++] = (bl_sim_fault){kind == KILL   ? BL_SIM_KILL
                                     : kind == STOP ? BL_SIM_STOP
                                                    : BL_SIM_PARTITION,
                                     at_s, at_s + lasts_s, part};
        losses += !brief;
        if (!brief)
            go_on = 2 * n_bits(part) > RANKS ? part : everybody & ~part;
    }
    options->faults = faults;
    options->n_faults = n;
    return losses <= 1 ? go_on : 0;
}

static const char *judge(const rank *ranks, uint64_t go_on) {
    static char text[sizeof ranks->error.text];
    const rank *first = NULL;
    uint64_t went_on = 0;
    bool in_doubt = false;
    text[0] = '\0';
    for (int g = 0; g < RANKS; g++) {
        const rank *r = &ranks[g];
        if (r->status < 0 && r->status != BL_ERR_ABORTED && r->status != BL_ERR_PEER) {
            snprintf(text, sizeof text, "%s", r->error.text);
            return text; /* the cause; others only saw that rank go */
        }
    }
    for (int g = 0; g < RANKS; g++) {
        const rank *r = &ranks[g];
        in_doubt = in_doubt || strstr(r->error.text, "before the survivors knew") != NULL;
        if (r->status < 0)
            continue;
        went_on |= (uint64_t)1 << g;
        first = first == NULL ? r : first;
        if (bl_store_spares_free(r->store) != SPARES)
            snprintf(text, sizeof text, "leak: rank %d ends with %d of %d spares", g,
                     bl_store_spares_free(r->store), SPARES);
        if (bl_recovery_lost(r->recovery)[first->rank] || bl_recovery_lost(first->recovery)[g])
            snprintf(text, sizeof text, "split: ranks %d and %d both go on, without each other",
                     first->rank, g);
        for (int l = 0; l < LAYERS; l++) {
            const bl_layer_placement *a = bl_store_map(first->store, layers[l]),
                                     *b = bl_store_map(r->store, layers[l]);
            if (a->epoch != b->epoch ||
                memcmp(a->expert, b->expert, sizeof *a->expert * RANKS * SLOTS) != 0)
                snprintf(text, sizeof text, "mixed: ranks %d and %d end with different maps",
                         first->rank, g);
        }
    }
    /* a fault may come when all is over */
    if (text[0] == '\0' && go_on != 0 && went_on != go_on && n_bits(went_on) < RANKS && !in_doubt)
        snprintf(text, sizeof text, "split: of 0x%x, 0x%x went on", (unsigned)go_on,
                 (unsigned)went_on);
    return text;
}

/* "" when all went well, else the invariant that did not hold, and how. */
static const char *run_campaign(campaign *c) {
    static rank ranks[RANKS];
    bl_error err;
    bl_rng rng;
    bl_sim_options options;
    bl_sim_fault faults[MAX_FAULTS];
    bl_transport *handles[RANKS];
    bl_journal_past past;
    bl_rng_seed(&rng, c->seed);
    const uint64_t go_on = draw_network(c, &rng, &options, faults);
    c->damage = !c->has[CORRUPT] ? 0 : bl_rng_below(&rng, 2) == 0 ? 0.2 : 1;
    c->shrunk = c->has[SHRINK] ? (int)bl_rng_below(&rng, RANKS) : -1;
    if (c->sabotage == KEPT_SPARE)
        c->shrunk = 2;
    if (c->has[DISK_FULL])
        assert_ok(
            bl_journal_open(bl_test_temp("campaign.journal"), NULL, &past, &c->journal, &err));
    assert_ok(bl_transport_sim_open(RANKS, &options, handles, &err));
    for (int g = 0; g < RANKS; g++) {
        ranks[g].rank = g;
        open_rank(&ranks[g], c, handles[g]);
    }
    damage(c, ranks);
    for (int g = 0; g < RANKS; g++)
        assert_int_equal(pthread_create(&ranks[g].thread, NULL, rank_main, &ranks[g]), 0);
    for (int g = 0; g < RANKS; g++)
        pthread_join(ranks[g].thread, NULL);
    bl_journal_close(c->journal);
    const char *text = judge(ranks, go_on);
    for (int g = 0; g < RANKS; g++) {
        c->sum->stopped += ranks[g].status < 0;
        bl_recovery_free(ranks[g].recovery);
        bl_agent_free(ranks[g].agent);
        bl_store_free(ranks[g].store);
    }
    if (c->has[DISK_FULL])
        unlink(bl_test_temp("campaign.journal"));
    c->sum->runs++;
    return text;
}

/* ---- tests ----------------------------------------------------------------------------------- */

static campaign draw(uint64_t seed, totals *sum) {
    campaign c = {.seed = seed, .sum = sum};
    bl_rng rng;
    bl_rng_seed(&rng, ~seed);
    getrlimit(RLIMIT_FSIZE, &c.room);
    c.has[seed % N_FAULTS] = true; /* each as often as the others, alone or with a second one */
    if (bl_rng_below(&rng, 2) == 0)
        c.has[bl_rng_below(&rng, N_FAULTS)] = true;
    for (int kind = 0; kind < N_FAULTS; kind++)
        sum->of[kind] += c.has[kind];
    return c;
}

static const char *names(const campaign *c) {
    static char text[100];
    text[0] = '\0';
    for (int kind = 0; kind < N_FAULTS; kind++) {
        if (c->has[kind])
            snprintf(text + strlen(text), sizeof text - strlen(text), " %s", fault_names[kind]);
    }
    return text;
}

static void test_all_that_can_go_wrong(void **state) {
    (void)state;
    totals sum = {0};
    const char *runs = getenv("BALLAST_CAMPAIGN_SEEDS"), *one = getenv("BALLAST_CAMPAIGN_SEED");
    const uint64_t n = runs != NULL ? strtoull(runs, NULL, 10) : 36;
    const uint64_t first = one != NULL ? strtoull(one, NULL, 10) : 0;
    for (uint64_t seed = first; seed < (one != NULL ? first + 1 : n); seed++) {
        campaign c = draw(seed, &sum);
        const char *text = run_campaign(&c);
        if (text[0] != '\0')
            fail_msg("seed %llu (%s): %s", (unsigned long long)seed, names(&c), text);
    }
    print_message(
        "# %d runs: %d moves done, %d aborted, %d requests refused, %d recoveries, %d ranks "
        "stopped\n",
        sum.runs, sum.moved, sum.aborted, sum.refused, sum.recovered, sum.stopped);
    for (int kind = 0; kind < N_FAULTS && one == NULL && n >= N_FAULTS; kind++)
        assert_true(sum.of[kind] > 0);
    assert_true(one != NULL ||
                (sum.moved > 0 && sum.aborted > 0 && sum.refused > 0 && sum.recovered > 0));
}

/* Each invariant is told by its name when the harness itself breaks it. */
static void test_each_invariant_can_fail(void **state) {
    (void)state;
    static const char *const words[] = {[WRONG_WEIGHTS] = "token:",
                                        [OTHER_EPOCH] = "mixed:",
                                        [NO_END] = "hang:",
                                        [NO_OWNER] = "lost:",
                                        [KEPT_SPARE] = "leak:"};
    for (int kind = WRONG_WEIGHTS; kind <= KEPT_SPARE; kind++) {
        totals sum = {0};
        campaign c = draw(0, &sum);
        memset(c.has, 0, sizeof c.has);
        c.sabotage = (sabotage)kind;
        c.has[DROP] = kind == NO_END;
        bl_test_has(run_campaign(&c), words[kind]);
    }
}

static int set_up(void **state) {
    (void)state;
    bl_error err;
    bl_rng rng;
    const int slots[RANKS] = {SLOTS, SLOTS, SLOTS, SLOTS, SLOTS};
    signal(SIGXFSZ, SIG_IGN);
    bl_rng_seed(&rng, 3);
    for (int p = 0; p <= GOALS; p++) {
        bl_placement *made = p == 0 ? &start : &goals[p - 1];
        assert_ok(bl_placement_create(RANKS, EXPERTS, layers, LAYERS, slots, made, &err));
        for (int i = 0; i < LAYERS * EXPERTS * 2;) { /* each on two ranks */
            bl_layer_placement *layer = &made->layers[i / (EXPERTS * 2)];
            const int slot = (int)bl_rng_below(&rng, RANKS * SLOTS), expert = i / 2 % EXPERTS;
            if (layer->expert[slot] != BL_NO_EXPERT ||
                bl_layer_find(layer, slot / SLOTS, expert) >= 0)
                continue;
            layer->expert[slot] = expert;
            i++;
        }
    }
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    bl_placement_free(&start);
    for (int g = 0; g < GOALS; g++)
        bl_placement_free(&goals[g]);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_that_can_go_wrong),
        cmocka_unit_test(test_each_invariant_can_fail),
    };
    return cmocka_run_group_tests_name("campaign", tests, set_up, tear_down);
}
