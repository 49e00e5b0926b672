/* Any bytes as the placement in force: a plan that keeps the hard rules, or one clear message. */
#include "planner/engines/current.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool holds) {
    if (!holds)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    int moe_layers[2] = {1, 2}; /* of three decoder layers */
    const bl_model model = {.name = "toy",
                            .n_layers = 3,
                            .n_mtp_layers = 1,
                            .n_moe_layers = 2,
                            .moe_layers = moe_layers,
                            .n_experts = 3,
                            .top_k = 1};
    bl_plan plan;
    bl_error err = BL_ERROR_INIT;
    int duplicates = -1;
    if (bl_current_parse((const char *)data, size, "fuzz", &model, 2, &plan, &duplicates, &err) >=
        0) {
        require(bl_placement_check(&plan.placement, NULL, NULL) == BL_OK);
        require(duplicates >= 0);
        bl_plan_free(&plan);
    } else {
        require(err.text[0] != '\0' && strchr(err.text, '\n') == NULL);
    }
    return 0;
}
