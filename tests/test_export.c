/* Engines' placement files: exact bytes, all checks, and back in again. */
#include "tests/support/support.h"

#include "core/io.h"
#include "core/npy.h"
#include "core/rng.h"
#include "planner/engines/current.h"
#include "planner/engines/engine.h"

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

static const bl_engine *engine_of(const char *name) {
    for (const bl_engine *const *e = bl_engines; *e != NULL; e++) {
        if (strcmp((*e)->name, name) == 0)
            return *e;
    }
    fail_msg("no engine %s", name);
    return NULL;
}

/* Write the toy plan for an engine and give the path. */
static const char *exported(const bl_engine *engine, const bl_plan *plan, const char *name,
                            bl_export *x) {
    bl_error err;
    const char *path = bl_test_temp(name);
    assert_ok(bl_export_write(engine, plan, path, x, &err));
    return path;
}

/* ---- out --------------------------------------------------------------------------------------*/

#define YAML_FILE                   \
    "num_slots: 4\n"                \
    "initial_global_assignments:\n" \
    "  1: [0, 1, 2, 0]\n"           \
    "  2: [2, 0, 1, 2]\n"           \
    "layer_updates_per_iter: 0\n"
#define ASCEND_LAYER(id, a, b)                                                    \
    "{\"layer_id\":" #id ",\"device_count\":2,\"device_list\":[{\"device_id\":0," \
    "\"device_expert\":" a "},{\"device_id\":1,\"device_expert\":" b "}]}"
#define ASCEND_FILE(rest)                                                                         \
    "{\"moe_layer_count\":2,\"layer_list\":[" ASCEND_LAYER(0, "[0,1]", "[2,0]") "," ASCEND_LAYER( \
        1, "[2,0]", "[1,2]") rest "]}"

#define RECORD(rows)                                                                       \
    "{\"record_type\":\"eplb_initial_mapping\",\"version\":1,\"num_redundant_experts\":1," \
    "\"num_slots\":4,\"initial_global_assignments\":{" rows "}}"

static void files_are_exact(void **state) {
    (void)state;
    static const struct {
        const char *engine, *text;
    } cases[] = {
        /* The dense row is slot mod experts. */
        {"sglang", "{\"physical_to_logical_map\":[[0,1,2,0],[0,1,2,0],[2,0,1,2]]}\n"},
        {"trtllm", YAML_FILE},
        {"vllm-ascend", ASCEND_FILE("") "\n"},
        {"eplb", "{\"phy2log\":[[0,1,2,0],[2,0,1,2]],"
                 "\"log2phy\":[[[0,3],[1,-1],[2,-1]],[[1,-1],[2,-1],[0,3]]],"
                 "\"logcnt\":[[2,1,1],[1,1,2]]}\n"},
        {"vllm-patched", "[[0,1,2,0],[2,0,1,2]]\n"},
        {"vllm-offline", RECORD("\"0\":[0,1,2,0],\"1\":[2,0,1,2]") "\n"},
    };
    bl_plan plan = plan_of(LAYERS, 2, WHOLE);
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        bl_error err;
        bl_export x;
        char *text;
        size_t bytes;
        const char *path = exported(engine_of(cases[c].engine), &plan, "exact", &x);
        assert_ok(bl_read_file(path, 4096, &text, &bytes, &err));
        assert_string_equal(text, cases[c].text);
        assert_int_equal(x.n_ranks, 2);
        assert_int_equal(x.n_slots, 4);
        assert_int_equal(x.slots_per_rank, 2);
        assert_int_equal(x.n_redundant, 1);
        assert_int_equal(x.max_copies, 2);
        free(text);
    }
    bl_plan_free(&plan);
}

/* The engine asks for multi-token-prediction layers too, behind the last decoder layer. */
static void the_start_layout_stands_for_layers_not_planned(void **state) {
    (void)state;
    bl_error err;
    bl_export x;
    char *text;
    size_t bytes;
    bl_plan plan = plan_of(LAYERS, 2, WHOLE);
    plan.model.n_mtp_layers = 2;
    const char *path = exported(&bl_engine_trtllm, &plan, "mtp.yaml", &x);
    assert_ok(bl_read_file(path, 4096, &text, &bytes, &err));
    bl_test_has(text, "  2: [2, 0, 1, 2]\n  3: [0, 1, 2, 0]\n  4: [0, 1, 2, 0]\nlayer_updates");
    free(text);
    bl_plan_free(&plan);
}

static void check_array(const char *path, int item_bytes, int n_dims, const size_t *shape,
                        const int *items) {
    bl_error err;
    bl_npy npy;
    assert_ok(bl_npy_load(path, &npy, &err));
    assert_int_equal(npy.kind, 'i');
    assert_int_equal(npy.item_bytes, item_bytes);
    assert_int_equal(npy.n_dims, n_dims);
    for (int d = 0; d < n_dims; d++)
        assert_int_equal(npy.shape[d], shape[d]);
    for (size_t i = 0; i < npy.n_items; i++)
        assert_int_equal(bl_npy_int(&npy, i), items[i]);
    bl_npy_free(&npy);
}

static void arrays_are_exact(void **state) {
    (void)state;
    bl_export x;
    bl_plan plan = plan_of(LAYERS, 2, WHOLE);
    /* [rank][layer][expert] */
    check_array(exported(&bl_engine_omni, &plan, "pattern.npy", &x), 4, 3, (size_t[]){2, 2, 3},
                (int[]){1, 1, 0, 1, 0, 1, 1, 0, 1, 0, 1, 1});
    check_array(exported(&bl_engine_eplb, &plan, "phy2log.npy", &x), 8, 2, (size_t[]){2, 4},
                (int[]){0, 1, 2, 0, 2, 0, 1, 2});
    bl_plan_free(&plan);
}

static void what_no_engine_can_hold_is_refused(void **state) {
    (void)state;
    bl_error err;
    bl_export x;
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
    for (const bl_engine *const *e = bl_engines; *e != NULL; e++) {
        for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
            bl_plan plan = plan_of(cases[c].layers, cases[c].ranks, WHOLE);
            assert_fails(bl_export_check(*e, &plan, &x, &err), BL_ERR_SHAPE, cases[c].part);
            bl_test_has(err.text, (*e)->title);
            assert_int_equal(err.layer, cases[c].layer);
            bl_plan_free(&plan);
        }
        bl_plan plan = plan_of(LAYERS, 2, "");
        assert_fails(bl_export_check(*e, &plan, &x, &err), BL_ERR_MODEL, "--model");
        bl_plan_free(&plan);
    }
}

static void layers_are_those_of_the_model(void **state) {
    (void)state;
    bl_error err;
    bl_export x;
    bl_plan plan = plan_of(LAYERS, 2, WHOLE);
    plan.model.moe_layers[0] = 0;
    assert_fails(bl_export_check(&bl_engine_trtllm, &plan, &x, &err), BL_ERR_MODEL,
                 "is not a MoE layer of toy");
    assert_int_equal(err.layer, 1);
    plan.model.moe_layers[0] = 1;
    plan.placement.n_layers = 1;
    assert_fails(bl_export_check(&bl_engine_trtllm, &plan, &x, &err), BL_ERR_MODEL,
                 "the plan leaves it out");
    assert_int_equal(err.layer, 2);
    plan.placement.n_layers = 2;
    bl_plan_free(&plan);
}

/* The most copies of any expert in any layer: here of the first expert, in the first layer. */
static void most_copies_are_counted(void **state) {
    (void)state;
    bl_error err;
    bl_export x;
    bl_plan plan = plan_of("{\"layer\":1,\"slots\":[[0,1],[2,0],[1,0]]},"
                           "{\"layer\":2,\"slots\":[[2,0],[1,2],[0,1]]}",
                           3, WHOLE);
    assert_ok(bl_export_check(&bl_engine_eplb, &plan, &x, &err));
    assert_int_equal(x.max_copies, 3);
    assert_int_equal(x.n_redundant, 3);
    bl_plan_free(&plan);
}

/* What is told of a file F; the caller frees it. */
static char *told(const bl_engine *engine, const bl_plan *plan) {
    bl_error err;
    bl_export x;
    char *text;
    size_t bytes;
    const char *path = bl_test_temp("told");
    assert_ok(bl_export_check(engine, plan, &x, &err));
    FILE *out = fopen(path, "w");
    assert_non_null(out);
    bl_export_tell(engine, &x, "F", out);
    fclose(out);
    assert_ok(bl_read_file(path, 4096, &text, &bytes, &err));
    return text;
}

/* What is told about the start: the numbers an engine must be given, and where it will differ. */
static void starts_are_told(void **state) {
    (void)state;
    static const struct {
        const char *engine, *part, *other;
    } cases[] = {
        {"sglang",
         "--init-expert-location F --ep-size 2 --ep-num-redundant-experts 1 "
         "--ep-dispatch-algorithm dynamic",
         "SGLang serves copies by the rule nearest"},
        {"trtllm", "--ep_size 2", "moe_config: {load_balancer: F}"},
        {"vllm-ascend", "{\"expert_map_path\": \"F\"}", "by the rule fixed"},
        {"omni", "pattern_path: F", "2 experts per rank and 2 copies of one"},
        {"eplb", "num_replicas 4, num_gpus 2",
         "row 0 is decoder layer 1, the last of 2 rows layer 2"},
        {"vllm-patched", "needs a patched vLLM, with pull request #49572",
         "{\"num_redundant_experts\": 1, \"initial_expert_map_path\": \"F\"}"},
        {"vllm-offline", "needs a patched vLLM, with pull request #41141",
         "\"initial_mapping_path\": \"F\", \"disable_online_rebalancing\": true}"},
    };
    bl_plan plan = plan_of(LAYERS, 2, WHOLE);
    plan.model.n_mtp_layers = 1;
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        const bl_engine *engine = engine_of(cases[c].engine);
        char *text = told(engine, &plan);
        bl_test_has(text, cases[c].part);
        bl_test_has(text, cases[c].other);
        bl_test_has(text, "the 1 multi-token-prediction layers of the model are not planned");
        bl_test_has(text, strcmp(cases[c].engine, "trtllm") == 0 ? "an engine starts with"
                                                                 : "no rows for them");
        /* Only where the rules differ. */
        assert_int_equal(strstr(text, "was made for the rule") != NULL,
                         engine->rule != BL_RULE_EVEN);
        free(text);
    }
    bl_plan_free(&plan);
}

static void fixed_copies_need_static_dispatch(void **state) {
    (void)state;
    static const struct {
        bl_rule rule;
        const char *dispatch;
    } cases[] = {{BL_RULE_EVEN, "algorithm dynamic"},
                 {BL_RULE_NEAREST, "algorithm static"},
                 {BL_RULE_FIXED, "algorithm static"}};
    bl_plan plan = plan_of(LAYERS, 2, WHOLE);
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        plan.rule = cases[c].rule;
        char *text = told(&bl_engine_sglang, &plan);
        bl_test_has(text, cases[c].dispatch);
        assert_int_equal(strstr(text, "was made for the rule") == NULL,
                         cases[c].rule == BL_RULE_NEAREST);
        free(text);
    }
    bl_plan_free(&plan);
}

/* ---- in ---------------------------------------------------------------------------------------*/

static void all_come_back_as_they_went(void **state) {
    (void)state;
    static const char *const names[] = {"back.json", "back.npy"};
    bl_plan plan = plan_of(LAYERS, 2, WHOLE);
    for (const bl_engine *const *e = bl_engines; *e != NULL; e++) {
        for (size_t n = 0; n < 2; n++) {
            bl_error err;
            bl_export x;
            bl_plan again;
            int duplicates = -1;
            const char *path = exported(*e, &plan, names[n], &x);
            assert_ok(bl_current_load(path, &plan.model, 2, &again, &duplicates, &err));
            assert_int_equal(duplicates, 0);
            assert_string_equal(again.digest.hex, plan.digest.hex);
            bl_plan_free(&again);
        }
    }
    bl_plan_free(&plan);
}

static bl_status read_text(const char *text, const bl_model *model, bl_plan *out, int *duplicates,
                           bl_error *err) {
    return bl_current_parse(text, strlen(text), "map", model, 2, out, duplicates, err);
}

#define DEEP_TEXT (62 * 256 + 64)

/* Rows of 64 experts; row r starts with expert r. */
static void write_rows(char *text, const char *before, int n_rows, const char *after) {
    char *at = text + sprintf(text, "%s", before);
    for (int row = 0; row < n_rows; row++) {
        at += sprintf(at, row > 0 ? ",[" : "[");
        for (int slot = 0; slot < 64; slot++)
            at += sprintf(at, "%s%d", slot > 0 ? "," : "", (row + slot) % 64);
        at += sprintf(at, "]");
    }
    sprintf(at, "%s", after);
}

/* Sixty-one decoder layers, the first three dense, one of multi-token prediction: what a file of 58,
 * 61 or 62 rows means depends on the engine, and each takes its own number only. */
static void rows_are_counted_as_the_engine_counts(void **state) {
    (void)state;
    static const struct {
        const char *before, *after;
        int accepted;
    } cases[] = {
        {"{\"physical_to_logical_map\":[", "]}", 61},
        {"[", "]", 58},
        {"{\"phy2log\":[", "]}", 58},
    };
    static const int counts[] = {58, 61, 62};
    int layers[58];
    for (int m = 0; m < 58; m++)
        layers[m] = 3 + m;
    const bl_model model = {.name = "deep",
                            .n_layers = 61,
                            .n_mtp_layers = 1,
                            .n_moe_layers = 58,
                            .moe_layers = layers,
                            .n_experts = 64,
                            .top_k = 1};
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        for (size_t n = 0; n < 3; n++) {
            bl_error err = BL_ERROR_INIT;
            bl_plan plan;
            int duplicates;
            char text[DEEP_TEXT];
            write_rows(text, cases[c].before, counts[n], cases[c].after);
            const bl_status st = read_text(text, &model, &plan, &duplicates, &err);
            if (counts[n] != cases[c].accepted) {
                assert_int_equal(st, BL_ERR_SHAPE);
                bl_test_has(err.text, "61 decoder layers");
                continue;
            }
            assert_int_equal(st, BL_OK);
            const bl_layer_placement *layer = bl_placement_layer(&plan.placement, 60);
            assert_int_equal(layer->expert[0], counts[n] == 61 ? 60 : 57);
            bl_plan_free(&plan);
        }
    }
}

static int below(bl_rng *rng, int n) {
    return (int)bl_rng_below(rng, (uint32_t)n);
}

/* A plan of random shape; `layers` has room for the model's layers. */
static bl_plan random_plan(bl_rng *rng, int layers[8]) {
    bl_error err;
    bl_plan plan;
    bl_placement placement;
    const int n_ranks = 1 + below(rng, 8), slots = 1 + below(rng, 9);
    const int n_experts = slots + below(rng, slots * (n_ranks - 1) + 1);
    const int n_layers = 1 + below(rng, 8);
    int n_moe = 0, per_rank[8];
    for (int layer = 0; layer < n_layers; layer++) {
        if (layer == n_layers - 1 || below(rng, 3) > 0)
            layers[n_moe++] = layer;
    }
    for (int rank = 0; rank < n_ranks; rank++)
        per_rank[rank] = slots;
    const bl_model model = {.name = "random",
                            .n_layers = n_layers,
                            .n_moe_layers = n_moe,
                            .moe_layers = layers,
                            .n_experts = n_experts,
                            .top_k = 1};
    assert_ok(bl_placement_create(n_ranks, n_experts, layers, n_moe, per_rank, &placement, &err));
    bl_placement_fill_contiguous(&placement);
    for (int l = 0; l < n_moe; l++) { /* other names for the experts: the rules still hold */
        const int shift = below(rng, n_experts);
        for (int slot = 0; slot < n_ranks * slots; slot++) {
            int32_t *expert = &placement.layers[l].expert[slot];
            assert_true(*expert >= 0);
            *expert = (*expert + shift) % n_experts;
        }
    }
    assert_ok(bl_plan_create(&model, &placement, &plan, &err));
    return plan;
}

/* Every slot comes back where it was; from omni-infer, whose slots have no order, every expert on
 * its rank. */
static void random_plans_come_back(void **state) {
    (void)state;
    bl_rng rng;
    bl_rng_seed(&rng, 11);
    for (int round = 0; round < 50; round++) {
        int layers[8];
        bl_plan plan = random_plan(&rng, layers);
        for (const bl_engine *const *e = bl_engines; *e != NULL; e++) {
            bl_error err;
            bl_export x;
            bl_plan again;
            int duplicates;
            const char *path = exported(*e, &plan, "random", &x);
            assert_ok(bl_current_load(path, &plan.model, x.n_ranks, &again, &duplicates, &err));
            assert_string_equal(again.digest.hex, plan.digest.hex);
            for (int l = 0; l < plan.placement.n_layers && *e != &bl_engine_omni; l++)
                assert_memory_equal(again.placement.layers[l].expert,
                                    plan.placement.layers[l].expert,
                                    (size_t)x.n_slots * sizeof(int32_t));
            bl_plan_free(&again);
        }
        bl_plan_free(&plan);
    }
}

#define MAP(rows) "{\"physical_to_logical_map\":[" rows "]}"
#define ROWS(text) "num_slots: 4\ninitial_global_assignments: {" text "}\n"

static void other_forms_are_read(void **state) {
    (void)state;
    static const char *const cases[] = {
        YAML_FILE,
        ROWS("2: [2,0,1,2], 1: [0,1,2,0]"),
        "# made by hand\n---\nlayer_updates_per_iter: 5\n" ROWS("1: [0,1,2,0], 2: [2,0,1,2]"),
        "{\"num_slots\":4,\"initial_global_assignments\":{\"1\":[0,1,2,0],\"2\":[2,0,1,2]}}",
        ASCEND_FILE(
            "," ASCEND_LAYER(2, "[0,1]", "[2,0]")), /* the third is multi-token prediction */
        "{\"phy2log\":[[0,1,2,0],[2,0,1,2]]}",
        ROWS("1: [0,1,2,0], 2: [2,0,1,2], 3: [0,1,2,0]"), /* so is the last */
    };
    bl_plan plan = plan_of(LAYERS, 2, WHOLE);
    plan.model.n_mtp_layers = 1;
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        bl_error err;
        bl_plan again;
        int duplicates;
        assert_ok(read_text(cases[c], &plan.model, &again, &duplicates, &err));
        assert_string_equal(again.digest.hex, plan.digest.hex);
        bl_plan_free(&again);
    }
    bl_plan_free(&plan);
}

static void one_row_stands_for_all_layers(void **state) {
    (void)state;
    bl_error err;
    bl_plan plan = plan_of(LAYERS, 2, WHOLE), again;
    int duplicates;
    assert_ok(read_text("[1,0,2,1]", &plan.model, &again, &duplicates, &err));
    for (int l = 0; l < 2; l++) {
        const int32_t want[] = {1, 0, 2, 1};
        assert_memory_equal(again.placement.layers[l].expert, want, sizeof want);
    }
    bl_plan_free(&again);
    bl_plan_free(&plan);
}

static void a_second_copy_on_a_rank_is_emptied(void **state) {
    (void)state;
    bl_error err;
    static const char *const cases[] = {
        MAP("[0,0,0,0],[0,0,1,2],[0,1,2,0]"),
        ROWS("1: [0,0,1,2], 2: [0,1,2,0]"),
        "[[0,0,1,2],[0,1,2,0]]",
    };
    bl_plan plan = plan_of(LAYERS, 2, WHOLE), again;
    int duplicates = 0;
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        assert_ok(read_text(cases[c], &plan.model, &again, &duplicates, &err));
        assert_int_equal(duplicates, 1);
        assert_int_equal(again.placement.layers[0].expert[0], 0);
        assert_int_equal(again.placement.layers[0].expert[1], BL_NO_EXPERT);
        bl_plan_free(&again);
    }
    assert_fails(read_text("{\"moe_layer_count\":2,\"layer_list\":[" ASCEND_LAYER(
                               0, "[0,0]", "[1,2]") "," ASCEND_LAYER(1, "[0,1]", "[2,0]") "]}",
                           &plan.model, &again, &duplicates, &err),
                 BL_ERR_PARSE, "rank 0 holds expert 0 twice, which vllm-ascend refuses");
    bl_plan_free(&plan);
}

typedef struct hostile {
    const char *text;
    bl_status code;
    const char *part;
} hostile;

static void refuse_all(const hostile *cases, size_t n_cases) {
    bl_error err;
    bl_plan plan = plan_of(LAYERS, 2, WHOLE), out;
    int duplicates;
    for (size_t c = 0; c < n_cases; c++) {
        assert_fails(read_text(cases[c].text, &plan.model, &out, &duplicates, &err), cases[c].code,
                     cases[c].part);
        assert_string_equal(err.file, "map");
    }
    bl_plan_free(&plan);
}

static void hostile_maps_are_refused(void **state) {
    (void)state;
    static const hostile cases[] = {
        {"{\"physical_to_logical_map\":7}", BL_ERR_PARSE, "an array"},
        {"{\"physical_to_logical_map\":[],\"ep_size\":2}", BL_ERR_PARSE,
         "\"ep_size\" does not belong"},
        {MAP("[0,1,2,0],[0,1,2,0]"), BL_ERR_SHAPE, "2 rows, but toy has 3"},
        {MAP("[0,1,2,0],[0,1,2,0],[0,1,2,0],[0,1,2,0]"), BL_ERR_SHAPE, "4 rows"},
        {MAP("[],[0,1,2],[0,1,2]"), BL_ERR_SHAPE, "3 slots do not divide over 2 ranks"},
        {MAP("[],[],[]"), BL_ERR_SHAPE, "0 slots"},
        {MAP("[],[0,1],[0,1]"), BL_ERR_SHAPE, "2 slots cannot hold the 3 experts"},
        {MAP("[],[0,1,2,0],[0,1,2]"), BL_ERR_SHAPE, "has 3 slots"},
        {MAP("[],[0,1,2,0],7"), BL_ERR_SHAPE, "0 slots"},
        {MAP("[],[0,1,2,-1],[0,1,2,0]"), BL_ERR_RANGE, "slot 3 holds -1"},
        {MAP("[],[0,1,2,3],[0,1,2,0]"), BL_ERR_RANGE, "[0, 3)"},
        {MAP("[],[0,1,2,4294967296],[0,1,2,0]"), BL_ERR_RANGE, "holds 4294967296"},
        {MAP("[],[0,1,2,1.0],[0,1,2,0]"), BL_ERR_RANGE, "slot 3"},
        {MAP("[],[0,1,0,1],[0,1,2,0]"), BL_ERR_INFEASIBLE, "expert 2 has no slot"},
        {"[[0,1,2,0]]", BL_ERR_SHAPE, "1 layers, but toy has 2 MoE layers (of 3 decoder layers)"},
        {"[[0,1,2,0],[0,1,2,0],[0,1,2,0]]", BL_ERR_SHAPE, "3 layers"},
        {"[]", BL_ERR_SHAPE, "0 layers"},
        {"{\"phy2log\":{}}", BL_ERR_PARSE, "an array"},
        {"{\"phy2log\":[[0,1,2,0],[0,1,2]]}", BL_ERR_SHAPE, "has 3 slots"},
    };
    refuse_all(cases, sizeof cases / sizeof cases[0]);
}

static void hostile_configurations_are_refused(void **state) {
    (void)state;
    static const hostile cases[] = {
        {ROWS("1: [0,1,2,0]"), BL_ERR_SHAPE, "no row for it"},
        {ROWS("0: [0,1,2,0], 1: [0,1,2,0], 2: [0,1,2,0]"), BL_ERR_SHAPE, "3 rows, but toy has 2"},
        {ROWS("1: [0,1,2,0], 02: [0,1,2,0]"), BL_ERR_SHAPE, "no row for it"},
        {ROWS("1: [0,1,2,0], 1: [0,1,2,0]"), BL_ERR_PARSE, "key \"1\" is given twice"},
        {ROWS("1: [0,1,2,0], 2: [0,1,2]"), BL_ERR_SHAPE, "has 3 slots"},
        {ROWS("1: [0,1,2,0], 2: [0,1,2,x]"), BL_ERR_RANGE, "slot 3 does not hold"},
        {ROWS("1: [0,1,2,0], 2: [0,1,2,010]"), BL_ERR_PARSE, "\"010\" is not a whole number"},
        {"ep_size: 2\n" ROWS("1: [0,1,2,0], 2: [0,1,2,0]"), BL_ERR_PARSE, "\"ep_size\" does not"},
        {"initial_global_assignments: {}\n", BL_ERR_PARSE, "\"num_slots\" is missing"},
        {"num_slots: 5\ninitial_global_assignments: {1: [0,1,2,0,1], 2: [0,1,2,0,1]}\n",
         BL_ERR_SHAPE, "5 slots do not divide"},
        {"num_slots: 2000000000\ninitial_global_assignments: {1: [0], 2: [0]}\n", BL_ERR_SHAPE,
         "2000000000 slots"},
        {"num_slots: 0\ninitial_global_assignments: {}\n", BL_ERR_RANGE, "num_slots"},
        {"num_slots: [\n", BL_ERR_PARSE, "not YAML"},
    };
    refuse_all(cases, sizeof cases / sizeof cases[0]);
}

#define ASCEND(count, layers) "{\"moe_layer_count\":" count ",\"layer_list\":[" layers "]}"
#define GOOD ASCEND_LAYER(0, "[0,1]", "[2,0]")

static void hostile_expert_maps_are_refused(void **state) {
    (void)state;
    static const hostile cases[] = {
        {"{\"moe_layer_count\":2}", BL_ERR_PARSE, "\"layer_list\" is missing"},
        {ASCEND("1", GOOD), BL_ERR_SHAPE, "1 layers, but toy has 2 MoE layers"},
        {ASCEND("3", GOOD), BL_ERR_SHAPE, "3 layers"},
        {ASCEND("2", GOOD), BL_ERR_SHAPE, "is 2, but 1 layers are listed"},
        {ASCEND("2", GOOD "," GOOD), BL_ERR_SHAPE, "layer_id 0 stands at position 1"},
        {ASCEND("2", GOOD "," ASCEND_LAYER(1, "[0,1]", "[2,0]") "," ASCEND_LAYER(2, "[0]", "[1]")),
         BL_ERR_SHAPE, "3 layers are listed"}, /* toy has no layer of multi-token prediction */
        {ASCEND("2", "7,7"), BL_ERR_PARSE, "position 0"},
        {ASCEND("2", GOOD "," ASCEND_LAYER(1, "[0,1]", "[2]")), BL_ERR_SHAPE, "has 1 slots"},
        {ASCEND("2", GOOD "," ASCEND_LAYER(1, "[0,1]", "[2,3]")), BL_ERR_RANGE, "slot 3 holds 3"},
        {ASCEND("2", GOOD "," ASCEND_LAYER(1, "[0,1]", "[1,0]")), BL_ERR_INFEASIBLE, "expert 2"},
        {ASCEND("2", "{\"layer_id\":0,\"device_count\":1,\"device_list\":[{\"device_id\":0,"
                     "\"device_expert\":[0,1,2]}]},7"),
         BL_ERR_SHAPE, "1 devices and lists 1, not 2"},
        {ASCEND("2", "{\"layer_id\":0,\"device_count\":2,\"device_list\":[{\"device_id\":1,"
                     "\"device_expert\":[0,1]},{\"device_id\":0,\"device_expert\":[2,0]}]},7"),
         BL_ERR_SHAPE, "device_id 1 stands at position 0"},
        {ASCEND("2", "{\"layer_id\":0,\"device_count\":2,\"device_list\":[7,7]},7"), BL_ERR_SHAPE,
         "0 slots"},
    };
    refuse_all(cases, sizeof cases / sizeof cases[0]);
}

static void what_fits_two_or_none_is_refused(void **state) {
    (void)state;
    static const hostile cases[] = {
        {"{\"physical_to_logical_map\":[],\"layer_list\":[]}", BL_ERR_PARSE,
         "two formats, SGLang and vllm-ascend"},
        {"{\"initial_global_assignments\":{},\"phy2log\":[]}", BL_ERR_PARSE,
         "two formats, TensorRT-LLM and EPLB"},
        {"{\"num_hidden_layers\":3}", BL_ERR_PARSE, "not a placement Ballast knows"},
        {"hello", BL_ERR_PARSE, "not a placement Ballast knows"},
        {"", BL_ERR_PARSE, "empty"},
        {"{\"format\":\"x\"}", BL_ERR_VERSION, "format"},
        {"PK\x03\x04rest", BL_ERR_UNSUPPORTED, "save the map as JSON"},
        {"\x93NUMPY", BL_ERR_PARSE, ".npy"},
        {"{\"physical_to_logical_map\":[[0,1", BL_ERR_PARSE, "column"},
    };
    refuse_all(cases, sizeof cases / sizeof cases[0]);
}

static void refuse_array(const char *descr, const size_t *shape, int n_dims, const void *data,
                         bl_status code, const char *part) {
    bl_error err;
    bl_plan plan = plan_of(LAYERS, 2, WHOLE), out;
    int duplicates;
    const char *path = bl_test_temp("hostile.npy");
    assert_ok(bl_npy_write(path, descr, shape, n_dims, data, &err));
    assert_fails(bl_current_load(path, &plan.model, 2, &out, &duplicates, &err), code, part);
    bl_plan_free(&plan);
}

static void hostile_records_are_refused(void **state) {
    (void)state;
    static const hostile cases[] = {
        {"{\"record_type\":\"eplb_load_stats\"}", BL_ERR_PARSE, "a placement is"},
        {"{\"record_type\":\"eplb_initial_mapping\",\"version\":2}", BL_ERR_VERSION, "version 2"},
        {RECORD("\"0\":[0,1,2,0]"), BL_ERR_SHAPE, "1 layers, but toy has 2"},
        {RECORD("\"1\":[0,1,2,0],\"2\":[2,0,1,2]"), BL_ERR_SHAPE, "the row has 0 slots"},
        {RECORD("\"0\":[0,1,2],\"1\":[2,0,1,2]"), BL_ERR_SHAPE, "has 3 slots"},
        {RECORD("\"0\":[0,1,2,0],\"1\":[2,0,1,2]},\"x\":{"), BL_ERR_PARSE, "\"x\" does not belong"},
        {"{\"record_type\":\"eplb_initial_mapping\",\"version\":1,\"num_redundant_experts\":2,"
         "\"num_slots\":4,\"initial_global_assignments\":{}}",
         BL_ERR_SHAPE, "4 slots with 2 redundant ones are not for the 3 experts"},
    };
    refuse_all(cases, sizeof cases / sizeof cases[0]);
}

static void hostile_arrays_are_refused(void **state) {
    (void)state;
    static const int32_t two[12] = {1, 1, 0, 1, 0, 1, 1, 0, 1, 0, 2, 1};
    static const int32_t short_rank[12] = {1, 1, 0, 1, 0, 1, 1, 0, 1, 0, 0, 1};
    static const int32_t long_rank[12] = {1, 1, 0, 1, 0, 1, 1, 0, 1, 1, 1, 1};
    static const int32_t gone[12] = {1, 1, 0, 1, 0, 1, 1, 0, 1, 1, 0, 1};
    static const int32_t none[12] = {0};
    static const double real[12] = {1};
    const size_t shape[] = {2, 2, 3}, ranks[] = {3, 2, 2}, layers[] = {2, 1, 6}, table[] = {2, 4};
    const size_t flat[] = {12};
    refuse_array("<i4", shape, 3, two, BL_ERR_RANGE, "rank 1, expert 1: a pattern is of 0 and 1");
    refuse_array("<i4", shape, 3, short_rank, BL_ERR_SHAPE, "rank 1 holds 1 experts");
    refuse_array("<i4", shape, 3, long_rank, BL_ERR_SHAPE, "rank 1 holds 3 experts");
    refuse_array("<i4", shape, 3, gone, BL_ERR_INFEASIBLE, "expert 1 has no slot");
    refuse_array("<i4", shape, 3, none, BL_ERR_SHAPE, "0 slots");
    refuse_array("<i4", ranks, 3, two, BL_ERR_SHAPE, "3 ranks and 2 experts");
    refuse_array("<i4", layers, 3, two, BL_ERR_SHAPE, "1 layers, but toy has 2");
    refuse_array("<f8", shape, 3, real, BL_ERR_PARSE, "real numbers");
    refuse_array("<f8", table, 2, real, BL_ERR_PARSE, "ballast import");
    refuse_array("<i4", table, 2, none, BL_ERR_INFEASIBLE, "expert 1 has no slot");
    refuse_array("<i4", flat, 1, none, BL_ERR_PARSE, "not a placement Ballast knows");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(files_are_exact),
        cmocka_unit_test(the_start_layout_stands_for_layers_not_planned),
        cmocka_unit_test(arrays_are_exact),
        cmocka_unit_test(what_no_engine_can_hold_is_refused),
        cmocka_unit_test(layers_are_those_of_the_model),
        cmocka_unit_test(most_copies_are_counted),
        cmocka_unit_test(starts_are_told),
        cmocka_unit_test(fixed_copies_need_static_dispatch),
        cmocka_unit_test(all_come_back_as_they_went),
        cmocka_unit_test(rows_are_counted_as_the_engine_counts),
        cmocka_unit_test(random_plans_come_back),
        cmocka_unit_test(other_forms_are_read),
        cmocka_unit_test(one_row_stands_for_all_layers),
        cmocka_unit_test(a_second_copy_on_a_rank_is_emptied),
        cmocka_unit_test(hostile_maps_are_refused),
        cmocka_unit_test(hostile_configurations_are_refused),
        cmocka_unit_test(hostile_expert_maps_are_refused),
        cmocka_unit_test(what_fits_two_or_none_is_refused),
        cmocka_unit_test(hostile_records_are_refused),
        cmocka_unit_test(hostile_arrays_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
