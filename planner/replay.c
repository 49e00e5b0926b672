#include "planner/replay_parts.h"

#include "core/mem.h"
#include "core/rng.h"
#include "planner/diff.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define RESAMPLES 2000

const char *const bl_verdict_names[] = {"recommend", "not worth it", "not enough evidence", NULL};

/* ---- statistics -------------------------------------------------------------------------------*/

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
    qsort(means, RESAMPLES, sizeof *means, bl_replay_ascending);
    *low = bl_quantile(means, RESAMPLES, 0.05);
    free(means);
    return BL_OK;
}

/* ---- which steps ------------------------------------------------------------------------------*/

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
static bool has_seen(const bl_replaying *r, const bl_plan *plan, uint64_t step) {
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

/* A plan of a trace that was cut carries the digest of what there was; the whole trace, read later,
 * has another one, and would show the plan steps it was made from. */
static bl_status check_origin(const bl_replaying *r, const bl_plan *plan, const char *name,
                              bl_error *err) {
    const json_t *complete = json_object_get(plan->provenance, "complete");
    const bl_replay_options *o = r->options;
    if (o->steps_named || o->all_steps || !json_is_false(complete))
        return BL_OK;
    const char *digest = told(plan, "trace");
    bool known = strcmp(digest, r->loads->digest) == 0;
    for (int i = 0; i < r->loads->n_parts && !known; i++)
        known = strcmp(digest, r->loads->parts[i].digest) == 0;
    if (known)
        return BL_OK;
    return bl_fail_at(err, BL_ERR_STATE, bl_at(name),
                      "was made from a trace that was cut or incomplete, so this one does not show "
                      "which of its steps the plan has seen; name steps that it has not with "
                      "--steps A:B, or plan again");
}

static bl_status select_steps(bl_replaying *r, bl_error *err) {
    const bl_replay_options *o = r->options;
    for (int p = 0; p < o->n_plans; p++)
        BL_TRY(check_origin(r, &o->plans[p], o->names[p], err));
    BL_TRY(BL_CALLOC(r->steps, r->loads->n_steps, err));
    for (size_t i = 0; i < r->loads->n_steps; i++) {
        const uint64_t id = r->loads->step_id[i];
        if ((int64_t)id < o->first_step || (int64_t)id >= o->end_step)
            continue;
        bool seen =
            !o->all_steps && o->baseline == BL_BASELINE_PLAN && has_seen(r, o->baseline_plan, id);
        for (int p = 0; p < o->n_plans && !seen && !o->all_steps; p++)
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
    if (bl_rule_needs_sources(plan->rule) && loads->source_count == NULL)
        return bl_fail_at(
            err, BL_ERR_UNSUPPORTED, bl_at(name),
            "rule \"%s\" needs to know where tokens come from: %s", bl_rule_names[plan->rule],
            loads->sources_why[0] != '\0' ? loads->sources_why : "it was not read from the trace");
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

/* ---- baseline ---------------------------------------------------------------------------------*/

/* Greedy on the summed load of the steps the first plan was made from. */
static bl_status greedy_layer(const bl_replaying *r, int row, bl_layer_placement *layer,
                              bl_error *err) {
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

static bl_status make_greedy(const bl_replaying *r, bl_placement *placement, bl_error *err) {
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
static bl_status make_baseline(const bl_replaying *r, bl_plan *out, bl_error *err) {
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
    if (st >= 0 && (plan->rule == BL_RULE_PER_STEP || bl_rule_needs_sources(plan->rule)))
        out->rule = plan->rule; /* the engine's rule, whatever the placement */
    bl_placement_free(&placement);
    return st;
}

/* ---- verdict ----------------------------------------------------------------------------------*/

static bl_status note_moves(const bl_loads *loads, const bl_diff *diff, bl_replay_score *score,
                            bl_error *err) {
    BL_TRY(BL_CALLOC(score->layer_moves, loads->n_layers, err));
    for (int l = 0; l < diff->n_layers; l++) {
        for (int row = 0; row < loads->n_layers; row++) {
            if (loads->layers[row] == diff->layer[l])
                score->layer_moves[row] = diff->layer_moves[l];
        }
    }
    return BL_OK;
}

static bl_status judge(const bl_replaying *r, const bl_plan *base,
                       const bl_replay_score *base_score, const bl_plan *plan,
                       bl_replay_score *score, bl_error *err) {
    const bl_replay_options *o = r->options;
    const bl_model *model = o->model != NULL ? o->model : &o->plans[0].model;
    bl_diff diff;
    BL_TRY(bl_diff_of(&base->placement, &plan->placement, model->expert_bytes, r->topology, &diff,
                      err));
    score->moves = diff.moves;
    score->move_bytes = diff.bytes;
    score->migration_s = diff.seconds;
    const bl_status noted = note_moves(r->loads, &diff, score, err);
    bl_diff_free(&diff);
    BL_TRY(noted);
    if (r->cost == NULL || r->n_steps == 0)
        return BL_OK;
    double *saved;
    BL_TRY(BL_CALLOC(saved, r->n_steps, err));
    for (size_t i = 0; i < r->n_steps; i++)
        saved[i] = base_score->step_us[i] - score->step_us[i];
    score->saved_us = bl_replay_mean(saved, r->n_steps);
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

static bl_status score_all(bl_replaying *r, bl_replay *out, bl_error *err) {
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
    bl_status st = bl_replay_score_plan(r, base, base_name, &out->baseline, err);
    for (int p = 0; p < o->n_plans && st >= 0; p++) {
        st = bl_replay_score_plan(r, &o->plans[p], o->names[p], &out->plans[p], err);
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
    bl_replaying r = {.loads = loads, .topology = topology, .options = options};
    const bl_model *model = options->model != NULL ? options->model : &options->plans[0].model;
    bl_replay made = {.n_plans = options->n_plans};
    BL_TRY(check_all(loads, options, err));
    if (topology != NULL)
        BL_TRY(bl_ranks_fit(topology, options->plans[0].placement.n_ranks, err));
    bl_status st = BL_CALLOC(made.plans, options->n_plans, err);
    if (st >= 0 && model->expert_bytes > 0 && topology != NULL)
        st = bl_cost_create(model, topology, options->plans[0].placement.n_ranks, &r.cost, err);
    if (r.cost != NULL && options->overlap)
        bl_cost_set_overlap(r.cost);
    if (st >= 0)
        st = select_steps(&r, err);
    if (st >= 0)
        st = bl_replay_find_sources(&r, options->plans[0].placement.n_ranks, err);
    if (st >= 0)
        st = score_all(&r, &made, err);
    if (st >= 0)
        st = bl_replay_find_noise(&r, &options->plans[0], &made, err);
    if (st >= 0)
        st = BL_CALLOC(made.step_id, r.n_steps, err);
    for (size_t i = 0; i < r.n_steps && st >= 0; i++)
        made.step_id[i] = loads->step_id[r.steps[i]];
    made.n_steps = r.n_steps;
    made.n_left_out = r.n_left_out;
    made.modelled = r.cost != NULL;
    bl_cost_free(r.cost);
    free(r.steps);
    free(r.samples);
    free(r.group);
    bl_sites_free(&r.sites);
    if (st < 0)
        bl_replay_free(&made);
    else
        *out = made;
    return st;
}

void bl_replay_free(bl_replay *replay) {
    for (int p = 0; replay->plans != NULL && p < replay->n_plans; p++)
        bl_replay_score_free(&replay->plans[p]);
    free(replay->plans);
    free(replay->step_id);
    bl_replay_score_free(&replay->baseline);
    *replay = (bl_replay){0};
}
