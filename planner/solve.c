#include "planner/solve.h"

#include "core/mem.h"
#include "planner/align.h"
#include "planner/anchor.h"
#include "planner/greedy.h"
#include "planner/shares.h"

#include <stdlib.h>

const char *const bl_algorithm_names[] = {"auto", "search", "exact", "greedy", "contiguous", NULL};

static bl_status contiguous(const bl_problem *problem, bl_layer_placement *out, bl_error *err) {
    bl_placement one;
    BL_TRY(bl_placement_create(problem->n_ranks, problem->n_experts, &problem->layer, 1,
                               problem->slots_per_rank, &one, err));
    bl_placement_fill_contiguous(&one);
    const bl_status st = bl_layer_placement_copy(&one.layers[0], out, err);
    bl_placement_free(&one);
    return st;
}

/* Nothing is known about an idle layer, so nothing of it moves. */
static bl_status solve_idle(const bl_problem *problem, bl_solution *solution, bl_error *err) {
    if (problem->current == NULL)
        return contiguous(problem, &solution->placement, err);
    return bl_anchor_start(problem, problem->load, &solution->placement, err);
}

static bl_status construct(const bl_problem *problem, const bl_solve_options *options,
                           bl_solution *solution, bl_error *err) {
    switch (options->algorithm) {
    case BL_ALG_CONTIGUOUS:
        return contiguous(problem, &solution->placement, err);
    default:
        return bl_greedy(problem, &solution->placement, err);
    }
}

/* Score, gap and moves of the placement found, by the evaluator and nothing else. */
static bl_status account(const bl_problem *problem, bl_solution *solution, bl_error *err) {
    bl_layer_placement *placement = &solution->placement;
    placement->layer = problem->layer;
    placement->epoch = problem->current != NULL ? problem->current->epoch : 0;
    BL_TRY(bl_layer_placement_check(placement, NULL, err));
    if (problem->rule == BL_RULE_FRACTIONS) {
        BL_TRY(BL_CALLOC(solution->share, bl_layer_n_slots(placement), err));
        BL_TRY(bl_shares_of(problem, placement, solution->share, err));
        BL_TRY(bl_evaluate_shares(problem, placement, solution->share, &solution->score, err));
    } else {
        BL_TRY(bl_evaluate(problem, placement, &solution->score, err));
    }
    /* Score and bound are sums in different orders: equal but for the last digits is equal. */
    const double score = solution->score.max_over_mean;
    if (solution->bound.max_over_mean > score && solution->bound.max_over_mean < score * (1 + 1e-9))
        solution->bound.max_over_mean = score;
    if (solution->bound.max_over_mean > score)
        return bl_fail_at(err, BL_ERR_INTERNAL, bl_at_layer(NULL, problem->layer),
                          "score %.17g is below the %s bound %.17g", score, solution->bound.kind,
                          solution->bound.max_over_mean);
    solution->gap = score / solution->bound.max_over_mean - 1.0;
    if (problem->current != NULL)
        solution->moves = bl_layer_moves(problem->current, placement);
    if (problem->current != NULL && problem->max_moves >= 0 && solution->moves > problem->max_moves)
        return bl_fail_at(
            err, BL_ERR_INFEASIBLE, bl_at_layer(NULL, problem->layer),
            "this placement takes %d moves, more than the %d allowed; the search obeys "
            "such a limit",
            solution->moves, problem->max_moves);
    return BL_OK;
}

bl_status bl_solve(const bl_problem *problem, const bl_solve_options *options, bl_solution *out,
                   bl_error *err) {
    BL_TRY(bl_problem_check(problem, err));
    bl_solution solution = {0};
    bl_status st = bl_bound_of(problem, &solution.bound, err);
    if (st >= 0)
        st = bl_problem_is_idle(problem) ? solve_idle(problem, &solution, err)
                                         : construct(problem, options, &solution, err);
    const bl_status scored = st < 0 ? st : account(problem, &solution, err);
    if (scored < 0) {
        bl_solution_free(&solution);
        return scored;
    }
    *out = solution;
    return st;
}

void bl_solution_free(bl_solution *solution) {
    bl_layer_placement_free(&solution->placement);
    free(solution->share);
    *solution = (bl_solution){0};
}
