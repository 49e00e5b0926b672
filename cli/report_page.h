/*
 * report_page.h: the page that `ballast report` writes (design: look rather than read).
 *
 * From top to bottom: the verdict and what to do next; a table of all plans; imbalance step by step;
 * heat maps layer x rank before and after; the gap to the bound by layer; memory against KV cache;
 * migration; traffic. Everything modelled says so.
 */
#ifndef BL_CLI_REPORT_PAGE_H
#define BL_CLI_REPORT_PAGE_H

#include "cli/replay_answer.h"

#include <stdio.h>

#define BL_REPORT_PLANS 4 /* drawn; the table names all */

typedef struct bl_report {
    const bl_replay_request *request;
    const bl_replay_inputs *in;
    const bl_replay_answer *answer;
    char *const *paths; /* [in->n_plans] of the plans */
} bl_report;

/* BL_ERR_NOMEM; whether `out` took it all is seen when it is closed. */
bl_status bl_report_write(const bl_report *report, FILE *out, bl_error *err);

/* report_parts.c: single sections. */
void bl_report_next(const bl_report *report, FILE *out);
bl_status bl_report_memory(const bl_report *report, FILE *out, bl_error *err);
void bl_report_traffic(const bl_report *report, FILE *out);

#endif
