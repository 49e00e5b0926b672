/*
 * timed.h: a layer's placement measured in time instead of tokens.
 *
 * Token balance is what every balancer reports, and it is right while multiplying rules (prefill).
 * In decode a copy costs the reading of its weights whatever it serves, so the slowest rank is the
 * one with most *active copies*, and a further copy of a hot expert adds time where one of an
 * expert that hardly runs adds none. The objective `time` minimises planner/cost.h's
 *
 *     mean over scenarios of  T(s) = dispatch + max over ranks (experts) + combine
 *
 * (with overlap: of the longer of communication and the rest; with a tail: over the worst part of
 * the scenarios). Time is not linear in tokens, so it matters how many there are: a scenario is
 * scaled to the rows of one step, either its own mean step or the operating point asked for
 * (--tokens-per-rank).
 *
 * Where the trace tells the ranks that tokens come from, T is priced with the rows that really travel
 * (cost.h, bl_cost_traffic_s), as replay does. The search itself goes on by even sources, which it can score
 * a change of in microseconds; its results are compared, kept or dropped by the real ones, and changed for
 * traffic where that takes less time (traffic_plan.h).
 *
 * A lower bound on T(s) for every placement of the problem's shape: dispatch, experts and combine
 * have one each, and they add up (with overlap the larger counts). With real sources, under dispatch
 * by assignment, what counts is what must leave: of the rows born on a rank (or in a domain at the top) all
 * but those of as many experts as it has slots, the ones it asks for most.
 *
 *     dispatch, combine  whatever the placement, rows x seconds per row is the same sum over ports
 *                        in their own units: some port has at least total / sum(1 / seconds). And
 *                        the hottest copy (the slot bound of bounds.h) lands on some rank.
 *     experts  "mean"    sum over ranks of time / weights_s >= sum over experts of
 *                        max(min(1, w), w x least of row_s / weights_s), since max(min(1, n), n c)
 *                        is subadditive and copies can only raise the sum; so the slowest rank has
 *                        at least that over sum(1 / weights_s). The same in units of row_s. Ranks
 *                        of mixed speed thereby count by their speed.
 *              "active"  under the even split copies of an expert are active together: r copies
 *                        make min(r, w) of one. Spare slots must be filled, which costs at least
 *                        the cheapest chords of that concave function. And a rank with S slots
 *                        holds S different experts: at least the S least active ones, each cut into
 *                        as many copies as there are ranks. And experts with a row for every such
 *                        copy are read whole, so ranks hold whole numbers of them.
 *              "slot"    the hottest copy is multiplied somewhere.
 *              Where reading and multiplying add up on every rank, sums stand for the larger of
 *              the two; where they do on some, the larger is still a bound.
 */
#ifndef BL_PLANNER_TIMED_H
#define BL_PLANNER_TIMED_H

#include "planner/cost.h"
#include "planner/problem.h"

/* How a problem's loads become time. */
typedef struct bl_timed {
    const bl_cost *cost;
    const double *scale;  /* [n_scenarios] rows of one step per unit of the scenario's load */
    const double *weight; /* [n_scenarios] part of all steps; they sum to 1 */
    /* How rows travel, for problems that know where they come from; NULL: they come evenly from all
     * ranks, whatever the problem knows. */
    const bl_topology *topology;
    bl_dispatch dispatch, combine;
} bl_timed;

/* Are the rows that really travel priced? The trace tells sources, and tokens where the modes need them. */
bool bl_timed_knows_sources(const bl_problem *problem);

/* Can time be told under the problem's rule? Where shares depend on sources, those must be known; where they
 * are made anew each step, it cannot. */
bool bl_timed_is_told(const bl_problem *problem);

/* T in seconds of a placement that keeps the hard rules, mean over scenarios. share[n_slots] as in
 * core/split.h; NULL: the even split. problem->timed is there. */
bl_status bl_timed_seconds(const bl_problem *problem, const bl_layer_placement *placement,
                           const double *share, double *out, bl_error *err);

/* What the search minimises: the same, or the mean over the worst part of the scenarios
 * (problem->tail), under the even split. */
bl_status bl_timed_value(const bl_problem *problem, const bl_layer_placement *placement,
                         double *out, bl_error *err);

/* No placement of the problem's shape has a mean T below. `kind` is "mean", "active" or "slot":
 * what bounds the experts in the heaviest scenario. */
typedef struct bl_timed_bound {
    double seconds;
    const char *kind;
} bl_timed_bound;
bl_status bl_timed_bound_of(const bl_problem *problem, bl_timed_bound *out, bl_error *err);

typedef struct bl_timed_search_options {
    uint64_t seed;
    int64_t proposals; /* 0: default */
    double time_s;     /* > 0: this long instead */
    double move_price; /* with a current placement: what one more move must save, as a part of T */
    double target_s;   /* stop at this mean T */
    bool gentle;       /* start cool: the placement is good already */
} bl_timed_search_options;

/* Improve `placement` in place under the even split: hard rules and problem->max_moves are kept,
 * bl_timed_value() with the price of moves does not get worse. BL_LIMIT when interrupted. */
bl_status bl_timed_search(const bl_problem *problem, const bl_timed_search_options *options,
                          bl_layer_placement *placement, bl_error *err);

/* A first placement for time: spare slots to the experts whose copies cost least, packed by time
 * alone. The problem has been checked and has load. */
bl_status bl_timed_start(const bl_problem *problem, bl_layer_placement *out, bl_error *err);

#endif
