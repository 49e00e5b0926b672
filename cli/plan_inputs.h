/*
 * plan_inputs.h: what `ballast plan` is asked for, and everything that is opened for it.
 */
#ifndef BL_CLI_PLAN_INPUTS_H
#define BL_CLI_PLAN_INPUTS_H

#include "cli/phases.h"
#include "core/opt.h"
#include "planner/planning.h"
#include "tracer/trace.h"

typedef struct bl_plan_options {
    bl_opt_list traces;
    const char *model, *topology, *redundant, *slots_per_rank, *mask, *current, *output, *over;
    const char *node, *fault_domain, *replica_budget;
    int64_t ranks, slots, max_moves, max_bytes, spares, min_copies, guarded, seed, threads;
    int rule, algorithm, phase, dispatch, combine;
    bl_opt_range steps;
    double min_gain, time_s, half_life, tokens_per_rank;
    int objective;
    bool overlap, keep_groups, explain, strict, json;
} bl_plan_options;

/* Everything that is opened for one plan. */
typedef struct bl_plan_inputs {
    bl_model model;
    bl_topology topology;
    bool has_topology, has_current;
    int n_ranks;
    bl_plan current;
    bl_capacity capacity;
    bl_opt_list paths;      /* of the trace; borrowed from the command line */
    bl_demand demand;       /* phases of the steps asked for */
    bl_sites sites;         /* of the topology, where sources are looked at; else no ranks */
    int64_t replica_budget; /* slots per rank over all layers, or -1 */
    int *node, *domain;     /* [n_ranks] or NULL */
    bl_loads loads;
} bl_plan_inputs;

/* Check the options, then open model, cluster, current placement, slots and trace. Free with
 * bl_plan_inputs_free(), also after an error. */
bl_status bl_plan_inputs_open(const bl_plan_options *o, int n_args, char **args, bl_plan_inputs *in,
                              bl_error *err);
void bl_plan_inputs_free(bl_plan_inputs *in);

#endif
