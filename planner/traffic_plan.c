#include "planner/traffic_plan.h"

#include "planner/evaluate.h"
#include "planner/nodes_plan.h"
#include "planner/robust.h"
#include "planner/share_search.h"
#include "planner/traffic.h"

static bool is_wanted(const bl_problem *problem) {
    return problem->few_remote && problem->sources != NULL && problem->sites != NULL &&
           problem->sites->n_nodes > 1 && problem->dispatch != BL_DISPATCH_ALLGATHER &&
           problem->rules == NULL && problem->current == NULL &&
           problem->objective == BL_OBJECTIVE_TOKENS && problem->rule != BL_RULE_FRACTIONS &&
           problem->rule != BL_RULE_PER_STEP;
}

/* Is `made` as balanced as is asked for, by the evaluator? */
static bl_status keeps_balance(const bl_problem *problem, const bl_layer_placement *given,
                               const bl_layer_placement *made, bool *out, bl_error *err) {
    bl_score before, after;
    double cost_before, cost_after;
    BL_TRY(bl_evaluate(problem, given, &before, err));
    BL_TRY(bl_evaluate(problem, made, &after, err));
    *out = after.max_over_mean <= before.max_over_mean * (1.0 + BL_TRAFFIC_SLACK) + 1e-9;
    if (!*out || problem->tail <= 0.0 || problem->rule != BL_RULE_EVEN)
        return BL_OK;
    BL_TRY(bl_robust_cost(problem, given, &cost_before, err));
    BL_TRY(bl_robust_cost(problem, made, &cost_after, err));
    *out = cost_after <= cost_before * (1.0 + BL_TRAFFIC_SLACK);
    return BL_OK;
}

/* One try, at this part of the slack. */
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
                                     .proposals = options->proposals};
    bl_status st = bl_share_search(problem, &search, &made, err);
    const bl_status stopped = st;
    if (st >= 0)
        st = bl_share_crossing(problem, &made, &after, err);
    if (st >= 0)
        st = keeps_balance(problem, placement, &made, &keeps, err);
    if (st >= 0 && keeps && after < before) {
        bl_layer_placement_free(placement);
        *placement = made;
        out->changed = true;
    } else {
        bl_layer_placement_free(&made);
    }
    return st < 0 ? st : stopped;
}

static bl_status plan_nodes(const bl_problem *problem, const bl_traffic_plan_options *options,
                            bl_layer_placement *placement, bl_traffic_plan_result *out,
                            bl_error *err) {
    const bl_nodes_plan_options nodes = {.dispatch = problem->dispatch,
                                         .slack = BL_TRAFFIC_SLACK,
                                         .seed = options->seed,
                                         .proposals = options->proposals,
                                         .use_milp = options->use_milp};
    bl_nodes_plan_result result;
    const bl_status st = bl_nodes_plan(problem, &nodes, placement, &result, err);
    BL_TRY(st);
    out->changed = result.changed;
    out->improved_by_milp = result.improved_by_milp;
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
    for (int i = 0; i < 3 && st == BL_OK && !out->changed; i++)
        st = try_shares(problem, options, BL_TRAFFIC_SLACK * PARTS[i], placement, out, err);
    return st;
}
