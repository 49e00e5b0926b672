#include "planner/predict.h"

#include "planner/replay.h"

#include <math.h>

/* JSON has no NaN: what is not known is null. */
static json_t *number(double value) {
    return isfinite(value) ? json_real(value) : json_null();
}

static json_t *figures_to_json(double mean, double p50, double p95, double p99, double worst) {
    return json_pack("{s:o, s:o, s:o, s:o, s:o}", "mean", number(mean), "p50", number(p50), "p95",
                     number(p95), "p99", number(p99), "worst", number(worst));
}

static json_t *layers_to_json(const bl_loads *loads, const bl_replay_score *score) {
    json_t *layers = json_array();
    for (int l = 0; l < score->n_layers; l++) {
        const bl_replay_figures *f = &score->layers[l];
        json_t *layer = figures_to_json(f->mean, f->p50, f->p95, f->p99, f->max);
        json_t *object = json_pack("{s:i}", "layer", loads->layers[l]);
        if (json_object_update(object, layer) == 0)
            json_array_append(layers, object);
        json_decref(object);
        json_decref(layer);
    }
    return layers;
}

static json_t *score_to_json(const bl_loads *loads, const bl_replay *replay, double tail) {
    const bl_replay_score *s = &replay->plans[0];
    json_t *imbalance = figures_to_json(s->mean, s->p50, s->p95, s->p99, s->max);
    if (tail > 0.0)
        json_object_set_new(imbalance, "tail",
                            json_pack("{s:f, s:o}", "part", tail, "mean", number(s->tail_mean)));
    json_t *object = json_pack("{s:I, s:o, s:o}", "steps", (json_int_t)replay->n_steps, "imbalance",
                               imbalance, "noise_floor", number(replay->noise_mean));
    if (replay->modelled) {
        json_object_set_new(object, "step_us",
                            json_pack("{s:o, s:o}", "mean", number(s->step_us_mean), "p95",
                                      number(s->step_us_p95)));
        json_object_set_new(object, "modelled", json_true());
    }
    json_object_set_new(object, "layers", layers_to_json(loads, s));
    return object;
}

bl_status bl_predict(bl_plan *plan, const bl_loads *loads, const char *phase,
                     const bl_predict_options *options, bl_error *err) {
    const char *const name = "this plan";
    const bl_replay_options replay_options = {.plans = plan,
                                              .names = &name,
                                              .n_plans = 1,
                                              .end_step = INT64_MAX,
                                              .all_steps = true,
                                              .dwell_steps = BL_REPLAY_DWELL_STEPS,
                                              .tail = options->tail,
                                              .tokens_per_rank = options->tokens_per_rank,
                                              .overlap = options->overlap,
                                              .seed = 1};
    bl_replay replay;
    if (bl_rule_needs_sources(plan->rule))
        return BL_OK;
    BL_TRY(bl_replay_run(loads, options->topology, &replay_options, &replay, err));
    if (plan->predicted == NULL)
        plan->predicted = json_object();
    const int failed =
        json_object_set_new(plan->predicted, phase, score_to_json(loads, &replay, options->tail));
    bl_replay_free(&replay);
    return failed == 0 ? BL_OK : bl_fail(err, BL_ERR_NOMEM, "out of memory");
}
