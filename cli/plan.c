/*
 * ballast plan: from recorded routing to a placement with a proven gap.
 */
#include "cli/plan_inputs.h"
#include "cli/plan_phases.h"
#include "cli/plan_print.h"
#include "cli/verbs.h"

#include <unistd.h>

#define AT(field) offsetof(bl_plan_options, field)
static const bl_opt OPTIONS[] = {
    {"trace", 0, BL_OPT_LIST, AT(traces), .metavar = "TRACE",
     .help = "recorded routing to plan on; may be given again, and as arguments"},
    {"model", 0, BL_OPT_STRING, AT(model), .metavar = "M", .required = true,
     .help = "config.json or model.json of the model"},
    {"topology", 0, BL_OPT_STRING, AT(topology), .metavar = "T",
     .help = "catalogue name (hgx-h100:nodes=4) or file; gives the number of ranks"},
    {"ranks", 0, BL_OPT_INT, AT(ranks), .metavar = "G", .min = 1, .max = BL_MAX_RANKS,
     .help = "ranks to place experts on; the topology's first G"},
    {"slots", 0, BL_OPT_INT, AT(slots), .metavar = "S", .min = 1, .max = 1 << 24,
     .help = "expert slots per MoE layer, over all ranks"},
    {"redundant", 0, BL_OPT_STRING, AT(redundant), .metavar = "R|auto",
     .help = "slots beyond one per expert; auto: the fewest, but at least one, that all ranks "
             "share evenly"},
    {"replica-budget", 0, BL_OPT_STRING, AT(replica_budget), .metavar = "SLOTS|BYTES|Ntok",
     .help = "memory per rank for copies, over all layers, shared out where it gains most: slots, "
             "bytes (6G) or tokens of KV cache (20000tok); layers then differ in slots"},
    {"slots-per-rank", 0, BL_OPT_STRING, AT(slots_per_rank), .metavar = "LIST",
     .help = "slots of each rank: 9,9,8,..."},
    {"mask", 0, BL_OPT_STRING, AT(mask), .metavar = "RANKS",
     .help = "ranks that hold nothing: 2,5-7; their slots are lost"},
    {"rule", 0, BL_OPT_CHOICE, AT(rule), .choices = bl_rule_names,
     .help = "how the engine shares an expert's tokens among its copies"},
    {"dispatch", 0, BL_OPT_CHOICE, AT(dispatch), .choices = bl_dispatch_names,
     .help =
         "how the engine sends tokens to experts: each row, once per rank, once per node, or every "
         "token to every rank"},
    {"combine", 0, BL_OPT_CHOICE, AT(combine), .choices = bl_combine_names,
     .help = "how it brings results back"},
    {"phase", 0, BL_OPT_CHOICE, AT(phase), .choices = bl_phase_choices,
     .help = "plan on this phase only; all: one plan for all of them is meant"},
    {"steps", 0, BL_OPT_RANGE, AT(steps), .metavar = "A:B",
     .help = "plan on these steps only, 0-based and half-open"},
    {"objective", 0, BL_OPT_CHOICE, AT(objective), .choices = bl_objective_names,
     .help = "level token rows, or minimise the modelled time of a step (needs --topology)"},
    {"tokens-per-rank", 0, BL_OPT_REAL, AT(tokens_per_rank), .metavar = "N", .min = 0, .max = 1e9,
     .help = "model times for so many tokens on each rank in a step; 0: as many as the trace has"},
    {"overlap", 0, BL_OPT_FLAG, AT(overlap),
     .help = "two micro-batches: communication runs beside attention and experts"},
    {"over", 0, BL_OPT_STRING, AT(over), .metavar = "mean|p95|cvar:A|sample",
     .help = "what counts over steps: their mean, the worst twentieth, the worst 1 - A; sample: no "
             "more than the steps given"},
    {"half-life", 0, BL_OPT_REAL, AT(half_life), .metavar = "STEPS", .min = 0, .max = 1e12,
     .help = "older steps count less: half after so many; 0: all alike"},
    {"algorithm", 0, BL_OPT_CHOICE, AT(algorithm), .choices = bl_algorithm_names,
     .help = "how to look for the placement"},
    {"current", 0, BL_OPT_STRING, AT(current), .metavar = "FILE",
     .help = "the placement in force (a plan, or an engine's file): move as little as is worth it"},
    {"max-moves", 0, BL_OPT_INT, AT(max_moves), .metavar = "N", .min = 0, .max = 1e12,
     .help = "copies that may travel from the current placement, over all layers"},
    {"max-bytes", 0, BL_OPT_BYTES, AT(max_bytes), .metavar = "B",
     .help = "the same as bytes of experts"},
    {"spares", 0, BL_OPT_INT, AT(spares), .metavar = "N", .min = 0, .max = 1 << 20,
     .help = "buffers per rank that stay free for moves; they are paid for in KV cache"},
    {"keep-groups", 0, BL_OPT_FLAG, AT(keep_groups),
     .help = "keep each of the model's groups of experts whole on one node"},
    {"node", 0, BL_OPT_STRING, AT(node), .metavar = "host|LEVEL",
     .help = "what a node is, for groups: a host or a domain of the topology's level (nvlink)"},
    {"min-copies", 0, BL_OPT_INT, AT(min_copies), .metavar = "N", .min = 1, .max = BL_MOST_DOMAINS,
     .help = "every expert has copies in at least so many fault domains"},
    {"min-copies-for", 0, BL_OPT_INT, AT(guarded), .metavar = "N", .min = 0, .max = 1 << 24,
     .help = "only the N hottest experts of a layer; 0: all"},
    {"fault-domain", 0, BL_OPT_STRING, AT(fault_domain), .metavar = "rank|host|LEVEL",
     .help = "what fails together"},
    {"min-gain", 0, BL_OPT_REAL, AT(min_gain), .metavar = "X", .min = 0, .max = 1,
     .help = "keep a layer's current placement unless it gains this fraction; by default 0.03, and "
             "0.005 from 4 scenarios on; a gain once declined must grow by half of that"},
    {"time", 0, BL_OPT_DURATION, AT(time_s), .metavar = "SECONDS", .min = 1e-3, .max = 1e6,
     .help = "stop by the clock, for all layers together; the plan is then not reproducible"},
    {"seed", 0, BL_OPT_INT, AT(seed), .metavar = "N", .min = 0, .max = 1e15,
     .help = "seed of the search; the same seed gives the same plan"},
    {"threads", 0, BL_OPT_INT, AT(threads), .metavar = "N", .min = 1, .max = 64,
     .help = "threads that share the layers"},
    {"explain", 0, BL_OPT_FLAG, AT(explain),
     .help = "say what each phase and GLPK did, which bound binds, and what decided, by layer"},
    {"strict", 0, BL_OPT_FLAG, AT(strict),
     .help = "refuse a trace that lacks layers, instead of leaving them where they are, or that "
             "names another model"},
    {"output", 'o', BL_OPT_STRING, AT(output), .metavar = "PLAN", .required = true,
     .help = "where to write the plan"},
    {"json", 0, BL_OPT_FLAG, AT(json), .help = "print the summary as JSON on standard output"},
    {0}};

static void set_defaults(void *options) {
    bl_plan_options *o = options;
    const long online = sysconf(_SC_NPROCESSORS_ONLN);
    o->slots = o->max_moves = o->max_bytes = -1;
    o->min_copies = 1;
    o->node = "host";
    o->fault_domain = "rank";
    o->seed = 1;
    o->min_gain = -1.0;
    o->over = "mean";
    o->threads = online < 1 ? 1 : online > 64 ? 64 : online;
    o->phase = -1;
    o->steps.end = INT64_MAX;
}

static bl_status make_plan(const bl_plan_options *o, const bl_plan_inputs *in, bl_error *err) {
    bl_planning_options options = BL_PLANNING_OPTIONS_INIT;
    options.capacity = in->capacity;
    options.n_ranks = in->n_ranks;
    options.rule = (bl_rule)o->rule;
    options.solve.algorithm = (bl_algorithm)o->algorithm;
    options.solve.seed = (uint64_t)o->seed;
    options.solve.time_s = o->time_s;
    options.current = in->has_current ? &in->current : NULL;
    options.max_moves = o->max_moves;
    options.max_bytes = o->max_bytes;
    options.spares = (int)o->spares;
    options.replica_budget = in->replica_budget;
    options.keep_groups = o->keep_groups;
    options.node = in->node;
    options.min_copies = (int)o->min_copies;
    options.guarded = (int)o->guarded;
    options.domain = in->domain;
    options.min_gain = o->min_gain;
    options.half_life = o->half_life;
    options.objective = (bl_objective)o->objective;
    options.tokens_per_rank = o->tokens_per_rank;
    options.overlap = o->overlap;
    BL_TRY(bl_over_parse(o->over, &options.over, err));
    options.sites = in->loads.source_count != NULL ? &in->sites : NULL;
    options.dispatch = (bl_dispatch)o->dispatch;
    options.combine = (bl_dispatch)o->combine;
    options.n_threads = (int)o->threads;
    options.compare = true;
    options.strict = o->strict;
    options.explain = o->explain;
    options.first_step = o->steps.first;
    options.end_step = o->steps.end;
    options.phase = bl_phase_filter(o->phase) >= 0 ? bl_phase_names[o->phase] : NULL;
    bl_progress progress = bl_progress_stderr();
    progress.last_s = bl_now_s(); /* short work needs no progress */
    bl_planning_summary summary;
    bl_plan plan = {0};
    BL_TRY(bl_planning_run(&in->loads, &in->model, in->has_topology ? &in->topology : NULL,
                           &options, &progress, &plan, &summary, err));
    bl_status st = bl_plan_predict(o, in, &plan, err);
    if (st >= 0)
        st = bl_plan_save(&plan, o->output, err);
    if (st >= 0) {
        if (plan.rule == BL_RULE_LOCAL)
            bl_loads_tell_sample(&in->loads, "the trace", stderr);
        bl_plan_print_text(o, in, &plan, &summary);
        if (o->json)
            st = bl_plan_print_json(o, in, &plan, &summary, err);
    }
    json_decref(summary.explain);
    bl_plan_free(&plan);
    return st;
}

static bl_status run(void *options, int n_args, char **args, bl_error *err) {
    const bl_plan_options *o = options;
    bl_plan_inputs in = {0};
    bl_interrupts_install();
    bl_status st = bl_plan_inputs_open(o, n_args, args, &in, err);
    if (st >= 0)
        st = make_plan(o, &in, err);
    bl_plan_inputs_free(&in);
    return st;
}

const bl_verb bl_verb_plan = {
    .name = "plan",
    .arguments = "[TRACE...]",
    .summary = "compute where experts should live, and how far that is from the best possible",
    .details =
        "Every selected step of the trace is a scenario; long traces are cut into 64 blocks of "
        "steps. The plan minimises max/mean of token rows over the ranks, layer by layer, and is "
        "printed with a bound that no placement can beat. From 4 scenarios on they count as a "
        "sample of the traffic to come: --over names what counts over them, experts that scatter "
        "between alike scenarios are spread and copied first, and the plan gives up some balance "
        "on these very steps to keep more of it on others (--over sample does not).\n\n"
        "Level tokens are right for prefill. In decode a copy costs the reading of its weights "
        "whatever it serves: --objective time minimises the modelled time of a step, at "
        "--tokens-per-rank, and gap then refers to it. Times are modelled, from the figures of the "
        "topology, and told beside token balance wherever there is a topology.\n\n"
        "Prefill and decode are different traffic and want different plans: --phase selects one. A "
        "plan of several phases says what it makes of each; figures step by step, with "
        "percentiles, are kept in the plan file under \"predicted\".\n\n"
        "With --current the plan starts from the placement in force: a layer is left alone unless "
        "its balance improves by --min-gain, and an unchanged load moves nothing. FILE is a plan "
        "or "
        "what ballast export writes for any engine, told apart by its content.\n\n"
        "With several nodes, and a trace that tells on which rank tokens are born, a plan made "
        "from "
        "nothing gives up half a per cent of balance at most to keep rows between nodes few. The "
        "rule "
        "local chooses a token's copies together: own node, then as few others as possible.\n\n"
        "--keep-groups and --min-copies are rules that every plan keeps; the summary says what "
        "they "
        "cost against a plan without them. --replica-budget shares out the memory for copies where "
        "it gains most, layer by layer, instead of giving all layers the same --slots. --explain "
        "says what greedy, search and GLPK each made of a layer, and which bound binds.\n\n"
        "Ctrl-C ends the search and keeps the best plan so far.",
    .options = OPTIONS,
    .options_bytes = sizeof(bl_plan_options),
    .set_defaults = set_defaults,
    .min_args = 0,
    .max_args = -1,
    .run = run,
};
