/*
 * ballast replay: how plans would have done on steps they have not seen.
 */
#include "cli/replay_answer.h"
#include "cli/replay_print.h"
#include "cli/verbs.h"

#define AT(field) offsetof(bl_replay_request, field)
static const bl_opt OPTIONS[] = {
    BL_REPLAY_OPTIONS(AT), {"json", 0, BL_OPT_FLAG, AT(json), .help = "answer in JSON"}, {0}};

static void set_defaults(void *options) {
    bl_replay_defaults(options);
}

static void warn(const bl_replay *replay, const char *name) {
    if (!replay->modelled)
        fprintf(stderr,
                "%s does not know its model's sizes, so no time can be modelled; name the "
                "model with --model\n",
                name);
    else if (replay->n_steps < BL_REPLAY_MIN_STEPS)
        fprintf(stderr,
                "%zu steps that no plan was made from are too few for a verdict, %d are "
                "needed\n",
                replay->n_steps, BL_REPLAY_MIN_STEPS);
}

static bl_status run(void *options, int n_args, char **args, bl_error *err) {
    const bl_replay_request *o = options;
    bl_replay_inputs in = {0};
    bl_replay_answer answer = {0};
    bl_status st = bl_replay_inputs_open(o, n_args, args, &in, err);
    if (st >= 0)
        st = bl_replay_answer_make(o, &in, args, &answer, err);
    if (st >= 0) {
        warn(&answer.all, args[0]);
        if (o->json)
            st = bl_replay_print_json(o, &in, &answer, err);
        else
            bl_replay_print_text(o, &in, &answer);
    }
    bl_replay_answer_free(&answer);
    bl_replay_inputs_free(&in);
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
        "worth it when it does not; not enough evidence with fewer than 5 unseen steps.\n\n"
        "Prefill and decode are different traffic: where a trace holds several phases they are "
        "also "
        "scored each by itself, with how unevenly requests lay on their ranks, which no placement "
        "of experts changes. A plan made from a trace that was cut or incomplete is only scored on "
        "steps that --steps names, since the whole trace does not show which it has seen.",
    .options = OPTIONS,
    .options_bytes = sizeof(bl_replay_request),
    .set_defaults = set_defaults,
    .min_args = 1,
    .max_args = -1,
    .run = run,
};
