/*
 * ballast apply: move a running cluster to a plan.
 */
#include "cli/operator.h"
#include "cli/verbs.h"
#include "core/progress.h"
#include "planner/plan.h"

#include <stdio.h>
#include <string.h>

typedef struct apply_options {
    const char *socket;
    bool dry_run, wait, json;
} apply_options;

static const bl_opt OPTIONS[] = {
    {"socket", 0, BL_OPT_STRING, offsetof(apply_options, socket), .metavar = "PATH",
     .help = "the cluster's control socket"},
    {"dry-run", 0, BL_OPT_FLAG, offsetof(apply_options, dry_run),
     .help = "show what would move, and move nothing"},
    {"wait", 0, BL_OPT_FLAG, offsetof(apply_options, wait),
     .help = "return when the move is over; fail when it was aborted"},
    {"json", 0, BL_OPT_FLAG, offsetof(apply_options, json), .help = "answer in JSON"},
    {0}};

/* The plan's object without what the cluster does not read. */
static json_t *request_of(const bl_plan *plan, bool dry_run) {
    json_t *root = bl_plan_to_json(plan);
    if (root == NULL)
        return NULL;
    json_object_del(root, "provenance");
    return json_pack("{s:s, s:o, s:b}", "op", "apply", "plan", root, "dry_run", (int)dry_run);
}

static long long number(const json_t *object, const char *key) {
    return (long long)json_integer_value(json_object_get(object, key));
}

static void print_schedule(const json_t *waves) {
    for (size_t w = 0; w < json_array_size(waves); w++) {
        const json_t *wave = json_array_get(waves, w), *moves = json_object_get(wave, "moves");
        printf("wave %zu, layer %lld:", w + 1, number(wave, "layer"));
        for (size_t m = 0; m < json_array_size(moves); m++) {
            const json_t *move = json_array_get(moves, m); /* [expert, from, to] */
            printf("%s %lld: %lld -> %lld", m > 0 ? "," : "",
                   (long long)json_integer_value(json_array_get(move, 0)),
                   (long long)json_integer_value(json_array_get(move, 1)),
                   (long long)json_integer_value(json_array_get(move, 2)));
        }
        putchar('\n');
    }
}

static void print_text(const json_t *answer, bool dry_run) {
    if (dry_run)
        print_schedule(json_object_get(answer, "schedule"));
    printf("%lld moves", number(answer, "moves"));
    if (number(answer, "waves") > 0)
        printf(" in %lld layers, %lld waves, %lld bytes, at least %lld steps",
               number(answer, "layers"), number(answer, "waves"), number(answer, "bytes"),
               number(answer, "steps"));
    puts(dry_run ? " (dry run)" : "");
}

/* Ask for the status until the move is over; `answer` becomes the last status. */
static bl_status wait_for_end(bl_control_client *client, json_t **answer, bl_error *err) {
    bl_progress progress = bl_progress_stderr();
    const long long wanted = number(*answer, "move");
    json_t *ask = json_pack("{s:s, s:b}", "op", "status", "wait", 1);
    bl_status st = BL_OK;
    for (bool over = false; st >= 0 && !over;) {
        json_t *status;
        st = bl_control_ask(client, ask, BL_OPERATOR_WAIT_S, &status, err);
        if (st < 0)
            break;
        json_decref(*answer);
        *answer = status;
        over = strcmp(bl_text_of(status, "outcome"), "running") != 0 ||
               number(status, "move") != wanted;
        bl_progress_line(&progress, "%s: %lld of %lld moves, wave %lld of %lld",
                         bl_text_of(status, "state"), number(status, "moves_done"),
                         number(status, "moves"), number(status, "waves_done"),
                         number(status, "waves"));
        if (bl_interrupted())
            st = bl_fail(err, BL_ERR_ABORTED, "no longer waiting; the move goes on");
    }
    json_decref(ask);
    bl_progress_end(&progress);
    if (st >= 0 && strcmp(bl_text_of(*answer, "outcome"), "aborted") == 0) {
        const char *partial = bl_text_of(*answer, "partial");
        st = bl_fail(err, BL_ERR_ABORTED, "aborted%s%s%s: %s", partial[0] ? ", partial " : "",
                     partial, partial[0] ? " layers" : "", bl_text_of(*answer, "reason"));
    }
    return st;
}

static bl_status apply(const apply_options *o, const bl_plan *plan, bl_control_client *client,
                       bl_error *err) {
    json_t *request = request_of(plan, o->dry_run), *answer = NULL;
    if (request == NULL)
        return bl_fail(err, BL_ERR_NOMEM, "out of memory");
    bl_status st = bl_control_ask(client, request, BL_OPERATOR_WAIT_S, &answer, err);
    json_decref(request);
    BL_TRY(st);
    const bool waits = o->wait && number(answer, "move") > 0;
    if (!o->json)
        print_text(answer, o->dry_run);
    if (waits) {
        bl_interrupts_install();
        fflush(stdout);
        st = wait_for_end(client, &answer, err);
    }
    if (st >= 0 && o->json)
        st = bl_json_write("-", answer, 0, err);
    json_decref(answer);
    return st;
}

static bl_status run(void *options, int n_args, char **args, bl_error *err) {
    const apply_options *o = options;
    bl_control_client client = {.fd = -1};
    bl_plan plan = {0};
    (void)n_args;
    bl_status st = bl_plan_load(args[0], &plan, err);
    if (st >= 0)
        st = bl_operator_connect(o->socket, &client, err);
    if (st >= 0)
        st = apply(o, &plan, &client, err);
    bl_control_disconnect(&client);
    bl_plan_free(&plan);
    return st;
}

const bl_verb bl_verb_apply = {
    .name = "apply",
    .arguments = "PLAN",
    .summary = "move a running cluster to a plan while it serves",
    .details =
        "Experts move in waves, a layer at a time, into the spares that the ranks were started "
        "with (ballast run --spares). Each wave is verified on all ranks and takes effect on all "
        "of them at the same step. A plan that is in force already is 0 moves; a plan for other "
        "ranks, slots or another model is refused, and so is a stale one: made with --current "
        "from a placement that is no longer in force.\n\n"
        "Without --wait the answer says what has been started; ballast status says how it goes.",
    .options = OPTIONS,
    .options_bytes = sizeof(apply_options),
    .min_args = 1,
    .max_args = 1,
    .run = run,
};
