/*
 * eplb.c: the three tables of DeepSeek's EPLB, for programs that work with them.
 *
 *     phy2log [layers][P]      the expert in each slot
 *     log2phy [layers][E][X]   the slots of each expert, -1 behind the last; X: most copies of one
 *     logcnt  [layers][E]      how many slots each expert has
 *
 * in one JSON object of these keys, with a row for each MoE layer. A path that ends in ".npy" gets
 * phy2log alone, as int64: the other two follow from it. Reading takes either, and only phy2log.
 */
#include "core/mem.h"
#include "planner/engines/engine.h"

#include <stdlib.h>
#include <string.h>

#define SLOTS_KEY "phy2log"
#define COPIES_KEY "log2phy"
#define COUNTS_KEY "logcnt"

/* ---- out --------------------------------------------------------------------------------------*/

static bool is_npy_path(const char *path) {
    const size_t length = strlen(path);
    return length >= 4 && strcmp(path + length - 4, ".npy") == 0;
}

static bl_status write_npy(const bl_export *x, const char *path, bl_error *err) {
    const bl_placement *placement = &x->plan->placement;
    const size_t shape[] = {(size_t)placement->n_layers, (size_t)x->n_slots};
    size_t items = 0;
    int64_t *table;
    if (!bl_size_mul(shape[0], shape[1], &items))
        return bl_fail(err, BL_ERR_NOMEM, "out of memory");
    BL_TRY(BL_CALLOC(table, items, err));
    for (size_t i = 0; i < items; i++)
        table[i] = placement->layers[i / shape[1]].expert[i % shape[1]];
    const bl_status st = bl_npy_write(path, "<i8", shape, 2, table, err);
    free(table);
    return st;
}

/* The slots of one expert, filled up with -1 to `width`. */
static json_t *slots_to_json(const bl_copies *copies, int expert, int width) {
    json_t *slots = json_array();
    for (int i = 0; i < width; i++) {
        const int at = copies->first[expert] + i;
        json_array_append_new(slots,
                              json_integer(at < copies->first[expert + 1] ? copies->slot[at] : -1));
    }
    return slots;
}

static bl_status append_copies(const bl_layer_placement *layer, int width, json_t *log2phy,
                               json_t *logcnt, bl_error *err) {
    bl_copies copies;
    BL_TRY(bl_copies_of(layer, &copies, err));
    json_t *slots = json_array(), *counts = json_array();
    for (int e = 0; e < copies.n_experts; e++) {
        json_array_append_new(slots, slots_to_json(&copies, e, width));
        json_array_append_new(counts, json_integer(copies.first[e + 1] - copies.first[e]));
    }
    const bool whole = json_array_size(slots) == (size_t)copies.n_experts &&
                       json_array_size(counts) == (size_t)copies.n_experts;
    const bool slots_in = json_array_append_new(log2phy, slots) == 0;
    const bool counts_in = json_array_append_new(logcnt, counts) == 0;
    bl_copies_free(&copies);
    return whole && slots_in && counts_in ? BL_OK : bl_fail(err, BL_ERR_NOMEM, "out of memory");
}

static bl_status write_tables(const bl_export *x, const char *path, bl_error *err) {
    if (is_npy_path(path))
        return write_npy(x, path, err);
    json_t *phy2log = bl_export_rows(x), *log2phy = json_array(), *logcnt = json_array();
    bl_status st = BL_OK;
    for (int l = 0; l < x->plan->placement.n_layers && st >= 0; l++)
        st = append_copies(&x->plan->placement.layers[l], x->max_copies, log2phy, logcnt, err);
    if (st >= 0)
        st = bl_export_json(
            path,
            json_pack("{s:O,s:O,s:O}", SLOTS_KEY, phy2log, COPIES_KEY, log2phy, COUNTS_KEY, logcnt),
            err);
    json_decref(phy2log);
    json_decref(log2phy);
    json_decref(logcnt);
    return st;
}

static void start(const bl_export *x, const char *path, FILE *out) {
    const bl_model *model = &x->plan->model;
    fprintf(out,
            "%s holds %s for num_replicas %d, num_gpus %d; row 0 is decoder layer %d, the last of "
            "%d rows layer %d\n",
            path, is_npy_path(path) ? SLOTS_KEY : SLOTS_KEY ", " COPIES_KEY ", " COUNTS_KEY,
            x->n_slots, x->n_ranks, model->moe_layers[0], model->n_moe_layers,
            model->moe_layers[model->n_moe_layers - 1]);
}

/* ---- in ---------------------------------------------------------------------------------------*/

static bool is_tables(const bl_engine_file *file) {
    return json_object_get(file->tree, SLOTS_KEY) != NULL ||
           (file->npy != NULL && file->npy->n_dims == 2);
}

static bl_status read_shape(const bl_engine_file *file, const bl_model *model, int n_ranks,
                            int64_t *n_slots, bl_error *err) {
    static const char *const keys[] = {SLOTS_KEY, COPIES_KEY, COUNTS_KEY, NULL};
    const json_t *rows;
    (void)n_ranks;
    if (file->npy != NULL) {
        if (file->npy->kind == 'f')
            return bl_fail_at(err, BL_ERR_PARSE, bl_at(file->path),
                              "a table of experts is of integers, not of real numbers; loads are "
                              "for ballast import");
        *n_slots = (int64_t)file->npy->shape[1];
        return bl_engine_expect_rows(file, model, file->npy->shape[0], err);
    }
    BL_TRY(bl_engine_only_keys(file, file->tree, keys, err));
    BL_TRY(bl_json_array(file->tree, SLOTS_KEY, file->path, &rows, err));
    *n_slots = (int64_t)json_array_size(json_array_get(rows, 0));
    return bl_engine_expect_rows(file, model, json_array_size(rows), err);
}

static bl_status read_layer(const bl_engine_file *file, const bl_model *model, int n_ranks,
                            int index, int n_slots, int64_t *expert, bl_error *err) {
    (void)n_ranks;
    if (file->npy != NULL) {
        for (int slot = 0; slot < n_slots; slot++)
            expert[slot] = bl_npy_int(file->npy, (size_t)index * (size_t)n_slots + (size_t)slot);
        return BL_OK;
    }
    const json_t *rows = json_object_get(file->tree, SLOTS_KEY);
    return bl_engine_row(json_array_get(rows, (size_t)index), file->path, model->moe_layers[index],
                         n_slots, expert, err);
}

const bl_engine bl_engine_eplb = {
    .name = "eplb",
    .title = "EPLB",
    .rule = BL_RULE_EVEN,
    .write = write_tables,
    .start = start,
    .is = is_tables,
    .read_shape = read_shape,
    .read_layer = read_layer,
};
