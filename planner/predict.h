/*
 * predict.h: what a plan makes of the steps it was made from, phase by phase.
 *
 * Score, bound and gap of a plan are means over scenarios, which may be blocks of steps of several
 * phases. This is the same plan step by step, as replay would score it (planner/replay.h), layer by
 * layer and with percentiles: what to compare realised figures with. It describes the steps that
 * were planned on and proves nothing about others.
 */
#ifndef BL_PLANNER_PREDICT_H
#define BL_PLANNER_PREDICT_H

#include "planner/plan.h"
#include "topologies/topology.h"
#include "tracer/loads.h"

typedef struct bl_predict_options {
    const bl_topology *topology; /* NULL: no times; borrowed */
    double tail;                 /* as in bl_replay_options */
    double tokens_per_rank;
    bool overlap;
} bl_predict_options;

/* Put the figures of `loads`, which hold one phase, under plan->predicted[phase]. Rules that cannot
 * be scored from loads alone leave no figures. */
bl_status bl_predict(bl_plan *plan, const bl_loads *loads, const char *phase,
                     const bl_predict_options *options, bl_error *err);

#endif
