/*
 * ballast stat: what a trace holds, and whether it adds up.
 */
#include "cli/stat_output.h"
#include "cli/verbs.h"
#include "core/mem.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct stat_options {
    int phase, table;
    const char *plan, *topology;
    bl_opt_range steps;
    bool json, csv;
} stat_options;

static const char *const PHASES[] = {"prefill", "midfill", "decode", "mixed", "verify",
                                     "idle",    "unknown", "all",    NULL};
static const char *const TABLES[] = {"experts",     "layers",  "ranks",   "slots", "pairs",
                                     "transitions", "sources", "traffic", "drift", NULL};

static void set_defaults(void *user) {
    stat_options *options = user;
    options->phase = BL_N_PHASES;
    options->table = -1;
    options->steps.end = INT64_MAX;
}

static const bl_opt OPTIONS[] = {
    {.name = "plan",
     .type = BL_OPT_STRING,
     .offset = offsetof(stat_options, plan),
     .metavar = "PLAN",
     .help = "imbalance of ranks as this plan would have it"},
    {.name = "topology",
     .type = BL_OPT_STRING,
     .offset = offsetof(stat_options, topology),
     .metavar = "T",
     .help = "with --plan: over which links tokens would go; rules nearest and fixed need it"},
    {.name = "phase",
     .type = BL_OPT_CHOICE,
     .offset = offsetof(stat_options, phase),
     .choices = PHASES,
     .help = "only the steps of one phase"},
    {.name = "steps",
     .type = BL_OPT_RANGE,
     .offset = offsetof(stat_options, steps),
     .metavar = "A:B",
     .help = "only these of the trace's steps, counted from 0"},
    {.name = "json",
     .type = BL_OPT_FLAG,
     .offset = offsetof(stat_options, json),
     .help = "answer in JSON"},
    {.name = "csv",
     .type = BL_OPT_FLAG,
     .offset = offsetof(stat_options, csv),
     .help = "a long table as CSV"},
    {.name = "table",
     .type = BL_OPT_CHOICE,
     .offset = offsetof(stat_options, table),
     .choices = TABLES,
     .help = "with --csv: which table (default experts)"},
    {0}};

/* ---- words for what is not known ------------------------------------------------------------ */

const char *bl_pairs_state_text(bl_pairs_state state) {
    static const char *const text[] = {
        [BL_PAIRS_KNOWN] = "known",
        [BL_PAIRS_NO_IDS] = "not possible: the trace holds no rows of several picks, only counts",
        [BL_PAIRS_NOT_ALIGNED] =
            "not possible: no two layers hold the same tokens of a step and rank in order",
        [BL_PAIRS_TOO_LARGE] = "not counted: too many experts and layers"};
    return text[state];
}

const char *bl_sources_state_text(bl_sources_state state) {
    static const char *const text[] = {
        [BL_SOURCES_KNOWN] = "known",
        [BL_SOURCES_UNKNOWN] = "not possible: the trace does not tell source ranks",
        [BL_SOURCES_TOO_LARGE] = "not counted: too many ranks, layers and experts"};
    return text[state];
}

const char *bl_half_life_text(bl_half_life half_life) {
    static const char *const text[] = {[BL_HALF_LIFE_MEASURED] = "measured",
                                       [BL_HALF_LIFE_LONGER] = "longer than the trace tells",
                                       [BL_HALF_LIFE_NO_DRIFT] = "no drift above chance",
                                       [BL_HALF_LIFE_NOT_ENOUGH] = "not enough steps"};
    return text[half_life];
}

double bl_stat_plan_gap(const bl_plan *plan, int layer) {
    double sum = 0.0, n = 0.0;
    for (int l = 0; l < plan->placement.n_layers; l++) {
        if (plan->layers[l].scored && (layer < 0 || plan->placement.layers[l].layer == layer)) {
            sum += plan->layers[l].gap;
            n += 1.0;
        }
    }
    return n > 0.0 ? sum / n : NAN;
}

void bl_stat_traffic_levels(const bl_stat_report *report, double sum[BL_MAX_LEVELS + 1]) {
    const bl_sources_result *sources = &report->stat->sources;
    for (int level = 0; level <= BL_MAX_LEVELS; level++)
        sum[level] = 0.0;
    for (int i = 0; i < sources->n_sources; i++) {
        for (int to = 0; to < sources->n_destinations; to++)
            sum[bl_topology_level(report->topology, sources->rank[i], to)] +=
                sources->traffic[(size_t)i * (size_t)sources->n_destinations + (size_t)to];
    }
}

/* ---- the verb ------------------------------------------------------------------------------- */

/* What must not be overlooked goes to standard error in every format. */
static void warn(const bl_stat *stat) {
    int n_bad = 0;
    if (stat->notes[0] != '\0')
        fprintf(stderr, "ballast stat: %s\n", stat->notes);
    for (int l = 0; l < stat->info.n_layers; l++) {
        const bl_stat_layer *layer = &stat->layers[l];
        if (!layer->conserved && n_bad++ < 8)
            fprintf(stderr, "ballast stat: layer %d is unusable: %s\n", layer->layer, layer->why);
    }
    if (n_bad > 8)
        fprintf(stderr, "ballast stat: %d layers are unusable in all\n", n_bad);
    if (stat->late_steps > 0)
        fprintf(stderr,
                "ballast stat: %llu parts of steps came long after the rest; figures of single "
                "steps and of drift take them for steps of their own\n",
                (unsigned long long)stat->late_steps);
}

/* The topology of the plan's ranks; every source rank must be one of them. */
static bl_status open_topology(const stat_options *o, const bl_plan *plan, bl_topology *out,
                               bl_error *err) {
    bl_topology all = {0};
    BL_TRY(bl_topology_open(o->topology, &all, err));
    const int n_ranks = plan->placement.n_ranks;
    bl_status st = BL_OK;
    if (all.n_ranks < n_ranks)
        st = bl_fail_at(err, BL_ERR_SHAPE, bl_at(o->topology),
                        "%d ranks, but the plan has %d; give a larger one", all.n_ranks, n_ranks);
    else
        st = bl_topology_take(&all, n_ranks, out, err);
    bl_topology_free(&all);
    return st;
}

static bl_status check_sources(const bl_stat *stat, const bl_topology *topology, bl_error *err) {
    const bl_sources_result *sources = &stat->sources;
    if (sources->n_sources > 0 && sources->rank[sources->n_sources - 1] >= topology->n_ranks)
        return bl_fail(err, BL_ERR_SHAPE,
                       "the trace has tokens of rank %d, but plan and topology have %d ranks",
                       sources->rank[sources->n_sources - 1], topology->n_ranks);
    return BL_OK;
}

static bl_status read_and_print(const stat_options *o, const char *path, const bl_plan *plan,
                                const bl_topology *topology, bl_error *err) {
    const double **share = NULL;
    bl_stat_options how = BL_STAT_OPTIONS_INIT;
    how.phase = o->phase < BL_N_PHASES ? o->phase : -1;
    how.first_step = o->steps.first;
    how.end_step = o->steps.end;
    if (plan != NULL) {
        BL_TRY(BL_CALLOC(share, plan->placement.n_layers, err));
        for (int l = 0; l < plan->placement.n_layers; l++)
            share[l] = plan->layers[l].share;
        how.plan = (bl_stat_plan){&plan->placement, plan->rule, share,
                                  topology != NULL ? topology->host : NULL};
    }
    bl_stat stat = {0};
    bl_status st = bl_stat_read(path, &how, &stat, err);
    free(share);
    const bl_stat_report report = {&stat, plan, topology};
    if (st >= 0 && topology != NULL)
        st = check_sources(&stat, topology, err);
    if (st >= 0)
        warn(&stat); /* first: who reads the answer may stop listening */
    if (st >= 0 && o->json)
        st = bl_stat_print_json(&report, err);
    else if (st >= 0 && o->csv)
        bl_stat_print_csv(&report, o->table >= 0 ? (bl_stat_table)o->table : BL_STAT_EXPERTS);
    else if (st >= 0)
        bl_stat_print_text(&report);
    bl_stat_free(&stat);
    return st;
}

static bl_status run(void *user, int n_args, char **args, bl_error *err) {
    const stat_options *o = user;
    (void)n_args;
    if (o->json && o->csv)
        return bl_fail(err, BL_ERR_USAGE, "--json or --csv, not both");
    if (o->table >= 0 && !o->csv)
        return bl_fail(err, BL_ERR_USAGE, "--table goes with --csv");
    if (o->topology != NULL && o->plan == NULL)
        return bl_fail(err, BL_ERR_USAGE,
                       "--topology goes with --plan: where tokens go depends on both");
    if (o->table == BL_STAT_TRAFFIC && o->plan == NULL)
        return bl_fail(err, BL_ERR_USAGE,
                       "--table traffic goes with --plan: it says where the experts are");
    bl_plan plan = {0};
    bl_topology topology = {0};
    bl_status st = o->plan != NULL ? bl_plan_load(o->plan, &plan, err) : BL_OK;
    if (st >= 0 && o->topology != NULL)
        st = open_topology(o, &plan, &topology, err);
    if (st >= 0)
        st = read_and_print(o, args[0], o->plan != NULL ? &plan : NULL,
                            o->topology != NULL ? &topology : NULL, err);
    bl_topology_free(&topology);
    bl_plan_free(&plan);
    return st;
}

const bl_verb bl_verb_stat = {
    .name = "stat",
    .arguments = "TRACE",
    .summary = "say what a trace holds and whether it adds up",
    .details =
        "A layer is conserved when in each step it saw the tokens the other layers saw and its "
        "counts sum to tokens * k - empty; one that is not is unusable for planning.\n"
        "\n"
        "With --plan, the imbalance of ranks (max over mean of assignments, for each step and "
        "layer) is that of the plan under its own rule. A trace of physical ids also tells the "
        "imbalance as it was, and what each slot served.\n"
        "\n"
        "--csv prints one table, long and tidy, with a header line; --table chooses it:\n"
        "  experts      layer,phase,expert,count,share; share of the layer's and phase's picks\n"
        "  layers       one line for each layer\n"
        "  ranks        layer,kind,n,mean,p50,p95,p99,max,balancedness; kind predicted or "
        "realised, "
        "layer all for all together\n"
        "  slots        layer,kind,slot,rank,expert,load,share; share of its expert's load\n"
        "  pairs        layer,a,b,tokens,lift: experts that tokens pick together\n"
        "  transitions  layer,next,a,b,count,lift: from a layer to the next\n"
        "  sources      layer,source,expert,count\n"
        "  traffic      source,destination,assignments; with --plan\n"
        "  drift        steps,distance,noise: total variation between windows so far apart",
    .options = OPTIONS,
    .options_bytes = sizeof(stat_options),
    .set_defaults = set_defaults,
    .min_args = 1,
    .max_args = 1,
    .run = run};
