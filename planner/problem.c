#include "planner/problem.h"

#include <math.h>
#include <stdlib.h>

const char *const bl_objective_names[] = {"tokens", "time", NULL};

static bl_status check_shape(const bl_problem *problem, bl_error *err) {
    const bl_where where = bl_at_layer(NULL, problem->layer);
    if (problem->n_experts < 1 || problem->n_ranks < 1 || problem->n_scenarios < 1)
        return bl_fail_at(err, BL_ERR_SHAPE, where,
                          "%d experts, %d ranks and %d scenarios: each must be at least 1",
                          problem->n_experts, problem->n_ranks, problem->n_scenarios);
    if (problem->rule < BL_RULE_EVEN || problem->rule > BL_RULE_LOCAL)
        return bl_fail_at(err, BL_ERR_RANGE, where, "there is no split rule %d",
                          (int)problem->rule);
    if (problem->max_moves < -1)
        return bl_fail_at(err, BL_ERR_RANGE, where, "max_moves is %d: give 0 or more, or -1",
                          problem->max_moves);
    if (!(problem->min_gain >= 0.0 && problem->min_gain < 1.0))
        return bl_fail_at(err, BL_ERR_RANGE, where, "min_gain is %g: it must be in [0, 1)",
                          problem->min_gain);
    const bl_layer_placement *current = problem->current;
    if (current != NULL &&
        (current->n_ranks != problem->n_ranks || current->n_experts != problem->n_experts))
        return bl_fail_at(err, BL_ERR_SHAPE, where,
                          "the current placement has %d ranks and %d experts, the problem %d and "
                          "%d",
                          current->n_ranks, current->n_experts, problem->n_ranks,
                          problem->n_experts);
    return BL_OK;
}

static bl_status check_slots(const bl_problem *problem, bl_error *err) {
    const bl_where where = bl_at_layer(NULL, problem->layer);
    const int n_experts = problem->n_experts;
    int64_t n_slots = 0;
    int active = 0;
    for (int rank = 0; rank < problem->n_ranks; rank++) {
        const int slots = problem->slots_per_rank[rank];
        if (slots < 0)
            return bl_fail_at(err, BL_ERR_RANGE, where, "rank %d has %d slots", rank, slots);
        if (slots > n_experts)
            return bl_fail_at(err, BL_ERR_INFEASIBLE, where,
                              "rank %d has %d slots but there are only %d experts, and no rank "
                              "holds one twice; give it at most %d",
                              rank, slots, n_experts, n_experts);
        n_slots += slots;
        active += slots > 0;
    }
    if (n_slots > INT32_MAX / 2)
        return bl_fail_at(err, BL_ERR_RANGE, where, "%lld slots are too many", (long long)n_slots);
    if (active == 0)
        return bl_fail_at(err, BL_ERR_INFEASIBLE, where, "no rank has any slot");
    if (n_slots < n_experts)
        return bl_fail_at(
            err, BL_ERR_INFEASIBLE, where,
            "%d experts do not fit into %lld slots on %d ranks; %lld more are needed, "
            "%d on every rank would do",
            n_experts, (long long)n_slots, active, (long long)(n_experts - n_slots),
            (n_experts + active - 1) / active);
    return BL_OK;
}

bl_status bl_problem_check(const bl_problem *problem, bl_error *err) {
    BL_TRY(check_shape(problem, err));
    BL_TRY(check_slots(problem, err));
    for (int s = 0; s < problem->n_scenarios; s++) {
        const double *load = problem->load + (size_t)s * (size_t)problem->n_experts;
        for (int expert = 0; expert < problem->n_experts; expert++) {
            /* The limit keeps every sum over scenarios and experts finite. */
            if (!(load[expert] >= 0.0 && load[expert] <= 1e100))
                return bl_fail_at(err, BL_ERR_RANGE, bl_at_expert(NULL, problem->layer, expert),
                                  "load %g in scenario %d is not a count", load[expert], s);
        }
    }
    return bl_rules_check_problem(problem, err);
}

double bl_problem_asked_gain(const bl_problem *problem) {
    const double least = problem->min_gain, most = 1.5 * problem->min_gain;
    const double asked = problem->declined > 0.0 ? problem->declined + 0.5 * least : least;
    return asked < least ? least : asked > most ? most : asked;
}

int bl_problem_active_ranks(const bl_problem *problem) {
    int active = 0;
    for (int rank = 0; rank < problem->n_ranks; rank++)
        active += problem->slots_per_rank[rank] > 0;
    return active;
}

int bl_problem_n_slots(const bl_problem *problem) {
    int n_slots = 0;
    for (int rank = 0; rank < problem->n_ranks; rank++)
        n_slots += problem->slots_per_rank[rank];
    return n_slots;
}

void bl_problem_sum_load(const bl_problem *problem, double *sum) {
    for (int expert = 0; expert < problem->n_experts; expert++) {
        sum[expert] = 0.0;
        for (int s = 0; s < problem->n_scenarios; s++)
            sum[expert] += problem->load[(size_t)s * (size_t)problem->n_experts + (size_t)expert];
    }
}

double bl_problem_total_load(const bl_problem *problem) {
    const size_t n = (size_t)problem->n_scenarios * (size_t)problem->n_experts;
    double total = 0.0;
    for (size_t at = 0; at < n; at++)
        total += problem->load[at];
    return total;
}

bool bl_problem_is_idle(const bl_problem *problem) {
    return bl_problem_total_load(problem) == 0.0; /* loads are not negative */
}

bool bl_problem_current_fits(const bl_problem *problem) {
    const bl_layer_placement *current = problem->current;
    if (current == NULL)
        return false;
    for (int rank = 0; rank < problem->n_ranks; rank++) {
        if (current->begin[rank + 1] - current->begin[rank] != problem->slots_per_rank[rank])
            return false;
    }
    return bl_layer_placement_check(current, NULL, NULL) == BL_OK &&
           bl_rules_check(problem, current, NULL) == BL_OK;
}

bool bl_problem_may_have_holes(const bl_problem *problem) {
    const bl_layer_placement *current = problem->current;
    if (current == NULL)
        return false;
    for (int slot = 0; slot < bl_layer_n_slots(current); slot++) {
        if (current->expert[slot] == BL_NO_EXPERT)
            return true;
    }
    return problem->max_moves >= 0 && !bl_problem_current_fits(problem);
}

bl_status bl_problem_empty_placement(const bl_problem *problem, bl_layer_placement *out,
                                     bl_error *err) {
    bl_placement one;
    BL_TRY(bl_placement_create(problem->n_ranks, problem->n_experts, &problem->layer, 1,
                               problem->slots_per_rank, &one, err));
    if (problem->current != NULL)
        one.layers[0].epoch = problem->current->epoch;
    const bl_status st = bl_layer_placement_copy(&one.layers[0], out, err);
    bl_placement_free(&one);
    return st;
}
