/*
 * ballast record: drain the rings of traced ranks into a trace.
 */
#include "cli/record_rings.h"
#include "cli/record_say.h"
#include "cli/verbs.h"
#include "core/json.h"
#include "core/progress.h"
#include "tracer/pack.h"
#include "tracer/recorder.h"
#include "tracer/ring.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define LOOK_EVERY_S 0.25 /* for new rings */

static const char *const FSYNC[] = {"never", "chunk", "rotate", NULL};

typedef struct record_options {
    bl_opt_list rings;
    const char *out, *sample, *live, *status;
    double wait_s, rotate_s;
    int64_t rotate_bytes, keep, min_free;
    int fsync;
    bool follow, append, counts, sets, set_only, json;
} record_options;

static const bl_opt OPTIONS[] = {
    {.name = "ring",
     .type = BL_OPT_LIST,
     .offset = offsetof(record_options, rings),
     .metavar = "NAME",
     .help = "ring to record, as the engine named it, or a pattern like 'my-model.*'; default: all "
             "there are"},
    {.name = "output",
     .short_name = 'o',
     .type = BL_OPT_STRING,
     .offset = offsetof(record_options, out),
     .metavar = "DIR",
     .help = "directory for a trace file of each rank; made if it is missing, never overwritten; "
             "required but with --set-only"},
    {.name = "wait",
     .type = BL_OPT_DURATION,
     .offset = offsetof(record_options, wait_s),
     .metavar = "TIME",
     .min = 0,
     .max = 1e9,
     .help =
         "how long to wait for rings that are not there yet, and, when all are closed, for room "
         "on a full disk"},
    {.name = "follow",
     .type = BL_OPT_FLAG,
     .offset = offsetof(record_options, follow),
     .help = "go on when all rings are closed: wait for engines to come back"},
    {.name = "append",
     .type = BL_OPT_FLAG,
     .offset = offsetof(record_options, append),
     .help = "go on with the earlier recording in DIR; restarted engines become runs of their own"},
    {.name = "rotate-size",
     .type = BL_OPT_BYTES,
     .offset = offsetof(record_options, rotate_bytes),
     .metavar = "BYTES",
     .min = 4096,
     .max = 1e15,
     .help = "begin a new file when one has this size"},
    {.name = "rotate-time",
     .type = BL_OPT_DURATION,
     .offset = offsetof(record_options, rotate_s),
     .metavar = "TIME",
     .min = 0.001,
     .max = 1e9,
     .help = "begin a new file when one is this old"},
    {.name = "keep",
     .type = BL_OPT_INT,
     .offset = offsetof(record_options, keep),
     .metavar = "N",
     .min = 1,
     .max = 1e6,
     .help = "keep the newest N closed files of each rank, beside the one that is being written; "
             "default: all"},
    {.name = "fsync",
     .type = BL_OPT_CHOICE,
     .offset = offsetof(record_options, fsync),
     .choices = FSYNC,
     .help =
         "what must survive a loss of power: nothing for certain, each chunk, each closed file"},
    {.name = "min-free",
     .type = BL_OPT_BYTES,
     .offset = offsetof(record_options, min_free),
     .metavar = "BYTES",
     .min = 0,
     .max = 1e18,
     .help = "stop writing while the disk has less room than this"},
    {.name = "sample",
     .type = BL_OPT_STRING,
     .offset = offsetof(record_options, sample),
     .metavar = "1/N[:B]",
     .help = "have the engines keep one of N steps, in runs of B; 1/1: all"},
    {.name = "counts",
     .type = BL_OPT_FLAG,
     .offset = offsetof(record_options, counts),
     .help = "have the engines keep counts per layer and step instead of ids"},
    {.name = "sets",
     .type = BL_OPT_FLAG,
     .offset = offsetof(record_options, sets),
     .help = "write which experts a token picked, not in which order: smaller files"},
    {.name = "set-only",
     .type = BL_OPT_FLAG,
     .offset = offsetof(record_options, set_only),
     .help = "only set --sample and --counts in running engines, while another recorder records"},
    {.name = "live",
     .type = BL_OPT_STRING,
     .offset = offsetof(record_options, live),
     .metavar = "NAME",
     .help = "publish live windows under this name, for `ballast live`"},
    {.name = "status",
     .type = BL_OPT_STRING,
     .offset = offsetof(record_options, status),
     .metavar = "FILE",
     .help = "write rates and counters there once a second, as one JSON object"},
    {.name = "json",
     .type = BL_OPT_FLAG,
     .offset = offsetof(record_options, json),
     .help = "answer in JSON"},
    {0}};

static bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

static void nap(void) {
    const struct timespec pause = {0, 2000000};
    nanosleep(&pause, NULL);
}

/* "1/10" or "1/10:4". */
static bl_status parse_control(const record_options *o, uint64_t *control, bl_error *err) {
    unsigned every = 1, burst = 1;
    int end = 0;
    if (o->sample != NULL) {
        const int got = sscanf(o->sample, "1/%9u%n:%8u%n", &every, &end, &burst, &end);
        const char *colon = strchr(o->sample, ':'); /* %u would take a sign and blanks */
        if (got < 1 || o->sample[end] != '\0' || !is_digit(o->sample[2]) ||
            (colon != NULL && !is_digit(colon[1])) || every < 1 || burst < 1 ||
            burst > BL_CONTROL_MAX_BURST)
            return bl_fail(err, BL_ERR_USAGE,
                           "--sample is 1/N or 1/N:B, like 1/100 or 1/100:8, not \"%s\"",
                           o->sample);
    }
    *control = bl_control_word(every, burst, o->counts ? BL_MODE_COUNTS : BL_MODE_IDS);
    return BL_OK;
}

static bl_status attach(const record_options *options, bl_recorder *recorder,
                        bl_record_passed *passed, bl_error *err) {
    const double until = bl_now_s() + options->wait_s;
    int n = 0;
    for (;;) {
        bl_error why = BL_ERROR_INIT;
        bl_status st = bl_record_attach(recorder, &options->rings, false, &n, passed, &why);
        if (st == BL_OK && n > 0)
            return BL_OK;
        const bool seen = passed->first.text[0] != '\0';
        if (!seen && st != BL_ERR_MODEL && bl_recorder_has_earlier(recorder))
            return bl_fail_at(
                err, BL_ERR_STATE, bl_at(options->out),
                "an earlier recording is there; name another directory, move it away or --append "
                "to it");
        if (st == BL_OK)
            st = bl_fail(&why, BL_ERR_STATE, "no ring to record from: %s",
                         seen ? passed->first.text : "is an engine tracing?");
        if (st != BL_ERR_STATE || (bl_now_s() >= until && !options->follow) || bl_interrupted())
            return bl_fail_at(err, st, bl_at(why.file[0] != '\0' ? why.file : NULL), "%s",
                              why.text);
        nap();
    }
}

static bl_status drain(const record_options *options, bl_recorder *recorder,
                       bl_record_passed *passed, bl_record_voice *voice, bl_error *err) {
    double looked_s = bl_now_s(), moving_s = looked_s;
    bl_status st = BL_OK;
    while (st == BL_OK && !bl_interrupted()) {
        uint64_t n = 0;
        st = bl_recorder_poll(recorder, &n, err);
        bl_record_say(voice, recorder);
        const bool stuck = bl_recorder_is_stuck(recorder);
        if (!stuck)
            moving_s = bl_now_s();
        const bool over =
            bl_recorder_is_over(recorder) || (stuck && bl_now_s() - moving_s >= options->wait_s);
        if (st == BL_OK && (over || bl_now_s() - looked_s > LOOK_EVERY_S)) {
            int more = 0;
            st = bl_record_attach(recorder, &options->rings, true, &more, passed, err);
            looked_s = bl_now_s();
            if (over && more == 0 && !options->follow)
                break;
        }
        if (st == BL_OK && n == 0)
            nap();
    }
    bl_progress_end(&voice->progress);
    return st;
}

static bl_status print_json(json_t *root, bl_error *err) {
    if (root == NULL)
        return bl_fail(err, BL_ERR_NOMEM, "out of memory");
    const bl_status st = bl_json_write("-", root, 0, err);
    json_decref(root);
    return st;
}

static bl_status record(const record_options *options, const bl_recorder_options *how,
                        bl_error *err) {
    bl_recorder *recorder = NULL;
    bl_recorder_totals totals;
    BL_TRY(bl_recorder_open(how, &recorder, err));
    bl_record_passed passed = {.n = 0};
    bl_record_voice voice = bl_record_voice_of(options->out, options->status);
    bl_status st = attach(options, recorder, &passed, err);
    if (st == BL_OK)
        st = drain(options, recorder, &passed, &voice, err);
    if (st < 0) {
        bl_recorder_abandon(recorder);
        return st;
    }
    st = bl_recorder_finish(recorder, &totals, err);
    if (st < 0)
        return st;
    return bl_record_say_end(&voice, &totals, options->json, err);
}

static bl_status set_only(const record_options *options, uint64_t control, bl_error *err) {
    int n = 0;
    BL_TRY(bl_record_set_control(&options->rings, control, &n, err));
    if (n == 0)
        return bl_fail(err, BL_ERR_STATE, "no ring to change: is an engine tracing?");
    if (options->json)
        return print_json(json_pack("{s:i}", "rings", n), err);
    fprintf(stderr, "ballast record: %d rings changed\n", n);
    return BL_OK;
}

static bl_status check_usage(const record_options *o, bl_error *err) {
    if (o->live != NULL && !bl_ring_name_is_valid(o->live))
        return bl_fail(err, BL_ERR_USAGE,
                       "--live wants 1 to %d letters, digits, '.', '_' or '-', not \"%.80s\"",
                       BL_RING_NAME_MAX, o->live);
    if (o->set_only && o->sample == NULL && !o->counts)
        return bl_fail(err, BL_ERR_USAGE, "--set-only sets --sample or --counts: name one");
    if (o->set_only && o->out != NULL)
        return bl_fail(err, BL_ERR_USAGE, "--set-only records nothing: leave out --output");
    if (o->status != NULL && o->status[0] == '\0')
        return bl_fail(err, BL_ERR_USAGE, "--status wants the name of a file");
    if (!o->set_only && (o->out == NULL || o->out[0] == '\0'))
        return bl_fail(err, BL_ERR_USAGE, "missing option --output DIR");
    return BL_OK;
}

static bl_status make_directory(const char *path, bool *made, bl_error *err) {
    struct stat info;
    *made = mkdir(path, 0777) == 0;
    if (*made)
        return BL_OK;
    if (errno != EEXIST)
        return bl_fail_at(err, BL_ERR_IO, bl_at(path), "cannot make the directory: %s",
                          strerror(errno));
    if (stat(path, &info) != 0 || !S_ISDIR(info.st_mode))
        return bl_fail_at(err, BL_ERR_IO, bl_at(path), "is no directory");
    return BL_OK;
}

static bl_status run(void *user, int n_args, char **args, bl_error *err) {
    const record_options *options = user;
    bl_recorder_options how = BL_RECORDER_OPTIONS_INIT;
    (void)n_args;
    (void)args;
    BL_TRY(parse_control(options, &how.control, err));
    BL_TRY(check_usage(options, err));
    if (options->set_only)
        return set_only(options, how.control, err);
    bl_interrupts_install();
    how.directory = options->out;
    how.append = options->append;
    how.sets = options->sets;
    how.rotate_bytes = options->rotate_bytes;
    how.rotate_s = options->rotate_s;
    how.keep = (int)options->keep;
    how.fsync = (bl_recorder_fsync)options->fsync;
    how.min_free_bytes = options->min_free;
    how.live = options->live;
    how.set_control = options->sample != NULL || options->counts;
    bool made;
    BL_TRY(make_directory(options->out, &made, err));
    const bl_status st = record(options, &how, err);
    if (st < 0 && made)
        rmdir(options->out); /* if nothing is in it */
    return st;
}

const bl_verb bl_verb_record = {
    .name = "record",
    .arguments = "",
    .summary = "record the routing of running ranks",
    .details =
        "Drains the shared-memory rings that engines fill through ballast.h, until they are "
        "closed or Ctrl-C (or SIGTERM, SIGHUP). The engine never waits for the recorder: what "
        "does not fit into a ring is dropped in whole steps, counted, and noted in the trace. "
        "A recorder that was killed is simply started again on the same directory; it goes on "
        "where it was. While the disk is full nothing is written and the rings do the "
        "dropping; writing goes on when there is room. docs/capture.md tells more.",
    .options = OPTIONS,
    .options_bytes = sizeof(record_options),
    .min_args = 0,
    .max_args = 0,
    .run = run};
