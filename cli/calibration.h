/*
 * calibration.h: fitted costs and how well they predict, told in JSON and in words.
 */
#ifndef BL_CLI_CALIBRATION_H
#define BL_CLI_CALIBRATION_H

#include "core/json.h"
#include "planner/calibrate.h"

/* {"n","measured_us":{"p50","p95"},"predicted_us":{"p50","p95"},
 *  "error":{"median","p95","total"}}; the errors are parts of what was measured. */
json_t *bl_errors_json(const bl_fit_errors *errors);

/* "1.31 ms predicted, 1.40 ms measured (medians of 120 unseen steps; p95 ...); error ..." */
const char *bl_errors_text(const bl_fit_errors *errors, const char *what, char *out, size_t room);

/* {"<name>":{"us","error_us"} or {"us":null,"why"}} of each term. */
json_t *bl_fit_json(const bl_fit *fit, const char *const *names);

/* {"experts_us":[one for each kind of device],"exchange_us":{...}}; `wire` is no time but a factor. */
json_t *bl_calibration_json(const bl_calibration *calibration);

/* "row 11.2 us, expert 3.1 us, layer is lost in the noise"; of exchanges the wire's factor as
 * "bytes at 0.8 of the base's rate". */
const char *bl_fit_text(const bl_fit *fit, const char *const *names, char *out, size_t room);
const char *bl_exchange_text(const bl_fit *exchange, char *out, size_t room);

#endif
