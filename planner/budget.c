#include "planner/budget.h"

#include <stdbool.h>

static double slope(const bl_rung *from, const bl_rung *to) {
    return (to->gain - from->gain) / (double)(to->moves - from->moves);
}

/* The next rung of the hull above `at`: the steepest one, the nearest of (but for rounding) equally
 * steep ones; -1 when none gains. */
static int next_on_hull(const bl_ladder *ladder, int at) {
    int best = -1;
    double best_slope = 0.0;
    for (int r = at + 1; r < ladder->n_rungs; r++) {
        if (ladder->rungs[r].moves <= ladder->rungs[at].moves)
            continue;
        const double s = slope(&ladder->rungs[at], &ladder->rungs[r]);
        if (s > best_slope * (1.0 + 1e-12)) {
            best = r;
            best_slope = s;
        }
    }
    return best;
}

static int64_t step_moves(const bl_ladder *ladder, int from, int to) {
    return (int64_t)ladder->rungs[to].moves - ladder->rungs[from].moves;
}

/* Climb the steepest hull step that still fits, once; false when there is none. */
static bool climb(const bl_ladder *ladders, int n, int64_t *left, int *choice) {
    int best = -1, best_rung = -1;
    double best_slope = 0.0;
    for (int i = 0; i < n; i++) {
        const int next = next_on_hull(&ladders[i], choice[i]);
        if (next < 0 || step_moves(&ladders[i], choice[i], next) > *left)
            continue;
        const double s = slope(&ladders[i].rungs[choice[i]], &ladders[i].rungs[next]);
        if (s > best_slope) {
            best = i;
            best_rung = next;
            best_slope = s;
        }
    }
    if (best < 0)
        return false;
    *left -= step_moves(&ladders[best], choice[best], best_rung);
    choice[best] = best_rung;
    return true;
}

/* Spend what is left on the single rung that gains most. */
static bool fill(const bl_ladder *ladders, int n, int64_t *left, int *choice) {
    int best = -1, best_rung = -1;
    double best_gain = 0.0;
    for (int i = 0; i < n; i++) {
        for (int r = choice[i] + 1; r < ladders[i].n_rungs; r++) {
            const double gain = ladders[i].rungs[r].gain - ladders[i].rungs[choice[i]].gain;
            if (step_moves(&ladders[i], choice[i], r) <= *left && gain > best_gain) {
                best = i;
                best_rung = r;
                best_gain = gain;
            }
        }
    }
    if (best < 0)
        return false;
    *left -= step_moves(&ladders[best], choice[best], best_rung);
    choice[best] = best_rung;
    return true;
}

bl_status bl_budget_choose(const bl_ladder *ladders, int n, int64_t budget, int *choice,
                           bl_error *err) {
    int64_t needed = 0;
    for (int i = 0; i < n; i++) {
        choice[i] = 0;
        needed += ladders[i].rungs[0].moves;
    }
    if (needed > budget)
        return bl_fail(
            err, BL_ERR_INFEASIBLE,
            "the layers need %lld moves to hold every expert, more than the %lld allowed",
            (long long)needed, (long long)budget);
    int64_t left = budget - needed;
    while (climb(ladders, n, &left, choice))
        ;
    while (fill(ladders, n, &left, choice))
        ;
    return BL_OK;
}
