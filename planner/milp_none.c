#include "planner/milp.h"

const char *bl_milp_solver(void) {
    return NULL;
}

bl_status bl_milp_solve(const bl_milp *milp, const bl_milp_limits *limits, double *x,
                        bl_milp_result *out, bl_error *err) {
    (void)milp;
    (void)limits;
    (void)x;
    (void)out;
    return bl_fail(err, BL_ERR_UNSUPPORTED,
                   "no MILP solver in this library; plan with the program ballast, which has one, "
                   "or with the algorithm search");
}
