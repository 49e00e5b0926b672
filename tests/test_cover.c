/* Who serves what only lost ranks held: every expert has a living copy afterwards, or is named. */
#include "tests/support/support.h"

#include "core/rng.h"
#include "rebalancer/cover.h"

#include <string.h>

enum { MAX_RANKS = 8, MAX_SLOTS = 6, MAX_EXPERTS = 24 };

static bl_placement one_layer(int n_ranks, const int *slots, int n_experts, const int *experts) {
    bl_error err;
    bl_placement made;
    const int layer = 3;
    assert_ok(bl_placement_create(n_ranks, n_experts, &layer, 1, slots, &made, &err));
    for (int slot = 0; slot < bl_layer_n_slots(&made.layers[0]); slot++)
        made.layers[0].expert[slot] = experts[slot];
    made.layers[0].epoch = 7;
    return made;
}

static const int two_each[] = {2, 2, 2, 2};

/* The drawing in cover.h, with one rank more to hold expert 4. */
static void test_worked_example(void **state) {
    (void)state;
    bl_error err;
    bl_placement p = one_layer(4, two_each, 5, (const int[]){0, 1, 2, 0, 3, 4, 1, -1});
    bl_layer_placement out;
    bl_orphan orphans[5];
    int n_orphans;
    bool changed;
    assert_ok(bl_cover(&p.layers[0], (const bool[]){false, false, true, false}, &out, orphans,
                       &n_orphans, &changed, &err));
    assert_true(changed);
    assert_int_equal(n_orphans, 2);
    assert_int_equal(orphans[0].expert, 3); /* the empty slot */
    assert_int_equal(orphans[0].rank, 3);
    assert_int_equal(orphans[1].expert,
                     4); /* a copy of 0 or 1: to the first that has got nothing */
    assert_int_equal(orphans[1].rank, 0);
    const int32_t want[] = {4, 1, 2, 0, -1, -1, 1, 3};
    assert_memory_equal(out.expert, want, sizeof want);
    assert_int_equal(out.epoch, 8);
    assert_ok(bl_layer_placement_check(&out, NULL, &err));
    bl_layer_placement_free(&out);

    assert_ok(bl_cover(&p.layers[0], (const bool[]){false, false, false, false}, &out, orphans,
                       &n_orphans, &changed, &err));
    assert_false(changed);
    bl_placement_free(&p);
}

static void test_what_has_no_place_is_named(void **state) {
    (void)state;
    bl_error err;
    bl_placement p = one_layer(4, two_each, 8, (const int[]){0, 1, 2, 3, 4, 5, 6, 7});
    bl_layer_placement out;
    bl_orphan orphans[64];
    int n_orphans;
    bool changed;
    assert_fails(bl_cover(&p.layers[0], (const bool[]){false, false, true, false}, &out, orphans,
                          &n_orphans, &changed, &err),
                 BL_ERR_INFEASIBLE,
                 "no living rank has a slot left for it, nor for 5: 8 experts, 6 slots");
    assert_int_equal(err.layer, 3);
    assert_int_equal(err.expert, 4);
    bl_placement_free(&p);

    int many[64]; /* more than a line has room for: the rest is one "..." */
    for (int expert = 0; expert < 64; expert++)
        many[expert] = expert;
    p = one_layer(2, (const int[]){32, 32}, 64, many);
    assert_fails(bl_cover(&p.layers[0], (const bool[]){true, false}, &out, orphans, &n_orphans,
                          &changed, &err),
                 BL_ERR_INFEASIBLE, "nor for 1 2 3 4 5 6 7 8 9 10 11 ...: 64 experts, 32 slots");
    bl_placement_free(&p);
}

/* Any placement, any loss: either everything is covered, by as few orphans as can be, without a copy
 * on a lost rank and without taking what stays from a rank that does not give it away; or there
 * really is too little room, counted by hand. */
static void run_random_case(bl_rng *rng) {
    bl_error err;
    int slots[MAX_RANKS], experts[MAX_RANKS * MAX_SLOTS] = {0}, total = 0, living_slots = 0;
    bool lost[MAX_RANKS];
    const int n_ranks = 2 + (int)bl_rng_below(rng, MAX_RANKS - 1);
    for (int rank = 0; rank < n_ranks; rank++) {
        total += slots[rank] = 1 + (int)bl_rng_below(rng, MAX_SLOTS);
        lost[rank] = bl_rng_below(rng, 3) == 0;
        living_slots += lost[rank] ? 0 : slots[rank];
    }
    const int most = total < MAX_EXPERTS ? total : MAX_EXPERTS;
    const int n_experts = 1 + (int)bl_rng_below(rng, (uint32_t)most);
    for (int slot = 0; slot < total; slot++)
        experts[slot] = BL_NO_EXPERT;
    bl_placement p = one_layer(n_ranks, slots, n_experts, experts);
    bl_layer_placement *layer = &p.layers[0], out;
    for (int expert = 0; expert < n_experts; expert++) {
        int slot;
        do
            slot = (int)bl_rng_below(rng, (uint32_t)total);
        while (layer->expert[slot] != BL_NO_EXPERT);
        layer->expert[slot] = expert;
    }
    for (int slot = 0; slot < total; slot++) {
        const int expert = (int)bl_rng_below(rng, (uint32_t)n_experts);
        if (layer->expert[slot] == BL_NO_EXPERT &&
            bl_layer_find(layer, bl_layer_rank_of(layer, slot), expert) < 0)
            layer->expert[slot] = expert;
    }
    bl_orphan orphans[MAX_EXPERTS];
    int n_orphans, without = 0;
    bool changed;
    for (int expert = 0; expert < n_experts; expert++) {
        bool lives = false;
        for (int rank = 0; rank < n_ranks; rank++)
            lives = lives || (!lost[rank] && bl_layer_find(layer, rank, expert) >= 0);
        without += !lives;
    }
    const bl_status st = bl_cover(layer, lost, &out, orphans, &n_orphans, &changed, &err);
    if (living_slots < n_experts) {
        assert_int_equal(st, BL_ERR_INFEASIBLE);
    } else if (changed) {
        assert_ok(st);
        assert_int_equal(n_orphans, without);
        assert_ok(bl_layer_placement_check(&out, NULL, &err));
        int kept = 0, had = 0;
        for (int rank = 0; rank < n_ranks; rank++) {
            for (int slot = out.begin[rank]; slot < out.begin[rank + 1]; slot++) {
                assert_true(!lost[rank] || out.expert[slot] == BL_NO_EXPERT);
                had += !lost[rank] && layer->expert[slot] != BL_NO_EXPERT;
                kept += !lost[rank] && layer->expert[slot] != BL_NO_EXPERT &&
                        out.expert[slot] == layer->expert[slot];
            }
        }
        assert_true(kept >= had - without);
        bl_layer_placement_free(&out);
    }
    bl_placement_free(&p);
}

/* ---- least harm ------------------------------------------------------------------------------ */

/* The least sum over experts of 1 / copies that is left when `take` copies are taken from them, never
 * the last: all ways are tried. */
static double least_harm(const int *copies, int n, int take) {
    if (n == 0)
        return take == 0 ? 0 : 1e9;
    double best = 1e9;
    for (int given = 0; given <= take && (given == 0 || given < copies[0]); given++) {
        const double share = copies[0] > 0 ? 1.0 / (copies[0] - given) : 0;
        const double all = share + least_harm(copies + 1, n - 1, take - given);
        best = all < best ? all : best;
    }
    return best;
}

static void count_living(const bl_layer_placement *layer, const bool *lost, int *copies,
                         int *n_empty) {
    *n_empty = 0;
    memset(copies, 0, sizeof *copies * (size_t)layer->n_experts);
    for (int slot = 0; slot < bl_layer_n_slots(layer); slot++) {
        if (lost[bl_layer_rank_of(layer, slot)])
            continue;
        if (layer->expert[slot] == BL_NO_EXPERT)
            (*n_empty)++;
        else
            copies[layer->expert[slot]]++;
    }
}

/* Against all ways to give slots away: empty ones first, then such that the rows of an expert are left
 * to as many copies as can be. */
static void test_least_is_given_away(void **state) {
    enum { RANKS = 4, SLOTS = 4, EXPERTS = 7 };
    static const int slots[RANKS] = {SLOTS, SLOTS, SLOTS, SLOTS};
    (void)state;
    bl_rng rng;
    bl_rng_seed(&rng, 11);
    int with_harm = 0;
    for (int i = 0; i < 3000; i++) {
        bl_error err;
        int experts[RANKS * SLOTS], before[EXPERTS], after[EXPERTS], n_empty, n_orphans, rest;
        bool lost[RANKS] = {false}, changed;
        bl_orphan orphans[EXPERTS];
        for (int slot = 0; slot < RANKS * SLOTS; slot++)
            experts[slot] = slot < EXPERTS ? slot : BL_NO_EXPERT;
        bl_placement p = one_layer(RANKS, slots, EXPERTS, experts);
        bl_layer_placement *layer = &p.layers[0], out;
        for (int slot = EXPERTS; slot < RANKS * SLOTS; slot++) {
            const int expert = (int)bl_rng_below(&rng, EXPERTS + 1);
            if (expert < EXPERTS && bl_layer_find(layer, slot / SLOTS, expert) < 0)
                layer->expert[slot] = expert;
        }
        lost[bl_rng_below(&rng, RANKS)] = lost[bl_rng_below(&rng, RANKS)] = true;
        count_living(layer, lost, before, &n_empty);
        assert_ok(bl_cover(layer, lost, &out, orphans, &n_orphans, &changed, &err));
        if (changed) {
            double harm = 0, least = least_harm(before, EXPERTS,
                                                n_orphans > n_empty ? n_orphans - n_empty : 0);
            with_harm += n_orphans > n_empty;
            count_living(&out, lost, after, &rest);
            for (int expert = 0; expert < EXPERTS; expert++)
                harm += before[expert] > 0 ? 1.0 / after[expert] : 0;
            assert_true(harm < least + 1e-9 && harm > least - 1e-9);
            assert_int_equal(rest, n_empty > n_orphans ? n_empty - n_orphans : 0);
            bl_layer_placement_free(&out);
        }
        bl_placement_free(&p);
    }
    assert_true(with_harm > 100);
}

static void test_random_losses(void **state) {
    (void)state;
    bl_rng rng;
    bl_rng_seed(&rng, 3);
    for (int i = 0; i < 5000; i++)
        run_random_case(&rng);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_worked_example),
        cmocka_unit_test(test_what_has_no_place_is_named),
        cmocka_unit_test(test_random_losses),
        cmocka_unit_test(test_least_is_given_away),
    };
    return cmocka_run_group_tests_name("cover", tests, NULL, NULL);
}
