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

/* What replay and report are both asked; at(FIELD) is the offset of a field of bl_replay_request. */
/* clang-format off */
#define BL_REPLAY_OPTIONS(at)                                                                       \
    {"trace", 0, BL_OPT_LIST, at(traces), .metavar = "TRACE", .required = true,                     \
     .help = "recorded routing to score on; may be given again"},                                   \
    {"topology", 0, BL_OPT_STRING, at(topology), .metavar = "T", .required = true,                  \
     .help = "catalogue name (hgx-h100:nodes=4) or file; gives modelled times and memory"},         \
    {"steps", 0, BL_OPT_RANGE, at(steps), .metavar = "A:B",                                         \
     .help = "score these steps only, 0-based and half-open"},                                      \
    {"phase", 0, BL_OPT_CHOICE, at(phase), .choices = bl_phase_choices,                             \
     .help = "score this phase only; all (what is done without it): together, and each apart"},     \
    {"rule", 0, BL_OPT_CHOICE, at(rule), .choices = bl_rule_names,                                  \
     .help = "score under this rule instead of the one the plan was made for"},                     \
    {"dispatch", 0, BL_OPT_CHOICE, at(dispatch), .choices = bl_dispatch_names,                      \
     .help = "how tokens travel to experts: each row, once per rank, once per node, or to all"},    \
    {"combine", 0, BL_OPT_CHOICE, at(combine), .choices = bl_combine_names,                         \
     .help = "how results travel back"},                                                            \
    {"baseline", 0, BL_OPT_STRING, at(baseline), .metavar = "PLAN|contiguous|greedy",               \
     .help = "what would serve otherwise; greedy is made from the first plan's own steps"},         \
    {"model", 0, BL_OPT_STRING, at(model), .metavar = "M",                                          \
     .help = "config.json or model.json, for plans that do not know their model's sizes"},          \
    {"dwell", 0, BL_OPT_REAL, at(dwell), .metavar = "STEPS", .min = 1, .max = 1e15,                 \
     .help = "steps that a plan serves before the next one"},                                       \
    {"tokens-per-rank", 0, BL_OPT_REAL, at(tokens_per_rank), .metavar = "N", .min = 0, .max = 1e9,  \
     .help = "model times as if every step had so many tokens on each rank; 0: its own"},           \
    {"overlap", 0, BL_OPT_FLAG, at(overlap),                                                        \
     .help = "two micro-batches: communication runs beside attention and experts"},                 \
    {"strict", 0, BL_OPT_FLAG, at(strict),                                                          \
     .help = "refuse a trace that names another model than the plan does"},                         \
    {"seed", 0, BL_OPT_INT, at(seed), .metavar = "N", .min = 0, .max = 1e15,                        \
     .help = "seed of the bootstrap"}
/* clang-format on */

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
