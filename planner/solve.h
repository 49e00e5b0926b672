/*
 * solve.h: from a layer's problem to a placement with a proven bound.
 */
#ifndef BL_PLANNER_SOLVE_H
#define BL_PLANNER_SOLVE_H

#include "planner/bounds.h"
#include "planner/evaluate.h"

typedef enum bl_algorithm {
    BL_ALG_AUTO, /* search; exact where the instance is small enough to prove */
    BL_ALG_SEARCH,
    BL_ALG_EXACT,     /* GLPK; needs a program linked with it */
    BL_ALG_GREEDY,    /* replicate the hottest, pack longest first: what engines do today */
    BL_ALG_CONTIGUOUS /* the placement engines start with */
} bl_algorithm;

extern const char *const bl_algorithm_names[]; /* NULL-terminated, indexed by bl_algorithm */

typedef struct bl_solution {
    bl_layer_placement placement; /* owned by the solution */
    double *share;                /* [n_slots] under BL_RULE_FRACTIONS, else NULL; owned */
    bl_score score;               /* by the evaluator */
    bl_bound bound;
    double gap;            /* score / bound - 1, >= 0 */
    int moves;             /* copies that must travel from problem->current; 0 without one */
    bool kept_current;     /* the current placement was good enough */
    bool proven_by_milp;   /* GLPK closed the instance */
    bool improved_by_milp; /* GLPK found a better placement than the search */
} bl_solution;

typedef struct bl_solve_options {
    bl_algorithm algorithm;
    uint64_t seed;
    int64_t iterations; /* search effort; 0: default. Same seed and effort: same bytes */
    double time_s;      /* > 0: stop by the clock instead (not reproducible) */
} bl_solve_options;

#define BL_SOLVE_OPTIONS_INIT ((bl_solve_options){BL_ALG_AUTO, 1, 0, 0.0})

/* BL_LIMIT when stopped early: the solution is still valid and re-scored. Free with
 * bl_solution_free(). Thread-safe: one call per thread on its own problem. */
bl_status bl_solve(const bl_problem *problem, const bl_solve_options *options, bl_solution *out,
                   bl_error *err);
void bl_solution_free(bl_solution *solution); /* safe on a zeroed struct */

#endif
