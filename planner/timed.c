#include "planner/timed.h"

#include "core/mem.h"
#include "core/split.h"
#include "planner/evaluate.h"
#include "planner/greedy.h"
#include "planner/traffic.h"

#include <math.h>
#include <stdlib.h>

bool bl_timed_knows_sources(const bl_problem *problem) {
    const bl_timed *timed = problem->timed;
    return timed != NULL && timed->topology != NULL && problem->sources != NULL &&
           problem->sites != NULL &&
           (problem->sources->n_tokens > 0 ||
            !(bl_traffic_needs_tokens(timed->dispatch, timed->combine) ||
              problem->rule == BL_RULE_LOCAL));
}

bool bl_timed_is_told(const bl_problem *problem) {
    if (problem->timed == NULL || problem->rule == BL_RULE_PER_STEP)
        return false;
    return !bl_rule_needs_sources(problem->rule) || bl_timed_knows_sources(problem);
}

/* ---- seconds of every scenario: out[n_scenarios] ----------------------------------------------*/

/* As if rows came evenly from all ranks. */
static bl_status even_s(const bl_problem *problem, const bl_layer_placement *placement,
                        const double *share, double *out, bl_error *err) {
    const bl_timed *timed = problem->timed;
    double *slot_rows, *rank_rows = NULL;
    BL_TRY(BL_CALLOC(slot_rows, bl_layer_n_slots(placement), err));
    const bl_status st = BL_CALLOC(rank_rows, placement->n_ranks, err);
    for (int s = 0; st >= 0 && s < problem->n_scenarios; s++) {
        const double *load = problem->load + (size_t)s * (size_t)problem->n_experts;
        for (int rank = 0; rank < placement->n_ranks; rank++) {
            rank_rows[rank] = 0.0;
            for (int slot = placement->begin[rank]; slot < placement->begin[rank + 1]; slot++) {
                const int expert = placement->expert[slot];
                slot_rows[slot] =
                    expert == BL_NO_EXPERT ? 0.0 : share[slot] * load[expert] * timed->scale[s];
                rank_rows[rank] += slot_rows[slot];
            }
        }
        out[s] = bl_cost_layer_s(timed->cost, placement, slot_rows, rank_rows);
    }
    free(slot_rows);
    free(rank_rows);
    return st;
}

typedef struct travel {
    bl_traffic traffic;
    bl_source_split *split;
    double *slot_rows, *scratch;
} travel;

static bl_status travel_open(const bl_problem *problem, const bl_layer_placement *placement,
                             const double *share, travel *t, bl_error *err) {
    const bl_timed *timed = problem->timed;
    BL_TRY(bl_traffic_create(timed->topology, problem->sites, timed->dispatch, timed->combine,
                             &t->traffic, err));
    BL_TRY(BL_CALLOC(t->slot_rows, bl_layer_n_slots(placement), err));
    BL_TRY(BL_CALLOC(t->scratch, bl_cost_scratch(timed->cost), err));
    return bl_source_split_create(placement, problem->rule,
                                  problem->rule == BL_RULE_FRACTIONS ? share : NULL, problem->sites,
                                  problem->sources->n_sources, &t->split, err);
}

/* With the rows that travel. */
static bl_status real_s(const bl_problem *problem, const bl_layer_placement *placement,
                        const double *share, double *out, bl_error *err) {
    const bl_timed *timed = problem->timed;
    travel t = {0};
    bl_status st = travel_open(problem, placement, share, &t, err);
    for (int s = 0; st >= 0 && s < problem->n_scenarios; s++) {
        bl_traffic_clear(&t.traffic);
        st = bl_source_split_rows(t.split, problem->sources, s, t.slot_rows, &t.traffic, err);
        for (int slot = 0; slot < bl_layer_n_slots(placement); slot++)
            t.slot_rows[slot] *= timed->scale[s];
        if (st >= 0)
            out[s] = bl_cost_traffic_s(timed->cost, placement, t.slot_rows, t.traffic.dispatch,
                                       t.traffic.combine, timed->scale[s], t.scratch);
    }
    bl_source_split_free(t.split);
    bl_traffic_free(&t.traffic);
    free(t.slot_rows);
    free(t.scratch);
    return st;
}

static bl_status even_shares(const bl_layer_placement *placement, double **share_p, bl_error *err) {
    bl_copies copies;
    double *share;
    BL_TRY(BL_CALLOC(share, bl_layer_n_slots(placement), err));
    const bl_status st = bl_copies_of(placement, &copies, err);
    if (st < 0) {
        free(share);
        return st;
    }
    bl_split_even_shares(placement, &copies, share);
    bl_copies_free(&copies);
    *share_p = share;
    return BL_OK;
}

static int descending(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x < y) - (x > y);
}

/* Mean over scenarios, by weight; with a tail over so many of the worst ones. */
static double sum_up(const bl_problem *problem, double tail, double *seconds) {
    double mean = 0.0;
    if (tail <= 0.0 || tail >= 1.0) {
        for (int s = 0; s < problem->n_scenarios; s++)
            mean += problem->timed->weight[s] * seconds[s];
        return mean;
    }
    const int n_worst = (int)ceil(tail * problem->n_scenarios);
    qsort(seconds, (size_t)problem->n_scenarios, sizeof *seconds, descending);
    for (int s = 0; s < n_worst; s++)
        mean += seconds[s] / n_worst;
    return mean;
}

static bl_status value_of(const bl_problem *problem, const bl_layer_placement *placement,
                          const double *share, double tail, double *out, bl_error *err) {
    double *seconds, *even = NULL;
    BL_TRY(BL_CALLOC(seconds, problem->n_scenarios, err));
    bl_status st = share == NULL ? even_shares(placement, &even, err) : BL_OK;
    if (st >= 0)
        st = (bl_timed_knows_sources(problem) ? real_s : even_s)(
            problem, placement, share != NULL ? share : even, seconds, err);
    if (st >= 0)
        *out = sum_up(problem, tail, seconds);
    free(seconds);
    free(even);
    return st;
}

bl_status bl_timed_seconds(const bl_problem *problem, const bl_layer_placement *placement,
                           const double *share, double *out, bl_error *err) {
    return value_of(problem, placement, share, 0.0, out, err);
}

bl_status bl_timed_value(const bl_problem *problem, const bl_layer_placement *placement,
                         double *out, bl_error *err) {
    return value_of(problem, placement, NULL, problem->tail, out, err);
}

/* ---- a first placement ------------------------------------------------------------------------ */

/* Seconds that all copies of an expert take together on a mean rank, when there are `copies`. */
static double copies_s(const bl_cost_rates *rates, double rows, int copies) {
    double sum = 0.0;
    for (int g = 0; g < rates->n_ranks; g++)
        sum += bl_cost_copy_s(rates, g, rows / copies);
    return sum * copies / rates->n_ranks;
}

/* Mean rows of each expert in a step. */
static void mean_rows(const bl_problem *problem, double *rows) {
    for (int e = 0; e < problem->n_experts; e++) {
        rows[e] = 0.0;
        for (int s = 0; s < problem->n_scenarios; s++)
            rows[e] += problem->timed->weight[s] * problem->timed->scale[s] *
                       problem->load[(size_t)s * (size_t)problem->n_experts + (size_t)e];
    }
}

/* The expert that takes a copy more at the least cost; of equals the one whose copies are hottest. */
static int cheapest(const bl_problem *problem, const double *rows, const int *copies, int most) {
    const bl_cost_rates *rates = bl_cost_rates_of(problem->timed->cost);
    int found = -1;
    double least = INFINITY;
    for (int e = 0; e < problem->n_experts; e++) {
        if (copies[e] >= most)
            continue;
        const double added =
            copies_s(rates, rows[e], copies[e] + 1) - copies_s(rates, rows[e], copies[e]);
        const double slack = 1e-9 * rates->weights_s[0];
        const bool hotter = found >= 0 && rows[e] / copies[e] > rows[found] / copies[found] &&
                            added < least + slack;
        if (added < least - slack || found < 0 || hotter) {
            found = e;
            least = fmin(least, added);
        }
    }
    return found;
}

bl_status bl_timed_start(const bl_problem *problem, bl_layer_placement *out, bl_error *err) {
    const int active = bl_problem_active_ranks(problem);
    int spare = bl_problem_n_slots(problem);
    double *rows, *time_s = NULL;
    int *copies = NULL;
    BL_TRY(BL_CALLOC(rows, problem->n_experts, err));
    bl_status st = BL_CALLOC(time_s, problem->n_experts, err);
    if (st >= 0)
        st = BL_CALLOC(copies, problem->n_experts, err);
    if (st >= 0) {
        const bl_cost_rates *rates = bl_cost_rates_of(problem->timed->cost);
        mean_rows(problem, rows);
        for (int e = 0; e < problem->n_experts; e++) {
            copies[e] = bl_rules_least(problem->rules, e);
            spare -= copies[e];
        }
        for (int i = 0; i < spare; i++)
            copies[cheapest(problem, rows, copies, active)]++;
        for (int e = 0; e < problem->n_experts; e++)
            time_s[e] = copies_s(rates, rows[e], copies[e]);
        st = bl_pack(problem, time_s, copies, out, err);
    }
    free(rows);
    free(time_s);
    free(copies);
    return st;
}
