#include "cli/run_join.h"

#include "cli/run_mover.h"
#include "core/mem.h"

#include <stdlib.h>
#include <string.h>

/* Later than the marks of all exchanges, which end before. */
#define REPORT_MARK UINT64_C(0x5245504f52540000) /* "REPORT" */
#define TRACE_MARK (REPORT_MARK + 1)
#define TAKEN_MARK (REPORT_MARK + 2)

/* How a rank's recording went, as it travels between ranks of one program. */
typedef struct trace_word {
    uint64_t pushed, written, dropped, rejected;
    int64_t is_whole;
} trace_word;

/* A joined rank while it runs. */
typedef struct joined {
    bl_run_join *join;
    const bl_run_job *job;
    bl_run_recorder *recorder; /* until it is closed */
    bl_run_report *reports;
    bl_run_trace *trace;
    bool *lost; /* [n_ranks] */
    int rank, n_ranks;
    bool goes_on; /* when others are lost */
    double deadline_s;
} joined;

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
    const joined *j = user;
    return bl_transport_ucx_open(&j->join->options, out, err);
}

/* ---- traces ---------------------------------------------------------------------------------- */

/* The rank's ring is closed: its recorder comes to an end. */
static void end_recording(joined *j) {
    if (j->recorder != NULL)
        j->trace->status = bl_run_recorder_close(j->recorder, &j->trace->totals, &j->trace->error);
    j->recorder = NULL;
}

static void add_trace(joined *j, int rank, const trace_word *word) {
    bl_recorder_totals *totals = &j->trace->totals;
    totals->pushed += word->pushed;
    totals->written += word->written;
    totals->dropped += word->dropped;
    totals->rejected += word->rejected;
    if (!word->is_whole && j->trace->status >= 0)
        j->trace->status =
            bl_fail(&j->trace->error, BL_ERR_IO, "rank %d could not write its trace", rank);
}

/* ---- reports --------------------------------------------------------------------------------- */

static bl_status send_report(joined *j, bl_transport *transport, int to, const bl_run_report *mine,
                             bl_error *err) {
    const bl_recorder_totals *t = &j->trace->totals;
    const trace_word word = {t->pushed, t->written, t->dropped, t->rejected, j->trace->status >= 0};
    unsigned char *data;
    size_t bytes;
    bl_message taken;
    BL_TRY(bl_run_report_encode(mine, &data, &bytes, err));
    bl_status st = bl_transport_send(transport, to, BL_CHANNEL_STEP, REPORT_MARK, data, bytes, err);
    free(data);
    if (st >= 0)
        st = bl_transport_send(transport, to, BL_CHANNEL_STEP, TRACE_MARK, &word, sizeof word, err);
    if (st >= 0)
        st = bl_transport_receive(transport, to, BL_CHANNEL_STEP, TAKEN_MARK, j->deadline_s, &taken,
                                  err);
    if (st >= 0)
        bl_message_free(&taken);
    return st;
}

/* Where nobody goes on without the others, the loss of one is the end for all. */
static bl_status receive(const joined *j, bl_transport *transport, int from, uint64_t mark,
                         bl_message *out, bl_error *err) {
    return j->goes_on ? bl_transport_receive(transport, from, BL_CHANNEL_STEP, mark, j->deadline_s,
                                             out, err)
                      : bl_transport_receive_whole(transport, from, BL_CHANNEL_STEP, mark,
                                                   j->deadline_s, out, err);
}

static bl_status take_report(joined *j, bl_transport *transport, int from, bl_error *err) {
    bl_message report, trace;
    trace_word word;
    BL_TRY(receive(j, transport, from, REPORT_MARK, &report, err));
    bl_status st = receive(j, transport, from, TRACE_MARK, &trace, err);
    if (st >= 0)
        st = bl_run_report_decode(report.data, report.bytes, &j->reports[from], err);
    bl_message_free(&report);
    BL_TRY(st);
    if (trace.bytes == sizeof word) {
        memcpy(&word, trace.data, sizeof word);
        add_trace(j, from, &word);
    }
    bl_message_free(&trace);
    return BL_OK;
}

/* A rank that is lost now is left out like those that were lost before. */
static bl_status take_reports(joined *j, bl_transport *transport, bl_error *err) {
    for (int from = 0; from < j->n_ranks; from++) {
        bl_error why = BL_ERROR_INIT;
        if (from == j->rank || j->lost[from])
            continue;
        const bl_status st = take_report(j, transport, from, &why);
        j->lost[from] = st == BL_ERR_PEER && j->goes_on;
        if (st < 0 && !j->lost[from]) {
            if (err != NULL)
                *err = why;
            return st;
        }
    }
    for (int to = 0; to < j->n_ranks; to++) {
        if (to != j->rank && !j->lost[to]) /* who cannot be told has gone, and was heard */
            bl_transport_send(transport, to, BL_CHANNEL_STEP, TAKEN_MARK, NULL, 0, NULL);
    }
    j->join->collects = true;
    return BL_OK;
}

/* The last thing ranks do together. */
static bl_status collect(void *user, bl_transport *transport, const bool *lost,
                         const bl_run_report *mine, bl_error *err) {
    joined *j = user;
    end_recording(j);
    if (lost != NULL)
        memcpy(j->lost, lost, sizeof *lost * (size_t)j->n_ranks);
    if (j->goes_on) /* what is left of a step that broke off */
        bl_transport_set_floor(transport, BL_CHANNEL_STEP, REPORT_MARK);
    for (int collector = 0; collector < j->rank; collector++) {
        bl_error why = BL_ERROR_INIT;
        if (j->lost[collector])
            continue;
        const bl_status st = send_report(j, transport, collector, mine, &why);
        if (st >= 0)
            return BL_OK;
        if (st != BL_ERR_PEER || !j->goes_on) {
            if (err != NULL)
                *err = why;
            return st;
        }
        j->lost[collector] = true;
    }
    return take_reports(j, transport, err);
}

/* The collector's, after the ranks have parted. */
static bl_status name_the_lost(const joined *j, bl_run_job *job, bl_error *err) {
    char ranks[256] = "";
    int n = 0;
    for (int rank = 0; rank < j->n_ranks; rank++) {
        const size_t used = strlen(ranks);
        if (!j->lost[rank])
            continue;
        BL_TRY(bl_run_report_of_lost(&j->reports[j->rank], &j->reports[rank], err));
        snprintf(ranks + used, sizeof ranks - used, " %d", rank);
        n++;
    }
    if (n == 0)
        return BL_OK;
    job->some_lost = true;
    return bl_fail(err, BL_ERR_PEER, "rank%s%s %s lost; the others went on and answered theirs",
                   n > 1 ? "s" : "", ranks, n > 1 ? "were" : "was");
}

bl_status bl_run_join_run(bl_run_job *job, bl_run_join *join, bl_run_report *reports,
                          bl_run_trace *trace, bl_error *err) {
    joined j = {.join = join,
                .job = job,
                .recorder = job->recorder,
                .reports = reports,
                .trace = trace,
                .rank = join->options.rank,
                .n_ranks = join->options.n_ranks,
                .goes_on = bl_run_mover_wanted(job),
                .deadline_s = job->deadline_s};
    join->options.deadline_s = job->deadline_s;
    join->options.silence_s = job->silence_s;
    job->parsed_apart = true;
    job->collect = collect;
    job->collect_user = &j;
    bl_status st = BL_CALLOC(j.lost, j.n_ranks, err);
    if (st >= 0) {
        bl_run_recorder_start(j.recorder);
        st = bl_run_rank(job, j.rank, connect_joined, &j, &reports[j.rank], err);
    }
    end_recording(&j);
    job->recorder = NULL;
    if (st >= 0 && join->collects)
        st = name_the_lost(&j, job, err);
    job->collect_user = NULL;
    free(j.lost);
    return st;
}
