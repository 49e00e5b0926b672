/*
 * record_rings.h: which rings `ballast record` takes: by name or pattern, and those that appear
 * while it runs.
 */
#ifndef BL_CLI_RECORD_RINGS_H
#define BL_CLI_RECORD_RINGS_H

#include "core/opt.h"
#include "tracer/recorder.h"
#include "tracer/ring.h"

#define BL_PASSED_MAX 64

/* Rings that fit a pattern and could not be attached. Each is told on stderr once: at once when it will
 * never do (no ring, another model), after some seconds when it may be in the making. */
typedef struct bl_record_passed {
    struct {
        char name[BL_RING_NAME_MAX + 1];
        double since_s;
        bool told;
    } rings[BL_PASSED_MAX];
    int n;
    bl_error first; /* the reason of the first one in the last call; no text: none */
} bl_record_passed;

/* Attach every ring that fits one of the patterns (none given: every ring) and is not attached yet;
 * *n counts those that were. What cannot be attached is passed over, but for two cases unless
 * `lenient`: a name without wildcards must be there (BL_ERR_STATE), and models must not differ. */
bl_status bl_record_attach(bl_recorder *recorder, const bl_opt_list *patterns, bool lenient, int *n,
                           bl_record_passed *passed, bl_error *err);

/* Change what the engines behind these rings keep; *n counts the rings. What is no ring is passed over. */
bl_status bl_record_set_control(const bl_opt_list *patterns, uint64_t control, int *n,
                                bl_error *err);

#endif
