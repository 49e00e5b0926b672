/*
 * ballast record: drain the rings of traced ranks into a trace.
 */
#include "cli/verbs.h"
#include "core/mem.h"
#include "core/progress.h"
#include "tracer/recorder.h"
#include "tracer/ring.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define RING_DIRECTORY "/dev/shm" /* where POSIX shared memory objects are files on Linux */

typedef struct record_options {
    bl_opt_list rings;
    const char *out;
    double wait_s;
} record_options;

static const bl_opt OPTIONS[] = {
    {.name = "ring",
     .type = BL_OPT_LIST,
     .offset = offsetof(record_options, rings),
     .metavar = "NAME",
     .help = "ring to record, as the engine named it; default: all "
             "there are"},
    {.name = "output",
     .short_name = 'o',
     .type = BL_OPT_STRING,
     .offset = offsetof(record_options, out),
     .metavar = "DIR",
     .required = true,
     .help = "directory to put trace.blt into; made if it is missing, never overwritten"},
    {.name = "wait",
     .type = BL_OPT_DURATION,
     .offset = offsetof(record_options, wait_s),
     .metavar = "TIME",
     .min = 0,
     .max = 1e9,
     .help = "how long to wait for rings that are not there yet"},
    {0}};

static void nap(void) {
    const struct timespec pause = {0, 2000000};
    nanosleep(&pause, NULL);
}

/* Attach every ring there is; names that are no rings of ours are passed over. */
static bl_status attach_all(bl_recorder *recorder, int *n, bl_error *err) {
    const char *prefix = &BL_RING_PREFIX[1];
    DIR *dir = opendir(RING_DIRECTORY);
    if (dir == NULL)
        return bl_fail_at(err, BL_ERR_IO, bl_at(RING_DIRECTORY), "cannot look for rings: %s",
                          strerror(errno));
    bl_status st = BL_OK;
    for (struct dirent *entry; st >= 0 && (entry = readdir(dir)) != NULL;) {
        if (strncmp(entry->d_name, prefix, strlen(prefix)) != 0)
            continue;
        bl_error why = BL_ERROR_INIT;
        st = bl_recorder_attach(recorder, entry->d_name + strlen(prefix), &why);
        if (st == BL_OK)
            ++*n;
        else if (st == BL_ERR_STATE) /* being made, or somebody else records it */
            st = BL_OK;
        else
            bl_fail(err, st, "%s; name the rings with --ring", why.text);
    }
    closedir(dir);
    return st;
}

static bl_status attach(const record_options *options, bl_recorder *recorder, bl_error *err) {
    const double until = bl_now_s() + options->wait_s;
    int n = 0;
    for (;;) {
        bl_error why = BL_ERROR_INIT;
        bl_status st = BL_OK;
        if (options->rings.n == 0)
            st = attach_all(recorder, &n, &why);
        while (n < options->rings.n && st == BL_OK) {
            st = bl_recorder_attach(recorder, options->rings.items[n], &why);
            n += st == BL_OK;
        }
        if (st == BL_OK && n > 0)
            return BL_OK;
        if (st == BL_OK)
            st = bl_fail(&why, BL_ERR_STATE, "no ring to record from: is an engine tracing?");
        if (st != BL_ERR_STATE || bl_now_s() >= until || bl_interrupted())
            return bl_fail(err, st, "%s", why.text);
        nap();
    }
}

static bl_status drain(bl_recorder *recorder, bl_error *err) {
    bl_progress progress = bl_progress_stderr();
    bl_status st = BL_OK;
    while (st == BL_OK && !bl_interrupted() && !bl_recorder_is_over(recorder)) {
        uint64_t n = 0;
        st = bl_recorder_poll(recorder, &n, err);
        bl_recorder_totals totals;
        bl_recorder_read_totals(recorder, &totals);
        bl_progress_line(&progress, "%d rings, %llu records, %llu dropped", totals.n_rings,
                         (unsigned long long)totals.written, (unsigned long long)totals.dropped);
        if (st == BL_OK && n == 0)
            nap();
    }
    bl_progress_end(&progress);
    return st;
}

static bl_status record(const record_options *options, const char *path, bl_error *err) {
    bl_recorder *recorder = NULL;
    bl_recorder_totals totals;
    BL_TRY(bl_recorder_create(path, &recorder, err));
    bl_status st = attach(options, recorder, err);
    if (st == BL_OK)
        st = drain(recorder, err);
    if (st < 0) {
        bl_recorder_abandon(recorder);
        return st;
    }
    BL_TRY(bl_recorder_finish(recorder, &totals, err));
    if (totals.rejected > 0)
        fprintf(stderr, "ballast record: %llu records rejected, the first: %s\n",
                (unsigned long long)totals.rejected, totals.why_rejected);
    fprintf(stderr, "ballast record: %s: %llu records of %d ranks, %llu dropped\n", path,
            (unsigned long long)totals.written, totals.n_rings, (unsigned long long)totals.dropped);
    return BL_OK;
}

static bl_status run(void *user, int n_args, char **args, bl_error *err) {
    const record_options *options = user;
    (void)n_args;
    (void)args;
    bl_interrupts_install();
    if (mkdir(options->out, 0777) != 0 && errno != EEXIST)
        return bl_fail_at(err, BL_ERR_IO, bl_at(options->out), "cannot make the directory: %s",
                          strerror(errno));
    const size_t room = strlen(options->out) + 16;
    char *path = bl_calloc(room, 1);
    if (path == NULL)
        return bl_fail(err, BL_ERR_NOMEM, "out of memory");
    snprintf(path, room, "%s/trace.blt", options->out);
    /* The file is written live, under its own name: what an earlier recorder left there is data. */
    bl_status st;
    if (access(path, F_OK) == 0)
        st = bl_fail_at(err, BL_ERR_STATE, bl_at(path),
                        "an earlier recording is there; name another directory or move it away");
    else
        st = record(options, path, err);
    free(path);
    return st;
}

const bl_verb bl_verb_record = {
    .name = "record",
    .arguments = "",
    .summary = "record the routing of running ranks",
    .details = "Drains the shared-memory rings that engines fill through ballast.h, until they are "
               "closed or Ctrl-C. The engine never waits for the recorder: what does not fit into "
               "a ring is dropped in whole steps and counted.",
    .options = OPTIONS,
    .options_bytes = sizeof(record_options),
    .min_args = 0,
    .max_args = 0,
    .run = run};
