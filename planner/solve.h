/*
 * solve.h: from a layer's problem to a placement with a proven bound.
 *
 * How a layer is planned (search, auto and exact):
 *
 *     no load at all     the current placement, or the contiguous one
 *     a current one      repaired if it cannot be served, improved from where it is; every move has a
 *                        price (BL_MOVE_PRICE). Where moves are unlimited and the result is far from
 *                        the bound, a fresh start is laid over it and wins if it is cheaper, moves
 *                        included. At the end what was in force stays unless the score falls by more
 *                        than min_gain.
 *     none               greedy (pairs.h for two slots per rank), then local search
 *     gap open           GLPK is asked for something better: over pairs of ranks, and over the whole of
 *                        small layers, or for the proof that there is nothing (solve_milp.h)
 *
 * For time the same is done by timed_solve.h. Every result is scored by evaluate.h, whoever made it.
 * Under BL_RULE_FRACTIONS placements are searched under the even split and their shares levelled
 * afterwards; under nearest and fixed the search is that of share_search.h. Where rows between nodes
 * are to be few (problem->few_remote), traffic_plan.h is the last stage.
 *
 * Names of experts and of equal ranks do not matter (canonical.h). And a plan is at rest: search and auto go on
 * from what they found, as if it were in force, until nothing is gained by min_gain any more. So whoever
 * asks again on the same load, with the plan in force, gets it back. Not where moves are limited, which the next
 * question would allow anew, nor where the clock ends the search.
 */
#ifndef BL_PLANNER_SOLVE_H
#define BL_PLANNER_SOLVE_H

#include "planner/bounds.h"
#include "planner/evaluate.h"
#include "planner/neighbour.h"

/* Greedy and contiguous look at no current placement, except for a layer without load. */
typedef enum bl_algorithm {
    /* Search; then, where it stops short of the bound, pairs of ranks, and exact for up to 32 experts
     * and about a thousand binaries. Trees are limited in nodes, so that the result does not hang on
     * the machine's speed. */
    BL_ALG_AUTO,
    BL_ALG_SEARCH,
    /* GLPK until proven or out of time, even split, up to 20000 binaries; needs a program that is
     * linked with it. */
    BL_ALG_EXACT,
    BL_ALG_GREEDY, /* replicate the hottest, pack longest first: what engines do today */
    BL_ALG_GREEDY_HIERARCHICAL, /* groups to nodes first: what they do for group-limited models */
    BL_ALG_CONTIGUOUS           /* the placement engines start with */
} bl_algorithm;

extern const char *const bl_algorithm_names[]; /* NULL-terminated, indexed by bl_algorithm */

/* Modelled time of a layer in one step, mean over scenarios. */
typedef struct bl_layer_time {
    double step_us;  /* 0: not modelled */
    double bound_us; /* no placement takes less */
    const char
        *kind; /* of the bound: "mean", "active", "slot"; static storage, NULL without time */
} bl_layer_time;

/* How a searched placement came about, in max/mean; 0 where a phase did not run. */
typedef struct bl_solve_phases {
    double start;              /* greedy, pairs, or the placement in force made servable */
    double searched;           /* after local search */
    bl_neighbour_result pairs; /* what GLPK was asked about pairs of ranks */
    double after_pairs;
    int exact_nodes; /* of the tree over the whole layer; 0: not asked */
} bl_solve_phases;

typedef struct bl_solution {
    bl_layer_placement placement; /* owned by the solution */
    double *share;                /* [n_slots] under BL_RULE_FRACTIONS, else NULL; owned */
    bl_score score;               /* by the evaluator */
    bl_bound bound;
    bl_layer_time time;
    double gap;            /* score / bound - 1, >= 0, in what the problem's objective says */
    int moves;             /* copies that must travel from problem->current; 0 without one */
    bool kept_current;     /* the current placement was good enough */
    double declined;       /* then: the gain that was not worth giving it up */
    bool proven_by_milp;   /* GLPK closed what search and bounds had left open */
    bool improved_by_milp; /* GLPK found a better placement than the search */
    bl_solve_phases phases;
    bool nodes_improved_by_milp, nodes_proven; /* the same of which nodes hold what (nodes.h) */
    bl_layer_placement afresh; /* while solving: what a search from nothing finds, once it is known;
                                  then empty. Owned */
} bl_solution;

typedef struct bl_solve_options {
    bl_algorithm algorithm;
    uint64_t seed;
    /* Search effort: descent steps (one scenario) or proposals (several); 0: default. Same seed and
     * effort: same bytes. */
    int64_t iterations;
    /* > 0: search by the clock instead (not reproducible). Exact: time for the proof, default 60. */
    double time_s;
} bl_solve_options;

#define BL_SOLVE_OPTIONS_INIT ((bl_solve_options){BL_ALG_AUTO, 1, 0, 0.0})

/* BL_LIMIT when interrupted, or when exact ran out of time before the proof: the solution is valid
 * and re-scored all the same. Free with bl_solution_free(). Thread-safe: one call per thread on its
 * own problem. BL_ERR_INFEASIBLE when max_moves is too small to cover every expert, or smaller than
 * what greedy or contiguous would move. */
bl_status bl_solve(const bl_problem *problem, const bl_solve_options *options, bl_solution *out,
                   bl_error *err);
void bl_solution_free(bl_solution *solution); /* safe on a zeroed struct */

#endif
