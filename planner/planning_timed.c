/*
 * planning_timed.c: what turns the jobs' loads into time.
 *
 * A scenario is a block of steps, and time is not linear in rows: it is priced as its mean step, or
 * as a step of tokens_per_rank tokens on every rank with the block's distribution over experts.
 */
#include "planner/planning_parts.h"

#include "core/mem.h"

#include <stdlib.h>

/* Part of all steps, by their weights, that each scenario holds; returns their sum. */
static double weigh(const bl_planning *r, double *weight) {
    double sum = 0.0;
    for (size_t step = 0; step < r->loads->n_steps; step++) {
        weight[step / r->steps_per_scenario] += bl_planning_weight(r, step);
        sum += bl_planning_weight(r, step);
    }
    return sum;
}

static void scale_job(const bl_planning *r, bl_planning_job *j, double all) {
    const int n_experts = r->model->n_experts;
    const double asked = r->options->tokens_per_rank * r->options->n_ranks * r->model->top_k;
    for (int s = 0; s < r->n_scenarios; s++) {
        double rows = 0.0;
        for (int e = 0; e < n_experts; e++)
            rows += j->load[(size_t)s * (size_t)n_experts + (size_t)e];
        if (rows > 0.0)
            j->scale[s] = asked > 0.0 ? asked / rows : 1.0 / (r->weight[s] * all);
    }
    j->timed = (bl_timed){.cost = r->cost,
                          .scale = j->scale,
                          .weight = r->weight,
                          .topology = r->topology,
                          .dispatch = r->options->dispatch,
                          .combine = r->options->combine};
    j->problem.timed = &j->timed;
}

bl_status bl_planning_time_jobs(bl_planning *r, const bl_topology *topology, bl_error *err) {
    const bl_planning_options *o = r->options;
    if (topology == NULL && o->objective == BL_OBJECTIVE_TIME)
        return bl_fail(err, BL_ERR_USAGE, "no time can be modelled without a topology");
    if (topology == NULL || (r->model->expert_bytes == 0 && o->objective == BL_OBJECTIVE_TOKENS))
        return BL_OK;
    BL_TRY(bl_cost_create(r->model, topology, o->n_ranks, &r->cost, err));
    if (o->overlap)
        bl_cost_set_overlap(r->cost);
    BL_TRY(BL_CALLOC(r->weight, r->n_scenarios, err));
    const double all = weigh(r, r->weight);
    for (int s = 0; s < r->n_scenarios; s++)
        r->weight[s] /= all;
    for (int m = 0; m < r->n_jobs; m++) {
        BL_TRY(BL_CALLOC(r->jobs[m].scale, r->n_scenarios, err));
        scale_job(r, &r->jobs[m], all);
    }
    return BL_OK;
}

void bl_planning_untime_jobs(bl_planning *r) {
    for (int m = 0; m < r->n_jobs; m++)
        free(r->jobs[m].scale);
    free(r->weight);
    bl_cost_free(r->cost);
}
