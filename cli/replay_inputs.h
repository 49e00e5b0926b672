/*
 * replay_inputs.h: what `ballast replay` is asked for, and everything that is opened for it.
 */
#ifndef BL_CLI_REPLAY_INPUTS_H
#define BL_CLI_REPLAY_INPUTS_H

#include "cli/phases.h"
#include "planner/replay.h"

typedef struct bl_replay_request {
    bl_opt_list traces;
    const char *topology, *model, *baseline;
    bl_opt_range steps;
    int rule, phase, dispatch, combine;
    double dwell, tokens_per_rank;
    int64_t seed;
    bool overlap, strict, json;
} bl_replay_request;

typedef struct bl_replay_inputs {
    int n_plans;
    bl_plan *plans; /* [n_plans]; owned */
    bl_plan baseline;
    bool has_baseline, has_model;
    bl_model model;
    bl_topology topology;
    bl_demand demand;
    bl_loads loads; /* of the phase asked for */
} bl_replay_inputs;

/* Open the plans, the topology and the trace. Free with bl_replay_inputs_free(), also after an
 * error. */
bl_status bl_replay_inputs_open(const bl_replay_request *o, int n, char **paths,
                                bl_replay_inputs *in, bl_error *err);
void bl_replay_inputs_free(bl_replay_inputs *in);

/* The loads of one phase (a bl_phase, or -1: all). Free with bl_loads_free(). */
bl_status bl_replay_read_loads(const bl_replay_request *o, const bl_replay_inputs *in, int phase,
                               bl_loads *out, bl_error *err);

#endif
