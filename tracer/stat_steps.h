/*
 * stat_steps.h: single steps out of a stream, summed over the ranks that took part.
 *
 * Figures of a step need all of it: the records of every rank and layer. Records of a step come
 * close to each other but not always together (ranks drain at their own pace), so some steps are
 * open at a time. Each has a table
 *
 *     count[layer_index][column]      column: an expert, or a rank
 *
 * and is handed out, and forgotten, when every rank has gone on to a later step, or when the tables
 * of open steps reach WINDOW_BYTES (then the oldest goes first). What comes for a step after it was
 * handed out is handed out as a step of its own and counted as late: figures of single steps are
 * then those of parts of steps, and whoever prints them says so.
 */
#ifndef BL_TRACER_STAT_STEPS_H
#define BL_TRACER_STAT_STEPS_H

#include "tracer/trace.h"

typedef struct bl_step_counts {
    uint32_t run;
    uint64_t step;
    const uint64_t *count;  /* [n_layers][n_columns] */
    const uint64_t *tokens; /* [n_layers] */
} bl_step_counts;

typedef bl_status (*bl_step_closed)(void *user, const bl_step_counts *step, bl_error *err);

typedef struct bl_open_steps bl_open_steps;

/* `info` is borrowed. `closed` gets each step once, in ascending order but for late ones. */
bl_status bl_open_steps_create(const bl_trace_info *info, int n_columns, bl_step_closed closed,
                               void *user, bl_open_steps **out_p, bl_error *err);
void bl_open_steps_free(bl_open_steps *steps); /* NULL is fine */

/* A record was met that counts nothing (a dummy, no tokens): its rank has come this far. */
bl_status bl_open_steps_note(bl_open_steps *steps, const bl_record *record, bl_error *err);
/* The row of a record's step and layer (an index), for the caller to add its counts to; valid until
 * the next call. Hands out steps that are over. */
bl_status bl_open_steps_row(bl_open_steps *steps, const bl_record *record, int layer_index,
                            uint64_t **row_p, bl_error *err);
/* Hand out all that are open. */
bl_status bl_open_steps_finish(bl_open_steps *steps, bl_error *err);

uint64_t bl_open_steps_closed(const bl_open_steps *steps); /* handed out, late ones left out */
uint64_t bl_open_steps_late(const bl_open_steps *steps);

#endif
