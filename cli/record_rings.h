/*
 * record_rings.h: which rings `ballast record` takes: by name or pattern, and those that appear
 * while it runs.
 */
#ifndef BL_CLI_RECORD_RINGS_H
#define BL_CLI_RECORD_RINGS_H

#include "core/opt.h"
#include "tracer/recorder.h"

/* Attach every ring that fits one of the patterns (none given: every ring) and is not attached yet;
 * *n counts those that were. A ring that is being made, or that somebody else records, is passed
 * over; a name without wildcards must be there (BL_ERR_STATE) unless `lenient`. */
bl_status bl_record_attach(bl_recorder *recorder, const bl_opt_list *patterns, bool lenient, int *n,
                           bl_error *err);

/* Change what the engines behind these rings keep; *n counts the rings. */
bl_status bl_record_set_control(const bl_opt_list *patterns, uint64_t control, int *n,
                                bl_error *err);

#endif
