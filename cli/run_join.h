/*
 * run_join.h: `ballast run` as one rank of many that torchrun, mpirun or mpiexec started.
 *
 *     torchrun --no-python --nproc-per-node 4 ballast run --model DIR --prompts FILE
 *     mpirun -n 4 ballast run --model DIR --prompts FILE
 *
 * Every process parses the same options and is one rank; there is no launcher that could take results,
 * so the ranks send theirs to one of them over the transport they served on, before it closes:
 *
 *     collector, rank 0:   report ◀── every other rank,  then  taken ──▶ each      prints
 *     the others:          report ──▶ collector,         then wait for taken       print nothing
 *
 * What a launcher would keep for itself is in the ranks here. With --record each is the recorder of its
 * own ring; how that went is in its report. With --auto the rank that answers operators runs the
 * controller.
 *
 * Ranks may be lost where they have a mover. Then the lowest rank that is left collects, with a lost
 * rank's requests left out, and ends with BL_ERR_PEER naming the lost; the other survivors end well. If
 * the collector is lost before it has said `taken`, the next one collects.
 */
#ifndef BL_CLI_RUN_JOIN_H
#define BL_CLI_RUN_JOIN_H

#include "cli/run_rank.h"

typedef struct bl_run_join {
    bl_ucx_options options;
    char meeting_point[300]; /* what options.rendezvous points to */
    bool found;              /* this process was started as a rank */
    bool collects;           /* it has everybody's reports */
} bl_run_join;

/* How a recording went: of one rank, or of all. */
typedef struct bl_run_trace {
    bl_recorder_totals totals;
    bl_status status;
    bl_error error;
} bl_run_trace;

/* Look at the environment. n_ranks: what -n said, 0 when it was left out; another number than the
 * launcher's is refused, but for launchers of a single process, which are passed by. */
bl_status bl_run_join_find(int n_ranks, bl_run_join *join, bl_error *err);

/* Be that rank. job->recorder is this rank's, and closed here, job->led its controller. On the rank that
 * collects reports[n_ranks] and `trace` are of all ranks, on the others their own alone. When ranks were
 * lost, the collector has job->some_lost and all reports, those of the lost without texts. */
bl_status bl_run_join_run(bl_run_job *job, bl_run_join *join, bl_run_report *reports,
                          bl_run_trace *trace, bl_error *err);

#endif
