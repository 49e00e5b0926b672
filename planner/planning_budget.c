/*
 * planning_budget.c: when the layers together want more moves than there are, each offers
 * placements for fewer, and the moves go where they gain most.
 */
#include "planner/planning_parts.h"

#include "core/mem.h"

#include <stdlib.h>

/* A tenth of the search's default effort tells well enough what a rung gains (planner/search.h:
 * steps under one scenario, proposals under several); the one that is chosen is searched again in
 * full. */
#define RUNG_STEPS 200
#define RUNG_PROPOSALS 20000

/* Moves are limited, and there is something to move from. */
bool bl_planning_has_budget(const bl_planning *r) {
    return r->options->current != NULL && bl_planning_max_moves(r) >= 0;
}

int64_t bl_planning_max_moves(const bl_planning *r) {
    const bl_planning_options *o = r->options;
    if (o->max_bytes < 0 || r->model->expert_bytes == 0)
        return o->max_moves;
    const int64_t moves = o->max_bytes / (int64_t)r->model->expert_bytes;
    return o->max_moves >= 0 && o->max_moves < moves ? o->max_moves : moves;
}

/* Token rows that the busiest ranks are spared in all scenarios together. */
static double gain_of(const bl_planning_job *j, const bl_solution *solution) {
    if (j->problem.objective == BL_OBJECTIVE_TIME)
        return j->before_us - solution->time.step_us;
    return (j->before.max_over_mean - solution->score.max_over_mean) * j->total;
}

/* Takes the solution over, unless it is no more than the rung before. */
static void add_rung(bl_planning_job *j, bl_solution *solution) {
    const int n = j->n_rungs;
    if (n > 0 && j->rungs[n - 1].moves >= solution->moves) {
        bl_solution_free(solution);
        return;
    }
    j->rungs[n] = (bl_rung){solution->moves, gain_of(j, solution)};
    j->offers[n] = *solution;
    j->n_rungs++;
}

static bl_solve_options rung_options(const bl_planning *r, const bl_planning_job *j) {
    bl_solve_options options = bl_planning_solve_options(r, j);
    options.time_s = 0.0;
    options.iterations = r->n_scenarios == 1 ? RUNG_STEPS : RUNG_PROPOSALS;
    return options;
}

/* The least limit under which the layer can be served at all; `most` is one. Only where the current
 * placement does not fit the slots. */
static bl_status least_limit(const bl_planning_job *j, const bl_solve_options *options, int most,
                             int *limit, bl_error *err) {
    int low = -1, high = most;
    while (high - low > 1) {
        const int middle = low + (high - low) / 2;
        bl_solution solution = {0};
        const bl_status st = bl_planning_solve_within(j, options, middle, &solution, NULL);
        bl_solution_free(&solution);
        if (st == BL_ERR_INFEASIBLE)
            low = middle;
        else if (st < 0)
            return bl_fail_at(err, st, bl_at_layer(NULL, j->layer), "could not be planned");
        else
            high = middle;
    }
    *limit = high;
    return BL_OK;
}

/* What the layer offers for 0 (or the least that serves), 1, 2, 4, ... moves, up to the placement
 * that was found without a limit. */
static bl_status offer(const bl_planning *r, bl_planning_job *j, bl_error *err) {
    const bl_solve_options options = rung_options(r, j);
    bl_solve_options least = options;
    const int most = j->moves;
    int limit = 0;
    least.iterations = 1; /* where nothing may move there is nothing to search */
    if (!j->idle && !bl_problem_current_fits(&j->problem))
        BL_TRY(least_limit(j, &options, most, &limit, err));
    while (limit < most && j->n_rungs + 1 < BL_PLANNING_RUNGS) {
        bl_solution solution = {0};
        BL_TRY(bl_planning_solve_within(j, limit > 0 ? &options : &least, limit, &solution, err));
        add_rung(j, &solution);
        limit = limit > 0 ? 2 * limit : 1;
    }
    bl_solution last = j->solution;
    j->solution = (bl_solution){0};
    add_rung(j, &last);
    return BL_OK;
}

/* Search once more, within the moves of the rung that was chosen. */
static bl_status refine(const bl_planning *r, bl_planning_job *j, bl_error *err) {
    const bl_solve_options options = bl_planning_solve_options(r, j);
    if (j->moves == 0 || j->moves == j->rungs[j->n_rungs - 1].moves)
        return BL_OK;
    bl_solution solution = {0};
    const bl_status st = bl_planning_solve_within(j, &options, j->moves, &solution, err);
    if (st >= 0 && gain_of(j, &solution) > gain_of(j, &j->solution)) {
        const bl_solution swap = j->solution;
        j->solution = solution;
        solution = swap;
        j->moves = j->solution.moves;
    }
    bl_solution_free(&solution);
    return st;
}

static bl_status choose_rungs(bl_planning *r, bl_error *err) {
    bl_ladder *ladders;
    int *choice = NULL;
    BL_TRY(BL_CALLOC(ladders, r->n_jobs, err));
    bl_status st = BL_CALLOC(choice, r->n_jobs, err);
    for (int m = 0; m < r->n_jobs; m++)
        ladders[m] = (bl_ladder){r->jobs[m].rungs, r->jobs[m].n_rungs};
    if (st >= 0)
        st = bl_budget_choose(ladders, r->n_jobs, bl_planning_max_moves(r), choice, err);
    for (int m = 0; st >= 0 && m < r->n_jobs; m++) {
        bl_planning_job *j = &r->jobs[m];
        j->solution = j->offers[choice[m]];
        j->moves = j->solution.moves;
        j->offers[choice[m]] = (bl_solution){0};
    }
    free(ladders);
    free(choice);
    return st;
}

bl_status bl_planning_keep_budget(bl_planning *r, bl_error *err) {
    int64_t wanted = 0;
    for (int m = 0; m < r->n_jobs; m++)
        wanted += r->jobs[m].moves;
    if (!bl_planning_has_budget(r) || wanted <= bl_planning_max_moves(r))
        return BL_OK;
    BL_TRY(bl_planning_for_all(r, offer, err));
    BL_TRY(choose_rungs(r, err));
    return bl_planning_for_all(r, refine, err);
}
