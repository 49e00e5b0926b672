/* stat_json.c: the object of `ballast stat --json`. Figures that are not known are null, and what
 * could not be counted says why in "state". */
#include "cli/stat_output.h"
#include "core/mem.h"

#include <math.h>
#include <stdlib.h>

#define MATRIX_MAX 65536 /* entries of a traffic matrix that are printed; --csv has no such limit */

static json_t *real(double value) {
    return isfinite(value) ? json_real(value) : json_null();
}

static json_t *whole(uint64_t value) {
    return json_integer((json_int_t)value);
}

static void set(json_t *object, const char *key, json_t *value) {
    json_object_set_new(object, key, value);
}

/* ---- experts -------------------------------------------------------------------------------- */

static json_t *hottest_to_json(const bl_stat *stat, int l, const bl_expert_figures *f,
                               const uint64_t *count) {
    json_t *list = json_array();
    for (int i = 0; i < f->n_hottest; i++) {
        const uint64_t picks =
            count != NULL ? count[f->hottest[i]] : bl_stat_count(stat, l, f->hottest[i]);
        json_array_append_new(list, json_pack("{s:i, s:o, s:o}", "expert", f->hottest[i], "count",
                                              whole(picks), "share",
                                              real((double)picks / (double)f->assignments)));
    }
    return list;
}

/* Keys that a layer has over all phases and in each. */
static void set_experts(json_t *item, const bl_stat *stat, int l, const bl_expert_figures *f,
                        const uint64_t *count) {
    set(item, "tokens", whole(f->tokens));
    set(item, "assignments", whole(f->assignments));
    set(item, "empty", whole(f->empty));
    set(item, "padding_rows", whole(f->padding_rows));
    set(item, "max_over_mean_experts", real(f->max_over_mean));
    set(item, "hottest_expert", json_integer(f->hottest[0]));
    set(item, "idle_experts", json_integer(f->n_idle));
    set(item, "entropy", real(f->entropy));
    set(item, "effective_experts", real(f->effective));
    set(item, "hottest", hottest_to_json(stat, l, f, count));
}

static json_t *layer_phases_to_json(const bl_stat *stat, int l) {
    json_t *phases = json_object();
    for (int p = 0; p < BL_N_PHASES; p++) {
        const bl_stat_phase *phase = &stat->phases[p];
        if (phase->count == NULL)
            continue;
        json_t *item = json_object();
        set_experts(item, stat, l, &phase->layers[l],
                    phase->count + (size_t)l * (size_t)stat->info.n_experts);
        set(phases, bl_phase_names[p], item);
    }
    return phases;
}

/* ---- ranks and slots ------------------------------------------------------------------------ */

static json_t *figures_to_json(const bl_quantile_figures *f) {
    return json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:b}", "n", whole(f->n), "mean",
                     real(f->mean), "p50", real(f->p50), "p95", real(f->p95), "p99", real(f->p99),
                     "max", real(f->max), "balancedness", real(f->balancedness), "exact", f->exact);
}

/* Copies of experts that have several: what each of their slots served. */
static json_t *copies_to_json(const bl_slot_loads *slots) {
    json_t *list = json_array();
    for (int rank = 0; rank < slots->map.n_ranks; rank++) {
        for (int slot = slots->map.begin[rank]; slot < slots->map.begin[rank + 1]; slot++) {
            const double share = bl_slot_share(slots, slot);
            if (isnan(share) || bl_slot_copies(slots, slot) < 2)
                continue;
            json_array_append_new(list, json_pack("{s:i, s:i, s:i, s:o, s:o}", "expert",
                                                  (int)slots->map.expert[slot], "slot", slot,
                                                  "rank", rank, "load", real(slots->load[slot]),
                                                  "share", real(share)));
        }
    }
    return list;
}

static void set_ranks(json_t *item, const bl_stat *stat, int l) {
    if (stat->predicted.layers != NULL)
        set(item, "ranks", figures_to_json(&stat->predicted.layers[l]));
    if (stat->realised.layers == NULL)
        return;
    json_t *realised = figures_to_json(&stat->realised.layers[l]);
    set(realised, "epochs", whole(stat->realised.slots[l].epochs));
    set(realised, "copies", copies_to_json(&stat->realised.slots[l]));
    set(item, "realised", realised);
}

/* ---- pairs, sources, drift ------------------------------------------------------------------ */

static json_t *top_to_json(const bl_pair_figures *f) {
    json_t *list = json_array();
    for (int i = 0; i < f->n_top; i++)
        json_array_append_new(list, json_pack("{s:i, s:i, s:o, s:o}", "a", f->top[i].a, "b",
                                              f->top[i].b, "count", whole(f->top[i].count), "lift",
                                              real(f->top[i].lift)));
    return list;
}

static void set_pairs(json_t *item, const bl_stat *stat, int l) {
    if (stat->pairs.coactivation != NULL) {
        const bl_pair_figures *f = &stat->pairs.coactivation[l];
        set(item, "coactivation",
            json_pack("{s:o, s:o, s:o}", "tokens", whole(f->tokens), "chance_lift", real(f->chance),
                      "pairs", top_to_json(f)));
    }
    if (stat->pairs.transition != NULL && l + 1 < stat->info.n_layers) {
        const bl_pair_figures *f = &stat->pairs.transition[l];
        set(item, "transition",
            json_pack("{s:i, s:o, s:o, s:o, s:o}", "to", stat->info.layers[l + 1], "tokens",
                      whole(f->tokens), "information_bits", real(f->information), "normalised",
                      real(f->normalised), "pairs", top_to_json(f)));
    }
}

static void set_sources(json_t *item, const bl_stat *stat, int l) {
    const bl_sources_result *sources = &stat->sources;
    if (sources->layers == NULL)
        return;
    const double sum = (double)stat->layers[l].experts.assignments;
    const size_t n_experts = (size_t)stat->info.n_experts;
    json_t *shares = json_array();
    for (int i = 0; i < sources->n_sources; i++) {
        const uint64_t *count =
            sources->count + ((size_t)i * (size_t)stat->info.n_layers + (size_t)l) * n_experts;
        double of_source = 0.0;
        for (size_t e = 0; e < n_experts; e++)
            of_source += (double)count[e];
        json_array_append_new(shares, real(sum > 0.0 ? of_source / sum : NAN));
    }
    set(item, "sources",
        json_pack("{s:o, s:o, s:o}", "distance", real(sources->layers[l].distance), "noise",
                  real(sources->layers[l].noise), "shares", shares));
}

static json_t *drift_to_json(const bl_drift_result *drift) {
    json_t *lags = json_array();
    for (int i = 0; i < drift->n_lags; i++)
        json_array_append_new(
            lags, json_pack("{s:o, s:o, s:o}", "steps", whole(drift->lags[i].steps), "distance",
                            real(drift->lags[i].distance), "noise", real(drift->lags[i].noise)));
    return json_pack("{s:b, s:o, s:i, s:o, s:{s:s, s:o}, s:{s:o, s:o}}", "known", drift->known,
                     "window_steps", whole(drift->window_steps), "windows", drift->n_windows,
                     "lags", lags, "half_life", "state", bl_half_life_text(drift->half_life),
                     "steps", real(drift->half_life_steps), "step_to_step", "distance",
                     real(drift->step_distance), "noise", real(drift->step_noise));
}

static json_t *layers_to_json(const bl_stat *stat, const bl_plan *plan) {
    json_t *layers = json_array();
    for (int l = 0; l < stat->info.n_layers; l++) {
        const bl_stat_layer *layer = &stat->layers[l];
        json_t *item = json_pack("{s:i, s:b, s:o}", "layer", layer->layer, "conserved",
                                 layer->conserved, "dummy_tokens", whole(layer->dummy_tokens));
        if (layer->why != NULL)
            set(item, "why", json_string(layer->why));
        set_experts(item, stat, l, &layer->experts, NULL);
        set(item, "phases", layer_phases_to_json(stat, l));
        set_ranks(item, stat, l);
        if (plan != NULL)
            set(item, "gap", real(bl_stat_plan_gap(plan, layer->layer)));
        set_pairs(item, stat, l);
        set_sources(item, stat, l);
        set(item, "step_to_step",
            json_pack("{s:o, s:o}", "distance", real(stat->drift.layers[l].distance), "noise",
                      real(stat->drift.layers[l].noise)));
        json_array_append_new(layers, item);
    }
    return layers;
}

/* ---- traffic -------------------------------------------------------------------------------- */

static json_t *matrix_to_json(const double *values, int n_rows, int n_columns) {
    json_t *rows = json_array();
    for (int i = 0; i < n_rows; i++) {
        json_t *row = json_array();
        for (int j = 0; j < n_columns; j++)
            json_array_append_new(row,
                                  json_real(values[(size_t)i * (size_t)n_columns + (size_t)j]));
        json_array_append_new(rows, row);
    }
    return rows;
}

/* Between the domains of one level. */
static json_t *domains_to_json(const bl_stat_report *report, int level) {
    const bl_sources_result *sources = &report->stat->sources;
    const int n = report->topology->levels[level].n_domains;
    double *sum = bl_calloc((size_t)n * (size_t)n, sizeof *sum);
    if (sum == NULL)
        return json_null();
    for (int i = 0; i < sources->n_sources; i++) {
        const int from = bl_topology_domain(report->topology, level, sources->rank[i]);
        for (int to = 0; to < sources->n_destinations; to++)
            sum[(size_t)from * (size_t)n +
                (size_t)bl_topology_domain(report->topology, level, to)] +=
                sources->traffic[(size_t)i * (size_t)sources->n_destinations + (size_t)to];
    }
    json_t *matrix = matrix_to_json(sum, n, n);
    free(sum);
    return matrix;
}

static json_t *levels_to_json(const bl_stat_report *report) {
    double sum[BL_MAX_LEVELS + 1], all = 0.0;
    json_t *levels = json_array();
    bl_stat_traffic_levels(report, sum);
    for (int level = 0; level <= report->topology->n_levels; level++)
        all += sum[level];
    for (int level = 0; level <= report->topology->n_levels; level++) {
        json_t *item = json_pack(
            "{s:s, s:o, s:o}", "name", level == 0 ? "rank" : report->topology->levels[level].name,
            "assignments", real(sum[level]), "share", real(all > 0.0 ? sum[level] / all : NAN));
        const double n = report->topology->levels[level].n_domains;
        if (level > 0 && n > 1 && n * n <= MATRIX_MAX)
            set(item, "between", domains_to_json(report, level));
        json_array_append_new(levels, item);
    }
    return levels;
}

static json_t *sources_to_json(const bl_stat *stat) {
    const bl_sources_result *sources = &stat->sources;
    json_t *ranks = json_array();
    for (int i = 0; i < sources->n_sources; i++)
        json_array_append_new(ranks, json_integer(sources->rank[i]));
    return json_pack("{s:s, s:o}", "state", bl_sources_state_text(sources->state), "ranks", ranks);
}

static json_t *traffic_to_json(const bl_stat_report *report) {
    const bl_sources_result *sources = &report->stat->sources;
    const size_t entries = (size_t)sources->n_sources * (size_t)sources->n_destinations;
    json_t *traffic = json_object();
    if (entries <= MATRIX_MAX)
        set(traffic, "matrix",
            matrix_to_json(sources->traffic, sources->n_sources, sources->n_destinations));
    if (report->topology != NULL)
        set(traffic, "levels", levels_to_json(report));
    return traffic;
}

/* ---- all of it ------------------------------------------------------------------------------ */

static json_t *phases_to_json(const bl_stat *stat) {
    json_t *phases = json_object();
    for (int phase = 0; phase < BL_N_PHASES; phase++) {
        if (stat->phases[phase].tokens > 0)
            set(phases, bl_phase_names[phase], whole(stat->phases[phase].tokens));
    }
    return phases;
}

static json_t *head_to_json(const bl_stat *stat) {
    return json_pack("{s:{s:s, s:i, s:i}, s:s, s:o, s:o, s:o, s:i, s:o, s:o, s:o, s:o, s:b, s:b, "
                     "s:s, s:s}",
                     "model", "name", stat->info.model, "experts", stat->info.n_experts, "top_k",
                     stat->info.top_k, "source", stat->info.source, "tokens", whole(stat->tokens),
                     "steps", whole(stat->steps), "phases", phases_to_json(stat), "ranks",
                     stat->info.n_ranks, "records", whole(stat->records), "dummy",
                     whole(stat->dummy_records), "dropped", whole(stat->dropped), "late_steps",
                     whole(stat->late_steps), "composed", stat->composed, "complete",
                     stat->complete, "notes", stat->notes, "digest", stat->digest);
}

bl_status bl_stat_print_json(const bl_stat_report *report, bl_error *err) {
    const bl_stat *stat = report->stat;
    json_t *root = head_to_json(stat);
    if (root == NULL)
        return bl_fail(err, BL_ERR_NOMEM, "out of memory");
    set(root, "layers", layers_to_json(stat, report->plan));
    if (stat->predicted.layers != NULL) {
        json_t *predicted = figures_to_json(&stat->predicted.all);
        set(predicted, "rule", json_string(bl_rule_names[report->plan->rule]));
        set(predicted, "gap", real(bl_stat_plan_gap(report->plan, -1)));
        set(root, "predicted", predicted);
    }
    if (stat->realised.layers != NULL)
        set(root, "realised", figures_to_json(&stat->realised.all));
    set(root, "pairs",
        json_pack("{s:s, s:s, s:o}", "coactivation",
                  bl_pairs_state_text(stat->pairs.coactivation_state), "transitions",
                  bl_pairs_state_text(stat->pairs.transition_state), "one_step_in",
                  whole(stat->pairs.every)));
    set(root, "sources", sources_to_json(stat));
    if (stat->sources.n_destinations > 0)
        set(root, "traffic", traffic_to_json(report));
    set(root, "drift", drift_to_json(&stat->drift));
    const bl_status st = bl_json_write("-", root, 2, err);
    json_decref(root);
    return st;
}
