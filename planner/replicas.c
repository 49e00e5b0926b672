#include "planner/replicas.h"

#include "core/mem.h"
#include "planner/milp.h"

#include <math.h>
#include <stdlib.h>

#define MAX_NODES 5000
/* Ten times the solver's tolerance, as a part of all that could be gained. */
#define BETTER 1e-6

static double gain_of(const bl_ladder *ladders, int n, const int *choice) {
    double sum = 0.0;
    for (int l = 0; l < n; l++)
        sum += ladders[l].rungs[choice[l]].gain;
    return sum;
}

static int64_t slots_of(const bl_ladder *ladders, int n, const int *choice) {
    int64_t sum = 0;
    for (int l = 0; l < n; l++)
        sum += ladders[l].rungs[choice[l]].moves;
    return sum;
}

/* The largest gain of any rung, so that the model's figures are near 1. */
static double unit_of(const bl_ladder *ladders, int n) {
    double unit = 0.0;
    for (int l = 0; l < n; l++) {
        for (int r = 0; r < ladders[l].n_rungs; r++)
            unit = fmax(unit, fabs(ladders[l].rungs[r].gain));
    }
    return unit > 0.0 ? unit : 1.0;
}

static bl_status build(const bl_ladder *ladders, int n, int64_t budget, double known, double unit,
                       bl_milp *milp, bl_error *err) {
    int column;
    for (int l = 0; l < n; l++) {
        for (int r = 0; r < ladders[l].n_rungs; r++) {
            const bl_milp_column binary = {0.0, 1.0, -ladders[l].rungs[r].gain / unit, true};
            BL_TRY(bl_milp_add_column(milp, binary, &column, err));
        }
    }
    column = 0;
    for (int l = 0; l < n; l++) {
        BL_TRY(bl_milp_add_row(milp, 1.0, 1.0, err));
        for (int r = 0; r < ladders[l].n_rungs; r++)
            BL_TRY(bl_milp_add_entry(milp, column++, 1.0, err));
    }
    column = 0;
    BL_TRY(bl_milp_add_row(milp, -INFINITY, (double)budget, err));
    for (int l = 0; l < n; l++) {
        for (int r = 0; r < ladders[l].n_rungs; r++)
            BL_TRY(bl_milp_add_entry(milp, column++, ladders[l].rungs[r].moves, err));
    }
    BL_TRY(bl_milp_add_row(milp, -INFINITY, -known / unit - BETTER, err));
    for (size_t j = 0; j < milp->n_columns; j++)
        BL_TRY(bl_milp_add_entry(milp, (int)j, milp->columns[j].objective, err));
    return BL_OK;
}

/* The solver's choice, where it is one and gains more by our own sum. */
static void take_over(const bl_ladder *ladders, int n, int64_t budget, const double *x, int *made,
                      int *choice) {
    int column = 0;
    for (int l = 0; l < n; l++) {
        made[l] = 0;
        for (int r = 0; r < ladders[l].n_rungs; r++) {
            if (x[column++] > 0.5)
                made[l] = r;
        }
    }
    if (slots_of(ladders, n, made) > budget ||
        gain_of(ladders, n, made) <= gain_of(ladders, n, choice))
        return;
    for (int l = 0; l < n; l++)
        choice[l] = made[l];
}

bl_status bl_replicas_choose(const bl_ladder *ladders, int n, int64_t budget, int *choice,
                             bool *proven, bl_error *err) {
    *proven = false;
    BL_TRY(bl_budget_choose(ladders, n, budget, choice, err));
    if (bl_milp_solver() == NULL)
        return BL_OK;
    bl_milp milp = {0};
    int *made = NULL;
    double *x = NULL;
    bl_status st;
    bl_milp_result result;
    const bl_milp_limits limits = {.max_nodes = MAX_NODES};
    BL_TRY_GOTO(
        st, build(ladders, n, budget, gain_of(ladders, n, choice), unit_of(ladders, n), &milp, err),
        done);
    BL_TRY_GOTO(st, BL_CALLOC(made, n, err), done);
    BL_TRY_GOTO(st, BL_CALLOC(x, milp.n_columns, err), done);
    BL_TRY_GOTO(st, bl_milp_solve(&milp, &limits, x, &result, err), done);
    if (result.outcome == BL_MILP_OPTIMAL || result.outcome == BL_MILP_FEASIBLE)
        take_over(ladders, n, budget, x, made, choice);
    *proven = result.outcome == BL_MILP_OPTIMAL || result.outcome == BL_MILP_INFEASIBLE;
done:
    free(made);
    free(x);
    bl_milp_free(&milp);
    return st;
}
