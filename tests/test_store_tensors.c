/* The store over an engine's memory, contiguous tensors or tables of pointers: after any commit every
 * slot holds its expert, whole. */
#include "runtime/store.h"

#include "core/rng.h"
#include "tests/support/foreign.h"
#include "tests/support/support.h"

#include <stdlib.h>
#include <string.h>

enum { EXPERTS = 8, OWN = 5, SPARES = 4 };

/* Rank 0 has OWN slots under test, rank 1 holds every expert. */
typedef struct bench {
    bl_placement placement;
    bl_foreign *foreign[2], *peer[2]; /* lists for recompute: [1] is NULL */
    bl_bundle bundles[1], peers[1];
    bl_store *store, *other;
} bench;

static void declare(bl_foreign *foreign, bl_bundle *out) {
    bl_error err;
    bl_tensor tensors[FOREIGN_TENSORS];
    bl_layer layer = BL_LAYER_INIT;
    const bl_bundle_shape shape = {foreign->layer, foreign->own_slots, foreign->n_slots,
                                   foreign->n_experts};
    bl_foreign_declare(foreign, tensors);
    layer.layer = foreign->layer;
    layer.tensors = tensors;
    layer.n_tensors = FOREIGN_TENSORS;
    layer.n_spares = (size_t)foreign->n_spares;
    assert_ok(bl_bundle_create(&layer, &shape, NULL, NULL, out, &err));
}

static void open_bench(bench *b, bool by_pointers) {
    bl_error err;
    const int layers[] = {3}, slots[] = {OWN, EXPERTS};
    *b = (bench){0};
    assert_ok(bl_placement_create(2, EXPERTS, layers, 1, slots, &b->placement, &err));
    for (int i = 0; i < OWN; i++)
        b->placement.layers[0].expert[i] = i < 4 ? i : BL_NO_EXPERT;
    for (int e = 0; e < EXPERTS; e++)
        b->placement.layers[0].expert[OWN + e] = e;
    b->foreign[0] = by_pointers ? bl_foreign_new_by_pointers(&b->placement.layers[0], 0, 1, SPARES)
                                : bl_foreign_new(&b->placement.layers[0], 0, 1);
    b->peer[0] = bl_foreign_new(&b->placement.layers[0], 1, 1);
    assert_non_null(b->foreign[0]);
    assert_non_null(b->peer[0]);
    declare(b->foreign[0], b->bundles);
    declare(b->peer[0], b->peers);
    assert_ok(bl_store_create_over(&b->placement, 0, b->bundles, SPARES, NULL, bl_foreign_recompute,
                                   b->foreign, &b->store, &err));
    assert_ok(bl_store_create_over(&b->placement, 1, b->peers, 0, NULL, bl_foreign_recompute,
                                   b->peer, &b->other, &err));
}

static void close_bench(bench *b) {
    bl_store_free(b->store);
    bl_store_free(b->other);
    bl_bundle_free(b->bundles);
    bl_bundle_free(b->peers);
    bl_foreign_free(b->foreign[0]);
    bl_foreign_free(b->peer[0]);
    bl_placement_free(&b->placement);
}

/* Stage what rank 0 must receive, out of rank 1's tensors; returns how many. */
static int stage(bench *b, const bl_layer_placement *next, bl_arrival *arrivals) {
    bl_error err;
    int n = 0;
    const bl_layer_placement *map = bl_store_map(b->store, 3);
    for (int i = 0; i < OWN; i++) {
        const int32_t expert = next->expert[i];
        if (expert == BL_NO_EXPERT || bl_layer_find(map, 0, expert) >= 0)
            continue;
        bl_arrival *a = &arrivals[n++];
        a->expert = expert;
        assert_ok(bl_store_reserve(b->store, &a->spare, &err));
        unsigned char bundle[FOREIGN_BUNDLE_BYTES];
        for (size_t at = 0, n_bytes; at < sizeof bundle; at += n_bytes) { /* pieces of any length */
            n_bytes = 1 + (at * 7 + (size_t)expert) % 23;
            n_bytes = n_bytes < sizeof bundle - at ? n_bytes : sizeof bundle - at;
            assert_ok(bl_store_read_expert(b->other, 3, expert, at, bundle + at, n_bytes, &err));
            assert_ok(bl_store_write_spare(b->store, a->spare, at, bundle + at, n_bytes, &err));
        }
        uint64_t hash;
        assert_ok(bl_store_hash_expert(b->other, 3, expert, &hash, &err));
        assert_int_equal(bl_store_hash_spare(b->store, a->spare), hash);
    }
    return n;
}

static void check_all(bench *b) {
    bl_error err;
    const bl_layer_placement *map = bl_store_map(b->store, 3);
    assert_true(bl_foreign_is(b->foreign[0], map->expert, map->begin, 1));
    for (int expert = 0; expert < EXPERTS; expert++) {
        uint64_t here = 0, there = 0;
        assert_null(bl_store_expert(b->store, 3, expert));
        assert_ok(bl_store_hash_expert(b->other, 3, expert, &there, &err));
        if (bl_layer_find(map, 0, expert) >= 0) {
            assert_ok(bl_store_hash_expert(b->store, 3, expert, &here, &err));
            assert_int_equal(here, there);
        } else {
            assert_fails(bl_store_hash_expert(b->store, 3, expert, &here, &err), BL_ERR_STATE,
                         "does not hold it");
        }
    }
}

static void commit_to(bench *b, const int32_t *own) {
    bl_error err;
    bl_layer_placement next;
    bl_arrival arrivals[OWN];
    assert_ok(bl_layer_placement_copy(bl_store_map(b->store, 3), &next, &err));
    memcpy(next.expert, own, sizeof *own * OWN);
    next.epoch++;
    const int n = stage(b, &next, arrivals);
    assert_ok(bl_store_commit(b->store, &next, arrivals, n, &err));
    assert_int_equal(bl_store_spares_free(b->store), SPARES - n); /* the displaced wait */
    check_all(b);
    bl_store_retire(b->store, 3);
    assert_int_equal(bl_store_spares_free(b->store), SPARES);
    bl_layer_placement_free(&next);
}

static void test_paths_and_cycles(void **state) {
    bench b;
    open_bench(&b, *state != NULL);
    assert_int_equal(bl_store_bundle_bytes(b.store), FOREIGN_BUNDLE_BYTES);
    assert_int_equal(bl_store_resident_bytes(b.store), *state != NULL ? 128 : (SPARES + 1) * 128);
    static const int32_t targets[][OWN] = {
        {0, 1, 2, 3, -1}, /* nothing */
        {1, 0, 3, 2, -1}, /* two cycles */
        {-1, 1, 0, 3, 2}, /* a path that leaves a slot empty */
        {4, 5, 0, 3, 2},  /* arrivals into an empty and a taken slot */
        {0, 4, 5, 2, 3},  /* a cycle of three and one of two */
        {6, 0, 4, 7, 2},  /* arrivals at the beginning of chains */
        {-1, -1, -1, -1, -1}, {7, 6, 5, 4, -1},
    };
    for (size_t i = 0; i < sizeof targets / sizeof *targets; i++)
        commit_to(&b, targets[i]);
    assert_int_equal(bl_store_map(b.store, 3)->epoch, sizeof targets / sizeof *targets);
    close_bench(&b);
}

static void test_random_commits(void **state) {
    bench b;
    bl_rng rng;
    open_bench(&b, *state != NULL);
    bl_rng_seed(&rng, 5);
    for (int round = 0; round < 2000; round++) {
        const bl_layer_placement *map = bl_store_map(b.store, 3);
        int32_t own[OWN], pool[EXPERTS];
        int n_new = 0, n_pool = EXPERTS;
        for (int e = 0; e < EXPERTS; e++)
            pool[e] = e;
        for (int i = 0; i < OWN; i++) {
            const int pick = (int)bl_rng_below(&rng, (uint32_t)n_pool);
            own[i] = pool[pick];
            pool[pick] = pool[--n_pool];
            const bool is_new = bl_layer_find(map, 0, own[i]) < 0;
            if (bl_rng_below(&rng, 5) == 0 || (is_new && n_new == SPARES))
                own[i] = BL_NO_EXPERT;
            else
                n_new += is_new;
        }
        commit_to(&b, own);
    }
    close_bench(&b);
}

/* A commit that is refused leaves tensors and pool as they are. */
static void test_refusals_change_nothing(void **state) {
    bl_error err;
    bench b;
    bl_layer_placement next;
    open_bench(&b, *state != NULL);
    assert_ok(bl_layer_placement_copy(bl_store_map(b.store, 3), &next, &err));
    next.epoch++;
    next.expert[0] = 6;
    assert_fails(bl_store_commit(b.store, &next, NULL, 0, &err), BL_ERR_STATE, "did not arrive");
    next.epoch++;
    assert_fails(bl_store_commit(b.store, &next, NULL, 0, &err), BL_ERR_STATE,
                 "cannot commit epoch");
    check_all(&b);
    assert_int_equal(bl_store_spares_free(b.store), SPARES);
    unsigned char byte;
    assert_fails(bl_store_read_expert(b.store, 3, 0, FOREIGN_BUNDLE_BYTES, &byte, 1, &err),
                 BL_ERR_RANGE, "bytes");
    assert_null(bl_store_slot(b.store, 3, 0));
    bl_layer_placement_free(&next);
    close_bench(&b);
}

static void test_recompute(void **state) {
    bl_error err;
    bench b;
    bl_store *none;
    open_bench(&b, *state != NULL);
    assert_fails(bl_store_create_over(&b.placement, 0, b.bundles, 1, NULL, NULL, NULL, &none, &err),
                 BL_ERR_USAGE, "tensor row_sum is recomputed");
    const int32_t same[] = {0, 1, 2, 3, -1}, other[] = {1, 0, 2, 3, 4};
    commit_to(&b, same);
    assert_int_equal(b.foreign[0]->n_recomputed, 0); /* nothing to do */
    commit_to(&b, other);
    assert_int_equal(b.foreign[0]->n_recomputed, 1);
    /* an engine that cannot: said so, by name */
    bl_layer_placement next;
    b.foreign[0]->layer = 4;
    assert_ok(bl_layer_placement_copy(bl_store_map(b.store, 3), &next, &err));
    next.epoch++;
    next.expert[0] = 0;
    next.expert[1] = 1;
    assert_fails(bl_store_commit(b.store, &next, NULL, 0, &err), BL_ERR_IO,
                 "could not recompute tensor row_sum");
    bl_layer_placement_free(&next);
    close_bench(&b);
}

/* By pointers nothing is copied at a commit: entries are found elsewhere, those displaced stay readable
 * until they are retired, and then an arrival may be written there. */
static void test_pointers_flip(void **state) {
    (void)state;
    bl_error err;
    bench b;
    bl_layer_placement next;
    bl_arrival arrival[OWN];
    open_bench(&b, true);
    const int32_t full[] = {0, 1, 2, 3, 4};
    commit_to(&b, full);
    bl_foreign *f = b.foreign[0];
    void *const spare = f->at[FOREIGN_W][OWN + 0], *const of_1 = f->at[FOREIGN_W][1];
    void *const of_2 = f->at[FOREIGN_W][2], *const scale_of_1 = f->at[FOREIGN_W_SCALE][1];
    int8_t before[FOREIGN_ROWS * FOREIGN_ROW_STRIDE];
    void *all_before[OWN];
    memcpy(before, of_1, sizeof before);
    memcpy(all_before, f->at[FOREIGN_W], sizeof all_before);
    assert_ok(bl_layer_placement_copy(bl_store_map(b.store, 3), &next, &err));
    next.epoch++;
    next.expert[1] = 7; /* in place of 1 */
    next.expert[2] = 3; /* these change places */
    next.expert[3] = 2;
    assert_int_equal(stage(&b, &next, arrival), 1);
    assert_null(bl_store_spare(b.store, arrival[0].spare));
    assert_null(bl_store_expert(b.store, 3, 2));
    assert_ok(bl_store_commit(b.store, &next, arrival, 1, &err));
    assert_ptr_equal(f->at[FOREIGN_W][3], of_2);
    for (int i = 0; i < OWN; i++)
        assert_ptr_not_equal(f->at[FOREIGN_W][1], all_before[i]); /* it was a spare */
    assert_ptr_equal(f->at[FOREIGN_W][OWN + 0], spare); /* behind the slots nothing is written */
    assert_memory_equal(of_1, before, sizeof before);
    check_all(&b);
    bl_store_retire(b.store, 3);
    bool is_spare_again = false; /* both tensors of the displaced bundle, together */
    int taken[SPARES];
    for (int i = 0; i < SPARES; i++) {
        unsigned char bundle[FOREIGN_BUNDLE_BYTES];
        assert_ok(bl_store_reserve(b.store, &taken[i], &err));
        memset(bundle, 100 + i, sizeof bundle);
        memcpy(bl_store_staging(b.store, taken[i]), bundle, sizeof bundle);
        assert_ok(bl_store_staged(b.store, taken[i], &err));
        is_spare_again =
            is_spare_again || (*(int8_t *)of_1 == 100 + i && *(int8_t *)scale_of_1 == 100 + i);
    }
    assert_true(is_spare_again);
    check_all(&b);
    for (int i = 0; i < SPARES; i++)
        bl_store_unreserve(b.store, taken[i]);
    assert_fails(bl_store_write_spare(b.store, taken[0], 0, before, 1, &err), BL_ERR_STATE,
                 "not reserved");
    bl_layer_placement_free(&next);
    close_bench(&b);
}

/* A rank without a free spare takes an arrival into the slot it gets. */
static void test_a_slot_is_claimed(void **state) {
    bl_error err;
    bench b;
    bl_layer_placement next;
    bl_arrival arrival = {.expert = 6};
    open_bench(&b, *state != NULL);
    assert_fails(bl_store_claim(b.store, 3, OWN, &arrival.spare, &err), BL_ERR_STATE, "slot 5");
    assert_ok(bl_layer_placement_copy(bl_store_map(b.store, 3), &next, &err));
    assert_ok(bl_store_claim(b.store, 3, 2, &arrival.spare, &err));
    assert_ok(bl_store_read_expert(b.other, 3, 6, 0, bl_store_staging(b.store, arrival.spare),
                                   FOREIGN_BUNDLE_BYTES, &err));
    assert_ok(bl_store_staged(b.store, arrival.spare, &err));
    uint64_t hash;
    assert_ok(bl_store_hash_expert(b.other, 3, 6, &hash, &err));
    assert_int_equal(bl_store_hash_spare(b.store, arrival.spare), hash);
    next.epoch++;
    assert_fails(bl_store_commit(b.store, &next, &arrival, 1, &err), BL_ERR_STATE, "no slot");
    next.expert[2] = 6;
    assert_ok(bl_store_commit(b.store, &next, &arrival, 1, &err));
    check_all(&b);
    assert_int_equal(bl_store_spares_free(b.store), SPARES);
    bl_store_retire(b.store, 3);
    bl_layer_placement_free(&next);
    const int32_t after[] = {6, 5, 4, 7, 0}; /* and nothing is left of it */
    commit_to(&b, after);
    close_bench(&b);
}

#define IN_BOTH_MODES(test)                                  \
    cmocka_unit_test(test), {                                \
#test " by pointers", test, NULL, NULL, &by_pointers \
    }

int main(void) {
    static bool by_pointers = true;
    const struct CMUnitTest tests[] = {
        IN_BOTH_MODES(test_paths_and_cycles),        IN_BOTH_MODES(test_random_commits),
        IN_BOTH_MODES(test_refusals_change_nothing), IN_BOTH_MODES(test_recompute),
        IN_BOTH_MODES(test_a_slot_is_claimed),       cmocka_unit_test(test_pointers_flip),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
