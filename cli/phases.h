/*
 * phases.h: --phase of verbs that plan or score: one phase, or all of them together on purpose.
 */
#ifndef BL_CLI_PHASES_H
#define BL_CLI_PHASES_H

#include "core/opt.h"
#include "tracer/demand.h"

/* The names of bl_phase, then "all"; NULL-terminated. An option left out is -1. */
extern const char *const bl_phase_choices[];
#define BL_PHASE_ALL BL_N_PHASES

/* Of the choice: a bl_phase, or -1 for all. */
int bl_phase_filter(int choice);

/* The phases of `requests` that the choice covers, in order; returns their number. */
int bl_phases_of(const bl_demand *requests, int choice, int phases[BL_N_PHASES]);

#endif
