/* One MoE layer over ranks, stage by stage, on inputs small enough to count by hand. */
#include "tests/support/support.h"

#include "runtime/moe.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define HIDDEN 2
#define MAX_RANKS 3
#define MAX_TOKENS 4
#define MAX_K 3

/* What one rank brings, and what it saw. */
typedef struct rank_case {
    int n_tokens;
    int32_t ids[MAX_TOKENS * MAX_K];
    float weights[MAX_TOKENS * MAX_K];
    float x[MAX_TOKENS * HIDDEN];
    /* outcome */
    float out[MAX_TOKENS * HIDDEN];
    int n_sent[MAX_RANKS], rows_of_expert[4], rows;
    uint64_t sent_rows, sent_bytes, n_messages;
} rank_case;

typedef struct layer_case {
    int n_ranks, top_k;
    bl_dispatch dispatch;
    const bl_placement *placement;
    float value[4]; /* expert e turns x into (30 * x0 * value[e], 0) for x0 = 1 */
    rank_case ranks[MAX_RANKS];
    int other_epoch_on; /* rank that serves another epoch, or -1 */
} layer_case;

typedef struct seat {
    layer_case *layer;
    bl_transport *transport;
    bl_status status;
    bl_error error;
    pthread_t thread;
} seat;

static uint16_t bf16(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return (uint16_t)(bits >> 16);
}

/* inner 1: gate (30, 0) so that silu(gate * x) is 30 exactly, up (1, 0), down (value, 0). */
static void fill_store(const layer_case *layer, bl_store *store, int rank) {
    const bl_layer_placement *map = bl_store_map(store, 0);
    for (int slot = map->begin[rank]; slot < map->begin[rank + 1]; slot++) {
        if (map->expert[slot] == BL_NO_EXPERT)
            continue;
        const uint16_t bundle[6] = {bf16(30), 0, bf16(1), 0, bf16(layer->value[map->expert[slot]]),
                                    0};
        memcpy(bl_store_slot(store, 0, slot), bundle, sizeof bundle);
    }
}

static bl_status stages(layer_case *layer, bl_moe *moe, const bl_store *store, bl_sharing *sharing,
                        bl_error *err) {
    rank_case *at = &layer->ranks[moe->rank];
    bl_layer_placement map = *bl_store_map(store, 0);
    map.epoch += layer->other_epoch_on == moe->rank;
    const size_t n = (size_t)(at->n_tokens * layer->top_k);
    BL_TRY(bl_moe_begin(moe, &map, sharing, at->n_tokens, err));
    if (n > 0) { /* in the router's place */
        memcpy(moe->ids, at->ids, n * sizeof at->ids[0]);
        memcpy(moe->weights, at->weights, n * sizeof at->weights[0]);
    }
    BL_TRY(bl_moe_permute(moe, at->x, err));
    BL_TRY(bl_moe_dispatch(moe, err));
    BL_TRY(bl_moe_experts(moe, store, err));
    at->rows = bl_moe_rows(moe);
    for (int expert = 0; expert < 4; expert++)
        at->rows_of_expert[expert] = moe->first[expert + 1] - moe->first[expert];
    BL_TRY(bl_moe_combine(moe, err));
    bl_moe_unpermute(moe, at->out);
    for (int g = 0; g < moe->n_ranks; g++)
        at->n_sent[g] = moe->near.n_to[g];
    at->sent_rows = moe->cost.rows;
    at->sent_bytes = moe->cost.bytes;
    at->n_messages = moe->cost.messages;
    return BL_OK;
}

static void *rank_main(void *user) {
    seat *seat_of = user;
    layer_case *layer = seat_of->layer;
    bl_error *err = &seat_of->error;
    const int rank = bl_transport_rank(seat_of->transport);
    bl_exchange exchange = bl_exchange_over(seat_of->transport, 20);
    const bl_moe_shape shape = {
        .hidden = HIDDEN, .inner = 1, .n_experts = 4, .top_k = layer->top_k};
    bl_store *store = NULL;
    bl_moe moe = {0};
    const bl_sharing_rule rule = {.rule = BL_RULE_EVEN};
    bl_sharing *sharing = NULL;
    bl_status st = bl_store_create(layer->placement, rank, 6 * sizeof(uint16_t), 0, &store, err);
    if (st >= 0)
        st = bl_moe_create(&shape, &exchange, &moe, err);
    if (st >= 0)
        st = bl_sharing_create(&rule, bl_store_map(store, 0), rank, &sharing, err);
    if (st >= 0) {
        fill_store(layer, store, rank);
        bl_moe_dispatch_by(&moe, layer->dispatch, NULL);
        st = stages(layer, &moe, store, sharing, err);
    }
    seat_of->status = st;
    bl_sharing_free(sharing);
    bl_moe_free(&moe);
    bl_store_free(store);
    bl_transport_close(seat_of->transport);
    return NULL;
}

/* Runs the layer; the first status that is not the echo of a lost peer. */
static bl_status run_layer(layer_case *layer, bl_error *err) {
    bl_transport *handles[MAX_RANKS];
    seat seats[MAX_RANKS];
    BL_TRY(bl_transport_local_open(layer->n_ranks, handles, err));
    for (int r = 0; r < layer->n_ranks; r++) {
        seats[r] = (seat){.layer = layer, .transport = handles[r], .error = BL_ERROR_INIT};
        if (pthread_create(&seats[r].thread, NULL, rank_main, &seats[r]) != 0)
            abort();
    }
    bl_status st = BL_OK;
    for (int r = 0; r < layer->n_ranks; r++)
        pthread_join(seats[r].thread, NULL);
    for (int r = 0; r < layer->n_ranks; r++)
        if (seats[r].status < 0 && (st == BL_OK || st == BL_ERR_PEER)) {
            st = seats[r].status;
            *err = seats[r].error;
        }
    return st;
}

static bl_placement placement_of(int n_ranks, const int *slots_per_rank, const int32_t *experts) {
    bl_error err;
    bl_placement placement;
    const int layer = 0;
    assert_ok(bl_placement_create(n_ranks, 4, &layer, 1, slots_per_rank, &placement, &err));
    for (int slot = 0; slot < bl_layer_n_slots(&placement.layers[0]); slot++)
        placement.layers[0].expert[slot] = experts[slot];
    assert_ok(bl_placement_check(&placement, NULL, &err));
    return placement;
}

/* T1 -> E1, E3   T2 -> E1, E3   T3 -> E1, E2   T4 -> E2, E4 (experts are numbered from 0 here).
 * E1 and E2 on rank A, E3 and E4 on rank B; T1 lives on A, the others on B. */
static void four_tokens_four_experts(void **state) {
    (void)state;
    bl_error err = BL_ERROR_INIT;
    const int slots[2] = {2, 2};
    const int32_t experts[4] = {0, 1, 2, 3};
    bl_placement placement = placement_of(2, slots, experts);
    layer_case layer = {
        .n_ranks = 2,
        .top_k = 2,
        .placement = &placement,
        .value = {1, 2, 4, 8},
        .other_epoch_on = -1,
        .ranks = {{.n_tokens = 1, .ids = {0, 2}, .weights = {0.5f, 0.5f}, .x = {1, 0}},
                  {.n_tokens = 3,
                   .ids = {0, 2, 0, 1, 1, 3},
                   .weights = {0.5f, 0.5f, 0.5f, 0.5f, 0.75f, 0.25f},
                   .x = {1, 0, 1, 0, 1, 0}}}};
    assert_ok(run_layer(&layer, &err));
    const rank_case *a = &layer.ranks[0], *b = &layer.ranks[1];
    /* T1: E1's row stays, E3's travels. */
    assert_int_equal(a->n_sent[0], 1);
    assert_int_equal(a->n_sent[1], 1);
    /* T2, T3, T4: E1, E1, E2, E2 travel, E3 and E4 stay. */
    assert_int_equal(b->n_sent[0], 4);
    assert_int_equal(b->n_sent[1], 2);
    /* Eight assignments: rows 3, 2 on A and 2, 1 on B. */
    assert_int_equal(a->rows_of_expert[0], 3);
    assert_int_equal(a->rows_of_expert[1], 2);
    assert_int_equal(b->rows_of_expert[2], 2);
    assert_int_equal(b->rows_of_expert[3], 1);
    assert_int_equal(a->rows + b->rows, 8);
    assert_int_equal(a->rows_of_expert[2] + a->rows_of_expert[3], 0);
    /* Across the link: dispatch and combine, A sends 1 row and returns 4, B sends 4 and returns 1.
     */
    assert_int_equal(a->sent_rows, 5);
    assert_int_equal(b->sent_rows, 5);
    assert_int_equal(a->n_messages, 2);
    assert_int_equal(a->sent_bytes, (16 + 16 + 8) + (16 + 4 * 8));
    assert_int_equal(b->sent_bytes, (16 + 16 + 4 * 8) + (16 + 8));
    /* 30 * value, weighted. */
    assert_true(a->out[0] == 15 + 60);
    assert_true(b->out[0] == 15 + 60 && b->out[2] == 15 + 30 && b->out[4] == 45 + 60);
    /* One row per token and rank: T3's two experts on A share theirs; results still come back one by
     * one. */
    layer.dispatch = BL_DISPATCH_DEDUP_RANK;
    assert_ok(run_layer(&layer, &err));
    assert_int_equal(b->n_sent[0], 4);
    assert_int_equal(a->rows + b->rows, 8);
    assert_int_equal(a->sent_rows, 5);
    assert_int_equal(b->sent_rows, 4);
    assert_int_equal(a->sent_bytes, (16 + 16 + 8) + (16 + 4 * 8));
    assert_int_equal(b->sent_bytes, (16 + 32 + 3 * 8) + (16 + 8));
    assert_true(a->out[0] == 2 * (15 + 60)); /* it was added to what was there */
    assert_true(b->out[0] == 2 * (15 + 60) && b->out[2] == 2 * (15 + 30) &&
                b->out[4] == 2 * (45 + 60));
    bl_placement_free(&placement);
}

/* In float32 (2^40 + 1) - 2^40 is 0 and (2^40 - 2^40) + 1 is 1: the order of the sum shows. The
 * three results come from three ranks, so every order of arrival is tried by turning the placement.
 */
static void sums_in_router_order(void **state) {
    (void)state;
    bl_error err = BL_ERROR_INIT;
    const int slots[3] = {2, 2, 2};
    for (int turn = 0; turn < 3; turn++) {
        int32_t experts[6] = {3, 3, 3, 3, 3, 3};
        for (int expert = 0; expert < 3; expert++)
            experts[2 * ((expert + turn) % 3)] = expert;
        bl_placement placement = placement_of(3, slots, experts);
        for (int order = 0; order < 2; order++) {
            layer_case layer = {.n_ranks = 3,
                                .top_k = 3,
                                .placement = &placement,
                                .value = {0x1p40f, 1, -0x1p40f, 0},
                                .other_epoch_on = -1};
            for (int r = 0; r < 3; r++)
                layer.ranks[r] = (rank_case){.n_tokens = 1,
                                             .ids = {0, order == 0 ? 1 : 2, order == 0 ? 2 : 1},
                                             .weights = {1, 1, 1},
                                             .x = {1, 0}};
            assert_ok(run_layer(&layer, &err));
            for (int r = 0; r < 3; r++)
                assert_true(layer.ranks[r].out[0] == (order == 0 ? 0.0f : 30.0f));
        }
        bl_placement_free(&placement);
    }
}

/* Four rows of one expert with two copies: two each. A rank without tokens serves its share. */
static void copies_share_and_idle_ranks_serve(void **state) {
    (void)state;
    bl_error err = BL_ERROR_INIT;
    const int slots[2] = {3, 3};
    const int32_t experts[6] = {0, 1, 2, 3, 0, BL_NO_EXPERT};
    bl_placement placement = placement_of(2, slots, experts);
    layer_case layer = {.n_ranks = 2,
                        .top_k = 1,
                        .placement = &placement,
                        .value = {1, 2, 4, 8},
                        .other_epoch_on = -1,
                        .ranks = {{.n_tokens = 4,
                                   .ids = {0, 0, 0, 0},
                                   .weights = {1, 1, 1, 1},
                                   .x = {1, 0, 1, 0, 1, 0, 1, 0}}}};
    assert_ok(run_layer(&layer, &err));
    assert_int_equal(layer.ranks[0].rows_of_expert[0], 2);
    assert_int_equal(layer.ranks[1].rows_of_expert[0], 2);
    assert_int_equal(layer.ranks[1].n_sent[0] + layer.ranks[1].n_sent[1], 0);
    for (int t = 0; t < 4; t++)
        assert_true(layer.ranks[0].out[2 * t] == 30.0f);
    bl_placement_free(&placement);
}

static void another_epoch_is_an_error_and_not_an_answer(void **state) {
    (void)state;
    bl_error err = BL_ERROR_INIT;
    const int slots[2] = {2, 2};
    const int32_t experts[4] = {0, 1, 2, 3};
    bl_placement placement = placement_of(2, slots, experts);
    layer_case layer = {.n_ranks = 2, .top_k = 2, .placement = &placement, .other_epoch_on = 1};
    assert_int_equal(run_layer(&layer, &err), BL_ERR_STATE);
    bl_test_has(err.text, "epoch");
    bl_placement_free(&placement);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(four_tokens_four_experts),
        cmocka_unit_test(sums_in_router_order),
        cmocka_unit_test(copies_share_and_idle_ranks_serve),
        cmocka_unit_test(another_epoch_is_an_error_and_not_an_answer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
