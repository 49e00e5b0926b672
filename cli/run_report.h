/*
 * run_report.h: what one rank of `ballast run` tells its launcher when it is done.
 *
 * Threads hand the struct over; processes send it as bytes through their seat (runtime/launch.h).
 * The bytes are the arrays as they lie in memory: sender and receiver are one program on one
 * machine. Decoding still trusts no length, for a rank may have died while it wrote.
 */
#ifndef BL_CLI_RUN_REPORT_H
#define BL_CLI_RUN_REPORT_H

#include "runtime/serve.h"

typedef struct bl_run_report {
    int pid;
    size_t resident_bytes; /* of the rank's expert store */
    bl_serve_log log;      /* the steps; completions when prompts were served */
    size_t n_logits, n_topk;
    float *logits; /* [tokens][vocab] of a run over given tokens, on rank 0; else NULL */
    int32_t *topk; /* [tokens][n_layers][k], likewise */
} bl_run_report;

void bl_run_report_free(bl_run_report *report); /* safe on a zeroed struct */

/* In place of the report of a rank that was lost: the steps of another one, in which it has done
 * nothing, and no completions. */
bl_status bl_run_report_of_lost(const bl_run_report *other, bl_run_report *out, bl_error *err);

/* What a report takes at most, for whoever reads it whole: of the steps only so many are kept, texts are
 * as long as `requests` (n 0: none) ask for, and logits are those of n_tokens tokens. */
size_t bl_run_report_most_bytes(const bl_qwen3_config *config, int n_ranks,
                                const bl_requests *requests, size_t n_tokens);
/* The caller frees *data_p. */
bl_status bl_run_report_encode(const bl_run_report *report, unsigned char **data_p, size_t *bytes,
                               bl_error *err);
/* BL_ERR_PARSE when the bytes are not one whole report. */
bl_status bl_run_report_decode(const unsigned char *data, size_t bytes, bl_run_report *report,
                               bl_error *err);

#endif
