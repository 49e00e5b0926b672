/*
 * trtllm.c: TensorRT-LLM's load balancer configuration, in YAML.
 *
 *     num_slots: 4
 *     initial_global_assignments:
 *       3: [0, 1, 2, 0]           key: decoder-layer id
 *       4: [2, 0, 1, 1]
 *     layer_updates_per_iter: 0   0: the placement stays as it is
 *
 * The engine refuses any other key and stops at a MoE layer that is not there. It asks for the layers
 * of multi-token prediction too, behind the last decoder layer, when that is switched on: they are
 * written as the layout an engine starts with. On input a positive layer_updates_per_iter is fine:
 * the file still says where the experts were at the start.
 */
#include "core/io.h"
#include "planner/engines/engine.h"

#define SLOTS_KEY "num_slots"
#define ROWS_KEY "initial_global_assignments"
#define UPDATES_KEY "layer_updates_per_iter"

/* The slots of a layer, or of the start layout where it is NULL. */
static void print_row(int id, const bl_layer_placement *layer, const bl_export *x, FILE *out) {
    fprintf(out, "  %d: [", id);
    for (int slot = 0; slot < x->n_slots; slot++)
        fprintf(out, "%s%d", slot > 0 ? ", " : "",
                layer != NULL ? (int)layer->expert[slot] : slot % x->plan->n_experts);
    fprintf(out, "]\n");
}

static bl_status write_yaml(const bl_export *x, const char *path, bl_error *err) {
    const bl_model *model = &x->plan->model;
    bl_file file;
    BL_TRY(bl_file_create(&file, path, err));
    fprintf(file.stream, SLOTS_KEY ": %d\n" ROWS_KEY ":\n", x->n_slots);
    for (int l = 0; l < x->plan->placement.n_layers; l++) {
        const bl_layer_placement *layer = &x->plan->placement.layers[l];
        print_row(layer->layer, layer, x, file.stream);
    }
    for (int m = 0; m < model->n_mtp_layers; m++)
        print_row(model->n_layers + m, NULL, x, file.stream);
    fprintf(file.stream, UPDATES_KEY ": 0\n");
    return bl_file_commit(&file, err);
}

static void start(const bl_export *x, const char *path, FILE *out) {
    fprintf(out,
            "start TensorRT-LLM with: --ep_size %d, and in the file of --extra_llm_api_options "
            "\"moe_config: {load_balancer: %s}\"\n",
            x->n_ranks, path);
}

static bool is_yaml(const bl_engine_file *file) {
    return json_object_get(file->tree, ROWS_KEY) != NULL &&
           json_object_get(file->tree, "record_type") == NULL;
}

static void layer_key(int layer, char *key, size_t bytes) {
    snprintf(key, bytes, "%d", layer);
}

/* A row for each MoE layer; besides, layers of multi-token prediction may have one. */
static bl_status check_rows(const json_t *rows, const char *file, const bl_model *model,
                            bl_error *err) {
    char key[16];
    size_t known = (size_t)model->n_moe_layers;
    for (int m = 0; m < model->n_moe_layers; m++) {
        layer_key(model->moe_layers[m], key, sizeof key);
        if (json_object_get(rows, key) == NULL)
            return bl_fail_at(err, BL_ERR_SHAPE, bl_at_layer(file, model->moe_layers[m]),
                              "is a MoE layer of %s, but the file has no row for it", model->name);
    }
    for (int m = 0; m < model->n_mtp_layers; m++) {
        layer_key(model->n_layers + m, key, sizeof key);
        known += json_object_get(rows, key) != NULL;
    }
    if (json_object_size(rows) == known)
        return BL_OK;
    return bl_fail_at(err, BL_ERR_SHAPE, bl_at(file),
                      "the file has %zu rows, but %s has %d MoE layers; rows are keyed by "
                      "decoder-layer id",
                      json_object_size(rows), model->name, model->n_moe_layers);
}

static bl_status read_shape(const bl_engine_file *file, const bl_model *model, int n_ranks,
                            int64_t *n_slots, bl_error *err) {
    static const char *const keys[] = {SLOTS_KEY, ROWS_KEY, UPDATES_KEY, NULL};
    const json_t *rows;
    int64_t updates;
    (void)n_ranks;
    BL_TRY(bl_engine_only_keys(file, file->tree, keys, err));
    BL_TRY(bl_json_int(file->tree, SLOTS_KEY, 1, INT32_MAX, file->path, n_slots, err));
    BL_TRY(bl_json_int_or(file->tree, UPDATES_KEY, 0, INT32_MAX, 0, file->path, &updates, err));
    BL_TRY(bl_json_object(file->tree, ROWS_KEY, file->path, &rows, err));
    return check_rows(rows, file->path, model, err);
}

static bl_status read_layer(const bl_engine_file *file, const bl_model *model, int n_ranks,
                            int index, int n_slots, int64_t *expert, bl_error *err) {
    char key[16];
    (void)n_ranks;
    layer_key(model->moe_layers[index], key, sizeof key);
    const json_t *row = json_object_get(json_object_get(file->tree, ROWS_KEY), key);
    return bl_engine_row(row, file->path, model->moe_layers[index], n_slots, expert, err);
}

const bl_engine bl_engine_trtllm = {
    .name = "trtllm",
    .title = "TensorRT-LLM",
    .rule = BL_RULE_EVEN,
    .mtp_rows = true,
    .write = write_yaml,
    .start = start,
    .is = is_yaml,
    .read_shape = read_shape,
    .read_layer = read_layer,
};
