/*
 * replicas.h: one budget of redundant slots over many layers.
 *
 * A slot more on every rank costs its bundle's bytes of KV cache, in whichever layer it is; what it
 * gains differs from layer to layer. Each layer offers a ladder (budget.h): rung r takes `moves` slots
 * per rank beyond the fewest that hold all experts and gains `gain`. One rung per layer, within the
 * budget, gains summing to the most: a multiple-choice knapsack,
 *
 *     x[l][r] in {0, 1},   sum_r x[l][r] = 1,   sum_lr slots[l][r] x[l][r] <= budget,
 *     maximise sum_lr gain[l][r] x[l][r]
 *
 * Its LP relaxation is off by less than one step of one layer, so GLPK proves it in few nodes. The
 * climb of budget.h is where it starts, and the answer without a solver.
 */
#ifndef BL_PLANNER_REPLICAS_H
#define BL_PLANNER_REPLICAS_H

#include "planner/budget.h"

#include <stdbool.h>

/* choice[n] receives the rung of each ladder; *proven: no choice gains more. BL_ERR_INFEASIBLE when
 * the first rungs alone exceed the budget. */
bl_status bl_replicas_choose(const bl_ladder *ladders, int n, int64_t budget, int *choice,
                             bool *proven, bl_error *err);

#endif
