#include "planner/solve.h"

#include "core/mem.h"
#include "planner/align.h"
#include "planner/anchor.h"
#include "planner/greedy.h"
#include "planner/search.h"
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
    solution->kept_current = bl_problem_current_fits(problem);
    return bl_anchor_start(problem, &solution->placement, err);
}

/* ---- search ------------------------------------------------------------------------------------
 */

static bl_search_options search_options(const bl_solve_options *options,
                                        const bl_solution *solution) {
    return (bl_search_options){.seed = options->seed,
                               .iterations = options->iterations,
                               .time_s = options->time_s,
                               .target = solution->bound.max_over_mean * (1.0 + BL_SEARCH_CLOSE),
                               .move_price = BL_MOVE_PRICE};
}

/* As if there were no current placement; then laid over it. */
static bl_status search_afresh(const bl_problem *problem, const bl_solve_options *options,
                               const bl_solution *solution, bl_layer_placement *out,
                               bl_error *err) {
    const bl_search_options search = search_options(options, solution);
    bl_problem free_problem = *problem;
    free_problem.current = NULL;
    bl_layer_placement made = {0};
    BL_TRY(bl_greedy(&free_problem, &made, err));
    bl_status st = bl_search(&free_problem, &search, &made, err);
    if (st >= 0 && problem->current != NULL) {
        const bl_status aligned = bl_align(problem, &made, err);
        st = aligned < 0 ? aligned : st;
    }
    if (st < 0)
        bl_layer_placement_free(&made);
    else
        *out = made;
    return st;
}

/* `other` takes the place of `placement` when its score is lower by more than `gain`; the one that
 * is not kept is freed. */
static bl_status take_if_better(const bl_problem *problem, bl_layer_placement *other, double gain,
                                bl_layer_placement *placement, bool *taken, bl_error *err) {
    bl_score theirs, ours;
    bl_status st = bl_evaluate(problem, other, &theirs, err);
    if (st >= 0)
        st = bl_evaluate(problem, placement, &ours, err);
    *taken = st >= 0 && theirs.max_over_mean < ours.max_over_mean * (1.0 - gain);
    if (*taken) {
        const bl_layer_placement swap = *placement;
        *placement = *other;
        *other = swap;
    }
    bl_layer_placement_free(other);
    return st;
}

/* From the placement in force. A fresh start is tried as well where moves are free and it could win
 * by enough to pay for moving nearly everything; and what is in force stays in force unless the
 * result beats it by min_gain. */
static bl_status search_anchored(const bl_problem *problem, const bl_solve_options *options,
                                 bl_solution *solution, bl_error *err) {
    const bl_search_options search = search_options(options, solution);
    bl_layer_placement *placement = &solution->placement;
    bl_status st = bl_anchor_start(problem, placement, err);
    if (st >= 0)
        st = bl_search(problem, &search, placement, err);
    bl_score score = {0};
    if (st >= 0)
        BL_TRY(bl_evaluate(problem, placement, &score, err));
    bool taken;
    if (st == BL_OK && problem->max_moves < 0 &&
        score.max_over_mean * (1.0 - problem->min_gain) > solution->bound.max_over_mean) {
        bl_layer_placement fresh = {0};
        st = search_afresh(problem, options, solution, &fresh, err);
        if (st >= 0)
            BL_TRY(take_if_better(problem, &fresh, problem->min_gain, placement, &taken, err));
    }
    if (st >= 0 && bl_problem_current_fits(problem)) {
        bl_layer_placement found = *placement;
        BL_TRY(bl_layer_placement_copy(problem->current, placement, err));
        BL_TRY(take_if_better(problem, &found, problem->min_gain, placement, &taken, err));
        solution->kept_current = !taken;
    }
    if (st >= 0)
        BL_TRY(bl_align_slots(problem, placement, err));
    return st;
}

static bl_status construct(const bl_problem *problem, const bl_solve_options *options,
                           bl_solution *solution, bl_error *err) {
    switch (options->algorithm) {
    case BL_ALG_CONTIGUOUS:
        return contiguous(problem, &solution->placement, err);
    case BL_ALG_GREEDY:
        return bl_greedy(problem, &solution->placement, err);
    case BL_ALG_AUTO:
    case BL_ALG_SEARCH:
    case BL_ALG_EXACT:
        break;
    }
    if (problem->current != NULL)
        return search_anchored(problem, options, solution, err);
    return search_afresh(problem, options, solution, &solution->placement, err);
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

static bl_status check_request(const bl_problem *problem, const bl_solve_options *options,
                               bl_error *err) {
    BL_TRY(bl_problem_check(problem, err));
    if (options->algorithm < BL_ALG_AUTO || options->algorithm > BL_ALG_CONTIGUOUS)
        return bl_fail(err, BL_ERR_USAGE, "there is no planning algorithm %d",
                       (int)options->algorithm);
    if (problem->rule != BL_RULE_EVEN && problem->rule != BL_RULE_FRACTIONS)
        return bl_shares_unsupported(problem, err);
    return BL_OK;
}

bl_status bl_solve(const bl_problem *problem, const bl_solve_options *options, bl_solution *out,
                   bl_error *err) {
    BL_TRY(check_request(problem, options, err));
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
