/*
 * run_back.h: `ballast run --join`: this process comes back as a rank that a running cluster has lost.
 *
 *     ballast run --join SOCKET --rank 2 --model DIR --prompts FILE ...    the cluster's own options
 *
 * It asks at the cluster's socket how many ranks there are and how they are set up, opens the model,
 * asks where they can be reached, knocks at all of them (runtime/transport.h) and waits until they let it
 * in between two moves (rebalancer/recovery.h). It holds no experts until a plan gives it some. Its requests are
 * those of the lost rank, from the first: what its predecessor had answered went with it. When the
 * run ends it prints its own continuations, in their places.
 *
 * Who leads may die meanwhile, others may come back, too: then it knocks again, until the deadline.
 */
#ifndef BL_CLI_RUN_BACK_H
#define BL_CLI_RUN_BACK_H

#include "cli/run_rank.h"
#include "rebalancer/recovery.h"

typedef struct bl_run_back {
    const char *socket;
    int rank;
    bl_placement placement; /* in force when this rank looked: the slots it takes memory for */
    json_t *started;        /* what bl_run_agree_with() compares */
    bl_welcome welcome;
} bl_run_back;

/* Look at the cluster; *n_ranks are its ranks. BL_ERR_STATE when it keeps other spares. */
bl_status bl_run_back_find(const bl_run_back *back, int n_spares, int *n_ranks, bl_error *err);

/* Before anything is read or allocated: is the rank lost, and does this process fit in its place? */
bl_status bl_run_back_look(const bl_run_job *job, bl_run_back *back, bl_error *err);

/* Be that rank. reports[n_ranks]: those of the others are empty. */
bl_status bl_run_back_run(bl_run_job *job, bl_run_report *reports, bl_error *err);

#endif
