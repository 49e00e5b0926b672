#include "cli/operator.h"

bl_status bl_operator_connect(const char *path, bl_control_client *out, bl_error *err) {
    char usual[256];
    if (path == NULL) {
        bl_control_default_path(usual, sizeof usual);
        path = usual;
    }
    return bl_control_connect(path, out, err);
}

bl_status bl_operator_ask(const char *path, const char *op, json_t **answer_p, bl_error *err) {
    bl_control_client client = {.fd = -1};
    BL_TRY(bl_operator_connect(path, &client, err));
    json_t *request = json_pack("{s:s}", "op", op);
    const bl_status st = bl_control_ask(&client, request, BL_OPERATOR_WAIT_S, answer_p, err);
    json_decref(request);
    bl_control_disconnect(&client);
    return st;
}

const char *bl_text_of(const json_t *object, const char *key) {
    const char *text = json_string_value(json_object_get(object, key));
    return text != NULL ? text : "";
}
