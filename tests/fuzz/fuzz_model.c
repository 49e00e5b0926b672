/* Model configs from anywhere: reading ends in a model whose parts agree and that survives a round
 * trip, or in one clear message. */
#include "core/model.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool holds) {
    if (!holds)
        abort();
}

static void check(const bl_model *model) {
    require(model->n_moe_layers >= 1 && model->n_moe_layers <= model->n_layers);
    for (int i = 0; i < model->n_moe_layers; i++) {
        require(model->moe_layers[i] >= 0 && model->moe_layers[i] < model->n_layers);
        require(i == 0 || model->moe_layers[i] > model->moe_layers[i - 1]);
        require(bl_model_moe_index(model, model->moe_layers[i]) == i);
    }
    require(model->top_k >= 1 && model->top_k <= model->n_experts);
    require(model->n_groups >= 1 && model->n_experts % model->n_groups == 0);
    require(model->n_bundle >= 1 && model->n_bundle <= BL_MAX_BUNDLE);
    size_t bytes = 0;
    for (int t = 0; t < model->n_bundle; t++)
        bytes += model->bundle[t].bytes;
    require(bytes == model->expert_bytes && bytes > 0);
    require(model->kv_bytes_per_token >= 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    json_t *root, *form;
    bl_model model, again;
    bl_error err = BL_ERROR_INIT;
    if (bl_json_parse((const char *)data, size, "fuzz", &root, &err) < 0)
        return 0;
    if (bl_model_from_json(root, "fuzz", &model, &err) < 0) {
        require(err.code < 0 && err.text[0] != '\0');
        json_decref(root);
        return 0;
    }
    json_decref(root);
    check(&model);
    form = bl_model_to_json(&model);
    require(form != NULL);
    require(bl_model_from_json(form, "again", &again, NULL) == BL_OK);
    check(&again);
    require(strcmp(bl_model_digest(&model).hex, bl_model_digest(&again).hex) == 0);
    require(again.expert_bytes == model.expert_bytes);
    require(bl_parameters_total(&again) == bl_parameters_total(&model));
    require(bl_parameters_active(&again) <= bl_parameters_total(&again));
    json_decref(form);
    bl_model_free(&again);
    bl_model_free(&model);
    return 0;
}
