/*
 * planning.h: from a trace's loads, a model and a cluster to a plan over all MoE layers.
 *
 *     loads ──▶ scenarios per layer ──▶ bl_solve() per layer ──▶ move budget ──▶ bl_plan
 *     model, topology, what is asked for ──▶ slots per rank ──┘
 *
 * Layers are separate problems (several threads share them) that meet only in the move budget.
 * Each selected step of the trace is one scenario; a trace of more steps than max_scenarios is cut
 * into that many blocks of consecutive steps, summed, and provenance says so.
 *
 * Scenarios are a sample of the traffic to come. From BL_ROBUST_SCENARIOS of them on, plans are
 * therefore searched with planner/robust.h (but for per-step splits, which level what comes by
 * themselves). Its cost is the mean over scenarios (over = mean), over the worst twentieth (p95,
 * which lies at that part's edge) or over the worst part (cvar). With a half-life older scenarios
 * count less, and so they do in the scores.
 *
 * Where a topology and the model's sizes are known, plans are also told in time (planner/timed.h), as
 * score and bound beside those in tokens; with the objective `time` that is what is minimised and
 * what the gap refers to.
 *
 * Where the loads tell by source where tokens come from (`sites` given), rules that look at it can be
 * planned for, and on several nodes plans keep rows between them few (planner/traffic_plan.h).
 *
 * A layer without load in the selected steps, or without records in the trace, keeps the current
 * placement, or the one engines start with, and is listed. Fewer than half of the layers with load
 * is refused: that is a broken recorder or a wrong layer convention, not traffic.
 *
 * Groups of experts that are kept whole get their nodes first, layer by layer (planner/groups.h); the
 * layer is then planned, bounded and proven with these nodes given. What such rules and fault domains
 * cost is told by a second search without them.
 *
 * A budget of replicas is memory per rank over all layers. Each layer is searched with 0, 1, 2, ...
 * slots per rank beyond the fewest, and the budget goes where it spares the busiest ranks most; what
 * would gain nothing is not spent (planner/replicas.h). Layers then differ in slots, which few engines can serve.
 *
 * The move budget counts copies over all layers. When the layers together want more, each offers
 * placements for 0, 1, 2, 4, ... moves and the budget goes where a move gains most
 * (planner/budget.h).
 *
 * The same inputs, options and seed give the same plan, whatever the number of threads, unless a
 * time limit or an interrupt stopped it. Nothing is printed here; the summary holds what there is
 * to say.
 */
#ifndef BL_PLANNER_PLANNING_H
#define BL_PLANNER_PLANNING_H

#include "core/progress.h"
#include "planner/capacity.h"
#include "planner/plan.h"
#include "planner/traffic.h"
#include "topologies/topology.h"
#include "tracer/loads.h"

#define BL_MAX_SCENARIOS 64

typedef enum bl_over { BL_OVER_MEAN, BL_OVER_P95, BL_OVER_CVAR, BL_OVER_SAMPLE } bl_over;

typedef struct bl_objective_over {
    bl_over kind; /* BL_OVER_SAMPLE: level exactly these scenarios, however many */
    double level; /* cvar: the mean of the worst 1 - level; 0 <= level < 1 */
} bl_objective_over;

/* "mean", "p95", "cvar:A" with 0 <= A < 1, or "sample". */
bl_status bl_over_parse(const char *text, bl_objective_over *out, bl_error *err);

typedef struct bl_planning_options {
    bl_capacity capacity; /* slots of each rank; borrowed */
    int n_ranks;
    bl_rule rule;
    bl_solve_options solve; /* solve.time_s is for all layers together */
    const bl_plan *current; /* the placement in force, or NULL; borrowed */
    int64_t max_moves;      /* over all layers; -1: no limit */
    int64_t max_bytes;      /* the same in bytes of experts; -1: no limit */
    int spares;             /* bundles per rank kept free for moves: priced, not filled */
    int64_t replica_budget; /* >= 0: capacity is the fewest slots that hold all experts, and so many
                               slots per rank more are shared out over the layers; -1: no budget */
    const int *node;        /* [n_ranks] from 0, or NULL: groups and the hierarchical policy */
    bool keep_groups;       /* the model's groups of experts stay whole on a node */
    const int *domain;      /* [n_ranks] fault domains, from 0; with min_copies */
    int min_copies;         /* > 1: experts are in at least so many of them */
    int guarded;            /* this many experts of a layer, the hottest; 0: all */
    double min_gain;        /* as in bl_problem; < 0: BL_MIN_GAIN_DEFAULT, or BL_ROBUST_MIN_GAIN */
    bl_objective objective; /* time needs a topology and a model with sizes */
    double tokens_per_rank; /* times are those of so many tokens on each rank in a step; 0: as many
                               as the trace's mean step has */
    bool overlap;           /* communication runs beside attention and experts (cost.h) */
    bl_objective_over over;
    double half_life;      /* steps after which one counts half of what follows; 0: all alike */
    const bl_sites *sites; /* where ranks are, or NULL: sources are not looked at; borrowed */
    bl_dispatch dispatch, combine; /* how the engine sends tokens, for traffic */
    int max_scenarios;
    int n_threads;
    bool compare;                 /* also score the placement before and the greedy one */
    bool explain;                 /* fill in the summary's explain */
    bool strict;                  /* a layer without load is an error */
    int64_t first_step, end_step; /* what was asked of the trace, for provenance; half-open */
    const char *phase;            /* name of the phase asked for, or NULL: all */
} bl_planning_options;

#define BL_PLANNING_OPTIONS_INIT                              \
    ((bl_planning_options){.rule = BL_RULE_EVEN,              \
                           .solve = BL_SOLVE_OPTIONS_INIT,    \
                           .max_moves = -1,                   \
                           .max_bytes = -1,                   \
                           .replica_budget = -1,              \
                           .min_copies = 1,                   \
                           .min_gain = -1.0,                  \
                           .max_scenarios = BL_MAX_SCENARIOS, \
                           .n_threads = 1,                    \
                           .end_step = INT64_MAX})

/* A figure over the layers that have load. */
typedef struct bl_planning_figure {
    double mean, worst;
    int worst_layer; /* decoder-layer id */
} bl_planning_figure;

/* Rows of the steps planned on, over all layers, that travel under one placement. */
typedef struct bl_planning_traffic {
    double dispatch[BL_MAX_LEVELS + 1], combine[BL_MAX_LEVELS + 1]; /* by level of the topology */
    double remote_nodes, tokens; /* summed over tokens and layers; tokens known by their ids */
} bl_planning_traffic;

typedef struct bl_planning_summary {
    int n_layers, n_idle,
        n_missing; /* in the plan; without load; of those, absent from the trace */
    int n_proven;  /* layers whose optimum is proven: gap 0 */
    size_t n_steps, steps_per_scenario;
    bool current_given; /* `before` is the current placement, else the start layout */
    bool compared;      /* before and greedy are filled in */
    bl_planning_figure before, greedy, score, bound, gap;
    /* modelled microseconds of a step in all MoE layers together; 0: not modelled */
    double before_us, greedy_us, score_us, bound_us;
    double free_us; /* without the rules; where there are any */
    bool has_rules;
    bl_planning_figure free; /* without the rules; where there are any */
    int n_groups_proven;     /* layers whose groups have the best nodes, proven by GLPK */
    bool has_traffic;        /* known where tokens come from, and the rule's shares foreseeable */
    bl_planning_traffic traffic_before, traffic;
    double locality_gain; /* part of the dispatched rows between nodes that the plan saves */
    int n_nodes_improved, n_nodes_proven; /* layers whose nodes GLPK improved, and proved best */
    int n_orphans;        /* experts of a layer whose current copies are all on masked ranks */
    int64_t moves;        /* from the current placement, or from the start layout */
    int64_t replicas;     /* copies beyond the first, in the layer that has most */
    int64_t budget_slots; /* under a budget of replicas: slots per rank given out of it, and */
    double budget_gain;   /* what that gains over giving all layers the same: part of the busiest
                                ranks' load (or time), as predicted */
    bool budget_proven;
    uint64_t replica_bytes;  /* all layers and ranks; 0 when the model has no sizes */
    uint64_t resident_bytes; /* all experts of the rank that holds most */
    uint64_t rank_bytes;     /* of the rank that pays most for them */
    uint64_t spare_bytes;    /* on every rank, beside that */
    double kv_tokens_lost;   /* to copies and spares on that rank; 0 when unknown */
    /* Where options.explain asks, a new reference; else NULL:
     *
     *     {"solver": "GLPK" or null,
     *      "phases": {"layers", "start", "search", "pairs", "plan"},   mean max/mean after each
     *      "bounds": {"mean": 70, "slot": 5},                          layers in which it binds
     *      "glpk": {"pair_layers", "pairs_asked", "pairs_improved", "pairs_proven",
     *               "exact_layers", "exact_nodes", "improved_layers", "proven_layers"},
     *      "layers": [{"layer", "idle", "bound": {"kind", "max_over_mean"}, "before", "start",
     *                  "search", "pairs", "plan", "gap", "kept_current", "moves",
     *                  "glpk": {"pairs_asked", "pairs_improved", "pairs_proven", "exact_nodes",
     *                           "improved", "proven"},
     *                  "copies": [{"expert", "copies", "share", "per_copy"}, ...]}, ...]}
     *
     * share is of the layer's load, per_copy in mean rank loads; the experts with most copies. */
    json_t *explain;
    bool stopped; /* a limit or an interrupt ended some layer's search */
} bl_planning_summary;

/* Make the plan. `loads` and `model` must agree; the topology is for times and provenance and may be
 * NULL.
 * Errors name the layer. Free the plan with
 * bl_plan_free(). BL_LIMIT: the plan is whole, but the search was stopped early. */
bl_status bl_planning_run(const bl_loads *loads, const bl_model *model, const bl_topology *topology,
                          const bl_planning_options *options, bl_progress *progress, bl_plan *out,
                          bl_planning_summary *summary, bl_error *err);

#endif
