/*
 * ballast topo: look at topologies, and make them from what other tools print.
 */
#include "cli/topo_calibrate.h"
#include "cli/topo_probe.h"
#include "cli/verbs.h"
#include "core/io.h"
#include "core/json.h"
#include "core/mem.h"
#include "topologies/import.h"
#include "topologies/topology.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What the table's last column moves: one expert of DeepSeek-V3 in FP8. */
#define SAMPLE_BYTES 44050944.0
#define MAX_SHOWN_DOMAINS 24
#define MAX_SHOWN_HOSTS 4

typedef struct topo_options {
    const char *base, *output, *trace, *model, *plan;
    int64_t part, nodes, n_ranks, slots;
    double seconds;
    int from, op;
    bool json;
} topo_options;

#define AT(field) offsetof(topo_options, field)
static const bl_opt OPTIONS[] = {
    {"from", 0, BL_OPT_CHOICE, AT(from), .choices = bl_topology_format_names,
     .help = "import: what the file is"},
    {"base", 0, BL_OPT_STRING, AT(base), .metavar = "T",
     .help = "import, probe, calibrate: topology for what is not told or measured"},
    {"op", 0, BL_OPT_CHOICE, AT(op), .choices = bl_nccl_op_names,
     .help = "import: operation of a log of nccl-tests that does not name it"},
    {"part", 0, BL_OPT_INT, AT(part), .metavar = "N", .min = 1, .max = 64,
     .help = "import: which matrix or table, where the file holds several"},
    {"nodes", 0, BL_OPT_INT, AT(nodes), .metavar = "N", .min = 1, .max = BL_IMPORT_MAX_RANKS,
     .help = "import: make a cluster of N machines like this one"},
    {"ranks", 'n', BL_OPT_INT, AT(n_ranks), .metavar = "N", .min = 2, .max = BL_LAUNCH_MAX_RANKS,
     .help = "probe: start N ranks here; left out by those that mpirun or torchrun started"},
    {"seconds", 0, BL_OPT_DURATION, AT(seconds), .metavar = "S", .min = 0.001, .max = 3600,
     .help = "probe: about how long each bandwidth is measured"},
    {"trace", 0, BL_OPT_STRING, AT(trace), .metavar = "TRACE",
     .help = "calibrate: recorded with stage times, as by ballast run --record --stage-times"},
    {"model", 0, BL_OPT_STRING, AT(model), .metavar = "M",
     .help = "calibrate: config.json or model.json of what ran"},
    {"plan", 0, BL_OPT_STRING, AT(plan), .metavar = "PLAN",
     .help = "calibrate: where the experts were, all the time; else where engines start with them"},
    {"slots", 0, BL_OPT_INT, AT(slots), .metavar = "S", .min = -1, .max = 1 << 20,
     .help = "calibrate, without a plan: slots per layer over all ranks; -1: one per expert"},
    {"output", 'o', BL_OPT_STRING, AT(output), .metavar = "OUT",
     .help = "import, probe, calibrate: where to write the topology"},
    {"json", 0, BL_OPT_FLAG, AT(json), .help = "answer in JSON; show prints a topology file"},
    {0}};

static void set_defaults(void *options) {
    topo_options *o = options;
    o->from = o->op = -1;
    o->slots = -1;
    o->seconds = 0.1;
}

/* "450 G" and the like: three digits and a decimal prefix. */
static const char *scaled(double value, const char *unit, char *out, size_t room) {
    static const struct {
        double from;
        const char *prefix;
    } scales[] = {{1e15, "P"}, {1e12, "T"}, {1e9, "G"},  {1e6, "M"}, {1e3, "k"},
                  {1, ""},     {1e-3, "m"}, {1e-6, "u"}, {0, "n"}};
    size_t s = 0;
    while (scales[s].from > 0 && fabs(value) < scales[s].from * 0.9995)
        s++;
    const double base = scales[s].from > 0 ? scales[s].from : 1e-9;
    snprintf(out, room, "%.3g %s%s", value / base, scales[s].prefix, unit);
    return out;
}

/* ---- list --------------------------------------------------------------------------------- */

static bl_status list_all(const topo_options *options, bl_error *err) {
    json_t *list;
    BL_TRY(bl_topology_catalogue(&list, err));
    if (options->json) {
        json_t *root = json_pack("{s:o}", "topologies", list);
        const bl_status st = bl_json_write("-", root, 2, err);
        json_decref(root);
        return st;
    }
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *item = json_array_get(list, i);
        const char *key;
        json_t *range;
        char parameters[160] = "";
        size_t used = 0;
        json_object_foreach (json_object_get(item, "parameters"), key, range) {
            if (used < sizeof parameters)
                used += (size_t)snprintf(parameters + used, sizeof parameters - used,
                                         "%s%s=%lld..%lld", used > 0 ? "," : "", key,
                                         json_integer_value(json_object_get(range, "min")),
                                         json_integer_value(json_object_get(range, "max")));
        }
        printf("%-12s :%-14s %s\n", json_string_value(json_object_get(item, "name")), parameters,
               json_string_value(json_object_get(item, "description")));
    }
    json_decref(list);
    return BL_OK;
}

/* ---- show --------------------------------------------------------------------------------- */

/* A figure and the first letter of its source. */
static const char *marked(bl_figure figure, const char *unit, char *out, size_t room) {
    char text[32];
    snprintf(out, room, "%s %c", scaled(figure.value, unit, text, sizeof text),
             bl_figure_source_name(figure.source)[0]);
    return out;
}

static void show_device(const bl_topology *topology, int d) {
    const bl_device *device = &topology->devices[d];
    char a[48], b[48];
    int ranks = 0;
    for (int rank = 0; rank < topology->n_ranks; rank++)
        ranks += topology->device[rank] == d;
    printf("\ndevice %s, %d rank%s\n", device->name, ranks, ranks == 1 ? "" : "s");
    printf("  memory %s at %s, %.3g of it for experts %c\n",
           marked(device->memory_bytes, "B", a, sizeof a),
           marked(device->memory_bytes_per_s, "B/s", b, sizeof b), device->expert_share.value,
           bl_figure_source_name(device->expert_share.source)[0]);
    for (int f = 0; f < BL_N_WEIGHT_FORMATS; f++) {
        if (device->flop_per_s[f].value > 0)
            printf("  %-10s %s\n", bl_weight_format_name((bl_weight_format)f),
                   marked(device->flop_per_s[f], "FLOP/s", a, sizeof a));
    }
}

/* "8" or "4-8": ranks in one domain of a level; `counts` is scratch of n_ranks. */
static void domain_sizes(const bl_topology *topology, int level, int *counts, char *out,
                         size_t room) {
    const int n = topology->levels[level].n_domains;
    int least = topology->n_ranks, most = 0;
    memset(counts, 0, (size_t)n * sizeof *counts);
    for (int rank = 0; rank < topology->n_ranks; rank++)
        counts[bl_topology_domain(topology, level, rank)]++;
    for (int domain = 0; domain < n; domain++) {
        least = counts[domain] < least ? counts[domain] : least;
        most = counts[domain] > most ? counts[domain] : most;
    }
    if (least == most)
        snprintf(out, room, "%d", most);
    else
        snprintf(out, room, "%d-%d", least, most);
}

static void show_levels(const bl_topology *topology, int *counts) {
    printf("\n%-12s %7s %7s  %-12s %-12s %-14s %-14s %6s  %s\n", "level", "domains", "ranks",
           "latency", "message", "out/port", "in/port", "ports", "44 MB in");
    for (int k = 1; k <= topology->n_levels; k++) {
        const bl_level *level = &topology->levels[k];
        const double seconds =
            level->latency_s.value + level->message_s.value +
            SAMPLE_BYTES / fmin(level->out_bytes_per_s.value, level->in_bytes_per_s.value);
        char sizes[32], latency[48], message[48], out[48], in[48], take[48];
        domain_sizes(topology, k, counts, sizes, sizeof sizes);
        printf("%-12s %7d %7s  %-12s %-12s %-14s %-14s %4.0f %c  %s\n", level->name,
               level->n_domains, sizes, marked(level->latency_s, "s", latency, sizeof latency),
               marked(level->message_s, "s", message, sizeof message),
               marked(level->out_bytes_per_s, "B/s", out, sizeof out),
               marked(level->in_bytes_per_s, "B/s", in, sizeof in), level->ports.value,
               bl_figure_source_name(level->ports.source)[0],
               scaled(seconds, "s", take, sizeof take));
    }
}

/* "0-3,8": the ranks of one innermost domain. */
static void print_ranks(const bl_topology *topology, int domain) {
    const char *comma = "";
    for (int rank = 0; rank < topology->n_ranks; rank++) {
        if (bl_topology_domain(topology, 1, rank) != domain)
            continue;
        int last = rank;
        while (last + 1 < topology->n_ranks && bl_topology_domain(topology, 1, last + 1) == domain)
            last++;
        if (last > rank)
            printf("%s%d-%d", comma, rank, last);
        else
            printf("%s%d", comma, rank);
        comma = ",";
        rank = last;
    }
}

/* " on host3, host4", or how many there are; `marks` is scratch of n_ranks. */
static void print_hosts(const bl_topology *topology, int domain, int *marks) {
    int n = 0;
    memset(marks, 0, (size_t)topology->n_hosts * sizeof *marks);
    for (int rank = 0; rank < topology->n_ranks; rank++) {
        if (bl_topology_domain(topology, 1, rank) != domain)
            continue;
        n += marks[topology->host[rank]] == 0;
        marks[topology->host[rank]] = 1;
    }
    const char *word = " on ";
    for (int host = 0; host < topology->n_hosts && n <= MAX_SHOWN_HOSTS; host++) {
        if (marks[host] == 0)
            continue;
        printf("%s%s", word, topology->host_names[host]);
        word = ", ";
    }
    if (n > MAX_SHOWN_HOSTS)
        printf(" on %d hosts", n);
}

static void show_domains(const bl_topology *topology, int *marks) {
    const int n = topology->levels[1].n_domains;
    const int shown = n <= MAX_SHOWN_DOMAINS ? n : MAX_SHOWN_DOMAINS;
    putchar('\n');
    for (int domain = 0; domain < shown; domain++) {
        printf("%s %d: ranks ", topology->levels[1].name, domain);
        print_ranks(topology, domain);
        print_hosts(topology, domain, marks);
        putchar('\n');
    }
    if (shown < n)
        printf("... and %d more\n", n - shown);
}

static bl_status print_table(const bl_topology *topology, bl_error *err) {
    int *counts; /* scratch, also for hosts: there are no more of them than ranks */
    BL_TRY(BL_CALLOC(counts, topology->n_ranks, err));
    const bool latency = topology->pair_latency_s != NULL;
    const bool bandwidth = topology->pair_bytes_per_s != NULL;
    printf("%s: %d rank%s on %d host%s\n", topology->name, topology->n_ranks,
           topology->n_ranks == 1 ? "" : "s", topology->n_hosts, topology->n_hosts == 1 ? "" : "s");
    for (int d = 0; d < topology->n_devices; d++)
        show_device(topology, d);
    show_levels(topology, counts);
    if (latency || bandwidth)
        printf("single pairs differ in %s%s%s\n", latency ? "latency" : "",
               latency && bandwidth ? " and " : "", bandwidth ? "bandwidth" : "");
    show_domains(topology, counts);
    puts("\nm measured, d datasheet, a assumed. A pair of ranks uses one port; the ranks of one\n"
         "domain share its ports into the next level. 44 MB is one expert of DeepSeek-V3 in FP8.");
    free(counts);
    return BL_OK;
}

static bl_status show(const topo_options *options, const char *spec, bl_error *err) {
    bl_topology topology;
    BL_TRY(bl_topology_open(spec, &topology, err));
    bl_status st;
    if (options->json) {
        json_t *root = bl_topology_to_json(&topology);
        st = root != NULL ? bl_json_write("-", root, 2, err)
                          : bl_fail(err, BL_ERR_NOMEM, "out of memory");
        json_decref(root);
    } else {
        st = print_table(&topology, err);
    }
    bl_topology_free(&topology);
    return st;
}

/* ---- import ------------------------------------------------------------------------------- */

/* What was done goes to standard error, or into the answer under --json, with `more` (or NULL). */
static bl_status tell_sources(const topo_options *options, const json_t *root, json_t *more,
                              bl_error *err) {
    const json_t *sources = json_object_get(root, "sources");
    if (!options->json) {
        for (size_t i = 0; i < json_array_size(sources); i++)
            fprintf(stderr, "%s\n", json_string_value(json_array_get(sources, i)));
        return BL_OK;
    }
    if (strcmp(options->output, "-") == 0)
        return BL_OK;
    json_t *answer =
        json_pack("{s:o, s:I, s:O}", "output", bl_json_text(options->output), "ranks",
                  (json_int_t)json_array_size(json_object_get(root, "ranks")), "sources", sources);
    if (answer == NULL)
        return bl_fail(err, BL_ERR_NOMEM, "out of memory");
    if (more != NULL)
        json_object_update(answer, more);
    const bl_status st = bl_json_write("-", answer, 2, err);
    json_decref(answer);
    return st;
}

static bl_status import(const topo_options *options, const char *path, bl_error *err) {
    const bl_topology_import how = {.base = options->base,
                                    .op = options->op,
                                    .part = (int)options->part,
                                    .nodes = (int)options->nodes};
    json_t *root;
    if (options->from < 0 || options->output == NULL)
        return bl_fail(err, BL_ERR_USAGE, "import needs --from FORMAT and -o OUT");
    const char *const inputs[] = {path, options->base};
    BL_TRY(bl_check_output(options->output, inputs, 2, err));
    BL_TRY(bl_topology_import_file((bl_topology_format)options->from, path, &how, &root, err));
    bl_status st = bl_json_write(options->output, root, 2, err);
    if (st >= 0)
        st = tell_sources(options, root, NULL, err);
    json_decref(root);
    return st;
}

/* ---- probe -------------------------------------------------------------------------------- */

static bl_status probe(const topo_options *options, int n_args, char **args, bl_error *err) {
    const bl_topo_probe how = {(int)options->n_ranks, options->seconds, options->base};
    json_t *root;
    if (n_args > 1)
        return bl_fail(err, BL_ERR_USAGE, "probe takes no argument, but got \"%s\"", args[1]);
    if (options->output == NULL)
        return bl_fail(err, BL_ERR_USAGE, "probe needs -o OUT");
    BL_TRY(bl_check_output(options->output, &options->base, 1, err));
    BL_TRY(bl_topo_probe_run(&how, &root, err));
    if (root == NULL) /* not rank 0 */
        return BL_OK;
    bl_status st = bl_json_write(options->output, root, 2, err);
    if (st >= 0)
        st = tell_sources(options, root, NULL, err);
    json_decref(root);
    return st;
}

/* ---- calibrate ---------------------------------------------------------------------------- */

static bl_status calibrate(const topo_options *options, int n_args, char **args, bl_error *err) {
    const bl_topo_calibrate how = {options->trace, options->model, options->base, options->plan,
                                   options->slots};
    json_t *root, *answer;
    if (n_args > 1)
        return bl_fail(err, BL_ERR_USAGE, "calibrate takes no argument, but got \"%s\"", args[1]);
    if (how.trace == NULL || how.model == NULL || how.base == NULL || options->output == NULL)
        return bl_fail(err, BL_ERR_USAGE,
                       "calibrate needs --trace TRACE, --model M, --base T and -o OUT");
    const char *const inputs[] = {how.trace, how.model, how.base, how.plan};
    BL_TRY(bl_check_output(options->output, inputs, 4, err));
    BL_TRY(bl_topo_calibrate_run(&how, &root, &answer, err));
    bl_status st = bl_json_write(options->output, root, 2, err);
    if (st >= 0)
        st = tell_sources(options, root, answer, err);
    json_decref(root);
    json_decref(answer);
    return st;
}

/* ---- the verb ----------------------------------------------------------------------------- */

static bl_status run(void *opaque, int n_args, char **args, bl_error *err) {
    const topo_options *options = opaque;
    static const char *const words[] = {"list", "show", "import", "probe", "calibrate"};
    if (strcmp(args[0], "list") == 0) {
        if (n_args > 1)
            return bl_fail(err, BL_ERR_USAGE, "list takes no argument, but got \"%s\"", args[1]);
        return list_all(options, err);
    }
    if (strcmp(args[0], "show") == 0) {
        if (n_args < 2)
            return bl_fail(err, BL_ERR_USAGE,
                           "show needs a topology: a name from ballast topo list, or a file");
        return show(options, args[1], err);
    }
    if (strcmp(args[0], "import") == 0) {
        if (n_args < 2)
            return bl_fail(err, BL_ERR_USAGE, "import needs a file to read");
        return import(options, args[1], err);
    }
    if (strcmp(args[0], "probe") == 0)
        return probe(options, n_args, args, err);
    if (strcmp(args[0], "calibrate") == 0)
        return calibrate(options, n_args, args, err);
    const char *hint = bl_nearest_name(args[0], words, sizeof words / sizeof *words);
    return bl_fail(err, BL_ERR_USAGE, "unknown sub-verb \"%s\"; %s%s%s", args[0],
                   hint != NULL ? "did you mean "
                                : "it can list, show, import, probe and calibrate",
                   hint != NULL ? hint : "", hint != NULL ? "?" : "");
}

const bl_verb bl_verb_topo = {
    .name = "topo",
    .arguments = "list | show T | import --from FORMAT IN -o OUT | probe -n N -o OUT | calibrate "
                 "--trace TRACE --model M --base T -o OUT",
    .summary = "look at topologies, or make one from other tools or by measuring",
    .details =
        "list prints the catalogue with the parameters of each topology. show prints the devices, "
        "the tree of domains with the costs of each level and where every figure came from. T is a "
        "name from the catalogue, with parameters after a colon (hgx-h100:nodes=4), or a file. "
        "show --json prints T as such a file, to start your own from. import reads the matrix of "
        "nvidia-smi topo -m, NCCL's topology in XML, a log of nccl-tests or nvbandwidth, or a "
        "rank_cost_matrix. What such a file does not tell is as in --base, a topology itself, so "
        "that imports add up: structure first, then with its result as base a measurement. Without "
        "a base it is the catalogue's entry for the GPU that the file names, else assumed figures; "
        "what was done is printed and kept in the result's \"sources\".\n\n"
        "probe measures latency and bandwidth between all running ranks over the transport they "
        "serve on: every pair by itself, then all at once. -n starts ranks on this host; started "
        "by torchrun, mpirun or mpiexec, each process is one rank and rank 0 writes OUT.\n\n"
        "calibrate fits the constants of the cost model to the stage times in TRACE: what a row "
        "and an expert in use take a rank, and what exchanges take beside the base's latencies and "
        "rates. OUT is the base with these as measured figures, for plan --objective time, replay "
        "and run. What the times do not tell is left as it is, and said; how well the constants "
        "predict the second half of the steps, to which they were not fitted, is printed.",
    .options = OPTIONS,
    .options_bytes = sizeof(topo_options),
    .set_defaults = set_defaults,
    .min_args = 1,
    .max_args = 2,
    .run = run};
