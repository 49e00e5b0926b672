/* CSV of single tokens: columns by their names, lines to tokens, files to sequences. */
#include "tests/support/trace_imports.h"

#include "core/half.h"
#include "tracer/blt.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Four experts, top-2; decoder layers as the file states them. */
static bl_import_options options_of(const bl_model *model) {
    bl_import_options options = BL_IMPORT_OPTIONS_INIT;
    options.model = model;
    return options;
}

static bl_model toy_model(void) {
    static int moe[] = {3, 4};
    return (bl_model){.name = "toy",
                      .n_layers = 5,
                      .n_moe_layers = 2,
                      .moe_layers = moe,
                      .n_experts = 4,
                      .top_k = 2};
}

static bl_import_result import_text(const char *text, const char *out) {
    const bl_model model = toy_model();
    const bl_import_options options = options_of(&model);
    return bl_test_import_trace("topk-csv", bl_test_write("t.csv", text), &options, out);
}

static void fails(const char *text, bl_status code, const char *part) {
    const bl_model model = toy_model();
    const bl_import_options options = options_of(&model);
    bl_test_import_trace_fails("topk-csv", bl_test_write("t.csv", text), &options, code, part);
}

static void row_is(const bl_loads *loads, int layer_index, const uint64_t want[4]) {
    assert_true(loads->usable[layer_index]);
    assert_memory_equal(bl_loads_row(loads, 0, layer_index), want, 4 * sizeof *want);
}

/* ---- recorded prompts ------------------------------------------------------------------------ */

enum { LAYERS = 40, EXPERTS = 256, FILES = 4, TOKENS = 800 };

/* counts[token][layer - 3][expert] of one file, read in another way; returns its tokens. */
static size_t count_file(const char *path, uint64_t *counts) {
    char line[512];
    size_t n_lines = 0;
    FILE *in = fopen(path, "r");
    assert_non_null(in);
    assert_non_null(fgets(line, sizeof line, in));
    while (fgets(line, sizeof line, in) != NULL) {
        int pos, layer, n, e[6];
        assert_int_equal(sscanf(line, "%d,%d,%d,%d,%d,%d,%d,%d,%d", &pos, &layer, &n, &e[0], &e[1],
                                &e[2], &e[3], &e[4], &e[5]),
                         9);
        assert_int_equal(n, 6);
        for (int j = 0; j < 6; j++)
            counts[((n_lines / LAYERS) * LAYERS + (size_t)layer - 3) * EXPERTS + (size_t)e[j]]++;
        n_lines++;
    }
    fclose(in);
    assert_int_equal(n_lines % LAYERS, 0);
    return n_lines / LAYERS;
}

/* In decode, with a lane for each prompt, step t holds token t of every prompt that is that long. */
static void prompts_decode_side_by_side(void **state) {
    (void)state;
    static const char *const names[FILES] = {"b2_json_long_full", "b_json_full", "c_python_full",
                                             "route_k0_coffee"};
    bl_error err;
    bl_import_result result;
    const char *paths[FILES], *out = bl_test_temp("v4.blt");
    char relative[96];
    size_t total = 0, most = 0;
    const size_t cells = (size_t)LAYERS * EXPERTS;
    static int moe[LAYERS];
    uint64_t *counts = calloc(TOKENS * cells, sizeof *counts);
    assert_non_null(counts);
    for (int i = 0; i < FILES; i++) {
        snprintf(relative, sizeof relative, "routing/deepseek-v4-flash/%s.csv", names[i]);
        paths[i] = bl_test_data(relative);
        const size_t n = count_file(paths[i], counts);
        total += n;
        most = n > most ? n : most;
    }
    for (int l = 0; l < LAYERS; l++)
        moe[l] = l + 3;
    const bl_model model = {.name = "v4",
                            .n_layers = 43,
                            .n_moe_layers = LAYERS,
                            .moe_layers = moe,
                            .n_experts = EXPERTS,
                            .top_k = 6};
    bl_import_options options = options_of(&model);
    options.phase = BL_PHASE_DECODE;
    assert_ok(bl_import_parse_compose("batch=4,ranks=2", &options, &err));
    assert_ok(bl_import("topk-csv", paths, FILES, &options, out, &result, &err));
    assert_int_equal(result.steps, most);
    assert_int_equal(result.tokens, total);
    assert_string_equal(result.notes, "");
    bl_loads loads = bl_test_import_loads(out, &model);
    assert_int_equal(loads.n_steps, most);
    assert_true(loads.composed);
    for (int l = 0; l < LAYERS; l++)
        assert_true(loads.usable[l]);
    assert_memory_equal(loads.count, counts, most * cells * sizeof *counts);
    bl_loads_free(&loads);
    free(counts);
}

/* ---- columns --------------------------------------------------------------------------------- */

static void columns_are_found_by_name(void **state) {
    (void)state;
    const char *out = bl_test_temp("c.blt");
    const bl_import_result result = import_text(
        "e1,w1,layer,tok,e0,w0,pos\n1,0.25,3,a,0,0.75,5\n2,0.5,4,b,0,1,5\n3,1,3,c,2,2,6\n1,1,4,d,0,"
        "-1,6\n",
        out);
    assert_int_equal(result.tokens, 2);
    assert_string_equal(result.notes, "column \"tok\" left out");
    bl_loads loads = bl_test_import_loads(out, NULL);
    row_is(&loads, 0, (const uint64_t[4]){1, 1, 1, 1});
    row_is(&loads, 1, (const uint64_t[4]){2, 1, 1, 0});
    bl_loads_free(&loads);
}

static void weights_are_kept(void **state) {
    (void)state;
    bl_error err;
    bl_blt_reader *reader;
    bl_record record;
    bool got;
    const char *out = bl_test_temp("w.blt");
    import_text("layer,e0,e1,w0,w1\n3,0,1,0.75,0.1\n4,2,3,1.5,0\n", out);
    assert_ok(bl_blt_open(out, &reader, &err));
    assert_ok(bl_blt_next(reader, &record, &got, &err));
    assert_true(got && record.layer == 3 && record.weights != NULL);
    assert_true(bl_half_to_real(record.weights[0]) == 0.75);
    assert_int_equal(record.weights[1], 0x2e66); /* 0.0999755859375, the half nearest to 0.1 */
    bl_blt_reader_free(reader);
    import_text("layer,e0,e1\n3,0,1\n4,2,3\n", out);
    assert_ok(bl_blt_open(out, &reader, &err));
    assert_ok(bl_blt_next(reader, &record, &got, &err));
    assert_true(got && record.weights == NULL);
    bl_blt_reader_free(reader);
}

/* Ids from n on and negative ones are missing. */
static void ids_may_be_missing(void **state) {
    (void)state;
    const char *out = bl_test_temp("n.blt");
    const bl_import_result result =
        import_text("pos,layer,n,e0,e1\n0,3,2,0,1\n0,4,1,2,2\n1,3,0,0,0\n1,4,2,3,-1\n", out);
    assert_int_equal(result.tokens, 2);
    bl_loads loads = bl_test_import_loads(out, NULL);
    row_is(&loads, 0, (const uint64_t[4]){1, 1, 0, 0});
    row_is(&loads, 1, (const uint64_t[4]){0, 0, 1, 1});
    bl_loads_free(&loads);
}

/* "step rank: expert of layer 3, ..." of every record. */
static const char *list(const char *text, const char *compose) {
    static char out[256];
    bl_error err;
    bl_blt_reader *reader;
    bl_import_result result;
    const bl_model model = toy_model();
    bl_import_options options = options_of(&model);
    const char *path = bl_test_write("s.csv", text), *trace = bl_test_temp("s.blt");
    size_t used = 0;
    assert_ok(bl_import_parse_compose(compose, &options, &err));
    assert_ok(bl_import("topk-csv", &path, 1, &options, trace, &result, &err));
    assert_ok(bl_blt_open(trace, &reader, &err));
    out[0] = '\0';
    for (;;) {
        bl_record record;
        bool got;
        assert_ok(bl_blt_next(reader, &record, &got, &err));
        if (!got)
            break;
        used += (size_t)snprintf(out + used, sizeof out - used, "%d%c:", (int)record.step,
                                 'a' + record.rank);
        for (uint64_t i = 0; i < record.n_tokens; i++)
            used += (size_t)snprintf(out + used, sizeof out - used, "%d", record.ids[2 * i]);
        used += (size_t)snprintf(out + used, sizeof out - used, " ");
    }
    bl_blt_reader_free(reader);
    return out;
}

static void sequences_are_told_apart(void **state) {
    (void)state;
    /* by name; a position that goes back; neither: a file is one sequence */
    assert_string_equal(list("seq,layer,e0,e1\nx,3,0,1\nx,3,1,2\ny,3,2,3\n", "batch=2,ranks=2"),
                        "0a:0 0b:2 1a:1 1b: ");
    assert_string_equal(list("pos,layer,e0,e1\n7,3,0,1\n8,3,1,2\n7,3,2,3\n", "batch=2,ranks=2"),
                        "0a:0 0b:2 1a:1 1b: ");
    assert_string_equal(list("layer,e0,e1\n3,0,1\n3,1,2\n3,2,3\n", "batch=2,ranks=2"),
                        "0a:0 0b: 1a:1 1b: 2a:2 2b: ");
}

static void what_is_no_dump(void **state) {
    (void)state;
    fails("", BL_ERR_PARSE, "no line with ids");
    fails("layer,e0,e1\n", BL_ERR_PARSE, "no line with ids");
    fails("3,0,1\n", BL_ERR_PARSE, "the header needs a column \"layer\"");
    fails("layer,e0,e2\n3,0,1\n", BL_ERR_PARSE, "without gaps");
    fails("layer,e0,e1,w0\n3,0,1,1\n", BL_ERR_PARSE, "for all of the 2 ids, or for none");
    fails("layer,e0,e1,e0\n3,0,1,1\n", BL_ERR_PARSE, "two columns \"e0\"");
    fails("layer,e0,e1\n3,0\n", BL_ERR_SHAPE, "2 fields, but the header has 3");
    fails("layer,e0,e1\n3,0,x\n", BL_ERR_PARSE, "is \"x\", not an integer");
    fails("layer,e0,e1\n3,0,4\n4,0,1\n", BL_ERR_RANGE, "id 4 is not a logical expert below 4");
    fails("layer,e0,e1,n\n3,0,1,3\n", BL_ERR_RANGE, "must be in [0, 2]");
    fails("layer,e0,e1\n3,0,1\n5,0,1\n", BL_ERR_MODEL, "5 decoder layers only");
    fails("layer,e0,e1,e2\n3,0,1,2\n", BL_ERR_MODEL, "3 experts per token, but the model has 2");
    /* sorted by layer and not by token; a token without its last layer */
    fails("pos,layer,e0,e1\n0,3,0,1\n1,3,0,1\n0,4,0,1\n1,4,0,1\n", BL_ERR_SHAPE,
          "layer 4, where the first token lists layer 3");
    fails("pos,layer,e0,e1\n0,3,0,1\n0,4,0,1\n1,3,0,1\n", BL_ERR_SHAPE,
          "the token before has 1 layers, but the first one 2");
    fails("pos,layer,e0,e1\n0,3,0,1\n0,3,0,1\n", BL_ERR_SHAPE, "layer 3 after layer 3");
    fails("pos,layer,e0,e1\n0,3,0,1\n1,3,0,1\n1,4,0,1\n", BL_ERR_SHAPE,
          "layer 4, where the first token ends with layer 3");
}

static void files_must_be_alike(void **state) {
    (void)state;
    bl_error err;
    bl_import_result result;
    const bl_model model = toy_model();
    const bl_import_options options = options_of(&model);
    const char *out = bl_test_temp("never.blt");
    const char *paths[] = {bl_test_write("a.csv", "layer,e0,e1\n3,0,1\n4,0,1\n"),
                           bl_test_write("b.csv", "layer,e0,e1,w0,w1\n3,0,1,1,1\n4,0,1,1,1\n")};
    assert_fails(bl_import("topk-csv", paths, 2, &options, out, &result, &err), BL_ERR_SHAPE,
                 "2 ids and 2 weights, unlike the file before");
    paths[1] = bl_test_write("b.csv", "layer,e0,e1\n3,0,1\n");
    assert_fails(bl_import("topk-csv", paths, 2, &options, out, &result, &err), BL_ERR_SHAPE,
                 "the token before has 1 layers");
    bl_test_has(err.file, "b.csv");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prompts_decode_side_by_side),
        cmocka_unit_test(columns_are_found_by_name),
        cmocka_unit_test(weights_are_kept),
        cmocka_unit_test(ids_may_be_missing),
        cmocka_unit_test(sequences_are_told_apart),
        cmocka_unit_test(what_is_no_dump),
        cmocka_unit_test(files_must_be_alike),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
