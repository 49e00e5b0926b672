/*
 * run_record.h: `ballast run --record`: the routing of all ranks into one trace file.
 *
 * The same path as in production: each rank pushes its router's picks into a shared-memory ring
 * (include/ballast.h), and a recorder outside the ranks drains the rings into the file. Here the
 * recorder is a thread of the launcher, which holds no rank. Ranks wait at their first step until
 * it has found all rings, so that not even a short run is missed:
 *
 *     launcher:  open ── fork ranks ── start ─ attach to all ── go ── drain ...... ── close
 *     ranks:                └─ tracer_open, waits ──────────────┴─ steps ... ── tracer_close
 *
 * Ranks that others started (run_join.h) have no launcher, and may be on several hosts: there each
 * records itself, into a file of its own in a directory (tracer/stream.h reads it as one trace), and the
 * recorder is a thread beside the rank.
 */
#ifndef BL_CLI_RUN_RECORD_H
#define BL_CLI_RUN_RECORD_H

#include "runtime/engine.h"
#include "tracer/recorder.h"

/* ---- launcher ------------------------------------------------------------------------------ */

typedef struct bl_run_recorder bl_run_recorder;

/* Before the ranks are forked or started; no thread runs yet. Removes rings that killed runs left. */
bl_status bl_run_recorder_open(const char *path, int n_ranks, bl_run_recorder **out, bl_error *err);
/* For a single rank, into DIRECTORY/rank-00003.000001.blt; the directory is made if it is missing. A
 * file of that rank that is there is BL_ERR_STATE. */
bl_status bl_run_recorder_open_rank(const char *directory, int rank, bl_run_recorder **out,
                                    bl_error *err);
/* Before start: records also hold how long the stages of each layer took. */
void bl_run_recorder_keep_times(bl_run_recorder *recorder);
/* After. What goes wrong is said by close. NULL is fine. */
void bl_run_recorder_start(bl_run_recorder *recorder);
/* After the last rank has ended: drain, close the file, free. The recorder's own error comes first,
 * for ranks only saw that it was gone. NULL is BL_OK with zero totals. */
bl_status bl_run_recorder_close(bl_run_recorder *recorder, bl_recorder_totals *totals,
                                bl_error *err);

/* In a rank process, right after the fork: leave the launcher's end of the channel to it. */
void bl_run_recorder_forked(bl_run_recorder *recorder);

/* ---- rank ---------------------------------------------------------------------------------- */

typedef struct bl_run_tracer {
    struct bl_tracer *tracer;
    int n_timed;  /* layers whose stage times are recorded: all, or 0 */
    bool in_step; /* it began and has not ended: it failed, if another one begins */
} bl_run_tracer;

/* Make this rank's ring and wait for the recorder; `model` names the trace's model. *hooks do the
 * rest on each step. Waiting is not communicating: do it before ranks connect. */
bl_status bl_run_tracer_open(const bl_run_recorder *recorder, const char *model,
                             const bl_qwen3_config *config, int max_sequences, int rank,
                             int n_ranks, bl_run_tracer *tracer, bl_engine_hooks *hooks,
                             bl_error *err);
void bl_run_tracer_close(bl_run_tracer *tracer); /* safe on a zeroed struct */

#endif
