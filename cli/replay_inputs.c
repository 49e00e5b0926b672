/*
 * replay_inputs.c: opening what `ballast replay` names.
 */
#include "cli/replay_inputs.h"

#include "core/mem.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void bl_replay_inputs_free(bl_replay_inputs *in) {
    for (int p = 0; in->plans != NULL && p < in->n_plans; p++)
        bl_plan_free(&in->plans[p]);
    free(in->plans);
    bl_plan_free(&in->baseline);
    bl_model_free(&in->model);
    bl_topology_free(&in->topology);
    bl_loads_free(&in->loads);
}

/* Score under another rule than the plan's own. */
static bl_status set_rule(bl_plan *plan, const char *name, int rule, bl_error *err) {
    if (rule < 0 || rule == (int)plan->rule)
        return BL_OK;
    if (rule == BL_RULE_FRACTIONS)
        return bl_fail_at(err, BL_ERR_STATE, bl_at(name),
                          "has no fractions to be scored under; make a plan with --rule fractions");
    for (int l = 0; l < plan->placement.n_layers; l++) {
        free(plan->layers[l].share);
        plan->layers[l].share = NULL;
    }
    plan->rule = (bl_rule)rule;
    return BL_OK;
}

static bl_status open_plans(const bl_replay_request *o, int n, char **paths, bl_replay_inputs *in,
                            bl_error *err) {
    BL_TRY(BL_CALLOC(in->plans, n, err));
    for (int p = 0; p < n; p++) {
        BL_TRY(bl_plan_load(paths[p], &in->plans[p], err));
        in->n_plans++;
        BL_TRY(set_rule(&in->plans[p], paths[p], o->rule, err));
    }
    if (strcmp(o->baseline, "contiguous") == 0 || strcmp(o->baseline, "greedy") == 0)
        return BL_OK;
    static const char *const words[] = {"contiguous", "greedy"};
    const char *near =
        access(o->baseline, F_OK) != 0 ? bl_nearest_name(o->baseline, words, 2) : NULL;
    if (near != NULL)
        return bl_fail(err, BL_ERR_USAGE, "--baseline: no file \"%s\"; did you mean %s?",
                       o->baseline, near);
    BL_TRY(bl_plan_load(o->baseline, &in->baseline, err));
    in->has_baseline = true;
    return set_rule(&in->baseline, o->baseline, o->rule, err);
}

/* Single tokens of all layers may take so much. */
#define TOKEN_BYTES ((size_t)1 << 30)
#define MOST_TOKENS ((size_t)1 << 20)

static size_t most_tokens(const bl_plan *plan) {
    const size_t bytes = (4 * (size_t)plan->top_k + 16) * (size_t)(plan->placement.n_layers + 1);
    const size_t n = TOKEN_BYTES / bytes;
    return n < MOST_TOKENS ? n : MOST_TOKENS;
}

bl_status bl_replay_read_loads(const bl_replay_request *o, const bl_replay_inputs *in, int phase,
                               bl_loads *out, bl_error *err) {
    bl_loads_options options = BL_LOADS_OPTIONS_INIT;
    options.phase = phase;
    options.sources = BL_SOURCES_IF_TOLD;
    options.most_tokens = most_tokens(&in->plans[0]);
    return bl_loads_read(o->traces.items, o->traces.n, in->has_model ? &in->model : NULL, &options,
                         out, err);
}

/* Names come from files' names and differ between engines, so by themselves they prove nothing. */
static bl_status check_names(const bl_replay_request *o, const bl_replay_inputs *in,
                             bl_error *err) {
    const char *trace = in->loads.model_name, *plan = in->plans[0].model_name;
    if (!o->strict || trace[0] == '\0' || strcmp(trace, plan) == 0)
        return BL_OK;
    return bl_fail_at(err, BL_ERR_MODEL, bl_at(o->traces.items[0]),
                      "is of %s, but the plan is for %s; without --strict they pass for one model "
                      "when experts, top-k and layers agree",
                      trace, plan);
}

bl_status bl_replay_inputs_open(const bl_replay_request *o, int n, char **paths,
                                bl_replay_inputs *in, bl_error *err) {
    BL_TRY(open_plans(o, n, paths, in, err));
    if (o->model != NULL) {
        BL_TRY(bl_model_load(o->model, &in->model, err));
        in->has_model = true;
    }
    BL_TRY(bl_topology_open(o->topology, &in->topology, err));
    BL_TRY(bl_replay_read_loads(o, in, bl_phase_filter(o->phase), &in->loads, err));
    BL_TRY(check_names(o, in, err));
    BL_TRY(bl_demand_read(o->traces.items, o->traces.n, o->steps.first, o->steps.end, &in->demand,
                          err));
    bl_loads_tell(&in->loads, o->traces.items[0], in->plans[0].model_name, o->steps.first,
                  o->steps.end, stderr);
    if (in->loads.source_count == NULL &&
        (o->dispatch != BL_DISPATCH_ASSIGNMENT || o->combine != BL_DISPATCH_ASSIGNMENT))
        fprintf(stderr, "%s: %s; traffic is left out\n", o->traces.items[0], in->loads.sources_why);
    return BL_OK;
}
