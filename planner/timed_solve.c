#include "planner/timed_solve.h"

#include "planner/align.h"
#include "planner/anchor.h"
#include "planner/greedy.h"
#include "planner/search.h"
#include "planner/timed.h"
#include "planner/traffic_plan.h"

#define MICRO 1e-6

static bl_status check(const bl_problem *problem, const bl_solve_options *options, bl_error *err) {
    if (problem->rule != BL_RULE_EVEN)
        return bl_fail_at(err, BL_ERR_UNSUPPORTED, bl_at_layer(NULL, problem->layer),
                          "plans for time are made for the split rule 'even' only, not for '%s'; "
                          "plan with --objective tokens",
                          bl_rule_names[problem->rule]);
    if (options->algorithm == BL_ALG_EXACT)
        return bl_fail_at(err, BL_ERR_UNSUPPORTED, bl_at_layer(NULL, problem->layer),
                          "exact plans level tokens, not time; plan with --algorithm search, which "
                          "gives a bound as well");
    return BL_OK;
}

static bl_status search(const bl_problem *problem, const bl_solve_options *options,
                        const bl_solution *solution, bool gentle, bl_layer_placement *placement,
                        bl_error *err) {
    const bl_timed_search_options search = {
        .seed = options->seed,
        .proposals = options->iterations,
        .time_s = options->time_s / 2.0, /* there are two starts */
        .move_price = BL_MOVE_PRICE,
        .gentle = gentle,
        .target_s = MICRO * solution->time.bound_us * (1.0 + 1e-6)};
    return bl_timed_search(problem, &search, placement, err);
}

/* T and the price of moves, both in seconds. */
static bl_status cost_of(const bl_problem *problem, const bl_layer_placement *placement,
                         double *out, bl_error *err) {
    const int moves = problem->current != NULL ? bl_layer_moves(problem->current, placement) : 0;
    BL_TRY(bl_timed_value(problem, placement, out, err));
    *out *= 1.0 + BL_MOVE_PRICE * moves;
    return BL_OK;
}

/* Put `other` in the place of *kept where it costs less; consumes `other`. */
static bl_status keep_better(const bl_problem *problem, bl_layer_placement *kept,
                             bl_layer_placement *other, bl_error *err) {
    double cost = 0.0, other_cost = 0.0;
    bl_status st = cost_of(problem, kept, &cost, err);
    if (st >= 0)
        st = cost_of(problem, other, &other_cost, err);
    if (st >= 0 && other_cost < cost) {
        const bl_layer_placement swap = *kept;
        *kept = *other;
        *other = swap;
    }
    bl_layer_placement_free(other);
    return st;
}

/* The placement that levels the tokens of these very scenarios. */
static bl_status level_tokens(const bl_problem *problem, const bl_solve_options *options,
                              const bl_solution *solution, bl_layer_placement *out, bl_error *err) {
    bl_problem tokens = *problem;
    const bl_search_options search = {
        .seed = options->seed, .target = solution->bound.max_over_mean * (1.0 + BL_SEARCH_CLOSE)};
    tokens.tail = 0.0;
    BL_TRY(bl_greedy(&tokens, out, err));
    return bl_search(&tokens, &search, out, err);
}

/* From both starts, as if nothing were in force. */
static bl_status find_afresh(const bl_problem *problem, const bl_solve_options *options,
                             bl_solution *solution, bl_error *err) {
    bl_problem fresh = *problem;
    fresh.current = NULL;
    bl_layer_placement level = {0}, cold = {0};
    bool limited = false;
    bl_status st = level_tokens(&fresh, options, solution, &level, err);
    if (st >= 0)
        st = search(&fresh, options, solution, true, &level, err);
    limited = st > 0;
    if (st >= 0)
        st = bl_timed_start(&fresh, &cold, err);
    if (st >= 0)
        st = search(&fresh, options, solution, false, &cold, err);
    limited = limited || st > 0;
    if (st >= 0)
        st = keep_better(&fresh, &level, &cold, err);
    else
        bl_layer_placement_free(&cold);
    if (st < 0) {
        bl_layer_placement_free(&level);
        return st;
    }
    solution->afresh = level;
    return limited ? BL_LIMIT : BL_OK;
}

/* That, laid over what is in force. */
static bl_status solve_afresh(const bl_problem *problem, const bl_solve_options *options,
                              bl_solution *solution, bl_layer_placement *out, bl_error *err) {
    bl_status st = BL_OK;
    if (solution->afresh.expert == NULL)
        st = find_afresh(problem, options, solution, err);
    BL_TRY(st);
    BL_TRY(bl_align_copy(problem, &solution->afresh, out, err));
    return st;
}

static bl_status solve_anchored(const bl_problem *problem, const bl_solve_options *options,
                                bl_solution *solution, bl_error *err) {
    double value;
    BL_TRY(bl_anchor_start(problem, &solution->placement, err));
    const bl_status st = search(problem, options, solution, false, &solution->placement, err);
    BL_TRY(st);
    BL_TRY(bl_timed_seconds(problem, &solution->placement, NULL, &value, err));
    if (st > 0 || problem->max_moves >= 0 ||
        value <= MICRO * solution->time.bound_us * (1.0 + problem->min_gain))
        return st;
    bl_layer_placement fresh = {0};
    const bl_status afresh = solve_afresh(problem, options, solution, &fresh, err);
    BL_TRY(afresh);
    BL_TRY(keep_better(problem, &solution->placement, &fresh, err));
    return afresh;
}

/* What is in force stays unless time falls by more than min_gain. */
static bl_status keep_current(const bl_problem *problem, bl_solution *solution, bl_error *err) {
    if (bl_problem_current_fits(problem)) {
        double now, next;
        BL_TRY(bl_timed_value(problem, problem->current, &now, err));
        BL_TRY(bl_timed_value(problem, &solution->placement, &next, err));
        if (next >= now * (1.0 - bl_problem_asked_gain(problem))) {
            solution->declined = next < now ? 1.0 - next / now : 0.0;
            bl_layer_placement kept;
            BL_TRY(bl_layer_placement_copy(problem->current, &kept, err));
            bl_layer_placement_free(&solution->placement);
            solution->placement = kept;
            solution->kept_current = true;
        }
    }
    return bl_align_slots(problem, &solution->placement, err);
}

bl_status bl_timed_solve(const bl_problem *problem, const bl_solve_options *options,
                         bl_solution *solution, bl_error *err) {
    const bl_traffic_plan_options traffic = {.seed = options->seed,
                                             .proposals = options->iterations};
    bl_traffic_plan_result result;
    BL_TRY(check(problem, options, err));
    const bl_status st = problem->current != NULL
                             ? solve_anchored(problem, options, solution, err)
                             : solve_afresh(problem, options, solution, &solution->placement, err);
    BL_TRY(st);
    if (st == BL_OK && bl_timed_knows_sources(problem))
        BL_TRY(bl_traffic_plan(problem, &traffic, &solution->placement, &result, err));
    if (problem->current != NULL)
        BL_TRY(keep_current(problem, solution, err));
    return st;
}
