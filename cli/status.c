/*
 * ballast status: where a running cluster's rebalance is.
 */
#include "cli/operator.h"
#include "cli/verbs.h"

#include <stdio.h>
#include <string.h>

typedef struct status_options {
    const char *socket;
    bool json;
} status_options;

static const bl_opt OPTIONS[] = {
    {"socket", 0, BL_OPT_STRING, offsetof(status_options, socket), .metavar = "PATH",
     .help = "the cluster's control socket"},
    {"json", 0, BL_OPT_FLAG, offsetof(status_options, json), .help = "answer in JSON"},
    {0}};

static long long number(const json_t *object, const char *key) {
    return (long long)json_integer_value(json_object_get(object, key));
}

static void print_pace(const json_t *s) {
    const json_t *eta = json_object_get(s, "eta_s"), *by = json_object_get(s, "by");
    printf("  pace    %.3g MB/s over %.3g s", json_number_value(json_object_get(s, "rate")) * 1e-6,
           json_number_value(json_object_get(s, "elapsed_s")));
    if (json_is_number(eta))
        printf(", %.3g s left", json_number_value(eta));
    printf("; longest step %.0f us\n", json_number_value(json_object_get(s, "longest_step_us")));
    if (json_is_object(by))
        printf("  by      user %lld, process %lld\n", number(by, "uid"), number(by, "pid"));
}

static void print_move(const json_t *s) {
    const char *outcome = bl_text_of(s, "outcome"), *partial = bl_text_of(s, "partial");
    if (strcmp(outcome, "none") == 0)
        return;
    printf("move %lld    %s", number(s, "move"), outcome);
    if (partial[0] != '\0')
        printf(", partial %s layers", partial);
    if (bl_text_of(s, "reason")[0] != '\0')
        printf(": %s", bl_text_of(s, "reason"));
    printf("\n  layers  %lld of %lld\n  waves   %lld of %lld\n  moves   %lld of %lld\n"
           "  bytes   %lld of %lld\n",
           number(s, "layers_done"), number(s, "layers"), number(s, "waves_done"),
           number(s, "waves"), number(s, "moves_done"), number(s, "moves"), number(s, "bytes_done"),
           number(s, "bytes"));
    print_pace(s);
}

static void print_imbalance(const json_t *imbalance) {
    static const char *const keys[] = {"before", "now", "predicted"};
    printf("imbalance");
    for (int i = 0; i < 3; i++) {
        const json_t *value = json_object_get(imbalance, keys[i]);
        if (json_is_number(value))
            printf(" %s %.3f", keys[i], json_number_value(value));
        else
            printf(" %s -", keys[i]);
    }
    putchar('\n');
}

static void print_lost(const json_t *lost) {
    if (json_array_size(lost) == 0)
        return;
    printf("lost     ");
    for (size_t i = 0; i < json_array_size(lost); i++)
        printf(" rank %lld", (long long)json_integer_value(json_array_get(lost, i)));
    putchar('\n');
}

static void print_text(const json_t *s) {
    const json_t *rank = json_object_get(s, "rank"), *layer = json_object_get(s, "layer");
    printf("state     %s", bl_text_of(s, "state"));
    if (json_is_integer(layer))
        printf(", layer %lld", (long long)json_integer_value(layer));
    if (json_is_true(json_object_get(s, "drained")))
        printf(", drained");
    printf("\nepoch     %lld\nstep      %lld\n", number(s, "epoch"), number(s, "step"));
    print_lost(json_object_get(s, "lost"));
    print_imbalance(json_object_get(s, "imbalance"));
    print_move(s);
    printf("rank %-4lld %lld bytes sent, %lld received, at most %lld in a step; longest pause %.0f "
           "us; %lld holds, longest %.0f us\n",
           number(rank, "number"), number(rank, "sent_bytes"), number(rank, "received_bytes"),
           number(rank, "max_step_bytes"), json_number_value(json_object_get(rank, "max_step_us")),
           number(rank, "holds"), json_number_value(json_object_get(rank, "max_hold_us")));
}

static bl_status run(void *options, int n_args, char **args, bl_error *err) {
    const status_options *o = options;
    json_t *answer;
    (void)n_args, (void)args;
    BL_TRY(bl_operator_ask(o->socket, "status", &answer, err));
    bl_status st = BL_OK;
    if (o->json)
        st = bl_json_write("-", answer, 0, err);
    else
        print_text(answer);
    json_decref(answer);
    return st;
}

const bl_verb bl_verb_status = {
    .name = "status",
    .arguments = "",
    .summary = "say where a running cluster's rebalance is",
    .options = OPTIONS,
    .options_bytes = sizeof(status_options),
    .min_args = 0,
    .max_args = 0,
    .run = run,
};
