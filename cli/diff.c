/*
 * ballast diff: what must travel to get from one plan to another.
 */
#include "cli/verbs.h"
#include "planner/diff.h"
#include "planner/plan.h"

#include <math.h>
#include <stdio.h>

typedef struct diff_options {
    const char *topology, *model;
    bool json;
} diff_options;

static const bl_opt OPTIONS[] = {
    {"topology", 0, BL_OPT_STRING, offsetof(diff_options, topology), .metavar = "T",
     .help = "catalogue name or file; gives the modelled time"},
    {"model", 0, BL_OPT_STRING, offsetof(diff_options, model), .metavar = "M",
     .help = "config.json or model.json, for plans that do not know the size of an expert"},
    {"json", 0, BL_OPT_FLAG, offsetof(diff_options, json), .help = "answer in JSON"},
    {0}};

static bl_status print_json(const bl_diff *diff, bool sized, bl_error *err) {
    json_t *layers = json_array();
    for (int l = 0; l < diff->n_layers; l++)
        json_array_append_new(layers, json_pack("{s:i, s:i}", "layer", diff->layer[l], "moves",
                                                diff->layer_moves[l]));
    json_t *root = json_pack("{s:I, s:o, s:o, s:{s:b, s:o}}", "moves", (json_int_t)diff->moves,
                             "bytes", sized ? json_integer((json_int_t)diff->bytes) : json_null(),
                             "layers", layers, "seconds", "modelled", 1, "value",
                             isnan(diff->seconds) ? json_null() : json_real(diff->seconds));
    const bl_status st = root != NULL ? bl_json_write("-", root, 2, err)
                                      : bl_fail(err, BL_ERR_NOMEM, "out of memory");
    json_decref(root);
    return st;
}

static void print_text(const bl_diff *diff, bool sized) {
    int touched = 0;
    for (int l = 0; l < diff->n_layers; l++) {
        if (diff->layer_moves[l] > 0) {
            printf("layer %4d  %6d moves\n", diff->layer[l], diff->layer_moves[l]);
            touched++;
        }
    }
    printf("%lld moves in %d of %d layers", (long long)diff->moves, touched, diff->n_layers);
    if (sized)
        printf(", %llu bytes", (unsigned long long)diff->bytes);
    if (!isnan(diff->seconds))
        printf(", %.3g s (modelled, all links in use)", diff->seconds);
    putchar('\n');
}

static bl_status compare(const diff_options *o, const bl_plan *from, const bl_plan *to,
                         const bl_model *model, const bl_topology *topology, bl_error *err) {
    const size_t expert_bytes = model->expert_bytes      ? model->expert_bytes
                                : to->model.expert_bytes ? to->model.expert_bytes
                                                         : from->model.expert_bytes;
    bl_diff diff;
    BL_TRY(bl_diff_of(&from->placement, &to->placement, expert_bytes, topology, &diff, err));
    if (expert_bytes == 0)
        fprintf(stderr,
                "the plans do not know the size of an expert; name the model with --model\n");
    bl_status st = BL_OK;
    if (o->json)
        st = print_json(&diff, expert_bytes > 0, err);
    else
        print_text(&diff, expert_bytes > 0);
    bl_diff_free(&diff);
    return st;
}

static bl_status run(void *options, int n_args, char **args, bl_error *err) {
    (void)n_args;
    const diff_options *o = options;
    bl_plan from = {0}, to = {0};
    bl_model model = {0};
    bl_topology topology = {0};
    bl_status st = bl_plan_load(args[0], &from, err);
    if (st >= 0)
        st = bl_plan_load(args[1], &to, err);
    if (st >= 0)
        st = bl_plan_comparable(&from, args[0], &to, args[1], err);
    if (st >= 0 && o->model != NULL)
        st = bl_model_load(o->model, &model, err);
    if (st >= 0 && o->topology != NULL)
        st = bl_topology_open(o->topology, &topology, err);
    if (st >= 0)
        st = compare(o, &from, &to, &model, o->topology != NULL ? &topology : NULL, err);
    bl_topology_free(&topology);
    bl_model_free(&model);
    bl_plan_free(&from);
    bl_plan_free(&to);
    return st;
}

const bl_verb bl_verb_diff = {
    .name = "diff",
    .arguments = "FROM TO",
    .summary = "count what must travel to get from one plan to another",
    .details = "A move is a copy that must travel to a rank that did not hold that expert; other "
               "slots of the same rank and dropped copies cost nothing.",
    .options = OPTIONS,
    .options_bytes = sizeof(diff_options),
    .min_args = 2,
    .max_args = 2,
    .run = run,
};
