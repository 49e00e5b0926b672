#include "tests/support/policy_sim.h"

#include "planner/solve.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_HISTORY = 8 };

typedef struct sim {
    const bl_policy_case *c;
    int *slots;
    bl_layer_placement now, before, coming;
    bool moving, has_before;
    double at_s, arrives_s;
    bl_policy policy;
    bl_policy_offer offer;
    bl_policy_result result;
} sim;

static void die(const bl_error *err) {
    fprintf(stderr, "policy_sim: %s\n", err->text);
    abort();
}

static bl_problem problem_of(const sim *s, const double *load, int n) {
    return (bl_problem){.n_experts = s->c->n_experts,
                        .n_ranks = s->c->n_ranks,
                        .n_scenarios = n,
                        .load = load,
                        .slots_per_rank = s->slots,
                        .rule = BL_RULE_EVEN,
                        .max_moves = -1,
                        .min_gain = BL_MIN_GAIN_DEFAULT};
}

static double imbalance(const sim *s, const bl_layer_placement *p, size_t window) {
    bl_error err = BL_ERROR_INIT;
    const bl_problem problem = problem_of(s, s->c->load + window * (size_t)s->c->n_experts, 1);
    bl_score score;
    if (bl_evaluate(&problem, p, &score, &err) < 0)
        die(&err);
    return score.max_over_mean;
}

/* Plan from the windows before `window`; false when nothing would move. */
static bool plan(sim *s, size_t window, bl_layer_placement *out) {
    bl_error err = BL_ERROR_INIT;
    const size_t n = window < (size_t)s->c->history ? window : (size_t)s->c->history;
    bl_problem problem =
        n > 0 ? problem_of(s, s->c->load + (window - n) * (size_t)s->c->n_experts, (int)n)
              : problem_of(s, s->c->load, 1);
    bl_solve_options options = BL_SOLVE_OPTIONS_INIT;
    options.algorithm = BL_ALG_SEARCH;
    options.iterations = 2000;
    bl_solution solution;
    problem.current = &s->now;
    if (bl_solve(&problem, &options, &solution, &err) < 0)
        die(&err);
    const bool moves = bl_layer_moves(&s->now, &solution.placement) > 0;
    if (moves && bl_layer_placement_copy(&solution.placement, out, &err) < 0)
        die(&err);
    bl_solution_free(&solution);
    return moves;
}

static void start_move(sim *s, bl_layer_placement *to) {
    const int copies = bl_layer_moves(&s->now, to);
    s->coming = *to;
    s->moving = true;
    s->arrives_s = s->at_s + s->c->duration_s;
    s->result.moves++;
    s->result.copies += copies;
    s->result.lost_s += s->c->cost_s + copies * s->c->cost_per_move_s;
}

static void arrive(sim *s) {
    if (!s->moving || s->at_s < s->arrives_s)
        return;
    if (s->has_before)
        bl_layer_placement_free(&s->before);
    s->before = s->now;
    s->has_before = true;
    s->now = s->coming;
    s->moving = false;
    if (s->c->mode == BL_SIM_POLICY)
        bl_policy_moved(&s->policy, &s->offer, true, s->at_s);
}

static void tell(const sim *s, size_t window, const bl_policy_decision *d) {
    if (s->c->trace != NULL)
        fprintf(s->c->trace, "%3zu %s\n", window, d->line);
}

static void by_policy(sim *s, size_t window, double realised) {
    const bl_policy_case *c = s->c;
    double rows = 0;
    for (int e = 0; e < c->n_experts; e++)
        rows += c->load[window * (size_t)c->n_experts + (size_t)e];
    const bl_policy_window_in in = {.seconds = c->window_s,
                                    .imbalance = realised,
                                    .rows_per_rank = rows / c->n_ranks,
                                    .n_ranks = c->n_ranks,
                                    .moving = s->moving};
    bl_policy_decision d = bl_policy_window(&s->policy, &in, s->at_s);
    tell(s, window, &d);
    bl_layer_placement to;
    bl_error err = BL_ERROR_INIT;
    if (d.verdict == BL_POLICY_ROLL_BACK && s->has_before) {
        if (bl_layer_placement_copy(&s->before, &to, &err) < 0)
            die(&err);
        s->result.rolled_back++;
        start_move(s, &to);
        bl_policy_rolled_back(&s->policy, s->at_s);
        return;
    }
    if (d.verdict != BL_POLICY_PLAN || !plan(s, window, &to))
        return;
    const int copies = bl_layer_moves(&s->now, &to);
    s->offer = (bl_policy_offer){.now = realised,
                                 .after = imbalance(s, &to, window),
                                 .experts_s = c->share * realised,
                                 .step_s = 1 - c->share + c->share * realised,
                                 .moves = copies,
                                 .cost_s = c->cost_s + copies * c->cost_per_move_s,
                                 .duration_s = c->duration_s};
    d = bl_policy_weigh(&s->policy, &s->offer, s->at_s);
    tell(s, window, &d);
    if (d.verdict == BL_POLICY_MOVE)
        start_move(s, &to);
    else
        bl_layer_placement_free(&to);
}

static void set_up(sim *s) {
    bl_error err = BL_ERROR_INIT;
    const bl_policy_case *c = s->c;
    bl_placement start;
    const int layer = 0;
    s->slots = calloc((size_t)c->n_ranks, sizeof *s->slots);
    if (s->slots == NULL)
        abort();
    for (int rank = 0; rank < c->n_ranks; rank++)
        s->slots[rank] = c->slots / c->n_ranks;
    if (bl_placement_create(c->n_ranks, c->n_experts, &layer, 1, s->slots, &start, &err) < 0)
        die(&err);
    bl_placement_fill_contiguous(&start);
    if (bl_layer_placement_copy(&start.layers[0], &s->now, &err) < 0)
        die(&err);
    bl_placement_free(&start);
    bl_policy_init(&s->policy, &c->policy);
}

bl_policy_result bl_policy_simulate(const bl_policy_case *c) {
    sim s = {.c = c};
    set_up(&s);
    for (size_t window = 0; window < c->n_windows; window++) {
        const double realised = imbalance(&s, &s.now, window);
        s.result.mean += (realised - s.result.mean) / (double)(window + 1);
        s.result.lost_s += c->window_s * c->share * (realised - 1);
        s.at_s += c->window_s;
        arrive(&s);
        bl_layer_placement to;
        if (c->mode == BL_SIM_POLICY)
            by_policy(&s, window, realised);
        else if (c->mode == BL_SIM_EVERY && !s.moving && window % (size_t)c->every == 0 &&
                 plan(&s, window, &to))
            start_move(&s, &to);
    }
    if (s.moving)
        bl_layer_placement_free(&s.coming);
    if (s.has_before)
        bl_layer_placement_free(&s.before);
    bl_layer_placement_free(&s.now);
    free(s.slots);
    return s.result;
}
