/* A checkpoint in several files: the same tensors, and what is said when index and files differ. */
#include "tests/support/support.h"

#include "core/checkpoint.h"
#include "core/json.h"
#include "runtime/qwen3.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define MODEL "examples/tiny-moe"
#define N_FILES 3

static const char *file_name(int file) {
    static char name[64];
    snprintf(name, sizeof name, "model-%05d-of-%05d.safetensors", file + 1, N_FILES);
    return name;
}

/* Tensors are dealt one by one, so that an expert's parts lie in different files. */
static void write_file(const char *dir, const bl_safetensors *from, int file, json_t *weight_map) {
    char path[1024];
    json_t *header = json_object();
    uint64_t at = 0;
    for (size_t i = (size_t)file; i < bl_safetensors_count(from); i += N_FILES) {
        const bl_safetensor *tensor = bl_safetensors_at(from, i);
        json_t *shape = json_array();
        for (int d = 0; d < tensor->n_dims; d++)
            json_array_append_new(shape, json_integer((json_int_t)tensor->shape[d]));
        json_object_set_new(header, tensor->name,
                            json_pack("{s:s, s:o, s:[I, I]}", "dtype", tensor->dtype, "shape",
                                      shape, "data_offsets", (json_int_t)at,
                                      (json_int_t)(at + tensor->bytes)));
        json_object_set_new(weight_map, tensor->name, json_string(file_name(file)));
        at += tensor->bytes;
    }
    char *text = json_dumps(header, JSON_COMPACT);
    snprintf(path, sizeof path, "%s/%s", dir, file_name(file));
    FILE *out = fopen(path, "wb");
    assert_non_null(out);
    for (int i = 0; i < 8; i++)
        fputc((int)(strlen(text) >> (8 * i) & 0xff), out);
    fputs(text, out);
    for (size_t i = (size_t)file; i < bl_safetensors_count(from); i += N_FILES) {
        bl_error err;
        const bl_safetensor *tensor = bl_safetensors_at(from, i);
        void *bytes = malloc(tensor->bytes);
        assert_ok(bl_safetensors_read(from, tensor->name, tensor->dtype, tensor->shape,
                                      tensor->n_dims, bytes, &err));
        assert_int_equal(fwrite(bytes, 1, tensor->bytes, out), tensor->bytes);
        free(bytes);
    }
    assert_int_equal(fclose(out), 0);
    free(text);
    json_decref(header);
}

/* The tiny model in three files; its folder, and its index for tests to spoil. */
static char dir[512], index_path[600];
static json_t *index_root;

static int split_model(void **state) {
    (void)state;
    bl_error err = BL_ERROR_INIT;
    bl_safetensors *from;
    json_t *config;
    char path[600];
    snprintf(dir, sizeof dir, "%s", bl_test_temp("split"));
    snprintf(index_path, sizeof index_path, "%s/model.safetensors.index.json", dir);
    if (mkdir(dir, 0755) != 0 || bl_safetensors_open(MODEL "/model.safetensors", &from, &err) < 0 ||
        bl_json_load(MODEL "/config.json", &config, &err) < 0)
        return -1;
    snprintf(path, sizeof path, "%s/config.json", dir);
    if (bl_json_write(path, config, 0, &err) < 0)
        return -1;
    json_decref(config);
    json_t *weight_map = json_object();
    for (int file = 0; file < N_FILES; file++)
        write_file(dir, from, file, weight_map);
    bl_safetensors_free(from);
    index_root = json_pack("{s:{s:i}, s:o}", "metadata", "total_size", 1, "weight_map", weight_map);
    return 0;
}

static int drop_index(void **state) {
    (void)state;
    json_decref(index_root);
    return 0;
}

static void write_index(const json_t *root) {
    bl_error err;
    assert_ok(bl_json_write(index_path, root, 0, &err));
}

static void many_files_hold_what_one_holds(void **state) {
    (void)state;
    bl_error err;
    bl_qwen3 *one, *many;
    bl_checkpoint *checkpoint;
    write_index(index_root);
    assert_ok(bl_checkpoint_open(dir, &checkpoint, &err));
    assert_int_equal(bl_checkpoint_n_files(checkpoint), N_FILES);
    assert_int_equal(bl_checkpoint_count(checkpoint),
                     json_object_size(json_object_get(index_root, "weight_map")));
    bl_checkpoint_free(checkpoint);
    assert_ok(bl_qwen3_open(MODEL, &one, &err));
    assert_ok(bl_qwen3_open(dir, &many, &err));
    const bl_qwen3_config *c = bl_qwen3_config_of(one);
    const size_t bytes = bl_qwen3_bundle_bytes(c), n_head = (size_t)c->vocab * (size_t)c->hidden;
    unsigned char *a = malloc(bytes), *b = malloc(bytes);
    assert_memory_equal(bl_qwen3_head(one), bl_qwen3_head(many), n_head * 2);
    for (int layer = 0; layer < c->n_layers; layer++) {
        assert_memory_equal(bl_qwen3_layer_of(one, layer)->router,
                            bl_qwen3_layer_of(many, layer)->router,
                            (size_t)c->n_experts * (size_t)c->hidden * 2);
        for (int expert = 0; expert < c->n_experts; expert++) {
            assert_ok(bl_qwen3_read_expert(one, layer, expert, a, &err));
            assert_ok(bl_qwen3_read_expert(many, layer, expert, b, &err));
            assert_memory_equal(a, b, bytes);
        }
    }
    free(a);
    free(b);
    bl_qwen3_free(one);
    bl_qwen3_free(many);
}

#define EXPERT "model.layers.3.mlp.experts.5.up_proj.weight"

static void index_and_files_must_agree(void **state) {
    (void)state;
    bl_error err;
    bl_checkpoint *checkpoint = NULL;
    const char *home =
        json_string_value(json_object_get(json_object_get(index_root, "weight_map"), EXPERT));
    const struct {
        const char *tensor;
        json_t *value; /* NULL: left out */
        bl_status status;
        const char *part;
    } cases[] = {
        {EXPERT, NULL, BL_ERR_MODEL, "holds tensor " EXPERT ", which the index gives to no file"},
        {EXPERT, json_string(strcmp(home, file_name(0)) == 0 ? file_name(1) : file_name(0)),
         BL_ERR_MODEL, "which the index gives to model-0000"},
        {"model.extra", json_string(file_name(2)), BL_ERR_MODEL,
         "tensor model.extra is not in model-00003-of-00003.safetensors"},
        {"model.extra", json_string("model-00009.safetensors"), BL_ERR_IO, "cannot open"},
        {"model.extra", json_string("../../etc/passwd"), BL_ERR_PARSE, "without a folder"},
        {"model.extra", json_string(""), BL_ERR_PARSE, "model.extra: its file must be named"},
        {"model.extra", json_integer(3), BL_ERR_PARSE, "model.extra: its file must be named"},
    };
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        json_t *spoilt = json_deep_copy(index_root);
        json_t *weight_map = json_object_get(spoilt, "weight_map");
        if (cases[c].value == NULL)
            json_object_del(weight_map, cases[c].tensor);
        else
            json_object_set_new(weight_map, cases[c].tensor, cases[c].value);
        write_index(spoilt);
        json_decref(spoilt);
        assert_fails(bl_checkpoint_open(dir, &checkpoint, &err), cases[c].status, cases[c].part);
    }
    json_t *none = json_pack("{s:{}}", "metadata");
    write_index(none);
    json_decref(none);
    assert_fails(bl_checkpoint_open(dir, &checkpoint, &err), BL_ERR_PARSE, "weight_map");
    assert_null(checkpoint);
}

static void one_file_goes_before_many(void **state) {
    (void)state;
    bl_error err;
    bl_checkpoint *checkpoint;
    char command[1300];
    write_index(index_root);
    snprintf(command, sizeof command, "cp " MODEL "/model.safetensors '%s'", dir);
    assert_int_equal(system(command), 0);
    assert_ok(bl_checkpoint_open(dir, &checkpoint, &err));
    assert_int_equal(bl_checkpoint_n_files(checkpoint), 1);
    bl_checkpoint_free(checkpoint);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(many_files_hold_what_one_holds),
        cmocka_unit_test(index_and_files_must_agree),
        cmocka_unit_test(one_file_goes_before_many),
    };
    return cmocka_run_group_tests(tests, split_model, drop_index);
}
