#include "planner/planning_parts.h"

#include "core/mem.h"
#include "core/rng.h"
#include "planner/robust.h"

#include <limits.h>
#include <stdlib.h>

/* ---- solving ----------------------------------------------------------------------------------*/

static bl_status score_of(const bl_planning_job *j, bl_algorithm algorithm, bl_score *out,
                          double *step_us, int *moves, bl_error *err) {
    bl_solve_options options = BL_SOLVE_OPTIONS_INIT;
    options.algorithm = algorithm;
    bl_problem problem = j->problem;
    bl_solution solution = {0};
    problem.current = NULL;
    problem.rules = NULL; /* engines know of none */
    const bl_status st = bl_solve(&problem, &options, &solution, err);
    if (st >= 0) {
        *out = solution.score;
        *step_us = solution.time.step_us;
        if (moves != NULL)
            *moves = bl_layer_moves(&solution.placement, &j->solution.placement);
    }
    bl_solution_free(&solution);
    return st;
}

/* The current placement on its own slots, which may differ from the ones planned for. */
static bl_status score_current(const bl_planning_job *j, bl_score *out, double *step_us,
                               bl_error *err) {
    const bl_layer_placement *current = j->problem.current;
    int *slots_per_rank;
    BL_TRY(BL_CALLOC(slots_per_rank, current->n_ranks, err));
    for (int rank = 0; rank < current->n_ranks; rank++)
        slots_per_rank[rank] = current->begin[rank + 1] - current->begin[rank];
    bl_problem problem = j->problem;
    problem.slots_per_rank = slots_per_rank;
    bl_status st = bl_evaluate(&problem, current, out, err);
    /* The shares that go with fractions are the plan's own. */
    if (st >= 0 && problem.rule != BL_RULE_FRACTIONS && bl_timed_is_told(&problem) && !j->idle) {
        st = bl_timed_seconds(&problem, current, NULL, step_us, err);
        *step_us *= 1e6;
    }
    free(slots_per_rank);
    return st;
}

bl_solve_options bl_planning_solve_options(const bl_planning *r, const bl_planning_job *j) {
    bl_solve_options options = r->options->solve;
    uint64_t mixed = options.seed ^ ((uint64_t)j->layer << 32);
    options.seed = bl_splitmix64(&mixed);
    options.time_s *= (double)r->options->n_threads / r->n_jobs;
    if (bl_planning_has_budget(r))
        options.time_s /= 2.0; /* every layer is searched twice */
    return options;
}

bl_status bl_planning_solve_within(const bl_planning_job *j, const bl_solve_options *options,
                                   int64_t max_moves, bl_solution *out, bl_error *err) {
    bl_problem problem = j->problem;
    problem.max_moves = max_moves < 0 || max_moves > INT_MAX ? -1 : (int)max_moves;
    return bl_solve(&problem, options, out, err);
}

static bl_status compare_job(const bl_planning *r, bl_planning_job *j, bl_error *err) {
    if (j->problem.current != NULL)
        BL_TRY(score_current(j, &j->before, &j->before_us, err));
    else
        BL_TRY(score_of(j, BL_ALG_CONTIGUOUS, &j->before, &j->before_us, &j->moves, err));
    if (!r->options->compare)
        return BL_OK;
    if (bl_planning_has_rules(r) && !j->idle)
        BL_TRY(score_of(j, BL_ALG_SEARCH, &j->free, &j->free_us, NULL, err));
    return score_of(j, BL_ALG_GREEDY, &j->greedy, &j->greedy_us, NULL, err);
}

static bl_status plan_job(const bl_planning *r, bl_planning_job *j, bl_error *err) {
    const bl_solve_options options = bl_planning_solve_options(r, j);
    const bl_status st = bl_planning_solve_within(j, &options, -1, &j->solution, err);
    if (st < 0)
        return st;
    j->moves = j->solution.moves;
    BL_TRY(compare_job(r, j, err));
    return st;
}

static bl_status meter_job(const bl_planning *r, bl_planning_job *j, bl_error *err) {
    return bl_planning_meter(r, j, err);
}

/* Take jobs until there are none; the calling thread and its helpers all run this. */
static void *work(void *user) {
    bl_planning *r = user;
    pthread_mutex_lock(&r->lock);
    while (r->next < r->n_jobs && r->status >= 0) {
        bl_planning_job *j = &r->jobs[r->next++];
        pthread_mutex_unlock(&r->lock);
        bl_error err = BL_ERROR_INIT;
        bl_status st = bl_planning_attach(r, j, &err);
        if (st >= 0)
            st = r->task(r, j, &err);
        bl_planning_detach(j);
        pthread_mutex_lock(&r->lock);
        if (st < 0 && r->status >= 0) {
            r->status = st;
            r->error = err;
        }
        r->stopped = r->stopped || st > 0;
        r->done++;
        if (st >= 0 && j->solution.score.max_over_mean > 0.0) /* not while only counting moves */
            bl_progress_line(r->progress,
                             "layer %d (%d of %d): max/mean %.4f, bound %.4f, gap %.2f %%",
                             j->layer, r->done, r->n_jobs, j->solution.score.max_over_mean,
                             j->solution.bound.max_over_mean, 100.0 * j->solution.gap);
    }
    pthread_mutex_unlock(&r->lock);
    return NULL;
}

/* Run a task for every job, on all threads. */
bl_status bl_planning_for_all(bl_planning *r,
                              bl_status (*task)(const bl_planning *, bl_planning_job *, bl_error *),
                              bl_error *err) {
    enum { MOST_THREADS = 64 };
    pthread_t helpers[MOST_THREADS];
    int n = 0;
    r->task = task;
    r->next = r->done = 0;
    pthread_mutex_init(&r->lock, NULL);
    while (n + 1 < r->options->n_threads && n < MOST_THREADS && n + 1 < r->n_jobs &&
           pthread_create(&helpers[n], NULL, work, r) == 0)
        n++;
    work(r);
    for (int i = 0; i < n; i++)
        pthread_join(helpers[i], NULL);
    pthread_mutex_destroy(&r->lock);
    bl_progress_end(r->progress);
    if (r->status < 0 && err != NULL && err->code >= 0)
        *err = r->error;
    return r->status;
}

/* ---- the run ----------------------------------------------------------------------------------*/

bl_status bl_planning_run(const bl_loads *loads, const bl_model *model, const bl_topology *topology,
                          const bl_planning_options *options, bl_progress *progress, bl_plan *out,
                          bl_planning_summary *summary, bl_error *err) {
    bl_planning r = {.loads = loads,
                     .model = model,
                     .topology = topology,
                     .options = options,
                     .progress = progress,
                     .n_jobs = model->n_moe_layers,
                     .error = BL_ERROR_INIT};
    BL_TRY(bl_planning_check_loads(loads, model, err));
    BL_TRY(bl_planning_check_current(options->current, model, options->n_ranks, err));
    const size_t cap = options->max_scenarios > 0 ? (size_t)options->max_scenarios : 1;
    r.steps_per_scenario = (loads->n_steps + cap - 1) / cap;
    r.n_scenarios = (int)((loads->n_steps + r.steps_per_scenario - 1) / r.steps_per_scenario);
    BL_TRY(BL_CALLOC(r.jobs, r.n_jobs, err));
    bl_status st = bl_planning_make_jobs(&r, err);
    if (st >= 0)
        st = bl_planning_time_jobs(&r, topology, err);
    if (st >= 0)
        st = bl_planning_share_replicas(&r, err);
    if (st >= 0)
        st = bl_planning_for_all(&r, plan_job, err);
    if (st >= 0)
        st = bl_planning_keep_budget(&r, err);
    if (st >= 0 && options->sites != NULL)
        st = bl_planning_for_all(&r, meter_job, err);
    if (st >= 0) {
        bl_planning_summarise(&r, summary);
        if (options->explain)
            summary->explain = bl_planning_explain(&r);
        st = bl_planning_assemble(&r, summary, out, err);
        if (st < 0)
            json_decref(summary->explain);
    }
    for (int m = 0; m < r.n_jobs; m++) {
        free(r.jobs[m].load);
        free(r.jobs[m].least);
        free(r.jobs[m].slots);
        bl_holds_free(&r.jobs[m].may);
        bl_solution_free(&r.jobs[m].solution);
        for (int rung = 0; rung < r.jobs[m].n_rungs; rung++)
            bl_solution_free(&r.jobs[m].offers[rung]);
    }
    bl_planning_untime_jobs(&r);
    free(r.jobs);
    return st < 0 ? st : r.stopped ? BL_LIMIT : BL_OK;
}
