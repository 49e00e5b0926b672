/* Any bytes as YAML: a tree that JSON can say and that reads back as the same, or one clear
 * message. */
#include "core/yaml.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool holds) {
    if (!holds)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    json_t *root, *again;
    bl_error err = BL_ERROR_INIT;
    if (bl_yaml_parse((const char *)data, size, "fuzz", &root, &err) < 0) {
        require(err.text[0] != '\0');
        return 0;
    }
    char *text = json_dumps(root, JSON_ENCODE_ANY);
    require(text != NULL);
    require(bl_json_parse(text, strlen(text), "again", &again, &err) == BL_OK);
    require(json_equal(root, again));
    free(text);
    json_decref(again);
    json_decref(root);
    return 0;
}
