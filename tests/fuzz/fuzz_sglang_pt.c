/* Files of torch.save, as SGLang's recorder writes them. */
#include "tests/fuzz/import_bytes.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    import_bytes("sglang-stat", data, size);
    return 0;
}
