/* Replies of SGLang with the experts of their tokens. */
#include "tests/fuzz/import_bytes.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    import_bytes("sglang-reply", data, size);
    return 0;
}
