/*
 * ballast live: what the routers of running ranks did lately, from the windows that `ballast record
 * --live` publishes.
 */
#include "cli/verbs.h"
#include "core/json.h"
#include "core/mem.h"
#include "tracer/window.h"

#include <stdio.h>
#include <stdlib.h>

typedef struct live_options {
    int horizon, phase;
    bool json;
} live_options;

/* bl_phase_names[] with "all" in front. */
static const char *const PHASES[] = {"all",    "prefill", "midfill", "decode", "mixed",
                                     "verify", "idle",    "unknown", NULL};
static const char *const HORIZONS[] = {"steps", "seconds", "minutes", NULL};

static const bl_opt OPTIONS[] = {{.name = "window",
                                  .type = BL_OPT_CHOICE,
                                  .offset = offsetof(live_options, horizon),
                                  .choices = HORIZONS,
                                  .help = "the last 64 steps, 10 seconds or 5 minutes"},
                                 {.name = "phase",
                                  .type = BL_OPT_CHOICE,
                                  .offset = offsetof(live_options, phase),
                                  .choices = PHASES,
                                  .help = "only this phase"},
                                 {.name = "json",
                                  .type = BL_OPT_FLAG,
                                  .offset = offsetof(live_options, json),
                                  .help = "answer in JSON, with the load of every expert"},
                                 {0}};

typedef struct layer_load {
    uint64_t tokens, sum, most;
    int hottest;
} layer_load;

static layer_load judge(const uint64_t *count, int n_experts, uint64_t tokens) {
    layer_load load = {.tokens = tokens};
    for (int expert = 0; expert < n_experts; expert++) {
        load.sum += count[expert];
        if (count[expert] > load.most) {
            load.most = count[expert];
            load.hottest = expert;
        }
    }
    return load;
}

static double max_over_mean(const layer_load *load, int n_experts) {
    return load->sum > 0 ? (double)load->most * n_experts / (double)load->sum : 1.0;
}

static json_t *layer_to_json(int layer, const layer_load *load, const uint64_t *count,
                             int n_experts) {
    json_t *loads = json_array();
    for (int expert = 0; expert < n_experts; expert++)
        json_array_append_new(loads, json_integer((json_int_t)count[expert]));
    return json_pack("{s:i, s:I, s:I, s:f, s:i, s:o}", "layer", layer, "tokens",
                     (json_int_t)load->tokens, "assignments", (json_int_t)load->sum,
                     "max_over_mean_experts", max_over_mean(load, n_experts), "hottest",
                     load->hottest, "load", loads);
}

static json_t *facts_to_json(const live_options *o, const bl_window_facts *f, json_t *layers) {
    return json_pack("{s:s, s:s, s:s, s:b, s:f, s:I, s:I, s:o}", "model", f->model, "window",
                     HORIZONS[o->horizon], "phase", PHASES[o->phase], "live", f->live, "age_s",
                     f->age_s, "last_step", (json_int_t)f->last_step, "unmapped",
                     (json_int_t)f->unmapped, "layers", layers);
}

static bl_status show(const live_options *o, bl_window_view *view, uint64_t *count, bl_error *err) {
    bl_window_facts facts;
    bl_window_read_facts(view, &facts);
    json_t *layers = o->json ? json_array() : NULL;
    if (!o->json) {
        printf("%s, last %s, %s: step %llu, %.1f s ago%s\n", facts.model, HORIZONS[o->horizon],
               PHASES[o->phase], (unsigned long long)facts.last_step, facts.age_s,
               facts.live ? "" : "; its recorder is gone");
        printf("layer    tokens  assignments  max/mean  hottest\n");
    }
    for (int l = 0; l < facts.n_layers; l++) {
        uint64_t tokens;
        const bl_status st =
            bl_window_read(view, (bl_horizon)o->horizon, o->phase - 1, l, count, &tokens, err);
        if (st < 0) {
            json_decref(layers);
            return st;
        }
        const layer_load load = judge(count, facts.n_experts, tokens);
        if (o->json)
            json_array_append_new(layers,
                                  layer_to_json(facts.layers[l], &load, count, facts.n_experts));
        else
            printf("%5d  %8llu  %11llu  %8.3f  %7d\n", facts.layers[l],
                   (unsigned long long)load.tokens, (unsigned long long)load.sum,
                   max_over_mean(&load, facts.n_experts), load.hottest);
    }
    if (!o->json)
        return BL_OK;
    json_t *root = facts_to_json(o, &facts, layers);
    const bl_status st = bl_json_write("-", root, 0, err);
    json_decref(root);
    return st;
}

static bl_status run(void *user, int n_args, char **args, bl_error *err) {
    const live_options *options = user;
    bl_window_view *view = NULL;
    bl_window_facts facts;
    uint64_t *count = NULL;
    (void)n_args;
    BL_TRY(bl_window_open(args[0], &view, err));
    bl_window_read_facts(view, &facts);
    bl_status st = BL_CALLOC(count, facts.n_experts, err);
    if (st == BL_OK)
        st = show(options, view, count, err);
    free(count);
    bl_window_view_free(view);
    return st;
}

const bl_verb bl_verb_live = {
    .name = "live",
    .arguments = "NAME",
    .summary = "show what running ranks route right now",
    .details =
        "Reads the live windows that `ballast record --live NAME` keeps in shared memory: loads "
        "per layer and expert over the last 64 steps, 10 seconds or 5 minutes, of all ranks of "
        "this host. Reading stops nobody.",
    .options = OPTIONS,
    .options_bytes = sizeof(live_options),
    .min_args = 1,
    .max_args = 1,
    .run = run};
