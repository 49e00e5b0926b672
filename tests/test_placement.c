/* Placement and split: shapes, hard rules, copies and the choice among them. */
#include "tests/support/support.h"

#include "core/placement.h"
#include "core/split.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static bl_placement contiguous(int n_ranks, int n_experts, const int *slots_per_rank) {
    bl_error err = BL_ERROR_INIT;
    const int layers[2] = {3, 7};
    bl_placement placement;
    assert_ok(bl_placement_create(n_ranks, n_experts, layers, 2, slots_per_rank, &placement, &err));
    bl_placement_fill_contiguous(&placement);
    return placement;
}

static void contiguous_is_what_engines_start_with(void **state) {
    (void)state;
    bl_error err;
    const int slots[4] = {3, 3, 3, 3};
    bl_placement placement = contiguous(4, 8, slots);
    const bl_layer_placement *layer = bl_placement_layer(&placement, 7);
    assert_non_null(layer);
    assert_ok(bl_placement_check(&placement, NULL, &err));
    for (int slot = 0; slot < 12; slot++) /* vLLM and SGLang: physical expert i is i mod E */
        assert_int_equal(layer->expert[slot], slot % 8);
    assert_null(bl_placement_layer(&placement, 4));
    bl_placement_free(&placement);
}

static void uneven_and_masked_ranks(void **state) {
    (void)state;
    bl_error err;
    static const int cases[][5] = {{4, 4, 4, 4, 14},
                                   {8, 0, 4, 2, 14},
                                   {1, 1, 6, 6, 14},
                                   {14, 14, 14, 14, 14},
                                   {0, 14, 0, 0, 14}};
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        bl_placement placement = contiguous(4, cases[c][4], cases[c]);
        assert_ok(bl_placement_check(&placement, NULL, &err));
        for (int rank = 0; rank < 4; rank++)
            assert_int_equal(placement.layers[0].begin[rank + 1] - placement.layers[0].begin[rank],
                             cases[c][rank]);
        bl_placement_free(&placement);
    }
}

static void hard_rules_are_named(void **state) {
    (void)state;
    bl_error err;
    const int slots[2] = {3, 3};
    bl_placement placement = contiguous(2, 4, slots);
    bl_layer_placement *layer = &placement.layers[1];
    const int32_t missing[6] = {0, 1, 2, 2, 1, 0}, twice[6] = {0, 1, 0, 2, 3, 1},
                  outside[6] = {0, 1, 4, 2, 3, 1}, fine[6] = {0, 1, -1, 2, 3, -1};
    memcpy(layer->expert, missing, sizeof missing);
    assert_fails(bl_placement_check(&placement, "p", &err), BL_ERR_INFEASIBLE,
                 "expert 3 has no slot");
    assert_int_equal(err.layer, 7);
    assert_int_equal(err.expert, 3);
    memcpy(layer->expert, twice, sizeof twice);
    assert_fails(bl_placement_check(&placement, "p", &err), BL_ERR_INFEASIBLE, "twice");
    memcpy(layer->expert, outside, sizeof outside);
    assert_fails(bl_placement_check(&placement, "p", &err), BL_ERR_RANGE, "[0, 4)");
    memcpy(layer->expert, fine, sizeof fine);
    assert_ok(bl_placement_check(&placement, "p", &err));
    bl_placement_free(&placement);
}

static void moves_are_copies_that_travel(void **state) {
    (void)state;
    const int slots[2] = {3, 3};
    bl_placement from = contiguous(2, 4, slots), to = contiguous(2, 4, slots);
    const int32_t a[6] = {0, 1, 2, 2, 3, 0}, permuted[6] = {2, 0, 1, 0, 2, 3},
                  other[6] = {0, 1, 3, 2, 3, 1};
    memcpy(from.layers[0].expert, a, sizeof a);
    memcpy(to.layers[0].expert, permuted, sizeof permuted);
    assert_int_equal(bl_layer_moves(&from.layers[0], &to.layers[0]), 0);
    memcpy(to.layers[0].expert, other, sizeof other);
    assert_int_equal(bl_layer_moves(&from.layers[0], &to.layers[0]), 2);
    bl_placement_free(&from);
    bl_placement_free(&to);
}

static void json_form(void **state) {
    (void)state;
    bl_error err;
    static const struct {
        const char *text;
        bl_status code;
        const char *says;
    } cases[] = {
        {"[{\"layer\":3,\"slots\":[[0,1],[2,-1]]},{\"layer\":5,\"slots\":[[2],[0,1,2]]}]", BL_OK,
         ""},
        {"[{\"layer\":3,\"slots\":[[0,1]]}]", BL_ERR_SHAPE, "1 ranks, not for 2"},
        {"[{\"layer\":3,\"slots\":[[0,1],[3]]}]", BL_ERR_RANGE, "expert 3 is not in [0, 3)"},
        {"[{\"layer\":3,\"slots\":[[0,1.5],[2]]}]", BL_ERR_PARSE, "expert id"},
        {"[{\"layer\":3,\"slots\":[[0,1],2]}]", BL_ERR_PARSE, "array of expert ids"},
        {"[{\"layer\":3,\"slots\":[[0],[1]]},{\"layer\":3,\"slots\":[[0],[1]]}]", BL_ERR_PARSE,
         "ascend"},
        {"[{\"slots\":[[0],[1]]}]", BL_ERR_PARSE, "\"layer\" is missing"},
        {"[]", BL_ERR_PARSE, "at least one layer"}};
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        json_t *root = NULL;
        assert_ok(bl_json_parse(cases[c].text, strlen(cases[c].text), "p", &root, &err));
        bl_placement placement;
        err = BL_ERROR_INIT;
        const bl_status st = bl_placement_from_json(root, 2, 3, 9, "p", &placement, &err);
        assert_int_equal(st, cases[c].code);
        if (st >= 0) {
            assert_true(placement.layers[1].epoch == 9 && placement.layers[1].layer == 5);
            json_t *again = bl_layer_slots_to_json(&placement.layers[0]);
            assert_true(json_equal(again, json_object_get(json_array_get(root, 0), "slots")));
            json_decref(again);
            bl_placement_free(&placement);
        } else {
            bl_test_has(err.text, cases[c].says);
        }
        json_decref(root);
    }
}

/* Over many rows the choice reproduces the shares, for every source rank. */
static void choice_reproduces_shares(void **state) {
    (void)state;
    bl_error err;
    const int slots[3] = {2, 2, 2};
    bl_placement placement = contiguous(3, 3, slots);
    const int32_t expert[6] = {0, 1, 2, 0, 0, 1}; /* 0: three copies, 1: two, 2: one */
    memcpy(placement.layers[0].expert, expert, sizeof expert);
    bl_copies copies;
    assert_ok(bl_copies_of(&placement.layers[0], &copies, &err));
    assert_int_equal(copies.first[1] - copies.first[0], 3);
    assert_int_equal(copies.rank[copies.first[2] - 1], 2);
    double share[6];
    bl_split_even_shares(&placement.layers[0], &copies, share);
    assert_true(fabs(share[0] - 1.0 / 3) < 1e-12 && share[2] == 1.0 && share[5] == 0.5);
    const double own[6] = {0.7, 0.25, 1.0, 0.1, 0.2, 0.75};
    for (int source = 0; source < 3; source++) {
        int even[6] = {0}, fractions[6] = {0};
        for (uint64_t row = 0; row < 6000; row++) {
            even[bl_split_choose(BL_RULE_EVEN, &copies, NULL, 0, source, row)]++;
            fractions[bl_split_choose(BL_RULE_FRACTIONS, &copies, own, 0, source, row)]++;
        }
        assert_true(even[0] == 2000 && even[3] == 2000 && even[4] == 2000);
        assert_true(abs(fractions[0] - 4200) <= 5 && abs(fractions[3] - 600) <= 5 &&
                    abs(fractions[4] - 1200) <= 5);
    }
    bl_copies_free(&copies);
    bl_placement_free(&placement);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(contiguous_is_what_engines_start_with),
        cmocka_unit_test(uneven_and_masked_ranks),
        cmocka_unit_test(hard_rules_are_named),
        cmocka_unit_test(moves_are_copies_that_travel),
        cmocka_unit_test(json_form),
        cmocka_unit_test(choice_reproduces_shares),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
