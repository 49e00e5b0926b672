/*
 * ballast replay: how plans would have done on steps they have not seen.
 */
#include "cli/verbs.h"
#include "core/mem.h"
#include "planner/replay.h"
#include "tracer/trace.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct replay_options {
    bl_opt_list traces;
    const char *topology, *model, *baseline;
    bl_opt_range steps;
    int rule, phase;
    double dwell;
    int64_t seed;
    bool json;
} replay_options;

#define AT(field) offsetof(replay_options, field)
static const bl_opt OPTIONS[] = {
    {"trace", 0, BL_OPT_LIST, AT(traces), .metavar = "TRACE", .required = true,
     .help = "recorded routing to score on; may be given again"},
    {"topology", 0, BL_OPT_STRING, AT(topology), .metavar = "T", .required = true,
     .help = "catalogue name (hgx-h100:nodes=4) or file; gives the modelled times"},
    {"steps", 0, BL_OPT_RANGE, AT(steps), .metavar = "A:B",
     .help = "score these steps only, 0-based and half-open"},
    {"phase", 0, BL_OPT_CHOICE, AT(phase), .choices = bl_phase_names,
     .help = "score this phase only"},
    {"rule", 0, BL_OPT_CHOICE, AT(rule), .choices = bl_rule_names,
     .help = "score under this rule instead of the one the plan was made for"},
    {"baseline", 0, BL_OPT_STRING, AT(baseline), .metavar = "PLAN|contiguous|greedy",
     .help = "what would serve otherwise; greedy is made from the first plan's own steps"},
    {"model", 0, BL_OPT_STRING, AT(model), .metavar = "M",
     .help = "config.json or model.json, for plans that do not know their model's sizes"},
    {"dwell", 0, BL_OPT_REAL, AT(dwell), .metavar = "STEPS", .min = 1, .max = 1e15,
     .help = "steps that a plan serves before the next one"},
    {"seed", 0, BL_OPT_INT, AT(seed), .metavar = "N", .min = 0, .max = 1e15,
     .help = "seed of the bootstrap"},
    {"json", 0, BL_OPT_FLAG, AT(json), .help = "answer in JSON"},
    {0}};

static void set_defaults(void *options) {
    replay_options *o = options;
    o->steps.end = INT64_MAX;
    o->rule = o->phase = -1;
    o->baseline = "contiguous";
    o->dwell = BL_REPLAY_DWELL_STEPS;
    o->seed = 1;
}

typedef struct inputs {
    int n_plans;
    bl_plan *plans; /* [n_plans]; owned */
    bl_plan baseline;
    bool has_baseline, has_model;
    bl_model model;
    bl_topology topology;
    bl_loads loads;
} inputs;

static void inputs_free(inputs *in) {
    for (int p = 0; in->plans != NULL && p < in->n_plans; p++)
        bl_plan_free(&in->plans[p]);
    free(in->plans);
    bl_plan_free(&in->baseline);
    bl_model_free(&in->model);
    bl_topology_free(&in->topology);
    bl_loads_free(&in->loads);
}

/* ---- opening ----------------------------------------------------------------------------------*/

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

static bl_status open_plans(const replay_options *o, int n, char **paths, inputs *in,
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

static bl_status open_inputs(const replay_options *o, int n, char **paths, inputs *in,
                             bl_error *err) {
    BL_TRY(open_plans(o, n, paths, in, err));
    if (o->model != NULL) {
        BL_TRY(bl_model_load(o->model, &in->model, err));
        in->has_model = true;
    }
    BL_TRY(bl_topology_open(o->topology, &in->topology, err));
    bl_loads_options options = BL_LOADS_OPTIONS_INIT;
    options.phase = o->phase;
    BL_TRY(bl_loads_read(o->traces.items, o->traces.n, in->has_model ? &in->model : NULL, &options,
                         &in->loads, err));
    bl_loads_tell(&in->loads, o->traces.items[0], in->plans[0].model_name, o->steps.first,
                  o->steps.end, stderr);
    return BL_OK;
}

/* ---- telling ----------------------------------------------------------------------------------*/

static void print_score(const bl_replay *replay, const bl_replay_score *s, bool is_plan) {
    printf("%-28.28s %7.4f %7.4f %7.4f %7.4f %7.4f  %7.4f", s->name, s->mean, s->p50, s->p95,
           s->p99, s->max, s->balancedness);
    if (replay->modelled)
        printf("  %10.1f %10.1f", s->step_us_mean, s->step_us_p95);
    if (is_plan && replay->modelled)
        printf("  %10.1f %10.1f  %6lld %9.3g", s->saved_us, s->saved_us_low, (long long)s->moves,
               s->migration_s);
    putchar('\n');
}

static void print_table(const replay_options *o, const bl_replay *replay) {
    printf("%zu steps scored, %zu left out because a plan was made from them\n", replay->n_steps,
           replay->n_left_out);
    if (replay->n_steps == 0) {
        printf("%s: %s\n", replay->plans[replay->best].name, bl_verdict_names[replay->verdict]);
        return;
    }
    printf("%-28s %7s %7s %7s %7s %7s  %7s", "max/mean of a layer", "mean", "p50", "p95", "p99",
           "max", "balance");
    if (replay->modelled)
        printf("  %10s %10s  %10s %10s  %6s %9s", "step us *", "p95 *", "saved us *", "95% low *",
               "moves", "seconds *");
    putchar('\n');
    print_score(replay, &replay->baseline, false);
    for (int p = 0; p < replay->n_plans; p++)
        print_score(replay, &replay->plans[p], true);
    if (replay->modelled)
        printf("* modelled, MoE layers only; saved against %s, over %.0f steps\n",
               replay->baseline.name, o->dwell);
    printf("%s: %s\n", replay->plans[replay->best].name, bl_verdict_names[replay->verdict]);
}

/* JSON has no NaN: what is not known is null. */
static json_t *number(double value) {
    return isfinite(value) ? json_real(value) : json_null();
}

static json_t *score_to_json(const bl_replay_score *s) {
    return json_pack("{s:s, s:{s:o, s:o, s:o, s:o, s:o}, s:o, s:{}, s:{s:o, s:o}, s:b}", "name",
                     s->name, "imbalance", "mean", number(s->mean), "p50", number(s->p50), "p95",
                     number(s->p95), "p99", number(s->p99), "max", number(s->max), "balancedness",
                     number(s->balancedness), "bytes", "step_us", "mean", number(s->step_us_mean),
                     "p95", number(s->step_us_p95), "modelled", 1);
}

static json_t *plan_to_json(const bl_replay_score *s) {
    json_t *object = score_to_json(s);
    json_object_set_new(object, "moves", json_integer((json_int_t)s->moves));
    json_object_set_new(object, "move_bytes", json_integer((json_int_t)s->move_bytes));
    json_object_set_new(object, "migration_s", number(s->migration_s));
    json_object_set_new(
        object, "saved_us",
        json_pack("{s:o, s:o}", "mean", number(s->saved_us), "low", number(s->saved_us_low)));
    json_object_set_new(object, "verdict", json_string(bl_verdict_names[s->verdict]));
    return object;
}

static bl_status print_json(const replay_options *o, const bl_replay *replay, bl_error *err) {
    json_t *plans = json_array();
    for (int p = 0; p < replay->n_plans; p++)
        json_array_append_new(plans, plan_to_json(&replay->plans[p]));
    json_t *root =
        json_pack("{s:I, s:I, s:o, s:o, s:f, s:s, s:s}", "steps", (json_int_t)replay->n_steps,
                  "steps_left_out", (json_int_t)replay->n_left_out, "plans", plans, "baseline",
                  score_to_json(&replay->baseline), "dwell_steps", o->dwell, "best",
                  replay->plans[replay->best].name, "verdict", bl_verdict_names[replay->verdict]);
    const bl_status st = root != NULL ? bl_json_write("-", root, 2, err)
                                      : bl_fail(err, BL_ERR_NOMEM, "out of memory");
    json_decref(root);
    return st;
}

/* ---- the verb ---------------------------------------------------------------------------------*/

static bl_status replay_plans(const replay_options *o, const inputs *in, char **paths,
                              bl_error *err) {
    const char *const *names = (const char *const *)paths;
    const bl_replay_options options = {
        .plans = in->plans,
        .names = names,
        .n_plans = in->n_plans,
        .baseline = in->has_baseline                     ? BL_BASELINE_PLAN
                    : strcmp(o->baseline, "greedy") == 0 ? BL_BASELINE_GREEDY
                                                         : BL_BASELINE_CONTIGUOUS,
        .baseline_plan = &in->baseline,
        .baseline_name = o->baseline,
        .model = in->has_model ? &in->model : NULL,
        .first_step = o->steps.first,
        .end_step = o->steps.end,
        .phase = o->phase >= 0 ? bl_phase_names[o->phase] : NULL,
        .dwell_steps = o->dwell,
        .seed = (uint64_t)o->seed,
    };
    bl_replay replay = {0};
    BL_TRY(bl_replay_run(&in->loads, &in->topology, &options, &replay, err));
    if (!replay.modelled)
        fprintf(stderr,
                "%s does not know its model's sizes, so no time can be modelled; name the "
                "model with --model\n",
                paths[0]);
    else if (replay.n_steps < BL_REPLAY_MIN_STEPS)
        fprintf(stderr,
                "%zu steps that no plan was made from are too few for a verdict, %d are "
                "needed\n",
                replay.n_steps, BL_REPLAY_MIN_STEPS);
    bl_status st = BL_OK;
    if (o->json)
        st = print_json(o, &replay, err);
    else
        print_table(o, &replay);
    bl_replay_free(&replay);
    return st;
}

static bl_status run(void *options, int n_args, char **args, bl_error *err) {
    const replay_options *o = options;
    inputs in = {0};
    bl_status st = open_inputs(o, n_args, args, &in, err);
    if (st >= 0)
        st = replay_plans(o, &in, args, err);
    inputs_free(&in);
    return st;
}

const bl_verb bl_verb_replay = {
    .name = "replay",
    .arguments = "PLAN...",
    .summary = "score plans step by step on traffic they have not seen",
    .details =
        "Steps that a plan was made from (same trace) are left out for all plans. Imbalance is "
        "max/mean of token rows over the ranks of one layer in one step; balance is the mean of "
        "mean/max.\n\n"
        "The verdict is recommend when the time saved per step, at its lower 95 % bound (block "
        "bootstrap, one-sided), times --dwell exceeds the time to move from the baseline; not "
        "worth it when it does not; not enough evidence with fewer than 5 unseen steps.",
    .options = OPTIONS,
    .options_bytes = sizeof(replay_options),
    .set_defaults = set_defaults,
    .min_args = 1,
    .max_args = -1,
    .run = run,
};
