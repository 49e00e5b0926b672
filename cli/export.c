/*
 * ballast export: a plan as an engine's own placement file.
 */
#include "cli/verbs.h"
#include "planner/engines/sglang.h"

#include <stdio.h>

typedef struct export_options {
    int to;
    const char *output, *model;
} export_options;

static const char *const ENGINES[] = {"sglang", NULL};

static const bl_opt OPTIONS[] = {
    {"to", 0, BL_OPT_CHOICE, offsetof(export_options, to), .required = true, .choices = ENGINES,
     .help = "the engine that will read the file"},
    {"model", 0, BL_OPT_STRING, offsetof(export_options, model), .metavar = "M",
     .help = "config.json or model.json, for plans that do not know their model"},
    {"output", 'o', BL_OPT_STRING, offsetof(export_options, output), .metavar = "FILE",
     .required = true, .help = "where to write it"},
    {0}};

/* The model given takes the place of one the plan may know; it must be the same one. */
static bl_status set_model(const export_options *o, bl_plan *plan, bl_error *err) {
    if (o->model == NULL)
        return BL_OK;
    bl_model model;
    BL_TRY(bl_model_load(o->model, &model, err));
    bl_status st = BL_OK;
    if (model.n_experts != plan->n_experts || model.top_k != plan->top_k)
        st = bl_fail_at(err, BL_ERR_MODEL, bl_at(o->model),
                        "has top-%d of %d experts, but the plan is for top-%d of %d", model.top_k,
                        model.n_experts, plan->top_k, plan->n_experts);
    for (int l = 0; l < plan->placement.n_layers && st >= 0; l++) {
        if (bl_model_moe_index(&model, plan->placement.layers[l].layer) < 0)
            st = bl_fail_at(err, BL_ERR_MODEL, bl_at_layer(NULL, plan->placement.layers[l].layer),
                            "is in the plan, but is not a MoE layer of %s", model.name);
    }
    for (int m = 0; m < model.n_moe_layers && st >= 0; m++) {
        if (bl_placement_layer(&plan->placement, model.moe_layers[m]) == NULL)
            st = bl_fail_at(err, BL_ERR_MODEL, bl_at_layer(NULL, model.moe_layers[m]),
                            "is a MoE layer of %s, but the plan leaves it out", model.name);
    }
    if (st < 0) {
        bl_model_free(&model);
        return st;
    }
    bl_model_free(&plan->model);
    plan->model = model;
    return BL_OK;
}

static void name_flags(const export_options *o, const bl_plan *plan, const bl_sglang_start *start) {
    fprintf(stderr,
            "start SGLang with: --init-expert-location %s --ep-size %d "
            "--ep-num-redundant-experts %d --ep-dispatch-algorithm %s\n",
            o->output, start->ep_size, start->redundant_experts, start->dispatch);
    fprintf(stderr,
            "rank r of the plan is expert-parallel rank r of the engine; the plan was made for the "
            "rule %s, the engine prefers copies that are near\n",
            bl_rule_names[plan->rule]);
    if (start->mtp_layers_left_out > 0)
        fprintf(stderr, "%d multi-token-prediction layers of the plan have no row in this format\n",
                start->mtp_layers_left_out);
}

static bl_status run(void *options, int n_args, char **args, bl_error *err) {
    (void)n_args;
    const export_options *o = options;
    bl_plan plan;
    bl_sglang_start start;
    BL_TRY(bl_plan_load(args[0], &plan, err));
    bl_status st = set_model(o, &plan, err);
    if (st >= 0)
        st = bl_sglang_write(&plan, o->output, &start, err);
    if (st >= 0)
        name_flags(o, &plan, &start);
    bl_plan_free(&plan);
    if (st < 0)
        bl_error_set_file(err, args[0]);
    return st;
}

const bl_verb bl_verb_export = {
    .name = "export",
    .arguments = "PLAN",
    .summary = "write a plan as an engine's own placement file",
    .details = "sglang: {\"physical_to_logical_map\": [decoder layers][slots]} for "
               "--init-expert-location. Coverage, ranges, duplicates and equal slots per rank are "
               "checked, and the flags that must go with the file are printed.",
    .options = OPTIONS,
    .options_bytes = sizeof(export_options),
    .min_args = 1,
    .max_args = 1,
    .run = run,
};
