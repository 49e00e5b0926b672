/* Plans and SGLang maps from anywhere: whatever the bytes, reading ends in a plan that survives a
 * round trip with the same digest, or in one clear message. */
#include "planner/engines/sglang.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool holds) {
    if (!holds)
        abort();
}

static void round_trip(const bl_plan *plan) {
    bl_plan again;
    json_t *root = bl_plan_to_json(plan);
    bl_error err = BL_ERROR_INIT;
    require(root != NULL);
    require(bl_plan_from_json(root, "again", &again, &err) == BL_OK);
    require(strcmp(again.digest.hex, plan->digest.hex) == 0);
    bl_sglang_start start;
    require(bl_sglang_check(plan, &start, NULL) == bl_sglang_check(&again, &start, NULL));
    bl_plan_free(&again);
    json_decref(root);
}

/* As the placement of a model of three decoder layers, the first one dense. */
static void read_map(const json_t *root) {
    int moe_layers[2] = {1, 2};
    const bl_model model = {.name = "toy",
                            .n_layers = 3,
                            .n_moe_layers = 2,
                            .moe_layers = moe_layers,
                            .n_experts = 3,
                            .top_k = 1};
    bl_placement placement;
    bl_error err = BL_ERROR_INIT;
    if (bl_sglang_read(root, "map", &model, 2, &placement, NULL, &err) >= 0) {
        require(bl_placement_check(&placement, NULL, NULL) == BL_OK);
        bl_placement_free(&placement);
    } else {
        require(err.text[0] != '\0');
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    json_t *root;
    bl_plan plan;
    bl_error err = BL_ERROR_INIT;
    if (bl_json_parse((const char *)data, size, "fuzz", &root, &err) < 0)
        return 0;
    if (bl_sglang_is_map(root))
        read_map(root);
    if (bl_plan_from_json(root, "fuzz", &plan, &err) >= 0) {
        round_trip(&plan);
        bl_plan_free(&plan);
    } else {
        require(err.text[0] != '\0');
    }
    json_decref(root);
    return 0;
}
