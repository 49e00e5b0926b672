/*
 * ballast size: what a model weighs on a cluster, and what is left for the KV cache.
 */
#include "cli/verbs.h"
#include "core/json.h"
#include "planner/size.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define N_REMEDIES 3

typedef struct size_options {
    const char *model, *topology, *redundant;
    int64_t tp, dp, ep, spares;
    double memory_share;
    bool json;
} size_options;

#define AT(field) offsetof(size_options, field)
static const bl_opt OPTIONS[] = {
    {"model", 0, BL_OPT_STRING, AT(model), .metavar = "M", .required = true,
     .help = "config.json or model.json of the model"},
    {"topology", 0, BL_OPT_STRING, AT(topology), .metavar = "T",
     .help = "catalogue name (hgx-h100:nodes=4) or file; gives memory and the number of ranks"},
    {"tp", 0, BL_OPT_INT, AT(tp), .metavar = "N", .min = 1, .max = BL_MAX_RANKS,
     .help = "ranks that share one replica of attention (default 1)"},
    {"dp", 0, BL_OPT_INT, AT(dp), .metavar = "N", .min = 1, .max = BL_MAX_RANKS,
     .help = "replicas of attention (default: what the ranks leave)"},
    {"ep", 0, BL_OPT_INT, AT(ep), .metavar = "N", .min = 1, .max = BL_MAX_RANKS,
     .help = "ranks that share the experts (default: all)"},
    {"redundant", 0, BL_OPT_STRING, AT(redundant), .metavar = "R|auto",
     .help = "slots beyond one per expert; auto: the fewest, but at least one, that all ranks "
             "share evenly"},
    {"spares", 0, BL_OPT_INT, AT(spares), .metavar = "N", .min = 0, .max = 1 << 20,
     .help = "spare buffers per rank, through which experts move"},
    {"memory-share", 0, BL_OPT_REAL, AT(memory_share), .metavar = "X", .min = 0.01, .max = 1,
     .help = "share of a device's memory that weights and cache may fill"},
    {"json", 0, BL_OPT_FLAG, AT(json), .help = "answer in JSON"},
    {0}};

static void set_defaults(void *options) {
    ((size_options *)options)->memory_share = BL_MEMORY_SHARE_DEFAULT;
}

typedef struct answer {
    bl_model model;
    bl_topology topology;
    bool has_topology, has_layout;
    bl_layout layout;
    bl_size size;
    int n_remedies;
    bl_size remedies[N_REMEDIES];
} answer;

static const bl_topology *topology_of(const answer *a) {
    return a->has_topology ? &a->topology : NULL;
}

static bl_status make_layout(const size_options *options, bl_layout *out, bl_error *err) {
    *out = (bl_layout){.tp = (int)options->tp,
                       .dp = (int)options->dp,
                       .ep = (int)options->ep,
                       .spares = (int)options->spares,
                       .memory_share = options->memory_share};
    if (options->redundant == NULL)
        return BL_OK;
    if (strcmp(options->redundant, "auto") == 0) {
        out->redundant_auto = true;
        return BL_OK;
    }
    char *end;
    const long long redundant = strtoll(options->redundant, &end, 10);
    if (end == options->redundant || *end != '\0' || redundant < 0 || redundant > 1 << 24)
        return bl_fail(err, BL_ERR_USAGE,
                       "--redundant is \"%.24s\", but must be a number or auto, and up to 16777216",
                       options->redundant);
    out->redundant = redundant;
    return BL_OK;
}

static bl_status find_answer(const size_options *options, answer *a, bl_error *err) {
    BL_TRY(make_layout(options, &a->layout, err));
    BL_TRY(bl_model_load(options->model, &a->model, err));
    if (options->topology != NULL) {
        BL_TRY(bl_topology_open(options->topology, &a->topology, err));
        a->has_topology = true;
    }
    a->has_layout = a->has_topology || options->tp > 0 || options->dp > 0 || options->ep > 0;
    BL_TRY(bl_size_of(&a->model, topology_of(a), &a->layout, &a->size, err));
    while (a->n_remedies < N_REMEDIES &&
           bl_size_remedy(&a->model, topology_of(a), &a->layout, a->n_remedies,
                          &a->remedies[a->n_remedies], NULL) >= 0)
        a->n_remedies++;
    return BL_OK;
}

/* ---- JSON --------------------------------------------------------------------------------- */

/* A count or a number of bytes, whole; null for what is not told. */
static json_t *number(double value, bool told) {
    return told && !isnan(value) ? json_integer((json_int_t)llround(value)) : json_null();
}

static json_t *model_json(const bl_model *model) {
    return json_pack("{s:s, s:s, s:s, s:i, s:i, s:i, s:i, s:i}", "name", model->name, "model_type",
                     model->type, "weight_format", bl_weight_format_name(model->weight_format),
                     "layers", model->n_layers, "moe_layers", model->n_moe_layers, "experts",
                     model->n_experts, "top_k", model->top_k, "mtp_layers", model->n_mtp_layers);
}

static json_t *parameters_json(const answer *a) {
    const bl_model *model = &a->model;
    const bl_parameters *p = &model->parameters;
    const bool told = p->untold[0] == '\0';
    json_t *out =
        json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "total",
                  number(bl_parameters_total(model), told), "active",
                  number(bl_parameters_active(model), told), "experts", number(p->experts, true),
                  "shared_experts", number(p->shared, told), "router", number(p->router, told),
                  "attention", number(p->attention, told), "dense_mlp", number(p->dense, told),
                  "embedding", number(p->embedding, told), "norms", number(p->norms, told));
    if (a->has_layout)
        json_object_set_new(out, "resident", number(a->size.resident_parameters, told));
    if (!told)
        json_object_set_new(out, "untold", json_string(p->untold));
    return out;
}

static json_t *rank_json(const bl_rank_bytes *at, bool rest_told, bool has_topology) {
    return json_pack("{s:i, s:i, s:o, s:o, s:o, s:o, s:o, s:o}", "rank", at->rank, "slots",
                     at->slots, "expert_bytes", number(at->experts, true), "spare_bytes",
                     number(at->spares, true), "rest_bytes", number(at->rest, rest_told), "bytes",
                     number(at->experts + at->spares + at->rest, rest_told), "memory_bytes",
                     number(at->memory, has_topology), "left_bytes",
                     number(at->left, rest_told && has_topology));
}

static json_t *layout_json(const answer *a, const bl_size *size) {
    return json_pack("{s:i, s:i, s:i, s:i, s:i, s:i, s:b, s:i, s:i, s:o, s:o, s:o, s:b, s:o, s:o}",
                     "ranks", size->ranks, "tp", size->tp, "dp", size->dp, "ep", size->ep, "slots",
                     size->n_slots, "redundant", size->redundant, "uneven", size->uneven,
                     "even_redundant", size->even_redundant, "spares", size->spares, "slot_bytes",
                     number(size->slot_bytes, true), "binding",
                     rank_json(&size->binding, size->rest_told, a->has_topology), "lightest",
                     rank_json(&size->lightest, size->rest_told, a->has_topology), "fits",
                     size->fits, "kv_tokens_per_replica", number(size->kv_tokens, true),
                     "kv_tokens", number(size->kv_tokens * size->dp, true));
}

static json_t *remedies_json(const answer *a) {
    json_t *list = json_array();
    for (int n = 0; n < a->n_remedies; n++) {
        const bl_size *size = &a->remedies[n];
        json_array_append_new(
            list,
            json_pack("{s:i, s:i, s:o, s:o, s:b}", "redundant", size->redundant, "slots_per_rank",
                      size->binding.slots, "expert_bytes", number(size->binding.experts, true),
                      "kv_tokens_per_replica", number(size->kv_tokens, true), "fits", size->fits));
    }
    return list;
}

static bl_status print_json(const answer *a, bl_error *err) {
    json_t *root =
        json_pack("{s:o, s:o, s:o, s:I, s:o}", "model", model_json(&a->model), "parameters",
                  parameters_json(a), "weights_bytes", number(a->size.weights_bytes, true),
                  "expert_bytes", (json_int_t)a->model.expert_bytes, "kv_bytes_per_token",
                  number(a->model.kv_bytes_per_token, a->model.kv_bytes_per_token > 0));
    if (root != NULL && a->has_layout) {
        json_object_set_new(root, "layout", layout_json(a, &a->size));
        json_object_set_new(root, "remedies", remedies_json(a));
    }
    if (root == NULL)
        return bl_fail(err, BL_ERR_NOMEM, "out of memory");
    const bl_status st = bl_json_write("-", root, 2, err);
    json_decref(root);
    return st;
}

/* ---- text --------------------------------------------------------------------------------- */

/* "30.5 B", "12.6 M": numbers of weights and of tokens. */
static const char *counted(double n, char *out, size_t room) {
    static const struct {
        double unit;
        const char *name;
    } units[] = {{1e12, " T"}, {1e9, " B"}, {1e6, " M"}, {1e3, " k"}, {1, ""}};
    size_t u = 0;
    while (units[u].unit > 1 && fabs(n) < units[u].unit * 0.9995)
        u++;
    snprintf(out, room, fabs(n) < 999.5 ? "%.0f%s" : "%.4g%s", n / units[u].unit, units[u].name);
    return out;
}

/* "9.44 MB" */
static const char *bytes(double n, char *out, size_t room) {
    char text[32];
    const double size = fabs(n);
    const char *unit = size >= 999.5e9   ? "TB"
                       : size >= 999.5e6 ? "GB"
                       : size >= 999.5e3 ? "MB"
                                         : "kB";
    const double base = *unit == 'T' ? 1e12 : *unit == 'G' ? 1e9 : *unit == 'M' ? 1e6 : 1e3;
    snprintf(text, sizeof text, "%.3g", n / base);
    snprintf(out, room, "%s %s", text, unit);
    return out;
}

static void print_parameters(const answer *a) {
    const bl_model *model = &a->model;
    const bl_parameters *p = &model->parameters;
    const struct {
        const char *name;
        double n;
    } parts[] = {{"routed experts", p->experts},
                 {"shared experts", p->shared},
                 {"router", p->router},
                 {"attention", p->attention},
                 {"dense MLPs", p->dense},
                 {"embedding", p->embedding},
                 {"norms", p->norms}};
    char text[48], other[48];
    if (p->untold[0] != '\0') {
        printf("parameters   %s of routed experts; not told by the config: %s\n",
               counted(p->experts, text, sizeof text), p->untold);
        return;
    }
    const double total = bl_parameters_total(model);
    printf("parameters   %s in all, %s active per token\n", counted(total, text, sizeof text),
           counted(bl_parameters_active(model), other, sizeof other));
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        if (parts[i].n > 0)
            printf("  %-16s %-9s %5.1f %%\n", parts[i].name, counted(parts[i].n, text, sizeof text),
                   100 * parts[i].n / total);
    }
}

static void print_model(const answer *a) {
    const bl_model *model = &a->model;
    char text[48], other[48], third[48];
    printf("%s (%s%s%s): %d MoE layers of %d, %d experts, top-%d\n", model->name, model->type,
           model->type[0] == '\0' ? "" : ", ", bl_weight_format_name(model->weight_format),
           model->n_moe_layers, model->n_layers, model->n_experts, model->top_k);
    if (model->n_mtp_layers > 0)
        printf("             (%d multi-token-prediction layer%s left out)\n", model->n_mtp_layers,
               model->n_mtp_layers > 1 ? "s" : "");
    print_parameters(a);
    printf("weights      %s (%.4g GiB)%s\n", bytes(a->size.weights_bytes, text, sizeof text),
           a->size.weights_bytes / (double)(1 << 30),
           a->size.rest_told ? "" : ", routed experts only");
    printf("one expert   %s in one layer, %s in all %d\n",
           bytes((double)model->expert_bytes, other, sizeof other),
           bytes((double)model->expert_bytes * model->n_moe_layers, third, sizeof third),
           model->n_moe_layers);
    if (model->kv_bytes_per_token > 0)
        printf("KV cache     %s per token\n", bytes(model->kv_bytes_per_token, text, sizeof text));
    else
        puts("KV cache     not told by the config; add \"kv_bytes_per_token\"");
}

static void print_rank(const answer *a, const bl_rank_bytes *at, const char *what) {
    char experts[48], spares[48], rest[48], sum[48], memory[48], left[48];
    printf("%-12s rank %d: %d slots: experts %s", what, at->rank, at->slots,
           bytes(at->experts, experts, sizeof experts));
    if (a->size.spares > 0)
        printf(" + spares %s", bytes(at->spares, spares, sizeof spares));
    if (!a->size.rest_told) {
        puts(" + what the config does not tell");
        return;
    }
    printf(" + the rest %s = %s", bytes(at->rest, rest, sizeof rest),
           bytes(at->experts + at->spares + at->rest, sum, sizeof sum));
    if (a->has_topology)
        printf(" of %s; %s left of %.3g of it", bytes(at->memory, memory, sizeof memory),
               bytes(at->left, left, sizeof left), a->layout.memory_share);
    putchar('\n');
}

static void print_cache(const answer *a) {
    const bl_size *size = &a->size;
    char text[48], other[48], third[48];
    if (!size->fits)
        puts("             does not fit: use more ranks, fewer copies or a smaller weight format");
    else if (size->over_share)
        puts("             (the experts exceed the share of memory that the topology leaves them)");
    if (isnan(size->kv_tokens))
        return;
    printf("KV tokens    %s per replica, %s on all %d; one slot more in all layers costs %s, or "
           "%s tokens\n",
           counted(size->kv_tokens, text, sizeof text),
           counted(size->kv_tokens * size->dp, other, sizeof other), size->dp,
           bytes(size->slot_bytes, third, sizeof third),
           counted(size->slot_bytes / size->kv_bytes_per_token, (char[48]){0}, 48));
}

static void print_remedies(const answer *a) {
    char text[48];
    const int experts = a->model.n_experts, ep = a->size.ep;
    if (a->size.uneven)
        printf("uneven       %d slots on %d ranks; R = (-%d) mod %d = %d makes them equal\n",
               a->size.n_slots, ep, experts, ep, (ep - experts % ep) % ep);
    printf("\n%9s %10s %14s%s\n", "redundant", "slots/rank", "experts/rank",
           isnan(a->size.kv_tokens) ? "" : "  KV tokens per replica");
    for (int n = 0; n < a->n_remedies; n++) {
        const bl_size *size = &a->remedies[n];
        printf("%9d %10d %14s", size->redundant, size->binding.slots,
               bytes(size->binding.experts, text, sizeof text));
        if (!isnan(size->kv_tokens))
            printf("  %s%s", counted(size->kv_tokens, text, sizeof text),
                   size->fits ? "" : " (does not fit)");
        putchar('\n');
    }
}

static void print_text(const answer *a) {
    const bl_size *size = &a->size;
    print_model(a);
    if (!a->has_layout)
        return;
    printf("\nlayout       %d ranks: tp %d, dp %d, ep %d; %d + %d slots per MoE layer\n",
           size->ranks, size->tp, size->dp, size->ep, a->model.n_experts, size->redundant);
    char text[48];
    if (size->resident_parameters > 0)
        printf("resident     %s parameters on all ranks\n",
               counted(size->resident_parameters, text, sizeof text));
    print_rank(a, &size->binding, a->has_topology ? "binds" : "fullest");
    if (size->lightest.slots != size->binding.slots)
        print_rank(a, &size->lightest, "lightest");
    print_cache(a);
    print_remedies(a);
}

/* ---- the verb ----------------------------------------------------------------------------- */

static bl_status run(void *opaque, int n_args, char **args, bl_error *err) {
    (void)n_args;
    (void)args;
    const size_options *options = opaque;
    answer a = {0};
    bl_status st = find_answer(options, &a, err);
    if (st >= 0) {
        if (options->json)
            st = print_json(&a, err);
        else
            print_text(&a);
    }
    bl_topology_free(&a.topology);
    bl_model_free(&a.model);
    return st;
}

const bl_verb bl_verb_size = {
    .name = "size",
    .arguments = "",
    .summary = "count a model's weights, bytes per rank and the KV cache left",
    .details =
        "Without a topology or a layout only the model is told. With one, the bytes on a rank: "
        "experts, spare buffers and the rest (attention, dense MLPs, shared experts, embedding, "
        "cut "
        "over tp), and with a topology the tokens of KV cache that remain on the rank that has "
        "least left. What the config does not tell is said to be so, never guessed. Weights other "
        "than routed experts are assumed to take 1 byte in fp8 models, 4 in f32, else 2; "
        "activations are not counted. The table names the redundancies that make all ranks equal.",
    .options = OPTIONS,
    .options_bytes = sizeof(size_options),
    .set_defaults = set_defaults,
    .min_args = 0,
    .max_args = 0,
    .run = run};
