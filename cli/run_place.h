/*
 * run_place.h: where the experts of a run live, and by which rule their copies share rows.
 */
#ifndef BL_CLI_RUN_PLACE_H
#define BL_CLI_RUN_PLACE_H

#include "cli/run_rank.h"

typedef struct bl_run_place {
    const char *plan;     /* a file, or NULL: the layout engines start with */
    const char *topology; /* catalogue name or file, or NULL: all ranks on one machine */
    int64_t slots;        /* without a plan: per layer over all ranks; -1: one per expert */
    int rule;             /* a bl_rule, or -1: the plan's, else even */
} bl_run_place;

/* Fill in the job's placement, rule and topology; model, ranks and spares are known. */
bl_status bl_run_place_experts(const bl_run_place *place, bl_run_job *job, bl_error *err);

#endif
