/*
 * vllm_ascend.c: vllm-ascend's expert map.
 *
 *     {"moe_layer_count": 1,
 *      "layer_list": [{"layer_id": 0, "device_count": 2,
 *                      "device_list": [{"device_id": 0, "device_expert": [0, 1]},
 *                                      {"device_id": 1, "device_expert": [2, 0]}]}]}
 *
 * layer_id counts MoE layers from 0, and the engine goes by the position in the list; the position
 * behind the last MoE layer is the multi-token-prediction layer, which is not written and passed
 * over when it is there. All devices hold equally many experts, none twice.
 */
#include "planner/engines/engine.h"

#define COUNT_KEY "moe_layer_count"
#define LAYERS_KEY "layer_list"

static json_t *devices_to_json(const bl_layer_placement *layer) {
    json_t *devices = json_array();
    for (int rank = 0; rank < layer->n_ranks; rank++) {
        json_t *experts = bl_export_row(layer, layer->begin[rank], layer->begin[rank + 1]);
        json_array_append_new(devices, experts == NULL ? NULL
                                                       : json_pack("{s:i,s:o}", "device_id", rank,
                                                                   "device_expert", experts));
    }
    if (json_array_size(devices) == (size_t)layer->n_ranks)
        return devices;
    json_decref(devices);
    return NULL;
}

static bl_status write_map(const bl_export *x, const char *path, bl_error *err) {
    const bl_placement *placement = &x->plan->placement;
    json_t *layers = json_array();
    for (int l = 0; l < placement->n_layers; l++) {
        json_t *devices = devices_to_json(&placement->layers[l]);
        json_array_append_new(layers, devices == NULL ? NULL
                                                      : json_pack("{s:i,s:i,s:o}", "layer_id", l,
                                                                  "device_count", x->n_ranks,
                                                                  "device_list", devices));
    }
    const bool whole = json_array_size(layers) == (size_t)placement->n_layers;
    json_t *root =
        whole ? json_pack("{s:i,s:O}", COUNT_KEY, placement->n_layers, LAYERS_KEY, layers) : NULL;
    json_decref(layers);
    return bl_export_json(path, root, err);
}

static void start(const bl_export *x, const char *path, FILE *out) {
    fprintf(
        out,
        "start vLLM on Ascend on %d expert-parallel ranks with: --enable-expert-parallel "
        "--additional-config '{\"expert_map_path\": \"%s\"}' (model runner 1, before v0.25.1)\n",
        x->n_ranks, path);
}

static bool is_map(const bl_engine_file *file) {
    return json_object_get(file->tree, LAYERS_KEY) != NULL ||
           json_object_get(file->tree, COUNT_KEY) != NULL;
}

/* The devices of the layer at a position of the list, in their order. */
static bl_status devices_of(const bl_engine_file *file, const bl_model *model, int n_ranks,
                            int index, const json_t **devices_p, bl_error *err) {
    static const char *const keys[] = {"layer_id", "device_count", "device_list", NULL};
    const int layer = model->moe_layers[index];
    const json_t *entry = json_array_get(json_object_get(file->tree, LAYERS_KEY), (size_t)index);
    const json_t *devices;
    int64_t id, count;
    if (!json_is_object(entry))
        return bl_fail_at(err, BL_ERR_PARSE, bl_at_layer(file->path, layer),
                          "position %d of \"" LAYERS_KEY "\" is not an object", index);
    BL_TRY(bl_engine_only_keys(file, entry, keys, err));
    BL_TRY(bl_json_int(entry, "layer_id", 0, INT32_MAX, file->path, &id, err));
    BL_TRY(bl_json_int(entry, "device_count", 1, INT32_MAX, file->path, &count, err));
    BL_TRY(bl_json_array(entry, "device_list", file->path, &devices, err));
    if (id != index)
        return bl_fail_at(err, BL_ERR_SHAPE, bl_at_layer(file->path, layer),
                          "layer_id %lld stands at position %d; ids count MoE layers from 0",
                          (long long)id, index);
    if (count != n_ranks || json_array_size(devices) != (size_t)n_ranks)
        return bl_fail_at(err, BL_ERR_SHAPE, bl_at_layer(file->path, layer),
                          "the file is for %lld devices and lists %zu, not %d", (long long)count,
                          json_array_size(devices), n_ranks);
    *devices_p = devices;
    return BL_OK;
}

static bl_status read_shape(const bl_engine_file *file, const bl_model *model, int n_ranks,
                            int64_t *n_slots, bl_error *err) {
    static const char *const keys[] = {COUNT_KEY, LAYERS_KEY, NULL};
    const json_t *layers, *devices;
    int64_t count;
    BL_TRY(bl_engine_only_keys(file, file->tree, keys, err));
    BL_TRY(bl_json_int(file->tree, COUNT_KEY, 0, INT32_MAX, file->path, &count, err));
    BL_TRY(bl_json_array(file->tree, LAYERS_KEY, file->path, &layers, err));
    BL_TRY(bl_engine_expect_rows(file, model, (size_t)count, err));
    const size_t n = json_array_size(layers);
    if (n < (size_t)count || n > (size_t)count + (size_t)model->n_mtp_layers)
        return bl_fail_at(err, BL_ERR_SHAPE, bl_at(file->path),
                          "\"" COUNT_KEY "\" is %lld, but %zu layers are listed", (long long)count,
                          n);
    BL_TRY(devices_of(file, model, n_ranks, 0, &devices, err));
    const json_t *experts = json_object_get(json_array_get(devices, 0), "device_expert");
    *n_slots = (int64_t)json_array_size(experts) * n_ranks;
    return BL_OK;
}

static bl_status read_layer(const bl_engine_file *file, const bl_model *model, int n_ranks,
                            int index, int n_slots, int64_t *expert, bl_error *err) {
    static const char *const keys[] = {"device_id", "device_expert", NULL};
    const int slots = n_slots / n_ranks;
    const json_t *devices;
    BL_TRY(devices_of(file, model, n_ranks, index, &devices, err));
    for (int rank = 0; rank < n_ranks; rank++) {
        const json_t *device = json_array_get(devices, (size_t)rank);
        int64_t id;
        BL_TRY(bl_engine_only_keys(file, device, keys, err));
        BL_TRY(bl_json_int(device, "device_id", 0, INT32_MAX, file->path, &id, err));
        if (id != rank)
            return bl_fail_at(err, BL_ERR_SHAPE, bl_at_layer(file->path, model->moe_layers[index]),
                              "device_id %lld stands at position %d", (long long)id, rank);
        BL_TRY(bl_engine_row(json_object_get(device, "device_expert"), file->path,
                             model->moe_layers[index], slots, expert + rank * slots, err));
    }
    return BL_OK;
}

const bl_engine bl_engine_vllm_ascend = {
    .name = "vllm-ascend",
    .title = "vllm-ascend",
    .rule = BL_RULE_FIXED,
    .no_twins = true,
    .write = write_map,
    .start = start,
    .is = is_map,
    .read_shape = read_shape,
    .read_layer = read_layer,
};
