/* A folder of TensorRT-LLM's expert statistics: the bytes are its rank0.safetensors. */
#include "tracer/import.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static int moe_layers[] = {1, 2};
    const bl_model model = {.name = "toy",
                            .n_layers = 3,
                            .n_moe_layers = 2,
                            .moe_layers = moe_layers,
                            .n_experts = 4,
                            .top_k = 2};
    char folder[64], path[96];
    snprintf(folder, sizeof folder, "/tmp/ballast-fuzz-%ld.d", (long)getpid());
    snprintf(path, sizeof path, "%s/rank0.safetensors", folder);
    mkdir(folder, 0700);
    FILE *out = fopen(path, "wb");
    if (out == NULL)
        return 0;
    const size_t written = size > 0 ? fwrite(data, 1, size, out) : 0;
    if (fclose(out) == 0 && written == size) {
        const char *const paths[] = {folder};
        bl_import_options options = BL_IMPORT_OPTIONS_INIT;
        bl_import_result result = {0};
        bl_error err = BL_ERROR_INIT;
        options.model = &model;
        if (bl_import("trtllm-stat", paths, 1, &options, "/dev/null", &result, &err) < 0 &&
            err.text[0] == '\0')
            abort();
    }
    unlink(path);
    rmdir(folder);
    return 0;
}
