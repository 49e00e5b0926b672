/*
 * milp.h: the door to a solver of mixed-integer linear programs.
 *
 *     minimise    sum_j objective[j] x[j]
 *     subject to  lower[i] <= sum_j a[i][j] x[j] <= upper[i]      rows
 *                 lower[j] <= x[j] <= upper[j], some x[j] in {0, 1}   columns
 *
 * Planner code builds a model row by row and asks for a solution; which solver answers is decided
 * at link time. milp_glpk.c is GLPK, which is under the GPL and must not enter an engine's process,
 * so only the program `ballast` links it; milp_none.c stands in everywhere else and says so. A
 * solution found is a proposal: whoever asked scores it with the planner's own evaluator.
 *
 * Thread-safe: a model belongs to one thread at a time, and a solver keeps nothing between calls.
 */
#ifndef BL_PLANNER_MILP_H
#define BL_PLANNER_MILP_H

#include "core/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct bl_milp_column {
    double lower, upper, objective;
    bool is_binary; /* then the bounds are 0 and 1 */
} bl_milp_column;

typedef struct bl_milp_row {
    double lower, upper; /* -INFINITY and INFINITY: none */
    size_t first;        /* its entries are entry[first .. first + n - 1] */
    int n;
} bl_milp_row;

typedef struct bl_milp_entry {
    int column;
    double value;
} bl_milp_entry;

/* A model under construction; zero-initialise, free with bl_milp_free(). */
typedef struct bl_milp {
    bl_milp_column *columns;
    bl_milp_row *rows;
    bl_milp_entry *entries;
    size_t n_columns, n_rows, n_entries;
    size_t column_capacity, row_capacity, entry_capacity;
} bl_milp;

void bl_milp_free(bl_milp *milp); /* safe on a zeroed struct */

/* Append a column; *column_p is its index from 0. Binaries are branched on in the order of their
 * columns, so the ones that decide most come first (ten to a hundred times faster on exact.h's
 * models than the solver's own choice). */
bl_status bl_milp_add_column(bl_milp *milp, bl_milp_column column, int *column_p, bl_error *err);

/* Append an empty row, then entries to the row appended last. No column twice in one row; entries
 * of value 0 are left out. */
bl_status bl_milp_add_row(bl_milp *milp, double lower, double upper, bl_error *err);
bl_status bl_milp_add_entry(bl_milp *milp, int column, double value, bl_error *err);

/* Beside these limits, an interrupt (core/progress.h) stops the solver. */
typedef struct bl_milp_limits {
    int max_nodes; /* of the branch-and-bound tree; the same on every machine. 0: no limit */
    double time_s; /* wall clock. 0: no limit */
} bl_milp_limits;

typedef enum bl_milp_outcome {
    BL_MILP_OPTIMAL,    /* x is an optimum, bound its objective */
    BL_MILP_FEASIBLE,   /* stopped by a limit; x is the best found */
    BL_MILP_INFEASIBLE, /* proven: there is no solution */
    BL_MILP_UNKNOWN     /* stopped by a limit before any solution was found */
} bl_milp_outcome;

typedef struct bl_milp_result {
    bl_milp_outcome outcome;
    double bound;     /* no solution has a lower objective; -INFINITY when nothing is known */
    double objective; /* of x, in the solver's arithmetic */
    int nodes;        /* explored */
} bl_milp_result;

/* The solver's name, "GLPK 5.0", or NULL when this program was linked without one. */
const char *bl_milp_solver(void);

/* Solve; x[n_columns] is written for OPTIMAL and FEASIBLE, binaries as exactly 0 or 1. A limit that
 * was reached is no error. BL_ERR_UNSUPPORTED without a solver, BL_ERR_SOLVER when it failed. */
bl_status bl_milp_solve(const bl_milp *milp, const bl_milp_limits *limits, double *x,
                        bl_milp_result *out, bl_error *err);

#endif
