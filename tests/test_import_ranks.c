/* Recordings of which each rank wrote a file: they add up to what was routed, slots become experts
 * through the map, and a file that is missing is named. */
#include "tests/support/torch_file.h"
#include "tests/support/trace_imports.h"

#include "tracer/blt.h"
#include "tracer/stream.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- the fixtures: pass p of rank r holds tokens 128 p + 32 r .. + 31 of law.npy ------------- */

static bl_npy law(void) {
    bl_error err;
    bl_npy npy;
    assert_ok(bl_npy_load(bl_test_data("routing/deepseek-v2-lite/law.npy"), &npy, &err));
    return npy;
}

/* Counts of the ranks that are there, rank by rank. */
static void count_ranks(const bl_npy *npy, size_t pass, const int *ranks, size_t n_ranks,
                        uint64_t *counts) {
    static uint64_t part[26 * 64];
    memset(counts, 0, sizeof part);
    for (size_t i = 0; i < n_ranks; i++) {
        const size_t first = pass * 128 + (size_t)ranks[i] * 32;
        bl_test_count_tokens(npy, first, first + 32, part, 64);
        for (size_t c = 0; c < 26 * 64; c++)
            counts[c] += part[c];
    }
}

static void equals_law(const char *trace, size_t n_passes, const int *ranks, size_t n_ranks) {
    static uint64_t counts[26 * 64];
    const bl_model model = bl_test_lite_model();
    bl_npy npy = law();
    bl_loads loads = bl_test_import_loads(trace, &model);
    assert_int_equal(loads.n_steps, n_passes);
    assert_int_equal(loads.tokens, n_passes * n_ranks * 32);
    assert_false(loads.composed);
    for (int l = 0; l < 26; l++)
        assert_true(loads.usable[l]);
    for (size_t pass = 0; pass < n_passes; pass++) {
        count_ranks(&npy, pass, ranks, n_ranks, counts);
        assert_memory_equal(bl_loads_row(&loads, pass, 0), counts, sizeof counts);
    }
    bl_loads_free(&loads);
    bl_npy_free(&npy);
}

static bl_import_result import_passes(const char *const *paths, int n_paths, int ranks,
                                      const char *out) {
    bl_error err;
    bl_import_result result = {0};
    const bl_model model = bl_test_lite_model();
    bl_import_options options = BL_IMPORT_OPTIONS_INIT;
    options.model = &model;
    options.ranks = ranks;
    assert_ok(bl_import("sglang-pass", paths, n_paths, &options, out, &result, &err));
    return result;
}

static void per_token_equals_its_source(void **state) {
    (void)state;
    const char *paths[4], *out = bl_test_temp("pass.blt");
    char name[64];
    static const int order[4] = {2, 0, 3, 1}; /* in any order */
    for (int i = 0; i < 4; i++) {
        snprintf(name, sizeof name, "fixtures/sglang_per_token_%d.pt", order[i]);
        paths[i] = bl_test_data(name);
    }
    const bl_import_result result = import_passes(paths, 4, 0, out);
    assert_int_equal(result.steps, 12);
    assert_int_equal(result.tokens, 12 * 128);
    assert_string_equal(result.notes, "1 dense layer left out");
    equals_law(out, 12, (const int[]){0, 1, 2, 3}, 4);
}

/* Records keep their slots, phase and rank; the map beside them turns them into experts. */
static void per_token_keeps_its_slots(void **state) {
    (void)state;
    bl_error err;
    bl_blt_reader *reader;
    bl_npy npy = law();
    const char *path = bl_test_data("fixtures/sglang_per_token_1.pt");
    const char *out = bl_test_temp("slots.blt");
    size_t n_records = 0;
    import_passes(&path, 1, 4, out);
    assert_ok(bl_blt_open(out, &reader, &err));
    for (;;) {
        bl_record record;
        bool got;
        assert_ok(bl_blt_next(reader, &record, &got, &err));
        if (!got)
            break;
        assert_int_equal(record.flags, BL_RECORD_PHYSICAL);
        assert_int_equal(record.n_ids, 72);
        assert_int_equal(record.rank, 1);
        assert_int_equal(record.phase, record.step < 4 ? BL_PHASE_PREFILL : BL_PHASE_DECODE);
        assert_ok(bl_blt_to_logical(reader, &record, &err));
        for (size_t i = 0; i < 32 * 6; i++) {
            const size_t token = record.step * 128 + 32 + i / 6;
            assert_int_equal(record.ids[i],
                             bl_npy_int(&npy, (token * 26 + (size_t)record.layer - 1) * 6 + i % 6));
        }
        n_records++;
    }
    assert_int_equal(n_records, 12 * 26);
    bl_blt_reader_free(reader);
    bl_npy_free(&npy);
}

/* sgl #5275: four rank files, one missing. */
static void a_missing_rank_is_named(void **state) {
    (void)state;
    bl_error err;
    bl_stream *stream;
    const char *paths[] = {bl_test_data("fixtures/sglang_per_token_0.pt"),
                           bl_test_data("fixtures/sglang_per_token_1.pt"),
                           bl_test_data("fixtures/sglang_per_token_3.pt")};
    const char *out = bl_test_temp("missing.blt");
    bl_test_has(import_passes(paths, 3, 0, out).notes, "incomplete: rank 2;");
    equals_law(out, 12, (const int[]){0, 1, 3}, 3);
    assert_ok(bl_stream_open(out, &stream, &err));
    bl_test_has(bl_stream_notes(stream), "incomplete: rank 2");
    assert_false(bl_stream_is_complete(stream));
    bl_stream_free(stream);
    /* that the last one is missing, only the user knows */
    bl_test_has(import_passes(paths, 2, 4, out).notes, "incomplete: rank 2, rank 3;");
    bl_import_options options = BL_IMPORT_OPTIONS_INIT;
    const bl_model model = bl_test_lite_model();
    options.model = &model;
    options.ranks = 3;
    bl_test_import_trace_fails("sglang-pass", paths[2], &options, BL_ERR_RANGE,
                               "holds rank 3, but --ranks says there are 3");
    options.ranks = 5;
    bl_test_import_trace_fails("sglang-pass", paths[0], &options, BL_ERR_SHAPE,
                               "72 slots do not divide among 5 ranks");
    bl_import_result result;
    paths[1] = paths[0];
    options.ranks = 0;
    assert_fails(bl_import("sglang-pass", paths, 2, &options, out, &result, &err), BL_ERR_STATE,
                 "import one recording at a time");
    options.model = NULL;
    options.layers = "dense=1";
    options.top_k = 6;
    bl_test_import_trace_fails("sglang-pass", bl_test_data("fixtures/sglang_stat.pt"), &options,
                               BL_ERR_UNSUPPORTED, "--from sglang-stat");
}

static void trtllm_equals_its_source(void **state) {
    (void)state;
    const bl_model model = bl_test_lite_model();
    bl_import_options options = BL_IMPORT_OPTIONS_INIT;
    const char *out = bl_test_temp("trt.blt"), *path = bl_test_data("fixtures/trtllm_stat");
    const bl_import_result result = bl_test_import_trace("trtllm-stat", path, &options, out);
    assert_int_equal(result.steps, 16);
    assert_int_equal(result.tokens, 16 * 128);
    assert_string_equal(result.notes, "");
    equals_law(out, 16, (const int[]){0, 1, 2, 3}, 4);
    options.model = &model;
    bl_test_import_trace("trtllm-stat", path, &options, out);
    options.layers = "0-25";
    bl_test_import_trace_fails("trtllm-stat", path, &options, BL_ERR_MODEL,
                               "row 0 is decoder layer 1 by the file itself, but 0 by --layers");
}

/* ---- TensorRT-LLM, made ---------------------------------------------------------------------- */

/* A folder of this test run. */
static const char *folder(const char *name) {
    const char *path = bl_test_temp(name);
    mkdir(path, 0700);
    return path;
}

/* rank<r>.safetensors of `n` tensors of 4 counts each. */
static void write_counts(const char *in, const char *name, const char *const *names,
                         const int64_t (*counts)[4], size_t n) {
    char header[2048], path[512];
    size_t used = (size_t)snprintf(header, sizeof header, "{");
    for (size_t i = 0; i < n; i++)
        used += (size_t)snprintf(header + used, sizeof header - used,
                                 "%s\"%s\":{\"dtype\":\"I64\",\"shape\":[4],\"data_offsets\":[%zu,"
                                 "%zu]}",
                                 i > 0 ? "," : "", names[i], i * 32, i * 32 + 32);
    used += (size_t)snprintf(header + used, sizeof header - used, "}");
    const uint64_t length = used;
    snprintf(path, sizeof path, "%s/%s", in, name);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(&length, 8, 1, file), 1);
    assert_int_equal(fwrite(header, 1, used, file), used);
    assert_int_equal(fwrite(counts, sizeof *counts, n, file), n);
    assert_int_equal(fclose(file), 0);
}

/* Ranks 0 and 2 of 3; iterations 9 and 10 (as text, 10 comes first); rank 2 lacks iteration 9. The
 * raw file beside them is not read. */
static void folders_are_runs(void **state) {
    (void)state;
    bl_error err;
    bl_import_result result;
    const char *in = folder("stat"), *out = bl_test_temp("made.blt");
    static const char *const names[] = {"10_3", "10_7", "9_3", "9_7"};
    static const int64_t zero[4][4] = {{1, 1, 0, 0}, {0, 1, 1, 0}, {2, 1, 1, 0}, {1, 1, 1, 1}};
    static const int64_t two[2][4] = {{0, 0, 1, 1}, {1, 0, 0, 1}};
    write_counts(in, "rank0.safetensors", names, zero, 4);
    write_counts(in, "rank2.safetensors", names, two, 2);
    write_counts(in, "rank1_raw.safetensors", names, zero, 1);
    bl_import_options options = BL_IMPORT_OPTIONS_INIT;
    options.top_k = 2;
    const char *paths[] = {in, in};
    assert_ok(bl_import("trtllm-stat", paths, 2, &options, out, &result, &err));
    assert_int_equal(result.steps, 4);
    assert_int_equal(result.tokens, 2 * (2 + 1 + 1));
    bl_test_has(result.notes, "incomplete: rank 1;");
    bl_test_has(result.notes, "rank 2 lacks 1 of 2 steps");
    bl_loads loads = bl_test_import_loads(out, NULL);
    assert_int_equal(loads.n_steps, 4);
    assert_int_equal(loads.layers[1], 7);
    static const uint64_t want[2][2][4] = {{{2, 1, 1, 0}, {1, 1, 1, 1}},
                                           {{1, 1, 1, 1}, {1, 1, 1, 1}}};
    for (size_t step = 0; step < 4; step++)
        assert_memory_equal(bl_loads_row(&loads, step, 0), want[step % 2], sizeof want[0]);
    bl_loads_free(&loads);
}

static void trtllm_fails(const char *in, bl_status code, const char *part) {
    bl_import_options options = BL_IMPORT_OPTIONS_INIT;
    options.top_k = 2;
    bl_test_import_trace_fails("trtllm-stat", in, &options, code, part);
}

static void folders_that_are_none(void **state) {
    (void)state;
    static const int64_t counts[2][4] = {{1, 1, 0, 0}, {1, -1, 1, 1}};
    static const char *const bad_name[] = {"10_3x"}, *const negative[] = {"10_3", "10_7"},
                             *const twice[] = {"10_3", "010_3"};
    char in[256], meta[512];
    snprintf(in, sizeof in, "%s", folder("empty")); /* its storage is used again below */
    trtllm_fails(in, BL_ERR_PARSE, "no rank<r>.safetensors in it");
    trtllm_fails(bl_test_write("file", "x"), BL_ERR_PARSE, "not a folder");
    trtllm_fails(bl_test_temp("nowhere"), BL_ERR_IO, "cannot open");
    write_counts(in, "rank0.safetensors", bad_name, counts, 1);
    trtllm_fails(in, BL_ERR_PARSE, "\"10_3x\" is not named ITERATION_LAYER");
    write_counts(in, "rank0.safetensors", negative, counts, 2);
    trtllm_fails(in, BL_ERR_RANGE, "a count of -1");
    write_counts(in, "rank0.safetensors", twice, counts, 2);
    trtllm_fails(in, BL_ERR_PARSE, "two tensors of iteration 10");
    write_counts(in, "rank0.safetensors", negative, counts, 0);
    trtllm_fails(in, BL_ERR_CONSERVATION, "hold no counts");
    write_counts(in, "rank0.safetensors", negative, counts, 1);
    snprintf(meta, sizeof meta, "%s/meta_info.json", in);
    FILE *file = fopen(meta, "w");
    assert_non_null(file);
    fputs("{\"num_experts\":5,\"num_experts_per_token\":2}", file);
    fclose(file);
    trtllm_fails(in, BL_ERR_SHAPE, "5 experts, but the ranks counted 4");
    const bl_import_options none = BL_IMPORT_OPTIONS_INIT;
    unlink(meta);
    bl_test_import_trace_fails("trtllm-stat", in, &none, BL_ERR_MODEL, "--top-k");
}

/* ---- SGLang, made: 3 decoder layers (0 is dense), 4 experts in 6 slots on 2 ranks, top-2 ------ */

static const int32_t MAP[18] = {0, 1, 2, 3, 0, 1, 0, 1, 2, 3, 0, 1, 3, 2, 1, 0, 3, 2};

typedef struct made_pass {
    int id, mode; /* mode 0: not stated, per_pass */
    int32_t count[18];
    int32_t ids[3 * 2 * 8]; /* of two tokens; per_token */
} made_pass;

static void put_tensor(bl_test_pt *pt, const char *key, const int32_t *items, const int *shape,
                       int n_dims) {
    bl_test_pt_string(pt, key);
    bl_test_pt_tensor(pt, items, shape, n_dims);
}

static const char *write_rank(const char *name, int rank, const int32_t *map,
                              const made_pass *passes, int n_passes) {
    static bl_test_pt pt;
    bl_test_pt_open(&pt);
    bl_test_pt_ops(&pt, "}(");
    bl_test_pt_string(&pt, "records");
    bl_test_pt_ops(&pt, "](");
    for (int i = 0; i < n_passes; i++) {
        bl_test_pt_ops(&pt, "}(");
        bl_test_pt_string(&pt, "forward_pass_id");
        bl_test_pt_int(&pt, passes[i].id);
        bl_test_pt_string(&pt, "rank");
        bl_test_pt_int(&pt, rank);
        put_tensor(&pt, "global_physical_count", passes[i].count, (const int[]){3, 6}, 2);
        if (passes[i].mode > 0) {
            bl_test_pt_string(&pt, "forward_mode");
            bl_test_pt_int(&pt, passes[i].mode);
            put_tensor(&pt, "topk_ids_of_layer", passes[i].ids, (const int[]){3, 2, 8}, 3);
        }
        bl_test_pt_ops(&pt, "u");
    }
    bl_test_pt_ops(&pt, "e");
    put_tensor(&pt, "last_physical_to_logical_map", map, (const int[]){3, 6}, 2);
    bl_test_pt_ops(&pt, "u");
    return bl_test_pt_write(&pt, name);
}

static const bl_model *toy_model(void) {
    static int moe[] = {1, 2};
    static const bl_model model = {.name = "toy",
                                   .n_layers = 3,
                                   .n_moe_layers = 2,
                                   .moe_layers = moe,
                                   .n_experts = 4,
                                   .top_k = 2};
    return &model;
}

static bl_status import_toy(const char *const *paths, int n, const char *out,
                            bl_import_result *result, bl_error *err) {
    bl_import_options options = BL_IMPORT_OPTIONS_INIT;
    options.model = toy_model();
    return bl_import("sglang-pass", paths, n, &options, out, result, err);
}

/* Counted where tokens arrive: rank 0 has slots 0 to 2, rank 1 the others. Neither is a whole number
 * of tokens, their sum is: pass 7 has 3 tokens, pass 9 has 1, pass 8 none. */
static void per_pass_is_summed_over_ranks(void **state) {
    (void)state;
    bl_error err;
    bl_import_result result;
    const made_pass zero[3] = {{.id = 7, .count = {9, 9, 9, 0, 0, 0, 2, 1, 0, 0, 0, 0, 1, 0, 2}},
                               {.id = 8},
                               {.id = 9, .count = {[6] = 1, [13] = 1}}};
    const made_pass one[3] = {{.id = 7, .count = {[9] = 1, [10] = 1, [11] = 1, [15] = 1, [16] = 2}},
                              {.id = 8},
                              {.id = 9, .count = {[9] = 1, [17] = 1}}};
    const char *paths[] = {write_rank("p0.pt", 0, MAP, zero, 3),
                           write_rank("p1.pt", 1, MAP, one, 3)};
    const char *out = bl_test_temp("sum.blt");
    assert_ok(import_toy(paths, 2, out, &result, &err));
    assert_int_equal(result.steps, 2);
    assert_int_equal(result.tokens, 4);
    bl_test_has(result.notes, "a rebalance before it would not show");
    bl_test_has(result.notes, "1 steps without tokens left out");
    bl_loads loads = bl_test_import_loads(out, toy_model());
    /* layer 1: slots 2 1 0 1 1 1 hold 0 1 2 3 0 1; layer 2: slots 1 0 2 1 2 0 hold 3 2 1 0 3 2 */
    static const uint64_t want[2][2][4] = {{{3, 2, 0, 1}, {1, 2, 0, 3}},
                                           {{1, 0, 0, 1}, {0, 0, 2, 0}}};
    assert_int_equal(loads.n_steps, 2);
    for (size_t step = 0; step < 2; step++)
        assert_memory_equal(bl_loads_row(&loads, step, 0), want[step], sizeof want[0]);
    bl_loads_free(&loads);
}

#define NONE -1, -1, -1, -1, -1, -1
#define DENSE -1, -1, NONE, -1, -1, NONE

/* A pass whose tokens are made up is no load; one of which the counts disagree is said. */
static void idle_passes_are_dummies(void **state) {
    (void)state;
    bl_error err;
    bl_import_result result;
    const made_pass passes[2] = {
        {.id = 3,
         .mode = 5,
         .count = {[6] = 1, [9] = 1, [11] = 1, [12] = 2, [14] = 2},
         .ids = {DENSE, 0, 3, NONE, 5, -1, NONE, 0, 2, NONE, 2, 0, NONE}},
        {.id = 4, .mode = 4, .ids = {DENSE, 0, 1, NONE, 0, 1, NONE, 0, 1, NONE, 0, 1, NONE}}};
    const char *path = write_rank("idle.pt", 0, MAP, passes, 2), *out = bl_test_temp("idle.blt");
    assert_ok(import_toy(&path, 1, out, &result, &err));
    assert_int_equal(result.steps, 1);
    assert_int_equal(result.tokens, 2);
    bl_test_has(result.notes, "in 2 layers of passes the counts are not those of the ids");
    bl_loads loads = bl_test_import_loads(out, toy_model());
    static const uint64_t want[2][4] = {{1, 1, 0, 1}, {0, 2, 0, 2}};
    assert_int_equal(loads.n_steps, 1);
    assert_memory_equal(bl_loads_row(&loads, 0, 0), want, sizeof want);
    bl_loads_free(&loads);
}

/* vllm #33013: after a rebalance the map is no longer that of the ids. In layer 2, slots 0 and 4
 * both hold expert 3. */
static void a_rebalance_is_seen(void **state) {
    (void)state;
    bl_error err;
    bl_import_result result;
    made_pass pass = {
        .id = 3, .mode = 2, .ids = {DENSE, 0, 3, NONE, 5, 2, NONE, 0, 4, NONE, 2, 0, NONE}};
    int32_t other[18];
    const char *out = bl_test_temp("never.blt");
    const char *paths[2] = {write_rank("a.pt", 0, MAP, &pass, 1)};
    assert_fails(import_toy(paths, 1, out, &result, &err), BL_ERR_STATE,
                 "the experts were rebalanced while recording");
    assert_int_equal(err.layer, 2);
    assert_int_equal(err.expert, 3);
    pass.ids[33] = 1;
    memcpy(other, MAP, sizeof other);
    other[17] = 1;
    paths[0] = write_rank("a.pt", 0, MAP, &pass, 1);
    paths[1] = write_rank("b.pt", 1, other, &pass, 1);
    assert_fails(import_toy(paths, 2, out, &result, &err), BL_ERR_STATE,
                 "its map of slots to experts differs");
    paths[1] = write_rank("b.pt", 1, MAP, &pass, 1);
    assert_ok(import_toy(paths, 2, out, &result, &err));
    unlink(out);
}

static void passes_that_are_none(void **state) {
    (void)state;
    made_pass passes[2] = {
        {.id = 3, .mode = 2, .ids = {DENSE, 0, 3, NONE, 5, 2, NONE, 0, 1, NONE, 2, 0, NONE}},
        {.id = 2, .mode = 2, .ids = {DENSE, 0, 3, NONE, 5, 2, NONE, 0, 1, NONE, 2, 0, NONE}}};
    bl_import_options options = BL_IMPORT_OPTIONS_INIT;
    options.model = toy_model();
    const struct {
        int pass, at, value; /* of ids; at -1: nothing is changed */
        int mode, n;
        bl_status code;
        const char *part;
    } cases[] = {{0, -1, 0, 2, 2, BL_ERR_RANGE, "pass 2 comes after pass 3"},
                 {0, 16, 6, 2, 1, BL_ERR_RANGE, "id 6 is not a slot below 6"},
                 {0, 18, 1, 2, 1, BL_ERR_MODEL, "a token with 3 ids, but the model is top-2"},
                 {0, -1, 0, 0, 2, BL_ERR_STATE, "per_pass and per_token are mixed"},
                 {0, -1, 0, 2, 0, BL_ERR_PARSE, "no \"records\""}};
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        made_pass changed[2] = {passes[0], passes[1]};
        if (cases[c].at >= 0)
            changed[cases[c].pass].ids[cases[c].at] = cases[c].value;
        changed[0].mode = cases[c].mode;
        bl_test_import_trace_fails("sglang-pass", write_rank("bad.pt", 0, MAP, changed, cases[c].n),
                                   &options, cases[c].code, cases[c].part);
    }
    int32_t map[18];
    memcpy(map, MAP, sizeof map);
    map[4] = -1;
    bl_test_import_trace_fails("sglang-pass", write_rank("bad.pt", 0, map, passes, 1), &options,
                               BL_ERR_RANGE, "puts expert -1 into slot 4 of row 0");
    map[4] = 4;
    bl_test_import_trace_fails("sglang-pass", write_rank("bad.pt", 0, map, passes, 1), &options,
                               BL_ERR_MODEL, "5 experts, but the model has 4");
    bl_test_import_trace_fails("sglang-pass", folder("none"), &options, BL_ERR_PARSE,
                               "no .pt file in it");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(per_token_equals_its_source),
        cmocka_unit_test(per_token_keeps_its_slots),
        cmocka_unit_test(a_missing_rank_is_named),
        cmocka_unit_test(trtllm_equals_its_source),
        cmocka_unit_test(folders_are_runs),
        cmocka_unit_test(folders_that_are_none),
        cmocka_unit_test(per_pass_is_summed_over_ranks),
        cmocka_unit_test(idle_passes_are_dummies),
        cmocka_unit_test(a_rebalance_is_seen),
        cmocka_unit_test(passes_that_are_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
