#include "planner/engines/engine.h"

#include "core/mem.h"

#include <stdlib.h>
#include <string.h>

#define MAX_SLOTS (1 << 20) /* of a layer: no file may make us allocate more */

#define BL_ENGINE_ROW(id, name) &bl_engine_##id,
const bl_engine *const bl_engines[] = {BL_ENGINES(BL_ENGINE_ROW) NULL};
#undef BL_ENGINE_ROW
#define BL_ENGINE_NAME(id, name) name,
const char *const bl_engine_names[] = {BL_ENGINES(BL_ENGINE_NAME) NULL};
#undef BL_ENGINE_NAME

/* ---- out --------------------------------------------------------------------------------------*/

/* As many slots on every rank as on rank 0 of the first layer, and none empty. */
static bl_status check_slots(const char *title, const bl_layer_placement *layer, int slots,
                             bl_error *err) {
    for (int rank = 0; rank < layer->n_ranks; rank++) {
        const int here = layer->begin[rank + 1] - layer->begin[rank];
        if (here != slots) {
            const int n_slots = bl_layer_n_slots(layer);
            const int even = (n_slots + layer->n_ranks - 1) / layer->n_ranks * layer->n_ranks;
            return bl_fail_at(err, BL_ERR_SHAPE, bl_at_layer(NULL, layer->layer),
                              "rank %d has %d slots and rank 0 of the first layer %d; %s needs as "
                              "many on every rank: plan with --redundant %d (%d slots, %d each)",
                              rank, here, slots, title, even - layer->n_experts, even,
                              even / layer->n_ranks);
        }
        for (int slot = layer->begin[rank]; slot < layer->begin[rank + 1]; slot++) {
            if (layer->expert[slot] == BL_NO_EXPERT)
                return bl_fail_at(err, BL_ERR_SHAPE, bl_at_layer(NULL, layer->layer),
                                  "rank %d has an empty slot; %s needs an expert in each", rank,
                                  title);
        }
    }
    return BL_OK;
}

static bl_status max_copies(const bl_placement *placement, int *out, bl_error *err) {
    int most = 0;
    for (int l = 0; l < placement->n_layers; l++) {
        bl_copies copies;
        BL_TRY(bl_copies_of(&placement->layers[l], &copies, err));
        for (int e = 0; e < copies.n_experts; e++) {
            const int here = copies.first[e + 1] - copies.first[e];
            most = here > most ? here : most;
        }
        bl_copies_free(&copies);
    }
    *out = most;
    return BL_OK;
}

bl_status bl_export_check(const bl_engine *engine, const bl_plan *plan, bl_export *out,
                          bl_error *err) {
    const bl_placement *placement = &plan->placement;
    if (plan->model.n_layers == 0)
        return bl_fail(err, BL_ERR_MODEL,
                       "the plan does not say which decoder layers %s has, and engines count them "
                       "in different ways; name the model with --model",
                       plan->model_name);
    BL_TRY(bl_plan_check_layers(plan, NULL, err));
    BL_TRY(bl_placement_check(placement, NULL, err));
    const bl_layer_placement *first = &placement->layers[0];
    bl_export made = {.plan = plan,
                      .n_ranks = placement->n_ranks,
                      .n_slots = bl_layer_n_slots(first),
                      .slots_per_rank = first->begin[1] - first->begin[0],
                      .n_redundant = bl_layer_n_slots(first) - placement->n_experts};
    for (int l = 0; l < placement->n_layers; l++)
        BL_TRY(check_slots(engine->title, &placement->layers[l], made.slots_per_rank, err));
    BL_TRY(max_copies(placement, &made.max_copies, err));
    *out = made;
    return BL_OK;
}

bl_status bl_export_write(const bl_engine *engine, const bl_plan *plan, const char *path,
                          bl_export *out, bl_error *err) {
    bl_export made;
    BL_TRY(bl_export_check(engine, plan, &made, err));
    BL_TRY(engine->write(&made, path, err));
    *out = made;
    return BL_OK;
}

void bl_export_tell(const bl_engine *engine, const bl_export *x, const char *path, FILE *out) {
    const bl_plan *plan = x->plan;
    engine->start(x, path, out);
    fprintf(out, "rank r of the plan is expert-parallel rank r of the engine\n");
    if (plan->rule != engine->rule)
        fprintf(out,
                "the plan was made for the rule %s, but %s serves copies by the rule %s: expect "
                "another balance than the plan's\n",
                bl_rule_names[plan->rule], engine->title, bl_rule_names[engine->rule]);
    if (plan->model.n_mtp_layers > 0)
        fprintf(out, "the %d multi-token-prediction layers of the model are not planned: %s\n",
                plan->model.n_mtp_layers,
                engine->mtp_rows ? "the file gives them the layout an engine starts with"
                                 : "the file has no rows for them");
}

json_t *bl_export_row(const bl_layer_placement *layer, int first, int end) {
    json_t *row = json_array();
    for (int slot = first; slot < end; slot++)
        json_array_append_new(row, json_integer(layer->expert[slot]));
    if (json_array_size(row) == (size_t)(end - first))
        return row;
    json_decref(row);
    return NULL;
}

json_t *bl_export_rows(const bl_export *x) {
    const bl_placement *placement = &x->plan->placement;
    json_t *rows = json_array();
    for (int l = 0; l < placement->n_layers; l++) {
        if (json_array_append_new(rows, bl_export_row(&placement->layers[l], 0, x->n_slots)) == 0)
            continue;
        json_decref(rows);
        return NULL;
    }
    return rows;
}

bl_status bl_export_json(const char *path, json_t *root, bl_error *err) {
    if (root == NULL)
        return bl_fail(err, BL_ERR_NOMEM, "out of memory");
    const bl_status st = bl_json_write(path, root, 0, err);
    json_decref(root);
    return st;
}

/* ---- in ---------------------------------------------------------------------------------------*/

bl_status bl_engine_row(const json_t *row, const char *file, int layer, int n, int64_t *expert,
                        bl_error *err) {
    const bl_where where = bl_at_layer(file, layer);
    if (!json_is_array(row) || json_array_size(row) != (size_t)n)
        return bl_fail_at(err, BL_ERR_SHAPE, where, "the row has %zu slots, not %d as others",
                          json_array_size(row), n);
    for (int i = 0; i < n; i++) {
        const json_t *value = json_array_get(row, (size_t)i);
        if (!json_is_integer(value))
            return bl_fail_at(err, BL_ERR_RANGE, where, "slot %d does not hold an expert id", i);
        expert[i] = json_integer_value(value);
    }
    return BL_OK;
}

bl_status bl_engine_expect_rows(const bl_engine_file *file, const bl_model *model, size_t n_rows,
                                bl_error *err) {
    if (n_rows == (size_t)model->n_moe_layers)
        return BL_OK;
    return bl_fail_at(err, BL_ERR_SHAPE, bl_at(file->path),
                      "the file has %zu layers, but %s has %d MoE layers (of %d decoder layers), "
                      "and this format has a row for each MoE layer",
                      n_rows, model->name, model->n_moe_layers, model->n_layers);
}

bl_status bl_engine_only_keys(const bl_engine_file *file, const json_t *object,
                              const char *const *keys, bl_error *err) {
    const char *key;
    json_t *value;
    json_object_foreach ((json_t *)(uintptr_t)object, key, value) {
        const char *const *known = keys;
        while (*known != NULL && strcmp(*known, key) != 0)
            known++;
        if (*known == NULL)
            return bl_fail_at(err, BL_ERR_PARSE, bl_at(file->path),
                              "key \"%.80s\" does not belong in this file", key);
    }
    return BL_OK;
}

/* Ids of one layer into its slots, with all that is common to the engines checked. */
static bl_status fill_layer(const bl_engine *engine, const char *file, const int64_t *expert,
                            bl_layer_placement *layer, int *duplicates, bl_error *err) {
    const bl_where where = bl_at_layer(file, layer->layer);
    const int n_slots = bl_layer_n_slots(layer);
    for (int slot = 0; slot < n_slots; slot++) {
        if (expert[slot] < 0 || expert[slot] >= layer->n_experts)
            return bl_fail_at(err, BL_ERR_RANGE, where,
                              "slot %d holds %lld, but expert ids are in [0, %d)", slot,
                              (long long)expert[slot], layer->n_experts);
        const int rank = bl_layer_rank_of(layer, slot);
        if (bl_layer_find(layer, rank, (int)expert[slot]) < 0)
            layer->expert[slot] = (int32_t)expert[slot];
        else if (engine->no_twins)
            return bl_fail_at(err, BL_ERR_PARSE, where,
                              "rank %d holds expert %lld twice, which %s refuses", rank,
                              (long long)expert[slot], engine->title);
        else
            ++*duplicates;
    }
    return bl_layer_placement_check(layer, file, err);
}

static bl_status create(const bl_model *model, int n_ranks, int n_slots, bl_placement *out,
                        bl_error *err) {
    int *slots_per_rank;
    BL_TRY(BL_CALLOC(slots_per_rank, n_ranks, err));
    for (int rank = 0; rank < n_ranks; rank++)
        slots_per_rank[rank] = n_slots / n_ranks;
    const bl_status st = bl_placement_create(n_ranks, model->n_experts, model->moe_layers,
                                             model->n_moe_layers, slots_per_rank, out, err);
    free(slots_per_rank);
    return st;
}

bl_status bl_engine_read(const bl_engine *engine, const bl_engine_file *file, const bl_model *model,
                         int n_ranks, bl_placement *out, int *duplicates, bl_error *err) {
    int64_t n_slots = 0, *expert = NULL;
    int emptied = 0;
    bl_placement made;
    BL_TRY(engine->read_shape(file, model, n_ranks, &n_slots, err));
    if (n_slots < 1 || n_slots % n_ranks != 0 || n_slots > MAX_SLOTS)
        return bl_fail_at(err, BL_ERR_SHAPE, bl_at(file->path),
                          "%lld slots do not divide over %d ranks", (long long)n_slots, n_ranks);
    if (n_slots < model->n_experts)
        return bl_fail_at(err, BL_ERR_SHAPE, bl_at(file->path),
                          "%lld slots cannot hold the %d experts of %s", (long long)n_slots,
                          model->n_experts, model->name);
    BL_TRY(create(model, n_ranks, (int)n_slots, &made, err));
    bl_status st = BL_CALLOC(expert, n_slots, err);
    for (int m = 0; m < model->n_moe_layers && st >= 0; m++) {
        st = engine->read_layer(file, model, n_ranks, m, (int)n_slots, expert, err);
        if (st >= 0)
            st = fill_layer(engine, file->path, expert, &made.layers[m], &emptied, err);
    }
    free(expert);
    if (st < 0) {
        bl_placement_free(&made);
        return st;
    }
    if (duplicates != NULL)
        *duplicates = emptied;
    *out = made;
    return BL_OK;
}
