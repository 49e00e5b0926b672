#include "planner/traffic_plan.h"

#include "planner/align.h"
#include "planner/evaluate.h"
#include "planner/nodes_plan.h"
#include "planner/robust.h"
#include "planner/share_search.h"
#include "planner/timed.h"
#include "planner/traffic.h"

static bool is_wanted(const bl_problem *problem) {
    return problem->few_remote && problem->sources != NULL && problem->sites != NULL &&
           problem->sites->n_nodes > 1 && problem->dispatch != BL_DISPATCH_ALLGATHER &&
           problem->rules == NULL && problem->rule != BL_RULE_FRACTIONS &&
           problem->rule != BL_RULE_PER_STEP;
}

static int moves_of(const bl_problem *problem, const bl_layer_placement *placement) {
    return problem->current != NULL ? bl_layer_moves(problem->current, placement) : 0;
}

/* Is it the placement in force? */
static bool is_in_force(const bl_problem *problem, const bl_layer_placement *placement) {
    return problem->current != NULL && bl_problem_current_fits(problem) &&
           moves_of(problem, placement) == 0;
}

static double slack_of(const bl_problem *problem, const bl_layer_placement *placement) {
    return is_in_force(problem, placement) ? 0.0 : BL_TRAFFIC_SLACK;
}

/* ---- is it worth it? --------------------------------------------------------------------------*/

/* Does `made` take less time than `given`, moves paid for? */
static bool takes_less(const bl_problem *problem, const bl_layer_placement *given,
                       const bl_layer_placement *made, double before_s, double after_s) {
    return after_s * (1.0 + BL_MOVE_PRICE * moves_of(problem, made)) <
           before_s * (1.0 + BL_MOVE_PRICE * moves_of(problem, given));
}

/* Is `made` as balanced as is asked for, by the evaluator? */
static bl_status keeps_balance(const bl_problem *problem, const bl_layer_placement *given,
                               const bl_layer_placement *made, bool *out, bl_error *err) {
    const double most = 1.0 + slack_of(problem, given);
    bl_score before, after;
    double cost_before, cost_after;
    if (problem->objective == BL_OBJECTIVE_TIME) {
        BL_TRY(bl_timed_value(problem, given, &cost_before, err));
        BL_TRY(bl_timed_value(problem, made, &cost_after, err));
        *out = takes_less(problem, given, made, cost_before, cost_after);
        return BL_OK;
    }
    BL_TRY(bl_evaluate(problem, given, &before, err));
    BL_TRY(bl_evaluate(problem, made, &after, err));
    *out = after.max_over_mean <= before.max_over_mean * most + 1e-9;
    if (!*out || problem->tail <= 0.0 || problem->rule != BL_RULE_EVEN)
        return BL_OK;
    BL_TRY(bl_robust_cost(problem, given, &cost_before, err));
    BL_TRY(bl_robust_cost(problem, made, &cost_after, err));
    *out = cost_after <= cost_before * most;
    return BL_OK;
}

/* `before` and `after` are what crosses. */
static bool pays(const bl_problem *problem, const bl_layer_placement *given,
                 const bl_layer_placement *made, double before, double after) {
    const int moves = moves_of(problem, made), more = moves - moves_of(problem, given);
    if (problem->current != NULL && problem->max_moves >= 0 && moves > problem->max_moves)
        return false;
    if (problem->objective == BL_OBJECTIVE_TIME)
        return true;
    const double saved = before - after;
    return saved > 0.0 && saved > BL_TRAFFIC_MOVE_PRICE * more * before &&
           (!is_in_force(problem, given) || saved >= BL_TRAFFIC_MIN_GAIN * before);
}

/* ---- the ways ---------------------------------------------------------------------------------*/

/* In place of what was given, or not; consumes `made`. */
static void take(bool wanted, bl_layer_placement *placement, bl_layer_placement *made,
                 bl_traffic_plan_result *out) {
    if (wanted) {
        const bl_layer_placement swap = *placement;
        *placement = *made;
        *made = swap;
        out->changed = true;
    }
    bl_layer_placement_free(made);
}

/* One try, at this slack. */
static bl_status try_shares(const bl_problem *problem, const bl_traffic_plan_options *options,
                            double slack, bl_layer_placement *placement,
                            bl_traffic_plan_result *out, bl_error *err) {
    bl_score score;
    bl_layer_placement made;
    bool keeps = false;
    double before, after = 0.0;
    BL_TRY(bl_evaluate(problem, placement, &score, err));
    BL_TRY(bl_share_crossing(problem, placement, &before, err));
    BL_TRY(bl_layer_placement_copy(placement, &made, err));
    const bl_share_options search = {.aim = BL_AIM_CROSSING,
                                     .limit = score.max_over_mean * (1.0 + slack),
                                     .seed = options->seed,
                                     .proposals = options->proposals,
                                     .move_price =
                                         problem->current != NULL ? BL_TRAFFIC_MOVE_PRICE : 0.0};
    bl_status st = bl_share_search(problem, &search, &made, err);
    const bl_status stopped = st;
    if (st >= 0 && problem->current != NULL)
        st = bl_align_slots(problem, &made, err);
    if (st >= 0)
        st = bl_share_crossing(problem, &made, &after, err);
    if (st >= 0)
        st = keeps_balance(problem, placement, &made, &keeps, err);
    take(st >= 0 && keeps && pays(problem, placement, &made, before, after), placement, &made, out);
    return st < 0 ? st : stopped;
}

static bl_status plan_nodes(const bl_problem *problem, const bl_traffic_plan_options *options,
                            bl_layer_placement *placement, bl_traffic_plan_result *out,
                            bl_error *err) {
    const bl_nodes_plan_options nodes = {.dispatch = problem->dispatch,
                                         .slack = BL_TRAFFIC_SLACK,
                                         .seed = options->seed,
                                         .proposals = options->proposals,
                                         .use_milp = options->use_milp,
                                         .move_price = BL_TRAFFIC_MOVE_PRICE};
    bl_nodes_plan_result result = {0};
    bl_layer_placement made;
    BL_TRY(bl_layer_placement_copy(placement, &made, err));
    const bl_status st = bl_nodes_plan(problem, &nodes, &made, &result, err);
    take(st >= 0 && result.changed && pays(problem, placement, &made, result.before, result.after),
         placement, &made, out);
    BL_TRY(st);
    out->improved_by_milp = out->changed && result.improved_by_milp;
    out->proven = result.proven;
    return st;
}

bl_status bl_traffic_plan(const bl_problem *problem, const bl_traffic_plan_options *options,
                          bl_layer_placement *placement, bl_traffic_plan_result *out,
                          bl_error *err) {
    static const double PARTS[] = {1.0, 0.3, 0.0}; /* of the slack */
    bl_status st = BL_OK;
    *out = (bl_traffic_plan_result){.tried = is_wanted(problem)};
    if (!out->tried)
        return BL_OK;
    if (problem->rule == BL_RULE_LOCAL)
        return plan_nodes(problem, options, placement, out, err);
    const double slack = slack_of(problem, placement);
    for (int i = slack > 0.0 ? 0 : 2; i < 3 && st == BL_OK && !out->changed; i++)
        st = try_shares(problem, options, slack * PARTS[i], placement, out, err);
    return st;
}
