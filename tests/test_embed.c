/* A foreign engine on several ranks, each a thread of this process with tensors of its own. Ranks step
 * in lockstep, as an engine's own exchanges make them. */
#define _XOPEN_SOURCE 600 /* pthread_barrier_t */
#include "rebalancer/embed_parts.h"

#include "core/progress.h"
#include "tests/support/foreign.h"
#include "tests/support/support.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PATIENCE_S 60.0 /* of loops that wait for another thread; far more than they need */
enum { MAX_RANKS = 4, LAYERS = 2 };
static const int layer_ids[LAYERS] = {3, 7};

typedef struct cluster cluster;

typedef struct member {
    cluster *all;
    int rank;
    bl_transport *transport;
    bl_embed *embed;
    bl_foreign *foreign[LAYERS + 1]; /* NULL at its end */
    int version;
    char error[600]; /* "": fine */
} member;

/* What a test does on each rank. */
typedef void body_fn(member *m);

struct cluster {
    int n_ranks;
    bl_placement placement;
    pthread_barrier_t barrier;
    member members[MAX_RANKS];
    uint64_t epochs[MAX_RANKS][LAYERS];
    bl_embed_options options;
    body_fn *body;
    /* spoils what a rank declares */
    void (*spoil)(int rank, int layer, bl_tensor *tensors, int *n_tensors);
    bool may_fail_to_start;
    bool by_pointers[MAX_RANKS]; /* spares: options.spares, half of them in each layer's tables */
};

static bool fine(const member *m) {
    return m->error[0] == '\0';
}

static void complain(member *m, const char *what) {
    if (fine(m))
        snprintf(m->error, sizeof m->error, "rank %d: %.500s", m->rank, what);
}

#define EXPECT(m, what)           \
    do {                          \
        if (!(what))              \
            complain((m), #what); \
    } while (0)

static void succeed(member *m, int status) {
    if (status < 0)
        complain(m, bl_embed_error(m->embed));
}

/* ---- a rank ---------------------------------------------------------------------------------- */

static int open_member(member *m) {
    cluster *all = m->all;
    char text[256] = "";
    bl_embed_options options = all->options;
    options.transport = m->transport;
    options.model = "foreign";
    options.n_experts = all->placement.n_experts;
    options.top_k = 2;
    options.socket = "";
    options.recompute = bl_foreign_recompute;
    options.user = m->foreign;
    if (bl_embed_open(&options, &m->embed, text, sizeof text) < 0) {
        complain(m, text);
        return -1;
    }
    for (int l = 0; l < LAYERS; l++) {
        const bl_layer_placement *map = &all->placement.layers[l];
        bl_tensor tensors[FOREIGN_TENSORS];
        bl_layer layer = BL_LAYER_INIT;
        int slots[MAX_RANKS], n_tensors = FOREIGN_TENSORS;
        for (int rank = 0; rank < all->n_ranks; rank++)
            slots[rank] = map->begin[rank + 1] - map->begin[rank];
        m->foreign[l] = all->by_pointers[m->rank]
                            ? bl_foreign_new_by_pointers(map, m->rank, m->version,
                                                         (options.spares + 1 - l) / LAYERS)
                            : bl_foreign_new(map, m->rank, m->version);
        bl_foreign_declare(m->foreign[l], tensors);
        if (all->spoil != NULL)
            all->spoil(m->rank, map->layer, tensors, &n_tensors);
        layer.layer = map->layer;
        layer.n_slots = map->begin[map->n_ranks];
        layer.slots_of_rank = slots;
        layer.expert = map->expert;
        layer.tensors = tensors;
        layer.n_tensors = n_tensors;
        layer.n_spares = (size_t)m->foreign[l]->n_spares;
        if (bl_embed_add_layer(m->embed, &layer) < 0)
            break; /* the others are told by bl_embed_start() */
    }
    return bl_embed_start(m->embed);
}

static void *run_member(void *user) {
    member *m = user;
    const int st = open_member(m);
    if (st >= 0)
        m->all->body(m);
    else if (fine(m))
        snprintf(m->error, sizeof m->error, "%.500s", bl_embed_error(m->embed));
    bl_embed_close(m->embed);
    bl_transport_close(m->transport);
    for (int l = 0; l < LAYERS; l++)
        bl_foreign_free(m->foreign[l]);
    return NULL;
}

/* Both layers start with the same slots; experts [sum of slots]. */
static cluster *new_cluster(int n_ranks, int n_experts, const int *slots, const int32_t *experts) {
    bl_error err;
    static cluster all;
    bl_transport *handles[MAX_RANKS];
    memset(&all, 0, sizeof all);
    all.n_ranks = n_ranks;
    all.options = (bl_embed_options)BL_EMBED_OPTIONS_INIT;
    all.options.deadline_s = 20;
    assert_ok(
        bl_placement_create(n_ranks, n_experts, layer_ids, LAYERS, slots, &all.placement, &err));
    for (int l = 0; l < LAYERS; l++)
        memcpy(all.placement.layers[l].expert, experts,
               sizeof *experts * (size_t)bl_layer_n_slots(&all.placement.layers[l]));
    assert_ok(bl_transport_local_open(n_ranks, handles, &err));
    for (int rank = 0; rank < n_ranks; rank++)
        all.members[rank] =
            (member){.all = &all, .rank = rank, .transport = handles[rank], .version = 1};
    assert_int_equal(pthread_barrier_init(&all.barrier, NULL, (unsigned)n_ranks), 0);
    return &all;
}

static void run_cluster(cluster *all, body_fn *body) {
    pthread_t threads[MAX_RANKS];
    all->body = body;
    for (int rank = 0; rank < all->n_ranks; rank++)
        assert_int_equal(pthread_create(&threads[rank], NULL, run_member, &all->members[rank]), 0);
    for (int rank = 0; rank < all->n_ranks; rank++)
        pthread_join(threads[rank], NULL);
    for (int rank = 0; rank < all->n_ranks && !all->may_fail_to_start; rank++)
        if (!fine(&all->members[rank]))
            fail_msg("%s", all->members[rank].error);
    pthread_barrier_destroy(&all->barrier);
    bl_placement_free(&all->placement);
}

/* ---- steps ----------------------------------------------------------------------------------- */

static void meet(member *m) {
    pthread_barrier_wait(&m->all->barrier);
}

/* This rank serves what its map says, and the others serve the same map. */
static void check_served(member *m) {
    for (int l = 0; l < LAYERS; l++) {
        bl_trace_map map = BL_TRACE_MAP_INIT;
        int begin[MAX_RANKS + 1] = {0};
        succeed(m, bl_map(m->embed, layer_ids[l], &map));
        for (int rank = 0; rank < map.n_ranks; rank++)
            begin[rank + 1] = begin[rank] + map.slots_of_rank[rank];
        EXPECT(m, bl_foreign_is(m->foreign[l], map.expert, begin, m->version));
        m->all->epochs[m->rank][l] = map.epoch;
    }
    meet(m);
    for (int rank = 0; rank < m->all->n_ranks; rank++)
        for (int l = 0; l < LAYERS; l++)
            EXPECT(m, m->all->epochs[rank][l] == m->all->epochs[m->rank][l]);
    meet(m);
}

/* One step in lockstep; the layer that changed. */
static int step(member *m, int *busy) {
    bl_step_news news = BL_STEP_NEWS_INIT;
    meet(m);
    succeed(m, bl_step(m->embed, &news));
    *busy = news.busy;
    check_served(m);
    return news.layer;
}

/* Steps until nobody has been busy for a while; the number of layers that changed here. */
static int step_until_stable(member *m) {
    int changed = 0;
    for (int quiet = 0, n = 0; quiet < 8 && n < 20000; n++) {
        static int any_busy[MAX_RANKS];
        changed += step(m, &any_busy[m->rank]) >= 0;
        meet(m);
        quiet++;
        for (int rank = 0; rank < m->all->n_ranks; rank++)
            quiet = any_busy[rank] ? 0 : quiet;
        meet(m);
    }
    return changed;
}

/* Rank 0 asks for these slots in all layers. */
static void apply(member *m, const int32_t *experts) {
    bl_placement goal;
    bl_error err = BL_ERROR_INIT;
    int n_moves = 0;
    if (m->rank != 0)
        return;
    if (bl_placement_copy(&m->all->placement, &goal, &err) < 0) {
        complain(m, "no memory");
        return;
    }
    for (int l = 0; l < LAYERS; l++)
        memcpy(goal.layers[l].expert, experts,
               sizeof *experts * (size_t)bl_layer_n_slots(&goal.layers[l]));
    if (bl_agent_apply(m->embed->agent, &goal, &n_moves, &err) < 0)
        complain(m, err.text);
    bl_placement_free(&goal);
}

static bool map_is(member *m, int layer, const int32_t *experts) {
    bl_trace_map map = BL_TRACE_MAP_INIT;
    return bl_map(m->embed, layer, &map) == BL_OK &&
           memcmp(map.expert, experts, sizeof *experts * (size_t)map.n_slots) == 0;
}

/* ---- moves ----------------------------------------------------------------------------------- */

static const int two_by_two[] = {2, 2};
static const int32_t in_order[] = {0, 1, 2, 3};

static void swap_body(member *m) {
    static const int32_t goal[] = {0, 2, 1, 3};
    uint64_t before = 0, after = 0;
    step_until_stable(m);
    succeed(m, bl_slot_hash(m->embed, 3, 1 - m->rank, &before)); /* of expert 1, of expert 2 */
    apply(m, goal);
    EXPECT(m, step_until_stable(m) == LAYERS);
    EXPECT(m, map_is(m, 3, goal) && map_is(m, 7, goal));
    succeed(m, bl_slot_hash(m->embed, 3, 1 - m->rank, &after));
    EXPECT(m, before != after);
    bl_embed_status status = BL_EMBED_STATUS_INIT;
    EXPECT(m, bl_embed_read_status(m->embed, &status) == BL_OK);
    EXPECT(m, status.commits == LAYERS && status.moves == 1 && !status.busy && !status.is_off);
    EXPECT(m, status.bundle_bytes == FOREIGN_BUNDLE_BYTES && status.spares == 1);
    EXPECT(m, status.received_bytes > 2 * FOREIGN_BUNDLE_BYTES);
    EXPECT(m, m->foreign[0]->n_recomputed == 1);
}

static void test_experts_swap_ranks(void **state) {
    (void)state;
    cluster *all = new_cluster(2, 4, two_by_two, in_order);
    all->options.spares = 1;
    run_cluster(all, swap_body);
}

/* Copies, uneven slots, several waves: there and back again, many times. */
static void wander_body(member *m) {
    static const int32_t goals[][9] = {{4, 5, 0, 1, 2, 3, 0, 4, 1},
                                       {0, 2, 4, 1, 3, 5, 0, 2, 3},
                                       {5, 0, 1, 2, 3, 4, 1, 0, 5},
                                       {1, 3, 5, 0, 2, 4, 1, 2, 0}};
    for (int round = 0; round < 12; round++) {
        meet(m);
        apply(m, goals[round % 4]);
        EXPECT(m, step_until_stable(m) > 0);
        if (round == 5) { /* a copy of each expert per rank at most, all of the same content */
            succeed(m, bl_drain(m->embed, BL_DRAIN_FINISH));
            succeed(m, bl_resume(m->embed, 1));
        }
    }
}

static void test_many_moves(void **state) {
    (void)state;
    static const int slots[] = {3, 4, 2};
    static const int32_t experts[] = {0, 1, 2, 3, 4, 5, 0, 1, 2};
    cluster *all = new_cluster(3, 6, slots, experts);
    all->options.spares = 2;
    run_cluster(all, wander_body);
}

/* Pointers on all ranks, or on some: bundles are the same bytes either way. */
static void test_moves_by_pointers(void **state) {
    (void)state;
    static const int slots[] = {3, 4, 2};
    static const int32_t experts[] = {0, 1, 2, 3, 4, 5, 0, 1, 2};
    for (int mixed = 0; mixed < 2; mixed++) {
        cluster *all = new_cluster(3, 6, slots, experts);
        all->options.spares = 2;
        for (int rank = 0; rank < 3; rank++)
            all->by_pointers[rank] = mixed == 0 || rank == 1;
        run_cluster(all, wander_body);
    }
}

/* What a step reads by the pointers it was given is there until the step after the next one begins,
 * whatever moves meanwhile. */
static void late_reader_body(member *m) {
    static const int32_t goals[][4] = {{0, 2, 1, 3}, {3, 2, 1, 0}, {0, 1, 2, 3}};
    void *at[LAYERS][2] = {{NULL}};
    int8_t copy[LAYERS][2][FOREIGN_ROWS * FOREIGN_ROW_STRIDE];
    for (int n = 0, quiet = 0, round = 0; n < 300; n++) {
        int busy;
        if (quiet > 2 && n < 250) {
            apply(m, goals[round++ % 3]);
            quiet = 0;
        }
        step(m, &busy);
        quiet = busy ? 0 : quiet + 1;
        for (int l = 0; l < LAYERS; l++) {
            for (int slot = 0; slot < 2; slot++) { /* of the last step: still running */
                if (at[l][slot] != NULL)
                    EXPECT(m, memcmp(at[l][slot], copy[l][slot], sizeof copy[l][slot]) == 0);
                at[l][slot] = bl_foreign_at(m->foreign[l], FOREIGN_W, slot);
                memcpy(copy[l][slot], at[l][slot], sizeof copy[l][slot]);
            }
        }
    }
    EXPECT(m, m->embed->commits >= 2 * LAYERS);
}

static void test_pointers_outlive_their_step(void **state) {
    (void)state;
    cluster *all = new_cluster(2, 4, two_by_two, in_order);
    all->options.spares = 1;
    all->by_pointers[0] = all->by_pointers[1] = true;
    run_cluster(all, late_reader_body);
}

/* ---- reloading ------------------------------------------------------------------------------- */

static void reload(member *m, int version) {
    for (int l = 0; l < LAYERS; l++) {
        bl_trace_map map = BL_TRACE_MAP_INIT;
        int begin[MAX_RANKS + 1] = {0};
        succeed(m, bl_map(m->embed, layer_ids[l], &map));
        for (int rank = 0; rank < map.n_ranks; rank++)
            begin[rank + 1] = begin[rank] + map.slots_of_rank[rank];
        bl_foreign_load(m->foreign[l], map.expert, begin, version);
    }
    m->version = version;
}

/* vllm #55228: [0,1,2,3] -> [0,2,1,3], then reload: every slot serves its own. */
static void reload_body(member *m) {
    static const int32_t goal[] = {0, 2, 1, 3};
    apply(m, goal);
    step_until_stable(m);
    succeed(m, bl_drain(m->embed, BL_DRAIN_ABORT));
    EXPECT(m, map_is(m, 3, goal));
    reload(m, 2);
    succeed(m, bl_resume(m->embed, 1));
    for (int slot = 0; slot < 2; slot++)
        EXPECT(m, bl_foreign_holds(m->foreign[0], slot, goal[2 * m->rank + slot], 2));
    step_until_stable(m);
    meet(m);
    apply(m, in_order); /* and the new weights travel back */
    EXPECT(m, step_until_stable(m) == LAYERS);
    EXPECT(m, map_is(m, 3, in_order));
}

static void test_reload_after_a_move(void **state) {
    (void)state;
    cluster *all = new_cluster(2, 4, two_by_two, in_order);
    all->options.spares = 1;
    run_cluster(all, reload_body);
}

/* Reload while a move is half done: layer 3 has moved, layer 7 has not, or not yet. */
static void reload_midway_body(member *m) {
    static const int32_t goal[] = {0, 2, 1, 3};
    bl_step_news news = BL_STEP_NEWS_INIT;
    const int how = m->all->options.job == 1 ? BL_DRAIN_FINISH : BL_DRAIN_ABORT;
    int busy, changed;
    apply(m, goal);
    do
        changed = step(m, &busy);
    while (changed != 3 && fine(m));
    succeed(m, bl_drain(m->embed, how));
    EXPECT(m, map_is(m, 3, goal));
    EXPECT(m, map_is(m, 7, how == BL_DRAIN_FINISH ? goal : in_order));
    bl_embed_status status = BL_EMBED_STATUS_INIT;
    bl_embed_read_status(m->embed, &status);
    EXPECT(m, status.drained && !status.busy);
    EXPECT(m, how == BL_DRAIN_FINISH || strstr(status.reason, "reloaded") != NULL);
    EXPECT(m, bl_drain(m->embed, how) == BL_ERR_STATE);
    reload(m, 5);
    check_served(m);
    succeed(m, bl_step(m->embed, &news)); /* a step in between is fine */
    succeed(m, bl_resume(m->embed, 1));
    apply(m, goal);
    EXPECT(m, step_until_stable(m) == (how == BL_DRAIN_FINISH ? 0 : 1));
    EXPECT(m, map_is(m, 7, goal));
}

static void test_reload_in_the_middle_of_a_move(void **state) {
    (void)state;
    for (uint64_t how = 0; how < 2; how++) {
        cluster *all = new_cluster(2, 4, two_by_two, in_order);
        all->options.spares = 1;
        all->options.job = how;
        run_cluster(all, reload_midway_body);
    }
}

/* A slot that got another expert's weights: named, and nothing moves until it is right. */
static void wrong_reload_body(member *m) {
    succeed(m, bl_drain(m->embed, BL_DRAIN_ABORT));
    reload(m, 3);
    if (m->rank == 1)
        bl_foreign_load_slot(m->foreign[1], 2, 1, 3); /* slot 5 holds expert 0 */
    EXPECT(m, bl_resume(m->embed, 1) == BL_ERR_CHECKSUM);
    EXPECT(m, strstr(bl_embed_error(m->embed), "layer 7: expert 0") != NULL);
    EXPECT(m, strstr(bl_embed_error(m->embed), "slot 5") != NULL);
    reload(m, 3);
    if (m->rank == 1)
        m->foreign[0]->bias[0] += 1.0f; /* a table that is not the same everywhere */
    EXPECT(m, bl_resume(m->embed, 0) == BL_ERR_CHECKSUM);
    EXPECT(m, strstr(bl_embed_error(m->embed), "tensor bias") != NULL);
    reload(m, 3);
    succeed(m, bl_resume(m->embed, 1));
    step_until_stable(m);
}

static void test_a_wrong_reload_is_named(void **state) {
    (void)state;
    static const int slots[] = {3, 3};
    static const int32_t experts[] = {0, 1, 2, 3, 2, 0};
    run_cluster(new_cluster(2, 4, slots, experts), wrong_reload_body);
}

/* ---- refusals -------------------------------------------------------------------------------- */

static void no_body(member *m) {
    complain(m, "it started");
}

static void refused_by_all(void (*spoil)(int, int, bl_tensor *, int *), const char *const *parts) {
    cluster *all = new_cluster(2, 4, two_by_two, in_order);
    all->spoil = spoil;
    all->may_fail_to_start = true;
    all->options.spares = 1;
    run_cluster(all, no_body);
    for (int rank = 0; rank < 2; rank++)
        for (const char *const *part = parts; *part != NULL; part++)
            bl_test_has(all->members[rank].error, *part);
    assert_string_equal(all->members[0].error, all->members[1].error);
}

static void other_layout(int rank, int layer, bl_tensor *tensors, int *n) {
    (void)n;
    if (rank == 1 && layer == 7)
        tensors[2].layout = "e4m3 swizzled";
}

static void not_declared(int rank, int layer, bl_tensor *tensors, int *n) {
    if (rank == 1 && layer == 3) {
        tensors[3] = tensors[7];
        *n = 7;
    }
}

static void other_shape(int rank, int layer, bl_tensor *tensors, int *n) {
    (void)layer, (void)n;
    if (rank == 1)
        tensors[1].row_bytes = 8;
}

static void other_scope(int rank, int layer, bl_tensor *tensors, int *n) {
    (void)layer, (void)n;
    if (rank == 0) { /* bias as if it were found by the expert's number */
        tensors[5].scope = BL_SCOPE_EXPERT;
    }
}

static void own_alpha(int rank, int layer, bl_tensor *tensors, int *n) {
    (void)n;
    if (rank == 1 && layer == 7)
        *(float *)tensors[7].base = 0.5f;
}

static void bad_dimension(int rank, int layer, bl_tensor *tensors, int *n) {
    (void)n;
    if (rank == 1 && layer == 7)
        tensors[1].entries = 288;
}

static void not_recomputed(int rank, int layer, bl_tensor *tensors, int *n) {
    (void)n;
    if (rank == 1 && layer == 7)
        tensors[4].recomputed = 0;
}

static void test_refused_by_name_on_all_ranks(void **state) {
    (void)state;
    const struct {
        void (*spoil)(int, int, bl_tensor *, int *);
        const char *parts[4];
    } cases[] = {
        {other_layout, {"layer 7: tensor f8", "\"e4m3\" on rank 0", "\"e4m3 swizzled\" on rank 1"}},
        {not_declared, {"layer 3: tensor f8_scale", "declared by rank 0 and not by rank 1"}},
        {other_shape, {"layer 3: tensor w_scale", "16 bytes on rank 0", "8 bytes on rank 1"}},
        {other_scope, {"layer 3: tensor bias", "per global expert on rank 0"}},
        {own_alpha, {"layer 7: tensor alpha, per layer", "on rank 1"}},
        {bad_dimension, {"layer 7: rank 1 refuses: tensor w_scale", "288"}},
        {not_recomputed, {"layer 7: tensor row_sum", "is recomputed on rank 0"}},
    };
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++)
        refused_by_all(cases[c].spoil, cases[c].parts);
}

static void test_a_pool_too_small_is_refused(void **state) {
    (void)state;
    static const char *const parts[] = {"rank 0 refuses", "one expert takes 72 bytes", "71", NULL};
    cluster *all = new_cluster(2, 4, two_by_two, in_order);
    all->may_fail_to_start = true;
    all->options.spares = 3;
    all->options.spare_bytes = 71;
    run_cluster(all, no_body);
    for (int rank = 0; rank < 2; rank++)
        for (const char *const *part = parts; *part != NULL; part++)
            bl_test_has(all->members[rank].error, *part);
}

static void test_options_are_checked(void **state) {
    (void)state;
    char text[200];
    bl_embed *embed = NULL;
    bl_embed_options options = BL_EMBED_OPTIONS_INIT;
    assert_int_equal(bl_embed_open(&options, &embed, text, sizeof text), BL_ERR_RANGE);
    bl_test_has(text, "0 experts");
    options.n_experts = 4;
    options.top_k = 2;
    unsetenv("RANK");
    unsetenv("WORLD_SIZE");
    assert_int_equal(bl_embed_open(&options, &embed, text, sizeof text), BL_ERR_USAGE);
    bl_test_has(text, "which rank");
    options.rank = 1;
    options.n_ranks = 2;
    assert_int_equal(bl_embed_open(&options, &embed, text, sizeof text), BL_ERR_USAGE);
    bl_test_has(text, "needs a rendezvous");
    options.size = 16;
    assert_int_equal(bl_embed_open(&options, &embed, text, sizeof text), BL_ERR_VERSION);
    assert_null(embed);
    /* alone */
    options = (bl_embed_options)BL_EMBED_OPTIONS_INIT;
    options.n_experts = 4;
    options.top_k = 2;
    options.rank = 0;
    options.n_ranks = 1;
    options.socket = "";
    assert_int_equal(bl_embed_open(&options, &embed, text, sizeof text), BL_OK);
    assert_int_equal(bl_step(embed, NULL), BL_ERR_STATE);
    bl_test_has(bl_embed_error(embed), "comes first");
    assert_int_equal(bl_drain(embed, BL_DRAIN_ABORT), BL_ERR_STATE);
    assert_int_equal(bl_embed_start(embed), BL_ERR_USAGE);
    bl_test_has(bl_embed_error(embed), "no layer was declared");
    bl_embed_close(embed);
}

/* ---- losses ---------------------------------------------------------------------------------- */

/* Rank 2 goes away in the middle of a move: the others serve on, with whatever is committed. */
static void loss_body(member *m) {
    static const int32_t goal[] = {2, 1, 4, 3, 0, 5};
    bl_step_news news = BL_STEP_NEWS_INIT;
    bl_embed_status status = BL_EMBED_STATUS_INIT;
    apply(m, goal);
    for (int n = 0; n < 3; n++) {
        int busy;
        step(m, &busy);
    }
    if (m->rank == 2) {
        bl_transport_abandon(m->transport);
        m->transport = NULL;
        m->embed->options.transport = NULL; /* the handle is gone */
        m->embed->transport = NULL;
        bl_agent_free(m->embed->agent);
        m->embed->agent = NULL;
        meet(m);
        return;
    }
    const double until_s = bl_now_s() + PATIENCE_S;
    while (bl_now_s() < until_s && fine(m)) {
        succeed(m, bl_step(m->embed, &news));
        bl_embed_read_status(m->embed, &status);
        if (status.is_off && !status.busy)
            break;
    }
    EXPECT(m, status.is_off && !status.busy);
    EXPECT(m, strstr(status.reason, "rank 2 was lost") != NULL);
    for (int l = 0; l < LAYERS; l++) {
        bl_trace_map map = BL_TRACE_MAP_INIT;
        static const int begin[] = {0, 2, 4, 6};
        succeed(m, bl_map(m->embed, layer_ids[l], &map));
        EXPECT(m, bl_foreign_is(m->foreign[l], map.expert, begin, 1));
    }
    succeed(m, bl_drain(m->embed, BL_DRAIN_ABORT)); /* weights can still be reloaded */
    reload(m, 2);
    succeed(m, bl_resume(m->embed, 0));
    succeed(m, bl_step(m->embed, &news));
    meet(m); /* a survivor that left now would be another loss */
}

static void test_a_lost_rank_takes_nobody_down(void **state) {
    (void)state;
    static const int slots[] = {2, 2, 2};
    static const int32_t experts[] = {0, 1, 2, 3, 4, 5};
    cluster *all = new_cluster(3, 6, slots, experts);
    all->options.spares = 1;
    run_cluster(all, loss_body);
}

/* An engine that cannot recompute in a commit: that rank must not serve on, and says why; the other
 * one has changed over by then. */
static void no_recompute_body(member *m) {
    static const int32_t goal[] = {0, 2, 1, 3};
    static bool done[MAX_RANKS];
    int st = BL_OK;
    done[m->rank] = false;
    if (m->rank == 1)
        m->foreign[0]->layer = 99; /* bl_foreign_recompute() does not find layer 3 any more */
    meet(m);
    apply(m, goal);
    for (int n = 0; n < 20000 && !(done[0] && done[1]); n++) {
        bl_trace_map map = BL_TRACE_MAP_INIT;
        meet(m);
        if (st >= 0)
            st = bl_step(m->embed, NULL);
        bl_map(m->embed, 3, &map);
        done[m->rank] = m->rank == 0 ? map.epoch == 1 : st < 0;
        meet(m);
    }
    EXPECT(m, st == (m->rank == 1 ? BL_ERR_ABORTED : BL_OK));
    EXPECT(m, m->rank == 0 || strstr(bl_embed_error(m->embed), "could not recompute") != NULL);
    if (m->rank == 1) {
        EXPECT(m, bl_step(m->embed, NULL) == BL_ERR_ABORTED); /* and stays so */
        EXPECT(m, bl_drain(m->embed, BL_DRAIN_ABORT) == BL_ERR_ABORTED);
    }
    meet(m);
}

static void test_a_commit_that_cannot_be_done(void **state) {
    (void)state;
    cluster *all = new_cluster(2, 4, two_by_two, in_order);
    all->options.spares = 1;
    run_cluster(all, no_recompute_body);
}

/* vllm #57883: a rank stops stepping. The move is aborted within its deadline, the reason says who was
 * silent, and the next one goes through. */
static void silent_body(member *m) {
    static const int32_t goal[] = {0, 2, 1, 3};
    bl_embed_status status = BL_EMBED_STATUS_INIT;
    status.busy = 1;
    meet(m);
    apply(m, goal);
    if (m->rank == 0) {
        while (status.busy) {
            succeed(m, bl_step(m->embed, NULL));
            bl_embed_read_status(m->embed, &status);
        }
        EXPECT(m, strstr(status.reason, "rank 1") != NULL && !status.is_off);
        EXPECT(m, map_is(m, 3, in_order));
    }
    meet(m);
    while (m->rank == 1 && m->embed->step < m->all->members[0].embed->step)
        succeed(m, bl_step(m->embed, NULL));
    meet(m);
    step_until_stable(m);
    EXPECT(m, map_is(m, 3, in_order));
    meet(m);
    apply(m, goal);
    EXPECT(m, step_until_stable(m) == LAYERS);
}

static void test_a_rank_that_does_not_step(void **state) {
    (void)state;
    cluster *all = new_cluster(2, 4, two_by_two, in_order);
    all->options.spares = 1;
    all->options.deadline_s = 0.5;
    run_cluster(all, silent_body);
}

/* What ranks count adds up on the one that leads: 2 ranks x 64 steps x 3 tokens x top-2. */
static void count_body(member *m) {
    static const int16_t ids[][2] = {{0, 1}, {1, 2}, {1, -1}};
    bl_counted counted = BL_COUNTED_INIT;
    counted.layer = 7;
    counted.ids = ids;
    counted.id_bytes = 2;
    counted.n_tokens = 3;
    counted.row_bytes = sizeof ids[0];
    counted.n_rows = m->rank == 0 ? 9 : 1;
    counted.experts_ns = 1000;
    for (int n = 0; n < 66; n++) {
        int busy;
        step(m, &busy);
        succeed(m, bl_count(m->embed, &counted));
    }
    if (m->rank == 0) {
        const bl_window w = bl_meter_window(m->embed->meter);
        const uint32_t *count = w.count + w.n_experts; /* of layer 7, the second */
        EXPECT(m, w.number == 1 && w.n_steps == 64);
        EXPECT(m, count[0] == 128 && count[1] == 3 * 128 && count[2] == 128 && count[3] == 0);
        EXPECT(m, w.rows[2] == 64 * 9 && w.rows[3] == 64);
        EXPECT(m, w.experts_ns == 64 * 1000);
        EXPECT(m, bl_window_imbalance(&w) > 1.79 && bl_window_imbalance(&w) < 1.81);
    }
    counted.layer = 8;
    EXPECT(m, bl_count(m->embed, &counted) == BL_ERR_RANGE);
    counted.layer = 7;
    counted.id_bytes = 3;
    EXPECT(m, bl_count(m->embed, &counted) == BL_ERR_RANGE);
    meet(m);
}

static void test_counts_add_up(void **state) {
    (void)state;
    run_cluster(new_cluster(2, 4, two_by_two, in_order), count_body);
}

/* A config of another model is refused where it is read, and on all ranks. */
static void test_another_models_config(void **state) {
    (void)state;
    static const char *const parts[] = {"refuses", "it has 5 experts", NULL};
    cluster *all = new_cluster(2, 4, two_by_two, in_order);
    all->may_fail_to_start = true;
    all->options.config = bl_test_write(
        "model.json",
        "{\"name\":\"m\",\"num_hidden_layers\":8,\"moe_layers\":[3,7],\"num_experts\":5,"
        "\"num_experts_per_tok\":2,\"hidden_size\":8,\"moe_intermediate_size\":8}");
    run_cluster(all, no_body);
    for (int rank = 0; rank < 2; rank++)
        for (const char *const *part = parts; *part != NULL; part++)
            bl_test_has(all->members[rank].error, *part);
}

/* Ranks that do not step alike are told which. */
static void unlike_body(member *m) {
    if (m->rank == 1)
        succeed(m, bl_step(m->embed, NULL));
    EXPECT(m, bl_drain(m->embed, BL_DRAIN_ABORT) == BL_ERR_STATE);
    EXPECT(m, strstr(bl_embed_error(m->embed), "after 1") != NULL);
}

static void test_ranks_that_step_unlike(void **state) {
    (void)state;
    run_cluster(new_cluster(2, 4, two_by_two, in_order), unlike_body);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_experts_swap_ranks),
        cmocka_unit_test(test_many_moves),
        cmocka_unit_test(test_moves_by_pointers),
        cmocka_unit_test(test_pointers_outlive_their_step),
        cmocka_unit_test(test_reload_after_a_move),
        cmocka_unit_test(test_reload_in_the_middle_of_a_move),
        cmocka_unit_test(test_a_wrong_reload_is_named),
        cmocka_unit_test(test_refused_by_name_on_all_ranks),
        cmocka_unit_test(test_a_pool_too_small_is_refused),
        cmocka_unit_test(test_options_are_checked),
        cmocka_unit_test(test_a_lost_rank_takes_nobody_down),
        cmocka_unit_test(test_ranks_that_step_unlike),
        cmocka_unit_test(test_a_commit_that_cannot_be_done),
        cmocka_unit_test(test_a_rank_that_does_not_step),
        cmocka_unit_test(test_counts_add_up),
        cmocka_unit_test(test_another_models_config),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
