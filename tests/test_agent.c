/* Agents over the local transport with real stores. Each rank is a thread that serves steps: a word
 * with all others (so that no rank is more than one step ahead), at_step, then a look at every
 * expert it holds. */
#include "tests/support/support.h"

#include "core/mem.h"
#include "core/progress.h"
#include "core/rng.h"
#include "rebalancer/agent.h"
#include "rebalancer/messages.h"
#include "runtime/transport_ops.h"
#include "runtime/transport_sim.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    RANKS = 4,
    LAYERS = 3,
    EXPERTS = 12,
    SLOTS = 4,
    SPARES = 2,
    BUNDLE = 5000,
    MAX_STEPS = 100000
};
static const int layer_ids[LAYERS] = {1, 2, 5};

typedef struct cluster cluster;

typedef struct rank {
    cluster *cluster;
    int self;
    bl_store *store;
    bl_transport *transport;
    bl_agent *agent;
    bl_agent_status status;
    uint64_t *epochs; /* [MAX_STEPS] sum over layers, as seen in each step */
    uint64_t n_steps;
    double begun_s, longest_s; /* on the transport's clock: the latest step's begin; longest step */
    bl_status result;
    bl_error err;
    pthread_t thread;
} rank;

struct cluster {
    bl_agent_options options;
    rank ranks[RANKS];
    /* rank 0's orders, carried out in turn, each when the one before is over */
    bl_placement *goals;
    int n_goals;
    int least_steps;
    int stop_after; /* steps after which rank 0 aborts; 0: never */
    int deaf_rank;  /* never calls its agent again after the first move began; -1: none */
    int dead_rank;  /* dies after so many steps; -1: none */
    int dies_after;
    int damaged_piece; /* this piece on channel MOVE is damaged; 0: none, -1: all */
    bool drops;        /* nothing on channel MOVE arrives */
    int fails_at;      /* this send of rank 2 outside its steps fails, 0: none */
    int n_sends;       /* of rank 2 so far */
    bool simulated;    /* ranks close their transports themselves: the next one's turn */
    uint64_t history;
    int n_pieces;
    bl_tx_outcome outcome;
    char reason[BL_TX_REASON];
    int n_moves;
};

static void fill_bundle(unsigned char *bundle, int layer, int expert) {
    bl_rng rng;
    bl_rng_seed(&rng, (uint64_t)(layer * 1000 + expert));
    for (int i = 0; i < BUNDLE; i++)
        bundle[i] = (unsigned char)bl_rng_next(&rng);
}

/* ---- a transport that damages a byte --------------------------------------------------------- */

static const bl_transport_ops *true_ops;
static cluster *damaged_cluster;
static pthread_mutex_t damage_lock = PTHREAD_MUTEX_INITIALIZER;

static bl_status damaging_send(bl_transport *transport, int peer, bl_channel channel, uint64_t mark,
                               const void *data, size_t bytes, bl_error *err) {
    static unsigned char copy[1 << 20];
    if (bl_transport_rank(transport) == 2 && channel != BL_CHANNEL_STEP &&
        ++damaged_cluster->n_sends == damaged_cluster->fails_at)
        return bl_fail(err, BL_ERR_IO, "the network card is on fire");
    if (channel != BL_CHANNEL_MOVE)
        return true_ops->send(transport, peer, channel, mark, data, bytes, err);
    if (damaged_cluster->drops)
        return BL_OK;
    pthread_mutex_lock(&damage_lock);
    const int n = ++damaged_cluster->n_pieces, which = damaged_cluster->damaged_piece;
    memcpy(copy, data, bytes);
    if (which < 0 || which == n)
        copy[BL_WIRE_CHUNK_BYTES + (bytes - BL_WIRE_CHUNK_BYTES) / 2] ^= 4;
    const bl_status st = true_ops->send(transport, peer, channel, mark, copy, bytes, err);
    pthread_mutex_unlock(&damage_lock);
    return st;
}

static void damage_transports(cluster *c) {
    static bl_transport_ops ops;
    true_ops = c->ranks[0].transport->ops;
    ops = *true_ops;
    ops.send = damaging_send;
    damaged_cluster = c;
    for (int g = 0; g < RANKS; g++) {
        if (c->fails_at == 0 || g == 2)
            c->ranks[g].transport->ops = &ops;
    }
}

/* ---- serving --------------------------------------------------------------------------------- */

static bl_status check_experts(rank *r, bl_error *err) {
    unsigned char expected[BUNDLE];
    uint64_t sum = 0;
    for (int l = 0; l < LAYERS; l++) {
        const bl_layer_placement *map = bl_store_map(r->store, layer_ids[l]);
        sum += map->epoch;
        BL_TRY(bl_layer_placement_check(map, NULL, err));
        for (int slot = map->begin[r->self]; slot < map->begin[r->self + 1]; slot++) {
            const int expert = map->expert[slot];
            if (expert == BL_NO_EXPERT)
                continue;
            const void *bundle = bl_store_expert(r->store, layer_ids[l], expert);
            fill_bundle(expected, layer_ids[l], expert);
            if (bundle == NULL || memcmp(bundle, expected, BUNDLE) != 0)
                return bl_fail_at(err, BL_ERR_INTERNAL, bl_at_expert(NULL, layer_ids[l], expert),
                                  "rank %d serves something else", r->self);
        }
    }
    r->epochs[r->n_steps++] = sum;
    return BL_OK;
}

/* Rank 0's orders; false when there is nothing left to do. */
static bl_status command(rank *r, int *next_goal, uint64_t *begun_at, bool *more, bl_error *err) {
    cluster *c = r->cluster;
    *more = true;
    if (bl_agent_is_busy(r->agent)) {
        if (c->stop_after > 0 && r->n_steps == *begun_at + (uint64_t)c->stop_after)
            BL_TRY(bl_agent_stop(r->agent, "the operator says so", err));
        return BL_OK;
    }
    bl_agent_get_status(r->agent, &r->status);
    c->outcome = r->status.outcome;
    snprintf(c->reason, sizeof c->reason, "%s", r->status.reason);
    if (*next_goal > 0 && c->outcome != BL_TX_MOVED)
        *more = false;
    while (*more && !bl_agent_is_busy(r->agent)) {
        *more = *next_goal < c->n_goals;
        int n_moves = 0;
        if (*more)
            BL_TRY(bl_agent_apply(r->agent, &c->goals[(*next_goal)++], &n_moves, err));
        c->n_moves += n_moves;
        *begun_at = r->n_steps;
    }
    *more = *more || r->n_steps < (uint64_t)c->least_steps;
    return BL_OK;
}

/* A word with all living ranks: does anybody want to go on? */
static bl_status meet(rank *r, uint64_t step, unsigned char going, bool *gone, bool *any,
                      bl_error *err) {
    bl_error lost;
    for (int g = 0; g < RANKS; g++) {
        lost = BL_ERROR_INIT;
        if (!gone[g] && bl_transport_send(r->transport, g, BL_CHANNEL_STEP, step, &going, 1,
                                          &lost) == BL_ERR_PEER)
            gone[g] = true;
    }
    *any = false;
    for (int g = 0; g < RANKS; g++) {
        bl_message m;
        lost = BL_ERROR_INIT;
        if (gone[g])
            continue;
        const bl_status st =
            bl_transport_receive(r->transport, g, BL_CHANNEL_STEP, step, 30, &m, &lost);
        if (st < 0 && st != BL_ERR_PEER)
            return bl_fail(err, st, "%s", lost.text);
        gone[g] = st < 0;
        if (st < 0)
            continue;
        *any = *any || m.data[0] == 1;
        bl_message_free(&m);
    }
    return BL_OK;
}

/* From one step's begin to the next one's. */
static void clock_step(rank *r) {
    const double now_s = bl_transport_now_s(r->transport);
    if (r->n_steps > 0 && now_s - r->begun_s > r->longest_s)
        r->longest_s = now_s - r->begun_s;
    r->begun_s = now_s;
}

static bl_status serve(rank *r, bl_error *err) {
    const cluster *c = r->cluster;
    int next_goal = 0;
    uint64_t begun_at = 0;
    bool gone[RANKS] = {false};
    for (uint64_t step = 0; step < MAX_STEPS; step++) {
        bool any, more = bl_agent_is_busy(r->agent);
        if (r->self == 0)
            BL_TRY(command(r, &next_goal, &begun_at, &more, err));
        if (r->self == c->dead_rank && step == (uint64_t)c->dies_after) {
            bl_transport_abandon(r->transport);
            r->transport = NULL;
            return BL_OK;
        }
        BL_TRY(meet(r, step, more ? 1 : 0, gone, &any, err));
        if (r->self != c->deaf_rank)
            BL_TRY(bl_agent_at_step(r->agent, step, err));
        clock_step(r);
        BL_TRY(check_experts(r, err));
        if (!any)
            return BL_OK;
    }
    return bl_fail(err, BL_ERR_TIMEOUT, "the plans did not come to an end");
}

static void *rank_main(void *user) {
    rank *r = user;
    r->result = serve(r, &r->err);
    bl_agent_get_status(r->agent, &r->status);
    if (r->cluster->simulated) {
        if (r->self == 1)
            r->cluster->history = bl_transport_sim_history(r->transport);
        if (r->result < 0) /* as a process that ends with an error */
            bl_transport_abandon(r->transport);
        else
            bl_transport_close(r->transport);
        r->transport = NULL;
    }
    return NULL;
}

/* ---- clusters -------------------------------------------------------------------------------- */

static void random_placement(bl_rng *rng, bl_placement *out) {
    bl_error err;
    int slots[RANKS];
    for (int g = 0; g < RANKS; g++)
        slots[g] = SLOTS;
    assert_ok(bl_placement_create(RANKS, EXPERTS, layer_ids, LAYERS, slots, out, &err));
    for (int l = 0; l < LAYERS; l++) {
        bl_layer_placement *layer = &out->layers[l];
        for (int expert = 0; expert < EXPERTS; expert++) {
            uint32_t slot;
            do
                slot = bl_rng_below(rng, RANKS * SLOTS);
            while (layer->expert[slot] != BL_NO_EXPERT);
            layer->expert[slot] = expert;
        }
        for (int slot = 0; slot < RANKS * SLOTS; slot++) {
            const int expert = (int)bl_rng_below(rng, EXPERTS);
            if (layer->expert[slot] == BL_NO_EXPERT &&
                bl_layer_find(layer, slot / SLOTS, expert) < 0)
                layer->expert[slot] = expert;
        }
    }
}

static void open_cluster(cluster *c, uint64_t seed, int n_goals) {
    bl_error err;
    bl_rng rng;
    bl_placement initial;
    bl_transport *handles[RANKS];
    bl_rng_seed(&rng, seed);
    *c = (cluster){
        .options = BL_AGENT_OPTIONS_INIT, .n_goals = n_goals, .deaf_rank = -1, .dead_rank = -1};
    c->options.step_bytes = 8192; /* less than two bundles */
    random_placement(&rng, &initial);
    assert_ok(BL_CALLOC(c->goals, n_goals, &err));
    for (int i = 0; i < n_goals; i++)
        random_placement(&rng, &c->goals[i]);
    assert_ok(bl_transport_local_open(RANKS, handles, &err));
    for (int g = 0; g < RANKS; g++) {
        rank *r = &c->ranks[g];
        *r = (rank){.cluster = c, .self = g, .transport = handles[g], .err = BL_ERROR_INIT};
        assert_ok(BL_CALLOC(r->epochs, MAX_STEPS, &err));
        assert_ok(bl_store_create(&initial, g, BUNDLE, SPARES, &r->store, &err));
        for (int l = 0; l < LAYERS; l++) {
            const bl_layer_placement *map = bl_store_map(r->store, layer_ids[l]);
            for (int slot = map->begin[g]; slot < map->begin[g + 1]; slot++) {
                if (map->expert[slot] != BL_NO_EXPERT)
                    fill_bundle(bl_store_slot(r->store, layer_ids[l], slot), layer_ids[l],
                                map->expert[slot]);
            }
        }
    }
    bl_placement_free(&initial);
}

static void run_cluster(cluster *c) {
    bl_error err;
    for (int g = 0; g < RANKS; g++) {
        rank *r = &c->ranks[g];
        assert_ok(bl_agent_create(r->store, r->transport, layer_ids, LAYERS, &c->options, &r->agent,
                                  &err));
    }
    for (int g = 0; g < RANKS; g++)
        assert_int_equal(pthread_create(&c->ranks[g].thread, NULL, rank_main, &c->ranks[g]), 0);
    for (int g = 0; g < RANKS; g++)
        pthread_join(c->ranks[g].thread, NULL);
    for (int g = 0; g < RANKS; g++) {
        if (c->ranks[g].result < 0 && !(c->simulated && g == c->dead_rank))
            fail_msg("rank %d: %s", g, c->ranks[g].err.text);
        assert_true(c->ranks[g].status.max_step_bytes <= (uint64_t)c->options.step_bytes);
    }
}

/* All living ranks served every step with the same epochs, and end with the same map and all spares. */
static void check_cluster(const cluster *c) {
    const rank *first = &c->ranks[c->dead_rank == 0 ? 1 : 0];
    for (int g = 0; g < RANKS; g++) {
        const rank *r = &c->ranks[g];
        if (g == c->dead_rank)
            continue;
        assert_true(r->n_steps == first->n_steps);
        assert_memory_equal(r->epochs, first->epochs, sizeof *r->epochs * (size_t)r->n_steps);
        assert_int_equal(bl_store_spares_free(r->store), SPARES);
        for (int l = 0; l < LAYERS; l++) {
            const bl_layer_placement *map = bl_store_map(r->store, layer_ids[l]);
            const bl_layer_placement *other = bl_store_map(first->store, layer_ids[l]);
            assert_int_equal(bl_layer_moves(map, other) + bl_layer_moves(other, map), 0);
        }
    }
}

static void close_cluster(cluster *c) {
    for (int g = 0; g < RANKS; g++) {
        bl_agent_free(c->ranks[g].agent);
        bl_store_free(c->ranks[g].store);
        bl_transport_close(c->ranks[g].transport);
        free(c->ranks[g].epochs);
    }
    for (int i = 0; i < c->n_goals; i++)
        bl_placement_free(&c->goals[i]);
    free(c->goals);
}

/* ---- tests ----------------------------------------------------------------------------------- */

static void test_twenty_plans(void **state) {
    (void)state;
    static cluster c;
    open_cluster(&c, 7, 20);
    const size_t before = bl_store_resident_bytes(c.ranks[0].store);
    run_cluster(&c);
    check_cluster(&c);
    assert_int_equal(c.outcome, BL_TX_MOVED);
    assert_in_range(c.n_moves, 400, 960);
    uint64_t bytes = 0;
    for (int g = 0; g < RANKS; g++)
        bytes += c.ranks[g].status.sent_bytes;
    assert_true(bytes >= (uint64_t)c.n_moves * BUNDLE);
    assert_true(bytes <= (uint64_t)c.n_moves * (BUNDLE + 4 * BL_WIRE_CHUNK_BYTES));
    for (int l = 0; l < LAYERS; l++)
        assert_int_equal(
            bl_layer_moves(bl_store_map(c.ranks[2].store, layer_ids[l]), &c.goals[19].layers[l]),
            0);
    assert_int_equal(bl_store_resident_bytes(c.ranks[0].store), before);
    print_message(
        "# %d moves in %llu steps, %llu holds, longest step %.3f ms, hold %.3f ms\n", c.n_moves,
        (unsigned long long)c.ranks[0].n_steps, (unsigned long long)c.ranks[0].status.holds,
        (double)c.ranks[0].status.max_step_ns * 1e-6, (double)c.ranks[0].status.max_hold_ns * 1e-6);
    close_cluster(&c);
}

/* One damaged byte: the bundle is sent again, and the plan is carried out. */
static void test_one_damaged_byte_is_repaired(void **state) {
    (void)state;
    static cluster c;
    open_cluster(&c, 8, 3);
    c.damaged_piece = 9;
    damage_transports(&c);
    run_cluster(&c);
    check_cluster(&c);
    assert_int_equal(c.outcome, BL_TX_MOVED);
    close_cluster(&c);
}

/* Damage that comes back: aborted by verify, the old placement serves on. */
static void test_damage_is_caught_and_the_old_placement_serves(void **state) {
    (void)state;
    static cluster c;
    open_cluster(&c, 9, 1);
    c.damaged_piece = -1;
    damage_transports(&c);
    run_cluster(&c);
    check_cluster(&c);
    assert_int_equal(c.outcome, BL_TX_ABORTED);
    bl_test_has(c.reason, "arrived damaged twice");
    for (int l = 0; l < LAYERS; l++)
        assert_int_equal(bl_store_map(c.ranks[1].store, layer_ids[l])->epoch, 0);
    close_cluster(&c);
}

/* A transport that loses everything and says nothing: a failure by the deadline, never a success. */
static void test_a_transport_that_drops_everything(void **state) {
    (void)state;
    static cluster c;
    open_cluster(&c, 14, 1);
    c.drops = true;
    c.options.transaction.copy_ns = 100000000;
    damage_transports(&c);
    run_cluster(&c);
    check_cluster(&c);
    assert_int_equal(c.outcome, BL_TX_ABORTED);
    bl_test_has(c.reason, "did not verify its experts before the deadline: 0 of ");
    close_cluster(&c);
}

static void test_the_operator_aborts(void **state) {
    (void)state;
    static cluster c;
    open_cluster(&c, 10, 1);
    c.stop_after = 25;
    run_cluster(&c);
    check_cluster(&c);
    assert_int_equal(c.outcome, BL_TX_ABORTED);
    assert_string_equal(c.reason, "the operator says so");
    const bl_agent_status *s = &c.ranks[0].status;
    assert_in_range(s->waves_done, 1, s->n_waves - 1);
    assert_true(s->moves_done > 0 && s->moves_done < s->n_moves);
    close_cluster(&c);
}

/* A rank whose agent never looks: aborted by the deadline, naming it. */
static void test_a_rank_that_never_polls(void **state) {
    (void)state;
    static cluster c;
    open_cluster(&c, 11, 1);
    c.deaf_rank = 2;
    c.options.transaction.agree_ns = 100000000;
    run_cluster(&c);
    check_cluster(&c);
    assert_int_equal(c.outcome, BL_TX_ABORTED);
    bl_test_has(c.reason, "rank 2 did not answer the plan before the deadline");
    close_cluster(&c);
}

/* Ranks that die at every point of a move: the survivors serve on, together, and say why it ended. */
static void test_a_rank_dies(void **state) {
    (void)state;
    static cluster c;
    int aborted = 0;
    for (int after = 2; after < 60; after += 3) {
        open_cluster(&c, 13, 1);
        c.dead_rank = after % 2 == 0 ? 0 : 3;
        c.dies_after = after;
        run_cluster(&c);
        check_cluster(&c);
        const bl_agent_status *s = &c.ranks[1].status;
        assert_false(s->busy);
        assert_string_equal(s->state, "stable");
        aborted += s->outcome == BL_TX_ABORTED;
        if (s->outcome == BL_TX_ABORTED)
            bl_test_has(s->reason, c.dead_rank == 0 ? "rank 0, which led the move, was lost"
                                                    : "rank 3 was lost");
        close_cluster(&c);
    }
    assert_in_range(aborted, 5, 20);
}

/* Put the ranks on a simulated network instead. */
static void simulate(cluster *c, const bl_sim_options *options) {
    bl_error err;
    bl_transport *handles[RANKS];
    c->simulated = true;
    assert_ok(bl_transport_sim_open(RANKS, options, handles, &err));
    for (int g = 0; g < RANKS; g++) {
        bl_transport_close(c->ranks[g].transport);
        c->ranks[g].transport = handles[g];
    }
}

/* Networks that delay, lose and double; every seed is one run, and comes out the same again. */
static void test_plans_over_simulated_networks(void **state) {
    (void)state;
    static cluster c;
    for (uint64_t seed = 0; seed < 12; seed++) {
        uint64_t history[2], n_steps[2];
        for (int again = 0; again < 2; again++) {
            bl_sim_options options = BL_SIM_OPTIONS_INIT;
            options.seed = seed;
            options.lose = options.again = 0.04 * (double)seed;
            open_cluster(&c, 21, 2);
            simulate(&c, &options);
            run_cluster(&c);
            check_cluster(&c);
            assert_int_equal(c.outcome, BL_TX_MOVED);
            history[again] = c.history;
            n_steps[again] = c.ranks[0].n_steps;
            close_cluster(&c);
        }
        assert_true(history[0] == history[1] && n_steps[0] == n_steps[1]);
    }
}

typedef struct longest {
    double step_s, hold_s;
} longest;

/* The longest step and hold of any rank; n_goals 0: of a cluster in which nothing moves. */
static longest longest_of(const bl_sim_options *options, int n_goals, int least_steps) {
    static cluster c;
    longest most = {0};
    open_cluster(&c, 21, n_goals);
    c.least_steps = least_steps;
    simulate(&c, options);
    run_cluster(&c);
    check_cluster(&c);
    assert_true(n_goals == 0 || c.outcome == BL_TX_MOVED);
    for (int g = 0; g < RANKS; g++) {
        const double hold_s = 1e-9 * (double)c.ranks[g].status.max_hold_ns;
        most.step_s = c.ranks[g].longest_s > most.step_s ? c.ranks[g].longest_s : most.step_s;
        most.hold_s = hold_s > most.hold_s ? hold_s : most.hold_s;
    }
    close_cluster(&c);
    return most;
}

/* On the network's own clock no step of a move is longer than the longest one without, and one bundle
 * on its way. The control channel is as slow as the steps themselves here, and words often come too
 * late for the step they are about. */
static void test_no_step_waits_longer_than_a_bundle_takes(void **state) {
    (void)state;
    double held_s = 0;
    for (uint64_t seed = 0; seed < 10; seed++) {
        bl_sim_options options = BL_SIM_OPTIONS_INIT;
        options.seed = seed;
        options.latency_s = 10e-6 * (double)(1 + seed % 4);
        options.jitter_s = options.latency_s * (double)(2 * (seed % 3));
        options.bytes_per_s = 1e9;
        options.lose = 0;
        const double copy_s =
            options.latency_s + options.jitter_s + (BUNDLE + BL_WIRE_CHUNK_BYTES) * 1e-9;
        const longest still = longest_of(&options, 0, 300);
        const longest moving = longest_of(&options, 2, 0);
        held_s = moving.hold_s > held_s ? moving.hold_s : held_s;
        if (moving.step_s > still.step_s + copy_s)
            fail_msg("seed %d: %.1f us with a move, %.1f us without, %.1f us for a bundle",
                     (int)seed, moving.step_s * 1e6, still.step_s * 1e6, copy_s * 1e6);
    }
    assert_true(held_s > 0); /* or it was not put to the test */
}

/* Where messages are lost, a hold is one late message, as a step is several. */
static void test_holds_on_a_network_that_loses_messages(void **state) {
    (void)state;
    for (uint64_t seed = 0; seed < 4; seed++) {
        bl_sim_options options = BL_SIM_OPTIONS_INIT;
        options.seed = seed;
        options.lose = options.again = 0.1 * (double)(1 + seed);
        const longest still = longest_of(&options, 0, 300), moving = longest_of(&options, 2, 0);
        if (moving.hold_s > still.step_s)
            fail_msg("seed %d: held for %.1f us, the longest step takes %.1f us", (int)seed,
                     moving.hold_s * 1e6, still.step_s * 1e6);
    }
}

/* Rank 3 is killed, or stopped for good, at any moment of a move: the others serve on, together. */
static void test_faults_at_any_moment(void **state) {
    (void)state;
    static cluster c;
    int n_aborted = 0, n_moved = 0;
    for (uint64_t seed = 0; seed < 60; seed++) {
        bl_rng rng;
        bl_rng_seed(&rng, seed);
        const double at_s = 1e-6 * (double)bl_rng_below(&rng, 6000);
        const bl_sim_fault fault = {seed % 3 == 0 ? BL_SIM_STOP : BL_SIM_KILL, at_s, 1e6, 1 << 3};
        bl_sim_options options = BL_SIM_OPTIONS_INIT;
        options.seed = seed;
        options.faults = &fault;
        options.n_faults = 1;
        open_cluster(&c, 22, 1);
        c.dead_rank = 3;
        c.dies_after = -1; /* by the fault */
        simulate(&c, &options);
        run_cluster(&c);
        check_cluster(&c);
        assert_false(c.ranks[1].status.busy);
        n_aborted += c.ranks[1].status.outcome == BL_TX_ABORTED;
        n_moved += c.outcome == BL_TX_MOVED;
        close_cluster(&c);
    }
    print_message("# %d moves aborted, %d done\n", n_aborted, n_moved);
    assert_true(n_aborted >= 10 && n_moved >= 10);
}

/* Rank 2 cannot send one message, whichever of a move it is (sgl #7224): the move is aborted or goes on
 * without it, or rank 2, bound by a promise, halts; whoever serves serves the right weights, together. */
static void test_a_transport_error_at_each_stage(void **state) {
    (void)state;
    static cluster c;
    int n_aborted = 0, n_moved = 0, n_halted = 0;
    for (int at = 1; n_moved == 0 || c.n_sends >= at; at += 2) {
        bl_sim_options options = BL_SIM_OPTIONS_INIT;
        options.seed = (uint64_t)at;
        open_cluster(&c, 23, 1);
        c.dead_rank = 2; /* if it halts; otherwise it is checked here */
        c.dies_after = -1;
        c.fails_at = at;
        c.options.transaction.agree_ns = c.options.transaction.copy_ns =
            c.options.transaction.commit_ns = 20000000;
        simulate(&c, &options);
        damage_transports(&c);
        run_cluster(&c);
        check_cluster(&c);
        const rank *r = &c.ranks[2];
        assert_true(r->result >= 0 || r->result == BL_ERR_ABORTED);
        if (r->result < 0)
            bl_test_has(r->err.text, "the network card is on fire");
        else
            assert_int_equal(bl_store_spares_free(r->store), SPARES);
        n_halted += r->result < 0;
        n_aborted += c.ranks[1].status.outcome == BL_TX_ABORTED;
        n_moved += c.ranks[1].status.outcome == BL_TX_MOVED;
        close_cluster(&c);
    }
    print_message("# %d moves aborted, %d done, rank 2 halted in %d\n", n_aborted, n_moved,
                  n_halted);
    assert_true(n_aborted > 0 && n_moved > 0);
}

static void test_refusals(void **state) {
    (void)state;
    static cluster c;
    bl_error err;
    bl_agent *agent;
    int n_moves;
    open_cluster(&c, 12, 1);
    bl_agent_options options = BL_AGENT_OPTIONS_INIT;
    options.step_bytes = 100;
    assert_fails(bl_agent_create(c.ranks[0].store, c.ranks[0].transport, layer_ids, LAYERS,
                                 &options, &agent, &err),
                 BL_ERR_RANGE, "too few to move");
    options = BL_AGENT_OPTIONS_INIT;
    assert_fails(bl_agent_create(c.ranks[0].store, c.ranks[0].transport, (const int[]){1, 3}, 2,
                                 &options, &agent, &err),
                 BL_ERR_SHAPE, "does not hold this layer");
    for (int g = 0; g < 2; g++)
        assert_ok(bl_agent_create(c.ranks[g].store, c.ranks[g].transport, layer_ids, LAYERS,
                                  &options, &c.ranks[g].agent, &err));
    assert_fails(bl_agent_apply(c.ranks[1].agent, &c.goals[0], &n_moves, &err), BL_ERR_STATE,
                 "ask rank 0");
    assert_fails(bl_agent_stop(c.ranks[0].agent, "x", &err), BL_ERR_STATE, "no move is under way");
    assert_ok(bl_agent_apply(c.ranks[0].agent, &c.goals[0], &n_moves, &err));
    assert_true(bl_agent_is_busy(c.ranks[0].agent) && n_moves > 0);
    assert_fails(bl_agent_apply(c.ranks[0].agent, &c.goals[0], &n_moves, &err), BL_ERR_STATE,
                 "another move is under way");
    close_cluster(&c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_twenty_plans),
        cmocka_unit_test(test_one_damaged_byte_is_repaired),
        cmocka_unit_test(test_damage_is_caught_and_the_old_placement_serves),
        cmocka_unit_test(test_a_transport_that_drops_everything),
        cmocka_unit_test(test_the_operator_aborts),
        cmocka_unit_test(test_a_rank_that_never_polls),
        cmocka_unit_test(test_a_rank_dies),
        cmocka_unit_test(test_plans_over_simulated_networks),
        cmocka_unit_test(test_no_step_waits_longer_than_a_bundle_takes),
        cmocka_unit_test(test_holds_on_a_network_that_loses_messages),
        cmocka_unit_test(test_faults_at_any_moment),
        cmocka_unit_test(test_a_transport_error_at_each_stage),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests_name("agent", tests, NULL, NULL);
}
