/*
 * progress.h: long work says where it is, on standard error, and stops when asked.
 *
 * A handle carries the sink, so library code prints nothing by itself: bl_progress_none() is
 * silent. Lines are overwritten in place on a terminal and printed at most once a second otherwise.
 * Ctrl-C sets a flag that long loops poll with bl_interrupted(): the best result so far is kept.
 */
#ifndef BL_CORE_PROGRESS_H
#define BL_CORE_PROGRESS_H

#include "core/status.h"

#include <stdbool.h>
#include <stdio.h>

typedef struct bl_progress {
    FILE *sink;    /* NULL: silent */
    double last_s; /* when the last line was printed, monotonic seconds */
    bool on_terminal;
    bool line_open; /* an unfinished line is on the terminal */
} bl_progress;

bl_progress bl_progress_none(void);
bl_progress bl_progress_stderr(void);

/* Show one line, rate-limited. NULL progress is fine. */
void bl_progress_line(bl_progress *progress, const char *format, ...) BL_PRINTF(2, 3);
/* End the line in place, if one is open. */
void bl_progress_end(bl_progress *progress);

/* Install handlers for SIGINT, SIGTERM and (unless it is ignored) SIGHUP once; afterwards
 * bl_interrupted() tells whether one came. A second signal kills the process as usual. */
void bl_interrupts_install(void);
bool bl_interrupted(void);

/* Monotonic clock. */
double bl_now_s(void);
uint64_t bl_now_ns(void);

#endif
