/* Plans from anywhere: whatever the bytes, reading ends in a plan that survives a round trip with
 * the same digest, or in one clear message. */
#include "planner/engines/engine.h"

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
    bl_export x;
    for (const bl_engine *const *e = bl_engines; *e != NULL; e++)
        require(bl_export_check(*e, plan, &x, NULL) == bl_export_check(*e, &again, &x, NULL));
    bl_plan_free(&again);
    json_decref(root);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    json_t *root;
    bl_plan plan;
    bl_error err = BL_ERROR_INIT;
    if (bl_json_parse((const char *)data, size, "fuzz", &root, &err) < 0)
        return 0;
    if (bl_plan_from_json(root, "fuzz", &plan, &err) >= 0) {
        round_trip(&plan);
        bl_plan_free(&plan);
    } else {
        require(err.text[0] != '\0');
    }
    json_decref(root);
    return 0;
}
