/* CSV of single tokens' expert ids. */
#include "tests/fuzz/import_bytes.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    import_bytes("topk-csv", data, size);
    return 0;
}
