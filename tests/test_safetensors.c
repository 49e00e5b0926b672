/* The checkpoint reader: what it reads, and what it refuses. */
#include "tests/support/support.h"

#include "core/safetensors.h"
#include "runtime/qwen3.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MODEL "examples/tiny-moe"

/* A file of this header and n_data bytes 0, 1, 2, ...; header_bytes -1: as long as the header. */
static const char *write_file(const char *name, const char *header, int64_t header_bytes,
                              size_t n_data) {
    const char *path = bl_test_temp(name);
    FILE *out = fopen(path, "wb");
    assert_non_null(out);
    const uint64_t n = header_bytes < 0 ? strlen(header) : (uint64_t)header_bytes;
    for (int i = 0; i < 8; i++)
        fputc((int)(n >> (8 * i) & 0xff), out);
    fputs(header, out);
    for (size_t i = 0; i < n_data; i++)
        fputc((int)(i & 0xff), out);
    assert_int_equal(fclose(out), 0);
    return path;
}

#define TWO                                                               \
    "{\"__metadata__\":{\"format\":\"pt\"},"                              \
    "\"b\":{\"dtype\":\"BF16\",\"shape\":[2,3],\"data_offsets\":[4,16]}," \
    "\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]}}   "

static void reads_one_tensor_at_a_time(void **state) {
    (void)state;
    bl_error err;
    bl_safetensors *reader;
    unsigned char bytes[12];
    const uint64_t shape[2] = {2, 3};
    assert_ok(bl_safetensors_open(write_file("two", TWO, -1, 16), &reader, &err));
    assert_int_equal(bl_safetensors_count(reader), 2);
    assert_string_equal(bl_safetensors_at(reader, 0)->name, "a");
    assert_int_equal(bl_safetensors_find(reader, "b")->bytes, 12);
    assert_null(bl_safetensors_find(reader, "c"));
    assert_ok(bl_safetensors_read(reader, "b", "BF16", shape, 2, bytes, &err));
    for (int i = 0; i < 12; i++)
        assert_int_equal(bytes[i], 4 + i);
    bl_safetensors_free(reader);
}

static void names_what_does_not_fit(void **state) {
    (void)state;
    bl_error err;
    bl_safetensors *reader;
    unsigned char bytes[12];
    const uint64_t turned[2] = {3, 2}, shape[2] = {2, 3};
    assert_ok(bl_safetensors_open(write_file("two", TWO, -1, 16), &reader, &err));
    assert_fails(bl_safetensors_read(reader, "b", "BF16", turned, 2, bytes, &err), BL_ERR_SHAPE,
                 "tensor b is BF16 [2, 3], the config asks for BF16 [3, 2]");
    assert_fails(bl_safetensors_read(reader, "b", "F16", shape, 2, bytes, &err), BL_ERR_SHAPE,
                 "asks for F16 [2, 3]");
    assert_fails(bl_safetensors_read(reader, "a", "F32", shape, 1, bytes, &err), BL_ERR_SHAPE,
                 "tensor a is F32 []");
    assert_fails(bl_safetensors_read(reader, "x", "F32", shape, 2, bytes, &err), BL_ERR_MODEL,
                 "no tensor x");
    bl_safetensors_free(reader);
}

#define ENTRY(type, shape, offsets) \
    "{\"t\":{\"dtype\":\"" type "\",\"shape\":" shape ",\"data_offsets\":" offsets "}}"

static void refuses_hostile_headers(void **state) {
    (void)state;
    static const struct {
        const char *header;
        uint64_t data;
        bl_status status;
        const char *part;
    } cases[] = {
        {"", 0, BL_ERR_PARSE, ""},
        {"[]", 0, BL_ERR_PARSE, "not an object"},
        {"{\"t\":1}", 0, BL_ERR_PARSE, "tensor t"},
        {"{\"t\":{}}", 0, BL_ERR_PARSE, "needs dtype"},
        {ENTRY("F99", "[1]", "[0,4]"), 4, BL_ERR_UNSUPPORTED, "unknown dtype F99"},
        {ENTRY("F32", "[1]", "[0]"), 4, BL_ERR_PARSE, "data_offsets"},
        {ENTRY("F32", "[1]", "[0,\"4\"]"), 4, BL_ERR_PARSE, "numbers of 0 or more"},
        {ENTRY("F32", "[-1]", "[0,4]"), 4, BL_ERR_PARSE, "numbers of 0 or more"},
        {ENTRY("F32", "[1.0]", "[0,4]"), 4, BL_ERR_PARSE, "numbers of 0 or more"},
        {ENTRY("F32", "[1]", "[0,8]"), 4, BL_ERR_RANGE, "leave the file's 4 bytes"},
        {ENTRY("F32", "[1]", "[4,0]"), 4, BL_ERR_RANGE, "leave the file's 4 bytes"},
        {ENTRY("F32", "[2]", "[0,4]"), 4, BL_ERR_SHAPE, "4 bytes of data, but F32 [2] needs 8"},
        {ENTRY("F32", "[4294967296,4294967296]", "[0,0]"), 0, BL_ERR_RANGE, "overflows"},
        {ENTRY("U8", "[1,1,1,1,1,1,1,1,1]", "[0,1]"), 1, BL_ERR_UNSUPPORTED, "9 dimensions"},
        {ENTRY("U8", "[4]", "[0,4]"), 6, BL_ERR_RANGE, "2 bytes behind the last tensor"},
        {ENTRY("U8", "[4]", "[2,6]"), 6, BL_ERR_RANGE, "2 bytes in front of tensor t"},
        {"{\"t\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
         "\"u\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[2,6]}}",
         6, BL_ERR_RANGE, "tensors t and u overlap"},
        {"{\"t\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
         "\"t\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}",
         4, BL_ERR_PARSE, ""},
    };
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        bl_error err;
        bl_safetensors *reader = NULL;
        assert_fails(bl_safetensors_parse(cases[c].header, strlen(cases[c].header), cases[c].data,
                                          "case", &reader, &err),
                     cases[c].status, cases[c].part);
        assert_null(reader);
        assert_string_equal(err.file, "case");
    }
}

static void refuses_files_that_are_not_safetensors(void **state) {
    (void)state;
    bl_error err;
    bl_safetensors *reader = NULL;
    assert_fails(bl_safetensors_open("does-not-exist", &reader, &err), BL_ERR_IO, "cannot open");
    assert_fails(bl_safetensors_open("/tmp", &reader, &err), BL_ERR_IO, "no regular file");
    const char *pipe = bl_test_temp("pipe");
    unlink(pipe);
    assert_int_equal(mkfifo(pipe, 0600), 0); /* nobody writes: to wait would be for ever */
    assert_fails(bl_safetensors_open(pipe, &reader, &err), BL_ERR_IO, "no regular file");
    unlink(pipe);
    assert_fails(bl_safetensors_open(bl_test_write("short", "1234567"), &reader, &err),
                 BL_ERR_PARSE, "7 bytes");
    assert_fails(bl_safetensors_open(write_file("long", TWO, 1 << 20, 16), &reader, &err),
                 BL_ERR_PARSE, "a header of 1048576 bytes");
    assert_fails(bl_safetensors_open(write_file("huge", TWO, INT64_MAX, 16), &reader, &err),
                 BL_ERR_PARSE, "a header of 9223372036854775807 bytes");
    assert_fails(bl_safetensors_open(write_file("cut", TWO, -1, 15), &reader, &err), BL_ERR_RANGE,
                 "tensor b: data_offsets [4, 16] leave the file's 15 bytes");
    assert_null(reader);
}

/* ---- the model ------------------------------------------------------------------------------ */

static void bundle_is_gate_up_down_as_in_the_file(void **state) {
    (void)state;
    bl_error err;
    bl_qwen3 *model;
    bl_safetensors *reader;
    assert_ok(bl_qwen3_open(MODEL, &model, &err));
    assert_ok(bl_safetensors_open(MODEL "/model.safetensors", &reader, &err));
    const size_t bytes = bl_qwen3_bundle_bytes(bl_qwen3_config_of(model));
    assert_int_equal(bytes, 3 * 64 * 128 * 2);
    unsigned char *bundle = malloc(bytes), *part = malloc(bytes);
    assert_ok(bl_qwen3_read_expert(model, 5, 31, bundle, &err));
    static const char *const names[] = {"gate_proj", "up_proj", "down_proj"};
    for (int p = 0; p < 3; p++) {
        char name[128];
        const uint64_t shape[2] = {p < 2 ? 64 : 128, p < 2 ? 128 : 64};
        snprintf(name, sizeof name, "model.layers.5.mlp.experts.31.%s.weight", names[p]);
        assert_ok(bl_safetensors_read(reader, name, "BF16", shape, 2, part, &err));
        assert_memory_equal(bundle + (size_t)p * bytes / 3, part, bytes / 3);
    }
    assert_fails(bl_qwen3_read_expert(model, 6, 0, bundle, &err), BL_ERR_MODEL,
                 "no tensor model.layers.6.mlp.experts.0.gate_proj.weight");
    free(bundle);
    free(part);
    bl_safetensors_free(reader);
    bl_qwen3_free(model);
}

static void config_names_what_it_cannot_run(void **state) {
    (void)state;
    static const struct {
        const char *key;
        const char *value;
        bl_status status;
        const char *part;
    } cases[] = {
        {"model_type", "\"mixtral\"", BL_ERR_MODEL, "mixtral"},
        {"hidden_act", "\"gelu\"", BL_ERR_UNSUPPORTED, "hidden_act"},
        {"attention_bias", "true", BL_ERR_UNSUPPORTED, "attention_bias"},
        {"decoder_sparse_step", "2", BL_ERR_UNSUPPORTED, "decoder_sparse_step"},
        {"mlp_only_layers", "[0]", BL_ERR_UNSUPPORTED, "mlp_only_layers"},
        {"rope_scaling", "{\"type\":\"yarn\"}", BL_ERR_UNSUPPORTED, "rope_scaling"},
        {"quantization_config", "{\"quant_method\":\"fp8\"}", BL_ERR_UNSUPPORTED,
         "quantization_config"},
        {"num_experts_per_tok", "33", BL_ERR_RANGE, "num_experts_per_tok"},
        {"num_key_value_heads", "3", BL_ERR_SHAPE, "does not divide"},
        {"head_dim", "31", BL_ERR_SHAPE, "not even"},
        {"hidden_size", "0", BL_ERR_RANGE, "hidden_size"},
        {"hidden_size", "null", BL_ERR_PARSE, "hidden_size"},
        {"rms_norm_eps", "\"x\"", BL_ERR_PARSE, "rms_norm_eps"},
    };
    bl_error err;
    json_t *root;
    bl_qwen3_config config;
    assert_ok(bl_json_load(MODEL "/config.json", &root, &err));
    assert_ok(bl_qwen3_config_from_json(root, "c", &config, &err));
    assert_int_equal(config.n_experts, 32);
    assert_int_equal(config.max_positions, 512);
    assert_true(config.renormalise && !config.tied);
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        json_t *changed = json_deep_copy(root);
        json_object_set_new(changed, cases[c].key,
                            json_loads(cases[c].value, JSON_DECODE_ANY, NULL));
        assert_fails(bl_qwen3_config_from_json(changed, "c", &config, &err), cases[c].status,
                     cases[c].part);
        json_decref(changed);
    }
    json_decref(root);
}

/* A checkpoint whose tensors do not have the config's shapes, and one that is cut. */
static void model_must_match_its_config(void **state) {
    (void)state;
    bl_error err;
    bl_qwen3 *model = NULL;
    json_t *root;
    char command[1400], path[600];
    snprintf(path, sizeof path, "%s", bl_test_temp("model"));
    snprintf(command, sizeof command, "mkdir -p '%s' && cp " MODEL "/config.json '%s'", path, path);
    assert_int_equal(system(command), 0);
    assert_fails(bl_qwen3_open(path, &model, &err), BL_ERR_IO, "cannot open");
    snprintf(command, sizeof command,
             "head -c 100000 " MODEL "/model.safetensors > '%s'/model.safetensors", path);
    assert_int_equal(system(command), 0);
    assert_fails(bl_qwen3_open(path, &model, &err), BL_ERR_RANGE, "leave the file's");
    snprintf(command, sizeof command, "cp " MODEL "/model.safetensors '%s'", path);
    assert_int_equal(system(command), 0);
    assert_ok(bl_json_load(MODEL "/config.json", &root, &err));
    json_object_set_new(root, "num_experts", json_integer(16));
    snprintf(command, sizeof command, "%s/config.json", path);
    assert_ok(bl_json_write(command, root, 0, &err));
    json_decref(root);
    assert_fails(
        bl_qwen3_open(path, &model, &err), BL_ERR_SHAPE,
        "model.layers.0.mlp.gate.weight is BF16 [32, 128], the config asks for BF16 [16, 128]");
    assert_null(model);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_one_tensor_at_a_time),
        cmocka_unit_test(names_what_does_not_fit),
        cmocka_unit_test(refuses_hostile_headers),
        cmocka_unit_test(refuses_files_that_are_not_safetensors),
        cmocka_unit_test(bundle_is_gate_up_down_as_in_the_file),
        cmocka_unit_test(config_names_what_it_cannot_run),
        cmocka_unit_test(model_must_match_its_config),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
