#include "cli/replay_answer.h"

#include <string.h>

void bl_replay_defaults(bl_replay_request *o) {
    o->steps.end = INT64_MAX;
    o->rule = o->phase = -1;
    o->baseline = "contiguous";
    o->dwell = BL_REPLAY_DWELL_STEPS;
    o->seed = 1;
}

/* Does what is told depend on single tokens, rather than on counts? */
static bool asks_tokens(const bl_replay_request *o, const bl_replay_inputs *in) {
    bool asks = bl_traffic_needs_tokens((bl_dispatch)o->dispatch, (bl_dispatch)o->combine);
    for (int p = 0; p < in->n_plans; p++)
        asks = asks || in->plans[p].rule == BL_RULE_LOCAL;
    return asks;
}

static bl_status replay_loads(const bl_replay_request *o, const bl_replay_inputs *in, char **paths,
                              const bl_loads *loads, int phase, bl_replay *out, bl_error *err) {
    const bl_replay_options options = {
        .plans = in->plans,
        .names = (const char *const *)paths,
        .n_plans = in->n_plans,
        .baseline = in->has_baseline                     ? BL_BASELINE_PLAN
                    : strcmp(o->baseline, "greedy") == 0 ? BL_BASELINE_GREEDY
                                                         : BL_BASELINE_CONTIGUOUS,
        .baseline_plan = &in->baseline,
        .baseline_name = o->baseline,
        .model = in->has_model ? &in->model : NULL,
        .first_step = o->steps.first,
        .end_step = o->steps.end,
        .steps_named = o->steps.given,
        .phase = phase >= 0 ? bl_phase_names[phase] : NULL,
        .dispatch = (bl_dispatch)o->dispatch,
        .combine = (bl_dispatch)o->combine,
        .dwell_steps = o->dwell,
        .tokens_per_rank = o->tokens_per_rank,
        .overlap = o->overlap,
        .seed = (uint64_t)o->seed,
    };
    BL_TRY(bl_replay_run(loads, &in->topology, &options, out, err));
    if (loads == &in->loads && asks_tokens(o, in))
        bl_loads_tell_sample(loads, o->traces.items[0], stderr);
    return BL_OK;
}

/* One phase by itself. Where the greedy baseline cannot be made, since the first plan saw nothing of
 * this phase, the start layout stands in, under its own name. */
static bl_status replay_phase(const bl_replay_request *o, const bl_replay_inputs *in, char **paths,
                              int phase, bl_replay *out, bl_error *err) {
    bl_loads loads = {0};
    bl_error why = BL_ERROR_INIT;
    bl_replay_request contiguous = *o;
    contiguous.baseline = "contiguous";
    BL_TRY(bl_replay_read_loads(o, in, phase, &loads, err));
    bl_status st = replay_loads(o, in, paths, &loads, phase, out, &why);
    if (st == BL_ERR_STATE && strcmp(o->baseline, "greedy") == 0) {
        why = BL_ERROR_INIT;
        st = replay_loads(&contiguous, in, paths, &loads, phase, out, &why);
    }
    bl_loads_free(&loads);
    if (st < 0 && err != NULL && err->code >= 0)
        *err = why;
    return st;
}

static bl_status replay_phases(const bl_replay_request *o, const bl_replay_inputs *in, char **paths,
                               bl_replay_answer *answer, bl_error *err) {
    const int n = bl_phases_of(&in->demand, o->phase, answer->phases);
    for (int p = 0; p < n && n > 1; p++)
        BL_TRY(replay_phase(o, in, paths, answer->phases[p], &answer->apart[p], err));
    answer->n_phases = n;
    return BL_OK;
}

void bl_replay_answer_free(bl_replay_answer *answer) {
    bl_replay_free(&answer->all);
    for (int p = 0; p < BL_N_PHASES; p++)
        bl_replay_free(&answer->apart[p]);
}

bl_status bl_replay_answer_make(const bl_replay_request *o, const bl_replay_inputs *in,
                                char **paths, bl_replay_answer *answer, bl_error *err) {
    BL_TRY(replay_loads(o, in, paths, &in->loads, bl_phase_filter(o->phase), &answer->all, err));
    return replay_phases(o, in, paths, answer, err);
}
