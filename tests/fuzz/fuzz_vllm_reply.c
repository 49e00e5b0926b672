/* Replies of vLLM with the experts of their tokens. */
#include "tests/fuzz/import_bytes.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    import_bytes("vllm-reply", data, size);
    return 0;
}
