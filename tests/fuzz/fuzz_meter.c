/* Reports of load from a peer: what is refused changes nothing, what is taken is a window of this
 * cluster's shape. */
#include "rebalancer/meter.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const int layers[] = {1, 4};
    static const bool living[] = {true, false};
    bl_meter *meter;
    if (bl_meter_create(0, 2, layers, 2, 3, 4, &meter, NULL) < 0)
        return 0;
    const bl_status st = bl_meter_hear(meter, 0, data, size, living, NULL);
    const bl_window window = bl_meter_window(meter);
    if (st < 0 && window.number != 0)
        abort();
    if (window.number != 0 && (window.n_layers != 2 || bl_window_imbalance(&window) < 0))
        abort();
    bl_meter_free(meter);
    return 0;
}
