/*
 * run_join.h: `ballast run` as one rank of many that torchrun, mpirun or mpiexec started.
 *
 *     torchrun --no-python --nproc-per-node 4 ballast run --model DIR --prompts FILE
 *     mpirun -n 4 ballast run --model DIR --prompts FILE
 *
 * Every process parses the same options and is one rank; there is no launcher that could take results,
 * so the ranks send theirs to rank 0 over the transport they served on, before it closes. Rank 0 prints
 * what a launcher would print, the others print nothing.
 */
#ifndef BL_CLI_RUN_JOIN_H
#define BL_CLI_RUN_JOIN_H

#include "cli/run_rank.h"

typedef struct bl_run_join {
    bl_ucx_options options;
    char meeting_point[300]; /* what options.rendezvous points to */
    bool found;              /* this process was started as a rank */
} bl_run_join;

/* Look at the environment. n_ranks: what -n said, 0 when it was left out; another number than the
 * launcher's is refused, but for launchers of a single process, which are passed by. */
bl_status bl_run_join_find(int n_ranks, bl_run_join *join, bl_error *err);

/* Be that rank. reports[n_ranks] are filled on rank 0, on the others their own alone. */
bl_status bl_run_join_run(bl_run_job *job, bl_run_join *join, bl_run_report *reports,
                          bl_error *err);

#endif
