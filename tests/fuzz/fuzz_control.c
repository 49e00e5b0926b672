/* Requests on the control socket. What is accepted must be a placement that obeys the hard rules. */
#include "rebalancer/control.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    bl_control_request request;
    if (bl_control_parse((const char *)data, size, &request, NULL) < 0)
        return 0;
    if (request.op == BL_CONTROL_APPLY && bl_placement_check(&request.goal, NULL, NULL) < 0)
        abort();
    bl_control_request_free(&request);
    return 0;
}
