/* Careless and hostile callers of ballast_embed.h: every misuse is a status and a line of text, and whoever
 * was refused something goes on. */
#define _XOPEN_SOURCE 600 /* pthread_barrier_t */
#include "tests/support/embed_cluster.h"

#include "core/progress.h"
#include "tests/support/support.h"

#include <stdlib.h>
#include <string.h>

static const int two_by_two[] = {2, 2};
static const int32_t in_order[] = {0, 1, 2, 3}, swapped[] = {0, 2, 1, 3};

/* ---- alone: one rank, one layer -------------------------------------------------------------- */

static float memory[3][8];
static void *table[3];
static const int32_t two_experts[2] = {0, 1};

static bl_embed_options alone(void) {
    bl_embed_options o = BL_EMBED_OPTIONS_INIT;
    o.rank = 0;
    o.n_ranks = 1;
    o.model = "alone";
    o.n_experts = 2;
    o.top_k = 1;
    o.socket = "";
    return o;
}

static bl_tensor by_pointers(void) {
    bl_tensor t = BL_TENSOR_INIT;
    for (int i = 0; i < 3; i++)
        table[i] = memory[i];
    t.name = "w";
    t.pointers = table;
    t.entries = 2;
    t.row_bytes = sizeof memory[0];
    return t;
}

static bl_layer one_layer(const bl_tensor *t) {
    bl_layer l = BL_LAYER_INIT;
    l.layer = 5;
    l.n_slots = 2;
    l.expert = two_experts;
    l.tensors = t;
    l.n_tensors = 1;
    l.n_spares = 1;
    return l;
}

static bl_embed *open_alone(const bl_embed_options *o, bool start) {
    bl_embed *embed = NULL;
    char text[256] = "";
    const bl_tensor t = by_pointers();
    const bl_layer l = one_layer(&t);
    if (bl_embed_open(o, &embed, text, sizeof text) < 0)
        fail_msg("%s", text);
    assert_int_equal(bl_embed_add_layer(embed, &l), BL_OK);
    if (start && bl_embed_start(embed) < 0)
        fail_msg("%s", bl_embed_error(embed));
    return embed;
}

static void test_nothing_given(void **state) {
    (void)state;
    char text[256] = "";
    bl_embed *embed = NULL;
    bl_embed_options o = alone();
    bl_trace_map map = BL_TRACE_MAP_INIT;
    bl_embed_status status = BL_EMBED_STATUS_INIT;
    uint64_t hash;
    assert_int_equal(bl_embed_open(NULL, &embed, text, sizeof text), BL_ERR_USAGE);
    bl_test_has(text, "options is NULL");
    assert_int_equal(bl_embed_open(&o, NULL, text, sizeof text), BL_ERR_USAGE);
    bl_test_has(text, "embed_p is NULL");
    assert_int_equal(bl_embed_open(NULL, NULL, NULL, 0), BL_ERR_USAGE);
    assert_int_equal(bl_embed_add_layer(NULL, NULL), BL_ERR_USAGE);
    assert_int_equal(bl_embed_start(NULL), BL_ERR_USAGE);
    assert_int_equal(bl_step(NULL, NULL), BL_ERR_USAGE);
    assert_int_equal(bl_map(NULL, 5, &map), BL_ERR_USAGE);
    assert_int_equal(bl_slot_hash(NULL, 5, 0, &hash), BL_ERR_USAGE);
    assert_int_equal(bl_count(NULL, NULL), BL_ERR_USAGE);
    assert_int_equal(bl_drain(NULL, 0), BL_ERR_USAGE);
    assert_int_equal(bl_resume(NULL, 0), BL_ERR_USAGE);
    assert_int_equal(bl_repair(NULL, NULL), BL_ERR_USAGE);
    assert_int_equal(bl_embed_read_status(NULL, &status), BL_ERR_USAGE);
    assert_string_equal(bl_embed_error(NULL), "");
    bl_embed_close(NULL);
    embed = open_alone(&o, true);
    assert_int_equal(bl_embed_add_layer(embed, NULL), BL_ERR_USAGE);
    bl_test_has(bl_embed_error(embed), "a layer is NULL");
    assert_int_equal(bl_map(embed, 5, NULL), BL_ERR_USAGE);
    assert_int_equal(bl_slot_hash(embed, 5, 0, NULL), BL_ERR_USAGE);
    assert_int_equal(bl_count(embed, NULL), BL_ERR_USAGE);
    assert_int_equal(bl_embed_read_status(embed, NULL), BL_ERR_USAGE);
    assert_int_equal(bl_step(embed, NULL), BL_OK); /* it goes on */
    bl_embed_close(embed);
}

/* Every struct with a size of 0, of a single field, of garbage; and of an older header. */
static void test_sizes(void **state) {
    (void)state;
    static const size_t wrong[] = {0, sizeof(size_t), (size_t)-1, (size_t)1 << 40, 5000};
    char text[256];
    bl_embed *embed = NULL;
    bl_embed_options o = alone();
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        o.size = wrong[i];
        assert_int_equal(bl_embed_open(&o, &embed, text, sizeof text), BL_ERR_VERSION);
        bl_test_has(text, "use its _INIT macro");
    }
    o = alone();
    o.size = offsetof(bl_embed_options, fetch); /* the first header's */
    assert_int_equal(bl_embed_open(&o, &embed, text, sizeof text), BL_OK);
    bl_tensor t = by_pointers();
    bl_layer l = one_layer(&t);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        l.size = wrong[i];
        assert_int_equal(bl_embed_add_layer(embed, &l), BL_ERR_VERSION);
        l = one_layer(&t);
        t.size = wrong[i];
        assert_int_equal(bl_embed_add_layer(embed, &l), BL_ERR_VERSION);
        bl_test_has(bl_embed_error(embed), "tensor 0 has size");
        t = by_pointers();
    }
    bl_embed_close(embed);
    o = alone();
    embed = open_alone(&o, true);
    bl_step_news news = BL_STEP_NEWS_INIT;
    bl_trace_map map = BL_TRACE_MAP_INIT;
    bl_repaired repaired = BL_REPAIRED_INIT;
    bl_counted counted = BL_COUNTED_INIT;
    bl_embed_status status = BL_EMBED_STATUS_INIT;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        news.size = map.size = repaired.size = counted.size = status.size = wrong[i];
        assert_int_equal(bl_step(embed, &news), BL_ERR_VERSION);
        assert_int_equal(bl_map(embed, 5, &map), BL_ERR_VERSION);
        assert_int_equal(bl_repair(embed, &repaired), BL_ERR_VERSION);
        assert_int_equal(bl_count(embed, &counted), BL_ERR_VERSION);
        assert_int_equal(bl_embed_read_status(embed, &status), BL_ERR_VERSION);
    }
    news = (bl_step_news)BL_STEP_NEWS_INIT;
    news.size = offsetof(bl_step_news, lost);
    news.lost = 1234; /* what is behind an older struct is not ours */
    assert_int_equal(bl_step(embed, &news), BL_OK);
    assert_int_equal(news.step, 1); /* a refused step was none */
    assert_int_equal(news.lost, 1234);
    bl_embed_close(embed);
}

static void test_order_of_calls(void **state) {
    (void)state;
    bl_embed_options o = alone();
    bl_tensor t = by_pointers();
    bl_layer l = one_layer(&t);
    bl_embed *embed = open_alone(&o, false);
    uint64_t hash;
    bl_counted counted = BL_COUNTED_INIT;
    assert_int_equal(bl_step(embed, NULL), BL_ERR_STATE);
    assert_int_equal(bl_repair(embed, NULL), BL_ERR_STATE);
    assert_int_equal(bl_resume(embed, 0), BL_ERR_STATE);
    assert_int_equal(bl_count(embed, &counted), BL_ERR_STATE);
    assert_int_equal(bl_slot_hash(embed, 5, 0, &hash), BL_ERR_STATE);
    bl_test_has(bl_embed_error(embed), "bl_embed_start() comes first");
    assert_int_equal(bl_embed_add_layer(embed, &l), BL_ERR_USAGE); /* twice; then it cannot start */
    assert_int_equal(bl_embed_start(embed), BL_ERR_USAGE);
    bl_test_has(bl_embed_error(embed), "ascending");
    assert_int_equal(bl_embed_start(embed), BL_ERR_STATE);
    bl_test_has(bl_embed_error(embed), "could not start before");
    bl_embed_close(embed);
    embed = open_alone(&o, true);
    assert_int_equal(bl_embed_start(embed), BL_ERR_STATE);
    l.layer = 6;
    assert_int_equal(bl_embed_add_layer(embed, &l), BL_ERR_STATE);
    assert_int_equal(bl_resume(embed, 0), BL_ERR_STATE);
    bl_test_has(bl_embed_error(embed), "bl_drain() comes first");
    assert_int_equal(bl_drain(embed, 7), BL_ERR_USAGE);
    assert_int_equal(bl_drain(embed, BL_DRAIN_ABORT), BL_OK);
    assert_int_equal(bl_drain(embed, BL_DRAIN_FINISH), BL_ERR_STATE);
    /* a reload that would change the shape has no way in: it is another model */
    assert_int_equal(bl_embed_add_layer(embed, &l), BL_ERR_STATE);
    bl_test_has(bl_embed_error(embed), "before bl_embed_start()");
    assert_int_equal(bl_step(embed, NULL), BL_OK);
    assert_int_equal(bl_repair(embed, NULL), BL_ERR_STATE);
    assert_int_equal(bl_resume(embed, 1), BL_OK);
    assert_int_equal(bl_resume(embed, 1), BL_ERR_STATE);
    assert_int_equal(bl_slot_hash(embed, 5, 2, &hash), BL_ERR_RANGE);
    assert_int_equal(bl_slot_hash(embed, 6, 0, &hash), BL_ERR_RANGE);
    assert_int_equal(bl_slot_hash(embed, 5, 1, &hash), BL_OK);
    bl_embed_close(embed);
}

/* ---- from inside, and from another thread ----------------------------------------------------- */

static bl_embed *handle;
static int n_inside;

/* All that may be called; nothing of it may do anything, nor touch the text. */
static void *call_everything(void *unused) {
    bl_trace_map map = BL_TRACE_MAP_INIT;
    bl_embed_status status = BL_EMBED_STATUS_INIT;
    bl_counted counted = BL_COUNTED_INIT;
    const bl_tensor t = by_pointers();
    const bl_layer l = one_layer(&t);
    uint64_t hash;
    bl_step_news news = BL_STEP_NEWS_INIT;
    assert_int_equal(bl_step(handle, &news), BL_ERR_STATE);
    assert_int_equal(news.step, 0);
    assert_int_equal(bl_map(handle, 5, &map), BL_ERR_STATE);
    assert_int_equal(bl_slot_hash(handle, 5, 0, &hash), BL_ERR_STATE);
    assert_int_equal(bl_count(handle, &counted), BL_ERR_STATE);
    assert_int_equal(bl_drain(handle, BL_DRAIN_ABORT), BL_ERR_STATE);
    assert_int_equal(bl_resume(handle, 1), BL_ERR_STATE);
    assert_int_equal(bl_repair(handle, NULL), BL_ERR_STATE);
    assert_int_equal(bl_embed_add_layer(handle, &l), BL_ERR_STATE);
    assert_int_equal(bl_embed_start(handle), BL_ERR_STATE);
    assert_int_equal(bl_embed_read_status(handle, &status), BL_ERR_STATE);
    bl_embed_close(handle);
    return unused;
}

static int nosy_copy(void *user, void *to, size_t to_stride, const void *from, size_t from_stride,
                     size_t row_bytes, size_t rows) {
    pthread_t other;
    (void)user;
    call_everything(NULL);
    assert_int_equal(pthread_create(&other, NULL, call_everything, NULL), 0);
    pthread_join(other, NULL);
    n_inside++;
    for (size_t row = 0; row < rows; row++)
        memcpy((unsigned char *)to + row * to_stride,
               (const unsigned char *)from + row * from_stride, row_bytes);
    return 0;
}

static void test_one_call_at_a_time(void **state) {
    (void)state;
    bl_embed_options o = alone();
    uint64_t hash = 0, again = 0;
    o.copy = nosy_copy;
    handle = open_alone(&o, true);
    assert_int_equal(bl_slot_hash(handle, 9, 0, &hash), BL_ERR_RANGE);
    assert_int_equal(bl_slot_hash(handle, 5, 0, &hash), BL_OK);
    assert_true(n_inside > 0);
    bl_test_has(bl_embed_error(handle), "has no slot 0"); /* of the last failure of this thread */
    assert_int_equal(bl_slot_hash(handle, 5, 0, &again), BL_OK);
    assert_true(hash == again);
    assert_int_equal(bl_step(handle, NULL), BL_OK);
    bl_embed_close(handle);
}

/* ---- ranks that do not do the same ----------------------------------------------------------- */

/* One rank drains, the other does not: it is named within the deadline, and moves go on. */
static void lone_drain_body(ec_member *m) {
    int busy;
    ec_step(m, &busy);
    if (m->rank == 0) {
        EXPECT(m, bl_drain(m->embed, BL_DRAIN_ABORT) == BL_ERR_TIMEOUT);
        EXPECT(m, strstr(bl_embed_error(m->embed), "rank 1") != NULL);
    }
    ec_meet(m);
    ec_apply(m, swapped);
    EXPECT(m, ec_until_stable(m) == EC_LAYERS);
    EXPECT(m, ec_map_is(m, 3, swapped));
    ec_meet(m);
}

static void test_a_rank_drains_alone(void **state) {
    (void)state;
    ec_cluster *all = ec_new(2, 4, two_by_two, in_order);
    all->options.deadline_s = 1.0;
    all->options.spares = 1;
    ec_run(all, lone_drain_body);
}

static void other_how_body(ec_member *m) {
    EXPECT(m, bl_drain(m->embed, m->rank == 0 ? BL_DRAIN_ABORT : BL_DRAIN_FINISH) == BL_ERR_STATE);
    EXPECT(m, strstr(bl_embed_error(m->embed), "bl_drain() alike") != NULL);
    ec_meet(m);
}

static void test_ranks_drain_unlike(void **state) {
    (void)state;
    ec_run(ec_new(2, 4, two_by_two, in_order), other_how_body);
}

/* A repair that nobody needs. */
static void idle_repair_body(ec_member *m) {
    int busy;
    ec_step(m, &busy);
    if (m->rank == 1) {
        EXPECT(m, bl_repair(m->embed, NULL) == BL_ERR_PEER);
        EXPECT(m, strstr(bl_embed_error(m->embed), "no rank is known to be lost") != NULL);
    }
    ec_meet(m);
    ec_apply(m, swapped);
    EXPECT(m, ec_until_stable(m) == EC_LAYERS);
    ec_meet(m);
}

static void test_a_repair_without_a_loss(void **state) {
    (void)state;
    ec_cluster *all = ec_new(2, 4, two_by_two, in_order);
    all->options.spares = 1;
    ec_run(all, idle_repair_body);
}

/* ---- the end comes early --------------------------------------------------------------------- */

/* Rank 1 closes in the middle of a move. Its tensors hold what its map said, whole; the other one serves
 * on, says why the move ended, and can end as well. */
static void early_close_body(ec_member *m) {
    bl_embed_status status = BL_EMBED_STATUS_INIT;
    int busy = 0, n = 0;
    ec_meet(m);
    ec_apply(m, swapped);
    do
        ec_step(m, &busy);
    while (n++ < (int)m->all->options.job);
    if (m->rank == 1) {
        int32_t experts[EC_LAYERS][4];
        const int begin[] = {0, 2, 4};
        for (int l = 0; l < EC_LAYERS; l++) {
            bl_trace_map map = BL_TRACE_MAP_INIT;
            ec_succeed(m, bl_map(m->embed, ec_layers[l], &map));
            memcpy(experts[l], map.expert, sizeof experts[l]);
        }
        bl_embed_close(m->embed);
        m->embed = NULL;
        bl_transport_close(m->transport);
        m->transport = NULL;
        for (int l = 0; l < EC_LAYERS; l++)
            EXPECT(m, bl_foreign_is(m->foreign[l], experts[l], begin, m->version));
        return;
    }
    const double until_s = bl_now_s() + EC_PATIENCE_S;
    do {
        ec_succeed(m, ec_step_alone(m));
        bl_embed_read_status(m->embed, &status);
    } while (status.busy && ec_fine(m) && bl_now_s() < until_s);
    EXPECT(m, !status.busy);
    for (int l = 0; l < EC_LAYERS; l++) {
        bl_trace_map map = BL_TRACE_MAP_INIT;
        const int begin[] = {0, 2, 4};
        ec_succeed(m, bl_map(m->embed, ec_layers[l], &map));
        EXPECT(m, bl_foreign_is(m->foreign[l], map.expert, begin, m->version));
    }
}

static void test_closing_in_the_middle_of_a_move(void **state) {
    (void)state;
    for (int mode = 0; mode < 2; mode++) {
        for (uint64_t steps = 0; steps < 12; steps++) {
            ec_cluster *all = ec_new(2, 4, two_by_two, in_order);
            all->options.job = steps;
            all->options.spares = 1;
            all->by_pointers[0] = all->by_pointers[1] = mode != 0;
            ec_run(all, early_close_body);
        }
    }
}

/* ---- engines that forget the map ------------------------------------------------------------- */

/* Steps of two ranks until no move is under way or one of them fails; one that does not ask for maps
 * does so in the first of them alone. */
static void steps_until_idle(ec_member *m, bool asks, int *st) {
    static int busy[EC_MAX_RANKS], failed[EC_MAX_RANKS];
    const double until_s = bl_now_s() + EC_PATIENCE_S;
    bool go_on = true;
    *st = BL_OK;
    for (int n = 0; go_on && bl_now_s() < until_s; n++) {
        ec_meet(m);
        *st = asks || n == 0 ? ec_step_alone(m) : bl_step(m->embed, NULL);
        bl_embed_status status = BL_EMBED_STATUS_INIT;
        bl_embed_read_status(m->embed, &status);
        busy[m->rank] = status.busy;
        failed[m->rank] = *st < 0;
        ec_meet(m);
        go_on = (busy[0] || busy[1] || n < 4) && !failed[0] && !failed[1];
    }
}

/* sgl #18213, #39580: rank 1 never asks for a map. Its first step shows that, and nothing moves. */
static void deaf_body(ec_member *m) {
    bl_embed_status status = BL_EMBED_STATUS_INIT;
    ec_succeed(m, m->rank == 0 ? ec_step_alone(m) : bl_step(m->embed, NULL));
    ec_meet(m);
    ec_succeed(m, m->rank == 0 ? ec_step_alone(m) : bl_step(m->embed, NULL));
    ec_meet(m);
    int st;
    ec_apply(m, swapped);
    steps_until_idle(m, true, &st);
    ec_succeed(m, st);
    bl_embed_read_status(m->embed, &status);
    EXPECT(m, m->rank == 1 || strstr(status.reason, "rank 1 was told of its map in the first step "
                                                    "and did not ask for it") != NULL);
    EXPECT(m, status.commits == 0 && ec_map_is(m, 3, in_order) && ec_map_is(m, 7, in_order));
}

static void test_an_engine_that_forgets_the_map(void **state) {
    (void)state;
    ec_cluster *all = ec_new(2, 4, two_by_two, in_order);
    all->options.spares = 1;
    ec_run(all, deaf_body);
}

/* It asks in its first step only: it is told in the step after the first commit. */
static void forgetful_body(ec_member *m) {
    int st;
    ec_meet(m);
    ec_apply(m, swapped);
    steps_until_idle(m, m->rank == 0, &st);
    EXPECT(m, st == (m->rank == 1 ? BL_ERR_ABORTED : BL_OK));
    EXPECT(m, m->rank == 0 ||
                  strstr(bl_embed_error(m->embed), "nobody asked for the new map") != NULL);
    EXPECT(m, m->rank == 0 || bl_step(m->embed, NULL) == BL_ERR_ABORTED); /* and stays so */
    ec_meet(m);
}

static void test_an_engine_that_asks_once(void **state) {
    (void)state;
    ec_cluster *all = ec_new(2, 4, two_by_two, in_order);
    all->options.spares = 1;
    ec_run(all, forgetful_body);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nothing_given),
        cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_order_of_calls),
        cmocka_unit_test(test_one_call_at_a_time),
        cmocka_unit_test(test_a_rank_drains_alone),
        cmocka_unit_test(test_ranks_drain_unlike),
        cmocka_unit_test(test_a_repair_without_a_loss),
        cmocka_unit_test(test_closing_in_the_middle_of_a_move),
        cmocka_unit_test(test_an_engine_that_forgets_the_map),
        cmocka_unit_test(test_an_engine_that_asks_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
