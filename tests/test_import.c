/* Importers: rows land on the right decoder layers, counts are the source's, and nothing is guessed. */
#include "tests/support/torch_file.h"
#include "tests/support/trace_imports.h"

#include "core/io.h"
#include "tracer/blt.h"
#include "tracer/layers.h"
#include "tracer/torch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- layer convention ------------------------------------------------------------------------ */

/* 61 decoder layers, the first 3 dense, one MTP layer behind. */
static bl_model deep_model(void) {
    static int moe[58];
    for (int l = 0; l < 58; l++)
        moe[l] = l + 3;
    return (bl_model){.name = "deep",
                      .n_layers = 61,
                      .n_mtp_layers = 1,
                      .n_moe_layers = 58,
                      .moe_layers = moe,
                      .n_experts = 4,
                      .top_k = 2};
}

static void layer_conventions(void **state) {
    (void)state;
    bl_error err;
    const bl_model model = deep_model();
    static const struct {
        int n_rows;
        bool with_model;
        const char *spec;
        int first_kept, first_layer, n_kept; /* n_kept 0: refused */
        const char *part;
    } cases[] = {
        {58, true, NULL, 0, 3, 58, NULL},
        {61, true, NULL, 3, 3, 58, NULL},
        {62, true, NULL, 0, 0, 0, "58 MoE layers and 61 decoder layers (62 with MTP)"},
        {60, true, NULL, 0, 0, 0, "60 rows"},
        {58, true, "moe", 0, 3, 58, NULL},
        {61, true, "moe", 0, 0, 0, "not the MoE layers"},
        {62, true, "moe", 0, 0, 0, "not the MoE layers"},
        {58, true, "all", 0, 0, 0, "not all layers"},
        {61, true, "all", 3, 3, 58, NULL},
        {62, true, "all", 3, 3, 58, NULL},
        {58, true, "dense=3", 0, 3, 58, NULL},
        {61, true, "dense=3", 3, 3, 58, NULL},
        {58, true, "dense=1", 0, 0, 0, "contradicts"},
        {58, false, "dense=3", 0, 3, 58, NULL},
        {58, false, "3-60", 0, 3, 58, NULL},
        {58, true, "3-60", 0, 3, 58, NULL},
        {62, true, "0-61", 3, 3, 58, NULL},
        {3, true, "0,5,60", 1, 5, 2, NULL},
        {4, false, "1,5-6,60", 0, 1, 4, NULL},
        {58, false, NULL, 0, 0, 0, "which decoder layers are they"},
        {58, false, "all", 0, 0, 0, "needs --model"},
        {58, false, "moe", 0, 0, 0, "needs --model"},
        {58, true, "3-59", 0, 0, 0, "lists 57 layers"},
        {3, true, "0,1,2", 0, 0, 0, "none of the rows"},
        {2, true, "60,99", 0, 0, 0, "61 decoder layers only"},
        {2, false, "5,3", 0, 0, 0, "ascending list"},
        {2, false, "mo", 0, 0, 0, "not all, moe, dense=N"},
        {2, false, "1,", 0, 0, 0, "ascending list"},
        {2, false, "1-99999999999999999999", 0, 0, 0, "ascending list"},
        {2, false, "dense=x", 0, 0, 0, "not a number"},
    };
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        bl_layer_rows rows = {0};
        err = BL_ERROR_INIT;
        const bl_status st =
            bl_layer_rows_find(cases[c].spec, NULL, cases[c].n_rows,
                               cases[c].with_model ? &model : NULL, "in", &rows, &err);
        if (cases[c].n_kept == 0) {
            assert_true(st < 0);
            bl_test_has(err.text, cases[c].part);
            continue;
        }
        if (st < 0)
            fail_msg("case %zu: %s", c, err.text);
        int kept = 0;
        for (int row = 0; row < rows.n_rows; row++)
            kept += rows.layer[row] != BL_ROW_LEFT_OUT;
        assert_int_equal(kept, cases[c].n_kept);
        assert_int_equal(rows.layer[cases[c].first_kept], cases[c].first_layer);
        for (int row = 0; row < cases[c].first_kept; row++)
            assert_int_equal(rows.layer[row], BL_ROW_LEFT_OUT);
        bl_layer_rows_free(&rows);
    }
}

static void a_file_that_states_its_layers(void **state) {
    (void)state;
    bl_error err;
    const bl_model model = deep_model();
    bl_layer_rows rows = {0};
    const int stated[] = {2, 3, 60};
    assert_ok(bl_layer_rows_find(NULL, stated, 3, NULL, "in", &rows, &err));
    assert_int_equal(rows.layer[0], 2);
    bl_layer_rows_free(&rows);
    assert_ok(bl_layer_rows_find(NULL, stated, 3, &model, "in", &rows, &err));
    assert_int_equal(rows.layer[0], BL_ROW_LEFT_OUT);
    assert_int_equal(rows.layer[2], 60);
    bl_layer_rows_free(&rows);
    assert_fails(bl_layer_rows_find("3,4,60", stated, 3, &model, "in", &rows, &err), BL_ERR_MODEL,
                 "row 0 is decoder layer 2 by the file itself");
}

/* Row r of a 61-row matrix is hot on expert r mod 4: layer 17 must be hot on expert 17 mod 4 = 1. */
static void rows_reach_their_layers(void **state) {
    (void)state;
    const bl_model model = deep_model();
    static char text[8192];
    size_t used = (size_t)snprintf(text, sizeof text, "[");
    for (int row = 0; row < 61; row++)
        used += (size_t)snprintf(text + used, sizeof text - used, "%s[%d,%d,%d,%d]",
                                 row > 0 ? "," : "", row % 4 == 0 ? 4 : 1, row % 4 == 1 ? 4 : 1,
                                 row % 4 == 2 ? 4 : 1, row % 4 == 3 ? 4 : 2);
    snprintf(text + used, sizeof text - used, "]");
    for (char *at = text; (at = strstr(at, "4,1,1,2")) != NULL; at++)
        at[6] = '2';
    bl_import_options options = BL_IMPORT_OPTIONS_INIT;
    options.model = &model;
    const char *out = bl_test_temp("rows.blt");
    const bl_import_result result =
        bl_test_import_trace("load-json", bl_test_write("rows.json", text), &options, out);
    bl_test_has(result.notes, "3 dense layers left out");
    bl_loads loads = bl_test_import_loads(out, &model);
    assert_int_equal(loads.n_layers, 58);
    for (int l = 0; l < 58; l++) {
        assert_int_equal(loads.layers[l], l + 3);
        assert_int_equal(bl_loads_row(&loads, 0, l)[(l + 3) % 4], 4);
    }
    bl_loads_free(&loads);
}

/* ---- loads --------------------------------------------------------------------------------- */

static bl_import_options plain(const char *layers, int top_k) {
    bl_import_options options = BL_IMPORT_OPTIONS_INIT;
    options.layers = layers;
    options.top_k = top_k;
    return options;
}

static void matrices_in_three_formats(void **state) {
    (void)state;
    bl_error err;
    const bl_import_options options = plain("3,7", 2);
    const int32_t counts[2][2][4] = {{{3, 2, 2, 1}, {1, 2, 2, 3}}, {{1, 1, 0, 0}, {0, 0, 1, 1}}};
    const char *npy = bl_test_temp("m.npy");
    assert_ok(bl_npy_write(npy, "<i4", (size_t[]){2, 2, 4}, 3, counts, &err));
    const char *const inputs[][2] = {
        {"load-json", bl_test_write("m.json", "[[[3,2,2,1],[1,2,2,3]],[[1,1,0,0],[0,0,1,1]]]")},
        {"load-json",
         bl_test_write("o.json", "{\"top_k\":2,\"num_experts\":4,\"layer_ids\":[3,7],\"tokens\":"
                                 "[4,1],\"load\":[[[3,2,2,1],[1,2,2,3]],[[1,1,0,0],[0,0,1,1]]]}")},
        {"load-npy", npy},
        {"load-csv", bl_test_write("m.csv", "step,layer,e0,e1,e2,e3\n0,3,3,2,2,1\n0,7,1,2,2,3\n"
                                            "1,3,1,1,0,0\n1,7,0,0,1,1\n")}};
    for (size_t i = 0; i < sizeof inputs / sizeof inputs[0]; i++) {
        const char *out = bl_test_temp("m.blt");
        const bl_import_result result =
            bl_test_import_trace(inputs[i][0], inputs[i][1], &options, out);
        assert_int_equal(result.steps, 2);
        assert_int_equal(result.tokens, 5);
        bl_loads loads = bl_test_import_loads(out, NULL);
        assert_int_equal(loads.layers[0], 3);
        assert_int_equal(loads.layers[1], 7);
        assert_false(loads.composed);
        for (size_t step = 0; step < 2; step++) {
            for (int l = 0; l < 2; l++) {
                assert_true(loads.usable[l]);
                for (int expert = 0; expert < 4; expert++)
                    assert_int_equal(bl_loads_row(&loads, step, l)[expert],
                                     counts[step][l][expert]);
            }
        }
        bl_loads_free(&loads);
    }
}

static void csv_without_a_header(void **state) {
    (void)state;
    const bl_import_options options = plain("dense=1", 2);
    const char *out = bl_test_temp("p.blt");
    bl_test_import_trace("load-csv", bl_test_write("p.csv", "3,2,2,1\n1,2,2,3\n"), &options, out);
    bl_loads loads = bl_test_import_loads(out, NULL);
    assert_int_equal(loads.layers[0], 1);
    assert_int_equal(bl_loads_row(&loads, 0, 1)[3], 3);
    bl_loads_free(&loads);
    bl_test_import_trace_fails("load-csv", bl_test_write("q.csv", "3,2,2,1\n1,2,2\n"), &options,
                               BL_ERR_SHAPE, "3 fields, but 4 before");
    bl_test_import_trace_fails("load-csv", bl_test_write("r.csv", "3,2,2,1\n1,2,2x,3\n"), &options,
                               BL_ERR_PARSE, "2x");
    bl_test_import_trace_fails("load-csv", bl_test_write("s.csv", ""), &options, BL_ERR_PARSE,
                               "no line");
}

/* Steps without tokens are absent; rows that are no numbers make their layer unusable, by name. */
static void what_cannot_be_used_is_said(void **state) {
    (void)state;
    const bl_import_options options = plain("0-2", 2);
    const char *out = bl_test_temp("bad.blt");
    const char *text = "[[[3,2,2,1],[3,2,2,1],[2,2,2,2]],[[0,0,0,0],[0,0,0,0],[0,0,0,0]],"
                       "[[3,2,2,1],[null,2,2,1],[2,2,2,2]]]";
    const bl_import_result result =
        bl_test_import_trace("load-json", bl_test_write("bad.json", text), &options, out);
    assert_int_equal(result.steps, 2);
    bl_test_has(result.notes, "1 steps without tokens left out");
    bl_test_has(result.notes, "1 rows that are no counts left out, the first at step 2, layer 1");
    bl_loads loads = bl_test_import_loads(out, NULL);
    assert_int_equal(loads.n_steps, 2);
    assert_true(loads.usable[0]);
    assert_false(loads.usable[1]);
    assert_true(loads.usable[2]);
    bl_test_has(loads.why[1], "0 tokens where other layers saw 4");
    bl_loads_free(&loads);
    bl_test_import_trace_fails("load-json", bl_test_write("f.json", "[[1.5,2,2,1]]"), &options,
                               BL_ERR_MODEL, "lists 3 layers");
    const bl_import_options one = plain("0", 2);
    bl_test_import_trace_fails("load-json", bl_test_write("f.json", "[[1.5,2,2,1]]"), &one,
                               BL_ERR_RANGE, "1.5 is no count");
    bl_test_import_trace_fails("load-json", bl_test_write("z.json", "[[0,0,0,0]]"), &one,
                               BL_ERR_CONSERVATION, "no tokens");
    bl_test_import_trace_fails("load-json", bl_test_write("e.json", "[]"), &one, BL_ERR_PARSE,
                               "no load matrix");
    bl_test_import_trace_fails("load-json", bl_test_write("s.json", "[[1,2],[1]]"), &one,
                               BL_ERR_MODEL, "lists 1 layers");
    const bl_import_options two = plain("0,1", 1);
    bl_test_import_trace_fails("load-json", bl_test_write("s.json", "[[1,2],[1]]"), &two,
                               BL_ERR_SHAPE, "layer row 1 holds 1 experts");
    bl_test_import_trace_fails("load-json", bl_test_write("n.json", "[[1,2],[1,\"x\"]]"), &two,
                               BL_ERR_PARSE, "expert 1 is not a number");
    const bl_import_options unknown = plain("0,1", 0);
    bl_test_import_trace_fails("load-json", bl_test_write("k.json", "[[1,2],[1,2]]"), &unknown,
                               BL_ERR_MODEL, "--top-k");
}

/* A count of tokens that the file states is held against the sums. */
static void stated_tokens_are_checked(void **state) {
    (void)state;
    const bl_import_options options = plain("0,1", 2);
    const char *out = bl_test_temp("stated.blt");
    bl_test_import_trace("load-json",
                         bl_test_write("t.json", "{\"tokens\":4,\"load\":[[3,2,2,1],[3,2,2,2]]}"),
                         &options, out);
    bl_loads loads = bl_test_import_loads(out, NULL);
    assert_true(loads.usable[0]);
    assert_false(loads.usable[1]);
    bl_test_has(loads.why[1], "counts sum to 9, but tokens * k - empty is 8");
    bl_loads_free(&loads);
    bl_test_import_trace_fails(
        "load-json", bl_test_write("t.json", "{\"tokens\":[4,4],\"load\":[[3,2,2,1],[3,2,2,2]]}"),
        &options, BL_ERR_SHAPE, "1 steps, but 2");
}

static void several_files_are_steps_of_one_trace(void **state) {
    (void)state;
    bl_error err;
    const bl_import_options options = plain("0", 2);
    const char *paths[] = {bl_test_write("a.json", "[[3,2,2,1]]"),
                           bl_test_write("b.json", "[[[1,1,0,0]],[[2,2,2,2]]]")};
    const char *out = bl_test_temp("ab.blt");
    bl_import_result result;
    assert_ok(bl_import("load-json", paths, 2, &options, out, &result, &err));
    assert_int_equal(result.steps, 3);
    bl_loads loads = bl_test_import_loads(out, NULL);
    assert_int_equal(bl_loads_row(&loads, 2, 0)[3], 2);
    bl_loads_free(&loads);
    paths[1] = bl_test_write("b.json", "[[1,1,1,1,0]]");
    assert_fails(bl_import("load-json", paths, 2, &options, out, &result, &err), BL_ERR_MODEL,
                 "experts");
}

static void glm_loads_conserve(void **state) {
    (void)state;
    static const char *const domains[] = {"books",   "chat", "code_instruct", "news",
                                          "science", "web",  "wiki"};
    const bl_import_options options = BL_IMPORT_OPTIONS_INIT;
    for (size_t d = 0; d < 7; d++) {
        char relative[64];
        snprintf(relative, sizeof relative, "routing/glm-5.2/%s.load.json", domains[d]);
        const char *out = bl_test_temp("glm.blt");
        const bl_import_result result =
            bl_test_import_trace("load-json", bl_test_data(relative), &options, out);
        bl_loads loads = bl_test_import_loads(out, NULL);
        assert_int_equal(loads.n_layers, 75);
        assert_int_equal(loads.layers[0], 3);
        assert_int_equal(loads.layers[74], 77);
        assert_int_equal(loads.top_k, 8);
        for (int l = 0; l < 75; l++) {
            uint64_t sum = 0;
            for (int expert = 0; expert < 256; expert++)
                sum += bl_loads_row(&loads, 0, l)[expert];
            assert_true(loads.usable[l]);
            assert_int_equal(sum, result.tokens * 8);
        }
        if (strcmp(domains[d], "chat") == 0)
            assert_int_equal(result.tokens, 157879);
        bl_loads_free(&loads);
    }
}

/* ---- dumps of tokens ------------------------------------------------------------------------- */

static void law_as_one_step(void **state) {
    (void)state;
    bl_error err;
    bl_npy npy;
    const char *path = bl_test_data("routing/deepseek-v2-lite/law.npy");
    const char *out = bl_test_temp("law.blt");
    const bl_import_options options = BL_IMPORT_OPTIONS_INIT;
    assert_ok(bl_npy_load(path, &npy, &err));
    const bl_import_result result = bl_test_import_trace("topk-npy", path, &options, out);
    assert_int_equal(result.tokens, npy.shape[0]);
    bl_loads loads = bl_test_import_loads(out, NULL);
    uint64_t *counts = calloc((size_t)26 * 64, sizeof *counts);
    assert_non_null(counts);
    bl_test_count_tokens(&npy, 0, npy.shape[0], counts, 64);
    assert_true(loads.composed);
    assert_int_equal(loads.n_steps, 1);
    assert_int_equal(loads.layers[0], 1);
    assert_memory_equal(bl_loads_row(&loads, 0, 0), counts, (size_t)26 * 64 * sizeof *counts);
    bl_loads_free(&loads);
    bl_npy_free(&npy);
    free(counts);
}

/* tokens[4][1 layer][1]: token t picked expert t; sequences of 3, 2, 1, 2 tokens. */
static const char *write_sequences(const char *phase) {
    bl_error err;
    const uint8_t ids[8] = {0, 1, 2, 3, 4, 5, 6, 7};
    char side[256];
    const char *path = bl_test_temp("seq.npy");
    assert_ok(bl_npy_write(path, "|u1", (size_t[]){8, 1, 1}, 3, ids, &err));
    snprintf(side, sizeof side,
             "{\"layer_ids\":[4],\"num_experts\":8,\"top_k\":1,\"phase\":\"%s\","
             "\"sequence_lengths\":[3,2,1,2]}",
             phase);
    bl_test_write("seq.json", side);
    return path;
}

/* "step rank: tokens" of every record, as the token's number is the expert it picked. */
static void list_records(const char *path, char *out, size_t room) {
    bl_error err;
    bl_blt_reader *reader;
    size_t used = 0;
    assert_ok(bl_blt_open(path, &reader, &err));
    for (;;) {
        bl_record record;
        bool got;
        assert_ok(bl_blt_next(reader, &record, &got, &err));
        if (!got)
            break;
        assert_true(record.flags & BL_RECORD_COMPOSED);
        used +=
            (size_t)snprintf(out + used, room - used, "%d%c:", (int)record.step, 'a' + record.rank);
        for (uint64_t i = 0; i < record.n_tokens; i++)
            used += (size_t)snprintf(out + used, room - used, "%d", record.ids[i]);
        used += (size_t)snprintf(out + used, room - used, " ");
    }
    bl_blt_reader_free(reader);
}

/* Sequences 0 (tokens 0 1 2) and 2 (5) are rank a's, 1 (3 4) and 3 (6 7) rank b's. */
static void steps_are_composed_by_phase(void **state) {
    (void)state;
    char text[256];
    bl_error err;
    bl_import_options options = BL_IMPORT_OPTIONS_INIT;
    const char *out = bl_test_temp("seq.blt");
    assert_ok(bl_import_parse_compose("batch=4,ranks=2", &options, &err));
    assert_int_equal(
        bl_test_import_trace("topk-npy", write_sequences("prefill"), &options, out).steps, 2);
    list_records(out, text, sizeof text);
    assert_string_equal(text, "0a:01 0b:34 1a:25 1b:67 ");
    assert_int_equal(
        bl_test_import_trace("topk-npy", write_sequences("decode"), &options, out).steps, 3);
    list_records(out, text, sizeof text);
    assert_string_equal(text, "0a:05 0b:36 1a:1 1b:47 2a:2 2b: ");
    assert_ok(bl_import_parse_compose("ranks=2,batch=2", &options, &err));
    bl_test_import_trace("topk-npy", write_sequences("decode"), &options, out);
    list_records(out, text, sizeof text);
    assert_string_equal(text, "0a:0 0b:3 1a:1 1b:4 2a:2 2b:6 3a:5 3b:7 ");
    assert_fails(bl_import_parse_compose("batch=10,ranks=4", &options, &err), BL_ERR_USAGE,
                 "try batch=12");
    assert_fails(bl_import_parse_compose("batch=x", &options, &err), BL_ERR_USAGE, "batch=256");
    assert_fails(bl_import_parse_compose("", &options, &err), BL_ERR_USAGE, "batch=256");
}

static void dumps_without_sequences_are_sliced(void **state) {
    (void)state;
    bl_error err;
    char text[256];
    const int16_t ids[5] = {0, 1, 2, 3, 4};
    const char *path = bl_test_temp("plain.npy"), *out = bl_test_temp("plain.blt");
    assert_ok(bl_npy_write(path, "<i2", (size_t[]){5, 1, 1}, 3, ids, &err));
    bl_model model = {.name = "m",
                      .n_layers = 1,
                      .n_moe_layers = 1,
                      .moe_layers = (int[]){0},
                      .n_experts = 5,
                      .top_k = 1};
    bl_import_options options = BL_IMPORT_OPTIONS_INIT;
    options.model = &model;
    assert_ok(bl_import_parse_compose("batch=4,ranks=2", &options, &err));
    bl_test_import_trace("topk-npy", path, &options, out);
    list_records(out, text, sizeof text);
    assert_string_equal(text, "0a:01 0b:23 1a:4 1b: ");
    model.n_experts = 4;
    bl_test_import_trace_fails("topk-npy", path, &options, BL_ERR_RANGE,
                               "id 4 is not a logical expert below 4");
    model.top_k = 2;
    bl_test_import_trace_fails("topk-npy", path, &options, BL_ERR_MODEL,
                               "1 experts per token, but the model");
    options.model = NULL;
    bl_test_import_trace_fails("topk-npy", path, &options, BL_ERR_MODEL, "how many experts");
}

/* ---- SGLang -------------------------------------------------------------------------------- */

/* The fixture was made of law.npy: step s holds tokens 64 s .. 64 s + 63, steps 100..127 nothing. */
static void sglang_stat_equals_its_source(void **state) {
    (void)state;
    bl_error err;
    const bl_model model = bl_test_lite_model();
    bl_import_options options = BL_IMPORT_OPTIONS_INIT;
    options.model = &model;
    bl_npy npy;
    const char *out = bl_test_temp("sglang.blt");
    const char *pt = bl_test_data("fixtures/sglang_stat.pt");
    assert_ok(bl_npy_load(bl_test_data("routing/deepseek-v2-lite/law.npy"), &npy, &err));
    const bl_import_result result = bl_test_import_trace("sglang-stat", pt, &options, out);
    assert_int_equal(result.steps, 100);
    assert_int_equal(result.tokens, 6400);
    bl_test_has(result.notes, "1 dense layer left out");
    bl_test_has(result.notes, "28 steps without tokens left out");
    bl_loads loads = bl_test_import_loads(out, &model);
    assert_int_equal(loads.n_steps, 100);
    uint64_t *counts = calloc((size_t)26 * 64, sizeof *counts);
    assert_non_null(counts);
    for (size_t step = 0; step < 100; step++) {
        bl_test_count_tokens(&npy, step * 64, step * 64 + 64, counts, 64);
        assert_memory_equal(bl_loads_row(&loads, step, 0), counts,
                            (size_t)26 * 64 * sizeof *counts);
    }
    for (int l = 0; l < 26; l++)
        assert_true(loads.usable[l]);
    bl_loads_free(&loads);
    bl_npy_free(&npy);
    free(counts);
    options.layers = "moe";
    bl_test_import_trace_fails("sglang-stat", pt, &options, BL_ERR_MODEL,
                               "27 rows are not the MoE layers");
    bl_test_import_trace_fails("sglang-stat", bl_test_data("fixtures/sglang_per_token_0.pt"),
                               &options, BL_ERR_UNSUPPORTED, "per_token");
}

static bl_status parse_pickle(const char *pickle, size_t bytes, bl_error *err) {
    static unsigned char file[4096];
    static const unsigned char storage[32] = {1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4};
    const char *const names[] = {"archive/data.pkl", "archive/data/0"};
    const unsigned char *const data[] = {(const unsigned char *)pickle, storage};
    const size_t sizes[] = {bytes, sizeof storage};
    const size_t n = bl_test_zip(file, names, data, sizes, 2);
    bl_torch *torch = NULL;
    *err = BL_ERROR_INIT;
    const bl_status st = bl_torch_parse(file, n, "made.pt", &torch, err);
    bl_torch_free(torch);
    return st;
}

#define PICKLE(text) parse_pickle(text, sizeof(text) - 1, &err)
#define STORAGE                                      \
    "(X\7\0\0\0storagectorch\nIntStorage\nX\1\0\0\0" \
    "0X\6\0\0\0cuda:0K\4tQ"

static void pickles_run_nothing(void **state) {
    (void)state;
    bl_error err;
    assert_int_equal(PICKLE("\x80\2}."), BL_OK);
    assert_int_equal(PICKLE("\x80\2" STORAGE "."), BL_OK);
    assert_int_equal(PICKLE("\x80\2cos\nsystem\n(X\2\0\0\0lstR."), BL_ERR_UNSUPPORTED);
    bl_test_has(err.text, "os system");
    assert_int_equal(PICKLE("\x80\2ctorch._utils\n_rebuild_tensor_v3\n."), BL_ERR_UNSUPPORTED);
    bl_test_has(err.text, "_rebuild_tensor_v3");
    assert_int_equal(PICKLE("\x80\2}(X\1\0\0\0aK\1ub."), BL_ERR_UNSUPPORTED); /* BUILD */
    bl_test_has(err.text, "opcode 0x62");
    assert_int_equal(PICKLE("\x80\4}."), BL_ERR_UNSUPPORTED);
    bl_test_has(err.text, "protocol 4");
    assert_int_equal(PICKLE("\x80\2}"), BL_ERR_PARSE);
    assert_int_equal(PICKLE("\x80\2."), BL_ERR_PARSE);
    assert_int_equal(PICKLE("\x80\2u."), BL_ERR_PARSE);
    assert_int_equal(PICKLE("\x80\2(u."), BL_ERR_PARSE);
    assert_int_equal(PICKLE("\x80\2h\7."), BL_ERR_PARSE);
    assert_int_equal(PICKLE("\x80\2X\xff\xff\xff\xff"
                            "abc."),
                     BL_ERR_PARSE);
    assert_int_equal(PICKLE("\x80\2\x8a\x10"
                            "0123456789abcdef."),
                     BL_ERR_PARSE);
    /* 9 items in a storage of 32 bytes; a view over its end; a call with too few arguments */
    assert_int_equal(PICKLE("\x80\2(X\7\0\0\0storagectorch\nIntStorage\nX\1\0\0\0"
                            "0X\3\0\0\0cpuK\11tQ."),
                     BL_ERR_PARSE);
    assert_int_equal(
        PICKLE("\x80\2ctorch._utils\n_rebuild_tensor_v2\n(" STORAGE "K\1K\4\x85K\1\x85\x89)tR."),
        BL_ERR_PARSE);
    bl_test_has(err.text, "larger than its storage");
    assert_int_equal(PICKLE("\x80\2ctorch._utils\n_rebuild_tensor_v2\n)R."), BL_ERR_PARSE);
    assert_int_equal(PICKLE("\x80\2K\1K\2R."), BL_ERR_PARSE);
}

static void tensors_keep_their_strides(void **state) {
    (void)state;
    bl_error err;
    static const char pickle[] = "\x80\2}X\1\0\0\0xctorch._utils\n_rebuild_tensor_v2\n(" STORAGE
                                 "K\0K\2K\2\x86K\1K\2\x86\x89)tRs.";
    static unsigned char file[4096];
    static const unsigned char storage[16] = {1, 0, 0, 0, 2,   0,   0,   0,
                                              3, 0, 0, 0, 255, 255, 255, 255};
    const char *const names[] = {"x/data.pkl", "x/data/0"};
    const unsigned char *const data[] = {(const unsigned char *)pickle, storage};
    const size_t sizes[] = {sizeof pickle - 1, sizeof storage};
    const size_t n = bl_test_zip(file, names, data, sizes, 2);
    bl_torch *torch;
    assert_ok(bl_torch_parse(file, n, "made.pt", &torch, &err));
    const bl_torch_value *x = bl_torch_get(bl_torch_root(torch), "x");
    assert_non_null(x);
    assert_int_equal(x->type, BL_TORCH_TENSOR);
    assert_int_equal(x->tensor->shape[1], 2);
    assert_int_equal(x->tensor->stride[1], 2); /* transposed */
    assert_int_equal(bl_torch_int(x->tensor, 2), 3);
    assert_int_equal(bl_torch_int(x->tensor, 3), -1);
    assert_null(bl_torch_get(bl_torch_root(torch), "y"));
    bl_torch_free(torch);
    for (size_t cut = 0; cut < n; cut++) { /* no prefix of a zip is a zip */
        unsigned char *prefix = malloc(cut + 1);
        assert_non_null(prefix);
        memcpy(prefix, file, cut);
        assert_true(bl_torch_parse(prefix, cut, "cut.pt", &torch, NULL) < 0);
        free(prefix);
    }
    file[n - 22 - 46 - 8 + 16] = 1; /* another CRC-32 than the storage has */
    assert_fails(bl_torch_parse(file, n, "made.pt", &torch, &err), BL_ERR_CHECKSUM,
                 "its entry data/0 is damaged");
    file[n - 22 - 2 * 46 - 18 + 10] = 8; /* deflated */
    assert_fails(bl_torch_parse(file, n, "made.pt", &torch, &err), BL_ERR_UNSUPPORTED,
                 "compressed");
}

/* A recording lists ids and positions of all its tokens: two million numbers, in batches as picklers
 * write them. */
static void long_lists_are_read(void **state) {
    (void)state;
    enum { BATCHES = 2000, BATCH = 1000, BYTES = BATCHES * (2 * BATCH + 2) + 4 };
    bl_error err;
    bl_torch *torch;
    unsigned char *pickle = malloc(BYTES), *file = malloc(BYTES + 1024), *at = pickle;
    assert_true(pickle != NULL && file != NULL);
    memcpy(at, "\x80\2]", 3);
    at += 3;
    for (int b = 0; b < BATCHES; b++) {
        *at++ = '(';
        for (int i = 0; i < BATCH; i++) {
            *at++ = 'K';
            *at++ = (unsigned char)(b + i);
        }
        *at++ = 'e';
    }
    *at++ = '.';
    const char *const names[] = {"x/data.pkl"};
    const unsigned char *const data[] = {pickle};
    const size_t sizes[] = {(size_t)(at - pickle)};
    const size_t n = bl_test_zip(file, names, data, sizes, 1);
    assert_ok(bl_torch_parse(file, n, "long.pt", &torch, &err));
    const bl_torch_value *root = bl_torch_root(torch);
    assert_int_equal(root->n, BATCHES * BATCH);
    for (size_t i = 0; i < root->n; i++)
        assert_true(root->items[i]->integer == (int64_t)((i / BATCH + i % BATCH) & 255));
    bl_torch_free(torch);
    free(pickle);
    free(file);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layer_conventions),
        cmocka_unit_test(a_file_that_states_its_layers),
        cmocka_unit_test(rows_reach_their_layers),
        cmocka_unit_test(matrices_in_three_formats),
        cmocka_unit_test(csv_without_a_header),
        cmocka_unit_test(what_cannot_be_used_is_said),
        cmocka_unit_test(stated_tokens_are_checked),
        cmocka_unit_test(several_files_are_steps_of_one_trace),
        cmocka_unit_test(glm_loads_conserve),
        cmocka_unit_test(law_as_one_step),
        cmocka_unit_test(steps_are_composed_by_phase),
        cmocka_unit_test(dumps_without_sequences_are_sliced),
        cmocka_unit_test(sglang_stat_equals_its_source),
        cmocka_unit_test(pickles_run_nothing),
        cmocka_unit_test(tensors_keep_their_strides),
        cmocka_unit_test(long_lists_are_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
