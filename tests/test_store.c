#include "runtime/store.h"

#include "core/hash.h"
#include "core/rng.h"
#include "tests/support/support.h"

#include <stdlib.h>
#include <string.h>

#define BUNDLE ((size_t)100) /* not a multiple of the alignment */

/* The bytes every copy of an expert must have. */
static void fill_bundle(unsigned char *bundle, int layer, int expert) {
    for (size_t i = 0; i < BUNDLE; i++)
        bundle[i] = (unsigned char)(i % 3 == 0 ? layer : i % 3 == 1 ? expert : (int)i);
}

static uint64_t hash_of(int layer, int expert) {
    unsigned char bundle[BUNDLE];
    fill_bundle(bundle, layer, expert);
    return bl_hash64(bundle, sizeof bundle);
}

/* Two layers (3 and 5) of 4 experts on 2 ranks with 3 slots each:
 *   rank 0: 0 1 2    rank 1: 3 0 -1 */
static bl_placement small_placement(void) {
    bl_error err;
    const int layers[] = {3, 5}, slots[] = {3, 3};
    const int32_t experts[] = {0, 1, 2, 3, 0, -1};
    bl_placement placement;
    assert_ok(bl_placement_create(2, 4, layers, 2, slots, &placement, &err));
    for (int i = 0; i < 2; i++)
        memcpy(placement.layers[i].expert, experts, sizeof experts);
    return placement;
}

static void load_all(bl_store *store) {
    for (int layer = 3; layer <= 5; layer += 2) {
        const bl_layer_placement *map = bl_store_map(store, layer);
        for (int slot = 0; slot < bl_layer_n_slots(map); slot++) {
            void *bundle = bl_store_slot(store, layer, slot);
            if (bundle != NULL && map->expert[slot] != BL_NO_EXPERT)
                fill_bundle(bundle, layer, map->expert[slot]);
        }
    }
}

static bl_store *small_store(int rank, int n_spares) {
    bl_error err;
    bl_placement placement = small_placement();
    bl_store *store;
    assert_ok(bl_store_create(&placement, rank, BUNDLE, n_spares, &store, &err));
    bl_placement_free(&placement);
    load_all(store);
    return store;
}

/* The placement after the current one, with the given experts in all slots; freed by the caller. */
static bl_layer_placement next_of(const bl_store *store, int layer, const int32_t *experts) {
    bl_error err;
    bl_layer_placement next;
    assert_ok(bl_layer_placement_copy(bl_store_map(store, layer), &next, &err));
    memcpy(next.expert, experts, sizeof *experts * (size_t)bl_layer_n_slots(&next));
    next.epoch++;
    return next;
}

static int reserve(bl_store *store, int layer, int expert) {
    bl_error err;
    int spare;
    assert_ok(bl_store_reserve(store, &spare, &err));
    fill_bundle(bl_store_spare(store, spare), layer, expert);
    return spare;
}

static void assert_serves(const bl_store *store, int layer, int expert) {
    bl_error err;
    uint64_t hash;
    assert_ok(bl_store_hash_expert(store, layer, expert, &hash, &err));
    assert_int_equal(hash, hash_of(layer, expert));
    assert_int_equal(bl_hash64(bl_store_expert(store, layer, expert), BUNDLE), hash);
}

static void assert_serves_initial(const bl_store *store, int layer) {
    for (int expert = 0; expert < 3; expert++)
        assert_serves(store, layer, expert);
    assert_null(bl_store_expert(store, layer, 3));
    assert_int_equal(bl_store_map(store, layer)->epoch, 0);
}

static void test_created_store_serves_its_share(void **state) {
    (void)state;
    bl_error err;
    bl_store *store = small_store(0, 2);
    assert_int_equal(bl_store_rank(store), 0);
    assert_int_equal(bl_store_bundle_bytes(store), BUNDLE);
    assert_int_equal(bl_store_resident_bytes(store), (2 * 3 + 2) * 128);
    assert_int_equal(bl_store_spares_free(store), 2);
    assert_serves_initial(store, 3);
    assert_serves_initial(store, 5);
    assert_int_equal((uintptr_t)bl_store_expert(store, 5, 1) % 64, 0);
    assert_null(bl_store_map(store, 4));
    assert_null(bl_store_expert(store, 4, 0));
    assert_null(bl_store_expert(store, 3, -1));
    assert_null(bl_store_expert(store, 3, 4));
    assert_null(bl_store_slot(store, 3, 3)); /* rank 1's */
    assert_null(bl_store_slot(store, 3, -1));
    assert_ptr_equal(bl_store_slot(store, 3, 1), bl_store_expert(store, 3, 1));
    uint64_t hash = 1;
    assert_fails(bl_store_hash_expert(store, 3, 3, &hash, &err), BL_ERR_STATE, "rank 0");
    assert_int_equal(hash, 0);
    bl_store_free(store);
    bl_store_free(NULL);
}

static void test_create_refuses_nonsense(void **state) {
    (void)state;
    bl_error err;
    bl_placement placement = small_placement();
    bl_store *store = NULL;
    assert_fails(bl_store_create(&placement, 2, BUNDLE, 1, &store, &err), BL_ERR_RANGE, "rank 2");
    assert_fails(bl_store_create(&placement, -1, BUNDLE, 1, &store, &err), BL_ERR_RANGE, "rank -1");
    assert_fails(bl_store_create(&placement, 0, 0, 1, &store, &err), BL_ERR_RANGE, "0 bytes");
    assert_fails(bl_store_create(&placement, 0, BUNDLE, -1, &store, &err), BL_ERR_RANGE, "-1");
    assert_fails(bl_store_create(&placement, 0, SIZE_MAX / 2, 9, &store, &err), BL_ERR_NOMEM, "");
    assert_fails(bl_store_create(&placement, 0, SIZE_MAX, 9, &store, &err), BL_ERR_RANGE, "");
    placement.layers[1].expert[3] = 0; /* expert 3 has no copy, 0 two on rank 1 */
    assert_true(bl_store_create(&placement, 0, BUNDLE, 1, &store, &err) < 0);
    assert_null(store);
    bl_placement_free(&placement);
}

static void test_one_move_through_its_life(void **state) {
    (void)state;
    bl_error err;
    bl_store *store = small_store(0, 1);
    const void *displaced = bl_store_expert(store, 3, 1);
    const int spare = reserve(store, 3, 3);
    assert_int_equal(bl_store_spares_free(store), 0);
    assert_int_equal(bl_store_hash_spare(store, spare), hash_of(3, 3));
    int other;
    assert_fails(bl_store_reserve(store, &other, &err), BL_ERR_STATE, "no spare");

    bl_layer_placement next = next_of(store, 3, (int32_t[]){0, 3, 2, 1, 0, -1});
    assert_ok(bl_store_commit(store, &next, &(bl_arrival){3, spare}, 1, &err));
    bl_layer_placement_free(&next);
    assert_int_equal(bl_store_map(store, 3)->epoch, 1);
    assert_int_equal(bl_store_map(store, 3)->expert[1], 3);
    assert_serves(store, 3, 3);
    assert_serves(store, 3, 0);
    assert_null(bl_store_expert(store, 3, 1));
    assert_null(bl_store_spare(store, spare)); /* it is a slot's now */
    assert_int_equal(bl_store_hash_spare(store, spare), 0);

    /* The old epoch can still read, the pool cannot give it away, the layer cannot move on. */
    assert_int_equal(bl_hash64(displaced, BUNDLE), hash_of(3, 1));
    assert_int_equal(bl_store_spares_free(store), 0);
    next = next_of(store, 3, (int32_t[]){0, 3, 2, 1, 0, -1});
    assert_fails(bl_store_commit(store, &next, NULL, 0, &err), BL_ERR_STATE, "not retired");
    bl_layer_placement_free(&next);
    assert_serves_initial(store, 5); /* the other layer saw nothing */

    bl_store_retire(store, 3);
    bl_store_retire(store, 3);
    bl_store_retire(store, 99);
    assert_int_equal(bl_store_spares_free(store), 1);
    bl_store_free(store);
}

static void test_expert_changes_slot_and_keeps_its_bytes(void **state) {
    (void)state;
    bl_error err;
    bl_store *store = small_store(0, 1);
    const void *before[3];
    for (int expert = 0; expert < 3; expert++)
        before[expert] = bl_store_expert(store, 3, expert);
    bl_layer_placement next = next_of(store, 3, (int32_t[]){2, 0, 1, 3, 0, -1});
    assert_ok(bl_store_commit(store, &next, NULL, 0, &err));
    bl_layer_placement_free(&next);
    for (int expert = 0; expert < 3; expert++) {
        assert_serves(store, 3, expert);
        assert_ptr_equal(bl_store_expert(store, 3, expert), before[expert]);
    }
    assert_ptr_equal(bl_store_slot(store, 3, 0), before[2]);
    assert_int_equal(bl_store_spares_free(store), 1);
    bl_store_free(store);
}

static void test_empty_slots_own_a_buffer_too(void **state) {
    (void)state;
    bl_error err;
    bl_store *store = small_store(1, 2);
    const void *expert0 = bl_store_expert(store, 3, 0);
    /* 3 0 -1 -> -1 3 -1: expert 0 goes, nothing arrives, nothing is displaced. */
    bl_layer_placement next = next_of(store, 3, (int32_t[]){0, 1, 2, -1, 3, -1});
    assert_ok(bl_store_commit(store, &next, NULL, 0, &err));
    bl_layer_placement_free(&next);
    assert_serves(store, 3, 3);
    assert_null(bl_store_expert(store, 3, 0));
    assert_int_equal(bl_hash64(expert0, BUNDLE), hash_of(3, 0));
    /* -1 3 -1 -> 1 3 2: two arrivals take two slots, two buffers come back. */
    const bl_arrival arrivals[] = {{2, reserve(store, 3, 2)}, {1, reserve(store, 3, 1)}};
    next = next_of(store, 3, (int32_t[]){0, 1, 2, 1, 3, 2});
    assert_ok(bl_store_commit(store, &next, arrivals, 2, &err));
    bl_layer_placement_free(&next);
    for (int expert = 1; expert < 4; expert++)
        assert_serves(store, 3, expert);
    bl_store_retire(store, 3);
    assert_int_equal(bl_store_spares_free(store), 2);
    bl_store_free(store);
}

static void test_unreserved_spare_goes_back(void **state) {
    (void)state;
    bl_store *store = small_store(0, 1);
    const int spare = reserve(store, 3, 3);
    bl_store_unreserve(store, spare);
    bl_store_unreserve(store, spare); /* once is enough */
    bl_store_unreserve(store, -1);
    bl_store_unreserve(store, 1000);
    bl_store_unreserve(store, 0); /* a slot's buffer is not given away */
    assert_int_equal(bl_store_spares_free(store), 1);
    assert_null(bl_store_spare(store, spare));
    assert_null(bl_store_spare(store, 0));
    assert_serves_initial(store, 3);
    bl_store_free(store);
}

/* Each wrong commit of a rank 0 that reserved two spares, both holding expert 3 of layer 3. */
static void refuse(bl_store *store, const int32_t *experts, uint64_t epoch_step,
                   const bl_arrival *arrivals, int n_arrivals, bl_status want, const char *text) {
    bl_error err;
    bl_layer_placement next = next_of(store, 3, experts);
    next.epoch += epoch_step - 1;
    const void *slots[3];
    for (int slot = 0; slot < 3; slot++)
        slots[slot] = bl_store_slot(store, 3, slot);
    assert_fails(bl_store_commit(store, &next, arrivals, n_arrivals, &err), want, text);
    for (int slot = 0; slot < 3; slot++)
        assert_ptr_equal(bl_store_slot(store, 3, slot), slots[slot]);
    bl_layer_placement_free(&next);
    assert_serves_initial(store, 3);
    assert_int_equal(bl_store_spares_free(store), 0);
}

static void test_refused_commit_changes_nothing(void **state) {
    (void)state;
    bl_error err;
    bl_store *store = small_store(0, 2);
    const int32_t good[] = {0, 3, 2, 1, 0, -1};
    const int a = reserve(store, 3, 3), b = reserve(store, 3, 3);
    const bl_arrival one = {3, a};
    refuse(store, good, 1, NULL, 0, BL_ERR_STATE, "did not arrive");
    refuse(store, good, 2, &one, 1, BL_ERR_STATE, "epoch 2");
    refuse(store, good, 0, &one, 1, BL_ERR_STATE, "epoch 0");
    refuse(store, good, 1, &(bl_arrival){3, 0}, 1, BL_ERR_STATE, "not reserved");
    refuse(store, good, 1, &(bl_arrival){3, -1}, 1, BL_ERR_STATE, "not reserved");
    refuse(store, good, 1, &(bl_arrival){1, a}, 1, BL_ERR_STATE, "no slot");
    refuse(store, good, 1, &(bl_arrival){4, a}, 1, BL_ERR_STATE, "no slot");
    refuse(store, good, 1, &(bl_arrival){-1, a}, 1, BL_ERR_STATE, "no slot");
    refuse(store, good, 1, &(bl_arrival){0, a}, 1, BL_ERR_STATE, "held already");
    refuse(store, good, 1, (bl_arrival[]){{3, a}, {3, b}}, 2, BL_ERR_STATE, "share");
    refuse(store, good, 1, (bl_arrival[]){{3, a}, {1, a}}, 2, BL_ERR_STATE, "share");
    refuse(store, (int32_t[]){0, 3, 3, 1, 2, -1}, 1, &one, 1, BL_ERR_INFEASIBLE, "");
    refuse(store, (int32_t[]){0, 3, 2, -1, 0, -1}, 1, &one, 1, BL_ERR_INFEASIBLE, "");

    bl_layer_placement next = next_of(store, 3, good);
    next.layer = 4;
    assert_fails(bl_store_commit(store, &next, &one, 1, &err), BL_ERR_STATE, "no such");
    next.layer = 3;
    next.begin[1] = 2; /* another slot count on each rank */
    assert_fails(bl_store_commit(store, &next, &one, 1, &err), BL_ERR_SHAPE, "other ranks");
    next.begin[1] = 3;
    assert_serves_initial(store, 3);
    assert_ok(bl_store_commit(store, &next, &one, 1, &err)); /* and the right one still works */
    bl_layer_placement_free(&next);
    assert_serves(store, 3, 3);
    bl_store_unreserve(store, b);
    bl_store_free(store);
}

/* ---- many random migrations ---------------------------------------------------------------- */

enum { RANKS = 3, EXPERTS = 8, LAYERS = 3, SPARES = 3 };
static const int layer_ids[LAYERS] = {1, 4, 9}, slots_per_rank[RANKS] = {5, 4, 3};

/* A random placement of the layer that obeys the hard rules and lets no rank receive more than it
 * has spares for. */
static void shuffle_layer(bl_rng *rng, const bl_layer_placement *from, bl_layer_placement *next) {
    bl_error err;
    for (;;) {
        memcpy(next->expert, from->expert, sizeof *from->expert * (size_t)bl_layer_n_slots(from));
        const int changes = 1 + (int)bl_rng_below(rng, 6);
        for (int i = 0; i < changes; i++) {
            const int slot = (int)bl_rng_below(rng, (uint32_t)bl_layer_n_slots(next));
            next->expert[slot] = (int32_t)bl_rng_below(rng, EXPERTS + 1) - 1;
            const int other = (int)bl_rng_below(rng, (uint32_t)bl_layer_n_slots(next));
            const int32_t expert = next->expert[slot];
            next->expert[slot] = next->expert[other];
            next->expert[other] = expert;
        }
        err = BL_ERROR_INIT;
        bool fits = bl_layer_placement_check(next, NULL, &err) == BL_OK;
        for (int rank = 0; fits && rank < RANKS; rank++) {
            int arriving = 0;
            for (int slot = next->begin[rank]; slot < next->begin[rank + 1]; slot++)
                arriving += next->expert[slot] != BL_NO_EXPERT &&
                            bl_layer_find(from, rank, next->expert[slot]) < 0;
            fits = arriving <= SPARES;
        }
        if (fits)
            return;
    }
}

/* Receive what comes to `rank` and commit; what it held before stays readable. */
static void migrate(bl_store *store, const bl_layer_placement *next) {
    bl_error err;
    const int rank = bl_store_rank(store);
    const void *before[EXPERTS];
    for (int expert = 0; expert < EXPERTS; expert++)
        before[expert] = bl_store_expert(store, next->layer, expert);
    bl_arrival arrivals[SPARES];
    int n_arrivals = 0;
    for (int slot = next->begin[rank]; slot < next->begin[rank + 1]; slot++) {
        const int expert = next->expert[slot];
        if (expert == BL_NO_EXPERT || before[expert] != NULL)
            continue;
        arrivals[n_arrivals++] = (bl_arrival){expert, reserve(store, next->layer, expert)};
    }
    assert_ok(bl_store_commit(store, next, arrivals, n_arrivals, &err));
    for (int expert = 0; expert < EXPERTS; expert++)
        if (before[expert] != NULL)
            assert_int_equal(bl_hash64(before[expert], BUNDLE), hash_of(next->layer, expert));
}

static void check_layer(const bl_store *store, int layer) {
    const bl_layer_placement *map = bl_store_map(store, layer);
    const int rank = bl_store_rank(store);
    for (int expert = 0; expert < EXPERTS; expert++) {
        const void *bundle = bl_store_expert(store, layer, expert);
        assert_int_equal(bundle != NULL, bl_layer_find(map, rank, expert) >= 0);
        if (bundle != NULL)
            assert_int_equal(bl_hash64(bundle, BUNDLE), hash_of(layer, expert));
    }
}

static void test_ten_thousand_migrations(void **state) {
    (void)state;
    bl_error err;
    bl_placement placement;
    assert_ok(
        bl_placement_create(RANKS, EXPERTS, layer_ids, LAYERS, slots_per_rank, &placement, &err));
    bl_placement_fill_contiguous(&placement);
    bl_store *stores[RANKS];
    size_t resident[RANKS];
    for (int rank = 0; rank < RANKS; rank++) {
        assert_ok(bl_store_create(&placement, rank, BUNDLE, SPARES, &stores[rank], &err));
        resident[rank] = bl_store_resident_bytes(stores[rank]);
        for (int i = 0; i < LAYERS; i++) {
            const bl_layer_placement *map = &placement.layers[i];
            for (int slot = map->begin[rank]; slot < map->begin[rank + 1]; slot++)
                if (map->expert[slot] != BL_NO_EXPERT)
                    fill_bundle(bl_store_slot(stores[rank], map->layer, slot), map->layer,
                                map->expert[slot]);
        }
    }
    bl_rng rng;
    bl_rng_seed(&rng, 7);
    for (int round = 0; round < 10000; round++) {
        const int layer = layer_ids[bl_rng_below(&rng, LAYERS)];
        const bl_layer_placement *from = bl_store_map(stores[0], layer);
        bl_layer_placement next;
        assert_ok(bl_layer_placement_copy(from, &next, &err));
        shuffle_layer(&rng, from, &next);
        next.epoch++;
        for (int rank = 0; rank < RANKS; rank++) {
            migrate(stores[rank], &next);
            check_layer(stores[rank], layer);
            bl_store_retire(stores[rank], layer);
            assert_int_equal(bl_store_spares_free(stores[rank]), SPARES);
        }
        bl_layer_placement_free(&next);
    }
    for (int rank = 0; rank < RANKS; rank++) {
        for (int i = 0; i < LAYERS; i++)
            check_layer(stores[rank], layer_ids[i]);
        assert_int_equal(bl_store_resident_bytes(stores[rank]), resident[rank]);
        bl_store_free(stores[rank]);
    }
    bl_placement_free(&placement);
}

/* A rank that comes back holds nothing, and is told later what the others hold. */
static void test_other_maps_are_adopted(void **state) {
    (void)state;
    bl_error err;
    bl_store *store;
    bl_placement maps;
    const int layers[] = {3, 5}, slots[] = {4, 3};
    assert_ok(bl_placement_create(2, 4, layers, 2, slots, &maps, &err));
    for (int l = 0; l < 2; l++) {
        const int32_t experts[] = {0, 1, 2, 3, -1, -1, -1};
        memcpy(maps.layers[l].expert, experts, sizeof experts);
    }
    assert_ok(bl_store_create(&maps, 1, BUNDLE, 1, &store, &err));
    maps.layers[1].expert[0] = 3;
    maps.layers[1].expert[3] = 0;
    maps.layers[1].epoch = 9;
    assert_ok(bl_store_adopt(store, &maps, &err));
    assert_int_equal(bl_store_map(store, 5)->epoch, 9);
    assert_int_equal(bl_store_map(store, 5)->expert[0], 3);
    maps.layers[0].expert[4] = 1; /* this rank's own */
    assert_fails(bl_store_adopt(store, &maps, &err), BL_ERR_SHAPE, "in which it holds experts");
    maps.layers[0].expert[4] = -1;
    maps.n_layers = 1;
    assert_fails(bl_store_adopt(store, &maps, &err), BL_ERR_SHAPE, "of other slots");
    maps.n_layers = 2;
    bl_layer_placement next = next_of(store, 5, (const int32_t[]){3, 1, 2, 0, 2, -1, -1});
    const bl_arrival arrival = {2, reserve(store, 5, 2)};
    assert_ok(bl_store_commit(store, &next, &arrival, 1, &err)); /* and a plan gives it something */
    assert_serves(store, 5, 2);
    bl_layer_placement_free(&next);
    bl_store_free(store);
    bl_placement_free(&maps);
}

/* Without a pool: the slot of an expert with another copy takes another expert in its own buffer. */
static void test_a_claimed_slot(void **state) {
    (void)state;
    bl_error err;
    int spare, again;
    bl_store *store = small_store(0, 0);
    assert_fails(bl_store_reserve(store, &spare, &err), BL_ERR_STATE, "no spare expert buffer");
    assert_fails(bl_store_claim(store, 3, 3, &spare, &err), BL_ERR_STATE, "slot 3's buffer");
    assert_ok(bl_store_claim(store, 3, 0, &spare, &err));
    assert_fails(bl_store_claim(store, 3, 0, &again, &err), BL_ERR_STATE, "slot 0's buffer");
    bl_store_unreserve(store, spare); /* thought better of: it serves on */
    assert_serves_initial(store, 3);

    assert_ok(bl_store_claim(store, 3, 0, &spare, &err));
    bl_layer_placement next = next_of(store, 3, (const int32_t[]){3, 1, 2, -1, 0, -1});
    const bl_arrival arrival = {3, spare};
    next.expert[2] = 0; /* expert 0 would stay */
    next.expert[4] = 2;
    assert_fails(bl_store_commit(store, &next, &arrival, 1, &err), BL_ERR_STATE, "was given away");
    next.expert[2] = 2;
    next.expert[4] = 0;
    fill_bundle(bl_store_spare(store, spare), 3, 3);
    assert_ok(bl_store_commit(store, &next, &arrival, 1, &err));
    bl_store_retire(store, 3);
    for (int expert = 1; expert < 4; expert++)
        assert_serves(store, 3, expert);
    assert_null(bl_store_expert(store, 3, 0));
    assert_int_equal(bl_store_spares_free(store), 0);
    bl_layer_placement_free(&next);
    bl_store_free(store);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_created_store_serves_its_share),
        cmocka_unit_test(test_create_refuses_nonsense),
        cmocka_unit_test(test_one_move_through_its_life),
        cmocka_unit_test(test_expert_changes_slot_and_keeps_its_bytes),
        cmocka_unit_test(test_empty_slots_own_a_buffer_too),
        cmocka_unit_test(test_unreserved_spare_goes_back),
        cmocka_unit_test(test_refused_commit_changes_nothing),
        cmocka_unit_test(test_a_claimed_slot),
        cmocka_unit_test(test_other_maps_are_adopted),
        cmocka_unit_test(test_ten_thousand_migrations),
    };
    return cmocka_run_group_tests_name("store", tests, NULL, NULL);
}
