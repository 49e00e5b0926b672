/*
 * sglang.c: SGLang's placement file.
 *
 *     {"physical_to_logical_map": [num_hidden_layers][P]}
 *
 * and no other key: the engine passes the object on as arguments of a function. It has a row for
 * *every* decoder layer; the rows of dense layers are there but not used, and are written as the
 * layout an engine starts with (slot i holds expert i mod E). The engine checks next to nothing of
 * it: a negative id silently counts from the end, a missing expert shows up as a crash or not at
 * all.
 */
#include "planner/engines/engine.h"

#define MAP_KEY "physical_to_logical_map"

static json_t *start_row(int n_slots, int n_experts) {
    json_t *row = json_array();
    for (int slot = 0; slot < n_slots; slot++)
        json_array_append_new(row, json_integer(slot % n_experts));
    return row;
}

static bl_status write_map(const bl_export *x, const char *path, bl_error *err) {
    const bl_plan *plan = x->plan;
    json_t *rows = json_array();
    for (int layer = 0; layer < plan->model.n_layers; layer++) {
        const bl_layer_placement *planned = bl_placement_layer(&plan->placement, layer);
        json_array_append_new(rows, planned != NULL ? bl_export_row(planned, 0, x->n_slots)
                                                    : start_row(x->n_slots, plan->n_experts));
    }
    const bool whole = json_array_size(rows) == (size_t)plan->model.n_layers;
    json_t *root = whole ? json_pack("{s:O}", MAP_KEY, rows) : NULL;
    json_decref(rows);
    return bl_export_json(path, root, err);
}

/* "static" fixes for each rank one nearest copy; "dynamic" draws among the copies at random, which
 * is what an even split stands for. */
static void start(const bl_export *x, const char *path, FILE *out) {
    fprintf(out,
            "start SGLang with: --init-expert-location %s --ep-size %d "
            "--ep-num-redundant-experts %d --ep-dispatch-algorithm %s\n",
            path, x->n_ranks, x->n_redundant,
            x->plan->rule == BL_RULE_NEAREST || x->plan->rule == BL_RULE_FIXED ? "static"
                                                                               : "dynamic");
}

static bool is_map(const bl_engine_file *file) {
    return json_object_get(file->tree, MAP_KEY) != NULL;
}

static bl_status read_shape(const bl_engine_file *file, const bl_model *model, int n_ranks,
                            int64_t *n_slots, bl_error *err) {
    static const char *const keys[] = {MAP_KEY, NULL};
    const json_t *rows;
    (void)n_ranks;
    BL_TRY(bl_engine_only_keys(file, file->tree, keys, err));
    BL_TRY(bl_json_array(file->tree, MAP_KEY, file->path, &rows, err));
    if (json_array_size(rows) != (size_t)model->n_layers)
        return bl_fail_at(err, BL_ERR_SHAPE, bl_at(file->path),
                          "the map has %zu rows, but %s has %d decoder layers, and this format has "
                          "a row for each of them",
                          json_array_size(rows), model->name, model->n_layers);
    *n_slots = (int64_t)json_array_size(json_array_get(rows, (size_t)model->moe_layers[0]));
    return BL_OK;
}

static bl_status read_layer(const bl_engine_file *file, const bl_model *model, int n_ranks,
                            int index, int n_slots, int64_t *expert, bl_error *err) {
    const int layer = model->moe_layers[index];
    const json_t *rows = json_object_get(file->tree, MAP_KEY);
    (void)n_ranks;
    return bl_engine_row(json_array_get(rows, (size_t)layer), file->path, layer, n_slots, expert,
                         err);
}

const bl_engine bl_engine_sglang = {
    .name = "sglang",
    .title = "SGLang",
    .rule = BL_RULE_NEAREST,
    .write = write_map,
    .start = start,
    .is = is_map,
    .read_shape = read_shape,
    .read_layer = read_layer,
};
