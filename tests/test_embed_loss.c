/* A foreign engine loses a rank: what only that one held comes back from the engine's own source, or is
 * named; afterwards moves and reloads go on among the survivors. */
#define _XOPEN_SOURCE 600 /* pthread_barrier_t */
#include "tests/support/embed_cluster.h"

#include "core/progress.h"
#include "tests/fake/embed_nccl.h"
#include "tests/fake/fake_nccl.h"
#include "tests/support/support.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

enum { RANKS = 4, SLOTS = 3, EXPERTS = 6 };
static const int slots[RANKS] = {SLOTS, SLOTS, SLOTS, SLOTS};
/* 2 is on rank 0 alone; 4 and 5 on rank 2 alone. */
static const int32_t experts[RANKS * SLOTS] = {0, 1, 2, 3, 0, 1, 5, 4, 3, 3, 0, 1};

/* ---- the engine's source --------------------------------------------------------------------- */

static atomic_int n_asked, n_given, broken; /* broken: what fetch answers */
static int broken_rank;                     /* where; -1: everywhere */
static bool breaks_promise;                 /* it says yes, and then cannot */

static int fetch(void *user, int layer, int expert, const char *tensor, void *to, size_t bytes) {
    const ec_member *m = ec_of_user(user);
    const bool fails = broken != 0 && (broken_rank < 0 || broken_rank == m->rank);
    if (to == NULL)
        n_asked++;
    else
        n_given++;
    if (fails && !(breaks_promise && to == NULL))
        return broken;
    if (to == NULL)
        return 0;
    return bl_foreign_tensor(layer, expert, m->version, tensor, to, bytes) ? 0 : 99;
}

static ec_cluster *cluster_of(int n_spares, bool by_pointers) {
    ec_cluster *all = ec_new(RANKS, EXPERTS, slots, experts);
    all->options.spares = n_spares;
    all->options.fetch = fetch;
    for (int rank = 0; rank < RANKS; rank++)
        all->by_pointers[rank] = by_pointers;
    n_asked = n_given = broken = 0;
    broken_rank = -1;
    breaks_promise = false;
    return all;
}

/* ---- a loss ---------------------------------------------------------------------------------- */

/* Rank `victim` dies after a few steps; survivors step, each for itself, until they know. */
static bool lose(ec_member *m, int victim) {
    bl_step_news news = BL_STEP_NEWS_INIT;
    const double until_s = bl_now_s() + EC_PATIENCE_S;
    int busy;
    ec_step(m, &busy);
    ec_step(m, &busy);
    if (m->rank == victim) {
        ec_die(m);
        ec_meet(m);
        return false;
    }
    while (news.lost < 0 && ec_fine(m) && bl_now_s() < until_s)
        ec_succeed(m, bl_step(m->embed, &news));
    EXPECT(m, news.lost == victim && news.layer == -1);
    EXPECT(m, ec_map_is(m, 3, experts)); /* as it was, the lost with it */
    bl_embed_status status = BL_EMBED_STATUS_INIT;
    EXPECT(m, bl_embed_read_status(m->embed, &status) == BL_OK && status.is_off);
    EXPECT(m, strstr(status.reason, "was lost") != NULL);
    ec_meet(m);
    m->after_loss = true;
    return true;
}

static void check_covered(ec_member *m, int victim) {
    for (int l = 0; l < EC_LAYERS; l++) {
        bl_trace_map map = BL_TRACE_MAP_INIT;
        int copies[EXPERTS] = {0};
        ec_succeed(m, bl_map(m->embed, ec_layers[l], &map));
        EXPECT(m, map.n_ranks == RANKS && map.n_slots == RANKS * SLOTS);
        for (int slot = 0; slot < RANKS * SLOTS; slot++) {
            EXPECT(m, (slot / SLOTS == victim) == (map.expert[slot] < 0));
            if (map.expert[slot] >= 0)
                copies[map.expert[slot]]++;
        }
        for (int e = 0; e < EXPERTS; e++)
            EXPECT(m, copies[e] > 0);
    }
    ec_check_served(m);
}

/* Slots of a rank are worth the same: a move may fill them in another order than the plan. */
static bool ranks_hold(ec_member *m, int layer, const int32_t *goal) {
    bl_trace_map map = BL_TRACE_MAP_INIT;
    bool same = bl_map(m->embed, layer, &map) == BL_OK;
    for (int slot = 0; same && slot < RANKS * SLOTS; slot++) {
        const int first = slot / SLOTS * SLOTS;
        bool found = false;
        for (int i = first; i < first + SLOTS; i++)
            found = found || map.expert[i] == goal[slot];
        same = found;
    }
    return same;
}

/* Everything that goes on before a loss goes on after it. */
static void go_on(ec_member *m, const int32_t *goal) {
    int busy;
    ec_step(m, &busy);
    ec_meet(m);
    if (m->embed->n_spares > 0) {
        ec_apply(m, goal);
        EXPECT(m, ec_until_stable(m) >= EC_LAYERS); /* a wave per spare */
        EXPECT(m, ranks_hold(m, 3, goal) && ranks_hold(m, 7, goal));
    }
    ec_succeed(m, bl_drain(m->embed, BL_DRAIN_FINISH));
    ec_reload(m, 4);
    ec_succeed(m, bl_resume(m->embed, 1));
    ec_check_served(m);
    ec_succeed(m, bl_drain(m->embed, BL_DRAIN_ABORT));
    if (m->rank == 3)
        bl_foreign_load_slot(m->foreign[0], 1, 5,
                             1); /* another version than its copies, or another */
    EXPECT(m, bl_resume(m->embed, 1) == BL_ERR_CHECKSUM);
    ec_reload(m, 4);
    ec_succeed(m, bl_resume(m->embed, 1));
}

static const int32_t after_2[] = {5, 4, 3, 0, 1, 2, -1, -1, -1, 0, 1, 3};
static const int32_t after_0[] = {-1, -1, -1, 2, 0, 1, 3, 4, 5, 0, 1, 2};

static void repair_body(ec_member *m) {
    const int victim = m->all->options.job == 0 ? 0 : 2, n_orphans = victim == 0 ? 1 : 2;
    bl_repaired repaired = BL_REPAIRED_INIT;
    if (!lose(m, victim))
        return;
    ec_succeed(m, bl_repair(m->embed, &repaired));
    EXPECT(m, repaired.n_lost == 1 && repaired.lost[0] == victim);
    EXPECT(m, repaired.n_fetched == n_orphans * EC_LAYERS);
    EXPECT(m, repaired.n_fetched_here <= repaired.n_fetched && repaired.step > 2);
    ec_meet(m);
    EXPECT(m, n_asked == n_orphans * EC_LAYERS * FOREIGN_PARTS && n_given == n_asked);
    check_covered(m, victim);
    bl_embed_status status = BL_EMBED_STATUS_INIT;
    EXPECT(m, bl_embed_read_status(m->embed, &status) == BL_OK && !status.is_off);
    EXPECT(m, status.leads == (m->rank == (victim == 0 ? 1 : 0)) && status.reason[0] == '\0');
    bl_step_news news = BL_STEP_NEWS_INIT;
    ec_succeed(m, bl_step(m->embed, &news));
    EXPECT(m, news.lost == -1 && news.step == repaired.step + 1);
    go_on(m, victim == 0 ? after_0 : after_2);
    ec_meet(m);
}

/* The leader and another one, with and without spares, tensors and pointers. */
static void test_lost_experts_come_back(void **state) {
    (void)state;
    for (uint64_t job = 0; job < 2; job++) {
        for (int spares = 0; spares < 2; spares++) {
            for (int by_pointers = 0; by_pointers < 2; by_pointers++) {
                ec_cluster *all = cluster_of(spares, by_pointers);
                all->options.job = job;
                ec_run(all, repair_body);
            }
        }
    }
}

/* Over NCCL: the communicator goes with the lost rank, and the survivors' next move makes another. */
static void test_over_nccl(void **state) {
    (void)state;
    for (uint64_t job = 0; job < 2; job++) {
        fake_nccl_reset();
        ec_cluster *all = cluster_of(1, false);
        all->options.job = job;
        all->prepare = take_nccl;
        all->by_pointers[3] = true;
        ec_run(all, repair_body);
        assert_true(fake_nccl_joined() >= RANKS - 1);
        assert_true(fake_nccl_sent_bytes() > 0);
        assert_null(fake_nccl_misuse());
        assert_int_equal(fake_nccl_reset(), 0);
    }
}

/* ---- what cannot be brought back ------------------------------------------------------------- */

static char texts[RANKS][512];

/* All are told the same, and nothing has changed. */
static void refused(ec_member *m, const char *const *parts) {
    EXPECT(m, bl_repair(m->embed, NULL) == BL_ERR_INFEASIBLE);
    snprintf(texts[m->rank], sizeof texts[m->rank], "%s", bl_embed_error(m->embed));
    for (; *parts != NULL; parts++)
        if (strstr(texts[m->rank], *parts) == NULL)
            ec_complain(m, texts[m->rank]);
    ec_meet(m);
    EXPECT(m, strcmp(texts[m->rank], texts[1]) == 0);
    EXPECT(m, n_given == 0 && ec_map_is(m, 3, experts) && ec_map_is(m, 7, experts));
    bl_step_news news = BL_STEP_NEWS_INIT;
    ec_succeed(m, bl_step(m->embed, &news));
    EXPECT(m, news.lost == 2);
    ec_meet(m);
}

/* One rank's disk is not there, at first. */
static void late_source_body(ec_member *m) {
    const char *const parts[] = {"layer 3: expert 4", "rank 0's engine", "tensor f8 (5)", NULL};
    if (!lose(m, 2))
        return;
    refused(m, parts);
    refused(m, parts); /* once more is no different */
    broken = 0;
    ec_meet(m);
    ec_succeed(m, bl_repair(m->embed, NULL));
    check_covered(m, 2);
    go_on(m, after_2);
    ec_meet(m);
}

static void test_a_source_that_comes_later(void **state) {
    (void)state;
    ec_cluster *all = cluster_of(1, false);
    broken = 5;
    broken_rank = 0;
    ec_run(all, late_source_body);
}

static void no_source_body(ec_member *m) {
    const char *const parts[] = {"layer 3: expert 4", "no function to fetch it", NULL};
    if (!lose(m, 2))
        return;
    refused(m, parts);
    ec_succeed(m, bl_drain(m->embed, BL_DRAIN_ABORT)); /* weights can still be reloaded */
    EXPECT(m, bl_repair(m->embed, NULL) == BL_ERR_STATE);
    EXPECT(m, strstr(bl_embed_error(m->embed), "bl_resume() first") != NULL);
    ec_succeed(m, bl_resume(m->embed, 0));
    ec_meet(m);
}

static void test_no_source(void **state) {
    (void)state;
    ec_cluster *all = cluster_of(1, true);
    all->options.fetch = NULL;
    ec_run(all, no_source_body);
}

/* Six experts, five slots left. */
static void no_room_body(ec_member *m) {
    int busy;
    ec_step(m, &busy);
    if (m->rank == 2) {
        ec_die(m);
        return;
    }
    EXPECT(m, bl_repair(m->embed, NULL) == BL_ERR_INFEASIBLE); /* it finds out by itself */
    EXPECT(m, strstr(bl_embed_error(m->embed), "layer 3: expert 5") != NULL);
    EXPECT(m, strstr(bl_embed_error(m->embed), "no living rank has a slot left") != NULL);
    EXPECT(m, n_given == 0);
    m->after_loss = true;
    ec_meet(m);
}

static void test_no_room(void **state) {
    (void)state;
    static const int few[] = {2, 2, 2, 1};
    static const int32_t full[] = {0, 1, 2, 3, 4, 5, 0};
    ec_cluster *all = ec_new(RANKS, EXPERTS, few, full);
    all->options.spares = 1;
    all->options.fetch = fetch;
    broken = n_given = 0;
    ec_run(all, no_room_body);
}

/* A rank says that it has an expert, and then cannot read it: it must not serve on, the others do, and
 * when it is gone they repair that as well. Three ranks of four, then two of three. */
static void broken_promise_body(ec_member *m) {
    bl_repaired repaired = BL_REPAIRED_INIT;
    if (!lose(m, 2))
        return;
    const int st = bl_repair(m->embed, NULL);
    EXPECT(m, st == (m->rank == 0 ? BL_ERR_ABORTED : BL_OK));
    ec_meet(m); /* a rank that died before the others are through would be a second loss of four */
    if (m->rank == 0) {
        EXPECT(m, strstr(bl_embed_error(m->embed), "must not serve on") != NULL);
        EXPECT(m, strstr(bl_embed_error(m->embed), "layer 3: expert 4") != NULL);
        EXPECT(m, bl_step(m->embed, NULL) == BL_ERR_ABORTED);
        EXPECT(m, bl_repair(m->embed, NULL) == BL_ERR_ABORTED);
        ec_die(m);
        return;
    }
    ec_succeed(m, bl_repair(m->embed, &repaired));
    EXPECT(m, repaired.n_lost == 2 && repaired.lost[0] == 0 && repaired.lost[1] == 2);
    for (int l = 0; l < EC_LAYERS; l++) {
        bl_trace_map map = BL_TRACE_MAP_INIT;
        const int begin[] = {0, 3, 6, 9, 12};
        ec_succeed(m, bl_map(m->embed, ec_layers[l], &map));
        EXPECT(m, bl_foreign_is(m->foreign[l], map.expert, begin, m->version));
    }
    ec_succeed(m, bl_drain(m->embed, BL_DRAIN_ABORT));
    ec_succeed(m, bl_resume(m->embed, 1));
    /* whoever leaves first would be a loss to the other */
    ec_succeed(m, bl_drain(m->embed, BL_DRAIN_ABORT));
}

static void test_a_promise_that_is_not_kept(void **state) {
    (void)state;
    ec_cluster *all = cluster_of(1, false);
    broken = 5;
    broken_rank = 0;
    breaks_promise = true;
    ec_run(all, broken_promise_body);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lost_experts_come_back),
        cmocka_unit_test(test_over_nccl),
        cmocka_unit_test(test_a_source_that_comes_later),
        cmocka_unit_test(test_no_source),
        cmocka_unit_test(test_no_room),
        cmocka_unit_test(test_a_promise_that_is_not_kept),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
