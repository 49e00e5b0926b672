/*
 * ballast drain: no moves while weights are reloaded.
 */
#include "cli/operator.h"
#include "cli/verbs.h"

#include "core/progress.h"

#include <stdio.h>

typedef struct drain_options {
    const char *socket;
    bool release, json;
} drain_options;

static const bl_opt OPTIONS[] = {
    {"socket", 0, BL_OPT_STRING, offsetof(drain_options, socket), .metavar = "PATH",
     .help = "the cluster's control socket"},
    {"release", 0, BL_OPT_FLAG, offsetof(drain_options, release), .help = "moves may start again"},
    {"json", 0, BL_OPT_FLAG, offsetof(drain_options, json),
     .help = "answer in JSON, with the map in force"},
    {0}};

static bl_status ask(const drain_options *o, bl_control_client *client, json_t **answer,
                     bl_error *err) {
    json_t *request = json_pack("{s:s, s:b}", "op", "drain", "release", (int)o->release);
    static const char waits_no_more[] = "no longer waiting; no move starts until --release";
    bl_status st;
    for (;;) {
        bl_error why = BL_ERROR_INIT;
        st = bl_control_ask(client, request, BL_OPERATOR_WAIT_S, answer, &why);
        if (st == BL_ERR_ABORTED && bl_interrupted())
            bl_fail(err, st, "%s", waits_no_more);
        else if (st < 0 && err != NULL)
            *err = why;
        if (st < 0 || o->release || !json_is_true(json_object_get(*answer, "busy")))
            break;
        json_decref(*answer);
        *answer = NULL;
        if (bl_interrupted()) {
            st = bl_fail(err, BL_ERR_ABORTED, "%s", waits_no_more);
            break;
        }
    }
    json_decref(request);
    return st;
}

static bl_status run(void *options, int n_args, char **args, bl_error *err) {
    const drain_options *o = options;
    bl_control_client client = {.fd = -1};
    json_t *answer = NULL;
    (void)n_args, (void)args;
    bl_interrupts_install();
    bl_status st = bl_operator_connect(o->socket, &client, err);
    if (st >= 0)
        st = ask(o, &client, &answer, err);
    bl_control_disconnect(&client);
    if (st >= 0 && o->json)
        st = bl_json_write("-", answer, 0, err);
    else if (st >= 0)
        printf("%s, epoch %lld\n", o->release ? "released" : "drained",
               (long long)json_integer_value(json_object_get(answer, "epoch")));
    json_decref(answer);
    return st;
}

const bl_verb bl_verb_drain = {
    .name = "drain",
    .arguments = "",
    .summary = "let a running cluster start no more moves, and wait for the one under way",
    .details =
        "For whoever reloads weights (RL): until ballast drain --release the map that --json "
        "prints stays the one in force. Serving goes on.",
    .options = OPTIONS,
    .options_bytes = sizeof(drain_options),
    .min_args = 0,
    .max_args = 0,
    .run = run,
};
