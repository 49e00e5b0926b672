/* The plan file: round trip, digest, and what is refused. */
#include "tests/support/support.h"

#include "core/hash.h"
#include "core/io.h"
#include "planner/plan.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* 2 layers (1 and 2 of 3), 4 experts, 2 ranks of 3 slots. */
#define MODEL                                                                             \
    "\"model\":{\"name\":\"toy\",\"experts\":4,\"top_k\":2,\"num_hidden_layers\":3,"      \
    "\"moe_layers\":[1,2],\"num_experts\":4,\"num_experts_per_tok\":2,\"hidden_size\":8," \
    "\"moe_intermediate_size\":16}"
#define LAYER1 "{\"layer\":1,\"slots\":[[0,1,2],[3,0,1]],\"split\":{\"rule\":\"even\"}}"
#define LAYER2 "{\"layer\":2,\"slots\":[[0,1,2],[2,3,-1]],\"split\":{\"rule\":\"even\"}}"
#define PLAN(head, layers)                                                         \
    "{\"format\":\"ballast-plan\",\"version\":1," head ",\"ranks\":2,\"epoch\":5," \
    "\"layers\":[" layers "],\"provenance\":{\"seed\":1}}"
#define GOOD PLAN(MODEL, LAYER1 "," LAYER2)

static bl_status parse(const char *text, bl_plan *plan, bl_error *err) {
    json_t *root;
    BL_TRY(bl_json_parse(text, strlen(text), "p.json", &root, err));
    const bl_status st = bl_plan_from_json(root, "p.json", plan, err);
    json_decref(root);
    return st;
}

static bl_plan parsed(const char *text) {
    bl_error err;
    bl_plan plan = {0};
    assert_ok(parse(text, &plan, &err));
    return plan;
}

static char *file_text(const char *path) {
    bl_error err;
    char *text = NULL;
    size_t bytes = 0;
    assert_ok(bl_read_file(path, 1 << 20, &text, &bytes, &err));
    return text;
}

static void round_trip(void **state) {
    (void)state;
    bl_error err;
    bl_plan plan = parsed(GOOD), back = {0};
    plan.layers[0] = (bl_plan_layer){.scored = true,
                                     .score = {1.25, 1.5},
                                     .bound = {1.125, "slot"},
                                     .time = {70.5, 60.25, "active"},
                                     .gap = 1.25 / 1.125 - 1,
                                     .declined = 0.0125};
    const char *path = bl_test_temp("a.plan.json"), *again = bl_test_temp("b.plan.json");
    assert_ok(bl_plan_save(&plan, path, &err));
    assert_ok(bl_plan_load(path, &back, &err));
    assert_string_equal(back.model_name, "toy");
    assert_int_equal(back.n_experts, 4);
    assert_int_equal(back.top_k, 2);
    assert_int_equal(back.model.n_layers, 3);
    assert_int_equal(back.epoch, 5);
    assert_int_equal(back.placement.n_ranks, 2);
    assert_int_equal(back.placement.layers[1].layer, 2);
    assert_int_equal(back.placement.layers[1].epoch, 5);
    assert_int_equal(back.placement.layers[1].expert[4], 3);
    assert_int_equal(back.placement.layers[1].expert[5], BL_NO_EXPERT);
    assert_true(back.layers[0].scored);
    assert_true(back.layers[0].score.max_over_mean == 1.25 && back.layers[0].score.worst == 1.5);
    assert_true(back.layers[0].bound.max_over_mean == 1.125);
    assert_string_equal(back.layers[0].bound.kind, "slot");
    assert_true(fabs(back.layers[0].gap - 1.0 / 9.0) < 1e-11);
    assert_true(fabs(back.layers[0].declined - 0.0125) < 1e-11);
    assert_true(back.layers[1].declined == 0.0);
    assert_true(fabs(back.layers[0].time.step_us - 70.5) < 1e-9);
    assert_true(fabs(back.layers[0].time.bound_us - 60.25) < 1e-9);
    assert_string_equal(back.layers[0].time.kind, "active");
    assert_false(back.layers[1].scored);
    assert_string_equal(back.digest.hex, plan.digest.hex);
    assert_int_equal(json_integer_value(json_object_get(back.provenance, "seed")), 1);
    assert_ok(bl_plan_save(&back, again, &err));
    char *first = file_text(path), *second = file_text(again);
    assert_string_equal(first, second);
    free(first);
    free(second);
    bl_plan_free(&plan);
    bl_plan_free(&back);
}

/* The keys of the file contract, by name. */
static void file_has_the_contract_keys(void **state) {
    (void)state;
    bl_plan plan = parsed(GOOD);
    plan.layers[0] =
        (bl_plan_layer){.scored = true, .score = {1.5, 1.5}, .bound = {1.0, "mean"}, .gap = 0.5};
    json_t *root = bl_plan_to_json(&plan);
    const char *format, *name, *rule, *kind, *digest;
    int version, experts, top_k, ranks, epoch, layer;
    double score, bound, gap;
    json_t *slots, *provenance;
    assert_int_equal(json_unpack(root,
                                 "{s:s, s:i, s:{s:s, s:i, s:i}, s:i, s:i, "
                                 "s:[{s:i, s:o, s:{s:s}, s:{s:f}, s:{s:f, s:s}, s:f}], s:o, s:s}",
                                 "format", &format, "version", &version, "model", "name", &name,
                                 "experts", &experts, "top_k", &top_k, "ranks", &ranks, "epoch",
                                 &epoch, "layers", "layer", &layer, "slots", &slots, "split",
                                 "rule", &rule, "score", "max_over_mean", &score, "bound",
                                 "max_over_mean", &bound, "kind", &kind, "gap", &gap, "provenance",
                                 &provenance, "digest", &digest),
                     0);
    assert_string_equal(format, "ballast-plan");
    assert_int_equal(version, 1);
    assert_int_equal(experts * 100 + top_k * 10 + ranks, 422);
    assert_int_equal(json_array_size(slots), 2);
    assert_string_equal(rule, "even");
    assert_string_equal(kind, "mean");
    assert_int_equal(strlen(digest), 32);
    json_decref(root);
    bl_plan_free(&plan);
}

static void digest_covers_model_rank_sets_and_split_only(void **state) {
    (void)state;
    bl_plan plan = parsed(GOOD);
    const bl_digest digest = plan.digest;
    int32_t *slots = plan.placement.layers[0].expert;
    plan.epoch = 77;
    plan.layers[1].scored = true;
    json_object_set_new(plan.provenance, "seed", json_integer(9));
    slots[0] = 2, slots[2] = 0; /* another order on the same rank */
    assert_string_equal(bl_plan_digest(&plan).hex, digest.hex);
    slots[0] = 3, slots[3] = 2; /* another rank set */
    assert_string_not_equal(bl_plan_digest(&plan).hex, digest.hex);
    slots[0] = 2, slots[3] = 3;
    assert_string_equal(bl_plan_digest(&plan).hex, digest.hex);
    plan.top_k = 1;
    assert_string_not_equal(bl_plan_digest(&plan).hex, digest.hex);
    plan.top_k = 2;
    plan.model_name[0] = 'T';
    assert_string_not_equal(bl_plan_digest(&plan).hex, digest.hex);
    plan.model_name[0] = 't';
    plan.placement.layers[0].layer = 0;
    assert_string_not_equal(bl_plan_digest(&plan).hex, digest.hex);
    plan.placement.layers[0].layer = 1;
    plan.rule = BL_RULE_NEAREST;
    assert_string_not_equal(bl_plan_digest(&plan).hex, digest.hex);
    bl_plan_free(&plan);
}

/* The digest's recipe, written out once more from its description. */
static void digest_is_as_documented(void **state) {
    (void)state;
    bl_plan plan = parsed(PLAN("\"model\":{\"name\":\"ab\",\"experts\":2,\"top_k\":1}",
                               "{\"layer\":4,\"slots\":[[1,0],[-1,1]]}"));
    const int64_t numbers[] = {2, 1, 2, 1, 0, 4, 2, 0, 1, 1, 1};
    unsigned char bytes[14 + 8 + 2 + sizeof numbers];
    unsigned char *at = bytes;
    memcpy(at, "ballast-plan 1", 14), at += 14;
    memset(at, 0, 8), at[0] = 2, at += 8;
    memcpy(at, "ab", 2), at += 2;
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        memset(at, 0, 8);
        at[0] = (unsigned char)numbers[i];
        at += 8;
    }
    assert_int_equal(at - bytes, sizeof bytes);
    assert_string_equal(plan.digest.hex, bl_digest_of(bytes, sizeof bytes).hex);
    bl_plan_free(&plan);
}

static void fractions_survive(void **state) {
    (void)state;
    bl_error err;
    bl_plan plan =
        parsed(PLAN("\"model\":{\"name\":\"x\",\"experts\":2,\"top_k\":1}",
                    "{\"layer\":0,\"slots\":[[0,1],[1,-1]],"
                    "\"split\":{\"rule\":\"fractions\",\"fractions\":[[1,0.3333333333333333],"
                    "[0.6666666666666667,0]]}}"));
    assert_int_equal(plan.rule, BL_RULE_FRACTIONS);
    assert_true(fabs(plan.layers[0].share[1] - 1.0 / 3.0) < 1e-15);
    const char *path = bl_test_temp("fractions.plan.json");
    bl_plan back = {0};
    assert_ok(bl_plan_save(&plan, path, &err));
    assert_ok(bl_plan_load(path, &back, &err));
    assert_string_equal(back.digest.hex, plan.digest.hex);
    assert_true(fabs(back.layers[0].share[2] - 2.0 / 3.0) < 1e-11);
    back.layers[0].share[1] = 0.4;
    assert_string_not_equal(bl_plan_digest(&back).hex, plan.digest.hex);
    bl_plan_free(&plan);
    bl_plan_free(&back);
}

static void refusals(void **state) {
    (void)state;
    static const struct {
        const char *text;
        bl_status code;
        const char *part;
        int layer, expert;
    } cases[] = {
        {"[]", BL_ERR_PARSE, "JSON object", -1, -1},
        {"{}", BL_ERR_PARSE, "\"format\" is missing", -1, -1},
        {"{\"format\":\"other\"}", BL_ERR_VERSION, "\"other\"", -1, -1},
        {"{\"format\":\"ballast-plan\",\"version\":2}", BL_ERR_VERSION, "version 2", -1, -1},
        {"{\"format\":\"ballast-plan\",\"version\":\"1\"}", BL_ERR_PARSE, "an integer", -1, -1},
        {"{\"format\":\"ballast-plan\",\"format\":\"ballast-plan\",\"version\":1}", BL_ERR_PARSE,
         "duplicate", -1, -1},
        {PLAN(MODEL, LAYER1), BL_ERR_MODEL, "leaves it out", 2, -1},
        {PLAN(MODEL, LAYER2 "," LAYER1), BL_ERR_PARSE, "ascend", 1, -1},
        {PLAN(MODEL, LAYER1 "," LAYER1), BL_ERR_PARSE, "ascend", 1, -1},
        {PLAN(MODEL, LAYER1 ",{\"layer\":0,\"slots\":[[0,1],[2,3]]}"), BL_ERR_PARSE, "ascend", 0,
         -1},
        {PLAN(MODEL, "{\"layer\":0,\"slots\":[[0,1],[2,3]]}," LAYER1), BL_ERR_MODEL,
         "not a MoE layer", 0, -1},
        {PLAN(MODEL, LAYER1 ",{\"layer\":2,\"slots\":[[0,1,2],[0,1,2]]}"), BL_ERR_INFEASIBLE,
         "expert 3 has no slot", 2, 3},
        {PLAN(MODEL, LAYER1 ",{\"layer\":2,\"slots\":[[0,1,1],[2,3]]}"), BL_ERR_INFEASIBLE,
         "rank 0 holds it twice", 2, 1},
        {PLAN(MODEL, LAYER1 ",{\"layer\":2,\"slots\":[[0,1,4],[2,3]]}"), BL_ERR_RANGE,
         "expert 4 is not in [0, 4)", 2, -1},
        {PLAN(MODEL, LAYER1 ",{\"layer\":2,\"slots\":[[0,1,2.5],[2,3]]}"), BL_ERR_PARSE,
         "expert id", 2, -1},
        {PLAN(MODEL, LAYER1 ",{\"layer\":2,\"slots\":[[0,1,2,3]]}"), BL_ERR_SHAPE, "1 ranks", 2,
         -1},
        {PLAN(MODEL, ""), BL_ERR_PARSE, "at least one layer", -1, -1},
        {PLAN("\"model\":{\"name\":\"x\",\"experts\":0,\"top_k\":1}", LAYER1), BL_ERR_RANGE,
         "\"experts\" is 0", -1, -1},
        {PLAN("\"model\":{\"name\":\"x\",\"experts\":4,\"top_k\":5}", LAYER1), BL_ERR_RANGE,
         "\"top_k\" is 5", -1, -1},
        {PLAN("\"model\":{\"name\":\"a\\u001b[31m\",\"experts\":4,\"top_k\":1}", LAYER1),
         BL_ERR_PARSE, "control character", -1, -1},
        {PLAN("\"model\":{\"name\":\"x\",\"experts\":1e99,\"top_k\":1}", LAYER1), BL_ERR_PARSE,
         "an integer", -1, -1},
        {PLAN("\"model\":{\"name\":\"toy\",\"experts\":4,\"top_k\":1,\"num_hidden_layers\":3,"
              "\"moe_layers\":[1],\"num_experts\":4,\"num_experts_per_tok\":2,\"hidden_size\":8,"
              "\"moe_intermediate_size\":16}",
              LAYER1),
         BL_ERR_MODEL, "contradicts itself", -1, -1},
        {PLAN(MODEL, LAYER1 ",{\"layer\":2,\"slots\":[[0,1],[2,3]],\"split\":{\"rule\":\"odd\"}}"),
         BL_ERR_PARSE, "\"odd\" is not known", 2, -1},
        {PLAN(MODEL,
              LAYER1 ",{\"layer\":2,\"slots\":[[0,1],[2,3]],\"split\":{\"rule\":\"fixed\"}}"),
         BL_ERR_UNSUPPORTED, "one rule", 2, -1},
        {PLAN(MODEL, LAYER1 ",{\"layer\":2,\"slots\":[[0,1],[2,3]],\"score\":{\"max_over_mean\":"
                            "-1}}"),
         BL_ERR_RANGE, "max_over_mean", 2, -1},
        {PLAN(MODEL, LAYER1 ",{\"layer\":2,\"slots\":[[0,1],[2,3]],\"score\":{\"max_over_mean\":"
                            "NaN}}"),
         BL_ERR_PARSE, "column", -1, -1},
        {PLAN("\"model\":{\"name\":\"x\",\"experts\":2,\"top_k\":1}",
              "{\"layer\":0,\"slots\":[[0,1],[1]],\"split\":{\"rule\":\"fractions\","
              "\"fractions\":[[1,0.3],[0.6]]}}"),
         BL_ERR_RANGE, "sum to 0.9", 0, 1},
        {PLAN("\"model\":{\"name\":\"x\",\"experts\":2,\"top_k\":1}",
              "{\"layer\":0,\"slots\":[[0,1],[1]],\"split\":{\"rule\":\"fractions\","
              "\"fractions\":[[1,-0.5],[1.5]]}}"),
         BL_ERR_RANGE, "[0, 1]", 0, -1},
        {PLAN("\"model\":{\"name\":\"x\",\"experts\":2,\"top_k\":1}",
              "{\"layer\":0,\"slots\":[[0,1],[1]],\"split\":{\"rule\":\"fractions\","
              "\"fractions\":[[1,1]]}}"),
         BL_ERR_SHAPE, "1 ranks", 0, -1},
        {PLAN("\"model\":{\"name\":\"x\",\"experts\":2,\"top_k\":1}",
              "{\"layer\":0,\"slots\":[[0,1],[1]],\"split\":{\"rule\":\"fractions\","
              "\"fractions\":[[1],[1]]}}"),
         BL_ERR_SHAPE, "do not mirror", 0, -1},
    };
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        bl_plan plan = {0};
        bl_error err = BL_ERROR_INIT;
        const bl_status st = parse(cases[c].text, &plan, &err);
        if (st != cases[c].code || strstr(err.text, cases[c].part) == NULL ||
            err.layer != cases[c].layer || err.expert != cases[c].expert)
            fail_msg("case %zu: %s, layer %d, expert %d: %s", c, bl_status_name(st), err.layer,
                     err.expert, err.text);
        assert_null(plan.layers);
    }
}

static void message_names_layer_and_expert(void **state) {
    (void)state;
    bl_plan plan;
    char text[256];
    bl_error err = BL_ERROR_INIT;
    parse(PLAN(MODEL, LAYER1 ",{\"layer\":2,\"slots\":[[0,1],[2,2]]}"), &plan, &err);
    bl_error_format(&err, text, sizeof text);
    bl_test_has(text, "p.json: layer 2: expert 2: rank 1 holds it twice");
    err = BL_ERROR_INIT;
    parse(PLAN(MODEL, LAYER1 ",{\"layer\":2,\"slots\":[[0,1],[2]]}"), &plan, &err);
    bl_error_format(&err, text, sizeof text);
    assert_string_equal(text, "p.json: layer 2: expert 3 has no slot");
}

/* Every cut of a saved plan is refused, and so is every change of an id. */
static void damage_is_noticed(void **state) {
    (void)state;
    bl_error err;
    bl_plan plan = parsed(GOOD), back;
    const char *path = bl_test_temp("whole.plan.json");
    assert_ok(bl_plan_save(&plan, path, &err));
    char *text = file_text(path);
    const size_t bytes = strlen(text);
    for (size_t cut = 0; cut + 2 < bytes; cut++) { /* the last bytes are "}\n" */
        char *part = strndup(text, cut);
        err = BL_ERROR_INIT;
        assert_true(parse(part, &back, &err) < 0);
        assert_true(err.text[0] != '\0');
        free(part);
    }
    char *slots = strstr(text, "[0,1,2],[3,0,1]");
    assert_non_null(slots);
    memcpy(slots, "[0,1,2],[3,0,2]", 15); /* still a valid placement */
    assert_fails(parse(text, &back, &err), BL_ERR_CHECKSUM, "does not match");
    memcpy(slots, "[2,1,0],[3,0,1]", 15); /* order is not content */
    assert_ok(parse(text, &back, &err));
    bl_plan_free(&back);
    free(text);
    bl_plan_free(&plan);
}

static void unknown_keys_are_ignored(void **state) {
    (void)state;
    bl_plan plan =
        parsed("{\"format\":\"ballast-plan\",\"version\":1,\"later\":[1],"
               "\"model\":{\"name\":\"x\",\"experts\":2,\"top_k\":1,\"shade\":\"red\"},"
               "\"ranks\":1,\"layers\":[{\"layer\":7,\"slots\":[[1,0]],\"note\":null}]}");
    assert_int_equal(plan.epoch, 0);
    assert_int_equal(plan.model.n_layers, 0);
    assert_int_equal(plan.rule, BL_RULE_EVEN);
    assert_int_equal(plan.placement.layers[0].layer, 7);
    bl_plan_free(&plan);
}

static void comparable_names_the_difference(void **state) {
    (void)state;
    bl_error err;
    bl_plan a = parsed(GOOD), b = parsed(GOOD);
    assert_ok(bl_plan_comparable(&a, "a", &b, "b", &err));
    b.placement.layers[1].layer = 3;
    assert_fails(bl_plan_comparable(&a, "a", &b, "b", &err), BL_ERR_MODEL, "only in a");
    assert_int_equal(err.layer, 2);
    b.placement.layers[1].layer = 2;
    b.placement.n_layers = 1;
    assert_fails(bl_plan_comparable(&a, "a", &b, "b", &err), BL_ERR_MODEL, "1 layers");
    b.placement.n_layers = 2;
    b.placement.n_ranks = 3;
    assert_fails(bl_plan_comparable(&a, "a", &b, "b", &err), BL_ERR_SHAPE, "3 ranks");
    b.placement.n_ranks = 2;
    b.model_name[0] = 'b';
    assert_fails(bl_plan_comparable(&a, "a", &b, "b", &err), BL_ERR_MODEL, "boy");
    bl_plan_free(&a);
    bl_plan_free(&b);
}

static void steps_come_from_provenance(void **state) {
    (void)state;
    int64_t first = -1, end = -1;
    bl_plan plan = parsed(GOOD);
    assert_false(bl_plan_steps(&plan, &first, &end));
    json_object_set_new(plan.provenance, "steps", json_pack("[i,i]", 3, 9));
    assert_true(bl_plan_steps(&plan, &first, &end));
    assert_true(first == 3 && end == 9);
    bl_plan_free(&plan);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(round_trip),
        cmocka_unit_test(file_has_the_contract_keys),
        cmocka_unit_test(digest_covers_model_rank_sets_and_split_only),
        cmocka_unit_test(digest_is_as_documented),
        cmocka_unit_test(fractions_survive),
        cmocka_unit_test(refusals),
        cmocka_unit_test(message_names_layer_and_expert),
        cmocka_unit_test(damage_is_noticed),
        cmocka_unit_test(unknown_keys_are_ignored),
        cmocka_unit_test(comparable_names_the_difference),
        cmocka_unit_test(steps_come_from_provenance),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
