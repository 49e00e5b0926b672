/* Files of torch.save, as SGLang's recorder writes them for each rank. */
#include "tests/fuzz/import_bytes.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    import_bytes("sglang-pass", data, size);
    return 0;
}
