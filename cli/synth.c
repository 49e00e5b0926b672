/*
 * ballast synth: made-up routing, for trying things out and for tests.
 */
#include "cli/verbs.h"
#include "core/io.h"
#include "tracer/synth.h"

#include <stdio.h>

typedef struct synth_options {
    const char *model, *out;
    int64_t n_topics, n_steps, tokens_per_step, n_ranks, seed;
    double drift, skew;
    int phase;
} synth_options;

static void set_defaults(void *user) {
    synth_options *options = user;
    const bl_synth_options d = BL_SYNTH_OPTIONS_INIT;
    *options = (synth_options){.n_topics = d.n_topics,
                               .n_steps = d.n_steps,
                               .tokens_per_step = d.tokens_per_step,
                               .n_ranks = d.n_ranks,
                               .seed = (int64_t)d.seed,
                               .drift = d.drift,
                               .skew = d.skew,
                               .phase = (int)d.phase};
}

#define INT_OPTION(name_, field, most, help_)                                        \
    {                                                                                \
        .name = name_, .type = BL_OPT_INT, .offset = offsetof(synth_options, field), \
        .metavar = "N", .min = 1, .max = most, .help = help_                         \
    }

static const bl_opt OPTIONS[] = {
    {.name = "model",
     .type = BL_OPT_STRING,
     .offset = offsetof(synth_options, model),
     .metavar = "MODEL",
     .required = true,
     .help = "config.json or model.json"},
    INT_OPTION("topics", n_topics, 10000, "topics with hot experts of their own"),
    INT_OPTION("steps", n_steps, 1e9, "steps"),
    INT_OPTION("tokens-per-step", tokens_per_step, 1e9, "tokens of a step over all ranks"),
    INT_OPTION("ranks", n_ranks, BL_MAX_RANKS, "source ranks"),
    {.name = "drift",
     .type = BL_OPT_REAL,
     .offset = offsetof(synth_options, drift),
     .metavar = "X",
     .min = 0,
     .max = 1e6,
     .help = "topics the mix moves on by over the whole trace"},
    {.name = "skew",
     .type = BL_OPT_REAL,
     .offset = offsetof(synth_options, skew),
     .metavar = "X",
     .min = 0,
     .max = 4,
     .help = "exponent of the experts' popularity, 0 for equal ones"},
    {.name = "phase",
     .type = BL_OPT_CHOICE,
     .offset = offsetof(synth_options, phase),
     .choices = bl_phase_names,
     .help = "phase of all steps"},
    {.name = "seed",
     .type = BL_OPT_INT,
     .offset = offsetof(synth_options, seed),
     .metavar = "N",
     .min = 0,
     .max = 1e15,
     .help = "same seed, same bytes"},
    {.name = "output",
     .short_name = 'o',
     .type = BL_OPT_STRING,
     .offset = offsetof(synth_options, out),
     .metavar = "OUT.blt",
     .required = true,
     .help = "trace to write"},
    {0}};

static bl_status run(void *user, int n_args, char **args, bl_error *err) {
    const synth_options *o = user;
    (void)n_args;
    (void)args;
    const bl_synth_options how = {.n_topics = (int)o->n_topics,
                                  .n_steps = o->n_steps,
                                  .tokens_per_step = o->tokens_per_step,
                                  .n_ranks = (int)o->n_ranks,
                                  .drift = o->drift,
                                  .skew = o->skew,
                                  .phase = (bl_phase)o->phase,
                                  .seed = (uint64_t)o->seed};
    BL_TRY(bl_check_output(o->out, &o->model, 1, err));
    bl_model model;
    BL_TRY(bl_model_load(o->model, &model, err));
    const bl_status st = bl_synth(&model, &how, o->out, err);
    bl_model_free(&model);
    return st;
}

const bl_verb bl_verb_synth = {
    .name = "synth",
    .arguments = "",
    .summary = "make up routing for a model",
    .details = "Experts are unequally popular (Zipf), each topic has hot experts of its own, and "
               "the mix of topics drifts over the steps.",
    .options = OPTIONS,
    .options_bytes = sizeof(synth_options),
    .set_defaults = set_defaults,
    .min_args = 0,
    .max_args = 0,
    .run = run};
