/* replay_score.c: one plan, step by step. */
#include "planner/replay_parts.h"

#include "core/mem.h"
#include "core/split.h"
#include "core/split_step.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

int bl_replay_ascending(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double bl_quantile(const double *sorted, size_t n, double p) {
    const double at = p * (double)(n - 1);
    const size_t low = (size_t)at;
    if (low + 1 >= n)
        return sorted[n - 1];
    return sorted[low] + (at - (double)low) * (sorted[low + 1] - sorted[low]);
}

double bl_replay_mean(const double *values, size_t n) {
    double sum = 0.0;
    for (size_t i = 0; i < n; i++)
        sum += values[i];
    return sum / (double)n;
}

/* Scratch of one layer of one plan. */
typedef struct layer_scratch {
    double *share, *slot_rows, *rank_rows;
    int *slots_per_rank;
    bl_step_split *split; /* under BL_RULE_PER_STEP instead of shares, else NULL */
    uint64_t *split_rows;
    bl_replay_lane lane;
    double *cost_scratch; /* bl_cost_traffic_s() */
} layer_scratch;

/* Rows between ranks, of one layer in one step and of all; zeroed where sources are not known. */
typedef struct traffics {
    bl_traffic step, all;
} traffics;

static void scratch_free(layer_scratch *s) {
    free(s->share);
    free(s->slot_rows);
    free(s->rank_rows);
    free(s->slots_per_rank);
    bl_step_split_free(s->split);
    free(s->split_rows);
    bl_replay_lane_close(&s->lane);
    free(s->cost_scratch);
}

static bl_status scratch_create(const bl_plan *plan, const bl_layer_placement *placement,
                                layer_scratch *s, bl_error *err) {
    const int n_slots = bl_layer_n_slots(placement);
    const size_t l = (size_t)(placement - plan->placement.layers);
    bl_copies copies;
    BL_TRY(BL_CALLOC(s->share, n_slots, err));
    BL_TRY(BL_CALLOC(s->slot_rows, n_slots, err));
    BL_TRY(BL_CALLOC(s->rank_rows, placement->n_ranks, err));
    BL_TRY(BL_CALLOC(s->slots_per_rank, placement->n_ranks, err));
    for (int rank = 0; rank < placement->n_ranks; rank++)
        s->slots_per_rank[rank] = placement->begin[rank + 1] - placement->begin[rank];
    if (plan->rule == BL_RULE_PER_STEP) {
        BL_TRY(BL_CALLOC(s->split_rows, n_slots, err));
        return bl_step_split_create(placement, &s->split, err);
    }
    if (plan->layers[l].share != NULL) {
        memcpy(s->share, plan->layers[l].share, (size_t)n_slots * sizeof *s->share);
        return BL_OK;
    }
    BL_TRY(bl_copies_of(placement, &copies, err));
    bl_split_even_shares(placement, &copies, s->share);
    bl_copies_free(&copies);
    return BL_OK;
}

/* Rows of each slot in this step. */
static bl_status lay_slots(const bl_layer_placement *placement, const uint64_t *count,
                           layer_scratch *s, bl_error *err) {
    const int n_slots = bl_layer_n_slots(placement);
    if (s->split == NULL) {
        for (int slot = 0; slot < n_slots; slot++) {
            const int expert = placement->expert[slot];
            s->slot_rows[slot] =
                expert == BL_NO_EXPERT ? 0.0 : s->share[slot] * (double)count[expert];
        }
        return BL_OK;
    }
    bl_step_split_result result;
    BL_TRY(bl_step_split_solve(s->split, count, 0.0, &result, err));
    bl_step_split_rows(s->split, count, s->split_rows);
    for (int slot = 0; slot < n_slots; slot++)
        s->slot_rows[slot] = (double)s->split_rows[slot];
    return BL_OK;
}

/* Fills slot_rows and rank_rows; *loaded is false when the layer had no load in this step. */
static bl_status lay_rows(const bl_replaying *r, const bl_layer_placement *placement, int row,
                          size_t i, layer_scratch *s, bl_traffic *traffic, bool *loaded,
                          bl_error *err) {
    const uint64_t *count = bl_loads_row(r->loads, r->steps[i], row);
    BL_TRY(lay_slots(placement, count, s, err));
    if (s->lane.split != NULL)
        BL_TRY(bl_replay_lane_step(&s->lane, placement, i, count, s->slot_rows, traffic, err));
    double total = 0.0;
    for (int rank = 0; rank < placement->n_ranks; rank++) {
        s->rank_rows[rank] = 0.0;
        for (int slot = placement->begin[rank]; slot < placement->begin[rank + 1]; slot++)
            s->rank_rows[rank] += s->slot_rows[slot];
        total += s->rank_rows[rank];
    }
    *loaded = total > 0.0;
    return BL_OK;
}

/* To the operating point that times are asked for; returns what a row then counts. */
static double scale_rows(const bl_replaying *r, const bl_layer_placement *placement,
                         layer_scratch *s) {
    if (!(r->options->tokens_per_rank > 0.0))
        return 1.0;
    double total = 0.0;
    for (int rank = 0; rank < placement->n_ranks; rank++)
        total += s->rank_rows[rank];
    const double rows = r->options->tokens_per_rank * placement->n_ranks * r->loads->top_k;
    for (int slot = 0; slot < bl_layer_n_slots(placement); slot++)
        s->slot_rows[slot] *= rows / total;
    for (int rank = 0; rank < placement->n_ranks; rank++)
        s->rank_rows[rank] *= rows / total;
    return rows / total;
}

/* Where the rows lay, for whoever draws it. */
static void note_ranks(const layer_scratch *s, const bl_layer_placement *placement, int row,
                       size_t step, double imbalance, bl_replay_score *score) {
    double total = 0.0;
    int active = 0;
    for (int rank = 0; rank < placement->n_ranks; rank++) {
        total += s->rank_rows[rank];
        active += s->slots_per_rank[rank] > 0;
    }
    double *into = score->rank_load + (size_t)row * (size_t)placement->n_ranks;
    for (int rank = 0; rank < placement->n_ranks; rank++)
        into[rank] += s->rank_rows[rank] * active / total;
    score->step_imbalance[step] += imbalance;
    score->step_layers[step]++;
}

/* From sums to means. */
static void average_ranks(const bl_replaying *r, const size_t *loaded, bl_replay_score *score) {
    for (int row = 0; row < score->n_layers; row++) {
        for (int rank = 0; rank < score->n_ranks && loaded[row] > 0; rank++)
            score->rank_load[(size_t)row * (size_t)score->n_ranks + (size_t)rank] /=
                (double)loaded[row];
    }
    for (size_t i = 0; i < r->n_steps; i++)
        score->step_imbalance[i] =
            score->step_layers[i] > 0 ? score->step_imbalance[i] / score->step_layers[i] : NAN;
}

/* Modelled seconds of the layer in the step at hand; step->n_ranks is 0 where sources are not known. */
static double layer_s(const bl_replaying *r, const bl_layer_placement *placement, layer_scratch *s,
                      const bl_traffic *step) {
    const double scale = scale_rows(r, placement, s);
    if (step->n_ranks == 0)
        return bl_cost_layer_s(r->cost, placement, s->slot_rows, s->rank_rows);
    return bl_cost_traffic_s(r->cost, placement, s->slot_rows, step->dispatch, step->combine, scale,
                             s->cost_scratch);
}

static bl_status score_layer(bl_replaying *r, const bl_plan *plan, int row, bl_replay_score *score,
                             traffics *traffic, size_t *n_samples, bl_error *err) {
    const bl_layer_placement *placement =
        bl_placement_layer(&plan->placement, r->loads->layers[row]);
    layer_scratch s = {0};
    bl_status st = scratch_create(plan, placement, &s, err);
    if (st >= 0)
        st = bl_replay_lane_open(r, plan, placement, row, &s.lane, err);
    if (st >= 0 && r->cost != NULL)
        st = BL_CALLOC(s.cost_scratch, bl_cost_scratch(r->cost), err);
    const double counts_s = r->cost != NULL && plan->rule == BL_RULE_PER_STEP
                                ? bl_cost_counts_s(r->cost, placement->n_experts)
                                : 0.0;
    for (size_t i = 0; st >= 0 && i < r->n_steps; i++) {
        bool loaded;
        if (traffic->step.n_ranks > 0)
            bl_traffic_clear(&traffic->step);
        st = lay_rows(r, placement, row, i, &s, &traffic->step, &loaded, err);
        if (st < 0 || !loaded)
            continue;
        r->samples[(*n_samples)++] =
            bl_imbalance(s.rank_rows, s.slots_per_rank, placement->n_ranks);
        note_ranks(&s, placement, row, i, r->samples[*n_samples - 1], score);
        bl_replay_traffic_add(&traffic->all, &traffic->step);
        if (r->cost == NULL)
            continue;
        score->step_us[i] += 1e6 * (counts_s + layer_s(r, placement, &s, &traffic->step));
    }
    scratch_free(&s);
    return st;
}

/* Of n samples, which are sorted on the way. */
static bl_replay_figures figures_of(double *samples, size_t n) {
    if (n == 0)
        return (bl_replay_figures){NAN, NAN, NAN, NAN, NAN};
    const double mean = bl_replay_mean(samples, n);
    qsort(samples, n, sizeof *samples, bl_replay_ascending);
    return (bl_replay_figures){mean, bl_quantile(samples, n, 0.50), bl_quantile(samples, n, 0.95),
                               bl_quantile(samples, n, 0.99), samples[n - 1]};
}

static void summarise_imbalance(bl_replaying *r, size_t n, bl_replay_score *score) {
    double balanced = 0.0;
    for (size_t i = 0; i < n; i++)
        balanced += 1.0 / r->samples[i];
    score->balancedness = n > 0 ? balanced / (double)n : NAN;
    const bl_replay_figures all = figures_of(r->samples, n);
    score->mean = all.mean;
    score->p50 = all.p50;
    score->p95 = all.p95;
    score->p99 = all.p99;
    score->max = all.max;
    const size_t n_worst = (size_t)ceil(r->options->tail * (double)n);
    score->tail_mean = n_worst > 0 ? bl_replay_mean(r->samples + n - n_worst, n_worst) : NAN;
}

static bl_status summarise_time(const bl_replaying *r, bl_replay_score *score, bl_error *err) {
    score->step_us_mean = score->step_us_p95 = NAN;
    if (score->step_us == NULL || r->n_steps == 0)
        return BL_OK;
    double *sorted;
    BL_TRY(BL_CALLOC(sorted, r->n_steps, err));
    memcpy(sorted, score->step_us, r->n_steps * sizeof *sorted);
    qsort(sorted, r->n_steps, sizeof *sorted, bl_replay_ascending);
    score->step_us_mean = bl_replay_mean(sorted, r->n_steps);
    score->step_us_p95 = bl_quantile(sorted, r->n_steps, 0.95);
    free(sorted);
    return BL_OK;
}

static bl_status score_layers(bl_replaying *r, const bl_plan *plan, bl_replay_score *out, size_t *n,
                              bl_error *err) {
    const bl_replay_options *o = r->options;
    traffics traffic = {0};
    size_t *loaded;
    BL_TRY(BL_CALLOC(loaded, out->n_layers, err));
    bl_status st = BL_OK;
    if (r->group != NULL)
        st = bl_traffic_create(r->topology, &r->sites, o->dispatch, o->combine, &traffic.all, err);
    if (st >= 0 && r->group != NULL)
        st = bl_traffic_create(r->topology, &r->sites, o->dispatch, o->combine, &traffic.step, err);
    for (int row = 0; row < out->n_layers && st >= 0; row++) {
        const size_t before = *n;
        st = score_layer(r, plan, row, out, &traffic, n, err);
        loaded[row] = *n - before;
        out->layers[row] = figures_of(r->samples + before, *n - before);
    }
    if (st >= 0 && r->group != NULL)
        st = bl_replay_traffic_of(r, &traffic.all, &out->traffic, err);
    bl_traffic_free(&traffic.all);
    bl_traffic_free(&traffic.step);
    average_ranks(r, loaded, out);
    free(loaded);
    return st;
}

bl_status bl_replay_score_plan(bl_replaying *r, const bl_plan *plan, const char *name,
                               bl_replay_score *out, bl_error *err) {
    *out = (bl_replay_score){.name = name,
                             .migration_s = NAN,
                             .saved_us = NAN,
                             .saved_us_low = NAN,
                             .verdict = BL_VERDICT_NOT_ENOUGH_EVIDENCE};
    size_t n = 0;
    if (r->cost != NULL)
        BL_TRY(BL_CALLOC(out->step_us, r->n_steps, err));
    BL_TRY(BL_CALLOC(out->layers, r->loads->n_layers, err));
    out->n_layers = r->loads->n_layers;
    out->n_ranks = plan->placement.n_ranks;
    BL_TRY(BL_CALLOC(out->step_imbalance, r->n_steps, err));
    BL_TRY(BL_CALLOC(out->step_layers, r->n_steps, err));
    BL_TRY(BL_CALLOC(out->rank_load, (size_t)out->n_layers * (size_t)out->n_ranks, err));
    BL_TRY(score_layers(r, plan, out, &n, err));
    summarise_imbalance(r, n, out);
    return summarise_time(r, out, err);
}

void bl_replay_score_free(bl_replay_score *score) {
    free(score->step_us);
    free(score->layers);
    free(score->step_imbalance);
    free(score->step_layers);
    free(score->rank_load);
    free(score->layer_moves);
    free(score->traffic.dispatch_pairs);
    free(score->traffic.combine_pairs);
    score->traffic = (bl_replay_traffic){0};
    score->step_us = score->step_imbalance = score->rank_load = score->layer_moves = NULL;
    score->layers = NULL;
    score->step_layers = NULL;
}
