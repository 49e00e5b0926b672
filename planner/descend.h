/*
 * descend.h: steepest descent on the busiest rank, for one scenario.
 *
 * With one load vector only the busiest rank matters, so only changes that relieve it are looked
 * at: exchanging one of its copies for a lighter one of another rank, putting another expert in a
 * slot of its, or giving one of its experts a copy more elsewhere. Of all of them the one is taken
 * after which the highest of the changed ranks is lowest. A step looks at O(slots * slots per rank
 * + spare slots * slots per rank) candidates with a few operations each: microseconds.
 *
 * Where moves have a price it is added to that height in the choice. Every step still lowers the
 * busiest rank, so the sorted rank loads fall with every step and the descent ends.
 */
#ifndef BL_PLANNER_DESCEND_H
#define BL_PLANNER_DESCEND_H

#include "planner/change.h"

/* Descend until no change helps, the objective is at most `target` or *steps is used up. */
bl_status bl_descend(bl_state *state, double target, int64_t *steps, bl_change_log *log,
                     bl_error *err);

#endif
