/*
 * problem.h: one layer's placement problem, in numbers.
 *
 * Given the load of E experts under one or more scenarios (steps or blocks of a trace), find which
 * experts, and how many copies of each, sit in the slots of G ranks so that the busiest rank has as
 * little as possible to do.
 *
 *     rank load    L_g(s) = sum over slots p of rank g:  share(p) * load[s][expert(p)]
 *     imbalance    max_g L_g(s) / mean_g L_g(s)          (masked ranks hold nothing and do not
 * count) score        mean over scenarios of the imbalance, weighted by the scenario's total load
 *                  = G' * sum_s max_g L_g(s) / sum_s total(s),   G' = ranks that have slots
 *
 * The second form says what the score is: the time that all scenarios take one after another,
 * against the time they would take on perfectly level ranks. Everything in the planner minimises
 * that one sum.
 *
 * Hard rules, never traded: every expert has a copy; no expert twice on one rank; slots per rank
 * are respected; masked ranks hold nothing; what problem->rules says of nodes and fault domains; a
 * layer without load keeps its current placement where these allow it. Besides, placements made here fill every slot, since engines have no empty ones (the number of
 * slots is their number of physical experts); only a placement in force may have holes.
 */
#ifndef BL_PLANNER_PROBLEM_H
#define BL_PLANNER_PROBLEM_H

#include "core/dispatch.h"
#include "core/placement.h"
#include "core/split.h"
#include "planner/rules.h"

/* The default of min_gain. One per cent of noise on every expert moves the score of an unchanged
 * placement by up to two per cent and would, without a threshold, move hundreds of copies for
 * nothing; traffic that has really drifted costs ten per cent and more. */
#define BL_MIN_GAIN_DEFAULT 0.03

/* What a search that starts from a current placement counts against every move, in max/mean. On
 * GLM-5.2's drifting windows (24 re-plans, scored on the next window) 1e-3 takes half the moves of
 * 3e-4 at the same held-out balance: the last thousandths do not last. */
#define BL_MOVE_PRICE 1e-3

/* What a plan minimises: the busiest rank's token rows, or modelled time (timed.h). */
typedef enum bl_objective { BL_OBJECTIVE_TOKENS, BL_OBJECTIVE_TIME } bl_objective;

extern const char *const bl_objective_names[]; /* NULL-terminated, indexed by bl_objective */

struct bl_timed;

typedef struct bl_problem {
    int layer; /* decoder-layer id, for messages */
    int n_experts, n_ranks;
    int n_scenarios;
    const double *load;                /* [n_scenarios][n_experts], token rows, >= 0; borrowed */
    const int *slots_per_rank;         /* [n_ranks]; 0 on a masked rank; borrowed */
    bl_rule rule;                      /* how copies share their expert's load */
    const bl_layer_placement *current; /* the placement in force, or NULL; borrowed. Its slots per
                                  rank may differ from the problem's: then it cannot be kept, but
                                  copies that stay on their rank are still no moves */
    int max_moves;                     /* copies that may travel from `current`; -1: no limit */
    double min_gain;       /* with `current`: keep it unless the score falls by more than this
                        fraction (0.01 = one per cent) */
    double declined;       /* the gain for which `current` was last kept all the same; 0: none */
    int n_groups;          /* equal groups of experts, and the ranks' nodes, for groups.h and */
    const int *node;       /* hierarchical.h: [n_ranks] from 0, or NULL; borrowed */
    const bl_rules *rules; /* where experts may and must live (rules.h), or NULL; borrowed */
    /* 0: level exactly these scenarios. Else they are a sample of what will come, and the search
     * minimises the cost of planner/robust.h instead of the score: 1 its mean over scenarios, less
     * the mean over this part of them, the worst. Score, bound and gap keep their meaning. Not
     * looked at under BL_RULE_PER_STEP. */
    double tail;
    bl_objective objective;
    /* How loads become time, or NULL: no time is told. Needed for BL_OBJECTIVE_TIME. Borrowed. */
    const struct bl_timed *timed;
    /* Where tokens come from, one group for each scenario, and where ranks are (planner/sources.h):
     * both are there for the rules that look at it, and where traffic is planned; else NULL.
     * Borrowed. */
    const struct bl_sources *sources;
    const struct bl_sites *sites;
    bool few_remote;      /* plan for few rows between nodes, too (traffic_plan.h) */
    bl_dispatch dispatch; /* the rows that this is about */
} bl_problem;

/* Can it be solved at all? Loads finite and >= 0, shapes positive, enough slots for every expert,
 * no more slots on a rank than experts, rules that can be kept. BL_ERR_INFEASIBLE names the
 * remedy with numbers. */
bl_status bl_problem_check(const bl_problem *problem, bl_error *err);

/* The gain for which the current placement is given up: min_gain. But a layer whose gain stayed just
 * below it would move or not by the next breath of noise. So once a gain has been declined, the next
 * must exceed it by half of min_gain, up to one and a half times min_gain in all. */
double bl_problem_asked_gain(const bl_problem *problem);

/* Ranks with slots. */
int bl_problem_active_ranks(const bl_problem *problem);
int bl_problem_n_slots(const bl_problem *problem);

/* sum[n_experts]: load of every expert over all scenarios. */
void bl_problem_sum_load(const bl_problem *problem, double *sum);
double bl_problem_total_load(const bl_problem *problem);

/* True when no scenario has any load: nothing can be said about such a layer. */
bool bl_problem_is_idle(const bl_problem *problem);

/* The placement in force can be served as it is: same ranks, slots and experts, hard rules kept. */
bool bl_problem_current_fits(const bl_problem *problem);

/* May a plan have empty slots? Only where the placement in force has some, or where it cannot be
 * served as it is and the limit on moves may not suffice to fill them all. */
bool bl_problem_may_have_holes(const bl_problem *problem);

/* A placement of the problem's shape with every slot empty; freed with bl_layer_placement_free().
 */
bl_status bl_problem_empty_placement(const bl_problem *problem, bl_layer_placement *out,
                                     bl_error *err);

#endif
