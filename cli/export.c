/*
 * ballast export: a plan as an engine's own placement file.
 */
#include "cli/verbs.h"
#include "core/io.h"
#include "planner/engines/engine.h"

#include <stdio.h>

typedef struct export_options {
    int to;
    const char *output, *model;
} export_options;

static const bl_opt OPTIONS[] = {
    {"to", 0, BL_OPT_CHOICE, offsetof(export_options, to), .required = true,
     .choices = bl_engine_names, .help = "the engine that will read the file"},
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
    if (st < 0) {
        bl_model_free(&model);
        return st;
    }
    bl_model_free(&plan->model);
    plan->model = model;
    return BL_OK;
}

static bl_status run(void *options, int n_args, char **args, bl_error *err) {
    (void)n_args;
    const export_options *o = options;
    bl_plan plan;
    const bl_engine *engine = bl_engines[o->to];
    bl_export exported;
    const char *const inputs[] = {args[0], o->model};
    BL_TRY(bl_check_output(o->output, inputs, 2, err));
    BL_TRY(bl_plan_load(args[0], &plan, err));
    bl_status st = set_model(o, &plan, err);
    if (st >= 0)
        st = bl_export_write(engine, &plan, o->output, &exported, err);
    if (st >= 0)
        bl_export_tell(engine, &exported, o->output, stderr);
    bl_plan_free(&plan);
    if (st < 0)
        bl_error_set_file(err, args[0]);
    return st;
}

const bl_verb bl_verb_export = {
    .name = "export",
    .arguments = "PLAN",
    .summary = "write a plan as an engine's own placement file",
    .details =
        "sglang: JSON for --init-expert-location, a row for every decoder layer. trtllm: YAML for "
        "moe_config.load_balancer, rows by decoder-layer id. vllm-ascend: JSON for "
        "expert_map_path. "
        "omni: .npy pattern of 0 and 1 for pattern_path. eplb: JSON of phy2log, log2phy and "
        "logcnt, "
        "or phy2log alone when FILE ends in .npy. vllm-patched, vllm-offline: JSON for a vLLM "
        "with pull request #49572 or #41141; vLLM as released reads no placement.\n\n"
        "What the engine needs is checked before anything is written: a copy of every expert in "
        "every MoE layer, none twice on a rank, equally many slots on all ranks. The flags that "
        "must go with the file are printed, and where the engine will not do what the plan "
        "assumes.",
    .options = OPTIONS,
    .options_bytes = sizeof(export_options),
    .min_args = 1,
    .max_args = 1,
    .run = run,
};
