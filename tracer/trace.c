#include "tracer/trace.h"

#include "core/mem.h"
#include "core/model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const bl_phase_names[] = {"prefill", "midfill", "decode",  "mixed",
                                      "verify",  "idle",    "unknown", NULL};

static bl_status copy_ints(const int *from, int n, int **to, bl_error *err) {
    BL_TRY(BL_CALLOC(*to, n, err));
    if (n > 0)
        memcpy(*to, from, (size_t)n * sizeof *from);
    return BL_OK;
}

bl_status bl_trace_info_create(const char *model, const int *layers, int n_layers, int n_experts,
                               int top_k, const char *source, bl_trace_info *out, bl_error *err) {
    bl_trace_info info = {
        .n_layers = n_layers, .n_experts = n_experts, .top_k = top_k, .domain = -1};
    if (n_layers < 1 || n_layers > BL_MAX_LAYERS)
        return bl_fail(err, BL_ERR_SHAPE, "%d MoE layers (1 to %d are possible)", n_layers,
                       BL_MAX_LAYERS);
    snprintf(info.model, sizeof info.model, "%s", model);
    snprintf(info.source, sizeof info.source, "%s", source);
    BL_TRY(copy_ints(layers, n_layers, &info.layers, err));
    const bl_status st = bl_trace_info_check(&info, NULL, err);
    if (st < 0)
        bl_trace_info_free(&info);
    else
        *out = info;
    return st;
}

bl_status bl_trace_info_of_model(const bl_model *model, const char *source, bl_trace_info *out,
                                 bl_error *err) {
    return bl_trace_info_create(model->name, model->moe_layers, model->n_moe_layers,
                                model->n_experts, model->top_k, source, out, err);
}

bl_status bl_trace_info_set_ranks(bl_trace_info *info, int n_ranks, const int *present,
                                  int n_present, bl_error *err) {
    int *copy = NULL;
    BL_TRY(copy_ints(present, n_present, &copy, err));
    free(info->present);
    info->present = copy;
    info->n_present = n_present;
    info->n_ranks = n_ranks;
    return bl_trace_info_check(info, NULL, err);
}

bl_status bl_trace_info_copy(const bl_trace_info *info, bl_trace_info *out, bl_error *err) {
    bl_trace_info copy = *info;
    copy.layers = copy.present = NULL;
    bl_status st = copy_ints(info->layers, info->n_layers, &copy.layers, err);
    if (st == BL_OK)
        st = copy_ints(info->present, info->n_present, &copy.present, err);
    if (st < 0)
        bl_trace_info_free(&copy);
    else
        *out = copy;
    return st;
}

void bl_trace_info_free(bl_trace_info *info) {
    free(info->layers);
    free(info->present);
    *info = (bl_trace_info){0};
}

static bool ascending(const int *values, int n, int min, int max) {
    for (int i = 0; i < n; i++) {
        if (values[i] < min || values[i] > max || (i > 0 && values[i] <= values[i - 1]))
            return false;
    }
    return true;
}

bl_status bl_trace_info_check(const bl_trace_info *info, const char *file, bl_error *err) {
    const bl_where at = bl_at(file);
    if (info->n_layers < 1 || info->n_layers > BL_MAX_LAYERS)
        return bl_fail_at(err, BL_ERR_SHAPE, at, "%d MoE layers (1 to %d are possible)",
                          info->n_layers, BL_MAX_LAYERS);
    if (!ascending(info->layers, info->n_layers, 0, INT32_MAX))
        return bl_fail_at(err, BL_ERR_RANGE, at,
                          "the MoE layers are not ascending decoder-layer ids");
    if (info->n_experts < 1 || info->n_experts > BL_MAX_EXPERTS)
        return bl_fail_at(err, BL_ERR_RANGE, at, "%d experts (1 to %d are possible)",
                          info->n_experts, BL_MAX_EXPERTS);
    if (info->top_k < 1 || info->top_k > BL_MAX_TOP_K || info->top_k > info->n_experts)
        return bl_fail_at(err, BL_ERR_RANGE, at, "top-%d of %d experts is impossible", info->top_k,
                          info->n_experts);
    if (info->n_ranks < 0 || info->n_ranks > BL_MAX_RANKS ||
        !ascending(info->present, info->n_present, 0, BL_MAX_RANKS - 1))
        return bl_fail_at(err, BL_ERR_RANGE, at, "the ranks are not ascending or out of range");
    return BL_OK;
}

int bl_trace_layer_index(const bl_trace_info *info, int layer) {
    int low = 0, high = info->n_layers - 1;
    while (low <= high) {
        const int middle = low + (high - low) / 2;
        if (info->layers[middle] == layer)
            return middle;
        if (info->layers[middle] < layer)
            low = middle + 1;
        else
            high = middle - 1;
    }
    return -1;
}

bl_status bl_trace_info_same_model(const bl_trace_info *a, const bl_trace_info *b, const char *file,
                                   bl_error *err) {
    const bl_where at = bl_at(file);
    if (a->n_experts != b->n_experts || a->top_k != b->top_k)
        return bl_fail_at(err, BL_ERR_MODEL, at,
                          "top-%d of %d experts, but the trace so far is top-%d of %d", b->top_k,
                          b->n_experts, a->top_k, a->n_experts);
    if (strcmp(a->model, b->model) != 0)
        return bl_fail_at(err, BL_ERR_MODEL, at,
                          "a trace of model \"%s\", but the trace so far is of \"%s\"", b->model,
                          a->model);
    if (a->n_layers != b->n_layers ||
        memcmp(a->layers, b->layers, (size_t)a->n_layers * sizeof *a->layers) != 0)
        return bl_fail_at(err, BL_ERR_MODEL, at,
                          "%d MoE layers, other ones than the %d of the trace so far", b->n_layers,
                          a->n_layers);
    return BL_OK;
}

bl_status bl_trace_info_fits_model(const bl_trace_info *info, const bl_model *model,
                                   const char *file, bl_error *err) {
    if (info->n_experts != model->n_experts || info->top_k != model->top_k)
        return bl_fail_at(err, BL_ERR_MODEL, bl_at(file),
                          "top-%d of %d experts, but model \"%s\" has top-%d of %d", info->top_k,
                          info->n_experts, model->name, model->top_k, model->n_experts);
    for (int i = 0; i < info->n_layers; i++) {
        if (bl_model_moe_index(model, info->layers[i]) < 0)
            return bl_fail_at(err, BL_ERR_MODEL, bl_at_layer(file, info->layers[i]),
                              "in the trace, but not an MoE layer of model \"%s\"", model->name);
    }
    return BL_OK;
}
