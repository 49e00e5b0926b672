/*
 * ballast abort: stop the move that is under way.
 */
#include "cli/operator.h"
#include "cli/verbs.h"

typedef struct abort_options {
    const char *socket;
    bool json;
} abort_options;

static const bl_opt OPTIONS[] = {
    {"socket", 0, BL_OPT_STRING, offsetof(abort_options, socket), .metavar = "PATH",
     .help = "the cluster's control socket"},
    {"json", 0, BL_OPT_FLAG, offsetof(abort_options, json), .help = "answer in JSON"},
    {0}};

static bl_status run(void *options, int n_args, char **args, bl_error *err) {
    const abort_options *o = options;
    json_t *answer;
    (void)n_args, (void)args;
    BL_TRY(bl_operator_ask(o->socket, "abort", &answer, err));
    const bl_status st = o->json ? bl_json_write("-", answer, 0, err) : BL_OK;
    json_decref(answer);
    return st;
}

const bl_verb bl_verb_abort = {
    .name = "abort",
    .arguments = "",
    .summary = "stop the move that is under way",
    .details = "Layers and waves that have been committed stay; what is being copied is dropped. "
               "The placement that results covers every expert.",
    .options = OPTIONS,
    .options_bytes = sizeof(abort_options),
    .min_args = 0,
    .max_args = 0,
    .run = run,
};
