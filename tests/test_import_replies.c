/* Dumps of single tokens: engines' replies hold what the router picked, and what nobody picked is
 * left out by name. */
#include "tests/support/trace_imports.h"

#include "tracer/blt.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Decoder layers 0 (dense), 1 and 2, four experts, top-2. */
static bl_model toy_model(void) {
    static int moe[] = {1, 2};
    return (bl_model){.name = "toy",
                      .n_layers = 3,
                      .n_moe_layers = 2,
                      .moe_layers = moe,
                      .n_experts = 4,
                      .top_k = 2};
}

static bl_import_options with(const bl_model *model) {
    bl_import_options options = BL_IMPORT_OPTIONS_INIT;
    options.model = model;
    return options;
}

static void row_is(const bl_loads *loads, size_t step, int layer_index, uint64_t e0, uint64_t e1,
                   uint64_t e2, uint64_t e3) {
    const uint64_t *row = bl_loads_row(loads, step, layer_index);
    assert_true(loads->usable[layer_index]);
    assert_int_equal(row[0], e0);
    assert_int_equal(row[1], e1);
    assert_int_equal(row[2], e2);
    assert_int_equal(row[3], e3);
}

/* The fixtures are tokens of law.npy: those from `first` to `end` must be counted, no others. */
static void equals_law(const char *format, const char *fixture, size_t first, size_t end,
                       const char *note) {
    bl_error err;
    bl_npy npy;
    char relative[64];
    const bl_model model = bl_test_lite_model();
    const bl_import_options options = with(&model);
    const char *out = bl_test_temp("reply.blt");
    snprintf(relative, sizeof relative, "fixtures/%s", fixture);
    const char *path = bl_test_data(relative);
    assert_ok(bl_npy_load(bl_test_data("routing/deepseek-v2-lite/law.npy"), &npy, &err));
    const bl_import_result result = bl_test_import_trace(format, path, &options, out);
    assert_int_equal(result.steps, 1);
    assert_int_equal(result.tokens, end - first);
    assert_string_equal(result.notes, note);
    bl_loads loads = bl_test_import_loads(out, &model);
    uint64_t *counts = calloc((size_t)26 * 64, sizeof *counts);
    assert_non_null(counts);
    bl_test_count_tokens(&npy, first, end, counts, 64);
    assert_true(loads.composed);
    assert_int_equal(loads.n_layers, 26);
    for (int l = 0; l < 26; l++)
        assert_true(loads.usable[l]);
    assert_memory_equal(bl_loads_row(&loads, 0, 0), counts, (size_t)26 * 64 * sizeof *counts);
    bl_loads_free(&loads);
    bl_npy_free(&npy);
    free(counts);
}

static void vllm_npy_equals_its_source(void **state) {
    (void)state;
    equals_law("vllm-reply", "vllm_reply.json", 0, 400, "1 dense layer left out");
}

static void vllm_lists_equal_their_source(void **state) {
    (void)state;
    equals_law("vllm-reply", "vllm_reply_lists.json", 8, 40,
               "8 tokens of which no layer has an id left out");
}

static void sglang_reply_equals_its_source(void **state) {
    (void)state;
    equals_law("sglang-reply", "sglang_reply.json", 0, 400, "1 dense layer left out");
}

/* A shifted layer axis must not pass: 27 rows are not 26 MoE layers, whatever is said. */
static void layer_axes_are_checked(void **state) {
    (void)state;
    const bl_model model = bl_test_lite_model();
    bl_import_options options = with(&model);
    options.layers = "moe";
    bl_test_import_trace_fails("vllm-reply", bl_test_data("fixtures/vllm_reply.json"), &options,
                               BL_ERR_MODEL, "27 rows are not the MoE layers");
    options.layers = "all";
    bl_test_import_trace_fails("vllm-reply", bl_test_data("fixtures/vllm_reply_lists.json"),
                               &options, BL_ERR_MODEL, "26 rows are not all layers");
}

/* ---- what nobody picked ---------------------------------------------------------------------- */

/* vllm #38128: rows [0,1], [2,-1], [-1,-1]: two tokens, counts 1 1 1 0. */
static void padding_is_no_load(void **state) {
    (void)state;
    const bl_model model = toy_model();
    const bl_import_options options = with(&model);
    const char *out = bl_test_temp("padding.blt");
    const char *text = "{\"choices\":[{\"routed_experts\":[[[0,1],[0,1]],[[2,-1],[2,-1]],"
                       "[[-1,-1],[-1,-1]]]}]}";
    const bl_import_result result =
        bl_test_import_trace("vllm-reply", bl_test_write("p.json", text), &options, out);
    assert_int_equal(result.tokens, 2);
    bl_test_has(result.notes, "1 tokens of which no layer has an id left out");
    bl_loads loads = bl_test_import_loads(out, &model);
    row_is(&loads, 0, 0, 1, 1, 1, 0);
    row_is(&loads, 0, 1, 1, 1, 1, 0);
    bl_loads_free(&loads);
}

/* Token 0 is whole, token 1 was never filled in layer 2, token 2 nowhere. */
static void zeros_are_no_load(void **state) {
    (void)state;
    bl_error err;
    const bl_model model = toy_model();
    const bl_import_options options = with(&model);
    const uint8_t ids[3][2][2] = {{{0, 1}, {2, 3}}, {{1, 2}, {0, 0}}, {{0, 0}, {0, 0}}};
    const char *npy = bl_test_temp("zeros.npy"), *out = bl_test_temp("zeros.blt");
    assert_ok(bl_npy_write(npy, "|u1", (size_t[]){3, 2, 2}, 3, ids, &err));
    const bl_import_result result = bl_test_import_trace("topk-npy", npy, &options, out);
    assert_int_equal(result.tokens, 2);
    bl_test_has(result.notes, "1 tokens of which no layer has an id left out");
    bl_test_has(result.notes, "3 rows of 2 equal ids left out");
    bl_loads loads = bl_test_import_loads(out, &model);
    row_is(&loads, 0, 0, 1, 2, 1, 0);
    row_is(&loads, 0, 1, 0, 0, 1, 1);
    bl_loads_free(&loads);
}

/* ---- forms of a reply ------------------------------------------------------------------------ */

static void to_base64(const unsigned char *bytes, size_t n, char *out) {
    static const char alphabet[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (size_t i = 0; i < n; i += 3) {
        const unsigned group = (unsigned)bytes[i] << 16 |
                               (unsigned)(i + 1 < n ? bytes[i + 1] : 0) << 8 |
                               (unsigned)(i + 2 < n ? bytes[i + 2] : 0);
        *out++ = alphabet[group >> 18];
        *out++ = alphabet[group >> 12 & 63];
        *out++ = i + 1 < n ? alphabet[group >> 6 & 63] : '=';
        *out++ = i + 2 < n ? alphabet[group & 63] : '=';
    }
    *out = '\0';
}

/* Two tokens [3 decoder layers, 2], layer 0 dense: layer 1 picks 0 1 and 1 2, layer 2 picks 2 3
 * and 3 0. */
static const uint8_t TOKENS[12] = {0, 0, 0, 1, 2, 3, 0, 0, 1, 2, 3, 0};

static const char *sglang_text(int item_bytes, const char *format) {
    static char text[1024];
    unsigned char raw[48] = {0};
    char base64[80];
    for (size_t i = 0; i < 12; i++)
        raw[i * (size_t)item_bytes] = TOKENS[i];
    to_base64(raw, (size_t)(12 * item_bytes), base64);
    snprintf(text, sizeof text, format, base64);
    return text;
}

static void sglang_ok(const char *text) {
    const bl_model model = toy_model();
    const bl_import_options options = with(&model);
    const char *out = bl_test_temp("sg.blt");
    const bl_import_result result =
        bl_test_import_trace("sglang-reply", bl_test_write("sg.json", text), &options, out);
    assert_int_equal(result.tokens, 2);
    bl_loads loads = bl_test_import_loads(out, &model);
    row_is(&loads, 0, 0, 1, 2, 1, 0);
    row_is(&loads, 0, 1, 1, 0, 1, 2);
    bl_loads_free(&loads);
}

static void sglang_fails(const char *text, bl_status code, const char *part) {
    const bl_model model = toy_model();
    const bl_import_options options = with(&model);
    bl_test_import_trace_fails("sglang-reply", bl_test_write("sg.json", text), &options, code,
                               part);
}

static void sglang_forms(void **state) {
    (void)state;
    sglang_ok(sglang_text(4, "{\"meta_info\":{\"routed_experts\":\"%s\",\"prompt_tokens\":2,"
                             "\"completion_tokens\":1}}"));
    sglang_ok(sglang_text(2, "{\"meta_info\":{\"routed_experts\":\"%s\","
                             "\"routed_experts_dtype\":\"uint16\"}}"));
    sglang_ok(sglang_text(1, "[{\"meta_info\":{\"routed_experts\":\"%s\","
                             "\"routed_experts_dtype\":\"uint8\"}}]"));
    sglang_ok(sglang_text(4, "{\"usage\":{\"prompt_tokens\":2,\"completion_tokens\":1},"
                             "\"choices\":[{\"sgl_ext\":{\"routed_experts\":\"%s\"}}]}"));
    sglang_ok(sglang_text(4, "{\"meta_info\":{\"routed_experts\":\"%s\",\"prompt_tokens\":5,"
                             "\"completion_tokens\":1,\"routed_experts_start_len\":3}}"));
    sglang_ok(sglang_text(4, "\"%s\""));
}

static void sglang_lengths_are_checked(void **state) {
    (void)state;
    sglang_fails(sglang_text(4, "{\"meta_info\":{\"routed_experts\":\"%s\",\"prompt_tokens\":3,"
                                "\"completion_tokens\":1}}"),
                 BL_ERR_SHAPE, "or 3 tokens by prompt_tokens + completion_tokens - 1");
    sglang_fails(sglang_text(4, "{\"usage\":{\"prompt_tokens\":2,\"completion_tokens\":3},"
                                "\"choices\":[{\"sgl_ext\":{\"routed_experts\":\"%s\"}}]}"),
                 BL_ERR_SHAPE, "or 4 tokens");
    sglang_fails(sglang_text(1, "{\"meta_info\":{\"routed_experts\":\"%s\"}}"), BL_ERR_SHAPE,
                 "12 bytes of \"routed_experts\" are not whole tokens of 24 bytes");
    sglang_fails(sglang_text(4, "{\"meta_info\":{\"routed_experts\":\"%s\","
                                "\"routed_experts_dtype\":\"float16\"}}"),
                 BL_ERR_UNSUPPORTED, "float16");
    sglang_fails(sglang_text(4, "{\"meta_info\":{\"routed_experts\":\"%sA\"}}"), BL_ERR_PARSE,
                 "no multiple of 4");
    sglang_fails("{\"meta_info\":{\"routed_experts\":\"AA=A\"}}", BL_ERR_PARSE, "character 3 of 4");
    sglang_fails("{\"meta_info\":{\"routed_experts\":[1]}}", BL_ERR_PARSE, "is no base64");
    sglang_fails("{\"meta_info\":{\"id\":\"x\"}}", BL_ERR_PARSE, "(return_routed_experts)");
    /* two ids of 16 bits read as one of 32 */
    sglang_fails(sglang_text(2, "{\"meta_info\":{\"routed_experts\":\"%s\"}}"), BL_ERR_RANGE,
                 "is not a logical expert below 4");
    const bl_import_options none = BL_IMPORT_OPTIONS_INIT;
    bl_test_import_trace_fails("sglang-reply", bl_test_write("sg.json", "{}"), &none, BL_ERR_MODEL,
                               "give --model");
}

static void vllm_fails(const char *text, bl_status code, const char *part) {
    const bl_model model = toy_model();
    const bl_import_options options = with(&model);
    bl_test_import_trace_fails("vllm-reply", bl_test_write("v.json", text), &options, code, part);
}

static void vllm_refuses_what_it_cannot_be(void **state) {
    (void)state;
    vllm_fails("{\"choices\":[{\"text\":\"\"}]}", BL_ERR_PARSE, "(enable_return_routed_experts)");
    vllm_fails("{\"choices\":[{\"routed_experts\":3}]}", BL_ERR_PARSE, "neither a list nor base64");
    vllm_fails(sglang_text(4, "{\"choices\":[{\"routed_experts\":\"%s\"}]}"), BL_ERR_PARSE,
               "--from sglang-reply");
    vllm_fails("{\"routed_experts\":[[[0,1],[0,1]],[[0,1]]]}", BL_ERR_SHAPE,
               "token 1 is not 2 layers of 2 integer ids");
    vllm_fails("{\"routed_experts\":[[[0,1],[0,0.5]]]}", BL_ERR_SHAPE, "token 0 is not");
    vllm_fails("{\"routed_experts\":[[[0,1],[0,4]]]}", BL_ERR_RANGE,
               "id 4 is not a logical expert below 4");
    vllm_fails("{\"routed_experts\":[[[0,1],[1,9999999999]]]}", BL_ERR_RANGE, "expert below 4");
    vllm_fails("{\"routed_experts\":[[[0,1,2],[0,1,2]]]}", BL_ERR_MODEL,
               "3 experts per token, but the model has 2");
    vllm_fails("{\"routed_experts\":[]}", BL_ERR_SHAPE, "tokens of 0 layer rows");
    vllm_fails("[{\"routed_experts\":[[[0,1],[0,1]]]},{\"routed_experts\":[[[0,1]]]}]",
               BL_ERR_SHAPE, "1 layer rows and 2 ids, but 2 and 2 before");
    vllm_fails("{\"routed_experts\":[[[-1,-1],[-1,-1]]]}", BL_ERR_CONSERVATION, "no tokens");
}

/* Each reply is a sequence, over files and choices: with two of them in decode, a step of two tokens
 * takes one of each. Sequence 0: layer 1 picks 0 1, then (after a token without ids) 0 2; sequence
 * 1: 2 3; sequence 2 follows on the rank of sequence 0: 1 2. */
static void replies_are_sequences(void **state) {
    (void)state;
    bl_error err;
    const bl_model model = toy_model();
    bl_import_options options = with(&model);
    const char *paths[] = {
        bl_test_write("r0.json",
                      "{\"choices\":[{\"routed_experts\":[[[0,1],[0,1]],[[-1,-1],[-1,-1]],"
                      "[[0,2],[0,2]]]},{\"routed_experts\":[[[2,3],[2,3]]]}]}"),
        bl_test_write("r1.json", "{\"routed_experts\":[[[1,2],[1,2]]]}")};
    const char *out = bl_test_temp("seq.blt");
    bl_import_result result;
    options.phase = BL_PHASE_DECODE;
    assert_ok(bl_import_parse_compose("batch=2,ranks=2", &options, &err));
    assert_ok(bl_import("vllm-reply", paths, 2, &options, out, &result, &err));
    assert_int_equal(result.steps, 3);
    assert_int_equal(result.tokens, 4);
    bl_loads loads = bl_test_import_loads(out, &model);
    assert_int_equal(loads.n_steps, 3);
    row_is(&loads, 0, 0, 1, 1, 1, 1);
    row_is(&loads, 1, 0, 1, 0, 1, 0);
    row_is(&loads, 2, 1, 0, 1, 1, 0);
    bl_loads_free(&loads);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(vllm_npy_equals_its_source),
        cmocka_unit_test(vllm_lists_equal_their_source),
        cmocka_unit_test(sglang_reply_equals_its_source),
        cmocka_unit_test(layer_axes_are_checked),
        cmocka_unit_test(padding_is_no_load),
        cmocka_unit_test(zeros_are_no_load),
        cmocka_unit_test(sglang_forms),
        cmocka_unit_test(sglang_lengths_are_checked),
        cmocka_unit_test(vllm_refuses_what_it_cannot_be),
        cmocka_unit_test(replies_are_sequences),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
