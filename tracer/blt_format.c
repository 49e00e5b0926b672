#include "tracer/blt_format.h"

#include "core/hash.h"
#include "tracer/le.h"

#include <stdlib.h>

const int bl_blt_column_bytes[BL_N_COLS] = {
#define BL_BLT_COLUMN_BYTES(name, bytes) bytes,
    BL_BLT_COLUMNS(BL_BLT_COLUMN_BYTES)
#undef BL_BLT_COLUMN_BYTES
};

void bl_blt_frame_pack(const bl_blt_frame *frame, unsigned char out[BL_BLT_FRAME_BYTES]) {
    bl_put_le(out, frame->kind, 4);
    bl_put_le(out + 4, frame->flags, 4);
    bl_put_le(out + 8, frame->stored_bytes, 8);
    bl_put_le(out + 16, frame->raw_bytes, 8);
    bl_put_le(out + 24, frame->items, 4);
    bl_put_le(out + 28, frame->number, 4);
    bl_put_le(out + 32, frame->first_step, 8);
    bl_put_le(out + 40, frame->last_step, 8);
    bl_put_le(out + 48, frame->hash, 8);
    bl_put_le(out + 56, bl_hash64(out, 56), 8);
}

bool bl_blt_frame_unpack(const unsigned char in[BL_BLT_FRAME_BYTES], bl_blt_frame *out) {
    *out = (bl_blt_frame){.kind = bl_get_u32(in),
                          .flags = bl_get_u32(in + 4),
                          .stored_bytes = bl_get_u64(in + 8),
                          .raw_bytes = bl_get_u64(in + 16),
                          .items = bl_get_u32(in + 24),
                          .number = bl_get_u32(in + 28),
                          .first_step = bl_get_u64(in + 32),
                          .last_step = bl_get_u64(in + 40),
                          .hash = bl_get_u64(in + 48)};
    return bl_get_u64(in + 56) == bl_hash64(in, 56);
}

static json_t *ints_to_json(const int *values, int n) {
    json_t *array = json_array();
    for (int i = 0; i < n; i++)
        json_array_append_new(array, json_integer(values[i]));
    return array;
}

json_t *bl_blt_info_to_json(const bl_trace_info *info) {
    json_t *root =
        json_pack("{s:{s:s, s:o, s:i, s:i}, s:s, s:i, s:o}", "model", "name", info->model, "layers",
                  ints_to_json(info->layers, info->n_layers), "experts", info->n_experts, "top_k",
                  info->top_k, "source", info->source, "ranks", info->n_ranks, "present",
                  ints_to_json(info->present, info->n_present));
    bool ok = root != NULL;
    if (ok && info->part > 0)
        ok = json_object_set_new(root, "part", json_integer(info->part)) == 0;
    if (ok && info->domain >= 0)
        ok = json_object_set_new(root, "domain", json_integer(info->domain)) == 0;
    if (!ok) {
        json_decref(root);
        root = NULL;
    }
    return root;
}

static bl_status ints_from_json(const json_t *array, int max, const char *what, const char *file,
                                int **values_p, int *n, bl_error *err) {
    const size_t count = json_array_size(array);
    if (count > (size_t)max)
        return bl_fail_at(err, BL_ERR_RANGE, bl_at(file), "%zu %s (at most %d)", count, what, max);
    int *values = NULL;
    BL_TRY(BL_CALLOC(values, count, err));
    for (size_t i = 0; i < count; i++) {
        const json_t *item = json_array_get(array, i);
        const json_int_t value = json_is_integer(item) ? json_integer_value(item) : -1;
        if (value < 0 || value > INT32_MAX) {
            free(values);
            return bl_fail_at(err, BL_ERR_RANGE, bl_at(file), "%s hold something else than ids",
                              what);
        }
        values[i] = (int)value;
    }
    *values_p = values;
    *n = (int)count;
    return BL_OK;
}

bl_status bl_blt_info_from_json(const json_t *root, const char *file, bl_trace_info *out,
                                bl_error *err) {
    const json_t *model, *layers, *present;
    const char *name, *source;
    int64_t n_experts, top_k, n_ranks;
    BL_TRY(bl_json_object(root, "model", file, &model, err));
    BL_TRY(bl_json_string(model, "name", file, &name, err));
    BL_TRY(bl_json_array(model, "layers", file, &layers, err));
    BL_TRY(bl_json_int(model, "experts", 1, BL_MAX_EXPERTS, file, &n_experts, err));
    BL_TRY(bl_json_int(model, "top_k", 1, BL_MAX_TOP_K, file, &top_k, err));
    BL_TRY(bl_json_string(root, "source", file, &source, err));
    BL_TRY(bl_json_int(root, "ranks", 0, BL_MAX_RANKS, file, &n_ranks, err));
    BL_TRY(bl_json_array(root, "present", file, &present, err));
    int64_t part = 0, domain = -1;
    if (json_object_get(root, "part") != NULL)
        BL_TRY(bl_json_int(root, "part", 1, INT32_MAX, file, &part, err));
    if (json_object_get(root, "domain") != NULL)
        BL_TRY(bl_json_int(root, "domain", 0, INT32_MAX, file, &domain, err));
    bl_trace_info info = {.n_experts = (int)n_experts,
                          .top_k = (int)top_k,
                          .n_ranks = (int)n_ranks,
                          .part = (int)part,
                          .domain = (int)domain};
    snprintf(info.model, sizeof info.model, "%s", name);
    snprintf(info.source, sizeof info.source, "%s", source);
    bl_flatten(info.model); /* both are printed */
    bl_flatten(info.source);
    bl_status st =
        ints_from_json(layers, BL_MAX_LAYERS, "layers", file, &info.layers, &info.n_layers, err);
    if (st == BL_OK)
        st = ints_from_json(present, BL_MAX_RANKS, "ranks", file, &info.present, &info.n_present,
                            err);
    if (st == BL_OK)
        st = bl_trace_info_check(&info, file, err);
    if (st < 0)
        bl_trace_info_free(&info);
    else
        *out = info;
    return st;
}
