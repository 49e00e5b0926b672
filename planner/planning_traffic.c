/*
 * planning_traffic.c: where the tokens of a layer come from, and the rows that travel under a plan.
 */
#include "planner/planning_parts.h"

#include "core/mem.h"

#include <stdlib.h>

/* ---- sources while a layer is worked on --------------------------------------------------------*/

/* A trace of more ranks than are planned for does not say where its tokens would come from. */
static bool is_known(const bl_planning *r, const bl_planning_job *j) {
    return r->options->sites != NULL && r->loads->source_count != NULL && j->row >= 0 && !j->idle &&
           (r->loads->n_sources <= r->options->n_ranks || bl_rule_needs_sources(r->options->rule));
}

bl_status bl_planning_attach(const bl_planning *r, bl_planning_job *j, bl_error *err) {
    const size_t n = r->loads->n_steps;
    int *group = NULL;
    double *scale = NULL;
    if (!is_known(r, j))
        return BL_OK;
    bl_status st;
    BL_TRY_GOTO(st, BL_CALLOC(group, n, err), done);
    BL_TRY_GOTO(st, BL_CALLOC(scale, n, err), done);
    for (size_t step = 0; step < n; step++) {
        group[step] = (int)(step / r->steps_per_scenario);
        scale[step] = bl_planning_weight(r, step);
    }
    st = bl_sources_of(r->loads, j->row, group, r->n_scenarios, scale, r->options->n_ranks,
                       &j->sources, err);
    if (st < 0)
        goto done;
    j->problem.sources = &j->sources;
    j->problem.sites = r->options->sites;
    j->problem.dispatch = r->options->dispatch;
    j->problem.few_remote = true;
done:
    free(group);
    free(scale);
    return st;
}

void bl_planning_detach(bl_planning_job *j) {
    bl_sources_free(&j->sources);
    j->problem.sources = NULL;
    j->problem.sites = NULL;
    j->problem.few_remote = false;
}

/* ---- rows that travel --------------------------------------------------------------------------*/

static bl_status meter(const bl_planning *r, const bl_planning_job *j,
                       const bl_layer_placement *placement, const double *share,
                       bl_planning_traffic *out, bl_error *err) {
    const bl_planning_options *o = r->options;
    bl_traffic traffic = {0};
    bl_source_split *split = NULL;
    double *slot_rows = NULL;
    bl_status st;
    BL_TRY_GOTO(st, BL_CALLOC(slot_rows, bl_layer_n_slots(placement), err), done);
    BL_TRY_GOTO(
        st, bl_traffic_create(r->topology, o->sites, o->dispatch, o->combine, &traffic, err), done);
    BL_TRY_GOTO(st,
                bl_source_split_create(placement, share != NULL ? o->rule : j->problem.rule, share,
                                       o->sites, j->sources.n_sources, &split, err),
                done);
    for (int scenario = 0; scenario < r->n_scenarios && st >= 0; scenario++)
        st = bl_source_split_rows(split, &j->sources, scenario, slot_rows, &traffic, err);
    if (st < 0)
        goto done;
    bl_traffic_levels(&traffic, out->dispatch, out->combine);
    out->remote_nodes = traffic.remote_nodes;
    out->tokens = traffic.tokens;
done:
    bl_source_split_free(split);
    bl_traffic_free(&traffic);
    free(slot_rows);
    return st;
}

/* The start layout, on the plan's slots. */
static bl_status meter_start(const bl_planning *r, bl_planning_job *j, bl_error *err) {
    bl_placement start;
    BL_TRY(bl_placement_create(r->options->n_ranks, r->model->n_experts, &j->layer, 1,
                               r->options->capacity.slots_per_rank, &start, err));
    bl_placement_fill_contiguous(&start);
    bl_problem even = j->problem;
    even.rule = even.rule == BL_RULE_FRACTIONS ? BL_RULE_EVEN : even.rule;
    bl_planning_job as_even = *j;
    as_even.problem = even;
    const bl_status st = meter(r, &as_even, &start.layers[0], NULL, &j->traffic_before, err);
    bl_placement_free(&start);
    return st;
}

static bl_status meter_current(const bl_planning *r, bl_planning_job *j, bl_error *err) {
    const size_t l = (size_t)(j->problem.current - r->options->current->placement.layers);
    const double *share = r->options->current->layers[l].share;
    bl_planning_job as_even = *j;
    if (share == NULL && as_even.problem.rule == BL_RULE_FRACTIONS)
        as_even.problem.rule = BL_RULE_EVEN;
    return meter(r, &as_even, j->problem.current,
                 j->problem.rule == BL_RULE_FRACTIONS ? share : NULL, &j->traffic_before, err);
}

bl_status bl_planning_meter(const bl_planning *r, bl_planning_job *j, bl_error *err) {
    const bool blind = bl_traffic_needs_tokens(r->options->dispatch, r->options->combine) &&
                       j->sources.n_tokens == 0;
    /* Under per-step splits shares are not known before the step is. */
    if (!is_known(r, j) || r->topology == NULL || blind || j->problem.rule == BL_RULE_PER_STEP)
        return BL_OK;
    BL_TRY(j->problem.current != NULL ? meter_current(r, j, err) : meter_start(r, j, err));
    BL_TRY(meter(r, j, &j->solution.placement, j->solution.share, &j->traffic, err));
    j->has_traffic = true;
    return BL_OK;
}

static void add(bl_planning_traffic *sum, const bl_planning_traffic *one) {
    for (int level = 0; level <= BL_MAX_LEVELS; level++) {
        sum->dispatch[level] += one->dispatch[level];
        sum->combine[level] += one->combine[level];
    }
    sum->remote_nodes += one->remote_nodes;
    sum->tokens += one->tokens;
}

/* Rows that leave a node. */
static double between_nodes(const bl_sites *sites, const double *rows) {
    double sum = 0.0;
    for (int level = sites->level + 1; level <= BL_MAX_LEVELS; level++)
        sum += rows[level];
    return sum;
}

void bl_planning_sum_traffic(const bl_planning *r, bl_planning_summary *s) {
    for (int m = 0; m < r->n_jobs; m++) {
        const bl_planning_job *j = &r->jobs[m];
        s->n_nodes_improved += j->solution.nodes_improved_by_milp;
        s->n_nodes_proven += j->solution.nodes_proven;
        if (!j->has_traffic)
            continue;
        s->has_traffic = true;
        add(&s->traffic_before, &j->traffic_before);
        add(&s->traffic, &j->traffic);
    }
    if (!s->has_traffic)
        return;
    const double before = between_nodes(r->options->sites, s->traffic_before.dispatch);
    const double after = between_nodes(r->options->sites, s->traffic.dispatch);
    s->locality_gain = before > 0.0 ? 1.0 - after / before : 0.0;
}

/* ---- JSON --------------------------------------------------------------------------------------*/

static json_t *bytes_to_json(const bl_planning *r, const bl_planning_traffic *t) {
    double steps = 0.0; /* what they count */
    json_t *bytes = json_object();
    for (size_t step = 0; step < r->loads->n_steps; step++)
        steps += bl_planning_weight(r, step);
    for (int level = 1; level <= r->topology->n_levels; level++)
        json_object_set_new(
            bytes, r->topology->levels[level].name,
            json_real((t->dispatch[level] * (double)r->model->dispatch_bytes_per_row +
                       t->combine[level] * (double)r->model->combine_bytes_per_row) /
                      steps));
    return bytes;
}

static json_t *remote_to_json(const bl_planning_traffic *t) {
    return t->tokens > 0.0 ? json_real(t->remote_nodes / t->tokens) : json_null();
}

json_t *bl_planning_traffic_to_json(const bl_planning *r, const bl_planning_summary *s) {
    return json_pack(
        "{s:s, s:s, s:f, s:{s:o, s:o}, s:{s:o, s:o}, s:i, s:i}", "dispatch",
        bl_dispatch_names[r->options->dispatch], "combine", bl_dispatch_names[r->options->combine],
        "locality_gain", s->locality_gain, "remote_nodes_per_token", "before",
        remote_to_json(&s->traffic_before), "plan", remote_to_json(&s->traffic), "bytes_per_step",
        "before", bytes_to_json(r, &s->traffic_before), "plan", bytes_to_json(r, &s->traffic),
        "nodes_improved_by_milp", s->n_nodes_improved, "nodes_proven", s->n_nodes_proven);
}
