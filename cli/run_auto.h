/*
 * run_auto.h: `ballast run --auto`: the controller (controller.h) as a thread of the launcher, which
 * holds no rank. Ranks know nothing of it; it speaks to them through their socket. Where there is no
 * launcher (run_join.h) it is a thread of the rank that answers operators, through the socket as well:
 * when that rank is lost, the next one starts its own.
 */
#ifndef BL_CLI_RUN_AUTO_H
#define BL_CLI_RUN_AUTO_H

#include "core/status.h"

#include <stdbool.h>

typedef struct bl_run_auto bl_run_auto;

/* Before the ranks are forked. `socket` may be NULL: the usual place. rest_s: between two moves. */
bl_status bl_run_auto_open(const char *socket, double rest_s, bl_run_auto **out, bl_error *err);
/* After. NULL is fine. */
void bl_run_auto_start(bl_run_auto *automatic);
/* Ends it and frees. `tell`: what went wrong with it is said on stderr, since serving went on without; not
 * where the run itself has failed, of which that is an echo. NULL is fine. */
void bl_run_auto_close(bl_run_auto *automatic, bool tell);

#endif
