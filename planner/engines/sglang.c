#include "planner/engines/sglang.h"

#include "core/mem.h"

#include <stdlib.h>

#define MAP_KEY "physical_to_logical_map"

/* ---- out --------------------------------------------------------------------------------------*/

/* Slots per rank of the first layer, which all ranks and layers must share. */
static bl_status check_layer(const bl_layer_placement *layer, int slots, bl_error *err) {
    for (int rank = 0; rank < layer->n_ranks; rank++) {
        const int here = layer->begin[rank + 1] - layer->begin[rank];
        if (here != slots) {
            const int n_slots = bl_layer_n_slots(layer);
            const int even = (n_slots + layer->n_ranks - 1) / layer->n_ranks * layer->n_ranks;
            return bl_fail_at(err, BL_ERR_SHAPE, bl_at_layer(NULL, layer->layer),
                              "rank %d has %d slots and rank 0 of the first layer %d; SGLang needs "
                              "as many on every rank: plan with --redundant %d (%d slots, %d each)",
                              rank, here, slots, even - layer->n_experts, even,
                              even / layer->n_ranks);
        }
        for (int slot = layer->begin[rank]; slot < layer->begin[rank + 1]; slot++) {
            if (layer->expert[slot] == BL_NO_EXPERT)
                return bl_fail_at(err, BL_ERR_SHAPE, bl_at_layer(NULL, layer->layer),
                                  "rank %d has an empty slot; SGLang needs an expert in each",
                                  rank);
        }
    }
    return BL_OK;
}

bl_status bl_sglang_check(const bl_plan *plan, bl_sglang_start *start, bl_error *err) {
    const bl_placement *placement = &plan->placement;
    if (plan->model.n_layers == 0)
        return bl_fail(
            err, BL_ERR_MODEL,
            "the plan does not say how many decoder layers %s has, and this format has a "
            "row for each; name the model with --model",
            plan->model_name);
    BL_TRY(bl_placement_check(placement, NULL, err));
    bl_sglang_start made = {.ep_size = placement->n_ranks};
    const bl_layer_placement *first = &placement->layers[0];
    const int slots = first->begin[1] - first->begin[0];
    for (int l = 0; l < placement->n_layers; l++) {
        BL_TRY(check_layer(&placement->layers[l], slots, err));
        made.mtp_layers_left_out += placement->layers[l].layer >= plan->model.n_layers;
    }
    made.redundant_experts = slots * placement->n_ranks - placement->n_experts;
    /* "static" fixes for each rank one nearest copy; "dynamic" draws among the copies at random,
     * which is what an even split stands for. */
    made.dispatch = plan->rule == BL_RULE_NEAREST ? "static" : "dynamic";
    *start = made;
    return BL_OK;
}

/* One row: the layer's slots, or the start layout of a layer that is not in the plan. */
static json_t *row_to_json(const bl_layer_placement *layer, int n_slots, int n_experts) {
    json_t *row = json_array();
    for (int slot = 0; slot < n_slots; slot++)
        json_array_append_new(row,
                              json_integer(layer != NULL ? layer->expert[slot] : slot % n_experts));
    return row;
}

bl_status bl_sglang_write(const bl_plan *plan, const char *path, bl_sglang_start *start,
                          bl_error *err) {
    BL_TRY(bl_sglang_check(plan, start, err));
    const int n_slots = plan->n_experts + start->redundant_experts;
    json_t *rows = json_array();
    bool whole = rows != NULL;
    for (int layer = 0; whole && layer < plan->model.n_layers; layer++) {
        json_t *row =
            row_to_json(bl_placement_layer(&plan->placement, layer), n_slots, plan->n_experts);
        whole = json_array_size(row) == (size_t)n_slots && json_array_append(rows, row) == 0;
        json_decref(row);
    }
    json_t *root = whole ? json_pack("{s:O}", MAP_KEY, rows) : NULL;
    json_decref(rows);
    if (root == NULL)
        return bl_fail(err, BL_ERR_NOMEM, "out of memory");
    const bl_status st = bl_json_write(path, root, 0, err);
    json_decref(root);
    return st;
}

/* ---- in ---------------------------------------------------------------------------------------*/

bool bl_sglang_is_map(const json_t *root) {
    return json_object_get(root, MAP_KEY) != NULL;
}

static bl_status read_row(const json_t *row, const char *file, bl_layer_placement *layer,
                          int *duplicates, bl_error *err) {
    const bl_where where = bl_at_layer(file, layer->layer);
    const int n_slots = bl_layer_n_slots(layer);
    if (!json_is_array(row) || json_array_size(row) != (size_t)n_slots)
        return bl_fail_at(err, BL_ERR_SHAPE, where, "the row has %zu slots, the first one %d",
                          json_array_size(row), n_slots);
    for (int slot = 0; slot < n_slots; slot++) {
        const json_t *value = json_array_get(row, (size_t)slot);
        const int64_t expert = json_is_integer(value) ? json_integer_value(value) : -1;
        if (expert < 0 || expert >= layer->n_experts)
            return bl_fail_at(err, BL_ERR_RANGE, where, "slot %d must hold an expert id in [0, %d)",
                              slot, layer->n_experts);
        const int rank = bl_layer_rank_of(layer, slot);
        if (bl_layer_find(layer, rank, (int)expert) >= 0)
            ++*duplicates;
        else
            layer->expert[slot] = (int32_t)expert;
    }
    return bl_layer_placement_check(layer, file, err);
}

/* The rows of the file, and slots per rank from the length of the first MoE layer's. */
static bl_status read_shape(const json_t *root, const char *file, const bl_model *model,
                            int n_ranks, const json_t **rows_p, int *slots, bl_error *err) {
    const json_t *rows;
    BL_TRY(bl_json_array(root, MAP_KEY, file, &rows, err));
    if (json_array_size(rows) != (size_t)model->n_layers)
        return bl_fail_at(err, BL_ERR_SHAPE, bl_at(file),
                          "the map has %zu rows, but %s has %d decoder layers, and this format has "
                          "a row for each of them",
                          json_array_size(rows), model->name, model->n_layers);
    const size_t n_slots = json_array_size(json_array_get(rows, (size_t)model->moe_layers[0]));
    if (n_slots == 0 || n_slots % (size_t)n_ranks != 0 || n_slots > (size_t)1 << 24)
        return bl_fail_at(err, BL_ERR_SHAPE, bl_at_layer(file, model->moe_layers[0]),
                          "%zu slots do not divide over %d ranks", n_slots, n_ranks);
    *rows_p = rows;
    *slots = (int)(n_slots / (size_t)n_ranks);
    return BL_OK;
}

bl_status bl_sglang_read(const json_t *root, const char *file, const bl_model *model, int n_ranks,
                         bl_placement *out, int *duplicates, bl_error *err) {
    const json_t *rows = NULL;
    int slots = 0, emptied = 0, n_moe = 0;
    BL_TRY(read_shape(root, file, model, n_ranks, &rows, &slots, err));
    while (n_moe < model->n_moe_layers && model->moe_layers[n_moe] < model->n_layers)
        n_moe++;
    int *slots_per_rank;
    BL_TRY(BL_CALLOC(slots_per_rank, n_ranks, err));
    for (int rank = 0; rank < n_ranks; rank++)
        slots_per_rank[rank] = slots;
    bl_placement made;
    bl_status st = bl_placement_create(n_ranks, model->n_experts, model->moe_layers, n_moe,
                                       slots_per_rank, &made, err);
    free(slots_per_rank);
    if (st < 0)
        return st;
    for (int l = 0; l < n_moe && st >= 0; l++) {
        const json_t *row = json_array_get(rows, (size_t)made.layers[l].layer);
        st = read_row(row, file, &made.layers[l], &emptied, err);
    }
    if (st < 0) {
        bl_placement_free(&made);
        return st;
    }
    if (duplicates != NULL)
        *duplicates = emptied;
    *out = made;
    return BL_OK;
}
