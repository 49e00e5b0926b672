#include "planner/engines/current.h"

#include "planner/engines/sglang.h"

static bl_status from_map(const json_t *root, const char *path, const bl_model *model, int n_ranks,
                          bl_plan *out, int *duplicates, bl_error *err) {
    bl_placement placement;
    BL_TRY(bl_sglang_read(root, path, model, n_ranks, &placement, duplicates, err));
    const bl_status st = bl_plan_create(model, &placement, out, err);
    bl_placement_free(&placement);
    return st;
}

bl_status bl_current_load(const char *path, const bl_model *model, int n_ranks, bl_plan *out,
                          int *duplicates, bl_error *err) {
    json_t *root;
    BL_TRY(bl_json_load(path, &root, err));
    *duplicates = 0;
    const bl_status st = bl_sglang_is_map(root)
                             ? from_map(root, path, model, n_ranks, out, duplicates, err)
                             : bl_plan_from_json(root, path, out, err);
    json_decref(root);
    return st;
}
