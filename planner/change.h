/*
 * change.h: changes of a state, written down so that they can be taken back.
 */
#ifndef BL_PLANNER_CHANGE_H
#define BL_PLANNER_CHANGE_H

#include "planner/state.h"

typedef struct bl_change {
    int p, q;   /* q >= 0: swap(p, q) */
    int expert; /* else replace(p, ...): the expert that was there before */
} bl_change;

typedef struct bl_change_log {
    bl_change *items; /* owned, free() */
    size_t n, capacity;
} bl_change_log;

/* Apply and write down. */
bl_status bl_change_swap(bl_state *state, int p, int q, bl_change_log *log, bl_error *err);
bl_status bl_change_replace(bl_state *state, int p, int expert, bl_change_log *log, bl_error *err);

/* Take back the latest changes until `keep` are left. */
void bl_change_undo(bl_state *state, bl_change_log *log, size_t keep);

#endif
