/* NumPy arrays: in memory, where every item must be readable, and through the importers. */
#include "core/npy.h"
#include "tests/fuzz/import_bytes.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    bl_npy npy;
    bl_error err = BL_ERROR_INIT;
    if (bl_npy_parse(data, size, "fuzz", &npy, &err) >= 0) {
        volatile double sum = 0;
        for (size_t i = 0; i < npy.n_items; i++)
            sum = sum + bl_npy_real(&npy, i);
        bl_npy_free(&npy);
        import_bytes("load-npy", data, size);
        import_bytes("topk-npy", data, size);
    } else if (err.text[0] == '\0') {
        abort();
    }
    return 0;
}
