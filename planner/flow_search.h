/*
 * flow_search.h: placements for the per-step split.
 *
 * When tokens are split anew each step, the load of single ranks does not matter: only cuts do
 * (core/split_step.h). A set of ranks is in trouble when experts wholly within it carry more than
 * its share, so a good placement shares its hot experts between ranks in such a way that no set is
 * shut in: few copies, well paired, level what exact loads could not. That also makes it robust,
 * provided the search sees loads that differ. The loads planned on alone would not do: on one load
 * nearly any pairing reaches the mean.
 *
 * So the search does not minimise the score of the scenarios given, but that of SAMPLES loads drawn
 * around them: the mean load, plus Gaussian weights times how the scenarios deviate from it (what
 * varies together keeps varying together, also beyond what was seen), plus noise of its own for
 * every expert, more for those whose load scatters more. Simulated annealing over the same changes
 * as elsewhere (state.h), half of them starting in a cut that binds some sample; every proposal is
 * scored exactly and given up as soon as it cannot be accepted any more.
 */
#ifndef BL_PLANNER_FLOW_SEARCH_H
#define BL_PLANNER_FLOW_SEARCH_H

#include "planner/problem.h"

typedef struct bl_flow_search_options {
    uint64_t seed;
    int64_t proposals; /* 0: default */
    double time_s;     /* > 0: this long instead */
    double move_price; /* with a current placement: what one more move must save, in max/mean */
} bl_flow_search_options;

/* Improve `placement` in place under BL_RULE_PER_STEP: hard rules and problem->max_moves are kept.
 * The problem has been checked and has load. BL_LIMIT when interrupted (core/progress.h). */
bl_status bl_flow_search(const bl_problem *problem, const bl_flow_search_options *options,
                         bl_layer_placement *placement, bl_error *err);

#endif
