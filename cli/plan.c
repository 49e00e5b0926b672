/*
 * ballast plan: from recorded routing to a placement with a proven gap.
 */
#include "cli/verbs.h"
#include "core/io.h"
#include "planner/engines/current.h"
#include "planner/planning.h"
#include "tracer/trace.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct plan_options {
    bl_opt_list traces;
    const char *model, *topology, *redundant, *slots_per_rank, *mask, *current, *output, *over;
    int64_t ranks, slots, max_moves, seed, threads;
    int rule, algorithm, phase;
    bl_opt_range steps;
    double min_gain, time_s, half_life;
    bool strict, json;
} plan_options;

#define AT(field) offsetof(plan_options, field)
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
     .help = "slots beyond one per expert; auto: the fewest that all ranks share evenly"},
    {"slots-per-rank", 0, BL_OPT_STRING, AT(slots_per_rank), .metavar = "LIST",
     .help = "slots of each rank: 9,9,8,..."},
    {"mask", 0, BL_OPT_STRING, AT(mask), .metavar = "RANKS",
     .help = "ranks that hold nothing: 2,5-7; their slots are lost"},
    {"rule", 0, BL_OPT_CHOICE, AT(rule), .choices = bl_rule_names,
     .help = "how the engine shares an expert's tokens among its copies"},
    {"phase", 0, BL_OPT_CHOICE, AT(phase), .choices = bl_phase_names,
     .help = "plan on this phase only"},
    {"steps", 0, BL_OPT_RANGE, AT(steps), .metavar = "A:B",
     .help = "plan on these steps only, 0-based and half-open"},
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
    {"min-gain", 0, BL_OPT_REAL, AT(min_gain), .metavar = "X", .min = 0, .max = 1,
     .help = "keep a layer's current placement unless it gains this fraction; by default 0.03, and "
             "0.008 from 4 scenarios on"},
    {"time", 0, BL_OPT_DURATION, AT(time_s), .metavar = "SECONDS", .min = 1e-3, .max = 1e6,
     .help = "stop by the clock, for all layers together; the plan is then not reproducible"},
    {"seed", 0, BL_OPT_INT, AT(seed), .metavar = "N", .min = 0, .max = 1e15,
     .help = "seed of the search; the same seed gives the same plan"},
    {"threads", 0, BL_OPT_INT, AT(threads), .metavar = "N", .min = 1, .max = 64,
     .help = "threads that share the layers"},
    {"strict", 0, BL_OPT_FLAG, AT(strict),
     .help = "refuse a trace that lacks layers, instead of leaving them where they are"},
    {"output", 'o', BL_OPT_STRING, AT(output), .metavar = "PLAN", .required = true,
     .help = "where to write the plan"},
    {"json", 0, BL_OPT_FLAG, AT(json), .help = "print the summary as JSON on standard output"},
    {0}};

static void set_defaults(void *options) {
    plan_options *o = options;
    const long online = sysconf(_SC_NPROCESSORS_ONLN);
    o->slots = o->max_moves = -1;
    o->seed = 1;
    o->min_gain = -1.0;
    o->over = "mean";
    o->threads = online < 1 ? 1 : online > 64 ? 64 : online;
    o->phase = -1;
    o->steps.end = INT64_MAX;
}

/* Everything that is opened for one plan. */
typedef struct inputs {
    bl_model model;
    bl_topology topology;
    bool has_topology, has_current;
    int n_ranks;
    bl_plan current;
    bl_capacity capacity;
    bl_loads loads;
} inputs;

static void inputs_free(inputs *in) {
    bl_loads_free(&in->loads);
    bl_capacity_free(&in->capacity);
    bl_plan_free(&in->current);
    bl_topology_free(&in->topology);
    bl_model_free(&in->model);
}

/* ---- opening ----------------------------------------------------------------------------------*/

static bl_status check_options(const plan_options *o, bl_error *err) {
    if (o->rule == BL_RULE_NEAREST || o->rule == BL_RULE_FIXED)
        return bl_fail(
            err, BL_ERR_UNSUPPORTED,
            "rule %s is not planned for in this version; use even, fractions or per-step",
            bl_rule_names[o->rule]);
    if (o->topology == NULL && o->ranks == 0)
        return bl_fail(err, BL_ERR_USAGE, "name the cluster with --topology, or at least --ranks");
    if (o->max_moves >= 0 && o->current == NULL)
        return bl_fail(err, BL_ERR_USAGE,
                       "--max-moves counts moves from a placement: name it with --current");
    if (o->json && strcmp(o->output, "-") == 0)
        return bl_fail(err, BL_ERR_USAGE, "-o - and --json would both write to standard output");
    return BL_OK;
}

/* A plan may take the place of the plan it starts from; everything else read is kept. */
static bl_status check_output(const plan_options *o, int n_args, char **args, bl_error *err) {
    const char *const files[] = {o->model, o->topology};
    bl_plan current;
    BL_TRY(bl_check_output(o->output, files, 2, err));
    BL_TRY(bl_check_output(o->output, o->traces.items, o->traces.n, err));
    BL_TRY(bl_check_output(o->output, (const char *const *)args, n_args, err));
    if (bl_check_output(o->output, &o->current, 1, NULL) >= 0)
        return BL_OK;
    if (bl_plan_load(o->current, &current, NULL) < 0)
        return bl_check_output(o->output, &o->current, 1, err);
    bl_plan_free(&current);
    return BL_OK;
}

static bl_status open_cluster(const plan_options *o, inputs *in, bl_error *err) {
    in->n_ranks = (int)o->ranks;
    if (o->topology == NULL)
        return BL_OK;
    BL_TRY(bl_topology_open(o->topology, &in->topology, err));
    in->has_topology = true;
    if (o->ranks == 0)
        in->n_ranks = in->topology.n_ranks;
    if (in->n_ranks > in->topology.n_ranks)
        return bl_fail(err, BL_ERR_SHAPE, "topology %s has %d ranks, not %d", in->topology.name,
                       in->topology.n_ranks, in->n_ranks);
    return BL_OK;
}

static bl_status open_current(const plan_options *o, inputs *in, bl_error *err) {
    int duplicates;
    if (o->current == NULL)
        return BL_OK;
    BL_TRY(bl_current_load(o->current, &in->model, in->n_ranks, &in->current, &duplicates, err));
    in->has_current = true;
    if (duplicates > 0)
        fprintf(stderr, "%s: %d slots hold a second copy on the same rank; they count as free\n",
                o->current, duplicates);
    return BL_OK;
}

static bl_status parse_redundant(const char *text, bl_capacity_request *request, bl_error *err) {
    if (text == NULL)
        return BL_OK;
    request->redundant_auto = strcmp(text, "auto") == 0;
    if (request->redundant_auto)
        return BL_OK;
    int *values = NULL, n = 0;
    if (bl_parse_counts(text, "--redundant", &values, &n, NULL) < 0 || n != 1) {
        free(values);
        return bl_fail(err, BL_ERR_USAGE,
                       "--redundant takes one number from 0 up or auto, not \"%s\"", text);
    }
    request->redundant = values[0];
    free(values);
    return BL_OK;
}

/* Without any option about slots, those of the current placement. */
static bl_status slots_of_current(const inputs *in, int **list_p, bl_error *err) {
    const bl_layer_placement *layer = &in->current.placement.layers[0];
    if (layer->n_ranks != in->n_ranks)
        return bl_fail(err, BL_ERR_SHAPE, "the current placement is for %d ranks, not for %d",
                       layer->n_ranks, in->n_ranks);
    *list_p = calloc((size_t)in->n_ranks, sizeof **list_p);
    if (*list_p == NULL)
        return bl_fail(err, BL_ERR_NOMEM, "out of memory");
    for (int rank = 0; rank < in->n_ranks; rank++)
        (*list_p)[rank] = layer->begin[rank + 1] - layer->begin[rank];
    return BL_OK;
}

static bl_status size_slots(const plan_options *o, inputs *in, bl_error *err) {
    bl_capacity_request request = {.n_experts = in->model.n_experts,
                                   .n_ranks = in->n_ranks,
                                   .slots = o->slots,
                                   .redundant = -1};
    int *list = NULL, n_list = in->n_ranks;
    bl_status st = parse_redundant(o->redundant, &request, err);
    bool *masked = calloc((size_t)in->n_ranks, sizeof *masked);
    if (st >= 0 && masked == NULL)
        st = bl_fail(err, BL_ERR_NOMEM, "out of memory");
    if (st >= 0 && o->mask != NULL)
        st = bl_parse_marks(o->mask, "--mask", masked, in->n_ranks, err);
    if (st >= 0 && o->slots_per_rank != NULL)
        st = bl_parse_counts(o->slots_per_rank, "--slots-per-rank", &list, &n_list, err);
    else if (st >= 0 && in->has_current && o->slots < 0 && o->redundant == NULL)
        st = slots_of_current(in, &list, err);
    request.list = list;
    request.n_list = n_list;
    request.masked = masked;
    if (st >= 0)
        st = bl_capacity_of(&request, &in->capacity, err);
    free(list);
    free(masked);
    if (st >= 0 && in->capacity.uneven)
        fprintf(
            stderr,
            "%d slots do not divide over %d ranks: some hold %d, others %d; --redundant %d makes "
            "them equal, as some engines need\n",
            in->capacity.n_slots, in->n_ranks, in->capacity.slots_per_rank[0],
            in->capacity.slots_per_rank[in->n_ranks - 1], in->capacity.even_redundant);
    return st;
}

static bl_status open_trace(const plan_options *o, int n_args, char **args, inputs *in,
                            bl_error *err) {
    bl_opt_list paths = o->traces;
    if (paths.n + n_args > BL_OPT_LIST_MAX)
        return bl_fail(err, BL_ERR_USAGE, "more than %d traces", BL_OPT_LIST_MAX);
    for (int i = 0; i < n_args; i++)
        paths.items[paths.n++] = args[i];
    if (paths.n == 0)
        return bl_fail(err, BL_ERR_USAGE, "name the trace to plan on with --trace");
    bl_loads_options options = BL_LOADS_OPTIONS_INIT;
    options.phase = o->phase;
    options.first_step = o->steps.first;
    options.end_step = o->steps.end;
    BL_TRY(bl_loads_read(paths.items, paths.n, &in->model, &options, &in->loads, err));
    bl_loads_tell(&in->loads, paths.items[0], in->model.name, o->steps.first, o->steps.end, stderr);
    return BL_OK;
}

static bl_status open_inputs(const plan_options *o, int n_args, char **args, inputs *in,
                             bl_error *err) {
    BL_TRY(check_options(o, err));
    BL_TRY(check_output(o, n_args, args, err));
    BL_TRY(bl_model_load(o->model, &in->model, err));
    BL_TRY(open_cluster(o, in, err));
    BL_TRY(open_current(o, in, err));
    BL_TRY(size_slots(o, in, err));
    return open_trace(o, n_args, args, in, err);
}

/* ---- telling ----------------------------------------------------------------------------------*/

static int largest_rank(const bl_capacity *capacity, int n_ranks) {
    int most = 0;
    for (int rank = 0; rank < n_ranks; rank++)
        most = capacity->slots_per_rank[rank] > most ? capacity->slots_per_rank[rank] : most;
    return most;
}

static void warn_layers(const bl_planning_summary *s, const bl_plan *plan) {
    if (s->n_idle == 0)
        return;
    const json_t *idle = json_object_get(plan->provenance, "idle_layers");
    const json_t *missing = json_object_get(plan->provenance, "missing_layers");
    const json_t *first = json_array_get(s->n_missing > 0 ? missing : idle, 0);
    fprintf(
        stderr,
        "%d of %d MoE layers have no load in the trace (layer %lld%s) and keep their placement; "
        "--strict refuses that\n",
        s->n_idle, s->n_layers, (long long)json_integer_value(first),
        s->n_idle > 1 ? " and others" : "");
}

static void print_figure(const char *name, const bl_planning_figure *f) {
    fprintf(stderr, "  %-18s %8.4f   %8.4f (layer %d)\n", name, f->mean, f->worst, f->worst_layer);
}

static void print_summary(const plan_options *o, const inputs *in, const bl_plan *plan,
                          const bl_planning_summary *s) {
    const char *before = s->current_given ? "current placement" : "start layout";
    fprintf(stderr, "%d layers of %d experts on %d ranks, %d slots, from %zu step%s", s->n_layers,
            in->model.n_experts, in->n_ranks, in->capacity.n_slots, s->n_steps,
            s->n_steps == 1 ? "" : "s");
    if (s->steps_per_scenario > 1)
        fprintf(stderr, " in blocks of %zu", s->steps_per_scenario);
    fprintf(stderr, "\n  %-18s %8s   %8s\n", "max/mean", "mean", "worst");
    print_figure(before, &s->before);
    print_figure("greedy", &s->greedy);
    print_figure("this plan", &s->score);
    fprintf(stderr, "  %-18s %8.4f\n", "bound", s->bound.mean);
    fprintf(stderr, "  %-18s %7.3f%%   %7.3f%% (layer %d); optimum proven in %d layers\n", "gap",
            100.0 * s->gap.mean, 100.0 * s->gap.worst, s->gap.worst_layer, s->n_proven);
    fprintf(stderr, "  %-18s %lld from the %s (%.1f per layer)\n", "moves", (long long)s->moves,
            before, (double)s->moves / s->n_layers);
    fprintf(stderr, "  %-18s %lld per layer", "extra copies", (long long)s->replicas);
    if (s->replica_bytes > 0)
        fprintf(stderr, ", %.3g GB in all, %.3g of %.3g GB on a rank",
                1e-9 * (double)s->replica_bytes, 1e-9 * (double)s->rank_bytes,
                1e-9 * (double)s->resident_bytes);
    if (s->kv_tokens_lost >= 1.0)
        fprintf(stderr, ": KV cache of %.0f tokens", s->kv_tokens_lost);
    fputc('\n', stderr);
    const double gain = 1.0 - s->score.mean / s->before.mean;
    if (gain <= 0.01)
        fprintf(stderr, "  the gain over the %s is %.2f %% (at most 1 %%): hardly worth a change\n",
                before, 100.0 * (gain > 0.0 ? gain : 0.0));
    if (s->stopped)
        fprintf(stderr, "  stopped early: this is the best so far\n");
    fprintf(stderr, "wrote %s, digest %s\n", o->output, plan->digest.hex);
}

/* Does what a rank must hold fit into what its device has for experts? */
static void warn_memory(const inputs *in, const bl_planning_summary *s) {
    for (int rank = 0; in->has_topology && rank < in->n_ranks; rank++) {
        const bl_device *device = bl_topology_device(&in->topology, rank);
        const double room = device->memory_bytes.value * device->expert_share.value;
        const double held = (double)s->resident_bytes * in->capacity.slots_per_rank[rank] /
                            largest_rank(&in->capacity, in->n_ranks);
        if (held <= room)
            continue;
        fprintf(stderr,
                "rank %d would hold %.3g GB of experts, but %s has about %.3g GB for them (%s)\n",
                rank, 1e-9 * held, device->name, 1e-9 * room,
                bl_figure_source_name(device->expert_share.source));
        return;
    }
}

static json_t *figure_to_json(const bl_planning_figure *f) {
    return json_pack("{s:f, s:f, s:i}", "mean", f->mean, "worst", f->worst, "worst_layer",
                     f->worst_layer);
}

static bl_status print_json(const plan_options *o, const inputs *in, const bl_plan *plan,
                            const bl_planning_summary *s, bl_error *err) {
    json_t *root =
        json_pack("{s:s, s:s, s:i, s:i, s:i, s:i, s:I, s:I, s:i, s:i, s:b}", "plan", o->output,
                  "digest", plan->digest.hex, "layers", s->n_layers, "experts", in->model.n_experts,
                  "ranks", in->n_ranks, "slots", in->capacity.n_slots, "steps",
                  (json_int_t)s->n_steps, "steps_per_scenario", (json_int_t)s->steps_per_scenario,
                  "idle_layers", s->n_idle, "missing_layers", s->n_missing, "stopped", s->stopped);
    json_object_set_new(root, "before_is",
                        json_string(s->current_given ? "current" : "contiguous"));
    json_object_set_new(root, "before", figure_to_json(&s->before));
    json_object_set_new(root, "greedy", figure_to_json(&s->greedy));
    json_object_set_new(root, "score", figure_to_json(&s->score));
    json_object_set_new(root, "bound", figure_to_json(&s->bound));
    json_object_set_new(root, "gap", figure_to_json(&s->gap));
    json_object_set_new(root, "proven_layers", json_integer(s->n_proven));
    json_object_set_new(root, "moves", json_integer((json_int_t)s->moves));
    json_object_set_new(root, "replicas", json_integer((json_int_t)s->replicas));
    json_object_set_new(root, "replica_bytes", json_integer((json_int_t)s->replica_bytes));
    json_object_set_new(root, "resident_bytes", json_integer((json_int_t)s->resident_bytes));
    json_object_set_new(root, "rank_bytes", json_integer((json_int_t)s->rank_bytes));
    json_object_set_new(root, "kv_tokens_lost", json_real(s->kv_tokens_lost));
    const bl_status st = root != NULL ? bl_json_write("-", root, 2, err)
                                      : bl_fail(err, BL_ERR_NOMEM, "out of memory");
    json_decref(root);
    return st;
}

/* ---- the verb ---------------------------------------------------------------------------------*/

static bl_status make_plan(const plan_options *o, const inputs *in, bl_error *err) {
    bl_planning_options options = BL_PLANNING_OPTIONS_INIT;
    options.capacity = in->capacity;
    options.n_ranks = in->n_ranks;
    options.rule = (bl_rule)o->rule;
    options.solve.algorithm = (bl_algorithm)o->algorithm;
    options.solve.seed = (uint64_t)o->seed;
    options.solve.time_s = o->time_s;
    options.current = in->has_current ? &in->current : NULL;
    options.max_moves = o->max_moves;
    options.min_gain = o->min_gain;
    options.half_life = o->half_life;
    BL_TRY(bl_over_parse(o->over, &options.over, err));
    options.n_threads = (int)o->threads;
    options.compare = true;
    options.strict = o->strict;
    options.first_step = o->steps.first;
    options.end_step = o->steps.end;
    options.phase = o->phase >= 0 ? bl_phase_names[o->phase] : NULL;
    bl_progress progress = bl_progress_stderr();
    progress.last_s = bl_now_s(); /* short work needs no progress */
    bl_planning_summary summary;
    bl_plan plan = {0};
    BL_TRY(bl_planning_run(&in->loads, &in->model, in->has_topology ? &in->topology : NULL,
                           &options, &progress, &plan, &summary, err));
    bl_status st = bl_plan_save(&plan, o->output, err);
    if (st >= 0) {
        warn_layers(&summary, &plan);
        warn_memory(in, &summary);
        print_summary(o, in, &plan, &summary);
        if (o->json)
            st = print_json(o, in, &plan, &summary, err);
    }
    bl_plan_free(&plan);
    return st;
}

static bl_status run(void *options, int n_args, char **args, bl_error *err) {
    const plan_options *o = options;
    inputs in = {0};
    bl_interrupts_install();
    bl_status st = open_inputs(o, n_args, args, &in, err);
    if (st >= 0)
        st = make_plan(o, &in, err);
    inputs_free(&in);
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
        "With --current the plan starts from the placement in force: a layer is left alone unless "
        "its balance improves by --min-gain, and an unchanged load moves nothing. FILE is a plan "
        "or "
        "what ballast export writes for any engine, told apart by its content.\n\n"
        "Ctrl-C ends the search and keeps the best plan so far.",
    .options = OPTIONS,
    .options_bytes = sizeof(plan_options),
    .set_defaults = set_defaults,
    .min_args = 0,
    .max_args = -1,
    .run = run,
};
