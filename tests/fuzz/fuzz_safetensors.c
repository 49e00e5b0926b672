/* Checkpoint headers from anywhere: whatever the bytes, reading ends in tensors that tile the data
 * and are found by their names, or in one clear message. Input: a header, then the tensors' data.
 */
#include "core/safetensors.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int holds) {
    if (!holds)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    uint64_t header_bytes = 0;
    if (size < 8)
        return 0;
    for (int i = 7; i >= 0; i--)
        header_bytes = header_bytes << 8 | data[i];
    if (header_bytes > size - 8)
        header_bytes = size - 8;
    const uint64_t n_data = size - 8 - header_bytes;
    bl_error err = BL_ERROR_INIT;
    bl_safetensors *reader;
    const bl_status st = bl_safetensors_parse((const char *)data + 8, (size_t)header_bytes, n_data,
                                              "fuzz", &reader, &err);
    if (st < 0) {
        require(err.code == st && err.text[0] != '\0' && strchr(err.text, '\n') == NULL);
        return 0;
    }
    uint64_t total = 0;
    for (size_t i = 0; i < bl_safetensors_count(reader); i++) {
        const bl_safetensor *tensor = bl_safetensors_at(reader, i);
        require(tensor->begin <= n_data && tensor->bytes <= n_data - tensor->begin);
        require(bl_safetensors_find(reader, tensor->name) == tensor);
        total += tensor->bytes;
    }
    require(total == n_data);
    bl_safetensors_free(reader);
    return 0;
}
