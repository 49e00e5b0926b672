/*
 * replay_traffic.c: rules that look at where tokens come from, and the rows that travel.
 */
#include "planner/replay_parts.h"

#include "core/mem.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

bl_status bl_replay_find_sources(bl_replaying *r, int n_ranks, bl_error *err) {
    bool needed = false;
    for (int p = 0; p < r->options->n_plans; p++)
        needed = needed || bl_rule_needs_sources(r->options->plans[p].rule);
    /* A trace of more ranks than the plans have does not say where its tokens would come from. */
    if (r->loads->source_count == NULL || (r->loads->n_sources > n_ranks && !needed))
        return BL_OK;
    BL_TRY(bl_sites_of(r->topology, n_ranks, &r->sites, err));
    BL_TRY(BL_CALLOC(r->group, r->loads->n_steps, err));
    for (size_t step = 0; step < r->loads->n_steps; step++)
        r->group[step] = -1;
    for (size_t i = 0; i < r->n_steps; i++)
        r->group[r->steps[i]] = (int)i;
    return BL_OK;
}

bl_status bl_replay_lane_open(const bl_replaying *r, const bl_plan *plan,
                              const bl_layer_placement *placement, int row, bl_replay_lane *out,
                              bl_error *err) {
    const size_t l = (size_t)(placement - plan->placement.layers);
    if (r->group == NULL)
        return BL_OK;
    out->by_source = bl_rule_needs_sources(plan->rule);
    BL_TRY(BL_CALLOC(out->rows, bl_layer_n_slots(placement), err));
    BL_TRY(bl_sources_of(r->loads, row, r->group, (int)r->n_steps, NULL, placement->n_ranks,
                         &out->sources, err));
    /* Fractions that a plan lacks are even (a plan scored under another rule than its own). */
    const bl_rule rule = plan->rule == BL_RULE_FRACTIONS && plan->layers[l].share == NULL
                             ? BL_RULE_EVEN
                             : plan->rule;
    return bl_source_split_create(placement, rule, plan->layers[l].share, &r->sites,
                                  out->sources.n_sources, &out->split, err);
}

void bl_replay_lane_close(bl_replay_lane *lane) {
    bl_sources_free(&lane->sources);
    bl_source_split_free(lane->split);
    free(lane->rows);
    *lane = (bl_replay_lane){0};
}

bl_status bl_replay_lane_step(bl_replay_lane *lane, const bl_layer_placement *placement, size_t i,
                              const uint64_t *count, double *slot_rows, bl_traffic *traffic,
                              bl_error *err) {
    const int n_slots = bl_layer_n_slots(placement);
    if (!lane->by_source) { /* shares as the rule laid the rows: per-step makes them anew */
        for (int slot = 0; slot < n_slots; slot++) {
            const int expert = placement->expert[slot];
            lane->rows[slot] = expert == BL_NO_EXPERT || count[expert] == 0
                                   ? 0.0
                                   : slot_rows[slot] / (double)count[expert];
        }
        bl_source_split_set_shares(lane->split, lane->rows);
    }
    BL_TRY(bl_source_split_rows(lane->split, &lane->sources, (int)i, lane->rows, traffic, err));
    if (lane->by_source)
        memcpy(slot_rows, lane->rows, (size_t)n_slots * sizeof *slot_rows);
    return BL_OK;
}

static bl_status copy_pairs(const double *from, int n_ranks, double **to, bl_error *err) {
    const size_t cells = (size_t)n_ranks * (size_t)n_ranks;
    BL_TRY(BL_CALLOC(*to, cells, err));
    memcpy(*to, from, cells * sizeof *from);
    return BL_OK;
}

bl_status bl_replay_traffic_of(const bl_replaying *r, const bl_traffic *traffic,
                               bl_replay_traffic *out, bl_error *err) {
    const bl_replay_options *o = r->options;
    const bl_model *model = o->model != NULL ? o->model : &o->plans[0].model;
    const double there = (double)model->dispatch_bytes_per_row;
    const double back = (double)model->combine_bytes_per_row;
    BL_TRY(copy_pairs(traffic->dispatch, traffic->n_ranks, &out->dispatch_pairs, err));
    BL_TRY(copy_pairs(traffic->combine, traffic->n_ranks, &out->combine_pairs, err));
    out->n_levels = r->topology->n_levels;
    out->n_ranks = traffic->n_ranks;
    bl_traffic_levels(traffic, out->dispatch, out->combine);
    for (int level = 0; level <= BL_MAX_LEVELS; level++)
        out->bytes[level] = out->dispatch[level] * there + out->combine[level] * back;
    out->remote_nodes = traffic->tokens > 0.0 ? traffic->remote_nodes / traffic->tokens : NAN;
    BL_TRY(bl_traffic_busiest(traffic, traffic->dispatch, there, &out->busiest_dispatch, err));
    return bl_traffic_busiest(traffic, traffic->combine, back, &out->busiest_combine, err);
}

void bl_replay_traffic_add(bl_traffic *all, const bl_traffic *step) {
    for (size_t i = 0; i < (size_t)all->n_ranks * (size_t)all->n_ranks; i++) {
        all->dispatch[i] += step->dispatch[i];
        all->combine[i] += step->combine[i];
    }
    all->tokens += step->tokens;
    all->remote_nodes += step->remote_nodes;
}
