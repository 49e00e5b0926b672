/* What a foreign engine does, and what it is refused. */
#define _XOPEN_SOURCE 600 /* pthread_barrier_t */
#include "tests/support/embed_cluster.h"

#include "core/progress.h"
#include "tests/fake/embed_nccl.h"
#include "tests/fake/fake_nccl.h"
#include "tests/support/support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- moves ----------------------------------------------------------------------------------- */

static const int two_by_two[] = {2, 2};
static const int32_t in_order[] = {0, 1, 2, 3};

static void swap_body(ec_member *m) {
    static const int32_t goal[] = {0, 2, 1, 3};
    uint64_t before = 0, after = 0;
    ec_until_stable(m);
    ec_succeed(m, bl_slot_hash(m->embed, 3, 1 - m->rank, &before)); /* of expert 1, of expert 2 */
    ec_apply(m, goal);
    EXPECT(m, ec_until_stable(m) == EC_LAYERS);
    EXPECT(m, ec_map_is(m, 3, goal) && ec_map_is(m, 7, goal));
    ec_succeed(m, bl_slot_hash(m->embed, 3, 1 - m->rank, &after));
    EXPECT(m, before != after);
    bl_embed_status status = BL_EMBED_STATUS_INIT;
    EXPECT(m, bl_embed_read_status(m->embed, &status) == BL_OK);
    EXPECT(m, status.commits == EC_LAYERS && status.moves == 1 && !status.busy && !status.is_off);
    EXPECT(m, status.bundle_bytes == FOREIGN_BUNDLE_BYTES && status.spares == 1);
    EXPECT(m, status.received_bytes > 2 * FOREIGN_BUNDLE_BYTES);
    EXPECT(m, m->foreign[0]->n_recomputed == 1);
}

static void test_experts_swap_ranks(void **state) {
    (void)state;
    ec_cluster *all = ec_new(2, 4, two_by_two, in_order);
    all->options.spares = 1;
    ec_run(all, swap_body);
}

/* Copies, uneven slots, several waves: there and back again, many times. */
static void wander_body(ec_member *m) {
    static const int32_t goals[][9] = {{4, 5, 0, 1, 2, 3, 0, 4, 1},
                                       {0, 2, 4, 1, 3, 5, 0, 2, 3},
                                       {5, 0, 1, 2, 3, 4, 1, 0, 5},
                                       {1, 3, 5, 0, 2, 4, 1, 2, 0}};
    for (int round = 0; round < 12; round++) {
        ec_meet(m);
        ec_apply(m, goals[round % 4]);
        EXPECT(m, ec_until_stable(m) > 0);
        if (round == 5) { /* a copy of each expert per rank at most, all of the same content */
            ec_succeed(m, bl_drain(m->embed, BL_DRAIN_FINISH));
            ec_succeed(m, bl_resume(m->embed, 1));
        }
    }
}

static void test_many_moves(void **state) {
    (void)state;
    static const int slots[] = {3, 4, 2};
    static const int32_t experts[] = {0, 1, 2, 3, 4, 5, 0, 1, 2};
    ec_cluster *all = ec_new(3, 6, slots, experts);
    all->options.spares = 2;
    ec_run(all, wander_body);
}

/* The same with the pool in a GPU's memory and bundles over NCCL, by pointers on one rank and by tensors
 * on the others. */
static void test_moves_over_nccl(void **state) {
    (void)state;
    static const int slots[] = {3, 4, 2};
    static const int32_t experts[] = {0, 1, 2, 3, 4, 5, 0, 1, 2};
    fake_nccl_reset();
    ec_cluster *all = ec_new(3, 6, slots, experts);
    all->prepare = take_nccl;
    all->options.spares = 2;
    all->by_pointers[1] = true;
    ec_run(all, wander_body);
    assert_true(fake_nccl_sent_bytes() > 0);
    assert_int_equal(fake_nccl_sent_bytes() % FOREIGN_BUNDLE_BYTES, 0);
    assert_null(fake_nccl_misuse());
    assert_int_equal(fake_nccl_reset(), 0);
}

/* Pointers on all ranks, or on some: bundles are the same bytes either way. */
static void test_moves_by_pointers(void **state) {
    (void)state;
    static const int slots[] = {3, 4, 2};
    static const int32_t experts[] = {0, 1, 2, 3, 4, 5, 0, 1, 2};
    for (int mixed = 0; mixed < 2; mixed++) {
        ec_cluster *all = ec_new(3, 6, slots, experts);
        all->options.spares = 2;
        for (int rank = 0; rank < 3; rank++)
            all->by_pointers[rank] = mixed == 0 || rank == 1;
        ec_run(all, wander_body);
    }
}

/* What a step reads by the pointers it was given is there until the step after the next one begins,
 * whatever moves meanwhile. */
static void late_reader_body(ec_member *m) {
    static const int32_t goals[][4] = {{0, 2, 1, 3}, {3, 2, 1, 0}, {0, 1, 2, 3}};
    void *at[EC_LAYERS][2] = {{NULL}};
    int8_t copy[EC_LAYERS][2][FOREIGN_ROWS * FOREIGN_ROW_STRIDE];
    for (int n = 0, quiet = 0, round = 0; n < 300; n++) {
        int busy;
        if (quiet > 2 && n < 250) {
            ec_apply(m, goals[round++ % 3]);
            quiet = 0;
        }
        ec_step(m, &busy);
        quiet = busy ? 0 : quiet + 1;
        for (int l = 0; l < EC_LAYERS; l++) {
            for (int slot = 0; slot < 2; slot++) { /* of the last step: still running */
                if (at[l][slot] != NULL)
                    EXPECT(m, memcmp(at[l][slot], copy[l][slot], sizeof copy[l][slot]) == 0);
                at[l][slot] = bl_foreign_at(m->foreign[l], FOREIGN_W, slot);
                memcpy(copy[l][slot], at[l][slot], sizeof copy[l][slot]);
            }
        }
    }
    EXPECT(m, m->embed->commits >= 2 * EC_LAYERS);
}

static void test_pointers_outlive_their_step(void **state) {
    (void)state;
    ec_cluster *all = ec_new(2, 4, two_by_two, in_order);
    all->options.spares = 1;
    all->by_pointers[0] = all->by_pointers[1] = true;
    ec_run(all, late_reader_body);
}

/* ---- reloading ------------------------------------------------------------------------------- */

/* vllm #55228: [0,1,2,3] -> [0,2,1,3], then reload: every slot serves its own. */
static void reload_body(ec_member *m) {
    static const int32_t goal[] = {0, 2, 1, 3};
    ec_apply(m, goal);
    ec_until_stable(m);
    ec_succeed(m, bl_drain(m->embed, BL_DRAIN_ABORT));
    EXPECT(m, ec_map_is(m, 3, goal));
    ec_reload(m, 2);
    ec_succeed(m, bl_resume(m->embed, 1));
    for (int slot = 0; slot < 2; slot++)
        EXPECT(m, bl_foreign_holds(m->foreign[0], slot, goal[2 * m->rank + slot], 2));
    ec_until_stable(m);
    ec_meet(m);
    ec_apply(m, in_order); /* and the new weights travel back */
    EXPECT(m, ec_until_stable(m) == EC_LAYERS);
    EXPECT(m, ec_map_is(m, 3, in_order));
}

static void test_reload_after_a_move(void **state) {
    (void)state;
    ec_cluster *all = ec_new(2, 4, two_by_two, in_order);
    all->options.spares = 1;
    ec_run(all, reload_body);
}

/* Reload while a move is half done: layer 3 has moved, layer 7 has not, or not yet. */
static void reload_midway_body(ec_member *m) {
    static const int32_t goal[] = {0, 2, 1, 3};
    bl_step_news news = BL_STEP_NEWS_INIT;
    const int how = m->all->options.job == 1 ? BL_DRAIN_FINISH : BL_DRAIN_ABORT;
    int busy, changed;
    ec_apply(m, goal);
    do
        changed = ec_step(m, &busy);
    while (changed != 3 && ec_fine(m));
    ec_succeed(m, bl_drain(m->embed, how));
    EXPECT(m, ec_map_is(m, 3, goal));
    EXPECT(m, ec_map_is(m, 7, how == BL_DRAIN_FINISH ? goal : in_order));
    bl_embed_status status = BL_EMBED_STATUS_INIT;
    bl_embed_read_status(m->embed, &status);
    EXPECT(m, status.drained && !status.busy);
    EXPECT(m, how == BL_DRAIN_FINISH || strstr(status.reason, "reloaded") != NULL);
    EXPECT(m, bl_drain(m->embed, how) == BL_ERR_STATE);
    ec_reload(m, 5);
    ec_check_served(m);
    ec_succeed(m, bl_step(m->embed, &news)); /* a step in between is fine */
    ec_succeed(m, bl_resume(m->embed, 1));
    ec_apply(m, goal);
    EXPECT(m, ec_until_stable(m) == (how == BL_DRAIN_FINISH ? 0 : 1));
    EXPECT(m, ec_map_is(m, 7, goal));
}

static void test_reload_in_the_middle_of_a_move(void **state) {
    (void)state;
    for (uint64_t how = 0; how < 2; how++) {
        ec_cluster *all = ec_new(2, 4, two_by_two, in_order);
        all->options.spares = 1;
        all->options.job = how;
        ec_run(all, reload_midway_body);
    }
}

/* A slot that got another expert's weights: named, and nothing moves until it is right. */
static void wrong_reload_body(ec_member *m) {
    ec_succeed(m, bl_drain(m->embed, BL_DRAIN_ABORT));
    ec_reload(m, 3);
    if (m->rank == 1)
        bl_foreign_load_slot(m->foreign[1], 2, 1, 3); /* slot 5 holds expert 0 */
    EXPECT(m, bl_resume(m->embed, 1) == BL_ERR_CHECKSUM);
    EXPECT(m, strstr(bl_embed_error(m->embed), "layer 7: expert 0") != NULL);
    EXPECT(m, strstr(bl_embed_error(m->embed), "slot 5") != NULL);
    ec_reload(m, 3);
    if (m->rank == 1)
        m->foreign[0]->bias[0] += 1.0f; /* a table that is not the same everywhere */
    EXPECT(m, bl_resume(m->embed, 0) == BL_ERR_CHECKSUM);
    EXPECT(m, strstr(bl_embed_error(m->embed), "tensor bias") != NULL);
    ec_reload(m, 3);
    ec_succeed(m, bl_resume(m->embed, 1));
    ec_until_stable(m);
}

static void test_a_wrong_reload_is_named(void **state) {
    (void)state;
    static const int slots[] = {3, 3};
    static const int32_t experts[] = {0, 1, 2, 3, 2, 0};
    ec_run(ec_new(2, 4, slots, experts), wrong_reload_body);
}

/* ---- refusals -------------------------------------------------------------------------------- */

static void no_body(ec_member *m) {
    ec_complain(m, "it started");
}

static void refused_by_all(void (*spoil)(int, int, bl_tensor *, int *), const char *const *parts) {
    ec_cluster *all = ec_new(2, 4, two_by_two, in_order);
    all->spoil = spoil;
    all->may_fail_to_start = true;
    all->options.spares = 1;
    ec_run(all, no_body);
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
    ec_cluster *all = ec_new(2, 4, two_by_two, in_order);
    all->may_fail_to_start = true;
    all->options.spares = 3;
    all->options.spare_bytes = 71;
    ec_run(all, no_body);
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
static void loss_body(ec_member *m) {
    static const int32_t goal[] = {2, 1, 4, 3, 0, 5};
    bl_step_news news = BL_STEP_NEWS_INIT;
    bl_embed_status status = BL_EMBED_STATUS_INIT;
    ec_apply(m, goal);
    for (int n = 0; n < 3; n++) {
        int busy;
        ec_step(m, &busy);
    }
    if (m->rank == 2) {
        ec_die(m);
        ec_meet(m);
        return;
    }
    const double until_s = bl_now_s() + EC_PATIENCE_S;
    while (bl_now_s() < until_s && ec_fine(m)) {
        ec_succeed(m, bl_step(m->embed, &news));
        bl_embed_read_status(m->embed, &status);
        if (status.is_off && !status.busy)
            break;
    }
    EXPECT(m, status.is_off && !status.busy);
    EXPECT(m, strstr(status.reason, "rank 2 was lost") != NULL);
    for (int l = 0; l < EC_LAYERS; l++) {
        bl_trace_map map = BL_TRACE_MAP_INIT;
        static const int begin[] = {0, 2, 4, 6};
        ec_succeed(m, bl_map(m->embed, ec_layers[l], &map));
        EXPECT(m, bl_foreign_is(m->foreign[l], map.expert, begin, 1));
    }
    ec_succeed(m, bl_drain(m->embed, BL_DRAIN_ABORT)); /* weights can still be reloaded */
    ec_reload(m, 2);
    ec_succeed(m, bl_resume(m->embed, 0));
    ec_succeed(m, bl_step(m->embed, &news));
    ec_meet(m); /* a survivor that left now would be another loss */
}

static void test_a_lost_rank_takes_nobody_down(void **state) {
    (void)state;
    static const int slots[] = {2, 2, 2};
    static const int32_t experts[] = {0, 1, 2, 3, 4, 5};
    ec_cluster *all = ec_new(3, 6, slots, experts);
    all->options.spares = 1;
    ec_run(all, loss_body);
}

/* An engine that cannot recompute in a commit: that rank must not serve on, and says why; the other
 * one has changed over by then. */
static void no_recompute_body(ec_member *m) {
    static const int32_t goal[] = {0, 2, 1, 3};
    static bool done[EC_MAX_RANKS];
    int st = BL_OK;
    done[m->rank] = false;
    if (m->rank == 1)
        m->foreign[0]->layer = 99; /* bl_foreign_recompute() does not find layer 3 any more */
    ec_meet(m);
    ec_apply(m, goal);
    for (int n = 0; n < 20000 && !(done[0] && done[1]); n++) {
        bl_trace_map map = BL_TRACE_MAP_INIT;
        ec_meet(m);
        if (st >= 0)
            st = bl_step(m->embed, NULL);
        bl_map(m->embed, 3, &map);
        done[m->rank] = m->rank == 0 ? map.epoch == 1 : st < 0;
        ec_meet(m);
    }
    EXPECT(m, st == (m->rank == 1 ? BL_ERR_ABORTED : BL_OK));
    EXPECT(m, m->rank == 0 || strstr(bl_embed_error(m->embed), "could not recompute") != NULL);
    if (m->rank == 1) {
        EXPECT(m, bl_step(m->embed, NULL) == BL_ERR_ABORTED); /* and stays so */
        EXPECT(m, bl_drain(m->embed, BL_DRAIN_ABORT) == BL_ERR_ABORTED);
    }
    ec_meet(m);
}

static void test_a_commit_that_cannot_be_done(void **state) {
    (void)state;
    ec_cluster *all = ec_new(2, 4, two_by_two, in_order);
    all->options.spares = 1;
    ec_run(all, no_recompute_body);
}

/* vllm #57883: a rank stops stepping. The move is aborted within its deadline, the reason says who was
 * silent, and the next one goes through. */
static void silent_body(ec_member *m) {
    static const int32_t goal[] = {0, 2, 1, 3};
    bl_embed_status status = BL_EMBED_STATUS_INIT;
    status.busy = 1;
    ec_meet(m);
    ec_apply(m, goal);
    if (m->rank == 0) {
        while (status.busy) {
            ec_succeed(m, ec_step_alone(m));
            bl_embed_read_status(m->embed, &status);
        }
        EXPECT(m, strstr(status.reason, "rank 1") != NULL && !status.is_off);
        EXPECT(m, ec_map_is(m, 3, in_order));
    }
    ec_meet(m);
    while (m->rank == 1 && m->embed->step < m->all->members[0].embed->step)
        ec_succeed(m, ec_step_alone(m));
    ec_meet(m);
    ec_until_stable(m);
    EXPECT(m, ec_map_is(m, 3, in_order));
    ec_meet(m);
    ec_apply(m, goal);
    EXPECT(m, ec_until_stable(m) == EC_LAYERS);
}

static void test_a_rank_that_does_not_step(void **state) {
    (void)state;
    ec_cluster *all = ec_new(2, 4, two_by_two, in_order);
    all->options.spares = 1;
    all->options.deadline_s = 0.5;
    ec_run(all, silent_body);
}

/* What ranks count adds up on the one that leads: 2 ranks x 64 steps x 3 tokens x top-2. */
static void count_body(ec_member *m) {
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
        ec_step(m, &busy);
        ec_succeed(m, bl_count(m->embed, &counted));
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
    ec_meet(m);
}

static void test_counts_add_up(void **state) {
    (void)state;
    ec_run(ec_new(2, 4, two_by_two, in_order), count_body);
}

/* A config of another model is refused where it is read, and on all ranks. */
static void test_another_models_config(void **state) {
    (void)state;
    static const char *const parts[] = {"refuses", "it has 5 experts", NULL};
    ec_cluster *all = ec_new(2, 4, two_by_two, in_order);
    all->may_fail_to_start = true;
    all->options.config = bl_test_write(
        "model.json",
        "{\"name\":\"m\",\"num_hidden_layers\":8,\"moe_layers\":[3,7],\"num_experts\":5,"
        "\"num_experts_per_tok\":2,\"hidden_size\":8,\"moe_intermediate_size\":8}");
    ec_run(all, no_body);
    for (int rank = 0; rank < 2; rank++)
        for (const char *const *part = parts; *part != NULL; part++)
            bl_test_has(all->members[rank].error, *part);
}

/* Ranks that do not step alike are told which. */
static void unlike_body(ec_member *m) {
    if (m->rank == 1)
        ec_succeed(m, bl_step(m->embed, NULL));
    EXPECT(m, bl_drain(m->embed, BL_DRAIN_ABORT) == BL_ERR_STATE);
    EXPECT(m, strstr(bl_embed_error(m->embed), "after 1") != NULL);
}

static void test_ranks_that_step_unlike(void **state) {
    (void)state;
    ec_run(ec_new(2, 4, two_by_two, in_order), unlike_body);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_experts_swap_ranks),
        cmocka_unit_test(test_many_moves),
        cmocka_unit_test(test_moves_over_nccl),
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
