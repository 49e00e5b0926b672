#define _XOPEN_SOURCE 600 /* pthread_barrier_t */
#include "tests/support/embed_cluster.h"

#include "tests/support/support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const int ec_layers[EC_LAYERS] = {3, 7};

bool ec_fine(const ec_member *m) {
    return m->error[0] == '\0';
}

void ec_complain(ec_member *m, const char *what) {
    if (ec_fine(m))
        snprintf(m->error, sizeof m->error, "rank %d: %.500s", m->rank, what);
}

void ec_succeed(ec_member *m, int status) {
    if (status < 0)
        ec_complain(m, bl_embed_error(m->embed));
}

/* ---- a rank ---------------------------------------------------------------------------------- */

static int open_member(ec_member *m) {
    ec_cluster *all = m->all;
    char text[256] = "";
    bl_embed_options options = all->options;
    options.transport = m->transport;
    options.model = "foreign";
    options.n_experts = all->placement.n_experts;
    options.top_k = 2;
    options.socket = "";
    options.recompute = bl_foreign_recompute;
    options.user = m->foreign;
    if (all->prepare != NULL)
        all->prepare(m, &options);
    if (bl_embed_open(&options, &m->embed, text, sizeof text) < 0) {
        ec_complain(m, text);
        return -1;
    }
    for (int l = 0; l < EC_LAYERS; l++) {
        const bl_layer_placement *map = &all->placement.layers[l];
        bl_tensor tensors[FOREIGN_TENSORS];
        bl_layer layer = BL_LAYER_INIT;
        int slots[EC_MAX_RANKS], n_tensors = FOREIGN_TENSORS;
        for (int rank = 0; rank < all->n_ranks; rank++)
            slots[rank] = map->begin[rank + 1] - map->begin[rank];
        m->foreign[l] = all->by_pointers[m->rank]
                            ? bl_foreign_new_by_pointers(map, m->rank, m->version,
                                                         (options.spares + 1 - l) / EC_LAYERS)
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
    ec_member *m = user;
    const int st = open_member(m);
    if (st >= 0)
        m->all->body(m);
    else if (ec_fine(m))
        snprintf(m->error, sizeof m->error, "%.500s", bl_embed_error(m->embed));
    bl_embed_close(m->embed);
    bl_transport_close(m->transport);
    for (int l = 0; l < EC_LAYERS; l++)
        bl_foreign_free(m->foreign[l]);
    return NULL;
}

ec_cluster *ec_new(int n_ranks, int n_experts, const int *slots, const int32_t *experts) {
    bl_error err;
    static ec_cluster all;
    bl_transport *handles[EC_MAX_RANKS];
    memset(&all, 0, sizeof all);
    all.n_ranks = n_ranks;
    all.options = (bl_embed_options)BL_EMBED_OPTIONS_INIT;
    all.options.deadline_s = 20;
    assert_ok(
        bl_placement_create(n_ranks, n_experts, ec_layers, EC_LAYERS, slots, &all.placement, &err));
    for (int l = 0; l < EC_LAYERS; l++)
        memcpy(all.placement.layers[l].expert, experts,
               sizeof *experts * (size_t)bl_layer_n_slots(&all.placement.layers[l]));
    assert_ok(bl_transport_local_open(n_ranks, handles, &err));
    for (int rank = 0; rank < n_ranks; rank++)
        all.members[rank] =
            (ec_member){.all = &all, .rank = rank, .transport = handles[rank], .version = 1};
    assert_int_equal(pthread_barrier_init(&all.barrier, NULL, (unsigned)n_ranks), 0);
    if (n_ranks > 1)
        assert_int_equal(pthread_barrier_init(&all.survivors, NULL, (unsigned)(n_ranks - 1)), 0);
    return &all;
}

void ec_run(ec_cluster *all, ec_body_fn *body) {
    pthread_t threads[EC_MAX_RANKS];
    all->body = body;
    for (int rank = 0; rank < all->n_ranks; rank++)
        assert_int_equal(pthread_create(&threads[rank], NULL, run_member, &all->members[rank]), 0);
    for (int rank = 0; rank < all->n_ranks; rank++)
        pthread_join(threads[rank], NULL);
    for (int rank = 0; rank < all->n_ranks && !all->may_fail_to_start; rank++)
        if (!ec_fine(&all->members[rank]))
            fail_msg("%s", all->members[rank].error);
    pthread_barrier_destroy(&all->barrier);
    if (all->n_ranks > 1)
        pthread_barrier_destroy(&all->survivors);
    bl_placement_free(&all->placement);
}

/* ---- steps ----------------------------------------------------------------------------------- */

void ec_meet(ec_member *m) {
    pthread_barrier_wait(m->after_loss ? &m->all->survivors : &m->all->barrier);
}

void ec_check_served(ec_member *m) {
    for (int l = 0; l < EC_LAYERS; l++) {
        bl_trace_map map = BL_TRACE_MAP_INIT;
        int begin[EC_MAX_RANKS + 1] = {0};
        ec_succeed(m, bl_map(m->embed, ec_layers[l], &map));
        for (int rank = 0; rank < map.n_ranks; rank++)
            begin[rank + 1] = begin[rank] + map.slots_of_rank[rank];
        EXPECT(m, bl_foreign_is(m->foreign[l], map.expert, begin, m->version));
        m->all->epochs[m->rank][l] = map.epoch;
    }
    ec_meet(m);
    for (int rank = 0; rank < m->all->n_ranks; rank++)
        for (int l = 0; l < EC_LAYERS; l++)
            EXPECT(m, m->all->members[rank].gone ||
                          m->all->epochs[rank][l] == m->all->epochs[m->rank][l]);
    ec_meet(m);
}

int ec_step(ec_member *m, int *busy) {
    bl_step_news news = BL_STEP_NEWS_INIT;
    ec_meet(m);
    ec_succeed(m, bl_step(m->embed, &news));
    *busy = news.busy;
    ec_check_served(m);
    return news.step == 1 ? -1 : news.layer; /* the first step names one that has not moved */
}

int ec_step_alone(ec_member *m) {
    const int st = bl_step(m->embed, NULL);
    for (int l = 0; l < EC_LAYERS; l++) {
        bl_trace_map map = BL_TRACE_MAP_INIT;
        ec_succeed(m, bl_map(m->embed, ec_layers[l], &map));
    }
    return st;
}

int ec_until_stable(ec_member *m) {
    int changed = 0;
    for (int quiet = 0, n = 0; quiet < 8 && n < 20000; n++) {
        static int any_busy[EC_MAX_RANKS];
        changed += ec_step(m, &any_busy[m->rank]) >= 0;
        ec_meet(m);
        quiet++;
        for (int rank = 0; rank < m->all->n_ranks; rank++)
            quiet = any_busy[rank] && !m->all->members[rank].gone ? 0 : quiet;
        ec_meet(m);
    }
    return changed;
}

void ec_apply(ec_member *m, const int32_t *experts) {
    bl_placement goal;
    bl_error err = BL_ERROR_INIT;
    int n_moves = 0;
    if (bl_agent_leader(m->embed->agent) != m->rank)
        return;
    if (bl_placement_copy(&m->all->placement, &goal, &err) < 0) {
        ec_complain(m, "no memory");
        return;
    }
    for (int l = 0; l < EC_LAYERS; l++)
        memcpy(goal.layers[l].expert, experts,
               sizeof *experts * (size_t)bl_layer_n_slots(&goal.layers[l]));
    if (bl_agent_apply(m->embed->agent, &goal, &n_moves, &err) < 0)
        ec_complain(m, err.text);
    bl_placement_free(&goal);
}

bool ec_map_is(ec_member *m, int layer, const int32_t *experts) {
    bl_trace_map map = BL_TRACE_MAP_INIT;
    return bl_map(m->embed, layer, &map) == BL_OK &&
           memcmp(map.expert, experts, sizeof *experts * (size_t)map.n_slots) == 0;
}

void ec_reload(ec_member *m, int version) {
    for (int l = 0; l < EC_LAYERS; l++) {
        bl_trace_map map = BL_TRACE_MAP_INIT;
        int begin[EC_MAX_RANKS + 1] = {0};
        ec_succeed(m, bl_map(m->embed, ec_layers[l], &map));
        for (int rank = 0; rank < map.n_ranks; rank++)
            begin[rank + 1] = begin[rank] + map.slots_of_rank[rank];
        bl_foreign_load(m->foreign[l], map.expert, begin, version);
    }
    m->version = version;
}

ec_member *ec_of_user(void *user) {
    return (ec_member *)(void *)((unsigned char *)user - offsetof(ec_member, foreign));
}

void ec_die(ec_member *m) {
    m->gone = true;
    bl_recovery_free(m->embed->recovery);
    bl_agent_free(m->embed->agent);
    m->embed->recovery = NULL;
    m->embed->agent = NULL;
    bl_transport_abandon(m->transport); /* without a word */
    m->transport = NULL;
    m->embed->options.transport = NULL; /* the handle is gone */
    m->embed->transport = NULL;
}
