/*
 * plan_inputs.c: checking the options of `ballast plan` and opening what they name.
 */
#include "cli/plan_inputs.h"

#include "core/io.h"
#include "core/mem.h"
#include "planner/engines/current.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

void bl_plan_inputs_free(bl_plan_inputs *in) {
    bl_loads_free(&in->loads);
    free(in->node);
    free(in->domain);
    bl_sites_free(&in->sites);
    bl_capacity_free(&in->capacity);
    bl_plan_free(&in->current);
    bl_topology_free(&in->topology);
    bl_model_free(&in->model);
}

/* An option that would change nothing is a mistake, and is not passed over in silence. */
static bl_status check_companions(const bl_plan_options *o, bool has_node, bool has_domain,
                                  bl_error *err) {
    const bool current = o->current != NULL, topology = o->topology != NULL;
    const bool groups = o->keep_groups || o->algorithm == BL_ALG_GREEDY_HIERARCHICAL;
    const struct {
        bool useless;
        const char *why;
    } pairs[] = {
        {o->max_moves >= 0 && !current,
         "--max-moves counts moves from a placement: name it with --current"},
        {o->max_bytes >= 0 && !current,
         "--max-bytes counts moves from a placement: name it with --current"},
        {o->min_gain >= 0.0 && !current,
         "--min-gain is asked of moves from a placement: name it with --current"},
        {o->overlap && !topology, "--overlap is about modelled times: they need --topology"},
        {o->tokens_per_rank > 0.0 && !topology,
         "--tokens-per-rank is about modelled times: they need --topology"},
        {o->dispatch != 0 && !topology, "--dispatch is about links: name them with --topology"},
        {o->combine != 0 && !topology, "--combine is about links: name them with --topology"},
        {has_node && !groups, "--node goes with --keep-groups or greedy-hierarchical"},
        {has_domain && o->min_copies < 2, "--fault-domain goes with --min-copies 2 or more"},
        {o->guarded > 0 && o->min_copies < 2, "--min-copies-for goes with --min-copies 2 or more"},
    };
    for (size_t p = 0; p < sizeof pairs / sizeof pairs[0]; p++) {
        if (pairs[p].useless)
            return bl_fail(err, BL_ERR_USAGE, "%s", pairs[p].why);
    }
    return BL_OK;
}

static bl_status check_options(const bl_plan_options *o, bl_error *err) {
    if (bl_rule_needs_sources((bl_rule)o->rule) && o->topology == NULL)
        return bl_fail(err, BL_ERR_USAGE,
                       "rule %s looks at where ranks are: name the cluster with --topology",
                       bl_rule_names[o->rule]);
    if (o->topology == NULL && o->ranks == 0)
        return bl_fail(err, BL_ERR_USAGE, "name the cluster with --topology, or at least --ranks");
    if (o->objective == BL_OBJECTIVE_TIME && o->topology == NULL)
        return bl_fail(err, BL_ERR_USAGE,
                       "--objective time needs --topology: without it no time can be modelled");
    BL_TRY(check_companions(o, strcmp(o->node, "host") != 0, strcmp(o->fault_domain, "rank") != 0,
                            err));
    if (o->json && strcmp(o->output, "-") == 0)
        return bl_fail(err, BL_ERR_USAGE, "-o - and --json would both write to standard output");
    return BL_OK;
}

/* A plan may take the place of the plan it starts from; everything else read is kept. */
static bl_status check_output(const bl_plan_options *o, int n_args, char **args, bl_error *err) {
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

static bl_status open_cluster(const bl_plan_options *o, bl_plan_inputs *in, bl_error *err) {
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

/* Domains of ranks by name: "rank", "host", or a level of the topology. */
static bl_status read_domains(const bl_plan_inputs *in, const char *option, const char *name,
                              int **domain_p, bl_error *err) {
    const bl_topology *t = &in->topology;
    int *domain, level = -1;
    for (int k = 1; in->has_topology && k <= t->n_levels; k++)
        level = strcmp(t->levels[k].name, name) == 0 ? k : level;
    const bool is_rank = strcmp(name, "rank") == 0;
    const bool is_host = level < 0 && (strcmp(name, "host") == 0 || strcmp(name, "node") == 0);
    if (!in->has_topology && !is_rank)
        return bl_fail(err, BL_ERR_USAGE, "%s %s: name the cluster with --topology", option, name);
    if (!is_rank && !is_host && level < 0)
        return bl_fail(
            err, BL_ERR_USAGE,
            "%s: \"%s\" is neither rank, host nor a level of topology %s, whose first is "
            "%s",
            option, name, t->name, t->levels[1].name);
    BL_TRY(BL_CALLOC(domain, in->n_ranks, err));
    for (int rank = 0; rank < in->n_ranks; rank++)
        domain[rank] = is_rank   ? rank
                       : is_host ? t->host[rank]
                                 : bl_topology_domain(t, level, rank);
    *domain_p = domain;
    return BL_OK;
}

static bl_status open_domains(const bl_plan_options *o, bl_plan_inputs *in, bl_error *err) {
    const bool wants_nodes = o->keep_groups || o->algorithm == BL_ALG_GREEDY_HIERARCHICAL;
    if (o->keep_groups && in->model.n_groups < 2)
        return bl_fail(err, BL_ERR_MODEL, "%s has no groups of experts to keep whole",
                       in->model.name);
    if (o->max_bytes >= 0 && in->model.expert_bytes == 0)
        return bl_fail(err, BL_ERR_MODEL,
                       "--max-bytes: the size of an expert of %s is not known; use --max-moves",
                       in->model.name);
    if (wants_nodes)
        BL_TRY(read_domains(in, "--node", o->node, &in->node, err));
    if (o->min_copies > 1)
        BL_TRY(read_domains(in, "--fault-domain", o->fault_domain, &in->domain, err));
    return BL_OK;
}

static bl_status open_current(const bl_plan_options *o, bl_plan_inputs *in, bl_error *err) {
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
static bl_status slots_of_current(const bl_plan_inputs *in, int **list_p, bl_error *err) {
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

/* "96": slots per rank; "20000tok": tokens of KV cache; "6G": bytes. */
static bl_status parse_budget(const char *text, const bl_model *model, int64_t *slots,
                              bl_error *err) {
    int64_t number;
    char *end;
    errno = 0;
    const long long plain = strtoll(text, &end, 10);
    if (errno == 0 && end != text && *end == '\0' && plain >= 0) {
        *slots = plain < INT32_MAX ? plain : INT32_MAX;
        return BL_OK;
    }
    const bool in_tokens = errno == 0 && end != text && plain >= 0 && strcmp(end, "tok") == 0;
    if (!in_tokens && !bl_parse_bytes(text, &number))
        return bl_fail(
            err, BL_ERR_USAGE,
            "--replica-budget takes slots per rank (96), bytes per rank (6G) or tokens of "
            "KV cache (20000tok), not \"%s\"",
            text);
    if (model->expert_bytes == 0 || (in_tokens && model->kv_bytes_per_token <= 0.0))
        return bl_fail(
            err, BL_ERR_MODEL,
            "--replica-budget %s: the size of %s of %s is not known; give slots per rank", text,
            model->expert_bytes == 0 ? "an expert" : "a token's KV cache", model->name);
    const double bytes = in_tokens ? (double)plain * model->kv_bytes_per_token : (double)number;
    *slots = (int64_t)fmin(bytes / (double)model->expert_bytes, INT32_MAX);
    return BL_OK;
}

/* The fewest slots, as many on every rank that serves; the budget is added layer by layer. */
static bl_status least_slots(const bl_plan_options *o, bl_plan_inputs *in, const bool *masked,
                             int **list_p, bl_error *err) {
    int active = 0, *list;
    if (o->slots >= 0 || o->redundant != NULL || o->slots_per_rank != NULL)
        return bl_fail(err, BL_ERR_USAGE,
                       "--replica-budget gives every layer its slots: leave out --slots, "
                       "--redundant and --slots-per-rank");
    BL_TRY(parse_budget(o->replica_budget, &in->model, &in->replica_budget, err));
    for (int rank = 0; rank < in->n_ranks; rank++)
        active += !masked[rank];
    BL_TRY(BL_CALLOC(list, in->n_ranks, err));
    for (int rank = 0; rank < in->n_ranks && active > 0; rank++)
        list[rank] = (in->model.n_experts + active - 1) / active;
    *list_p = list;
    return BL_OK;
}

static bl_status size_slots(const bl_plan_options *o, bl_plan_inputs *in, bl_error *err) {
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
    in->replica_budget = -1;
    if (st >= 0 && o->replica_budget != NULL)
        st = least_slots(o, in, masked, &list, err);
    else if (st >= 0 && o->slots_per_rank != NULL)
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

/* Names come from files' names and differ between engines, so by themselves they prove nothing. */
static bl_status check_name(const bl_plan_options *o, const bl_plan_inputs *in, bl_error *err) {
    const char *name = in->loads.model_name;
    if (!o->strict || name[0] == '\0' || strcmp(name, in->model.name) == 0)
        return BL_OK;
    return bl_fail_at(err, BL_ERR_MODEL, bl_at(in->paths.items[0]),
                      "is of %s, but the model is %s; without --strict they pass for one when "
                      "experts, top-k and layers agree",
                      name, in->model.name);
}

/* Single tokens of all layers may take so much. */
#define TOKEN_BYTES ((size_t)1 << 29)
#define MOST_TOKENS 65536

static size_t most_tokens(const bl_model *model) {
    const size_t bytes = (4 * (size_t)model->top_k + 16) * (size_t)model->n_moe_layers;
    const size_t n = TOKEN_BYTES / bytes;
    return n < MOST_TOKENS ? n : MOST_TOKENS;
}

/* Where tokens come from matters to some rules, and to traffic where there are several nodes. */
static bl_status ask_for_sources(const bl_plan_options *o, bl_plan_inputs *in,
                                 bl_loads_options *options, bl_error *err) {
    if (!in->has_topology)
        return BL_OK;
    BL_TRY(bl_sites_of(&in->topology, in->n_ranks, &in->sites, err));
    if (bl_rule_needs_sources((bl_rule)o->rule))
        options->sources = BL_SOURCES_REQUIRED;
    else if (in->sites.n_nodes > 1)
        options->sources = BL_SOURCES_IF_TOLD;
    if (options->sources == BL_SOURCES_NONE)
        bl_sites_free(&in->sites);
    else
        options->most_tokens = most_tokens(&in->model);
    return BL_OK;
}

static bl_status open_trace(const bl_plan_options *o, int n_args, char **args, bl_plan_inputs *in,
                            bl_error *err) {
    bl_opt_list *paths = &in->paths;
    *paths = o->traces;
    if (paths->n + n_args > BL_OPT_LIST_MAX)
        return bl_fail(err, BL_ERR_USAGE, "more than %d traces", BL_OPT_LIST_MAX);
    for (int i = 0; i < n_args; i++)
        paths->items[paths->n++] = args[i];
    if (paths->n == 0)
        return bl_fail(err, BL_ERR_USAGE, "name the trace to plan on with --trace");
    bl_loads_options options = BL_LOADS_OPTIONS_INIT;
    options.phase = bl_phase_filter(o->phase);
    options.first_step = o->steps.first;
    options.end_step = o->steps.end;
    BL_TRY(ask_for_sources(o, in, &options, err));
    BL_TRY(bl_loads_read(paths->items, paths->n, &in->model, &options, &in->loads, err));
    BL_TRY(check_name(o, in, err));
    BL_TRY(bl_demand_read(paths->items, paths->n, o->steps.first, o->steps.end, &in->demand, err));
    bl_loads_tell(&in->loads, paths->items[0], in->model.name, o->steps.first, o->steps.end,
                  stderr);
    return BL_OK;
}

bl_status bl_plan_inputs_open(const bl_plan_options *o, int n_args, char **args, bl_plan_inputs *in,
                              bl_error *err) {
    BL_TRY(check_options(o, err));
    BL_TRY(check_output(o, n_args, args, err));
    BL_TRY(bl_model_load(o->model, &in->model, err));
    BL_TRY(open_cluster(o, in, err));
    BL_TRY(open_domains(o, in, err));
    BL_TRY(open_current(o, in, err));
    BL_TRY(size_slots(o, in, err));
    return open_trace(o, n_args, args, in, err);
}
