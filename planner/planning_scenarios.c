/*
 * planning_scenarios.c: the trace's steps as scenarios, one problem per layer, and what is refused.
 */
#include "planner/planning_parts.h"

#include "core/mem.h"
#include "planner/robust.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- the objective ---------------------------------------------------------------------------- */

static const char *const over_names[] = {"mean", "p95", "cvar", "sample"}; /* by bl_over */

bl_status bl_over_parse(const char *text, bl_objective_over *out, bl_error *err) {
    for (int kind = BL_OVER_MEAN; kind <= BL_OVER_SAMPLE; kind++) {
        if (kind != BL_OVER_CVAR && strcmp(text, over_names[kind]) == 0) {
            *out = (bl_objective_over){.kind = (bl_over)kind};
            return BL_OK;
        }
    }
    char *end = NULL;
    const double level = strncmp(text, "cvar:", 5) == 0 ? strtod(text + 5, &end) : -1.0;
    if (end == NULL || end == text + 5 || *end != '\0' || !(level >= 0.0 && level < 1.0))
        return bl_fail(err, BL_ERR_USAGE,
                       "\"%s\" is no objective over steps; there are mean, p95, sample and cvar:A "
                       "with 0 <= A < 1 (cvar:0.9: the mean of the worst tenth)",
                       text);
    *out = (bl_objective_over){BL_OVER_CVAR, level};
    return BL_OK;
}

void bl_planning_name_over(const bl_planning *r, char *name, size_t size) {
    const bl_objective_over *over = &r->options->over;
    if (over->kind == BL_OVER_CVAR)
        snprintf(name, size, "cvar:%g", over->level);
    else
        snprintf(name, size, "%s", over_names[over->kind]);
}

/* As bl_problem has it. */
double bl_planning_tail(const bl_planning *r) {
    const bl_objective_over *over = &r->options->over;
    if (over->kind == BL_OVER_SAMPLE || r->options->rule == BL_RULE_PER_STEP ||
        r->n_scenarios < BL_ROBUST_SCENARIOS)
        return 0.0;
    return over->kind == BL_OVER_P95 ? 0.05 : over->kind == BL_OVER_CVAR ? 1.0 - over->level : 1.0;
}

static double min_gain_of(const bl_planning *r) {
    if (r->options->min_gain >= 0.0)
        return r->options->min_gain;
    return bl_planning_tail(r) > 0.0 ? BL_ROBUST_MIN_GAIN : BL_MIN_GAIN_DEFAULT;
}

double bl_planning_weight(const bl_planning *r, size_t step) {
    const double half_life = r->options->half_life;
    return half_life > 0.0
               ? exp2((double)(step + 1) / half_life - (double)r->loads->n_steps / half_life)
               : 1.0;
}

/* ---- scenarios --------------------------------------------------------------------------------*/

static bl_status fill_scenarios(const bl_planning *r, bl_planning_job *j, bl_error *err) {
    const size_t experts = (size_t)r->model->n_experts;
    size_t items;
    if (!bl_size_mul((size_t)r->n_scenarios, experts, &items))
        return bl_fail(err, BL_ERR_NOMEM, "out of memory");
    BL_TRY(BL_CALLOC(j->load, items, err));
    for (size_t step = 0; j->row >= 0 && step < r->loads->n_steps; step++) {
        const uint64_t *count = bl_loads_row(r->loads, step, j->row);
        const double weight = bl_planning_weight(r, step);
        double *load = j->load + step / r->steps_per_scenario * experts;
        for (size_t e = 0; e < experts; e++) {
            load[e] += weight * (double)count[e];
            j->total += weight * (double)count[e];
        }
    }
    j->idle = !(j->total > 0.0);
    return BL_OK;
}

static int loads_row_of(const bl_loads *loads, int layer) {
    for (int row = 0; row < loads->n_layers; row++) {
        if (loads->layers[row] == layer)
            return loads->usable[row] ? row : -1;
    }
    return -1;
}

bl_status bl_planning_check_loads(const bl_loads *loads, const bl_model *model, bl_error *err) {
    if (loads->n_experts != model->n_experts || loads->top_k != model->top_k)
        return bl_fail(err, BL_ERR_MODEL, "the trace has top-%d of %d experts, %s has top-%d of %d",
                       loads->top_k, loads->n_experts, model->name, model->top_k, model->n_experts);
    for (int row = 0; row < loads->n_layers; row++) {
        const int layer = loads->layers[row];
        if (bl_model_moe_index(model, layer) < 0)
            return bl_fail_at(err, BL_ERR_MODEL, bl_at_layer(NULL, layer),
                              "is in the trace, but is not a MoE layer of %s", model->name);
        if (!loads->usable[row] && bl_loads_has_counts(loads, row))
            return bl_fail_at(err, BL_ERR_CONSERVATION, bl_at_layer(NULL, layer),
                              "cannot be planned on: %s", loads->why[row]);
    }
    if (loads->n_steps == 0)
        return bl_fail(err, BL_ERR_CONSERVATION, "no step of the trace has any traffic");
    return BL_OK;
}

/* The current plan must speak of this model and these ranks. */
bl_status bl_planning_check_current(const bl_plan *current, const bl_model *model, int n_ranks,
                                    bl_error *err) {
    if (current == NULL)
        return BL_OK;
    if (current->n_experts != model->n_experts || strcmp(current->model_name, model->name) != 0)
        return bl_fail(err, BL_ERR_MODEL,
                       "the current placement is for %s with %d experts, not for %s with %d",
                       current->model_name, current->n_experts, model->name, model->n_experts);
    if (current->placement.n_ranks != n_ranks)
        return bl_fail(err, BL_ERR_SHAPE, "the current placement is for %d ranks, not for %d",
                       current->placement.n_ranks, n_ranks);
    if (current->epoch >= INT64_MAX)
        return bl_fail(err, BL_ERR_RANGE,
                       "epoch %llu of the current placement is the last there is; set its "
                       "\"epoch\" to that of the running cluster",
                       (unsigned long long)current->epoch);
    for (int m = 0; m < model->n_moe_layers; m++) {
        if (bl_placement_layer(&current->placement, model->moe_layers[m]) == NULL)
            return bl_fail_at(err, BL_ERR_MODEL, bl_at_layer(NULL, model->moe_layers[m]),
                              "is not in the current placement");
    }
    return BL_OK;
}

/* What the current plan remembers of a layer. */
static double declined_of(const bl_plan *current, int layer) {
    const bl_layer_placement *at =
        current != NULL ? bl_placement_layer(&current->placement, layer) : NULL;
    return at != NULL ? current->layers[at - current->placement.layers].declined : 0.0;
}

bl_status bl_planning_make_jobs(bl_planning *r, bl_error *err) {
    const bl_planning_options *o = r->options;
    int n_idle = 0, first_idle = -1;
    for (int m = 0; m < r->n_jobs; m++) {
        bl_planning_job *j = &r->jobs[m];
        j->layer = r->model->moe_layers[m];
        j->row = loads_row_of(r->loads, j->layer);
        BL_TRY(fill_scenarios(r, j, err));
        j->problem = (bl_problem){
            .layer = j->layer,
            .n_experts = r->model->n_experts,
            .n_ranks = o->n_ranks,
            .n_scenarios = r->n_scenarios,
            .load = j->load,
            .slots_per_rank = o->capacity.slots_per_rank,
            .rule = o->rule,
            .current =
                o->current != NULL ? bl_placement_layer(&o->current->placement, j->layer) : NULL,
            .max_moves = -1,
            .min_gain = min_gain_of(r),
            .declined = declined_of(o->current, j->layer),
            .tail = bl_planning_tail(r),
            .objective = o->objective,
        };
        BL_TRY(bl_planning_make_rules(r, j, err));
        if (j->idle && n_idle++ == 0)
            first_idle = j->layer;
    }
    if (n_idle > 0 && o->strict)
        return bl_fail_at(
            err, BL_ERR_CONSERVATION, bl_at_layer(NULL, first_idle),
            "has no load in the trace, as %d of %d layers; without --strict they would "
            "keep their placement",
            n_idle, r->n_jobs);
    if (2 * n_idle > r->n_jobs)
        return bl_fail_at(
            err, BL_ERR_CONSERVATION, bl_at_layer(NULL, first_idle),
            "only %d of the %d MoE layers of %s have any load; the trace was recorded "
            "or imported with the wrong layers",
            r->n_jobs - n_idle, r->n_jobs, r->model->name);
    return BL_OK;
}
