/* SGLang's placement file: exact bytes, all checks, and back in again. */
#include "tests/support/support.h"

#include "core/io.h"
#include "planner/engines/sglang.h"

#include <stdlib.h>
#include <string.h>

static bl_plan plan_of(const char *layers, int n_ranks, const char *rest) {
    char text[2048];
    bl_error err;
    bl_plan plan = {0};
    json_t *root;
    snprintf(text, sizeof text,
             "{\"format\":\"ballast-plan\",\"version\":1,\"model\":{\"name\":\"toy\",\"experts\":3,"
             "\"top_k\":1%s},\"ranks\":%d,\"epoch\":0,\"layers\":[%s]}",
             rest, n_ranks, layers);
    assert_ok(bl_json_parse(text, strlen(text), "plan", &root, &err));
    assert_ok(bl_plan_from_json(root, "plan", &plan, &err));
    json_decref(root);
    return plan;
}

/* Decoder layers 0, 1, 2; layer 0 is dense. */
#define WHOLE                                                                                    \
    ",\"num_hidden_layers\":3,\"moe_layers\":[1,2],\"num_experts\":3,\"num_experts_per_tok\":1," \
    "\"hidden_size\":8,\"moe_intermediate_size\":8"
#define LAYERS "{\"layer\":1,\"slots\":[[0,1],[2,0]]},{\"layer\":2,\"slots\":[[2,0],[1,2]]}"

static void file_is_exact(void **state) {
    (void)state;
    bl_error err;
    bl_plan plan = plan_of(LAYERS, 2, WHOLE);
    bl_sglang_start start;
    const char *path = bl_test_temp("map.json");
    char *text;
    size_t bytes;
    assert_ok(bl_sglang_write(&plan, path, &start, &err));
    assert_ok(bl_read_file(path, 4096, &text, &bytes, &err));
    /* The dense row is slot mod experts. */
    assert_string_equal(text, "{\"physical_to_logical_map\":[[0,1,2,0],[0,1,2,0],[2,0,1,2]]}\n");
    assert_int_equal(start.ep_size, 2);
    assert_int_equal(start.redundant_experts, 1);
    assert_string_equal(start.dispatch, "dynamic");
    assert_int_equal(start.mtp_layers_left_out, 0);
    free(text);
    bl_plan_free(&plan);
}

static void what_the_format_cannot_hold_is_refused(void **state) {
    (void)state;
    bl_error err;
    bl_sglang_start start;
    static const struct {
        const char *layers, *part;
        int ranks, layer;
    } cases[] = {
        {"{\"layer\":1,\"slots\":[[0,1],[2]]},{\"layer\":2,\"slots\":[[0,1],[2]]}",
         "--redundant 1 (4 slots, 2 each)", 2, 1},
        {"{\"layer\":1,\"slots\":[[0,1],[2,0]]},{\"layer\":2,\"slots\":[[0,1,2],[2,1,0]]}",
         "rank 0 has 3 slots", 2, 2},
        {"{\"layer\":1,\"slots\":[[0,1],[2,0]]},{\"layer\":2,\"slots\":[[0,1],[2,-1]]}",
         "empty slot", 2, 2},
        {"{\"layer\":1,\"slots\":[[0,1,2],[]]},{\"layer\":2,\"slots\":[[0,1,2],[]]}",
         "rank 1 has 0 slots", 2, 1},
    };
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        bl_plan plan = plan_of(cases[c].layers, cases[c].ranks, WHOLE);
        assert_fails(bl_sglang_check(&plan, &start, &err), BL_ERR_SHAPE, cases[c].part);
        assert_int_equal(err.layer, cases[c].layer);
        bl_plan_free(&plan);
    }
    bl_plan plan = plan_of(LAYERS, 2, "");
    assert_fails(bl_sglang_check(&plan, &start, &err), BL_ERR_MODEL, "--model");
    bl_plan_free(&plan);
}

static bl_status read_map(const char *text, const bl_model *model, int n_ranks, bl_placement *out,
                          int *duplicates, bl_error *err) {
    json_t *root;
    BL_TRY(bl_json_parse(text, strlen(text), "map", &root, err));
    assert_true(bl_sglang_is_map(root));
    const bl_status st = bl_sglang_read(root, "map", model, n_ranks, out, duplicates, err);
    json_decref(root);
    return st;
}

#define MAP(rows) "{\"physical_to_logical_map\":[" rows "]}"

static void comes_back_as_it_went(void **state) {
    (void)state;
    bl_error err;
    bl_plan plan = plan_of(LAYERS, 2, WHOLE), again;
    bl_sglang_start start;
    bl_placement placement;
    int duplicates = -1;
    const char *path = bl_test_temp("there.json");
    char *text;
    size_t bytes;
    assert_ok(bl_sglang_write(&plan, path, &start, &err));
    assert_ok(bl_read_file(path, 4096, &text, &bytes, &err));
    assert_ok(read_map(text, &plan.model, 2, &placement, &duplicates, &err));
    assert_int_equal(duplicates, 0);
    assert_ok(bl_plan_create(&plan.model, &placement, &again, &err));
    assert_null(placement.layers);
    assert_string_equal(again.digest.hex, plan.digest.hex);
    free(text);
    bl_plan_free(&plan);
    bl_plan_free(&again);
}

static void a_second_copy_on_a_rank_is_emptied(void **state) {
    (void)state;
    bl_error err;
    bl_plan plan = plan_of(LAYERS, 2, WHOLE);
    bl_placement placement;
    int duplicates = 0;
    assert_ok(read_map(MAP("[0,0,0,0],[0,0,1,2],[0,1,2,0]"), &plan.model, 2, &placement,
                       &duplicates, &err));
    assert_int_equal(duplicates, 1);
    assert_int_equal(placement.layers[0].expert[0], 0);
    assert_int_equal(placement.layers[0].expert[1], BL_NO_EXPERT);
    bl_placement_free(&placement);
    bl_plan_free(&plan);
}

static void hostile_maps_are_refused(void **state) {
    (void)state;
    bl_error err;
    static const struct {
        const char *text;
        bl_status code;
        const char *part;
    } cases[] = {
        {"{\"physical_to_logical_map\":7}", BL_ERR_PARSE, "an array"},
        {MAP("[0,1,2,0],[0,1,2,0]"), BL_ERR_SHAPE, "2 rows, but toy has 3"},
        {MAP("[0,1,2,0],[0,1,2,0],[0,1,2,0],[0,1,2,0]"), BL_ERR_SHAPE, "4 rows"},
        {MAP("[],[0,1,2],[0,1,2]"), BL_ERR_SHAPE, "3 slots do not divide over 2 ranks"},
        {MAP("[],[],[]"), BL_ERR_SHAPE, "0 slots"},
        {MAP("[],[0,1,2,0],[0,1,2]"), BL_ERR_SHAPE, "has 3 slots"},
        {MAP("[],[0,1,2,0],7"), BL_ERR_SHAPE, "0 slots"},
        {MAP("[],[0,1,2,-1],[0,1,2,0]"), BL_ERR_RANGE, "slot 3"},
        {MAP("[],[0,1,2,3],[0,1,2,0]"), BL_ERR_RANGE, "[0, 3)"},
        {MAP("[],[0,1,2,1.0],[0,1,2,0]"), BL_ERR_RANGE, "slot 3"},
        {MAP("[],[0,1,0,1],[0,1,2,0]"), BL_ERR_INFEASIBLE, "expert 2 has no slot"},
    };
    bl_plan plan = plan_of(LAYERS, 2, WHOLE);
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        bl_placement placement;
        assert_fails(read_map(cases[c].text, &plan.model, 2, &placement, NULL, &err), cases[c].code,
                     cases[c].part);
    }
    bl_plan_free(&plan);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(file_is_exact),
        cmocka_unit_test(what_the_format_cannot_hold_is_refused),
        cmocka_unit_test(comes_back_as_it_went),
        cmocka_unit_test(a_second_copy_on_a_rank_is_emptied),
        cmocka_unit_test(hostile_maps_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
