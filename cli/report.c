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
static const bl_opt OPTIONS[] = {BL_REPLAY_OPTIONS(AT),
                                 {"output", 'o', BL_OPT_STRING, offsetof(report_options, output),
                                  .metavar = "OUT.html", .required = true,
                                  .help = "where to write the page"},
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
