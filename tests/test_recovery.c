/* Ranks die at any moment, also while the others recover and while experts move, and come back: those that
 * are left go on with equal maps, serve every expert from the right bytes, and end together. Ranks are threads; a step
 * is what the engine makes of it: notes, the agent, one exchange of rows per layer. */
#include "tests/support/support.h"

#include "core/mem.h"
#include "core/progress.h"
#include "core/rng.h"
#include "rebalancer/recovery.h"
#include "runtime/exchange.h"
#include "runtime/transport_sim.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RANKS = 5, LAYERS = 2, EXPERTS = 12, SLOTS = 6, SPARES = 2, BUNDLE = 96, GOALS = 3 };
static const int layers[LAYERS] = {1, 4};

/* What a rank tells the others at the start of a step. */
typedef struct note {
    int done, busy;
    uint64_t epochs[LAYERS];
    unsigned char recovery[BL_RECOVERY_NOTE_BYTES];
} note;

typedef struct rank {
    int rank, n_spares;
    uint64_t seed;
    int n_steps;         /* to take */
    double dies_at_s;    /* 0: it lives */
    bool still;          /* it starts no moves */
    char first_end[200]; /* of its first life */
    double pause_s;      /* after a death it comes back, this much later; 0: it does not */
    int returns, turned_away, welcomed;
    uint64_t view, term; /* the latest seen: they only grow */
    bl_transport *transport;
    bl_exchange exchange;
    bl_store *store;
    bl_agent *agent;
    bl_recovery *recovery;
    uint64_t step;
    int completed, recovered, moves;
    bool died;
    bl_status status;
    bl_error error;
    pthread_t thread;
} rank;

static bl_placement start, goals[GOALS];

static unsigned char tag_of(int layer, int expert) {
    return (unsigned char)(layer * 32 + expert + 1);
}

static bl_status load(void *user, int layer, int expert, void *bundle, bl_error *err) {
    (void)user, (void)err;
    memset(bundle, tag_of(layer, expert), BUNDLE);
    return BL_OK;
}

static void hear(void *user, int from, const void *data, size_t bytes) {
    rank *r = user;
    bl_recovery_hear(r->recovery, from, data, bytes);
}

/* ---- a step ---------------------------------------------------------------------------------- */

static bool is_whole(const unsigned char *bundle, unsigned char tag) {
    for (size_t i = 0; bundle != NULL && i < BUNDLE; i++) {
        if (bundle[i] != tag)
            return false;
    }
    return bundle != NULL;
}

/* Every expert is asked of the first living rank that the map names, which must hold it. */
static bl_status serve_layer(rank *r, int l, bl_error *err) {
    const bl_layer_placement *map = bl_store_map(r->store, layers[l]);
    unsigned char asked[RANKS][EXPERTS] = {{0}};
    int n[RANKS] = {0};
    bl_outgoing outgoing[RANKS];
    bl_message incoming[RANKS];
    for (int expert = 0; expert < EXPERTS; expert++) {
        int to = 0;
        while (to < RANKS && bl_layer_find(map, to, expert) < 0)
            to++;
        if (to == RANKS || bl_recovery_lost(r->recovery)[to])
            return bl_fail(err, BL_ERR_INTERNAL, "layer %d: expert %d is on no living rank", l,
                           expert);
        asked[to][n[to]++] = (unsigned char)expert;
    }
    for (int to = 0; to < RANKS; to++)
        outgoing[to] = (bl_outgoing){asked[to], (size_t)n[to]};
    BL_TRY(bl_exchange_alltoallv(&r->exchange, outgoing, incoming, err));
    bl_status st = BL_OK;
    for (int from = 0; from < RANKS && st >= 0; from++) {
        for (size_t i = 0; i < incoming[from].bytes && st >= 0; i++) {
            const int expert = incoming[from].data[i];
            if (!is_whole(bl_store_expert(r->store, layers[l], expert), tag_of(layers[l], expert)))
                st = bl_fail(err, BL_ERR_INTERNAL, "layer %d: expert %d is not here", l, expert);
        }
    }
    bl_exchange_release(incoming, RANKS);
    return st;
}

/* Views and terms only grow; those of a rank that comes back are later than those it had. */
static bl_status check_view(rank *r, bl_error *err) {
    uint64_t view, term;
    bl_agent_view(r->agent, &view, &term);
    if (view < r->view || term < r->term)
        return bl_fail(err, BL_ERR_INTERNAL, "view %llu, term %llu after %llu, %llu",
                       (unsigned long long)view, (unsigned long long)term,
                       (unsigned long long)r->view, (unsigned long long)r->term);
    r->view = view;
    r->term = term;
    return BL_OK;
}

static bl_status step_once(rank *r, bool *over, bl_error *err) {
    note mine = {0}, all[RANKS];
    int back;
    BL_TRY(bl_recovery_begin_step(r->recovery, r->step, r->exchange.sequence, mine.recovery, &back,
                                  err));
    r->welcomed += back >= 0;
    BL_TRY(bl_agent_hear(r->agent, err));
    if (bl_recovery_is_due(r->recovery))
        return bl_fail(err, BL_ERR_PEER, "a rank was lost");
    mine.done = r->completed >= r->n_steps;
    mine.busy = bl_agent_is_busy(r->agent);
    BL_TRY(bl_exchange_allgather(&r->exchange, &mine, sizeof mine, all, err));
    BL_TRY(bl_agent_at_step(r->agent, r->step, err));
    bl_recovery_at_step(r->recovery, r->step, all[0].recovery, sizeof *all);
    BL_TRY(check_view(r, err));
    for (int l = 0; l < LAYERS; l++)
        mine.epochs[l] = bl_store_map(r->store, layers[l])->epoch;
    BL_TRY(bl_exchange_allgather(&r->exchange, &mine, sizeof mine, all, err));
    bool done = true, busy = false;
    for (int other = 0; other < RANKS; other++) {
        if (bl_recovery_lost(r->recovery)[other])
            continue;
        done = done && all[other].done;
        busy = busy || all[other].busy;
        if (memcmp(all[other].epochs, mine.epochs, sizeof mine.epochs) != 0)
            return bl_fail(err, BL_ERR_INTERNAL, "ranks %d and %d serve different epochs", r->rank,
                           other);
    }
    for (int l = 0; l < LAYERS; l++)
        BL_TRY(serve_layer(r, l, err));
    r->step++;
    r->completed++;
    *over = done && !busy;
    return BL_OK;
}

/* The rank that leads keeps experts moving; plans that name a lost rank are refused. */
static void maybe_move(rank *r, bl_rng *rng) {
    bl_error err = BL_ERROR_INIT;
    int n;
    if (r->still || bl_agent_leader(r->agent) != r->rank || bl_agent_is_busy(r->agent) ||
        bl_recovery_is_joining(r->recovery) || r->completed >= r->n_steps ||
        bl_rng_below(rng, 4) != 0)
        return;
    bl_placement goal;
    if (bl_placement_copy(&goals[bl_rng_below(rng, GOALS)], &goal, &err) < 0)
        return;
    for (int l = 0; l < LAYERS; l++) { /* as a plan with a mask would have it */
        for (int slot = 0; slot < RANKS * SLOTS; slot++) {
            if (!bl_agent_lives(r->agent, slot / SLOTS))
                goal.layers[l].expert[slot] = BL_NO_EXPERT;
        }
    }
    if (bl_agent_apply(r->agent, &goal, &n, &err) >= 0)
        r->moves += n;
    bl_placement_free(&goal);
}

static bl_status run(rank *r) {
    bl_rng rng;
    bl_rng_seed(&rng, r->seed + (uint64_t)r->rank);
    for (bool over = false; !over;) {
        bl_error err = BL_ERROR_INIT;
        if (r->dies_at_s > 0 && bl_now_s() >= r->dies_at_s) {
            r->died = true;
            return BL_OK;
        }
        maybe_move(r, &rng);
        bl_status st = step_once(r, &over, &err);
        if (st == BL_ERR_PEER) {
            bl_recovered made;
            char why[sizeof err.text];
            memcpy(why, err.text, sizeof why);
            err = BL_ERROR_INIT;
            st = bl_recovery_run(r->recovery, r->step, r->exchange.sequence, &made, &err);
            if (st == BL_OK) {
                r->step = made.step;
                bl_exchange_restart(&r->exchange, made.sequence, bl_recovery_lost(r->recovery));
                r->recovered++;
            }
            if (st < 0)
                bl_fail(&r->error, st, "%.120s; after: %.80s", err.text, why);
        }
        if (st < 0) {
            if (r->error.code >= 0)
                r->error = err;
            return st;
        }
        if (st == BL_LIMIT)
            return BL_OK;
    }
    return BL_OK;
}

static void close_parts(rank *r) {
    bl_recovery_free(r->recovery);
    bl_agent_free(r->agent);
    bl_store_free(r->store);
    r->recovery = NULL;
    r->agent = NULL;
    r->store = NULL;
}

static bl_status open_parts(rank *r, const bl_placement *placement, bl_error *err) {
    bl_agent_options options = BL_AGENT_OPTIONS_INIT;
    options.step_bytes = BL_AGENT_MIN_STEP_BYTES;
    r->exchange = bl_exchange_over(r->transport, 20);
    BL_TRY(bl_store_create(placement, r->rank, BUNDLE, r->n_spares, &r->store, err));
    for (int l = 0; l < LAYERS; l++) {
        const bl_layer_placement *map = bl_store_map(r->store, layers[l]);
        for (int slot = map->begin[r->rank]; slot < map->begin[r->rank + 1]; slot++) {
            if (map->expert[slot] != BL_NO_EXPERT)
                memset(bl_store_slot(r->store, layers[l], slot),
                       tag_of(layers[l], map->expert[slot]), BUNDLE);
        }
    }
    BL_TRY(bl_agent_create(r->store, r->transport, layers, LAYERS, &options, &r->agent, err));
    BL_TRY(bl_recovery_create(r->agent, r->store, r->transport, load, NULL, 20, &r->recovery, err));
    bl_agent_on_told(r->agent, hear, r);
    return BL_OK;
}

/* A new life: knock, be welcomed, serve. */
static bl_status come_back(rank *r) {
    bl_welcome welcome;
    r->error = BL_ERROR_INIT;
    bl_transport_sim_come_back(r->transport, r->pause_s);
    close_parts(r);
    BL_TRY(bl_welcome_await(r->transport, 5, &welcome, &r->error));
    bl_status st = open_parts(r, &welcome.placement, &r->error);
    if (st >= 0) {
        bl_recovery_join(r->recovery, &welcome);
        bl_exchange_restart(&r->exchange, welcome.sequence, bl_recovery_lost(r->recovery));
        r->step = welcome.step;
        st = run(r);
    }
    bl_welcome_free(&welcome);
    return st;
}

static void *rank_main(void *user) {
    rank *r = user;
    r->status = run(r);
    snprintf(r->first_end, sizeof r->first_end, "%.199s", r->error.text);
    for (int tries = 0; r->pause_s > 0 && r->status < 0 && tries < 8; tries++) {
        r->status = come_back(r);
        if (r->agent == NULL)
            r->turned_away++;
        else
            r->returns++;
    }
    if (r->died || r->status < 0)
        bl_transport_abandon(r->transport);
    else
        bl_transport_close(r->transport);
    return NULL;
}

/* ---- clusters -------------------------------------------------------------------------------- */

static void fill(bl_placement *p, uint64_t seed) {
    bl_rng rng;
    bl_rng_seed(&rng, seed);
    for (int l = 0; l < LAYERS; l++) {
        bl_layer_placement *layer = &p->layers[l];
        for (int expert = 0; expert < EXPERTS; expert++) {
            for (int copies = 0; copies < 2;) { /* on two ranks, so that one may die */
                const int slot = (int)bl_rng_below(&rng, RANKS * SLOTS);
                if (layer->expert[slot] != BL_NO_EXPERT ||
                    bl_layer_find(layer, slot / SLOTS, expert) >= 0)
                    continue;
                layer->expert[slot] = expert;
                copies++;
            }
        }
    }
}

static void open_rank(rank *r) {
    bl_error err;
    r->error = BL_ERROR_INIT;
    assert_ok(open_parts(r, &start, &err));
}

typedef struct totals {
    int deaths, recovered, moves, halted, in_doubt;
} totals;

static void run_ranks(rank *ranks) {
    for (int g = 0; g < RANKS; g++)
        assert_int_equal(pthread_create(&ranks[g].thread, NULL, rank_main, &ranks[g]), 0);
    for (int g = 0; g < RANKS; g++)
        pthread_join(ranks[g].thread, NULL);
}

static void open_ranks(rank *ranks, bl_transport *const *handles, uint64_t seed, int n_steps,
                       int n_spares) {
    memset(ranks, 0, sizeof *ranks * RANKS);
    for (int g = 0; g < RANKS; g++) {
        ranks[g] = (rank){.rank = g,
                          .n_spares = n_spares,
                          .seed = seed,
                          .n_steps = n_steps,
                          .transport = handles[g]};
        open_rank(&ranks[g]);
    }
}

/* Whoever went on to the end did so with the same maps and without a leak. */
static void check_ranks(const rank *ranks, uint64_t seed, totals *sum) {
    const rank *first = NULL;
    for (int g = 0; g < RANKS; g++) {
        const rank *r = &ranks[g];
        sum->deaths += r->died;
        sum->recovered += r->recovered;
        sum->moves += r->moves;
        if (r->died)
            continue;
        if (r->status ==
            BL_ERR_ABORTED) { /* too few are left, or it cannot know what was decided */
            sum->halted++;
            continue;
        }
        if (r->status < 0)
            fail_msg("seed %llu, rank %d: %s", (unsigned long long)seed, g, r->error.text);
        if (bl_store_spares_free(r->store) != r->n_spares)
            fail_msg("seed %llu, rank %d: a spare leaked", (unsigned long long)seed, g);
        if (first == NULL)
            first = r;
        for (int l = 0; l < LAYERS; l++) {
            const bl_layer_placement *a = bl_store_map(first->store, layers[l]),
                                     *b = bl_store_map(r->store, layers[l]);
            if (a->epoch != b->epoch ||
                memcmp(a->expert, b->expert, sizeof *a->expert * RANKS * SLOTS) != 0)
                fail_msg("seed %llu: ranks %d and %d end with different maps",
                         (unsigned long long)seed, first->rank, g);
        }
    }
}

static void close_ranks(rank *ranks) {
    for (int g = 0; g < RANKS; g++) {
        close_parts(&ranks[g]);
    }
}

/* One cluster; up to `deaths` ranks die within a few milliseconds of each other. */
static void run_cluster(uint64_t seed, int deaths, int n_spares, totals *sum) {
    static rank ranks[RANKS];
    bl_error err;
    bl_rng rng;
    bl_transport *handles[RANKS];
    bl_rng_seed(&rng, seed);
    assert_ok(bl_transport_local_open(RANKS, handles, &err));
    open_ranks(ranks, handles, seed, 60, n_spares);
    const double now_s = bl_now_s();
    for (int d = 0; d < deaths; d++)
        ranks[bl_rng_below(&rng, RANKS)].dies_at_s =
            now_s + 1e-4 * (double)(1 + bl_rng_below(&rng, 60));
    run_ranks(ranks);
    check_ranks(ranks, seed, sum);
    close_ranks(ranks);
}

static int n_seeds(void) {
    const char *text = getenv("BALLAST_RECOVERY_SEEDS");
    return text != NULL ? atoi(text) : 16;
}

static totals run_clusters(int deaths, int n_spares) {
    totals sum = {0};
    for (int seed = 1; seed <= n_seeds(); seed++)
        run_cluster((uint64_t)(seed * 8 + deaths), deaths, n_spares, &sum);
    print_message("# %d clusters: %d deaths, %d recoveries, %d moves, %d halted\n", n_seeds(),
                  sum.deaths, sum.recovered, sum.moves, sum.halted);
    return sum;
}

static void test_nobody_dies(void **state) {
    (void)state;
    const totals sum = run_clusters(0, SPARES);
    assert_int_equal(sum.deaths + sum.recovered + sum.halted, 0);
    assert_true(sum.moves > 0);
}

static void test_one_dies(void **state) {
    (void)state;
    const totals sum = run_clusters(1, SPARES);
    assert_true(sum.recovered > 0 && sum.halted == 0);
}

static void test_two_die_together(void **state) {
    (void)state;
    assert_true(run_clusters(2, SPARES).recovered > 0);
}

/* Nothing can move, but orphans are read in all the same: into the slots they get. */
static void test_losses_without_a_spare(void **state) {
    (void)state;
    const totals sum = run_clusters(2, 0);
    assert_true(sum.recovered > 0 && sum.moves == 0);
}

/* ---- simulated networks ----------------------------------------------------------------------- */

static int n_bits(uint64_t set) {
    int n = 0;
    for (; set != 0; set &= set - 1)
        n++;
    return n;
}

/* Who goes on when `living` falls apart into `part` and the rest: the larger part, of equal ones the
 * one with the lowest rank. */
static uint64_t stronger(uint64_t living, uint64_t part) {
    const uint64_t a = living & part, b = living & ~part;
    if (n_bits(a) != n_bits(b))
        return n_bits(a) > n_bits(b) ? a : b;
    return (a & (living & (~living + 1))) != 0 ? a : b;
}

/* All of `expected` and nobody else; or nobody, where the leader and another were lost before the others
 * knew what it had decided. */
static void check_who_went_on(const rank *ranks, uint64_t seed, uint64_t expected, totals *sum) {
    uint64_t went_on = 0;
    bool in_doubt = false;
    for (int g = 0; g < RANKS; g++) {
        went_on |= (uint64_t)(ranks[g].status >= 0) << g;
        in_doubt = in_doubt || strstr(ranks[g].error.text, "before the survivors knew") != NULL;
    }
    sum->in_doubt += went_on == 0 && in_doubt;
    if (went_on == expected || (went_on == 0 && in_doubt))
        return;
    for (int g = 0; g < RANKS; g++)
        print_message("# rank %d: %s\n", g, ranks[g].error.text);
    fail_msg("seed %llu: of 0x%x, 0x%x went on", (unsigned long long)seed, (unsigned)expected,
             (unsigned)went_on);
}

/* A cluster on a network that loses and doubles messages; `expected`: who goes on to the end. */
static void run_simulated(uint64_t seed, int n_steps, bool still, const bl_sim_fault *faults,
                          int n_faults, uint64_t expected, totals *sum) {
    static rank ranks[RANKS];
    bl_error err;
    bl_transport *handles[RANKS];
    bl_sim_options options = BL_SIM_OPTIONS_INIT;
    options.seed = seed;
    options.lose = 0.3 * (double)(seed % 4) / 3;
    options.again = 0.2;
    options.faults = faults;
    options.n_faults = n_faults;
    assert_ok(bl_transport_sim_open(RANKS, &options, handles, &err));
    open_ranks(ranks, handles, seed, n_steps, SPARES);
    for (int g = 0; g < RANKS; g++)
        ranks[g].still = still;
    run_ranks(ranks);
    check_ranks(ranks, seed, sum);
    check_who_went_on(ranks, seed, expected, sum);
    close_ranks(ranks);
}

static const uint64_t everybody = (1 << RANKS) - 1;

static void test_a_network_that_loses_messages(void **state) {
    (void)state;
    totals sum = {0};
    for (int seed = 1; seed <= n_seeds(); seed++)
        run_simulated((uint64_t)seed, 100, false, NULL, 0, everybody, &sum);
    print_message("# %d moves\n", sum.moves);
    assert_true(sum.moves > 0 && sum.recovered == 0);
}

/* Cut apart at any moment, for good or for a while; one of five is killed long before in half of the
 * runs, so that parts are equal. */
static void test_a_partition(void **state) {
    (void)state;
    totals sum = {0};
    int ties = 0;
    for (int seed = 1; seed <= 2 * n_seeds(); seed++) {
        bl_rng rng;
        bl_rng_seed(&rng, (uint64_t)seed);
        const bool kills = bl_rng_below(&rng, 2) == 0;
        const double at_s = 1e-6 * (double)(1 + bl_rng_below(&rng, 15000));
        const double lasts_s = bl_rng_below(&rng, 2) == 0 ? 1e6 : 10;
        const uint64_t victim = (uint64_t)1 << bl_rng_below(&rng, RANKS);
        const uint64_t part = 1 + bl_rng_below(&rng, everybody - 1);
        const uint64_t living = kills ? everybody & ~victim : everybody;
        const bl_sim_fault faults[] = {
            {BL_SIM_PARTITION, at_s + 5e-3, at_s + lasts_s, part},
            {BL_SIM_KILL, 1e-6 * (double)bl_rng_below(&rng, 5000), 0, victim}};
        ties += 2 * n_bits(living & part) == n_bits(living);
        run_simulated((uint64_t)seed, 400, false, faults, kills ? 2 : 1, stronger(living, part),
                      &sum);
    }
    print_message("# %d clusters, %d of them cut in equal parts: %d recoveries, %d moves, %d ranks "
                  "stopped, %d "
                  "clusters in doubt\n",
                  2 * n_seeds(), ties, sum.recovered, sum.moves, sum.halted, sum.in_doubt);
    assert_true(sum.recovered > 0 && sum.halted > 0 && ties > 0);
    assert_true(sum.in_doubt * 20 <= 2 * n_seeds());
}

/* One after another, each recovered from before the next: two of five are left, and go on. Nothing
 * moves, so that nothing but the recoveries can tell them that they are a view of their own. */
static void test_losses_one_after_another(void **state) {
    (void)state;
    totals sum = {0};
    for (int seed = 1; seed <= n_seeds(); seed++) {
        bl_rng rng;
        bl_sim_fault faults[3];
        uint64_t living = everybody;
        bl_rng_seed(&rng, (uint64_t)seed);
        for (int i = 0; i < 3; i++) {
            int victim;
            do
                victim = (int)bl_rng_below(&rng, RANKS);
            while ((living >> victim & 1) == 0);
            living &= ~((uint64_t)1 << victim);
            faults[i] = (bl_sim_fault){BL_SIM_KILL, 0.002 + 0.01 * i, 0, (uint64_t)1 << victim};
        }
        run_simulated((uint64_t)seed, 400, true, faults, 3, living, &sum);
    }
    assert_int_equal(sum.recovered, (4 + 3 + 2) * n_seeds());
}

/* ---- ranks that come back --------------------------------------------------------------------- */

typedef struct returns {
    int runs, returned, turned_away, welcomed, whole, halted;
} returns;

/* Too many died at once, so that nobody was left to let anybody in. */
static bool all_halted(const rank *ranks) {
    bool any = false;
    for (int g = 0; g < RANKS; g++) {
        const char *end = ranks[g].first_end;
        const bool halted = strstr(end, "too few ranks are left") != NULL ||
                            strstr(end, "before the survivors knew") != NULL;
        any = any || halted;
        if (!halted && strstr(end, "was killed") == NULL)
            return false;
    }
    return any;
}

/* All that die come back, perhaps more than once, and die while they do. Who is in at the end is one
 * cluster: same maps, no leaks, everything served from the right bytes. */
static void run_with_returns(uint64_t seed, bool still, const bl_sim_fault *faults, int n_faults,
                             double pause_s, returns *sum) {
    static rank ranks[RANKS];
    bl_error err;
    bl_transport *handles[RANKS];
    totals ends = {0};
    bl_sim_options options = BL_SIM_OPTIONS_INIT;
    options.seed = seed;
    options.lose = 0.3 * (double)(seed % 4) / 3;
    options.again = 0.2;
    options.silence_s = 0.003;
    options.faults = faults;
    options.n_faults = n_faults;
    assert_ok(bl_transport_sim_open(RANKS, &options, handles, &err));
    open_ranks(ranks, handles, seed, 250, SPARES);
    for (int g = 0; g < RANKS; g++) {
        ranks[g].still = still;
        ranks[g].pause_s = pause_s;
    }
    run_ranks(ranks);
    int at_end = 0;
    for (int g = 0; g < RANKS; g++) {
        sum->returned += ranks[g].returns;
        sum->turned_away += ranks[g].turned_away;
        sum->welcomed += ranks[g].welcomed;
        if (ranks[g].status == BL_ERR_PEER || ranks[g].status == BL_ERR_TIMEOUT)
            ranks[g].status = BL_ERR_ABORTED; /* it was not let in before the others had ended */
        at_end += ranks[g].status >= 0;
    }
    if (at_end == 0 && !all_halted(ranks)) {
        for (int g = 0; g < RANKS; g++)
            print_message("# rank %d: %s; %s\n", g, ranks[g].first_end, ranks[g].error.text);
        fail_msg("seed %llu: nobody served to the end", (unsigned long long)seed);
    }
    sum->halted += at_end == 0;
    sum->runs++;
    sum->whole += at_end == RANKS;
    check_ranks(ranks, seed, &ends);
    close_ranks(ranks);
}

static void print_returns(const returns *sum) {
    print_message(
        "# %d clusters: %d came back, %d were turned away, %d welcomes, %d clusters whole "
        "at the end\n",
        sum->runs, sum->returned, sum->turned_away, sum->welcomed, sum->whole);
}

/* One dies, comes back and is planned onto; then another. */
static void test_one_comes_back_and_another(void **state) {
    (void)state;
    returns sum = {0};
    for (int seed = 1; seed <= n_seeds() / 4; seed++) {
        bl_rng rng;
        bl_rng_seed(&rng, (uint64_t)seed);
        const int first = (int)bl_rng_below(&rng, RANKS);
        const int second = (first + 1 + (int)bl_rng_below(&rng, RANKS - 1)) % RANKS;
        const bl_sim_fault faults[] = {{BL_SIM_KILL, 0.002, 0, (uint64_t)1 << first},
                                       {BL_SIM_KILL, 0.012, 0, (uint64_t)1 << second}};
        run_with_returns((uint64_t)seed, false, faults, 2, 0.002, &sum);
    }
    print_returns(&sum);
    assert_int_equal(sum.returned, 2 * sum.runs);
    assert_int_equal(sum.whole, sum.runs);
}

static void test_two_come_back_at_once(void **state) {
    (void)state;
    returns sum = {0};
    for (int seed = 1; seed <= n_seeds() / 4; seed++) {
        const uint64_t both = (uint64_t)1 << seed % RANKS | (uint64_t)1 << (seed + 2) % RANKS;
        const bl_sim_fault fault = {BL_SIM_KILL, 0.002, 0, both};
        run_with_returns((uint64_t)seed, true, &fault, 1, 0.001, &sum);
    }
    print_returns(&sum);
    assert_int_equal(sum.whole, sum.runs);
}

/* Anything at any moment: two or three deaths close to each other, so that ranks die as others come back,
 * and who comes back is killed again, and all of that while experts move. */
static void test_deaths_during_returns(void **state) {
    (void)state;
    returns sum = {0};
    for (int seed = 1; seed <= n_seeds(); seed++) {
        bl_rng rng;
        bl_sim_fault faults[4];
        bl_rng_seed(&rng, (uint64_t)seed);
        const int n = 2 + (int)bl_rng_below(&rng, 3);
        for (int i = 0; i < n; i++)
            faults[i] = (bl_sim_fault){BL_SIM_KILL, 0.002 + 1e-6 * bl_rng_below(&rng, 8000), 0,
                                       (uint64_t)1 << bl_rng_below(&rng, RANKS - 1)};
        run_with_returns((uint64_t)seed, seed % 3 == 0, faults, n,
                         1e-6 * (200 + (double)bl_rng_below(&rng, 4000)), &sum);
    }
    print_returns(&sum);
    assert_true(sum.returned > sum.runs && sum.halted * 8 <= sum.runs);
}

/* One comes back as the network falls apart, for a while: one part goes on at most, with or without it, and
 * who was cut off comes back when that is over. */
static void test_a_partition_during_a_return(void **state) {
    (void)state;
    returns sum = {0};
    for (int seed = 1; seed <= n_seeds() / 2; seed++) {
        bl_rng rng;
        bl_rng_seed(&rng, (uint64_t)seed);
        const double at_s = 0.0035 + 1e-6 * (double)bl_rng_below(&rng, 2500);
        const bl_sim_fault faults[] = {
            {BL_SIM_KILL, 0.002, 0, (uint64_t)1 << bl_rng_below(&rng, RANKS)},
            {BL_SIM_PARTITION, at_s, at_s + 0.02, 1 + bl_rng_below(&rng, everybody - 1)}};
        run_with_returns((uint64_t)seed, seed % 2 == 0, faults, 2, 0.0015, &sum);
    }
    print_returns(&sum);
    assert_true(sum.returned > sum.runs && sum.halted * 4 <= sum.runs);
}

/* A rank that stood still for so long that the others gave it up is refused until it knocks. */
static void test_a_stopped_rank_comes_back(void **state) {
    (void)state;
    returns sum = {0};
    for (int seed = 1; seed <= n_seeds() / 8; seed++) {
        const bl_sim_fault fault = {BL_SIM_STOP, 0.002 + 1e-5 * seed, 0.010,
                                    (uint64_t)1 << (seed % RANKS)};
        run_with_returns((uint64_t)seed, false, &fault, 1, 0.001, &sum);
    }
    print_returns(&sum);
    assert_int_equal(sum.returned, sum.runs);
    assert_int_equal(sum.whole, sum.runs);
}

static int set_up(void **state) {
    (void)state;
    bl_error err;
    const int slots[RANKS] = {SLOTS, SLOTS, SLOTS, SLOTS, SLOTS};
    assert_ok(bl_placement_create(RANKS, EXPERTS, layers, LAYERS, slots, &start, &err));
    fill(&start, 1);
    for (int g = 0; g < GOALS; g++) {
        assert_ok(bl_placement_create(RANKS, EXPERTS, layers, LAYERS, slots, &goals[g], &err));
        fill(&goals[g], (uint64_t)g + 2);
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
        cmocka_unit_test(test_nobody_dies),
        cmocka_unit_test(test_one_dies),
        cmocka_unit_test(test_two_die_together),
        cmocka_unit_test(test_losses_without_a_spare),
        cmocka_unit_test(test_a_network_that_loses_messages),
        cmocka_unit_test(test_a_partition),
        cmocka_unit_test(test_losses_one_after_another),
        cmocka_unit_test(test_one_comes_back_and_another),
        cmocka_unit_test(test_two_come_back_at_once),
        cmocka_unit_test(test_deaths_during_returns),
        cmocka_unit_test(test_a_partition_during_a_return),
        cmocka_unit_test(test_a_stopped_rank_comes_back),
    };
    return cmocka_run_group_tests_name("recovery", tests, set_up, tear_down);
}
