/*
 * vllm_patched.c: the maps of two open pull requests of vLLM. As released, it reads none.
 *
 * #49572 (vllm-patched):
 *
 *     [[P], ...]    the expert in each slot, a row for each MoE layer
 *
 * A single row without the outer brackets stands for all layers; it is read, not written.
 *
 * #41141, "offline EPLB" (vllm-offline), in one line:
 *
 *     {"record_type": "eplb_initial_mapping", "version": 1, "num_redundant_experts": R,
 *      "num_slots": P, "initial_global_assignments": {"0": [P], "1": [P], ...}}
 *
 * The keys count MoE layers from 0.
 */
#include "planner/engines/engine.h"

#include <string.h>

static void start_patched(const bl_export *x, const char *change, const char *options, FILE *out) {
    fprintf(
        out,
        "vLLM as released cannot read this file: it needs a patched vLLM, with pull request %s\n"
        "start that on %d expert-parallel ranks with: --enable-expert-parallel --enable-eplb "
        "--eplb-config '{\"num_redundant_experts\": %d, %s}'\n",
        change, x->n_ranks, x->n_redundant, options);
}

/* ---- #49572 -----------------------------------------------------------------------------------*/

static bl_status write_map(const bl_export *x, const char *path, bl_error *err) {
    return bl_export_json(path, bl_export_rows(x), err);
}

static void start_map(const bl_export *x, const char *path, FILE *out) {
    char options[4200];
    snprintf(options, sizeof options, "\"initial_expert_map_path\": \"%s\"", path);
    start_patched(x, "#49572", options, out);
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
    .start = start_map,
    .is = is_map,
    .read_shape = read_shape,
    .read_layer = read_layer,
};

/* ---- #41141 -----------------------------------------------------------------------------------*/

#define TYPE_KEY "record_type"
#define TYPE "eplb_initial_mapping"
#define REDUNDANT_KEY "num_redundant_experts"
#define SLOTS_KEY "num_slots"
#define ROWS_KEY "initial_global_assignments"

static bl_status write_record(const bl_export *x, const char *path, bl_error *err) {
    const bl_placement *placement = &x->plan->placement;
    json_t *rows = json_object();
    for (int l = 0; l < placement->n_layers; l++) {
        char key[16];
        snprintf(key, sizeof key, "%d", l);
        json_object_set_new(rows, key, bl_export_row(&placement->layers[l], 0, x->n_slots));
    }
    const bool whole = json_object_size(rows) == (size_t)placement->n_layers;
    json_t *root =
        whole ? json_pack("{s:s,s:i,s:i,s:i,s:O}", TYPE_KEY, TYPE, "version", 1, REDUNDANT_KEY,
                          x->n_redundant, SLOTS_KEY, x->n_slots, ROWS_KEY, rows)
              : NULL;
    json_decref(rows);
    return bl_export_json(path, root, err);
}

static void start_record(const bl_export *x, const char *path, FILE *out) {
    char options[4200];
    snprintf(options, sizeof options,
             "\"initial_mapping_path\": \"%s\", \"disable_online_rebalancing\": true", path);
    start_patched(x, "#41141", options, out);
}

static bool is_record(const bl_engine_file *file) {
    return json_object_get(file->tree, TYPE_KEY) != NULL;
}

static bl_status read_record(const bl_engine_file *file, const bl_model *model, int n_ranks,
                             int64_t *n_slots, bl_error *err) {
    static const char *const keys[] = {TYPE_KEY,  "version", REDUNDANT_KEY,
                                       SLOTS_KEY, ROWS_KEY,  NULL};
    const char *type;
    const json_t *rows;
    int64_t version, redundant;
    (void)n_ranks;
    BL_TRY(bl_json_string(file->tree, TYPE_KEY, file->path, &type, err));
    if (strcmp(type, TYPE) != 0)
        return bl_fail_at(err, BL_ERR_PARSE, bl_at(file->path),
                          "\"" TYPE_KEY "\" is \"%.80s\"; a placement is \"" TYPE "\"", type);
    BL_TRY(bl_json_int(file->tree, "version", 0, INT32_MAX, file->path, &version, err));
    if (version != 1)
        return bl_fail_at(err, BL_ERR_VERSION, bl_at(file->path), "version %lld is not known, 1 is",
                          (long long)version);
    BL_TRY(bl_engine_only_keys(file, file->tree, keys, err));
    BL_TRY(bl_json_int(file->tree, SLOTS_KEY, 1, INT32_MAX, file->path, n_slots, err));
    BL_TRY(bl_json_int(file->tree, REDUNDANT_KEY, 0, INT32_MAX, file->path, &redundant, err));
    if (redundant + model->n_experts != *n_slots)
        return bl_fail_at(err, BL_ERR_SHAPE, bl_at(file->path),
                          "%lld slots with %lld redundant ones are not for the %d experts of %s",
                          (long long)*n_slots, (long long)redundant, model->n_experts, model->name);
    BL_TRY(bl_json_object(file->tree, ROWS_KEY, file->path, &rows, err));
    return bl_engine_expect_rows(file, model, json_object_size(rows), err);
}

static bl_status read_record_layer(const bl_engine_file *file, const bl_model *model, int n_ranks,
                                   int index, int n_slots, int64_t *expert, bl_error *err) {
    char key[16];
    (void)n_ranks;
    snprintf(key, sizeof key, "%d", index);
    return bl_engine_row(json_object_get(json_object_get(file->tree, ROWS_KEY), key), file->path,
                         model->moe_layers[index], n_slots, expert, err);
}

const bl_engine bl_engine_vllm_offline = {
    .name = "vllm-offline",
    .title = "vLLM's offline EPLB",
    .rule = BL_RULE_EVEN,
    .write = write_record,
    .start = start_record,
    .is = is_record,
    .read_shape = read_record,
    .read_layer = read_record_layer,
};
