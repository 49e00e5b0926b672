/*
 * vllm_patched.c: the map of vLLM's open pull request #49572.
 *
 *     [[P], ...]    the expert in each slot, a row for each MoE layer
 *
 * vLLM as released reads no placement at start; with that change it reads this one. A single row
 * without the outer brackets stands for all layers; it is read, not written.
 */
#include "planner/engines/engine.h"

static bl_status write_map(const bl_export *x, const char *path, bl_error *err) {
    return bl_export_json(path, bl_export_rows(x), err);
}

static void start(const bl_export *x, const char *path, FILE *out) {
    fprintf(
        out,
        "vLLM as released cannot read this file: it needs a patched vLLM, with pull request "
        "#49572\n"
        "start that on %d expert-parallel ranks with: --enable-expert-parallel --enable-eplb "
        "--eplb-config '{\"num_redundant_experts\": %d, \"initial_expert_map_path\": \"%s\"}'\n",
        x->n_ranks, x->n_redundant, path);
}

static bool is_map(const bl_engine_file *file) {
    return json_is_array(file->tree);
}

static bool is_one_for_all(const json_t *rows) {
    return json_is_integer(json_array_get(rows, 0));
}

static bl_status read_shape(const bl_engine_file *file, const bl_model *model, int n_ranks,
                            int64_t *n_slots, bl_error *err) {
    const json_t *rows = file->tree;
    (void)n_ranks;
    if (is_one_for_all(rows)) {
        *n_slots = (int64_t)json_array_size(rows);
        return BL_OK;
    }
    *n_slots = (int64_t)json_array_size(json_array_get(rows, 0));
    return bl_engine_expect_rows(file, model, json_array_size(rows), err);
}

static bl_status read_layer(const bl_engine_file *file, const bl_model *model, int n_ranks,
                            int index, int n_slots, int64_t *expert, bl_error *err) {
    const json_t *rows = file->tree;
    (void)n_ranks;
    return bl_engine_row(is_one_for_all(rows) ? rows : json_array_get(rows, (size_t)index),
                         file->path, model->moe_layers[index], n_slots, expert, err);
}

const bl_engine bl_engine_vllm_patched = {
    .name = "vllm-patched",
    .title = "patched vLLM",
    .rule = BL_RULE_EVEN,
    .write = write_map,
    .start = start,
    .is = is_map,
    .read_shape = read_shape,
    .read_layer = read_layer,
};
