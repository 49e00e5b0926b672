/* Logs of nvbandwidth from anywhere. */
#include "tests/fuzz/import.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    return bl_fuzz_import(BL_FROM_NVBANDWIDTH, data, size);
}
