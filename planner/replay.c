#include "planner/replay.h"

#include "core/mem.h"
#include "core/rng.h"
#include "core/split.h"
#include "core/split_step.h"
#include "planner/cost.h"
#include "planner/diff.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define RESAMPLES 2000

const char *const bl_verdict_names[] = {"recommend", "not worth it", "not enough evidence", NULL};

/* ---- statistics -------------------------------------------------------------------------------*/

static int ascending(const void *a, const void *b) {
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

static double mean_of(const double *values, size_t n) {
    double sum = 0.0;
    for (size_t i = 0; i < n; i++)
        sum += values[i];
    return sum / (double)n;
}

/* The mean of n values drawn in whole blocks, wrapping around the end. */
static double resample(const double *values, size_t n, size_t block, bl_rng *rng) {
    double sum = 0.0;
    for (size_t taken = 0; taken < n;) {
        size_t at = bl_rng_below(rng, (uint32_t)n);
        for (size_t i = 0; i < block && taken < n; i++, taken++) {
            sum += values[at];
            at = at + 1 < n ? at + 1 : 0;
        }
    }
    return sum / (double)n;
}

bl_status bl_bootstrap_low(const double *values, size_t n, uint64_t seed, double *low,
                           bl_error *err) {
    double *means;
    BL_TRY(BL_CALLOC(means, RESAMPLES, err));
    const size_t block = (size_t)lround(cbrt((double)n));
    bl_rng rng;
    bl_rng_seed(&rng, seed);
    for (int r = 0; r < RESAMPLES; r++)
        means[r] = resample(values, n, block > 0 ? block : 1, &rng);
    qsort(means, RESAMPLES, sizeof *means, ascending);
    *low = bl_quantile(means, RESAMPLES, 0.05);
    free(means);
    return BL_OK;
}

/* ---- which steps ------------------------------------------------------------------------------*/

typedef struct run {
    const bl_loads *loads;
    const bl_topology *topology;
    const bl_replay_options *options;
    bl_cost *cost; /* NULL: the model's sizes are not known */
    size_t *steps; /* [n_steps] indices into loads; owned */
    size_t n_steps, n_left_out;
    double *samples; /* [n_steps x n_layers] scratch; owned */
} run;

static const char *told(const bl_plan *plan, const char *key) {
    const char *text = json_string_value(json_object_get(plan->provenance, key));
    return text != NULL ? text : "";
}

static bool planned_on(const bl_plan *plan, int64_t step) {
    int64_t first, end;
    return !bl_plan_steps(plan, &first, &end) || (step >= first && step < end);
}

/* Did the plan's trace, or one of its several, hold `offset` of the trace with this digest, and was
 * it planned on? */
static bool has_seen_part(const bl_plan *plan, const char *digest, int64_t offset) {
    const json_t *traces = json_object_get(plan->provenance, "traces");
    if (digest[0] != '\0' && strcmp(told(plan, "trace"), digest) == 0 && planned_on(plan, offset))
        return true;
    for (size_t i = 0; i < json_array_size(traces); i++) {
        const json_t *trace = json_array_get(traces, i);
        const char *name = json_string_value(json_object_get(trace, "trace"));
        const json_t *first = json_array_get(json_object_get(trace, "steps"), 0);
        if (name != NULL && strcmp(name, digest) == 0 &&
            planned_on(plan, json_integer_value(first) + offset))
            return true;
    }
    return false;
}

/* Was the plan made from this step of this trace? Steps are told by the file they come from, so that
 * several traces may be read together, apart or in another order than for the plan. */
static bool has_seen(const run *r, const bl_plan *plan, uint64_t step) {
    const char *phase = told(plan, "phase"), *scored = r->options->phase;
    if (scored != NULL && phase[0] != '\0' && strcmp(phase, "all") != 0 &&
        strcmp(phase, scored) != 0)
        return false;
    if (has_seen_part(plan, r->loads->digest, (int64_t)step))
        return true;
    for (int i = 0; i < r->loads->n_parts; i++) {
        const bl_loads_part *part = &r->loads->parts[i];
        if (step >= part->first && step < part->end)
            return has_seen_part(plan, part->digest, (int64_t)(step - part->first));
    }
    return false;
}

static bl_status select_steps(run *r, bl_error *err) {
    const bl_replay_options *o = r->options;
    BL_TRY(BL_CALLOC(r->steps, r->loads->n_steps, err));
    for (size_t i = 0; i < r->loads->n_steps; i++) {
        const uint64_t id = r->loads->step_id[i];
        if ((int64_t)id < o->first_step || (int64_t)id >= o->end_step)
            continue;
        bool seen = o->baseline == BL_BASELINE_PLAN && has_seen(r, o->baseline_plan, id);
        for (int p = 0; p < o->n_plans && !seen; p++)
            seen = has_seen(r, &o->plans[p], id);
        if (seen)
            r->n_left_out++;
        else
            r->steps[r->n_steps++] = i;
    }
    size_t samples;
    if (!bl_size_mul(r->n_steps, (size_t)r->loads->n_layers, &samples))
        return bl_fail(err, BL_ERR_NOMEM, "out of memory");
    return BL_CALLOC(r->samples, samples, err);
}

static bl_status check_plan(const bl_plan *plan, const char *name, const bl_loads *loads,
                            bl_error *err) {
    if (plan->n_experts != loads->n_experts)
        return bl_fail_at(err, BL_ERR_MODEL, bl_at(name),
                          "is for %d experts per layer, but the trace has %d", plan->n_experts,
                          loads->n_experts);
    for (int row = 0; row < loads->n_layers; row++) {
        if (bl_placement_layer(&plan->placement, loads->layers[row]) == NULL)
            return bl_fail_at(err, BL_ERR_MODEL, bl_at_layer(name, loads->layers[row]),
                              "is in the trace, but not in the plan");
    }
    if (bl_rule_needs_sources(plan->rule))
        return bl_fail_at(
            err, BL_ERR_UNSUPPORTED, bl_at(name),
            "rule \"%s\" needs to know where tokens come from, which a trace of loads "
            "does not tell",
            bl_rule_names[plan->rule]);
    return BL_OK;
}

static bl_status check_all(const bl_loads *loads, const bl_replay_options *o, bl_error *err) {
    for (int row = 0; row < loads->n_layers; row++) {
        if (!loads->usable[row] && bl_loads_has_counts(loads, row))
            return bl_fail_at(err, BL_ERR_CONSERVATION, bl_at_layer(NULL, loads->layers[row]),
                              "cannot be scored on: %s", loads->why[row]);
    }
    for (int p = 0; p < o->n_plans; p++) {
        BL_TRY(check_plan(&o->plans[p], o->names[p], loads, err));
        BL_TRY(bl_plan_comparable(&o->plans[0], o->names[0], &o->plans[p], o->names[p], err));
    }
    if (o->baseline != BL_BASELINE_PLAN)
        return BL_OK;
    BL_TRY(check_plan(o->baseline_plan, o->baseline_name, loads, err));
    return bl_plan_comparable(&o->plans[0], o->names[0], o->baseline_plan, o->baseline_name, err);
}

/* ---- scoring one plan -------------------------------------------------------------------------*/

/* Scratch of one layer of one plan. */
typedef struct layer_scratch {
    double *share, *slot_rows, *rank_rows;
    int *slots_per_rank;
    bl_step_split *split; /* under BL_RULE_PER_STEP instead of shares, else NULL */
    uint64_t *split_rows;
} layer_scratch;

static void scratch_free(layer_scratch *s) {
    free(s->share);
    free(s->slot_rows);
    free(s->rank_rows);
    free(s->slots_per_rank);
    bl_step_split_free(s->split);
    free(s->split_rows);
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
static bl_status lay_rows(const bl_layer_placement *placement, const uint64_t *count,
                          layer_scratch *s, bool *loaded, bl_error *err) {
    BL_TRY(lay_slots(placement, count, s, err));
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

static bl_status score_layer(run *r, const bl_plan *plan, int row, bl_replay_score *score,
                             size_t *n_samples, bl_error *err) {
    const bl_layer_placement *placement =
        bl_placement_layer(&plan->placement, r->loads->layers[row]);
    layer_scratch s = {0};
    bl_status st = scratch_create(plan, placement, &s, err);
    const double counts_s = r->cost != NULL && plan->rule == BL_RULE_PER_STEP
                                ? bl_cost_counts_s(r->cost, placement->n_experts)
                                : 0.0;
    for (size_t i = 0; st >= 0 && i < r->n_steps; i++) {
        bool loaded;
        st = lay_rows(placement, bl_loads_row(r->loads, r->steps[i], row), &s, &loaded, err);
        if (st < 0 || !loaded)
            continue;
        r->samples[(*n_samples)++] =
            bl_imbalance(s.rank_rows, s.slots_per_rank, placement->n_ranks);
        if (r->cost != NULL)
            score->step_us[i] +=
                1e6 * (counts_s + bl_cost_layer_s(r->cost, placement, s.slot_rows, s.rank_rows));
    }
    scratch_free(&s);
    return st;
}

static void summarise_imbalance(run *r, size_t n, bl_replay_score *score) {
    score->mean = score->p50 = score->p95 = score->p99 = score->max = score->balancedness = NAN;
    if (n == 0)
        return;
    double balanced = 0.0;
    for (size_t i = 0; i < n; i++)
        balanced += 1.0 / r->samples[i];
    score->balancedness = balanced / (double)n;
    score->mean = mean_of(r->samples, n);
    qsort(r->samples, n, sizeof *r->samples, ascending);
    score->p50 = bl_quantile(r->samples, n, 0.50);
    score->p95 = bl_quantile(r->samples, n, 0.95);
    score->p99 = bl_quantile(r->samples, n, 0.99);
    score->max = r->samples[n - 1];
}

static bl_status summarise_time(const run *r, bl_replay_score *score, bl_error *err) {
    score->step_us_mean = score->step_us_p95 = NAN;
    if (score->step_us == NULL || r->n_steps == 0)
        return BL_OK;
    double *sorted;
    BL_TRY(BL_CALLOC(sorted, r->n_steps, err));
    memcpy(sorted, score->step_us, r->n_steps * sizeof *sorted);
    qsort(sorted, r->n_steps, sizeof *sorted, ascending);
    score->step_us_mean = mean_of(sorted, r->n_steps);
    score->step_us_p95 = bl_quantile(sorted, r->n_steps, 0.95);
    free(sorted);
    return BL_OK;
}

static bl_status score_plan(run *r, const bl_plan *plan, const char *name, bl_replay_score *out,
                            bl_error *err) {
    *out = (bl_replay_score){.name = name,
                             .migration_s = NAN,
                             .saved_us = NAN,
                             .saved_us_low = NAN,
                             .verdict = BL_VERDICT_NOT_ENOUGH_EVIDENCE};
    size_t n = 0;
    if (r->cost != NULL)
        BL_TRY(BL_CALLOC(out->step_us, r->n_steps, err));
    for (int row = 0; row < r->loads->n_layers; row++)
        BL_TRY(score_layer(r, plan, row, out, &n, err));
    summarise_imbalance(r, n, out);
    return summarise_time(r, out, err);
}

/* ---- baseline ---------------------------------------------------------------------------------*/

/* Greedy on the summed load of the steps the first plan was made from. */
static bl_status greedy_layer(const run *r, int row, bl_layer_placement *layer, bl_error *err) {
    const bl_plan *plan = &r->options->plans[0];
    double *load;
    int *slots_per_rank = NULL;
    BL_TRY(BL_CALLOC(load, r->loads->n_experts, err));
    bl_status st = BL_CALLOC(slots_per_rank, layer->n_ranks, err);
    for (size_t i = 0; st >= 0 && i < r->loads->n_steps; i++) {
        if (!has_seen(r, plan, r->loads->step_id[i]))
            continue;
        const uint64_t *count = bl_loads_row(r->loads, i, row);
        for (int e = 0; e < r->loads->n_experts; e++)
            load[e] += (double)count[e];
    }
    for (int rank = 0; st >= 0 && rank < layer->n_ranks; rank++)
        slots_per_rank[rank] = layer->begin[rank + 1] - layer->begin[rank];
    if (st >= 0) {
        const bl_problem problem = {.layer = layer->layer,
                                    .n_experts = layer->n_experts,
                                    .n_ranks = layer->n_ranks,
                                    .n_scenarios = 1,
                                    .load = load,
                                    .slots_per_rank = slots_per_rank,
                                    .rule = BL_RULE_EVEN,
                                    .max_moves = -1};
        bl_solve_options options = BL_SOLVE_OPTIONS_INIT;
        bl_solution solution = {0};
        options.algorithm = BL_ALG_GREEDY;
        st = bl_solve(&problem, &options, &solution, err);
        if (st >= 0) {
            bl_layer_placement_free(layer);
            *layer = solution.placement;
            solution.placement = (bl_layer_placement){0};
        }
        bl_solution_free(&solution);
    }
    free(load);
    free(slots_per_rank);
    return st;
}

static bl_status make_greedy(const run *r, bl_placement *placement, bl_error *err) {
    const bl_plan *plan = &r->options->plans[0];
    bool seen = false;
    for (size_t i = 0; i < r->loads->n_steps && !seen; i++)
        seen = has_seen(r, plan, r->loads->step_id[i]);
    if (!seen)
        return bl_fail(
            err, BL_ERR_STATE,
            "%s was not made from this trace, so there are no steps to make the greedy "
            "baseline from; make one with ballast plan --algorithm greedy and give it as "
            "--baseline",
            r->options->names[0]);
    for (int row = 0; row < r->loads->n_layers; row++)
        BL_TRY(greedy_layer(r, row, bl_placement_layer(placement, r->loads->layers[row]), err));
    return BL_OK;
}

/* A placement on the first plan's slots, as a plan of the same model. */
static bl_status make_baseline(const run *r, bl_plan *out, bl_error *err) {
    const bl_plan *plan = &r->options->plans[0];
    bl_placement placement;
    BL_TRY(bl_placement_copy(&plan->placement, &placement, err));
    for (int l = 0; l < placement.n_layers; l++) {
        for (int slot = 0; slot < bl_layer_n_slots(&placement.layers[l]); slot++)
            placement.layers[l].expert[slot] = BL_NO_EXPERT;
    }
    bl_placement_fill_contiguous(&placement);
    bl_status st = BL_OK;
    if (r->options->baseline == BL_BASELINE_GREEDY)
        st = make_greedy(r, &placement, err);
    if (st >= 0)
        st = bl_plan_create(&plan->model, &placement, out, err);
    if (st >= 0 && plan->rule == BL_RULE_PER_STEP)
        out->rule = plan->rule; /* an engine that splits each step does so on any placement */
    bl_placement_free(&placement);
    return st;
}

/* ---- verdict ----------------------------------------------------------------------------------*/

static bl_status judge(const run *r, const bl_plan *base, const bl_replay_score *base_score,
                       const bl_plan *plan, bl_replay_score *score, bl_error *err) {
    const bl_replay_options *o = r->options;
    const bl_model *model = o->model != NULL ? o->model : &o->plans[0].model;
    bl_diff diff;
    BL_TRY(bl_diff_of(&base->placement, &plan->placement, model->expert_bytes, r->topology, &diff,
                      err));
    score->moves = diff.moves;
    score->move_bytes = diff.bytes;
    score->migration_s = diff.seconds;
    bl_diff_free(&diff);
    if (r->cost == NULL || r->n_steps == 0)
        return BL_OK;
    double *saved;
    BL_TRY(BL_CALLOC(saved, r->n_steps, err));
    for (size_t i = 0; i < r->n_steps; i++)
        saved[i] = base_score->step_us[i] - score->step_us[i];
    score->saved_us = mean_of(saved, r->n_steps);
    bl_status st = BL_OK;
    if (r->n_steps >= BL_REPLAY_MIN_STEPS) {
        st = bl_bootstrap_low(saved, r->n_steps, o->seed, &score->saved_us_low, err);
        const bool pays = score->saved_us_low * o->dwell_steps > 1e6 * score->migration_s;
        score->verdict = pays ? BL_VERDICT_RECOMMEND : BL_VERDICT_NOT_WORTH_IT;
    }
    free(saved);
    return st;
}

static bool is_better(const bl_replay_score *a, const bl_replay_score *b, double dwell_steps) {
    if (isnan(a->saved_us) || isnan(b->saved_us))
        return a->mean < b->mean;
    return a->saved_us * dwell_steps - 1e6 * a->migration_s >
           b->saved_us * dwell_steps - 1e6 * b->migration_s;
}

static bl_status score_all(run *r, bl_replay *out, bl_error *err) {
    const bl_replay_options *o = r->options;
    static const char *const names[] = {"contiguous", "greedy"};
    bl_plan made = {0};
    const bl_plan *base = o->baseline_plan;
    const char *base_name = o->baseline_name;
    if (o->baseline != BL_BASELINE_PLAN) {
        BL_TRY(make_baseline(r, &made, err));
        base = &made;
        base_name = names[o->baseline];
    }
    bl_status st = score_plan(r, base, base_name, &out->baseline, err);
    for (int p = 0; p < o->n_plans && st >= 0; p++) {
        st = score_plan(r, &o->plans[p], o->names[p], &out->plans[p], err);
        if (st >= 0)
            st = judge(r, base, &out->baseline, &o->plans[p], &out->plans[p], err);
        if (st >= 0 && is_better(&out->plans[p], &out->plans[out->best], o->dwell_steps))
            out->best = p;
    }
    bl_plan_free(&made);
    if (st >= 0)
        out->verdict = out->plans[out->best].verdict;
    return st;
}

bl_status bl_replay_run(const bl_loads *loads, const bl_topology *topology,
                        const bl_replay_options *options, bl_replay *out, bl_error *err) {
    run r = {.loads = loads, .topology = topology, .options = options};
    const bl_model *model = options->model != NULL ? options->model : &options->plans[0].model;
    bl_replay made = {.n_plans = options->n_plans};
    BL_TRY(check_all(loads, options, err));
    BL_TRY(bl_ranks_fit(topology, options->plans[0].placement.n_ranks, err));
    bl_status st = BL_CALLOC(made.plans, options->n_plans, err);
    if (st >= 0 && model->expert_bytes > 0)
        st = bl_cost_create(model, topology, options->plans[0].placement.n_ranks, &r.cost, err);
    if (st >= 0)
        st = select_steps(&r, err);
    if (st >= 0)
        st = score_all(&r, &made, err);
    made.n_steps = r.n_steps;
    made.n_left_out = r.n_left_out;
    made.modelled = r.cost != NULL;
    bl_cost_free(r.cost);
    free(r.steps);
    free(r.samples);
    if (st < 0)
        bl_replay_free(&made);
    else
        *out = made;
    return st;
}

void bl_replay_free(bl_replay *replay) {
    for (int p = 0; replay->plans != NULL && p < replay->n_plans; p++)
        free(replay->plans[p].step_us);
    free(replay->plans);
    free(replay->baseline.step_us);
    *replay = (bl_replay){0};
}
