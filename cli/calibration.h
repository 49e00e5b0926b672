/*
 * calibration.h: fitted costs and how well they predict, told in JSON and in words.
 */
#ifndef BL_CLI_CALIBRATION_H
#define BL_CLI_CALIBRATION_H

#include "core/json.h"
#include "planner/calibrate.h"

/* {"steps","measured_us":{"p50","p95"},"predicted_us":{"p50","p95"},
 *  "error":{"median","p95","total"}}; the errors are parts of what was measured. */
json_t *bl_errors_json(const bl_fit_errors *errors);

/* "1.40 ms measured, 1.31 ms predicted (median of 120 unseen steps); error 6 % (median), 21 % (p95)" */
const char *bl_errors_text(const bl_fit_errors *errors, char *out, size_t room);

/* {"<name>":{"us","error_us"} or {"us":null,"why"}} of each term. */
json_t *bl_fit_json(const bl_fit *fit, const char *const *names);

/* {"experts_us":[one for each kind of device],"exchange_us":{...}}; `wire` is no time but a factor. */
json_t *bl_calibration_json(const bl_calibration *calibration);

/* One sentence of a fit: "a row takes 11.2 us, an expert 3.1 us; a layer is lost in the noise". */
const char *bl_fit_text(const bl_fit *fit, const char *const *names, char *out, size_t room);

#endif
