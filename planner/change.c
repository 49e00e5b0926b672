#include "planner/change.h"

static bl_status write_down(bl_change_log *log, bl_change change, bl_error *err) {
    BL_TRY(bl_grow((void **)&log->items, &log->capacity, log->n + 1, sizeof *log->items, err));
    log->items[log->n++] = change;
    return BL_OK;
}

bl_status bl_change_swap(bl_state *state, int p, int q, bl_change_log *log, bl_error *err) {
    BL_TRY(write_down(log, (bl_change){p, q, BL_NO_EXPERT}, err));
    bl_state_swap(state, p, q);
    return BL_OK;
}

bl_status bl_change_replace(bl_state *state, int p, int expert, bl_change_log *log, bl_error *err) {
    BL_TRY(write_down(log, (bl_change){p, -1, state->expert[p]}, err));
    bl_state_replace(state, p, expert);
    return BL_OK;
}

void bl_change_undo(bl_state *state, bl_change_log *log, size_t keep) {
    while (log->n > keep) {
        const bl_change *change = &log->items[--log->n];
        if (change->q >= 0)
            bl_state_swap(state, change->p, change->q);
        else
            bl_state_replace(state, change->p, change->expert);
    }
}
