/*
 * planning_result.c: the summary, where a plan came from, and the plan itself.
 */
#include "planner/planning_parts.h"

#include "core/mem.h"

#include <stdlib.h>

/* ---- the summary ------------------------------------------------------------------------------*/

static void figure_add(bl_planning_figure *figure, double value, const bl_planning_job *j, int n) {
    figure->mean += value / n;
    if (value > figure->worst) {
        figure->worst = value;
        figure->worst_layer = j->layer;
    }
}

/* Slots on a rank, in all layers together. */
static int64_t slots_of_rank(const bl_planning *r, int rank) {
    int64_t sum = 0;
    for (int m = 0; m < r->n_jobs; m++)
        sum += r->jobs[m].problem.slots_per_rank[rank];
    return sum;
}

/* Bytes of the copies beyond each expert's first, laid on the rank that has most slots beyond its
 * even part of the experts. */
static void price_replicas(const bl_planning *r, bl_planning_summary *s) {
    const uint64_t bytes = r->model->expert_bytes;
    const int n_experts = r->model->n_experts;
    int64_t most = 0, all = 0;
    for (int rank = 0; rank < r->options->n_ranks; rank++) {
        const int64_t here = slots_of_rank(r, rank);
        most = here > most ? here : most;
        all += here;
    }
    for (int m = 0; m < r->n_jobs; m++) {
        const int64_t replicas = bl_problem_n_slots(&r->jobs[m].problem) - n_experts;
        s->replicas = replicas > s->replicas ? replicas : s->replicas;
    }
    s->resident_bytes = (uint64_t)most * bytes;
    s->replica_bytes = (uint64_t)(all - (int64_t)n_experts * r->n_jobs) * bytes;
    const double extra =
        (double)most - (double)n_experts * r->n_jobs / r->options->capacity.n_active;
    s->rank_bytes = (uint64_t)((extra > 0.0 ? extra : 0.0) * (double)bytes);
    s->spare_bytes = (uint64_t)r->options->spares * bytes;
    if (r->model->kv_bytes_per_token > 0.0)
        s->kv_tokens_lost = (double)(s->rank_bytes + s->spare_bytes) / r->model->kv_bytes_per_token;
}

/* Has the expert copies in the placement in force, and all of them on masked ranks? */
static bool is_orphan(const bl_planning *r, const bl_planning_job *j, int expert) {
    bool masked = false;
    for (int rank = 0; j->problem.current != NULL && rank < r->options->n_ranks; rank++) {
        if (bl_layer_find(j->problem.current, rank, expert) < 0)
            continue;
        if (r->options->capacity.slots_per_rank[rank] > 0)
            return false;
        masked = true;
    }
    return masked;
}

void bl_planning_summarise(const bl_planning *r, bl_planning_summary *s) {
    *s = (bl_planning_summary){.n_layers = r->n_jobs,
                               .n_steps = r->loads->n_steps,
                               .steps_per_scenario = r->steps_per_scenario,
                               .current_given = r->options->current != NULL,
                               .compared = r->options->compare,
                               .has_rules = bl_planning_has_rules(r),
                               .stopped = r->stopped};
    for (int m = 0; m < r->n_jobs; m++) {
        s->n_idle += r->jobs[m].idle;
        s->n_missing += r->jobs[m].row < 0;
        for (int expert = 0; expert < r->model->n_experts; expert++)
            s->n_orphans += is_orphan(r, &r->jobs[m], expert);
    }
    const int n = r->n_jobs - s->n_idle;
    for (int m = 0; m < r->n_jobs; m++) {
        const bl_planning_job *j = &r->jobs[m];
        s->moves += j->moves;
        if (j->idle)
            continue;
        s->n_proven += j->solution.gap <= 0.0;
        figure_add(&s->before, j->before.max_over_mean, j, n);
        figure_add(&s->greedy, j->greedy.max_over_mean, j, n);
        figure_add(&s->score, j->solution.score.max_over_mean, j, n);
        figure_add(&s->bound, j->solution.bound.max_over_mean, j, n);
        figure_add(&s->gap, j->solution.gap, j, n);
        s->before_us += j->before_us;
        s->greedy_us += j->greedy_us;
        s->score_us += j->solution.time.step_us;
        s->bound_us += j->solution.time.bound_us;
        s->free_us += j->free_us;
        figure_add(&s->free, j->free.max_over_mean, j, n);
        s->n_groups_proven += j->groups_proven;
    }
    price_replicas(r, s);
    bl_planning_sum_traffic(r, s);
    s->budget_slots = r->replica_slots;
    s->budget_proven = r->replicas_proven;
    double total = 0.0;
    for (int m = 0; m < r->n_jobs; m++)
        total += r->jobs[m].level_first;
    if (total > 0.0)
        s->budget_gain = (r->replica_gain - r->replica_even_gain) / total;
}

static json_t *idle_layers(const bl_planning *r, bool missing) {
    json_t *ids = json_array();
    for (int m = 0; m < r->n_jobs; m++) {
        if (r->jobs[m].idle && (r->jobs[m].row < 0) == missing)
            json_array_append_new(ids, json_integer(r->jobs[m].layer));
    }
    return ids;
}

static json_t *masked_ranks(const bl_planning *r) {
    json_t *ranks = json_array();
    for (int rank = 0; rank < r->options->n_ranks; rank++) {
        if (r->options->capacity.slots_per_rank[rank] == 0)
            json_array_append_new(ranks, json_integer(rank));
    }
    return ranks;
}

static json_t *domains_of(const bl_planning *r) {
    json_t *domains = json_array();
    for (int rank = 0; rank < r->options->n_ranks; rank++)
        json_array_append_new(domains, json_integer(r->options->domain[rank]));
    return domains;
}

/* [{"layer", "experts": [...]}] */
static json_t *orphans(const bl_planning *r) {
    json_t *list = json_array();
    for (int m = 0; m < r->n_jobs; m++) {
        json_t *experts = json_array();
        for (int expert = 0; expert < r->model->n_experts; expert++) {
            if (is_orphan(r, &r->jobs[m], expert))
                json_array_append_new(experts, json_integer(expert));
        }
        if (json_array_size(experts) > 0)
            json_array_append_new(
                list, json_pack("{s:i, s:O}", "layer", r->jobs[m].layer, "experts", experts));
        json_decref(experts);
    }
    return list;
}

/* Which steps each of several traces has in the whole, so that one of them alone is known again. */
static json_t *traces_of(const bl_loads *loads) {
    json_t *traces = json_array();
    for (int i = 0; i < loads->n_parts; i++) {
        const bl_loads_part *part = &loads->parts[i];
        json_array_append_new(traces, json_pack("{s:s, s:[I,I]}", "trace", part->digest, "steps",
                                                (json_int_t)part->first, (json_int_t)part->end));
    }
    return traces;
}

/* What was asked for, but for rules. */
static json_t *question_of(const bl_planning *r) {
    const bl_planning_options *o = r->options;
    const int64_t last = (int64_t)r->loads->step_id[r->loads->n_steps - 1] + 1;
    const int64_t end = o->end_step < last ? o->end_step : last;
    char over[32];
    bl_planning_name_over(r, over, sizeof over);
    json_t *p = json_pack("{s:s, s:s, s:s, s:s, s:s, s:I, s:[I,I], s:I, s:I, s:i}", "tool",
                          "ballast " BL_VERSION, "objective", bl_objective_names[o->objective],
                          "over", over, "rule", bl_rule_names[o->rule], "algorithm",
                          bl_algorithm_names[o->solve.algorithm], "seed", (json_int_t)o->solve.seed,
                          "steps", (json_int_t)o->first_step, (json_int_t)end, "n_steps",
                          (json_int_t)r->loads->n_steps, "steps_per_scenario",
                          (json_int_t)r->steps_per_scenario, "scenarios", r->n_scenarios);
    json_object_set_new(p, "robust", json_boolean(bl_planning_tail(r) > 0.0));
    return p;
}

/* Of which load, where. */
static void add_load(json_t *p, const bl_planning *r) {
    json_object_set_new(p, "phase",
                        json_string(r->options->phase != NULL ? r->options->phase : "all"));
    json_object_set_new(p, "trace", json_string(r->loads->digest));
    if (r->loads->n_parts > 1)
        json_object_set_new(p, "traces", traces_of(r->loads));
    json_object_set_new(p, "composed", json_boolean(r->loads->composed));
    json_object_set_new(p, "complete", json_boolean(r->loads->complete));
    if (r->topology != NULL) {
        json_object_set_new(p, "topology", json_string(r->topology->name));
        json_object_set_new(p, "topology_digest", json_string(bl_topology_digest(r->topology).hex));
    }
    json_object_set_new(p, "slots", json_integer(r->options->capacity.n_slots));
    json_object_set_new(p, "masked_ranks", masked_ranks(r));
}

/* How the plan came about; nothing in it depends on when or where it was made. */
static json_t *provenance_of(const bl_planning *r, const bl_planning_summary *s) {
    const bl_planning_options *o = r->options;
    json_t *p = question_of(r);
    if (p == NULL)
        return NULL;
    if (r->cost != NULL && o->tokens_per_rank > 0.0)
        json_object_set_new(p, "tokens_per_rank", json_real(o->tokens_per_rank));
    if (r->cost != NULL)
        json_object_set_new(p, "overlap", json_boolean(o->overlap));
    if (o->half_life > 0.0)
        json_object_set_new(p, "half_life", json_real(o->half_life));
    add_load(p, r);
    if (s->n_orphans > 0)
        json_object_set_new(p, "orphans", orphans(r));
    if (o->replica_budget >= 0)
        json_object_set_new(p, "replica_budget",
                            json_pack("{s:I, s:I, s:f, s:b}", "slots_per_rank",
                                      (json_int_t)o->replica_budget, "given_out",
                                      (json_int_t)r->replica_slots, "gain_over_even",
                                      s->budget_gain, "proven", r->replicas_proven));
    if (o->spares > 0)
        json_object_set_new(p, "spares", json_integer(o->spares));
    if (o->keep_groups)
        json_object_set_new(p, "groups_kept", json_integer(r->model->n_groups));
    if (o->min_copies > 1)
        json_object_set_new(p, "fault_domains",
                            json_pack("{s:o, s:i, s:i}", "of_rank", domains_of(r), "least",
                                      o->min_copies, "experts", o->guarded));
    json_object_set_new(p, "idle_layers", idle_layers(r, false));
    json_object_set_new(p, "missing_layers", idle_layers(r, true));
    if (o->current != NULL)
        json_object_set_new(p, "current", json_string(o->current->digest.hex));
    json_object_set_new(p, "moves", json_integer((json_int_t)s->moves));
    if (s->has_traffic)
        json_object_set_new(p, "traffic", bl_planning_traffic_to_json(r, s));
    json_object_set_new(p, "reproducible", json_boolean(o->solve.time_s <= 0.0 && !s->stopped));
    return p;
}

/* Hand the layers' placements over to a plan. */
bl_status bl_planning_assemble(bl_planning *r, const bl_planning_summary *s, bl_plan *out,
                               bl_error *err) {
    const bl_planning_options *o = r->options;
    const uint64_t before = o->current != NULL ? o->current->epoch : 0;
    bl_placement placement = {
        .n_ranks = o->n_ranks, .n_experts = r->model->n_experts, .n_layers = r->n_jobs};
    BL_TRY(BL_CALLOC(placement.layers, r->n_jobs, err));
    const uint64_t epoch = before + (o->current != NULL && s->moves > 0);
    for (int m = 0; m < r->n_jobs; m++) {
        placement.layers[m] = r->jobs[m].solution.placement;
        placement.layers[m].epoch = epoch;
        r->jobs[m].solution.placement = (bl_layer_placement){0};
    }
    bl_plan plan;
    const bl_status st = bl_plan_create(r->model, &placement, &plan, err);
    bl_placement_free(&placement);
    if (st < 0)
        return st;
    plan.epoch = epoch;
    plan.rule = o->rule;
    for (int m = 0; m < r->n_jobs; m++) {
        bl_solution *solution = &r->jobs[m].solution;
        plan.layers[m] = (bl_plan_layer){.scored = true,
                                         .score = solution->score,
                                         .bound = solution->bound,
                                         .time = solution->time,
                                         .gap = solution->gap,
                                         .declined = solution->declined,
                                         .share = solution->share};
        solution->share = NULL;
        if (r->jobs[m].idle)
            plan.layers[m].bound.kind = "idle";
    }
    json_decref(plan.provenance);
    plan.provenance = provenance_of(r, s);
    plan.digest = bl_plan_digest(&plan);
    if (plan.provenance == NULL || plan.digest.hex[0] == '\0') {
        bl_plan_free(&plan);
        return bl_fail(err, BL_ERR_NOMEM, "out of memory");
    }
    *out = plan;
    return BL_OK;
}
