/*
 * ballast rebalance: watch a running cluster and move its experts when that pays.
 */
#include "cli/controller.h"
#include "cli/verbs.h"

typedef struct rebalance_options {
    const char *socket;
    bool automatic, quiet;
    double dwell_s, rest_s, margin, trigger, wait_s;
    int64_t windows, history, max_moves, moves;
} rebalance_options;

#define AT(field) offsetof(rebalance_options, field)
static const bl_opt OPTIONS[] = {
    {"auto", 0, BL_OPT_FLAG, AT(automatic), .required = true,
     .help = "go on by itself until the cluster ends"},
    {"socket", 0, BL_OPT_STRING, AT(socket), .metavar = "PATH",
     .help = "the cluster's control socket"},
    {"dwell", 0, BL_OPT_DURATION, AT(dwell_s), .metavar = "SECONDS", .min = 1e-3, .max = 1e9,
     .help = "for how long a plan is expected to stay good, at most"},
    {"margin", 0, BL_OPT_REAL, AT(margin), .metavar = "X", .min = 1, .max = 1e6,
     .help = "move when the gain exceeds the cost this many times"},
    {"trigger", 0, BL_OPT_REAL, AT(trigger), .metavar = "X", .min = 1, .max = 1e6,
     .help = "leave things alone below this imbalance (max/mean over ranks)"},
    {"windows", 0, BL_OPT_INT, AT(windows), .metavar = "N", .min = 1, .max = 1000,
     .help = "windows of load in a row over the trigger before anything is planned"},
    {"history", 0, BL_OPT_INT, AT(history), .metavar = "N", .min = 1, .max = 64,
     .help = "windows that a plan is made from"},
    {"rest", 0, BL_OPT_DURATION, AT(rest_s), .metavar = "SECONDS", .min = 0, .max = 1e9,
     .help = "between two moves at least"},
    {"max-moves", 0, BL_OPT_INT, AT(max_moves), .metavar = "N", .min = 0, .max = 1e12,
     .help = "copies that one plan may move"},
    {"moves", 0, BL_OPT_INT, AT(moves), .metavar = "N", .min = 0, .max = 1e9,
     .help = "end after N moves; 0: go on"},
    {"wait", 0, BL_OPT_DURATION, AT(wait_s), .metavar = "SECONDS", .min = 0, .max = 1e6,
     .help = "for a cluster that is still starting"},
    {"quiet", 'q', BL_OPT_FLAG, AT(quiet), .help = "print moves and what came of them only"},
    {0}};

static void set_defaults(void *options) {
    const bl_policy_options policy = BL_POLICY_OPTIONS_INIT;
    rebalance_options *o = options;
    o->dwell_s = policy.dwell_s;
    o->rest_s = policy.rest_s;
    o->margin = policy.margin;
    o->trigger = policy.trigger;
    o->windows = policy.min_windows;
    o->history = 4;
    o->max_moves = -1;
}

static bl_status run(void *options, int n_args, char **args, bl_error *err) {
    const rebalance_options *o = options;
    bl_controller_options controller = BL_CONTROLLER_OPTIONS_INIT;
    atomic_bool stop = false;
    (void)n_args, (void)args;
    controller.socket = o->socket;
    controller.policy.dwell_s = o->dwell_s;
    controller.policy.rest_s = o->rest_s;
    controller.policy.margin = o->margin;
    controller.policy.trigger = o->trigger;
    controller.policy.min_windows = (int)o->windows;
    controller.history = (int)o->history;
    controller.max_moves = o->max_moves;
    controller.n_moves = (int)o->moves;
    controller.patience_s = o->wait_s;
    controller.quiet = o->quiet;
    controller.out = stdout;
    bl_interrupts_install();
    return bl_controller_run(&controller, &stop, err);
}

const bl_verb bl_verb_rebalance = {
    .name = "rebalance",
    .arguments = "--auto",
    .summary = "watch a running cluster and move its experts when that pays",
    .details =
        "Looks at every window of the cluster's live load (ballast run --window), plans when the "
        "imbalance stays over the trigger, and moves when what the plan saves over --dwell exceeds "
        "what the move costs by --margin. Bursts that are shorter than a move, imbalance that "
        "chance explains, and gains that did not come true before are left alone. After a move the "
        "realised imbalance is printed beside the predicted one; a move that turned out markedly "
        "worse is taken back.\n\n"
        "Prints one line per decision, with its figures. Ends with the cluster, or by Ctrl-C, "
        "which leaves the cluster as it is.",
    .options = OPTIONS,
    .options_bytes = sizeof(rebalance_options),
    .set_defaults = set_defaults,
    .min_args = 0,
    .max_args = 0,
    .run = run,
};
