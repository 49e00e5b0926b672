/*
 * ballast import: other tools' routing data into a trace.
 */
#include "cli/verbs.h"
#include "core/io.h"
#include "core/json.h"
#include "tracer/import.h"

#include <string.h>

typedef struct import_options {
    const char *from, *model, *layers, *compose, *out;
    int phase;
    int64_t top_k, ranks;
    bool sets, json;
} import_options;

static void set_defaults(void *options) {
    ((import_options *)options)->phase = BL_N_PHASES; /* "as the file says" */
}

/* Phases, and behind them what stands for "not given". */
static const char *const PHASES[] = {"prefill", "midfill", "decode", "mixed", "verify",
                                     "idle",    "unknown", "auto",   NULL};

static const bl_opt OPTIONS[] = {
    {.name = "from",
     .type = BL_OPT_STRING,
     .offset = offsetof(import_options, from),
     .metavar = "FORMAT",
     .required = true,
     .help = "load-json, load-npy, load-csv, topk-npy, topk-csv, sglang-stat, sglang-pass, "
             "sglang-reply, "
             "vllm-reply or trtllm-stat"},
    {.name = "model",
     .type = BL_OPT_STRING,
     .offset = offsetof(import_options, model),
     .metavar = "MODEL",
     .help = "config.json or model.json of the model that was traced"},
    {.name = "layers",
     .type = BL_OPT_STRING,
     .offset = offsetof(import_options, layers),
     .metavar = "RULE",
     .help = "which decoder layers the rows are: all, moe, dense=N or a list such as 3-60"},
    {.name = "top-k",
     .type = BL_OPT_INT,
     .offset = offsetof(import_options, top_k),
     .metavar = "K",
     .min = 1,
     .max = BL_MAX_TOP_K,
     .help = "experts per token, where neither model nor file tells"},
    {.name = "compose",
     .type = BL_OPT_STRING,
     .offset = offsetof(import_options, compose),
     .metavar = "batch=N,ranks=G",
     .help = "compose steps of N tokens on G ranks from a dump of tokens"},
    {.name = "ranks",
     .type = BL_OPT_INT,
     .offset = offsetof(import_options, ranks),
     .metavar = "G",
     .min = 1,
     .max = BL_MAX_RANKS,
     .help = "ranks that should have written a file (sglang-pass, trtllm-stat), where the last may "
             "be missing"},
    {.name = "phase",
     .type = BL_OPT_CHOICE,
     .offset = offsetof(import_options, phase),
     .choices = PHASES,
     .help = "phase of all steps"},
    {.name = "sets",
     .type = BL_OPT_FLAG,
     .offset = offsetof(import_options, sets),
     .help = "keep which experts a token picked, not in which order: a smaller file"},
    {.name = "output",
     .short_name = 'o',
     .type = BL_OPT_STRING,
     .offset = offsetof(import_options, out),
     .metavar = "OUT.blt",
     .required = true,
     .help = "trace to write"},
    {.name = "json",
     .type = BL_OPT_FLAG,
     .offset = offsetof(import_options, json),
     .help = "say what was written in JSON"},
    {0}};

static bl_status check_format(const char *format, bl_error *err) {
    const char *names[32];
    size_t n = 0;
    for (; bl_importers[n].name != NULL; n++) {
        names[n] = bl_importers[n].name;
        if (strcmp(format, names[n]) == 0)
            return BL_OK;
    }
    const char *near = bl_nearest_name(format, names, n);
    char hint[64] = "";
    if (near != NULL)
        snprintf(hint, sizeof hint, "; did you mean %s?", near);
    return bl_fail(err, BL_ERR_USAGE, "unknown format \"%s\"%s", format, hint);
}

static bl_status say(const import_options *options, const bl_import_result *result, bl_error *err) {
    if (result->notes[0] != '\0')
        fprintf(stderr, "ballast import: %s\n", result->notes);
    if (!options->json) {
        fprintf(stderr, "ballast import: %s: %llu steps, %llu tokens, %d MoE layers\n",
                options->out, (unsigned long long)result->steps, (unsigned long long)result->tokens,
                result->n_layers);
        return BL_OK;
    }
    json_t *root =
        json_pack("{s:o, s:I, s:I, s:i, s:o}", "trace", bl_json_text(options->out), "steps",
                  (json_int_t)result->steps, "tokens", (json_int_t)result->tokens, "layers",
                  result->n_layers, "notes", bl_json_text(result->notes));
    const bl_status st = bl_json_write("-", root, 2, err);
    json_decref(root);
    return st;
}

static bl_status run(void *user, int n_args, char **args, bl_error *err) {
    const import_options *options = user;
    bl_import_options how = BL_IMPORT_OPTIONS_INIT;
    bl_model model = {0};
    BL_TRY(check_format(options->from, err));
    BL_TRY(bl_check_output(options->out, &options->model, 1, err));
    BL_TRY(bl_check_output(options->out, (const char *const *)args, n_args, err));
    if (options->compose != NULL)
        BL_TRY(bl_import_parse_compose(options->compose, &how, err));
    if (options->model != NULL) {
        BL_TRY(bl_model_load(options->model, &model, err));
        how.model = &model;
    }
    how.layers = options->layers;
    how.top_k = (int)options->top_k;
    how.ranks = (int)options->ranks;
    how.sets = options->sets;
    how.phase = options->phase < BL_N_PHASES ? options->phase : -1;
    bl_import_result result;
    bl_status st = bl_import(options->from, (const char *const *)args, n_args, &how, options->out,
                             &result, err);
    if (st == BL_OK)
        st = say(options, &result, err);
    bl_model_free(&model);
    return st;
}

const bl_verb bl_verb_import = {
    .name = "import",
    .arguments = "IN...",
    .summary = "turn other tools' routing data into a trace",
    .details =
        "Several inputs follow one another as steps of one trace; of sglang-pass they are the "
        "files of the ranks, or their folder. Which decoder layer a row "
        "is comes from the file, the model or --layers, and is never guessed. Dumps of "
        "single tokens (topk-npy, topk-csv) and replies (sglang-reply, vllm-reply) have no steps: "
        "--compose makes them, and without it all tokens are one step; both are labelled "
        "as composed. Replies also hold routes of tokens from a cached prefix, for which no expert "
        "ran: they overstate load.",
    .options = OPTIONS,
    .options_bytes = sizeof(import_options),
    .set_defaults = set_defaults,
    .min_args = 1,
    .max_args = -1,
    .run = run};
