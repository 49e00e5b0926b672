/*
 * ballast report: plans on a trace, as one page to look at.
 */
#include "cli/replay_answer.h"
#include "cli/report_page.h"
#include "cli/verbs.h"
#include "core/io.h"

typedef struct report_options {
    bl_replay_request request;
    const char *output;
} report_options;

#define AT(field) offsetof(report_options, request.field)
static const bl_opt OPTIONS[] = {
    {"trace", 0, BL_OPT_LIST, AT(traces), .metavar = "TRACE", .required = true,
     .help = "recorded routing to score on; may be given again"},
    {"topology", 0, BL_OPT_STRING, AT(topology), .metavar = "T", .required = true,
     .help = "catalogue name (hgx-h100:nodes=4) or file; gives modelled times and memory"},
    {"steps", 0, BL_OPT_RANGE, AT(steps), .metavar = "A:B",
     .help = "score these steps only, 0-based and half-open"},
    {"phase", 0, BL_OPT_CHOICE, AT(phase), .choices = bl_phase_choices,
     .help = "score this phase only"},
    {"rule", 0, BL_OPT_CHOICE, AT(rule), .choices = bl_rule_names,
     .help = "score under this rule instead of the one the plan was made for"},
    {"dispatch", 0, BL_OPT_CHOICE, AT(dispatch), .choices = bl_dispatch_names,
     .help = "how tokens travel to experts"},
    {"combine", 0, BL_OPT_CHOICE, AT(combine), .choices = bl_combine_names,
     .help = "how results travel back"},
    {"baseline", 0, BL_OPT_STRING, AT(baseline), .metavar = "PLAN|contiguous|greedy",
     .help = "what would serve otherwise, the \"before\" of the page"},
    {"model", 0, BL_OPT_STRING, AT(model), .metavar = "M",
     .help = "config.json or model.json, for plans that do not know their model's sizes"},
    {"dwell", 0, BL_OPT_REAL, AT(dwell), .metavar = "STEPS", .min = 1, .max = 1e15,
     .help = "steps that a plan serves before the next one"},
    {"tokens-per-rank", 0, BL_OPT_REAL, AT(tokens_per_rank), .metavar = "N", .min = 0, .max = 1e9,
     .help = "model times as if every step had so many tokens on each rank; 0: its own"},
    {"overlap", 0, BL_OPT_FLAG, AT(overlap),
     .help = "two micro-batches: communication runs beside attention and experts"},
    {"strict", 0, BL_OPT_FLAG, AT(strict),
     .help = "refuse a trace that names another model than the plan does"},
    {"seed", 0, BL_OPT_INT, AT(seed), .metavar = "N", .min = 0, .max = 1e15,
     .help = "seed of the bootstrap"},
    {"output", 'o', BL_OPT_STRING, offsetof(report_options, output), .metavar = "OUT.html",
     .required = true, .help = "where to write the page"},
    {0}};

static void set_defaults(void *options) {
    bl_replay_defaults(&((report_options *)options)->request);
}

static bl_status check_output(const report_options *o, int n, char **paths, bl_error *err) {
    const char *const files[] = {o->request.topology, o->request.model, o->request.baseline};
    BL_TRY(bl_check_output(o->output, files, 3, err));
    BL_TRY(bl_check_output(o->output, o->request.traces.items, o->request.traces.n, err));
    return bl_check_output(o->output, (const char *const *)paths, n, err);
}

static bl_status write_page(const report_options *o, const bl_report *report, bl_error *err) {
    bl_file file;
    BL_TRY(bl_file_create(&file, o->output, err));
    const bl_status st = bl_report_write(report, file.stream, err);
    if (st < 0) {
        bl_file_discard(&file);
        return st;
    }
    return bl_file_commit(&file, err);
}

static bl_status run(void *options, int n_args, char **args, bl_error *err) {
    const report_options *o = options;
    bl_replay_inputs in = {0};
    bl_replay_answer answer = {0};
    bl_status st = check_output(o, n_args, args, err);
    if (st >= 0)
        st = bl_replay_inputs_open(&o->request, n_args, args, &in, err);
    if (st >= 0)
        st = bl_replay_answer_make(&o->request, &in, args, &answer, err);
    if (st >= 0) {
        const bl_report report = {&o->request, &in, &answer, args};
        st = write_page(o, &report, err);
    }
    if (st >= 0)
        fprintf(stderr, "wrote %s; %s: %s\n", o->output, args[answer.all.best],
                bl_verdict_names[answer.all.verdict]);
    bl_replay_answer_free(&answer);
    bl_replay_inputs_free(&in);
    return st;
}

const bl_verb bl_verb_report = {
    .name = "report",
    .arguments = "PLAN...",
    .summary = "draw plans on a trace as one HTML page",
    .details =
        "The page is one file without scripts or outside resources, to be looked at, mailed and "
        "kept: the verdict and what to do next, plans side by side as ballast replay scores them, "
        "imbalance step by step, heat maps layer by rank before and after, the gap to the bound by "
        "layer, memory against KV cache, the migration, and traffic by domain. Times are modelled "
        "and say so. At most "
        "4 plans are drawn; the table names all.",
    .options = OPTIONS,
    .options_bytes = sizeof(report_options),
    .set_defaults = set_defaults,
    .min_args = 1,
    .max_args = -1,
    .run = run,
};
