#include "planner/plan.h"

#include "core/hash.h"
#include "core/io.h"
#include "core/mem.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PLAN_FORMAT "ballast-plan"
#define PLAN_VERSION 1
#define MAX_EXPERTS 65536
#define MAX_RANKS 65536

/* Bounds a plan may name; the text of a file is turned into one of these. */
static const char *const BOUND_KINDS[] = {"mean",  "slot", "max",    "packing",
                                          "exact", "idle", "active", "other"};

bl_status bl_plan_create(const bl_model *model, bl_placement *placement, bl_plan *out,
                         bl_error *err) {
    bl_plan made = {.n_experts = model->n_experts, .top_k = model->top_k, .rule = BL_RULE_EVEN};
    BL_TRY(bl_placement_check(placement, NULL, err));
    snprintf(made.model_name, sizeof made.model_name, "%s", model->name);
    bl_status st = bl_model_copy(model, &made.model, err);
    if (st >= 0)
        st = BL_CALLOC(made.layers, placement->n_layers, err);
    if (st >= 0 && (made.provenance = json_object()) == NULL)
        st = bl_fail(err, BL_ERR_NOMEM, "out of memory");
    if (st < 0) {
        bl_plan_free(&made);
        return st;
    }
    made.placement = *placement;
    *placement = (bl_placement){0};
    made.digest = bl_plan_digest(&made);
    *out = made;
    return BL_OK;
}

void bl_plan_free(bl_plan *plan) {
    for (int l = 0; plan->layers != NULL && l < plan->placement.n_layers; l++)
        free(plan->layers[l].share);
    free(plan->layers);
    bl_placement_free(&plan->placement);
    bl_model_free(&plan->model);
    json_decref(plan->provenance);
    json_decref(plan->predicted);
    *plan = (bl_plan){0};
}

/* ---- digest -----------------------------------------------------------------------------------*/

static int ascending(const void *a, const void *b) {
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* The experts of one rank in ascending order, each with its share where the plan has shares. `keys`
 * has room for the layer's slots. */
static void hash_rank(bl_hasher *hasher, const bl_layer_placement *layer, int rank,
                      const double *share, int64_t *keys) {
    size_t n = 0;
    for (int slot = layer->begin[rank]; slot < layer->begin[rank + 1]; slot++) {
        if (layer->expert[slot] != BL_NO_EXPERT)
            keys[n++] = (int64_t)layer->expert[slot] << 32 | slot;
    }
    qsort(keys, n, sizeof *keys, ascending);
    bl_hasher_add_int(hasher, (int64_t)n);
    for (size_t i = 0; i < n; i++) {
        bl_hasher_add_int(hasher, keys[i] >> 32);
        if (share != NULL) {
            char text[32];
            const int length =
                snprintf(text, sizeof text, "%.12g", share[keys[i] & INT64_C(0xffffffff)]);
            bl_hasher_add(hasher, text, (size_t)length + 1);
        }
    }
}

bl_digest bl_plan_digest(const bl_plan *plan) {
    static const char tag[] = PLAN_FORMAT " 1";
    size_t most = 0;
    for (int l = 0; l < plan->placement.n_layers; l++) {
        const size_t n_slots = (size_t)bl_layer_n_slots(&plan->placement.layers[l]);
        most = n_slots > most ? n_slots : most;
    }
    int64_t *keys = bl_calloc(most, sizeof *keys);
    bl_hasher *hasher = bl_hasher_new();
    if (keys == NULL || hasher == NULL) {
        free(keys);
        if (hasher != NULL)
            bl_hasher_finish(hasher);
        return (bl_digest){""};
    }
    const size_t name_bytes = strlen(plan->model_name);
    bl_hasher_add(hasher, tag, sizeof tag - 1);
    bl_hasher_add_int(hasher, (int64_t)name_bytes);
    bl_hasher_add(hasher, plan->model_name, name_bytes);
    bl_hasher_add_int(hasher, plan->n_experts);
    bl_hasher_add_int(hasher, plan->top_k);
    bl_hasher_add_int(hasher, plan->placement.n_ranks);
    bl_hasher_add_int(hasher, plan->placement.n_layers);
    bl_hasher_add_int(hasher, plan->rule);
    for (int l = 0; l < plan->placement.n_layers; l++) {
        const bl_layer_placement *layer = &plan->placement.layers[l];
        bl_hasher_add_int(hasher, layer->layer);
        for (int rank = 0; rank < layer->n_ranks; rank++)
            hash_rank(hasher, layer, rank, plan->layers[l].share, keys);
    }
    free(keys);
    return bl_hasher_finish(hasher);
}

/* ---- writing ----------------------------------------------------------------------------------*/

static json_t *fractions_to_json(const bl_layer_placement *layer, const double *share) {
    json_t *ranks = json_array();
    for (int rank = 0; rank < layer->n_ranks; rank++) {
        json_t *slots = json_array();
        for (int slot = layer->begin[rank]; slot < layer->begin[rank + 1]; slot++)
            json_array_append_new(slots, json_real(share[slot]));
        json_array_append_new(ranks, slots);
    }
    return ranks;
}

static json_t *layer_to_json(const bl_plan *plan, int l) {
    const bl_layer_placement *placement = &plan->placement.layers[l];
    const bl_plan_layer *layer = &plan->layers[l];
    json_t *split = json_pack("{s:s}", "rule", bl_rule_names[plan->rule]);
    if (layer->share != NULL)
        json_object_set_new(split, "fractions", fractions_to_json(placement, layer->share));
    json_t *object = json_pack("{s:i, s:o, s:o}", "layer", placement->layer, "slots",
                               bl_layer_slots_to_json(placement), "split", split);
    if (object != NULL && layer->scored) {
        json_object_set_new(object, "score",
                            json_pack("{s:f, s:f}", "max_over_mean", layer->score.max_over_mean,
                                      "worst", layer->score.worst));
        json_object_set_new(object, "bound",
                            json_pack("{s:f, s:s}", "max_over_mean", layer->bound.max_over_mean,
                                      "kind", layer->bound.kind));
        json_object_set_new(object, "gap", json_real(layer->gap));
        if (layer->declined > 0.0)
            json_object_set_new(object, "declined", json_real(layer->declined));
        if (layer->time.step_us > 0.0)
            json_object_set_new(object, "time",
                                json_pack("{s:f, s:f, s:s, s:b}", "step_us", layer->time.step_us,
                                          "bound_us", layer->time.bound_us, "kind",
                                          layer->time.kind, "modelled", 1));
    }
    return object;
}

static json_t *model_to_json(const bl_plan *plan) {
    json_t *object = json_pack("{s:s, s:i, s:i}", "name", plan->model_name, "experts",
                               plan->n_experts, "top_k", plan->top_k);
    if (object != NULL && plan->model.n_layers > 0) {
        json_t *rest = bl_model_to_json(&plan->model);
        if (rest == NULL || json_object_update_missing(object, rest) != 0) {
            json_decref(object);
            object = NULL;
        }
        json_decref(rest);
    }
    return object;
}

json_t *bl_plan_to_json(const bl_plan *plan) {
    const bl_digest digest = bl_plan_digest(plan);
    json_t *layers = json_array();
    bool whole = layers != NULL && digest.hex[0] != '\0';
    for (int l = 0; whole && l < plan->placement.n_layers; l++)
        whole = json_array_append_new(layers, layer_to_json(plan, l)) == 0;
    if (!whole) {
        json_decref(layers);
        return NULL;
    }
    json_t *root = json_pack("{s:s, s:i, s:o, s:i, s:I, s:o, s:O}", "format", PLAN_FORMAT,
                             "version", PLAN_VERSION, "model", model_to_json(plan), "ranks",
                             plan->placement.n_ranks, "epoch", (json_int_t)plan->epoch, "layers",
                             layers, "provenance", plan->provenance);
    if (plan->predicted != NULL)
        json_object_set(root, "predicted", plan->predicted);
    if (json_object_set_new(root, "digest", json_string(digest.hex)) != 0) {
        json_decref(root);
        return NULL;
    }
    return root;
}

/* One line per key, and one per layer, so that `grep` and `diff` are of use on a plan. */
static bool write_lines(const json_t *root, FILE *out) {
    const size_t flags = JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION(12);
    const char *separator = "{", *key;
    json_t *value;
    json_object_foreach ((json_t *)root, key, value) {
        fprintf(out, "%s\"%s\":", separator, key);
        separator = ",\n";
        if (strcmp(key, "layers") != 0) {
            if (json_dumpf(value, out, flags) != 0)
                return false;
            continue;
        }
        for (size_t l = 0; l < json_array_size(value); l++) {
            fputs(l == 0 ? "[\n" : ",\n", out);
            if (json_dumpf(json_array_get(value, l), out, flags) != 0)
                return false;
        }
        fputc(']', out);
    }
    return fputs("}\n", out) >= 0;
}

bl_status bl_plan_save(const bl_plan *plan, const char *path, bl_error *err) {
    json_t *root = bl_plan_to_json(plan);
    if (root == NULL)
        return bl_fail(err, BL_ERR_NOMEM, "out of memory");
    bl_file file;
    bl_status st = bl_file_create(&file, path, err);
    if (st >= 0 && !write_lines(root, file.stream)) {
        const int why = errno;
        bl_file_discard(&file);
        st = bl_fail_at(err, BL_ERR_IO, bl_at(path), "cannot write the plan: %s", strerror(why));
    } else if (st >= 0) {
        st = bl_file_commit(&file, err);
    }
    json_decref(root);
    return st;
}

/* ---- reading ----------------------------------------------------------------------------------*/

static bl_status read_header(const json_t *root, const char *file, bl_error *err) {
    if (!json_is_object(root))
        return bl_fail_at(err, BL_ERR_PARSE, bl_at(file), "a plan is a JSON object");
    const char *format;
    int64_t version;
    BL_TRY(bl_json_string(root, "format", file, &format, err));
    if (strcmp(format, PLAN_FORMAT) != 0)
        return bl_fail_at(err, BL_ERR_VERSION, bl_at(file),
                          "the format is \"%.40s\", not \"" PLAN_FORMAT "\"", format);
    BL_TRY(bl_json_int(root, "version", INT64_MIN, INT64_MAX, file, &version, err));
    if (version != PLAN_VERSION)
        return bl_fail_at(err, BL_ERR_VERSION, bl_at(file),
                          "plan version %lld is not known; this program reads version %d",
                          (long long)version, PLAN_VERSION);
    return BL_OK;
}

static bl_status read_model(const json_t *root, const char *file, bl_plan *plan, bl_error *err) {
    const json_t *object;
    const char *name;
    int64_t experts, top_k;
    BL_TRY(bl_json_object(root, "model", file, &object, err));
    BL_TRY(bl_json_string(object, "name", file, &name, err));
    BL_TRY(bl_json_int(object, "experts", 1, MAX_EXPERTS, file, &experts, err));
    BL_TRY(bl_json_int(object, "top_k", 1, experts, file, &top_k, err));
    if (strlen(name) >= sizeof plan->model_name)
        return bl_fail_at(err, BL_ERR_RANGE, bl_at(file), "the model's name is longer than %zu",
                          sizeof plan->model_name - 1);
    snprintf(plan->model_name, sizeof plan->model_name, "%s", name);
    bl_flatten(plan->model_name);
    if (strcmp(plan->model_name, name) != 0) /* the digest is of the name as it is */
        return bl_fail_at(err, BL_ERR_PARSE, bl_at(file),
                          "the model's name holds a control character");
    plan->n_experts = (int)experts;
    plan->top_k = (int)top_k;
    if (json_object_get(object, "num_hidden_layers") == NULL)
        return BL_OK;
    BL_TRY(bl_model_from_json(object, file, &plan->model, err));
    if (plan->model.n_experts != plan->n_experts || plan->model.top_k != plan->top_k)
        return bl_fail_at(err, BL_ERR_MODEL, bl_at(file),
                          "the model block contradicts itself: experts %d and top-k %d, but "
                          "num_experts %d and num_experts_per_tok %d",
                          plan->n_experts, plan->top_k, plan->model.n_experts, plan->model.top_k);
    return BL_OK;
}

bl_status bl_plan_check_layers(const bl_plan *plan, const char *file, bl_error *err) {
    const bl_placement *placement = &plan->placement;
    const bl_model *model = &plan->model;
    if (model->n_layers == 0)
        return BL_OK;
    for (int l = 0; l < placement->n_layers; l++) {
        if (bl_model_moe_index(model, placement->layers[l].layer) < 0)
            return bl_fail_at(err, BL_ERR_MODEL, bl_at_layer(file, placement->layers[l].layer),
                              "is not a MoE layer of %s", model->name);
    }
    for (int m = 0; m < model->n_moe_layers; m++) {
        if (bl_placement_layer(placement, model->moe_layers[m]) == NULL)
            return bl_fail_at(err, BL_ERR_MODEL, bl_at_layer(file, model->moe_layers[m]),
                              "is a MoE layer of %s, but the plan leaves it out", plan->model_name);
    }
    return BL_OK;
}

static bl_status read_fraction(const json_t *value, bl_where where, int rank, double *out,
                               bl_error *err) {
    const double share = json_is_number(value) ? json_number_value(value) : NAN;
    if (!(share >= 0.0 && share <= 1.0))
        return bl_fail_at(err, BL_ERR_RANGE, where, "rank %d: a fraction is a number in [0, 1]",
                          rank);
    *out = share;
    return BL_OK;
}

/* The shares of every expert must sum to 1, and an empty slot has none. */
static bl_status check_shares(const bl_layer_placement *layer, const double *share, double *sum,
                              const char *file, bl_error *err) {
    for (int slot = 0; slot < bl_layer_n_slots(layer); slot++) {
        const int expert = layer->expert[slot];
        if (expert == BL_NO_EXPERT && share[slot] > 0.0)
            return bl_fail_at(err, BL_ERR_RANGE, bl_at_layer(file, layer->layer),
                              "slot %d is empty, but has a fraction of %g", slot, share[slot]);
        if (expert != BL_NO_EXPERT)
            sum[expert] += share[slot];
    }
    for (int expert = 0; expert < layer->n_experts; expert++) {
        if (fabs(sum[expert] - 1.0) > 1e-6)
            return bl_fail_at(err, BL_ERR_RANGE, bl_at_expert(file, layer->layer, expert),
                              "fractions sum to %g, not to 1", sum[expert]);
    }
    return BL_OK;
}

static bl_status read_fractions(const json_t *split, const bl_layer_placement *layer,
                                const char *file, double **share_p, bl_error *err) {
    const bl_where where = bl_at_layer(file, layer->layer);
    const json_t *ranks;
    BL_TRY(bl_json_array(split, "fractions", file, &ranks, err));
    if (json_array_size(ranks) != (size_t)layer->n_ranks)
        return bl_fail_at(err, BL_ERR_SHAPE, where, "fractions are given for %zu ranks, not for %d",
                          json_array_size(ranks), layer->n_ranks);
    double *share, *sum = NULL;
    BL_TRY(BL_CALLOC(share, bl_layer_n_slots(layer), err));
    bl_status st = BL_CALLOC(sum, layer->n_experts, err);
    for (int rank = 0; rank < layer->n_ranks && st >= 0; rank++) {
        const json_t *slots = json_array_get(ranks, (size_t)rank);
        const int n_slots = layer->begin[rank + 1] - layer->begin[rank];
        if (!json_is_array(slots) || json_array_size(slots) != (size_t)n_slots)
            st = bl_fail_at(err, BL_ERR_SHAPE, where,
                            "rank %d: fractions do not mirror its %d slots", rank, n_slots);
        for (int s = 0; s < n_slots && st >= 0; s++)
            st = read_fraction(json_array_get(slots, (size_t)s), where, rank,
                               &share[layer->begin[rank] + s], err);
    }
    if (st >= 0)
        st = check_shares(layer, share, sum, file, err);
    free(sum);
    if (st < 0)
        free(share);
    else
        *share_p = share;
    return st;
}

static bl_status read_split(const json_t *object, int l, const char *file, bl_plan *plan,
                            bl_error *err) {
    const bl_layer_placement *placement = &plan->placement.layers[l];
    const json_t *split = json_object_get(object, "split");
    const char *name = bl_rule_names[BL_RULE_EVEN];
    if (split != NULL) {
        BL_TRY(bl_json_object(object, "split", file, &split, err));
        BL_TRY(bl_json_string(split, "rule", file, &name, err));
    }
    int rule = 0;
    while (bl_rule_names[rule] != NULL && strcmp(bl_rule_names[rule], name) != 0)
        rule++;
    if (bl_rule_names[rule] == NULL)
        return bl_fail_at(err, BL_ERR_PARSE, bl_at_layer(file, placement->layer),
                          "split rule \"%.40s\" is not known", name);
    if (l > 0 && rule != (int)plan->rule)
        return bl_fail_at(err, BL_ERR_UNSUPPORTED, bl_at_layer(file, placement->layer),
                          "the split rule is \"%s\", but \"%s\" in the layers before; a plan has "
                          "one rule",
                          name, bl_rule_names[plan->rule]);
    plan->rule = (bl_rule)rule;
    if (plan->rule != BL_RULE_FRACTIONS)
        return BL_OK;
    return read_fractions(split, placement, file, &plan->layers[l].share, err);
}

static const char *bound_kind(const char *name) {
    const size_t n = sizeof BOUND_KINDS / sizeof BOUND_KINDS[0];
    for (size_t k = 0; k < n; k++) {
        if (strcmp(BOUND_KINDS[k], name) == 0)
            return BOUND_KINDS[k];
    }
    return BOUND_KINDS[n - 1];
}

static bl_status read_score(const json_t *object, const char *file, bl_plan_layer *layer,
                            bl_error *err) {
    const json_t *score, *bound;
    const char *kind;
    if (json_object_get(object, "score") == NULL)
        return BL_OK;
    BL_TRY(bl_json_object(object, "score", file, &score, err));
    BL_TRY(
        bl_json_real(score, "max_over_mean", 0.0, 1e300, file, &layer->score.max_over_mean, err));
    BL_TRY(bl_json_real_or(score, "worst", 0.0, 1e300, layer->score.max_over_mean, file,
                           &layer->score.worst, err));
    BL_TRY(bl_json_object(object, "bound", file, &bound, err));
    BL_TRY(
        bl_json_real(bound, "max_over_mean", 0.0, 1e300, file, &layer->bound.max_over_mean, err));
    BL_TRY(bl_json_string(bound, "kind", file, &kind, err));
    BL_TRY(bl_json_real(object, "gap", 0.0, 1e300, file, &layer->gap, err));
    BL_TRY(bl_json_real_or(object, "declined", 0.0, 1.0, 0.0, file, &layer->declined, err));
    layer->bound.kind = bound_kind(kind);
    layer->scored = true;
    return BL_OK;
}

static bl_status read_time(const json_t *object, const char *file, bl_plan_layer *layer,
                           bl_error *err) {
    const json_t *time;
    const char *kind;
    if (json_object_get(object, "time") == NULL)
        return BL_OK;
    BL_TRY(bl_json_object(object, "time", file, &time, err));
    BL_TRY(bl_json_real(time, "step_us", 0.0, 1e300, file, &layer->time.step_us, err));
    BL_TRY(bl_json_real(time, "bound_us", 0.0, 1e300, file, &layer->time.bound_us, err));
    BL_TRY(bl_json_string(time, "kind", file, &kind, err));
    layer->time.kind = bound_kind(kind);
    return BL_OK;
}

static bl_status read_layers(const json_t *root, const char *file, bl_plan *plan, bl_error *err) {
    const json_t *layers;
    int64_t ranks, epoch;
    BL_TRY(bl_json_int(root, "ranks", 1, MAX_RANKS, file, &ranks, err));
    BL_TRY(bl_json_int_or(root, "epoch", 0, INT64_MAX, 0, file, &epoch, err));
    BL_TRY(bl_json_array(root, "layers", file, &layers, err));
    plan->epoch = (uint64_t)epoch;
    BL_TRY(bl_placement_from_json(layers, (int)ranks, plan->n_experts, plan->epoch, file,
                                  &plan->placement, err));
    BL_TRY(bl_placement_check(&plan->placement, file, err));
    BL_TRY(bl_plan_check_layers(plan, file, err));
    BL_TRY(BL_CALLOC(plan->layers, plan->placement.n_layers, err));
    for (int l = 0; l < plan->placement.n_layers; l++) {
        const json_t *object = json_array_get(layers, (size_t)l);
        bl_status st = read_split(object, l, file, plan, err);
        if (st >= 0)
            st = read_score(object, file, &plan->layers[l], err);
        if (st >= 0)
            st = read_time(object, file, &plan->layers[l], err);
        if (st < 0 && err != NULL && err->layer < 0)
            err->layer = plan->placement.layers[l].layer;
        if (st < 0)
            return st;
    }
    return BL_OK;
}

/* What replay leaves out depends on it: a range that cannot be read is not taken for none. */
static bl_status check_steps(const json_t *provenance, const char *file, bl_error *err) {
    const json_t *steps = json_object_get(provenance, "steps");
    const json_t *from = json_array_get(steps, 0), *to = json_array_get(steps, 1);
    if (steps == NULL || json_is_null(steps))
        return BL_OK;
    if (json_array_size(steps) != 2 || !json_is_integer(from) || !json_is_integer(to) ||
        json_integer_value(from) < 0 || json_integer_value(to) < json_integer_value(from))
        return bl_fail_at(err, BL_ERR_PARSE, bl_at(file),
                          "\"steps\" of the provenance must be a half-open range [A,B] of steps");
    return BL_OK;
}

static bl_status read_provenance(const json_t *root, const char *file, bl_plan *plan,
                                 bl_error *err) {
    const json_t *provenance = json_object_get(root, "provenance");
    if (provenance != NULL)
        BL_TRY(bl_json_object(root, "provenance", file, &provenance, err));
    BL_TRY(check_steps(provenance, file, err));
    plan->provenance = provenance != NULL ? json_deep_copy(provenance) : json_object();
    const json_t *predicted = json_object_get(root, "predicted");
    if (predicted != NULL) {
        BL_TRY(bl_json_object(root, "predicted", file, &predicted, err));
        plan->predicted = json_deep_copy(predicted);
    }
    return plan->provenance != NULL && (predicted == NULL) == (plan->predicted == NULL)
               ? BL_OK
               : bl_fail(err, BL_ERR_NOMEM, "out of memory");
}

static bl_status check_digest(const json_t *root, const char *file, bl_plan *plan, bl_error *err) {
    const char *claimed;
    plan->digest = bl_plan_digest(plan);
    if (plan->digest.hex[0] == '\0')
        return bl_fail(err, BL_ERR_NOMEM, "out of memory");
    BL_TRY(bl_json_string_or(root, "digest", plan->digest.hex, file, &claimed, err));
    if (strcmp(claimed, plan->digest.hex) != 0)
        return bl_fail_at(
            err, BL_ERR_CHECKSUM, bl_at(file),
            "the digest %.40s does not match the content, whose digest is %s; the "
            "plan was damaged or edited (an edited plan needs its \"digest\" removed)",
            claimed, plan->digest.hex);
    return BL_OK;
}

bl_status bl_plan_from_json(const json_t *root, const char *file, bl_plan *out, bl_error *err) {
    bl_plan plan = {0};
    bl_status st = read_header(root, file, err);
    if (st >= 0)
        st = read_model(root, file, &plan, err);
    if (st >= 0)
        st = read_layers(root, file, &plan, err);
    if (st >= 0)
        st = read_provenance(root, file, &plan, err);
    if (st >= 0)
        st = check_digest(root, file, &plan, err);
    if (st < 0)
        bl_plan_free(&plan);
    else
        *out = plan;
    return st;
}

bl_status bl_plan_load(const char *path, bl_plan *out, bl_error *err) {
    json_t *root;
    BL_TRY(bl_json_load(path, &root, err));
    const bl_status st = bl_plan_from_json(root, path, out, err);
    json_decref(root);
    return st;
}

/* ---- questions --------------------------------------------------------------------------------*/

bl_status bl_plan_comparable(const bl_plan *a, const char *a_name, const bl_plan *b,
                             const char *b_name, bl_error *err) {
    if (strcmp(a->model_name, b->model_name) != 0 || a->n_experts != b->n_experts ||
        a->top_k != b->top_k)
        return bl_fail_at(err, BL_ERR_MODEL, bl_at(b_name),
                          "is for model %s (%d experts, top-%d), but %s is for %s (%d, top-%d)",
                          b->model_name, b->n_experts, b->top_k, a_name, a->model_name,
                          a->n_experts, a->top_k);
    if (a->placement.n_ranks != b->placement.n_ranks)
        return bl_fail_at(err, BL_ERR_SHAPE, bl_at(b_name), "is for %d ranks, but %s is for %d",
                          b->placement.n_ranks, a_name, a->placement.n_ranks);
    const int n = a->placement.n_layers < b->placement.n_layers ? a->placement.n_layers
                                                                : b->placement.n_layers;
    for (int l = 0; l < n; l++) {
        const int x = a->placement.layers[l].layer, y = b->placement.layers[l].layer;
        if (x != y)
            return bl_fail_at(err, BL_ERR_MODEL, bl_at_layer(b_name, x < y ? x : y),
                              "is only in %s", x < y ? a_name : b_name);
    }
    if (a->placement.n_layers != b->placement.n_layers)
        return bl_fail_at(err, BL_ERR_MODEL, bl_at(b_name), "has %d layers, but %s has %d",
                          b->placement.n_layers, a_name, a->placement.n_layers);
    return BL_OK;
}

bool bl_plan_steps(const bl_plan *plan, int64_t *first, int64_t *end) {
    const json_t *steps = json_object_get(plan->provenance, "steps");
    const json_t *from = json_array_get(steps, 0), *to = json_array_get(steps, 1);
    if (!json_is_integer(from) || !json_is_integer(to))
        return false;
    *first = json_integer_value(from);
    *end = json_integer_value(to);
    return true;
}
