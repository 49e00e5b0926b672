/*
 * planning_rules.c: what the options say about nodes and fault domains, as rules of every layer.
 */
#include "planner/planning_parts.h"

#include "core/mem.h"
#include "planner/groups.h"

#include <stdlib.h>

/* How many experts must be in several fault domains. */
static int n_guarded(const bl_planning_options *o, int n_experts) {
    return o->guarded > 0 && o->guarded < n_experts ? o->guarded : n_experts;
}

/* The hottest experts, the lower id first among equals. */
static bl_status guard_hottest(const bl_planning *r, bl_planning_job *j, bl_error *err) {
    const int n_experts = r->model->n_experts, wanted = n_guarded(r->options, n_experts);
    double *sum;
    BL_TRY(BL_CALLOC(j->least, n_experts, err));
    BL_TRY(BL_CALLOC(sum, n_experts, err));
    bl_problem_sum_load(&j->problem, sum);
    for (int expert = 0; expert < n_experts; expert++)
        j->least[expert] = 1;
    for (int n = 0; n < wanted; n++) {
        int best = -1;
        for (int expert = 0; expert < n_experts; expert++) {
            if (j->least[expert] == 1 && (best < 0 || sum[expert] > sum[best]))
                best = expert;
        }
        j->least[best] = r->options->min_copies;
    }
    free(sum);
    return BL_OK;
}

static bl_status keep_groups(bl_planning_job *j, bl_error *err) {
    bl_groups groups;
    BL_TRY(bl_groups_choose(&j->problem, &groups, err));
    j->groups_proven = groups.proven;
    j->rules.may = &j->may;
    return bl_groups_rule(&j->problem, &groups, &j->may, err);
}

bl_status bl_planning_make_rules(const bl_planning *r, bl_planning_job *j, bl_error *err) {
    const bl_planning_options *o = r->options;
    j->problem.n_groups = r->model->n_groups;
    j->problem.node = o->node;
    if (o->keep_groups)
        BL_TRY(keep_groups(j, err));
    if (o->min_copies > 1) {
        BL_TRY(guard_hottest(r, j, err));
        j->rules.domain = o->domain;
        j->rules.least = j->least;
    }
    if (o->keep_groups || o->min_copies > 1)
        j->problem.rules = &j->rules;
    return BL_OK;
}

bool bl_planning_has_rules(const bl_planning *r) {
    return r->options->keep_groups || r->options->min_copies > 1;
}
