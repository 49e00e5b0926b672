/*
 * planning_replicas.c: how many slots per rank each layer gets, when the memory for copies is one
 * budget over all layers.
 */
#include "planner/planning_parts.h"

#include "core/mem.h"
#include "planner/replicas.h"
#include "planner/robust.h"
#include "planner/search.h"

#include <stdlib.h>

/* Effort of one prediction (planner/search.h: steps under one scenario, proposals under several). */
#define LEVEL_STEPS 100
#define LEVEL_PROPOSALS 10000
/* Levels in a row that gain nothing: give up. */
#define IDLE_LEVELS 3

/* Slots of each rank with `level` more than the fewest on those that serve. */
static void set_level(const bl_planning *r, bl_planning_job *j, int level) {
    for (int rank = 0; rank < r->options->n_ranks; rank++) {
        const int least = r->options->capacity.slots_per_rank[rank];
        j->slots[rank] = least > 0 ? least + level : 0;
    }
}

/* What the busiest ranks have to do in all scenarios with so many slots: token rows, or time. No
 * more slots can help where it `is_level`. */
static bl_status predict(const bl_planning *r, bl_planning_job *j, int level, double *out,
                         bool *is_level, bl_error *err) {
    bl_solve_options options = bl_planning_solve_options(r, j);
    options.algorithm = BL_ALG_SEARCH;
    options.time_s = 0.0;
    options.iterations = r->n_scenarios == 1 ? LEVEL_STEPS : LEVEL_PROPOSALS;
    bl_problem problem = j->problem;
    bl_solution solution = {0};
    problem.current = NULL;
    set_level(r, j, level);
    const bl_status st = bl_solve(&problem, &options, &solution, err);
    BL_TRY(st);
    double value = solution.score.max_over_mean;
    bl_status scored = BL_OK;
    if (problem.objective == BL_OBJECTIVE_TIME)
        value = solution.time.step_us / j->total;
    else if (problem.tail > 0.0 && problem.rule != BL_RULE_PER_STEP)
        scored = bl_robust_cost(&problem, &solution.placement, &value, err);
    *out = value * j->total;
    *is_level = problem.objective == BL_OBJECTIVE_TOKENS && problem.tail <= 0.0 &&
                value <= 1.0 + BL_SEARCH_CLOSE; /* of the mean, which no slots lower */
    bl_solution_free(&solution);
    return scored < 0 ? scored : st;
}

/* The ladder of one layer: the levels that gain more than the search leaves to chance, until the
 * mean is reached or nothing more comes of it. */
static bl_status climb(const bl_planning *r, bl_planning_job *j, bl_error *err) {
    double best = 0.0;
    bool is_level = false;
    j->levels[j->n_levels++] = (bl_rung){0, 0.0};
    if (j->idle)
        return BL_OK;
    BL_TRY(predict(r, j, 0, &j->level_first, &is_level, err));
    best = j->level_first;
    for (int level = 1, idle = 0; level <= r->replica_levels && idle < IDLE_LEVELS && !is_level;
         level++) {
        double value;
        BL_TRY(predict(r, j, level, &value, &is_level, err));
        idle = value < best * (1.0 - BL_SEARCH_CLOSE) ? 0 : idle + 1;
        if (idle > 0)
            continue;
        best = value;
        j->levels[j->n_levels++] = (bl_rung){level, j->level_first - best};
    }
    return BL_OK;
}

/* The fewest slots left after the widest layer's ranks are full: no rank holds an expert twice. */
static int most_levels(const bl_planning *r) {
    int largest = 0;
    for (int rank = 0; rank < r->options->n_ranks; rank++) {
        const int slots = r->options->capacity.slots_per_rank[rank];
        largest = slots > largest ? slots : largest;
    }
    const int room = r->model->n_experts - largest;
    int64_t most = r->options->replica_budget < room ? r->options->replica_budget : room;
    return most < BL_PLANNING_LEVELS - 1 ? (int)most : BL_PLANNING_LEVELS - 1;
}

/* What the same budget would gain if all layers got the same. */
static double even_gain(const bl_planning *r) {
    const int64_t each = r->options->replica_budget / r->n_jobs;
    double sum = 0.0;
    for (int m = 0; m < r->n_jobs; m++) {
        const bl_planning_job *j = &r->jobs[m];
        int rung = j->n_levels - 1;
        while (j->levels[rung].moves > each)
            rung--;
        sum += j->levels[rung].gain;
    }
    return sum;
}

static bl_status choose(bl_planning *r, bl_error *err) {
    bl_ladder *ladders;
    int *choice = NULL;
    BL_TRY(BL_CALLOC(ladders, r->n_jobs, err));
    bl_status st = BL_CALLOC(choice, r->n_jobs, err);
    for (int m = 0; m < r->n_jobs; m++)
        ladders[m] = (bl_ladder){r->jobs[m].levels, r->jobs[m].n_levels};
    if (st >= 0)
        st = bl_replicas_choose(ladders, r->n_jobs, r->options->replica_budget, choice,
                                &r->replicas_proven, err);
    r->replica_even_gain = even_gain(r);
    for (int m = 0; st >= 0 && m < r->n_jobs; m++) {
        const bl_rung *rung = &r->jobs[m].levels[choice[m]];
        set_level(r, &r->jobs[m], rung->moves);
        r->replica_slots += rung->moves;
        r->replica_gain += rung->gain;
    }
    free(ladders);
    free(choice);
    return st;
}

bl_status bl_planning_share_replicas(bl_planning *r, bl_error *err) {
    if (r->options->replica_budget < 0)
        return BL_OK;
    r->replica_levels = most_levels(r);
    for (int m = 0; m < r->n_jobs; m++) {
        bl_planning_job *j = &r->jobs[m];
        BL_TRY(BL_CALLOC(j->slots, r->options->n_ranks, err));
        set_level(r, j, 0);
        j->problem.slots_per_rank = j->slots;
    }
    const bl_status st = bl_planning_for_all(r, climb, err);
    BL_TRY(st);
    BL_TRY(choose(r, err));
    return st;
}
