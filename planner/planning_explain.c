/*
 * planning_explain.c: what each phase did, which bound binds, what GLPK added, and the figures behind
 * the decisions, as JSON (planning.h says how it looks).
 */
#include "planner/planning_parts.h"

#include "core/mem.h"
#include "planner/milp.h"

#include <stdlib.h>
#include <string.h>

/* Experts named per layer: those that got most copies. */
#define NAMED 5

static double real_or_zero(double sum, int n) {
    return n > 0 ? sum / n : 0.0;
}

/* ---- one layer --------------------------------------------------------------------------------*/

/* The expert with most copies, then most load, among those not named yet; -1: none has several. */
static int next_copied(const int *copies, const double *sum, const bool *named, int n_experts) {
    int best = -1;
    for (int expert = 0; expert < n_experts; expert++) {
        if (!named[expert] && copies[expert] > 1 &&
            (best < 0 || copies[expert] > copies[best] ||
             (copies[expert] == copies[best] && sum[expert] > sum[best])))
            best = expert;
    }
    return best;
}

/* [{"expert", "copies", "share" of the layer's load, "per_copy" in mean rank loads}] */
static json_t *copies_of(const bl_planning_job *j) {
    const bl_layer_placement *pl = &j->solution.placement;
    const int n_experts = j->problem.n_experts, active = bl_problem_active_ranks(&j->problem);
    json_t *list = json_array();
    int *copies = calloc((size_t)n_experts, sizeof *copies);
    double *sum = calloc((size_t)n_experts, sizeof *sum);
    bool *named = calloc((size_t)n_experts, sizeof *named);
    if (copies != NULL && sum != NULL && named != NULL) {
        bl_problem_sum_load(&j->problem, sum);
        for (int slot = 0; slot < bl_layer_n_slots(pl); slot++) {
            if (pl->expert[slot] != BL_NO_EXPERT)
                copies[pl->expert[slot]]++;
        }
        for (int n = 0; n < NAMED; n++) {
            const int expert = next_copied(copies, sum, named, n_experts);
            if (expert < 0)
                break;
            named[expert] = true;
            json_array_append_new(
                list, json_pack("{s:i, s:i, s:f, s:f}", "expert", expert, "copies", copies[expert],
                                "share", sum[expert] / j->total, "per_copy",
                                sum[expert] / copies[expert] * active / j->total));
        }
    }
    free(copies);
    free(sum);
    free(named);
    return list;
}

static json_t *layer_of(const bl_planning_job *j) {
    const bl_solution *s = &j->solution;
    const bl_solve_phases *phases = &s->phases;
    json_t *layer = json_pack("{s:i, s:b}", "layer", j->layer, "idle", j->idle);
    if (layer == NULL || j->idle)
        return layer;
    json_object_set_new(
        layer, "bound",
        json_pack("{s:s, s:f}", "kind", s->bound.kind, "max_over_mean", s->bound.max_over_mean));
    json_object_set_new(layer, "before", json_real(j->before.max_over_mean));
    if (phases->start > 0.0)
        json_object_set_new(layer, "start", json_real(phases->start));
    if (phases->searched > 0.0)
        json_object_set_new(layer, "search", json_real(phases->searched));
    if (phases->after_pairs > 0.0)
        json_object_set_new(layer, "pairs", json_real(phases->after_pairs));
    json_object_set_new(layer, "plan", json_real(s->score.max_over_mean));
    json_object_set_new(layer, "gap", json_real(s->gap));
    json_object_set_new(layer, "kept_current", json_boolean(s->kept_current));
    json_object_set_new(layer, "moves", json_integer(j->moves));
    json_object_set_new(layer, "glpk",
                        json_pack("{s:i, s:i, s:i, s:i, s:b, s:b}", "pairs_asked",
                                  phases->pairs.asked, "pairs_improved", phases->pairs.improved,
                                  "pairs_proven", phases->pairs.proven, "exact_nodes",
                                  phases->exact_nodes, "improved", s->improved_by_milp, "proven",
                                  s->proven_by_milp));
    json_object_set_new(layer, "copies", copies_of(j));
    return layer;
}

/* ---- all layers -------------------------------------------------------------------------------*/

static json_t *phases_of(const bl_planning *r) {
    double start = 0.0, searched = 0.0, pairs = 0.0, plan = 0.0;
    int n = 0;
    for (int m = 0; m < r->n_jobs; m++) {
        const bl_solution *s = &r->jobs[m].solution;
        if (r->jobs[m].idle || s->phases.searched <= 0.0)
            continue;
        n++;
        start += s->phases.start;
        searched += s->phases.searched;
        pairs += s->phases.after_pairs;
        plan += s->score.max_over_mean;
    }
    return json_pack("{s:i, s:f, s:f, s:f, s:f}", "layers", n, "start", real_or_zero(start, n),
                     "search", real_or_zero(searched, n), "pairs", real_or_zero(pairs, n), "plan",
                     real_or_zero(plan, n));
}

static json_t *bounds_of(const bl_planning *r) {
    json_t *bounds = json_object();
    for (int m = 0; m < r->n_jobs; m++) {
        const char *kind = r->jobs[m].solution.bound.kind;
        if (!r->jobs[m].idle)
            json_object_set_new(
                bounds, kind, json_integer(1 + json_integer_value(json_object_get(bounds, kind))));
    }
    return bounds;
}

static json_t *glpk_of(const bl_planning *r) {
    bl_neighbour_result pairs = {0};
    int pair_layers = 0, exact_layers = 0, improved = 0, proven = 0;
    int64_t nodes = 0;
    for (int m = 0; m < r->n_jobs; m++) {
        const bl_solution *s = &r->jobs[m].solution;
        pairs.asked += s->phases.pairs.asked;
        pairs.improved += s->phases.pairs.improved;
        pairs.proven += s->phases.pairs.proven;
        pair_layers += s->phases.pairs.asked > 0;
        exact_layers += s->phases.exact_nodes > 0;
        nodes += s->phases.exact_nodes;
        improved += s->improved_by_milp;
        proven += s->proven_by_milp;
    }
    return json_pack("{s:i, s:i, s:i, s:i, s:i, s:I, s:i, s:i}", "pair_layers", pair_layers,
                     "pairs_asked", pairs.asked, "pairs_improved", pairs.improved, "pairs_proven",
                     pairs.proven, "exact_layers", exact_layers, "exact_nodes", (json_int_t)nodes,
                     "improved_layers", improved, "proven_layers", proven);
}

json_t *bl_planning_explain(const bl_planning *r) {
    json_t *explain = json_object(), *layers = json_array();
    const char *solver = bl_milp_solver();
    json_object_set_new(explain, "solver", solver != NULL ? json_string(solver) : json_null());
    json_object_set_new(explain, "phases", phases_of(r));
    json_object_set_new(explain, "bounds", bounds_of(r));
    json_object_set_new(explain, "glpk", glpk_of(r));
    for (int m = 0; m < r->n_jobs; m++)
        json_array_append_new(layers, layer_of(&r->jobs[m]));
    json_object_set_new(explain, "layers", layers);
    return explain;
}
