#include "planner/solve.h"

#include "core/mem.h"
#include "planner/align.h"
#include "planner/anchor.h"
#include "planner/canonical.h"
#include "planner/flow_search.h"
#include "planner/greedy.h"
#include "planner/hierarchical.h"
#include "planner/pairs.h"
#include "planner/robust.h"
#include "planner/search.h"
#include "planner/share_search.h"
#include "planner/shares.h"
#include "planner/solve_milp.h"
#include "planner/timed.h"
#include "planner/timed_solve.h"
#include "planner/traffic_plan.h"

#include <math.h>
#include <stdlib.h>

const char *const bl_algorithm_names[] = {
    "auto", "search", "exact", "greedy", "greedy-hierarchical", "contiguous", NULL};

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
    if (problem->current == NULL && problem->rules != NULL)
        return bl_greedy(problem, &solution->placement, err);
    if (problem->current == NULL)
        return contiguous(problem, &solution->placement, err);
    solution->kept_current = bl_problem_current_fits(problem);
    return bl_anchor_start(problem, &solution->placement, err);
}

/* ---- search ------------------------------------------------------------------------------- */

/* Milliseconds for 288 slots. Ten times as many lower the score by another 0.2 %. */
#define PAIR_PROPOSALS 3000

/* A proof needs the last digits; a plan does not. (And the time given is the proof's.) */
static double closeness(const bl_solve_options *options) {
    return options->algorithm == BL_ALG_EXACT ? 1e-9 : BL_SEARCH_CLOSE;
}

static bool is_robust(const bl_problem *problem) {
    return problem->tail > 0.0 && problem->rule != BL_RULE_PER_STEP &&
           !bl_rule_needs_sources(problem->rule);
}

static double move_price(const bl_problem *problem) {
    return is_robust(problem) ? BL_ROBUST_MOVE_PRICE : BL_MOVE_PRICE;
}

static bl_status search_from(const bl_problem *problem, const bl_solve_options *options,
                             const bl_solution *solution, bl_layer_placement *placement,
                             bl_error *err) {
    if (problem->rule == BL_RULE_PER_STEP) {
        const bl_flow_search_options flow = {.seed = options->seed,
                                             .proposals = options->iterations,
                                             .time_s = options->time_s,
                                             .move_price = BL_MOVE_PRICE};
        return bl_flow_search(problem, &flow, placement, err);
    }
    if (problem->rule == BL_RULE_NEAREST || problem->rule == BL_RULE_FIXED) {
        const bl_share_options shares = {.aim = BL_AIM_BALANCE,
                                         .seed = options->seed,
                                         .proposals = options->iterations,
                                         .time_s = options->time_s,
                                         .move_price = move_price(problem)};
        return bl_share_search(problem, &shares, placement, err);
    }
    const bl_search_options search = {
        .seed = options->seed,
        .iterations = options->iterations,
        .time_s = options->algorithm == BL_ALG_EXACT ? 0.0 : options->time_s,
        .target = solution->bound.max_over_mean * (1.0 + closeness(options)),
        .move_price = move_price(problem)};
    return bl_search(problem, &search, placement, err);
}

/* Greedy, or pairs where pairing is all there is to placing and greedy is not at the bound. */
static bl_status first_placement(const bl_problem *problem, const bl_solve_options *options,
                                 const bl_solution *solution, bl_layer_placement *out,
                                 bl_error *err) {
    BL_TRY(bl_greedy(problem, out, err));
    if (problem->rule != BL_RULE_EVEN || !bl_pairs_applies(problem))
        return BL_OK;
    bl_score score;
    bl_status st = bl_evaluate(problem, out, &score, err);
    const double bound = solution->bound.max_over_mean;
    if (st == BL_OK && score.max_over_mean > bound * (1.0 + closeness(options))) {
        bl_rng rng;
        bl_rng_seed(&rng, options->seed);
        bl_layer_placement_free(out);
        const double unit = bl_problem_total_load(problem) / bl_problem_active_ranks(problem);
        st = bl_pairs(problem, bound * unit, PAIR_PROPOSALS, &rng, out, err);
    }
    if (st < 0)
        bl_layer_placement_free(out);
    return st;
}

static bl_status note_score(const bl_problem *problem, const bl_layer_placement *placement,
                            double *out, bl_error *err) {
    bl_score score;
    BL_TRY(bl_evaluate(problem, placement, &score, err));
    *out = score.max_over_mean;
    return BL_OK;
}

/* As if there were no current placement. */
static bl_status find_afresh(const bl_problem *problem, const bl_solve_options *options,
                             bl_solution *solution, bl_error *err) {
    bl_problem fresh = *problem;
    fresh.current = NULL;
    bl_layer_placement made = {0};
    BL_TRY(first_placement(&fresh, options, solution, &made, err));
    bl_status st = BL_OK;
    if (problem->current == NULL)
        st = note_score(&fresh, &made, &solution->phases.start, err);
    if (st >= 0)
        st = search_from(&fresh, options, solution, &made, err);
    if (st < 0)
        bl_layer_placement_free(&made);
    else
        solution->afresh = made;
    return st;
}

/* That, laid over the current placement. */
static bl_status search_afresh(const bl_problem *problem, const bl_solve_options *options,
                               bl_solution *solution, bl_layer_placement *out, bl_error *err) {
    bl_status st = BL_OK;
    if (solution->afresh.expert == NULL)
        st = find_afresh(problem, options, solution, err);
    BL_TRY(st);
    BL_TRY(bl_align_copy(problem, &solution->afresh, out, err));
    return st;
}

/* What the search minimises: the score, or the cost of a plan for what is still to come. */
static bl_status value_of(const bl_problem *problem, const bl_layer_placement *placement,
                          double *out, bl_error *err) {
    if (is_robust(problem))
        return bl_robust_cost(problem, placement, out, err);
    bl_score score;
    BL_TRY(bl_evaluate(problem, placement, &score, err));
    *out = score.max_over_mean;
    return BL_OK;
}

/* That and the price of the moves. */
static bl_status cost_of(const bl_problem *problem, const bl_layer_placement *placement,
                         double *out, bl_error *err) {
    const int moves = problem->current != NULL ? bl_layer_moves(problem->current, placement) : 0;
    double value;
    BL_TRY(value_of(problem, placement, &value, err));
    *out = value + move_price(problem) * moves;
    return BL_OK;
}

/* A fresh start, where it could win by enough to pay for moving nearly everything. */
static bl_status try_afresh(const bl_problem *problem, const bl_solve_options *options,
                            bl_solution *solution, bl_error *err) {
    double anchored = 0.0, afresh = 0.0;
    bl_layer_placement fresh = {0};
    BL_TRY(cost_of(problem, &solution->placement, &anchored, err));
    if (anchored <= solution->bound.max_over_mean * (1.0 + problem->min_gain))
        return BL_OK;
    const bl_status st = search_afresh(problem, options, solution, &fresh, err);
    BL_TRY(st);
    const bl_status scored = cost_of(problem, &fresh, &afresh, err);
    if (scored == BL_OK && afresh < anchored) {
        bl_layer_placement_free(&solution->placement);
        solution->placement = fresh;
    } else {
        bl_layer_placement_free(&fresh);
    }
    return scored < 0 ? scored : st;
}

/* From the placement in force, which cannot be a worse start than greedy where moves cost. */
static bl_status search_anchored(const bl_problem *problem, const bl_solve_options *options,
                                 bl_solution *solution, bl_error *err) {
    bl_layer_placement *placement = &solution->placement;
    BL_TRY(bl_anchor_start(problem, placement, err));
    BL_TRY(note_score(problem, placement, &solution->phases.start, err));
    const bl_status st = search_from(problem, options, solution, placement, err);
    return st == BL_OK && problem->max_moves < 0 ? try_afresh(problem, options, solution, err) : st;
}

/* What is in force stays in force unless the placement found beats it by min_gain. */
static bl_status keep_or_change(const bl_problem *problem, bl_solution *solution, bl_error *err) {
    bl_layer_placement *placement = &solution->placement;
    if (bl_problem_current_fits(problem)) {
        double now, next;
        BL_TRY(value_of(problem, problem->current, &now, err));
        BL_TRY(value_of(problem, placement, &next, err));
        if (next >= now * (1.0 - bl_problem_asked_gain(problem))) {
            solution->declined = next < now ? 1.0 - next / now : 0.0;
            bl_layer_placement kept;
            BL_TRY(bl_layer_placement_copy(problem->current, &kept, err));
            bl_layer_placement_free(placement);
            *placement = kept;
            solution->kept_current = true;
        }
    }
    return bl_align_slots(problem, placement, err);
}

/* ---- all together ------------------------------------------------------------------------- */

/* Search levels ranks as if rows were split evenly, which says little of the rule local. Where greedy
 * fares better under it by the evaluator, it goes on from there. */
static bl_status take_greedy_if_better(const bl_problem *problem, bl_solution *solution,
                                       bl_error *err) {
    bl_layer_placement greedy;
    bl_score searched, packed;
    BL_TRY(bl_evaluate(problem, &solution->placement, &searched, err));
    BL_TRY(bl_greedy(problem, &greedy, err));
    const bl_status st = bl_evaluate(problem, &greedy, &packed, err);
    if (st >= 0 && packed.max_over_mean < searched.max_over_mean) {
        bl_layer_placement_free(&solution->placement);
        solution->placement = greedy;
    } else {
        bl_layer_placement_free(&greedy);
    }
    return st;
}

static bl_status plan_traffic(const bl_problem *problem, const bl_solve_options *options,
                              bl_solution *solution, bl_error *err) {
    const bl_traffic_plan_options traffic = {.seed = options->seed,
                                             .proposals = options->iterations,
                                             .use_milp = options->algorithm != BL_ALG_SEARCH};
    bl_traffic_plan_result result;
    if (problem->rule == BL_RULE_LOCAL && problem->current == NULL && problem->rules == NULL)
        BL_TRY(take_greedy_if_better(problem, solution, err));
    const bl_status st = bl_traffic_plan(problem, &traffic, &solution->placement, &result, err);
    BL_TRY(st);
    solution->nodes_improved_by_milp = result.improved_by_milp;
    solution->nodes_proven = result.proven;
    if (result.changed) {
        solution->kept_current = false;
        solution->declined = 0.0;
    }
    return st;
}

static bl_status search_and_prove(const bl_problem *problem, const bl_solve_options *options,
                                  bl_solution *solution, bl_error *err) {
    if (options->algorithm == BL_ALG_EXACT)
        BL_TRY(bl_solve_check_exact(problem, err));
    bl_status st = problem->current != NULL
                       ? search_anchored(problem, options, solution, err)
                       : search_afresh(problem, options, solution, &solution->placement, err);
    BL_TRY(st);
    BL_TRY(note_score(problem, &solution->placement, &solution->phases.searched, err));
    if (st == BL_OK) {
        st = bl_solve_by_milp(problem, options, move_price(problem), solution, err);
        BL_TRY(st);
    }
    if (problem->current != NULL)
        BL_TRY(keep_or_change(problem, solution, err));
    return st == BL_OK ? plan_traffic(problem, options, solution, err) : st;
}

static bl_status construct(const bl_problem *problem, const bl_solve_options *options,
                           bl_solution *solution, bl_error *err) {
    switch (options->algorithm) {
    case BL_ALG_CONTIGUOUS:
        return contiguous(problem, &solution->placement, err);
    case BL_ALG_GREEDY:
        return bl_greedy(problem, &solution->placement, err);
    case BL_ALG_GREEDY_HIERARCHICAL:
        return bl_greedy_hierarchical(problem, &solution->placement, err);
    case BL_ALG_AUTO:
    case BL_ALG_SEARCH:
    case BL_ALG_EXACT:
        break;
    }
    if (problem->objective == BL_OBJECTIVE_TIME)
        return bl_timed_solve(problem, options, solution, err);
    return search_and_prove(problem, options, solution, err);
}

/* Score and bound are sums in different orders: equal but for the last digits is equal. */
static bl_status gap_of(const bl_problem *problem, double score, double *bound, const char *kind,
                        double *gap, bl_error *err) {
    if (*bound > score && *bound < score * (1 + 1e-9))
        *bound = score;
    if (*bound > score)
        return bl_fail_at(err, BL_ERR_INTERNAL, bl_at_layer(NULL, problem->layer),
                          "score %.17g is below the %s bound %.17g", score, kind, *bound);
    *gap = *bound > 0.0 ? score / *bound - 1.0 : 0.0;
    return BL_OK;
}

/* Time, where it can be told: not under rules that split each step anew, nor by source when none is
 * known. */
static bl_status account_time(const bl_problem *problem, bl_solution *solution, bl_error *err) {
    double seconds;
    if (!bl_timed_is_told(problem) || bl_problem_is_idle(problem))
        return BL_OK;
    BL_TRY(bl_timed_seconds(problem, &solution->placement, solution->share, &seconds, err));
    solution->time.step_us = 1e6 * seconds;
    if (problem->rule == BL_RULE_LOCAL) /* of a sample of tokens, and the bound of all */
        solution->time.bound_us = fmin(solution->time.bound_us, solution->time.step_us);
    double gap;
    BL_TRY(gap_of(problem, solution->time.step_us, &solution->time.bound_us, "time", &gap, err));
    if (problem->objective == BL_OBJECTIVE_TIME)
        solution->gap = gap;
    return BL_OK;
}

static bl_status bound(const bl_problem *problem, bl_solution *solution, bl_error *err) {
    BL_TRY(bl_bound_of(problem, &solution->bound, err));
    if (problem->timed == NULL || bl_problem_is_idle(problem))
        return BL_OK;
    bl_timed_bound timed;
    BL_TRY(bl_timed_bound_of(problem, &timed, err));
    solution->time.bound_us = 1e6 * timed.seconds;
    solution->time.kind = timed.kind;
    return BL_OK;
}

/* Score, gap and moves of the placement found, by the evaluator and nothing else. */
static bl_status account(const bl_problem *problem, bl_solution *solution, bl_error *err) {
    bl_layer_placement *placement = &solution->placement;
    placement->layer = problem->layer;
    placement->epoch = problem->current != NULL ? problem->current->epoch : 0;
    BL_TRY(bl_layer_placement_check(placement, NULL, err));
    BL_TRY(bl_rules_check(problem, placement, err));
    if (problem->rule == BL_RULE_FRACTIONS) {
        BL_TRY(BL_CALLOC(solution->share, bl_layer_n_slots(placement), err));
        BL_TRY(bl_shares_of(problem, placement, solution->share, err));
        BL_TRY(bl_evaluate_shares(problem, placement, solution->share, &solution->score, err));
    } else {
        BL_TRY(bl_evaluate(problem, placement, &solution->score, err));
    }
    /* Scored on a sample of tokens, a plan may come out below a bound made from all of them. */
    if (problem->rule == BL_RULE_LOCAL &&
        solution->bound.max_over_mean > solution->score.max_over_mean)
        solution->bound = (bl_bound){1.0, "mean"};
    BL_TRY(gap_of(problem, solution->score.max_over_mean, &solution->bound.max_over_mean,
                  solution->bound.kind, &solution->gap, err));
    BL_TRY(account_time(problem, solution, err));
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
    if (bl_rule_needs_sources(problem->rule) &&
        (problem->sources == NULL || problem->sites == NULL))
        return bl_shares_unsupported(problem, err);
    return BL_OK;
}

/* *solution is empty, but for what is known of a search from nothing. */
static bl_status solve_once(const bl_problem *problem, const bl_solve_options *options,
                            bl_solution *solution, bl_error *err) {
    BL_TRY(bound(problem, solution, err));
    const bl_status st = bl_problem_is_idle(problem) ? solve_idle(problem, solution, err)
                                                     : construct(problem, options, solution, err);
    BL_TRY(st);
    BL_TRY(account(problem, solution, err));
    return st;
}

/* Among experts and ranks in an order of their own, so that names do not matter. What is known of a search
 * from nothing keeps that order's names, which are the same whatever is in force. */
static bl_status solve_canonically(const bl_problem *problem, const bl_solve_options *options,
                                   bl_solution *solution, bl_error *err) {
    bl_canonical canonical;
    bl_error cause = BL_ERROR_INIT;
    BL_TRY(bl_canonical_create(problem, &canonical, err));
    bl_status st = solve_once(&canonical.problem, options, solution, &cause);
    if (st >= 0) {
        const bl_status restored =
            bl_canonical_restore(&canonical, &solution->placement, solution->share, err);
        st = restored < 0 ? restored : st;
    } else if (err != NULL && err->code >= 0) {
        *err = cause;
        if (cause.expert >= 0)
            err->expert = canonical.expert[cause.expert];
    }
    bl_canonical_free(&canonical);
    return st;
}

/* ---- a plan that stays ------------------------------------------------------------------------*/

/* Every round gains min_gain; the second is rare. */
#define MOST_ROUNDS 8

/* Could a search that starts from the solution still gain enough to give it up? */
static bool may_gain(const bl_problem *problem, const bl_solution *solution) {
    if (problem->tail > 0.0 && problem->tail < 1.0)
        return true; /* bounds speak of the mean */
    const double left = 1.0 - problem->min_gain;
    if (problem->objective == BL_OBJECTIVE_TIME)
        return solution->time.step_us * left > solution->time.bound_us;
    return is_robust(problem) ||
           solution->score.max_over_mean * left > solution->bound.max_over_mean;
}

/* Take over what was found from the solution itself; what led there first is still told. */
static bl_status go_on(const bl_problem *problem, bl_solution *solution, bl_solution *next,
                       bl_error *err) {
    next->phases = solution->phases;
    next->improved_by_milp = next->improved_by_milp || solution->improved_by_milp;
    next->nodes_improved_by_milp = next->nodes_improved_by_milp || solution->nodes_improved_by_milp;
    bl_solution_free(solution);
    *solution = *next;
    *next = (bl_solution){0};
    if (problem->current == NULL) {
        solution->moves = 0;
        return BL_OK;
    }
    solution->moves = bl_layer_moves(problem->current, &solution->placement);
    return bl_align_slots(problem, &solution->placement, err);
}

/* One more search, from the solution; *rests when it changed nothing. */
static bl_status solve_again(const bl_problem *problem, const bl_solve_options *options,
                             bl_solution *solution, bool *rests, bl_error *err) {
    bl_problem again = *problem;
    again.current = &solution->placement;
    again.declined = 0.0;
    bl_solution next = {.afresh = solution->afresh};
    solution->afresh = (bl_layer_placement){0};
    bl_status st = solve_canonically(&again, options, &next, err);
    *rests = next.kept_current;
    if (st >= 0 && !*rests) {
        const bl_status taken = go_on(problem, solution, &next, err);
        st = taken < 0 ? taken : st;
    } else {
        solution->afresh = next.afresh;
        next.afresh = (bl_layer_placement){0};
    }
    bl_solution_free(&next);
    return st;
}

/* Whoever plans again from a plan, on the same load, is to get it back. So a plan is searched on from
 * until that is so. */
static bl_status solve_to_rest(const bl_problem *problem, const bl_solve_options *options,
                               bl_solution *solution, bl_error *err) {
    bl_status st = solve_canonically(problem, options, solution, err);
    bool rests = solution->kept_current || options->algorithm == BL_ALG_EXACT ||
                 options->time_s > 0.0 || problem->max_moves >= 0;
    for (int round = 0; st == BL_OK && !rests && round < MOST_ROUNDS; round++) {
        if (!may_gain(problem, solution))
            break;
        st = solve_again(problem, options, solution, &rests, err);
    }
    return st;
}

bl_status bl_solve(const bl_problem *problem, const bl_solve_options *options, bl_solution *out,
                   bl_error *err) {
    BL_TRY(check_request(problem, options, err));
    const bool named = options->algorithm != BL_ALG_AUTO && options->algorithm != BL_ALG_SEARCH &&
                       options->algorithm != BL_ALG_EXACT;
    bl_solution solution = {0};
    const bl_status st = named || bl_problem_is_idle(problem)
                             ? solve_once(problem, options, &solution, err)
                             : solve_to_rest(problem, options, &solution, err);
    bl_layer_placement_free(&solution.afresh);
    if (st < 0) {
        bl_solution_free(&solution);
        return st;
    }
    *out = solution;
    return st;
}

void bl_solution_free(bl_solution *solution) {
    bl_layer_placement_free(&solution->placement);
    bl_layer_placement_free(&solution->afresh);
    free(solution->share);
    *solution = (bl_solution){0};
}
