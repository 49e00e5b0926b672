#include "cli/run_join.h"

#include <stdlib.h>

#define REPORT_MARK UINT64_C(0x5245504f5254) /* "REPORT" */

bl_status bl_run_join_find(int n_ranks, bl_run_join *join, bl_error *err) {
    *join = (bl_run_join){.options = BL_UCX_OPTIONS_INIT};
    BL_TRY(bl_ucx_options_from_env(&join->options, join->meeting_point, sizeof join->meeting_point,
                                   &join->found, err));
    join->found = join->found && join->options.n_ranks > 1;
    if (join->found && n_ranks != 0 && n_ranks != join->options.n_ranks)
        return bl_fail(err, BL_ERR_USAGE,
                       "this process was started as rank %d of %d, and -n says %d: leave -n out to "
                       "join them, or unset the launcher's variables",
                       join->options.rank, join->options.n_ranks, n_ranks);
    return BL_OK;
}

static bl_status connect_joined(void *user, bl_transport **out, bl_error *err) {
    const bl_run_join *join = user;
    return bl_transport_ucx_open(&join->options, out, err);
}

static bl_status send_report(bl_transport *transport, const bl_run_report *report, bl_error *err) {
    unsigned char *data;
    size_t bytes;
    BL_TRY(bl_run_report_encode(report, &data, &bytes, err));
    const bl_status st =
        bl_transport_send(transport, 0, BL_CHANNEL_STEP, REPORT_MARK, data, bytes, err);
    free(data);
    return st;
}

/* The last thing ranks do together; `user` is the array of reports. */
static bl_status collect(void *user, bl_transport *transport, double deadline_s,
                         const bl_run_report *mine, bl_error *err) {
    bl_run_report *reports = user;
    if (bl_transport_rank(transport) != 0)
        return send_report(transport, mine, err);
    for (int rank = 1; rank < bl_transport_n_ranks(transport); rank++) {
        bl_message message;
        BL_TRY(bl_transport_receive_whole(transport, rank, BL_CHANNEL_STEP, REPORT_MARK, deadline_s,
                                          &message, err));
        const bl_status st = bl_run_report_decode(message.data, message.bytes, &reports[rank], err);
        bl_message_free(&message);
        BL_TRY(st);
    }
    return BL_OK;
}

bl_status bl_run_join_run(bl_run_job *job, bl_run_join *join, bl_run_report *reports,
                          bl_error *err) {
    const int rank = join->options.rank;
    join->options.deadline_s = job->deadline_s;
    join->options.silence_s = job->silence_s;
    job->collect = collect;
    job->collect_user = reports;
    return bl_run_rank(job, rank, connect_joined, join, &reports[rank], err);
}
