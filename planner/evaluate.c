#include "planner/evaluate.h"

#include "core/mem.h"
#include "planner/flow.h"
#include "planner/shares.h"
#include "planner/traffic.h"

#include <stdlib.h>
#include <string.h>

void bl_rank_loads(const bl_layer_placement *placement, const double *share, const double *load,
                   double *rank_load) {
    for (int rank = 0; rank < placement->n_ranks; rank++) {
        double sum = 0.0;
        for (int slot = placement->begin[rank]; slot < placement->begin[rank + 1]; slot++) {
            const int32_t expert = placement->expert[slot];
            if (expert != BL_NO_EXPERT)
                sum += share[slot] * load[expert];
        }
        rank_load[rank] = sum;
    }
}

/* Largest load, sum of loads and number of the ranks that have slots. */
static double busiest(const double *rank_load, const int *slots_per_rank, int n_ranks,
                      double *total, int *active) {
    double most = 0.0;
    *total = 0.0;
    *active = 0;
    for (int rank = 0; rank < n_ranks; rank++) {
        if (slots_per_rank[rank] <= 0)
            continue;
        *total += rank_load[rank];
        *active += 1;
        if (rank_load[rank] > most)
            most = rank_load[rank];
    }
    return most;
}

double bl_imbalance(const double *rank_load, const int *slots_per_rank, int n_ranks) {
    double total;
    int active;
    const double most = busiest(rank_load, slots_per_rank, n_ranks, &total, &active);
    return total > 0.0 ? most * active / total : 1.0;
}

static bl_status same_shape(const bl_problem *problem, const bl_layer_placement *placement,
                            bl_error *err) {
    if (placement->n_ranks == problem->n_ranks && placement->n_experts == problem->n_experts)
        return BL_OK;
    return bl_fail_at(err, BL_ERR_SHAPE, bl_at_layer(NULL, problem->layer),
                      "a placement of %d experts on %d ranks cannot be scored on a problem of %d "
                      "and %d",
                      placement->n_experts, placement->n_ranks, problem->n_experts,
                      problem->n_ranks);
}

/* Sums over scenarios of what a score is made of. */
typedef struct tally {
    double busiest, total, worst;
} tally;

static void tally_add(const bl_problem *problem, const double *rank_load, tally *sum) {
    double total;
    int active;
    const double most =
        busiest(rank_load, problem->slots_per_rank, problem->n_ranks, &total, &active);
    sum->busiest += most * active;
    sum->total += total;
    if (total > 0.0 && most * active / total > sum->worst)
        sum->worst = most * active / total;
}

static bl_score tally_score(const tally *sum) {
    if (!(sum->total > 0.0))
        return (bl_score){1.0, 1.0};
    return (bl_score){sum->busiest / sum->total, sum->worst > 1.0 ? sum->worst : 1.0};
}

bl_status bl_evaluate_shares(const bl_problem *problem, const bl_layer_placement *placement,
                             const double *share, bl_score *out, bl_error *err) {
    BL_TRY(same_shape(problem, placement, err));
    double *rank_load;
    BL_TRY(BL_CALLOC(rank_load, problem->n_ranks, err));
    tally sum = {0};
    for (int s = 0; s < problem->n_scenarios; s++) {
        bl_rank_loads(placement, share, problem->load + (size_t)s * (size_t)problem->n_experts,
                      rank_load);
        tally_add(problem, rank_load, &sum);
    }
    free(rank_load);
    *out = tally_score(&sum);
    return BL_OK;
}

static void sum_slots(const bl_layer_placement *placement, const double *slot_rows,
                      double *rank_load) {
    for (int rank = 0; rank < placement->n_ranks; rank++) {
        rank_load[rank] = 0.0;
        for (int slot = placement->begin[rank]; slot < placement->begin[rank + 1]; slot++)
            rank_load[rank] += slot_rows[slot];
    }
}

/* Under a rule that looks at sources. */
static bl_status evaluate_sources(const bl_problem *problem, const bl_layer_placement *placement,
                                  bl_score *out, bl_error *err) {
    bl_source_split *split = NULL;
    double *rank_load = NULL, *slot_rows = NULL;
    tally sum = {0};
    if (problem->sources == NULL || problem->sites == NULL)
        return bl_shares_unsupported(problem, err);
    bl_status st;
    BL_TRY_GOTO(st, BL_CALLOC(rank_load, problem->n_ranks, err), done);
    BL_TRY_GOTO(st, BL_CALLOC(slot_rows, bl_layer_n_slots(placement), err), done);
    BL_TRY_GOTO(st,
                bl_source_split_create(placement, problem->rule, NULL, problem->sites,
                                       problem->sources->n_sources, &split, err),
                done);
    for (int s = 0; s < problem->n_scenarios && st >= 0; s++) {
        st = bl_source_split_rows(split, problem->sources, s, slot_rows, NULL, err);
        sum_slots(placement, slot_rows, rank_load);
        tally_add(problem, rank_load, &sum);
    }
    if (st >= 0)
        *out = tally_score(&sum);
done:
    bl_source_split_free(split);
    free(rank_load);
    free(slot_rows);
    return st;
}

bl_status bl_evaluate(const bl_problem *problem, const bl_layer_placement *placement, bl_score *out,
                      bl_error *err) {
    BL_TRY(same_shape(problem, placement, err));
    if (problem->rule == BL_RULE_PER_STEP)
        return bl_flow_evaluate(problem, placement, out, err);
    if (bl_rule_needs_sources(problem->rule))
        return evaluate_sources(problem, placement, out, err);
    double *share;
    BL_TRY(BL_CALLOC(share, bl_layer_n_slots(placement), err));
    bl_status st = bl_shares_of(problem, placement, share, err);
    if (st == BL_OK)
        st = bl_evaluate_shares(problem, placement, share, out, err);
    free(share);
    return st;
}
