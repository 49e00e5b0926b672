#include "cli/plan_phases.h"

#include "planner/predict.h"

/* Part of the samples that --over looks at; 0: all. */
static double tail_of(const bl_plan_options *o) {
    bl_objective_over over;
    if (bl_over_parse(o->over, &over, NULL) < 0)
        return 0.0;
    return over.kind == BL_OVER_P95 ? 0.05 : over.kind == BL_OVER_CVAR ? 1.0 - over.level : 0.0;
}

static bl_status predict_phase(const bl_plan_options *o, const bl_plan_inputs *in, int phase,
                               const bl_predict_options *how, bl_plan *plan, bl_error *err) {
    bl_loads loads = {0};
    bl_loads_options options = BL_LOADS_OPTIONS_INIT;
    options.phase = phase;
    options.first_step = o->steps.first;
    options.end_step = o->steps.end;
    BL_TRY(bl_loads_read(in->paths.items, in->paths.n, &in->model, &options, &loads, err));
    const bl_status st = bl_predict(plan, &loads, bl_phase_names[phase], how, err);
    bl_loads_free(&loads);
    return st;
}

bl_status bl_plan_predict(const bl_plan_options *o, const bl_plan_inputs *in, bl_plan *plan,
                          bl_error *err) {
    const bl_predict_options how = {.topology = in->has_topology ? &in->topology : NULL,
                                    .tail = tail_of(o),
                                    .tokens_per_rank = o->tokens_per_rank,
                                    .overlap = o->overlap};
    int phases[BL_N_PHASES];
    const int n = bl_phases_of(&in->demand, o->phase, phases);
    if (n == 1)
        return bl_predict(plan, &in->loads, bl_phase_names[phases[0]], &how, err);
    for (int p = 0; p < n; p++)
        BL_TRY(predict_phase(o, in, phases[p], &how, plan, err));
    return BL_OK;
}

static double real_at(const json_t *object, const char *key) {
    return json_number_value(json_object_get(object, key));
}

void bl_plan_print_phases(const bl_plan_options *o, const bl_plan_inputs *in, const bl_plan *plan,
                          FILE *out) {
    const char *phase;
    json_t *figures;
    json_object_foreach (plan->predicted, phase, figures) {
        const json_t *imbalance = json_object_get(figures, "imbalance");
        const json_t *tail = json_object_get(imbalance, "tail");
        const json_t *step_us = json_object_get(figures, "step_us");
        fprintf(out, "  step by step, %s: max/mean %.4f, p50 %.4f, p95 %.4f, p99 %.4f, worst %.4f",
                phase, real_at(imbalance, "mean"), real_at(imbalance, "p50"),
                real_at(imbalance, "p95"), real_at(imbalance, "p99"), real_at(imbalance, "worst"));
        if (tail != NULL)
            fprintf(out, ", worst %g %% of them %.4f", 100.0 * real_at(tail, "part"),
                    real_at(tail, "mean"));
        if (step_us != NULL)
            fprintf(out, "; %.1f us a step (modelled)", real_at(step_us, "mean"));
        fputc('\n', out);
    }
    if (o->phase < 0 && in->demand.n_phases > 1)
        fprintf(out, "  phases of different traffic share this plan; --phase prefill and --phase "
                     "decode make one for each, --phase all says that one for all is meant\n");
}

json_t *bl_plan_phases_to_json(const bl_plan *plan) {
    json_t *phases = plan->predicted != NULL ? json_deep_copy(plan->predicted) : json_object();
    const char *phase;
    json_t *figures;
    json_object_foreach (phases, phase, figures) {
        json_object_del(figures, "layers");
    }
    return phases;
}
