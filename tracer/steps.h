/*
 * steps.h: the set of steps a trace holds, and the position of each.
 *
 * Engines number steps from anywhere and restart; `--steps A:B` counts from 0 over what the trace
 * has. The set keeps runs of neighbouring numbers as one interval, so it stays small for any
 * length:
 *
 *     run 0: 100..199   run 1: 0..49      ->   (0,100) is position 0, (1,0) is position 100
 */
#ifndef BL_TRACER_STEPS_H
#define BL_TRACER_STEPS_H

#include "core/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct bl_step_interval {
    uint32_t run;
    uint64_t first, last; /* inclusive */
    uint64_t before;      /* steps in all earlier intervals; set by bl_steps_number() */
} bl_step_interval;

typedef struct bl_steps {
    bl_step_interval *items; /* [n], ascending, disjoint, never adjacent; owned */
    size_t n, capacity;
    size_t hint; /* where the last step was found */
} bl_steps;

bl_status bl_steps_add(bl_steps *steps, uint32_t run, uint64_t step, bl_error *err);
/* Number the intervals; returns how many steps there are. Call after the last add. */
uint64_t bl_steps_number(bl_steps *steps);
/* Position of a step that is in the set; false when it is not. */
bool bl_steps_position(bl_steps *steps, uint32_t run, uint64_t step, uint64_t *position);
/* The step at a position below the total. */
void bl_steps_at(const bl_steps *steps, uint64_t position, uint32_t *run, uint64_t *step);
void bl_steps_free(bl_steps *steps);

#endif
