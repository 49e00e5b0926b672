/*
 * GLPK behind milp.h. The library aborts on bad calls and on lack of memory unless it is given an
 * error hook to jump out by; after the jump every object of the thread's environment is gone with
 * it. It prints unless a hook swallows the text. Its environment is thread-local, so freeing it at
 * the end of every call leaves nothing behind and lets calls run in parallel.
 *
 * Bounds: the callback sees the presolved problem, whose node bounds need not be the original's, so
 * presolve stays off and the root LP is solved here. (With it on, injected solutions are misread as
 * well.) Status alone is never trusted: binaries are rounded and the caller re-scores them.
 */
#include "planner/milp.h"

#include "core/mem.h"
#include "core/progress.h"

#include <glpk.h>
#include <limits.h>
#include <math.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct session {
    jmp_buf fault;
    char last_line[160]; /* what GLPK said last: the reason when it fails */
    glp_prob *problem;
    int *index; /* entries of a row, 1-based as GLPK wants them */
    double *value;
    int max_nodes;
    int nodes;
    double bound;
    bool stopped;
} session;

static int swallow(void *info, const char *text) {
    session *s = info;
    if (text[0] != '\n' && text[0] != '\0') {
        snprintf(s->last_line, sizeof s->last_line, "%s", text);
        s->last_line[strcspn(s->last_line, "\n")] = '\0';
    }
    return 1;
}

static void on_fault(void *info) {
    session *s = info;
    longjmp(s->fault, 1);
}

const char *bl_milp_solver(void) {
    return "GLPK";
}

static int bound_kind(double lower, double upper) {
    const bool below = isfinite(lower), above = isfinite(upper);
    if (below && above)
        return lower == upper ? GLP_FX : GLP_DB;
    if (below)
        return GLP_LO;
    return above ? GLP_UP : GLP_FR;
}

static void load_model(session *s, const bl_milp *milp) {
    glp_prob *problem = s->problem;
    glp_set_obj_dir(problem, GLP_MIN);
    if (milp->n_columns > 0)
        glp_add_cols(problem, (int)milp->n_columns);
    for (size_t j = 0; j < milp->n_columns; j++) {
        const bl_milp_column *column = &milp->columns[j];
        const int at = (int)j + 1;
        glp_set_obj_coef(problem, at, column->objective);
        if (column->is_binary)
            glp_set_col_kind(problem, at, GLP_BV);
        else
            glp_set_col_bnds(problem, at, bound_kind(column->lower, column->upper), column->lower,
                             column->upper);
    }
    if (milp->n_rows > 0)
        glp_add_rows(problem, (int)milp->n_rows);
    for (size_t i = 0; i < milp->n_rows; i++) {
        const bl_milp_row *row = &milp->rows[i];
        const int at = (int)i + 1;
        glp_set_row_bnds(problem, at, bound_kind(row->lower, row->upper), row->lower, row->upper);
        for (int k = 0; k < row->n; k++) {
            s->index[k + 1] = milp->entries[row->first + (size_t)k].column + 1;
            s->value[k + 1] = milp->entries[row->first + (size_t)k].value;
        }
        glp_set_mat_row(problem, at, row->n, s->index, s->value);
    }
}

static void watch(glp_tree *tree, void *info) {
    session *s = info;
    const int best = glp_ios_best_node(tree);
    if (best != 0)
        s->bound = fmax(s->bound, glp_ios_node_bound(tree, best));
    glp_ios_tree_size(tree, NULL, NULL, &s->nodes);
    const bool full = s->max_nodes > 0 && s->nodes >= s->max_nodes;
    if (bl_interrupted() || (full && glp_ios_reason(tree) == GLP_ISELECT)) {
        s->stopped = true;
        glp_ios_terminate(tree);
    }
}

static int milliseconds(double time_s) {
    return time_s > 0.0 && time_s < INT_MAX / 1000 ? (int)(time_s * 1000.0) + 1 : INT_MAX;
}

static bl_status solver_failed(const session *s, const char *what, int code, bl_error *err) {
    return bl_fail(err, BL_ERR_SOLVER, "GLPK: %s failed with code %d%s%s", what, code,
                   s->last_line[0] ? ": " : "", s->last_line);
}

/* Root LP, then branch and bound. Runs under the error hook: allocates nothing of its own. */
static bl_status run(session *s, const bl_milp_limits *limits, bl_milp_result *out, bl_error *err) {
    glp_smcp simplex;
    glp_init_smcp(&simplex);
    simplex.msg_lev = GLP_MSG_ERR;
    simplex.tm_lim = milliseconds(limits->time_s);
    const int lp = glp_simplex(s->problem, &simplex);
    if (lp == GLP_ETMLIM)
        return BL_OK; /* UNKNOWN */
    if (lp != 0)
        return solver_failed(s, "the root relaxation", lp, err);
    if (glp_get_status(s->problem) == GLP_NOFEAS) {
        out->outcome = BL_MILP_INFEASIBLE;
        return BL_OK;
    }
    if (glp_get_status(s->problem) != GLP_OPT)
        return solver_failed(s, "the root relaxation", glp_get_status(s->problem), err);
    s->bound = glp_get_obj_val(s->problem);

    glp_iocp mip;
    glp_init_iocp(&mip);
    mip.msg_lev = GLP_MSG_ERR;
    mip.tm_lim = simplex.tm_lim;
    mip.br_tech = GLP_BR_FFV; /* columns are branched on in their order, as milp.h says */
    mip.bt_tech = GLP_BT_DFS; /* what is sought is a proof more often than a solution */
    mip.cb_func = watch;
    mip.cb_info = s;
    const int code = glp_intopt(s->problem, &mip);
    if (code != 0 && code != GLP_ETMLIM && code != GLP_ESTOP)
        return solver_failed(s, "branch and bound", code, err);
    s->stopped = s->stopped || code != 0;
    switch (glp_mip_status(s->problem)) {
    case GLP_OPT:
        out->outcome = s->stopped ? BL_MILP_FEASIBLE : BL_MILP_OPTIMAL;
        break;
    case GLP_FEAS:
        out->outcome = BL_MILP_FEASIBLE;
        break;
    case GLP_NOFEAS:
        out->outcome = s->stopped ? BL_MILP_UNKNOWN : BL_MILP_INFEASIBLE;
        break;
    default:
        out->outcome = BL_MILP_UNKNOWN;
        break;
    }
    return BL_OK;
}

static void read_solution(const session *s, const bl_milp *milp, double *x, bl_milp_result *out) {
    out->objective = glp_mip_obj_val(s->problem);
    if (out->outcome == BL_MILP_OPTIMAL)
        out->bound = out->objective;
    for (size_t j = 0; j < milp->n_columns; j++) {
        const double value = glp_mip_col_val(s->problem, (int)j + 1);
        x[j] = milp->columns[j].is_binary ? (value > 0.5 ? 1.0 : 0.0) : value;
    }
}

static bl_status solve_guarded(session *s, const bl_milp *milp, const bl_milp_limits *limits,
                               double *x, bl_milp_result *out, bl_error *err) {
    if (setjmp(s->fault) != 0) {
        glp_error_hook(NULL, NULL);
        glp_free_env(); /* with everything that was in it */
        return bl_fail(err, BL_ERR_SOLVER, "GLPK gave up: %s",
                       s->last_line[0] ? s->last_line : "no reason given");
    }
    glp_error_hook(on_fault, s);
    glp_term_hook(swallow, s);
    s->problem = glp_create_prob();
    load_model(s, milp);
    const bl_status st = run(s, limits, out, err);
    out->bound = s->bound;
    out->nodes = s->nodes;
    if (st == BL_OK && (out->outcome == BL_MILP_OPTIMAL || out->outcome == BL_MILP_FEASIBLE))
        read_solution(s, milp, x, out);
    glp_delete_prob(s->problem);
    glp_error_hook(NULL, NULL);
    glp_free_env();
    return st;
}

static size_t longest_row(const bl_milp *milp) {
    int longest = 0;
    for (size_t i = 0; i < milp->n_rows; i++)
        longest = milp->rows[i].n > longest ? milp->rows[i].n : longest;
    return (size_t)longest;
}

bl_status bl_milp_solve(const bl_milp *milp, const bl_milp_limits *limits, double *x,
                        bl_milp_result *out, bl_error *err) {
    if (milp->n_columns >= INT_MAX || milp->n_rows >= INT_MAX)
        return bl_fail(err, BL_ERR_SOLVER, "a model of %zu columns and %zu rows is too large",
                       milp->n_columns, milp->n_rows);
    session *s;
    BL_TRY(BL_CALLOC(s, 1, err));
    *out = (bl_milp_result){.outcome = BL_MILP_UNKNOWN, .bound = -INFINITY};
    s->bound = -INFINITY;
    s->max_nodes = limits->max_nodes;
    bl_status st;
    BL_TRY_GOTO(st, BL_CALLOC(s->index, longest_row(milp) + 1, err), done);
    BL_TRY_GOTO(st, BL_CALLOC(s->value, longest_row(milp) + 1, err), done);
    st = solve_guarded(s, milp, limits, x, out, err);
done:
    free(s->index);
    free(s->value);
    free(s);
    return st;
}
