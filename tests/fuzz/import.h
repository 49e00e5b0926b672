/*
 * import.h: fuzzing one reader of foreign topologies: it ends in a document that is read back as the
 * same topology, or in one clear message. The first byte chooses options.
 */
#ifndef BL_TESTS_FUZZ_IMPORT_H
#define BL_TESTS_FUZZ_IMPORT_H

#include "topologies/import.h"
#include "topologies/topology.h"

#include <stdlib.h>
#include <string.h>

static inline void bl_fuzz_require(bool holds) {
    if (!holds)
        abort();
}

static inline void bl_fuzz_read_back(const json_t *root) {
    bl_topology t;
    bl_error err = BL_ERROR_INIT;
    bl_fuzz_require(bl_topology_from_json(root, NULL, NULL, "again", &t, &err) == BL_OK);
    bl_fuzz_require(json_array_size(json_object_get(root, "sources")) > 0);
    bl_fuzz_require(t.levels[t.n_levels].n_domains == 1);
    for (int a = 0; a < t.n_ranks && a < 24; a++) {
        for (int b = 0; b < t.n_ranks && b < 24; b++) {
            const double seconds = bl_topology_move_s(&t, a, b, 1e6);
            bl_fuzz_require(a == b ? seconds == 0 : seconds > 0 && seconds < 1e300);
        }
    }
    bl_topology_free(&t);
}

static inline int bl_fuzz_import(bl_topology_format format, const uint8_t *data, size_t size) {
    static const char *const bases[] = {NULL, "hgx-h100:nodes=2", "pcie-8", "local:ranks=3"};
    if (size == 0)
        return 0;
    const int choice = data[0] - '0';
    const bl_topology_import options = {.base = bases[choice & 3],
                                        .op = (choice >> 2 & 7) - 1,
                                        .part = choice >> 5 & 1,
                                        .nodes = choice >> 6 & 1 ? 2 : 0};
    char *text = malloc(size);
    json_t *root;
    bl_error err = BL_ERROR_INIT;
    if (text == NULL)
        return 0;
    memcpy(text, data + 1, size - 1);
    text[size - 1] = '\0';
    if (bl_topology_import_text(format, text, size - 1, "fuzz", &options, &root, &err) >= 0) {
        bl_fuzz_read_back(root);
        json_decref(root);
    } else {
        bl_fuzz_require(err.code < 0 && err.text[0] != '\0' && strchr(err.text, '\n') == NULL);
    }
    free(text);
    return 0;
}

#endif
