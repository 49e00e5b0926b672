#include "cli/topo_calibrate.h"

#include "cli/calibration.h"
#include "core/mem.h"
#include "core/split.h"
#include "planner/calibrate.h"
#include "planner/capacity.h"
#include "planner/plan.h"
#include "tracer/stages.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define MAX_SAMPLE_BYTES ((size_t)64 << 20)

/* Everything between the trace and the constants. */
typedef struct work {
    const bl_topo_calibrate *how;
    bl_stream *stream;
    const bl_trace_info *info;
    bl_model model;
    bl_topology topology;
    bl_plan plan;           /* zeroed without one */
    bl_placement placement; /* of the layers of the trace */
    double **share;         /* [n_layers] of each slot */
    bl_cost *cost;
    bl_rank_times *ranks; /* [n_ranks] scratch */
    bl_samples samples;
    bl_stage_totals totals;
    uint64_t ordinal;
} work;

static void close_work(work *w) {
    for (int l = 0; w->share != NULL && l < w->placement.n_layers; l++)
        free(w->share[l]);
    free(w->share);
    free(w->ranks);
    bl_samples_free(&w->samples);
    bl_cost_free(w->cost);
    bl_placement_free(&w->placement);
    bl_plan_free(&w->plan);
    bl_topology_free(&w->topology);
    bl_model_free(&w->model);
    bl_stream_free(w->stream);
}

/* ---- the placement in force ---------------------------------------------------------------- */

static bl_status start_layout(work *w, bl_error *err) {
    const bl_trace_info *info = w->info;
    const bl_capacity_request request = {.n_experts = info->n_experts,
                                         .n_ranks = info->n_ranks,
                                         .slots =
                                             w->how->slots >= 0 ? w->how->slots : info->n_experts,
                                         .redundant = -1};
    bl_capacity capacity;
    BL_TRY(bl_capacity_of(&request, &capacity, err));
    const bl_status st =
        bl_placement_create(info->n_ranks, info->n_experts, info->layers, info->n_layers,
                            capacity.slots_per_rank, &w->placement, err);
    bl_capacity_free(&capacity);
    if (st >= 0)
        bl_placement_fill_contiguous(&w->placement);
    return st;
}

static bl_status take_plan(work *w, bl_error *err) {
    const char *path = w->how->plan;
    if (w->how->slots >= 0)
        return bl_fail(err, BL_ERR_USAGE, "--slots is for the layout without --plan");
    BL_TRY(bl_plan_load(path, &w->plan, err));
    if (w->plan.placement.n_ranks != w->info->n_ranks ||
        w->plan.placement.n_experts != w->info->n_experts)
        return bl_fail_at(err, BL_ERR_SHAPE, bl_at(path),
                          "the plan is for %d experts on %d ranks, the trace has %d on %d",
                          w->plan.placement.n_experts, w->plan.placement.n_ranks,
                          w->info->n_experts, w->info->n_ranks);
    if (w->plan.rule != BL_RULE_EVEN && w->plan.rule != BL_RULE_FRACTIONS)
        return bl_fail_at(err, BL_ERR_UNSUPPORTED, bl_at(path),
                          "under the rule %s a trace's counts do not tell which rank served what; "
                          "record under a plan for even or fractions",
                          bl_rule_names[w->plan.rule]);
    for (int l = 0; l < w->info->n_layers; l++)
        if (bl_placement_layer(&w->plan.placement, w->info->layers[l]) == NULL)
            return bl_fail_at(err, BL_ERR_MODEL, bl_at_layer(path, w->info->layers[l]),
                              "the plan does not have this layer of the trace");
    return bl_placement_copy(&w->plan.placement, &w->placement, err);
}

static bl_status share_layer(work *w, int l, bl_error *err) {
    const bl_layer_placement *layer = &w->placement.layers[l];
    const int n_slots = bl_layer_n_slots(layer);
    bl_copies copies;
    BL_TRY(BL_CALLOC(w->share[l], n_slots, err));
    if (w->plan.rule == BL_RULE_FRACTIONS && w->how->plan != NULL) {
        for (int slot = 0; slot < n_slots; slot++)
            w->share[l][slot] = w->plan.layers[l].share[slot];
        return BL_OK;
    }
    BL_TRY(bl_copies_of(layer, &copies, err));
    bl_split_even_shares(layer, &copies, w->share[l]);
    bl_copies_free(&copies);
    return BL_OK;
}

static bl_status open_work(work *w, bl_error *err) {
    BL_TRY(bl_stream_open(w->how->trace, &w->stream, err));
    w->info = bl_stream_info(w->stream);
    BL_TRY(bl_model_load(w->how->model, &w->model, err));
    BL_TRY(bl_trace_info_fits_model(w->info, &w->model, w->how->trace, err));
    if (w->info->n_ranks <= 0 || w->info->n_present != w->info->n_ranks)
        return bl_fail_at(err, BL_ERR_STATE, bl_at(w->how->trace),
                          "%d of %d ranks were recorded; how long an exchange takes is told by all "
                          "of them together",
                          w->info->n_present, w->info->n_ranks);
    BL_TRY(bl_topology_open(w->how->base, &w->topology, err));
    BL_TRY(bl_cost_create(&w->model, &w->topology, w->info->n_ranks, &w->cost, err));
    BL_TRY(w->how->plan != NULL ? take_plan(w, err) : start_layout(w, err));
    BL_TRY(BL_CALLOC(w->share, w->placement.n_layers, err));
    for (int l = 0; l < w->placement.n_layers; l++)
        BL_TRY(share_layer(w, l, err));
    bl_samples_init(w->cost, w->info->n_ranks, &w->samples);
    return BL_CALLOC(w->ranks, w->info->n_ranks, err);
}

/* ---- samples ------------------------------------------------------------------------------- */

static bl_status add_layer(work *w, const bl_stage_step *step, int l, bl_error *err) {
    const int n_ranks = w->info->n_ranks;
    const bl_layer_placement *layer = bl_placement_layer(&w->placement, w->info->layers[l]);
    const double *share = w->share[layer - w->placement.layers];
    const double *counts = step->counts + (size_t)l * (size_t)w->info->n_experts;
    for (int g = 0; g < n_ranks; g++) {
        const double *ns = step->stage_ns + ((size_t)l * (size_t)n_ranks + (size_t)g) * BL_N_STAGES;
        bl_rank_times *rank = &w->ranks[g];
        *rank = (bl_rank_times){.dispatch_s = 1e-9 * ns[BL_STAGE_DISPATCH],
                                .experts_s = 1e-9 * ns[BL_STAGE_EXPERTS],
                                .combine_s = 1e-9 * ns[BL_STAGE_COMBINE]};
        for (int slot = layer->begin[g]; slot < layer->begin[g + 1]; slot++) {
            const int expert = layer->expert[slot];
            const double rows = expert != BL_NO_EXPERT ? counts[expert] * share[slot] : 0.0;
            rank->rows += rows;
            rank->active += fmin(1.0, rows);
        }
    }
    return bl_samples_add(&w->samples, w->ordinal, w->ranks, err);
}

static bl_status add_step(void *user, const bl_stage_step *step, bl_error *err) {
    work *w = user;
    const size_t sample_bytes = (3 * (size_t)w->info->n_ranks + 3) * sizeof(double);
    if (w->samples.n * sample_bytes > MAX_SAMPLE_BYTES)
        return BL_LIMIT;
    for (int l = 0; l < w->info->n_layers; l++)
        BL_TRY(add_layer(w, step, l, err));
    w->ordinal++;
    return BL_OK;
}

static bl_status read_trace(work *w, bl_error *err) {
    const bl_stage_totals *t = &w->totals;
    BL_TRY(bl_stages_read(w->stream, 0, add_step, w, &w->totals, err));
    if (t->whole == 0)
        return bl_fail_at(
            err, BL_ERR_UNSUPPORTED, bl_at(w->how->trace),
            "no step holds the stage times of all ranks and layers (%llu of %llu hold "
            "none at all); record with ballast run --record OUT --stage-times, or call "
            "bl_trace_stage_times() in the engine",
            (unsigned long long)t->no_times, (unsigned long long)t->steps);
    return BL_OK;
}

/* ---- the answer ---------------------------------------------------------------------------- */

static void note(json_t *list, const char *text) {
    json_array_append_new(list, json_string(text));
}

static json_t *sources(const work *w, const bl_calibration *c) {
    json_t *list = json_array();
    char text[480], part[320];
    snprintf(
        text, sizeof text,
        "Constants fitted to the stage times of %.120s%s: %zu layers of the first half of %llu "
        "steps. What they do not tell is as in the base, %.80s.",
        w->how->trace, w->totals.cut ? ", of which only the first part was read" : "", c->n_fitted,
        (unsigned long long)w->ordinal, w->how->base);
    note(list, text);
    if (w->totals.whole < w->totals.steps) {
        snprintf(text, sizeof text,
                 "%llu of %llu steps did not count: a rank or its times were "
                 "missing, or tokens were made up.",
                 (unsigned long long)(w->totals.steps - w->totals.whole),
                 (unsigned long long)w->totals.steps);
        note(list, text);
    }
    for (int d = 0; d < c->n_devices; d++) {
        if (c->experts[d].n == 0)
            continue;
        snprintf(text, sizeof text, "%s, experts: %s.", w->topology.devices[d].name,
                 bl_fit_text(&c->experts[d], bl_expert_term_names, part, sizeof part));
        note(list, text);
    }
    snprintf(text, sizeof text, "exchanges: %s.",
             bl_exchange_text(&c->exchange, part, sizeof part));
    note(list, text);
    snprintf(text, sizeof text, "A layer of the second half: %s.",
             bl_errors_text(&c->layer, "layers", part, sizeof part));
    note(list, text);
    return list;
}

static bl_status answer(work *w, const bl_calibration *c, json_t **root_p, json_t **answer_p,
                        bl_error *err) {
    const int n = bl_calibration_apply(c, &w->model, w->cost, &w->topology);
    json_t *root = bl_topology_to_json(&w->topology);
    json_t *held_out =
        json_pack("{s:o, s:o, s:o, s:o}", "layer", bl_errors_json(&c->layer), "experts",
                  bl_errors_json(&c->expert_errors), "exchanges",
                  bl_errors_json(&c->exchange_errors), "step", bl_errors_json(&c->step));
    json_t *made = json_pack("{s:I, s:I, s:I, s:i, s:o, s:o}", "steps", (json_int_t)w->totals.steps,
                             "whole_steps", (json_int_t)w->totals.whole, "fitted_layers",
                             (json_int_t)c->n_fitted, "figures", n, "constants",
                             bl_calibration_json(c), "held_out", held_out);
    if (root == NULL || made == NULL || json_object_set_new(root, "sources", sources(w, c)) != 0) {
        json_decref(root);
        json_decref(made);
        return bl_fail(err, BL_ERR_NOMEM, "out of memory");
    }
    *root_p = root;
    *answer_p = made;
    return BL_OK;
}

bl_status bl_topo_calibrate_run(const bl_topo_calibrate *how, json_t **root_p, json_t **answer_p,
                                bl_error *err) {
    work w = {.how = how};
    bl_calibration calibration = {0};
    bl_status st = open_work(&w, err);
    if (st >= 0)
        st = read_trace(&w, err);
    if (st >= 0)
        st = bl_calibrate(&w.samples, &w.topology, &calibration, err);
    if (st >= 0)
        st = answer(&w, &calibration, root_p, answer_p, err);
    bl_calibration_free(&calibration);
    close_work(&w);
    return st;
}
