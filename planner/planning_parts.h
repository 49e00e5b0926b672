/*
 * planning_parts.h: what the files of the planning driver share; private to planner/planning*.c.
 *
 *     planning.c            the run: threads over layers, solving, comparing
 *     planning_rules.c      nodes and fault domains, as rules of every layer
 *     planning_replicas.c   slots per layer out of one budget
 *     planning_scenarios.c  the trace's steps as scenarios, one problem per layer, what is refused
 *     planning_timed.c      what turns the jobs' loads into time
 *     planning_traffic.c    where tokens come from, and the rows that travel
 *     planning_budget.c     the move budget over layers
 *     planning_explain.c    what each phase did, for those who ask
 *     planning_result.c     the summary, provenance, and the plan itself
 */
#ifndef BL_PLANNER_PLANNING_PARTS_H
#define BL_PLANNER_PLANNING_PARTS_H

#include "planner/budget.h"
#include "planner/planning.h"
#include "planner/timed.h"

#include <pthread.h>

#define BL_PLANNING_RUNGS 24
#define BL_PLANNING_LEVELS 17

/* One layer on its way through the driver. */
typedef struct bl_planning_job {
    int layer;    /* decoder-layer id */
    int row;      /* index in loads, or -1: the trace has nothing of it */
    bool idle;    /* no load in the selected steps */
    double *load; /* [n_scenarios][n_experts]; owned */
    double total; /* sum of load */
    bl_problem problem;
    bl_rules rules; /* what the problem's rules point to */
    int *least;     /* [n_experts] or NULL; owned */
    bl_holds may;   /* owned */
    bool groups_proven;
    int *slots; /* [n_ranks] of this layer alone, or NULL: as the options say; owned */
    int n_levels;
    double level_first;                 /* what the busiest ranks do with the fewest slots */
    bl_rung levels[BL_PLANNING_LEVELS]; /* slots per rank beyond the fewest, and what they gain */
    bl_solution solution;               /* owned */
    bl_score before, greedy;
    bl_timed timed;              /* problem.timed points here where times are modelled */
    double *scale;               /* of timed; owned */
    double before_us, greedy_us; /* 0: not modelled */
    bl_sources sources;          /* while a task runs; owned */
    bool has_traffic;
    bl_planning_traffic traffic_before, traffic;
    bl_score free; /* of a plan without the rules, where there are any */
    double free_us;
    int moves; /* from the current placement or the start layout */
    /* under a move budget: what the layer could have, by moves */
    int n_rungs;
    bl_rung rungs[BL_PLANNING_RUNGS];
    bl_solution offers[BL_PLANNING_RUNGS]; /* owned */
} bl_planning_job;

typedef struct bl_planning bl_planning;
struct bl_planning {
    const bl_loads *loads;
    const bl_model *model;
    const bl_topology *topology; /* or NULL */
    const bl_planning_options *options;
    bl_progress *progress;
    size_t steps_per_scenario;
    int n_scenarios, n_jobs;
    /* under a budget of replicas: slots per rank given out, gains predicted */
    int replica_levels;
    int64_t replica_slots;
    double replica_gain, replica_even_gain;
    bool replicas_proven;
    bl_planning_job *jobs;
    bl_cost *cost;  /* NULL: no times; owned */
    double *weight; /* [n_scenarios] of bl_timed, the same in all layers; owned */
    /* shared by the threads, under the lock */
    pthread_mutex_t lock;
    bl_status (*task)(const bl_planning *, bl_planning_job *, bl_error *);
    int next, done;
    bool stopped;
    bl_status status;
    bl_error error;
};

/* planning_scenarios.c */

bl_status bl_planning_check_loads(const bl_loads *loads, const bl_model *model, bl_error *err);
/* The current plan must speak of this model and these ranks. */
bl_status bl_planning_check_current(const bl_plan *current, const bl_model *model, int n_ranks,
                                    bl_error *err);
/* Fill in the jobs: scenarios and problem of every layer. */
bl_status bl_planning_make_jobs(bl_planning *r, bl_error *err);
/* bl_problem.tail of this run. */
double bl_planning_tail(const bl_planning *r);
/* As --over has it: "mean", "cvar:0.9". */
void bl_planning_name_over(const bl_planning *r, char *name, size_t size);

/* What a step counts, against the last one. */
double bl_planning_weight(const bl_planning *r, size_t step);

/* planning_timed.c */

/* Let every job's problem tell time, where topology (or NULL) and model allow it. BL_ERR_USAGE or
 * BL_ERR_MODEL where they do not and time is the objective. */
bl_status bl_planning_time_jobs(bl_planning *r, const bl_topology *topology, bl_error *err);
void bl_planning_untime_jobs(bl_planning *r);

/* planning_rules.c */

/* Add what the options say to the job's problem. */
bl_status bl_planning_make_rules(const bl_planning *r, bl_planning_job *j, bl_error *err);
bool bl_planning_has_rules(const bl_planning *r);

/* planning_replicas.c */

/* Give every layer slots of its own, where the options have a budget for all of them. */
bl_status bl_planning_share_replicas(bl_planning *r, bl_error *err);

/* planning.c */

/* The options of one layer's solve: its own seed, its part of the time. */
bl_solve_options bl_planning_solve_options(const bl_planning *r, const bl_planning_job *j);
bl_status bl_planning_solve_within(const bl_planning_job *j, const bl_solve_options *options,
                                   int64_t max_moves, bl_solution *out, bl_error *err);
/* Run a task for every job, on all threads. */
bl_status bl_planning_for_all(bl_planning *r,
                              bl_status (*task)(const bl_planning *, bl_planning_job *, bl_error *),
                              bl_error *err);

/* planning_traffic.c */

/* Where the layer's tokens come from, for the time that a task works on it. */
bl_status bl_planning_attach(const bl_planning *r, bl_planning_job *j, bl_error *err);
void bl_planning_detach(bl_planning_job *j);
/* Rows that travel in the steps planned on: under the placement before and under the plan. */
bl_status bl_planning_meter(const bl_planning *r, bl_planning_job *j, bl_error *err);
void bl_planning_sum_traffic(const bl_planning *r, bl_planning_summary *s);
/* "traffic" of a plan's provenance; new reference. */
json_t *bl_planning_traffic_to_json(const bl_planning *r, const bl_planning_summary *s);

/* planning_budget.c */

/* Moves are limited, and there is something to move from. */
bool bl_planning_has_budget(const bl_planning *r);
/* Moves over all layers: what max_moves and max_bytes leave. -1: no limit. */
int64_t bl_planning_max_moves(const bl_planning *r);
/* Give moves back where they gain least, until all layers together keep within the limit. */
bl_status bl_planning_keep_budget(bl_planning *r, bl_error *err);

/* planning_explain.c */

/* As planning.h draws it; new reference. Before the solutions are handed over. */
json_t *bl_planning_explain(const bl_planning *r);

/* planning_result.c */

void bl_planning_summarise(const bl_planning *r, bl_planning_summary *s);
/* Hand the layers' placements over to a plan. */
bl_status bl_planning_assemble(bl_planning *r, const bl_planning_summary *s, bl_plan *out,
                               bl_error *err);

#endif
