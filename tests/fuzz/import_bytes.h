/*
 * import_bytes.h: run one importer on bytes from anywhere: it must end in a trace or in one clear
 * message. Importers read files, so the bytes go through one.
 */
#ifndef BL_TESTS_FUZZ_IMPORT_BYTES_H
#define BL_TESTS_FUZZ_IMPORT_BYTES_H

#include "tracer/import.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static inline void import_bytes(const char *format, const uint8_t *data, size_t size) {
    static int moe_layers[] = {1, 2};
    const bl_model model = {.name = "toy",
                            .n_layers = 3,
                            .n_moe_layers = 2,
                            .moe_layers = moe_layers,
                            .n_experts = 4,
                            .top_k = 2};
    char path[64];
    snprintf(path, sizeof path, "/tmp/ballast-fuzz-%ld", (long)getpid());
    FILE *out = fopen(path, "wb");
    if (out == NULL)
        return;
    const size_t written = size > 0 ? fwrite(data, 1, size, out) : 0;
    if (fclose(out) == 0 && written == size) {
        const char *const paths[] = {path};
        bl_import_options options = BL_IMPORT_OPTIONS_INIT;
        bl_import_result result = {0};
        bl_error err = BL_ERROR_INIT;
        options.model = &model;
        if (bl_import(format, paths, 1, &options, "/dev/null", &result, &err) < 0 &&
            err.text[0] == '\0')
            abort();
    }
    unlink(path);
}

#endif
