#include "tests/support/support.h"

#include "core/mem.h"
#include "core/rng.h"
#include "rebalancer/schedule.h"

#include <stdlib.h>
#include <string.h>

/* ---- making placements ----------------------------------------------------------------------- */

/* One layer from a row of expert ids, the same number of slots on every rank. */
static bl_placement one_layer(int n_ranks, int slots, int n_experts, const int *experts) {
    bl_error err;
    bl_placement made;
    int per_rank[64];
    for (int rank = 0; rank < n_ranks; rank++)
        per_rank[rank] = slots;
    const int layer = 3;
    assert_ok(bl_placement_create(n_ranks, n_experts, &layer, 1, per_rank, &made, &err));
    for (int slot = 0; slot < n_ranks * slots; slot++)
        made.layers[0].expert[slot] = experts[slot];
    return made;
}

/* A random placement that obeys the hard rules: first copies dealt to random ranks with room, then
 * random copies; a share of the remaining slots stays empty. */
static void fill_randomly(bl_layer_placement *layer, bl_rng *rng, bool leave_empty) {
    const int n_slots = bl_layer_n_slots(layer);
    for (int slot = 0; slot < n_slots; slot++)
        layer->expert[slot] = BL_NO_EXPERT;
    for (int expert = 0; expert < layer->n_experts; expert++) {
        int slot;
        do
            slot = (int)bl_rng_below(rng, (uint32_t)n_slots);
        while (layer->expert[slot] != BL_NO_EXPERT);
        layer->expert[slot] = expert;
    }
    for (int slot = 0; slot < n_slots; slot++) {
        if (layer->expert[slot] != BL_NO_EXPERT || (leave_empty && bl_rng_below(rng, 4) == 0))
            continue;
        const int expert = (int)bl_rng_below(rng, (uint32_t)layer->n_experts);
        if (bl_layer_find(layer, bl_layer_rank_of(layer, slot), expert) < 0)
            layer->expert[slot] = expert;
    }
}

static void assert_same_sets(const bl_layer_placement *a, const bl_layer_placement *b) {
    for (int rank = 0; rank < a->n_ranks; rank++) {
        for (int expert = 0; expert < a->n_experts; expert++)
            assert_int_equal(bl_layer_find(a, rank, expert) >= 0,
                             bl_layer_find(b, rank, expert) >= 0);
    }
}

/* ---- tests ----------------------------------------------------------------------------------- */

/* The drawing in schedule.h: the cycle of two is one wave, everything is done in two. */
static void test_worked_example(void **state) {
    (void)state;
    bl_error err;
    bl_placement current = one_layer(3, 2, 6, (const int[]){0, 1, 2, 3, 4, 5});
    bl_placement goal = one_layer(3, 2, 6, (const int[]){2, 4, 0, 5, 1, 3});
    const int spares[] = {1, 1, 1};
    bl_schedule schedule;
    assert_ok(bl_schedule_make(&current, &goal, spares, NULL, &schedule, &err));
    assert_ok(bl_schedule_check(&schedule, &current, spares, &err));
    assert_int_equal(schedule.n_moves, 6);
    assert_int_equal(schedule.n_layers, 1);
    assert_int_equal(schedule.n_waves, 2);
    const int first[] = {4, 1, 2, 0, 3, 5};
    for (int slot = 0; slot < 6; slot++)
        assert_int_equal(schedule.waves[0].after.expert[slot], first[slot]);
    assert_int_equal(schedule.waves[1].after.epoch, 2);
    assert_same_sets(&schedule.waves[1].after, &goal.layers[0]);
    bl_schedule_free(&schedule);
    bl_placement_free(&current);
    bl_placement_free(&goal);
}

/* One cycle through all ranks: full slots, one spare, every copy is the last one. */
static void test_long_cycle_is_one_wave(void **state) {
    (void)state;
    bl_error err;
    enum { N = 32 };
    int before[N], after[N], spares[N];
    for (int rank = 0; rank < N; rank++) {
        before[rank] = rank;
        after[rank] = (rank + 1) % N;
        spares[rank] = 1;
    }
    bl_placement current = one_layer(N, 1, N, before), goal = one_layer(N, 1, N, after);
    bl_schedule schedule;
    assert_ok(bl_schedule_make(&current, &goal, spares, NULL, &schedule, &err));
    assert_ok(bl_schedule_check(&schedule, &current, spares, &err));
    assert_int_equal(schedule.n_waves, 1);
    assert_int_equal(schedule.n_moves, N);
    bl_schedule_free(&schedule);
    bl_placement_free(&current);
    bl_placement_free(&goal);
}

static void test_same_sets_need_nothing(void **state) {
    (void)state;
    bl_error err;
    bl_placement current = one_layer(2, 3, 4, (const int[]){0, 1, 2, 3, 2, 0});
    bl_placement goal = one_layer(2, 3, 4, (const int[]){2, 0, 1, 0, 3, 2});
    const int spares[] = {0, 0};
    bl_schedule schedule;
    assert_ok(bl_schedule_make(&current, &goal, spares, NULL, &schedule, &err));
    assert_int_equal(schedule.n_waves, 0);
    assert_int_equal(schedule.n_moves, 0);
    bl_schedule_free(&schedule);

    bl_layer_placement aligned;
    assert_ok(bl_layer_align(&current.layers[0], &goal.layers[0], &aligned, &err));
    for (int slot = 0; slot < 6; slot++)
        assert_int_equal(aligned.expert[slot], current.layers[0].expert[slot]);
    bl_layer_placement_free(&aligned);
    bl_placement_free(&current);
    bl_placement_free(&goal);
}

static void test_refusals(void **state) {
    (void)state;
    bl_error err;
    bl_schedule schedule;
    bl_placement current = one_layer(2, 2, 4, (const int[]){0, 1, 2, 3});
    bl_placement goal = one_layer(2, 2, 4, (const int[]){2, 1, 0, 3});
    assert_fails(bl_schedule_make(&current, &goal, (const int[]){1, 0}, NULL, &schedule, &err),
                 BL_ERR_STATE, "rank 1 must receive experts but has no spare");

    bl_placement wide = one_layer(2, 3, 4, (const int[]){2, 1, 0, 0, 3, 1});
    assert_fails(bl_schedule_make(&current, &wide, (const int[]){1, 1}, NULL, &schedule, &err),
                 BL_ERR_SHAPE, "rank 0 has 2 slots, the plan fills 3");
    bl_placement three = one_layer(3, 2, 4, (const int[]){2, 1, 0, 3, 0, 1});
    assert_fails(bl_schedule_make(&current, &three, (const int[]){1, 1}, NULL, &schedule, &err),
                 BL_ERR_SHAPE, "the plan is for 3 ranks, 2 are running");
    bl_placement more = one_layer(2, 2, 5, (const int[]){2, 1, 0, 3});
    assert_fails(bl_schedule_make(&current, &more, (const int[]){1, 1}, NULL, &schedule, &err),
                 BL_ERR_SHAPE, "the plan has 5 experts, the model 4");
    goal.layers[0].expert[0] = 1;
    assert_fails(bl_schedule_make(&current, &goal, (const int[]){1, 1}, NULL, &schedule, &err),
                 BL_ERR_INFEASIBLE, "");
    goal.layers[0].expert[0] = 2;
    goal.layers[0].layer = 4;
    assert_fails(bl_schedule_make(&current, &goal, (const int[]){1, 1}, NULL, &schedule, &err),
                 BL_ERR_SHAPE, "no experts in the running model");
    assert_int_equal(err.layer, 4);
    bl_placement_free(&current);
    bl_placement_free(&goal);
    bl_placement_free(&wide);
    bl_placement_free(&three);
    bl_placement_free(&more);
}

/* Expert 0 lives on ranks 0 and 2 and moves to rank 3: distance decides, then the load. */
static void test_source_is_the_nearest_copy(void **state) {
    (void)state;
    bl_error err;
    bl_placement current = one_layer(4, 2, 4, (const int[]){0, 1, 2, 3, 0, 1, 2, 3});
    bl_placement goal = one_layer(4, 2, 4, (const int[]){0, 1, 2, 3, 0, 1, 0, 1});
    const int spares[] = {2, 2, 2, 2};
    double distance[16] = {0};
    for (int from = 0; from < 4; from++)
        distance[from * 4 + 3] = from == 2 ? 1.0 : 2.0;
    bl_schedule schedule;
    assert_ok(bl_schedule_make(&current, &goal, spares, distance, &schedule, &err));
    assert_int_equal(schedule.n_moves, 2);
    assert_int_equal(schedule.waves[0].moves[0].source, 2);
    assert_int_equal(schedule.waves[0].moves[1].source, 2);
    const uint64_t near = schedule.hash;
    bl_schedule_free(&schedule);
    assert_ok(bl_schedule_make(&current, &goal, spares, NULL, &schedule, &err));
    assert_int_equal(schedule.waves[0].moves[0].source + schedule.waves[0].moves[1].source, 2);
    assert_int_not_equal(schedule.waves[0].moves[0].source, schedule.waves[0].moves[1].source);
    assert_true(schedule.hash != near);
    bl_schedule_free(&schedule);
    bl_placement_free(&current);
    bl_placement_free(&goal);
}

/* The hash tells schedules apart that start from other epochs. */
static void test_hash_covers_epochs(void **state) {
    (void)state;
    bl_error err;
    bl_placement current = one_layer(2, 2, 4, (const int[]){0, 1, 2, 3});
    bl_placement goal = one_layer(2, 2, 4, (const int[]){2, 1, 0, 3});
    const int spares[] = {1, 1};
    uint64_t hash[3];
    for (int i = 0; i < 3; i++) {
        bl_schedule schedule;
        current.layers[0].epoch = i == 2 ? 8 : 7;
        assert_ok(bl_schedule_make(&current, &goal, spares, NULL, &schedule, &err));
        assert_int_equal(schedule.waves[0].after.epoch, current.layers[0].epoch + 1);
        hash[i] = schedule.hash;
        bl_schedule_free(&schedule);
    }
    assert_true(hash[0] == hash[1]);
    assert_true(hash[0] != hash[2]);
    bl_placement_free(&current);
    bl_placement_free(&goal);
}

/* Most sends or receives of one rank: the least number of rounds there can be. */
static int busiest(const bl_wave *wave, int n_ranks) {
    int most = 0;
    for (int rank = 0; rank < n_ranks; rank++) {
        int sends = 0, receives = 0;
        for (int m = 0; m < wave->n_moves; m++) {
            sends += wave->moves[m].source == rank;
            receives += wave->moves[m].destination == rank;
        }
        most = sends > most ? sends : most;
        most = receives > most ? receives : most;
    }
    return most;
}

static void run_random_case(bl_rng *rng) {
    bl_error err;
    enum { MAX = 8 };
    const int n_ranks = 2 + (int)bl_rng_below(rng, MAX - 1), n_layers = 3;
    const int layers[] = {1, 2, 5};
    int slots[MAX], spares[MAX], total = 0;
    for (int rank = 0; rank < n_ranks; rank++) {
        slots[rank] = 1 + (int)bl_rng_below(rng, 6);
        spares[rank] = 1 + (int)bl_rng_below(rng, 3);
        total += slots[rank];
    }
    const int n_experts = 1 + (int)bl_rng_below(rng, (uint32_t)total);
    bl_placement current, goal;
    assert_ok(bl_placement_create(n_ranks, n_experts, layers, n_layers, slots, &current, &err));
    assert_ok(bl_placement_create(n_ranks, n_experts, layers, n_layers, slots, &goal, &err));
    const bool empties = bl_rng_below(rng, 2) == 0;
    int moves = 0;
    for (int l = 0; l < n_layers; l++) {
        fill_randomly(&current.layers[l], rng, empties);
        fill_randomly(&goal.layers[l], rng, empties);
        moves += bl_layer_moves(&current.layers[l], &goal.layers[l]);
    }
    bl_schedule schedule, again;
    assert_ok(bl_schedule_make(&current, &goal, spares, NULL, &schedule, &err));
    assert_ok(bl_schedule_make(&current, &goal, spares, NULL, &again, &err));
    assert_true(schedule.hash == again.hash);
    assert_ok(bl_schedule_check(&schedule, &current, spares, &err));
    assert_int_equal(schedule.n_moves, moves);
    for (int w = 0; w < schedule.n_waves; w++)
        assert_int_equal(bl_wave_rounds(&schedule.waves[w]), busiest(&schedule.waves[w], n_ranks));
    for (int w = 0; w < schedule.n_waves; w++) {
        const bl_layer_placement *after = &schedule.waves[w].after;
        if (w + 1 == schedule.n_waves || schedule.waves[w + 1].after.layer != after->layer)
            assert_same_sets(after, bl_placement_layer(&goal, after->layer));
    }
    bl_schedule_free(&schedule);
    bl_schedule_free(&again);
    bl_placement_free(&current);
    bl_placement_free(&goal);
}

static void test_random_placements(void **state) {
    (void)state;
    bl_rng rng;
    bl_rng_seed(&rng, 11);
    for (int i = 0; i < 2000; i++)
        run_random_case(&rng);
}

/* 32 ranks x 288 slots: every round pairs up on both sides, waves are as few as spares allow within
 * a small factor, and a missing receive is refused and not waited for. */
static void test_rounds_pair_up_on_both_sides(void **state) {
    (void)state;
    bl_error err;
    enum { RANKS = 32, SLOTS = 9, EXPERTS = 256 };
    bl_rng rng;
    bl_rng_seed(&rng, 5);
    int slots[RANKS], spares[RANKS];
    for (int rank = 0; rank < RANKS; rank++) {
        slots[rank] = SLOTS;
        spares[rank] = 2;
    }
    const int layer = 3;
    bl_placement current, goal;
    assert_ok(bl_placement_create(RANKS, EXPERTS, &layer, 1, slots, &current, &err));
    assert_ok(bl_placement_create(RANKS, EXPERTS, &layer, 1, slots, &goal, &err));
    fill_randomly(&current.layers[0], &rng, false);
    fill_randomly(&goal.layers[0], &rng, false);
    bl_schedule schedule;
    assert_ok(bl_schedule_make(&current, &goal, spares, NULL, &schedule, &err));
    assert_ok(bl_schedule_check(&schedule, &current, spares, &err));
    assert_in_range(schedule.n_moves, 250, 288);
    assert_in_range(schedule.n_waves, 5, 8); /* at least 9 arrivals / 2 spares */

    const bl_wave *wave = &schedule.waves[0];
    bl_wave_side sides[RANKS];
    for (int rank = 0; rank < RANKS; rank++)
        assert_ok(bl_wave_side_of(wave, rank, &sides[rank], &err));
    assert_ok(bl_wave_sides_check(wave, sides, RANKS, &err));
    sides[1].n_receives--;
    assert_fails(bl_wave_sides_check(wave, sides, RANKS, &err), BL_ERR_STATE,
                 "rank 1 does not receive what rank");
    sides[1].n_receives++;
    sides[wave->moves[0].source].sends[0] = sides[wave->moves[1].source].sends[0];
    assert_fails(bl_wave_sides_check(wave, sides, RANKS, &err), BL_ERR_STATE, "not its move");
    for (int rank = 0; rank < RANKS; rank++)
        bl_wave_side_free(&sides[rank]);
    bl_schedule_free(&schedule);
    bl_placement_free(&current);
    bl_placement_free(&goal);
}

/* 32 ranks, 500 transfers in one wave (sgl #30829): both sides pair up in every round, there are as
 * few rounds as can be, and one receive that is missing from a list is refused. */
static void test_five_hundred_transfers(void **state) {
    (void)state;
    bl_error err;
    enum { RANKS = 32, SLOTS = 16, EXPERTS = 500 };
    bl_rng rng;
    bl_rng_seed(&rng, 7);
    int slots[RANKS], spares[RANKS];
    for (int rank = 0; rank < RANKS; rank++)
        slots[rank] = spares[rank] = SLOTS;
    const int layer = 0;
    bl_placement current, goal;
    assert_ok(bl_placement_create(RANKS, EXPERTS, &layer, 1, slots, &current, &err));
    bl_placement_fill_contiguous(&current);
    assert_ok(bl_placement_copy(&current, &goal, &err));
    /* expert e moves on by a whole number of ranks, at least one, and keeps its place there */
    for (int place = 0; place < SLOTS; place++) {
        const int by = 1 + (int)bl_rng_below(&rng, RANKS - 1);
        for (int rank = 0; rank < RANKS; rank++)
            goal.layers[0].expert[(rank + by) % RANKS * SLOTS + place] =
                current.layers[0].expert[rank * SLOTS + place];
    }
    bl_schedule schedule;
    assert_ok(bl_schedule_make(&current, &goal, spares, NULL, &schedule, &err));
    assert_ok(bl_schedule_check(&schedule, &current, spares, &err));
    assert_in_range(schedule.n_moves, 480, 512);
    assert_int_equal(schedule.n_waves, 1);
    assert_int_equal(bl_wave_rounds(&schedule.waves[0]), busiest(&schedule.waves[0], RANKS));
    bl_wave_side sides[RANKS];
    for (int rank = 0; rank < RANKS; rank++)
        assert_ok(bl_wave_side_of(&schedule.waves[0], rank, &sides[rank], &err));
    assert_ok(bl_wave_sides_check(&schedule.waves[0], sides, RANKS, &err));
    sides[1].n_receives--;
    assert_fails(bl_wave_sides_check(&schedule.waves[0], sides, RANKS, &err), BL_ERR_STATE,
                 "rank 1 does not receive");
    for (int rank = 0; rank < RANKS; rank++)
        bl_wave_side_free(&sides[rank]);
    bl_schedule_free(&schedule);
    bl_placement_free(&current);
    bl_placement_free(&goal);
}

/* The dry run notices a broken schedule: each promise is broken once. */
static void test_check_catches_damage(void **state) {
    (void)state;
    bl_error err;
    bl_placement current = one_layer(3, 2, 6, (const int[]){0, 1, 2, 3, 4, 5});
    bl_placement goal = one_layer(3, 2, 6, (const int[]){2, 4, 0, 5, 1, 3});
    const int spares[] = {1, 1, 1};
    bl_schedule schedule;
    assert_ok(bl_schedule_make(&current, &goal, spares, NULL, &schedule, &err));
    bl_wave *wave = &schedule.waves[0];
    const bl_move kept = wave->moves[0];
    wave->moves[0].source = kept.destination;
    assert_fails(bl_schedule_check(&schedule, &current, spares, &err), BL_ERR_INTERNAL,
                 "does not hold it");
    wave->moves[0] = kept;
    wave->moves[0].destination = 7;
    assert_fails(bl_schedule_check(&schedule, &current, spares, &err), BL_ERR_INTERNAL, "no rank");
    wave->moves[0] = kept;
    assert_fails(bl_schedule_check(&schedule, &current, (const int[]){0, 0, 0}, &err),
                 BL_ERR_INTERNAL, "more arrivals");
    wave->after.epoch++;
    assert_fails(bl_schedule_check(&schedule, &current, spares, &err), BL_ERR_INTERNAL, "epoch");
    wave->after.epoch--;
    const int slot = bl_layer_find(&wave->after, kept.destination, kept.expert);
    wave->after.expert[slot] = BL_NO_EXPERT;
    assert_fails(bl_schedule_check(&schedule, &current, spares, &err), BL_ERR_INFEASIBLE,
                 "has no slot");
    wave->after.expert[slot] = kept.expert;
    assert_ok(bl_schedule_check(&schedule, &current, spares, &err));
    bl_schedule_free(&schedule);
    bl_placement_free(&current);
    bl_placement_free(&goal);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_worked_example),
        cmocka_unit_test(test_long_cycle_is_one_wave),
        cmocka_unit_test(test_same_sets_need_nothing),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_source_is_the_nearest_copy),
        cmocka_unit_test(test_hash_covers_epochs),
        cmocka_unit_test(test_random_placements),
        cmocka_unit_test(test_rounds_pair_up_on_both_sides),
        cmocka_unit_test(test_five_hundred_transfers),
        cmocka_unit_test(test_check_catches_damage),
    };
    return cmocka_run_group_tests_name("schedule", tests, NULL, NULL);
}
