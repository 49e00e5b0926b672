/*
 * topo_calibrate.h: `ballast topo calibrate`: a topology whose constants are those of an engine.
 *
 * Reads a trace that holds stage times (include/ballast.h, bl_trace_stage_times(); `ballast run
 * --record --stage-times`), together with the placement under which it was recorded: a trace tells
 * which experts tokens picked, the placement which rank served them. Rows are those the plan's rule
 * leads to expect, as everywhere in the planner; the placement must be that of the whole trace. A step counts when every rank told every layer's
 * times and none ran on made-up tokens.
 *
 * Records of one step may lie apart, so steps are put together in a window; its oldest step is done
 * when the window is full. Memory: window and samples, each at most 64 MiB; of longer traces the
 * first part is read, and that is said.
 */
#ifndef BL_CLI_TOPO_CALIBRATE_H
#define BL_CLI_TOPO_CALIBRATE_H

#include "core/json.h"

typedef struct bl_topo_calibrate {
    const char *trace, *model, *base;
    const char *plan; /* NULL: the layout engines start with */
    int64_t slots;    /* of it; -1: one per expert */
} bl_topo_calibrate;

/* *root_p: a topology document with its "sources". *answer_p: what was fitted and how well it predicts
 * (cli/calibration.h). New references. */
bl_status bl_topo_calibrate_run(const bl_topo_calibrate *how, json_t **root_p, json_t **answer_p,
                                bl_error *err);

#endif
