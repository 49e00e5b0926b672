#include "tests/support/imports.h"

#include "tests/support/support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bl_status open_document(json_t *root, bl_topology *out, char *sources, size_t room,
                               bl_error *err) {
    const json_t *list = json_object_get(root, "sources");
    size_t used = 0;
    for (size_t i = 0; sources != NULL && i < json_array_size(list) && used < room; i++)
        used += (size_t)snprintf(sources + used, room - used, "%s\n",
                                 json_string_value(json_array_get(list, i)));
    const bl_status st = bl_topology_from_json(root, NULL, NULL, "again", out, err);
    json_decref(root);
    return st;
}

bl_status bl_test_import(bl_topology_format format, const char *text,
                         const bl_topology_import *options, bl_topology *out, char *sources,
                         size_t room, bl_error *err) {
    const bl_topology_import plain = BL_TOPOLOGY_IMPORT_INIT;
    const size_t bytes = strlen(text);
    char *copy = malloc(bytes + 1);
    json_t *root;
    if (copy == NULL)
        return BL_ERR_NOMEM;
    memcpy(copy, text, bytes + 1);
    const bl_status st = bl_topology_import_text(format, copy, bytes, "test.txt",
                                                 options != NULL ? options : &plain, &root, err);
    free(copy);
    return st < 0 ? st : open_document(root, out, sources, room, err);
}

bl_status bl_test_import_data(bl_topology_format format, const char *relative,
                              const bl_topology_import *options, bl_topology *out, bl_error *err) {
    const bl_topology_import plain = BL_TOPOLOGY_IMPORT_INIT;
    json_t *root;
    const bl_status st = bl_topology_import_file(format, bl_test_data(relative),
                                                 options != NULL ? options : &plain, &root, err);
    return st < 0 ? st : open_document(root, out, NULL, 0, err);
}

const char *bl_test_levels(const bl_topology *topology) {
    static char text[256];
    size_t used = 0;
    for (int k = 1; k <= topology->n_levels && used < sizeof text; k++)
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%s %d", k > 1 ? ", " : "",
                                 topology->levels[k].name, topology->levels[k].n_domains);
    return text;
}
