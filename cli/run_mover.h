/*
 * run_mover.h: what moves experts in a rank of `ballast run`: its agent and, on rank 0, the control
 * socket and the journal. A part that hangs on the rank's steps (run_rank.h): before a step it hears
 * the operator and asks the others to keep stepping while a move is under way; at the step it lets
 * the agent act; what tokens are routed to it counts, and tells the rank that leads. When a rank was
 * lost, it agrees with the others on how to go on, and reads orphans from the checkpoint.
 */
#ifndef BL_CLI_RUN_MOVER_H
#define BL_CLI_RUN_MOVER_H

#include "cli/run_rank.h"
#include "rebalancer/control.h"
#include "rebalancer/recovery.h"

typedef struct bl_run_mover {
    const bl_run_job *job;
    bl_agent *agent;
    bl_meter *meter;
    bl_recovery *recovery;
    bl_engine *engine;             /* borrowed */
    const bl_qwen3 *model_of_rank; /* borrowed */
    bool *living;                  /* [n_ranks] scratch */
    int rank;
    /* of the rank that leads; NULL on others */
    bl_control *control;
    bl_journal *journal;
    json_t *model, *started;
    double next_try_s;  /* of opening the socket */
    int64_t server_pid; /* on others: of the process that serves it; 0: not known */
} bl_run_mover;

/* Does this job need one? It serves prompts, and somebody asked for spares or a socket. */
bool bl_run_mover_wanted(const bl_run_job *job);

/* What a rank lends its mover. */
typedef struct bl_run_parts {
    bl_store *store;
    bl_transport *transport;
    bl_engine *engine;
    const bl_qwen3 *model;
} bl_run_parts;

/* `out` must not move while the hooks are in use. */
bl_status bl_run_mover_open(const bl_run_job *job, const bl_run_parts *parts, bl_run_mover *out,
                            bl_engine_hooks *hooks, bl_error *err);

/* For bl_serve_options.recover, with the mover as its user. */
bl_status bl_run_mover_recover(void *mover, bl_error *err);
void bl_run_mover_close(bl_run_mover *mover); /* safe on a zeroed struct */

#endif
