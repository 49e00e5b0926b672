#include "cli/run_record.h"

#include "ballast.h"
#include "core/mem.h"
#include "core/progress.h"
#include "tracer/ring.h"

#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define LEAST_RING_BYTES ((size_t)1 << 20)
#define STEPS_IN_RING 16 /* of the largest size, before the recorder must have come by */

struct bl_run_recorder {
    char *path;
    int first_rank, n_ranks; /* those it records */
    bool keeps_times;
    char name[48]; /* rings are called name.rank */
    int go[2];     /* a pipe: one byte for each rank, once the recorder is attached */
    bool started, running;
    pthread_t thread;
    atomic_bool over; /* all ranks have ended */
    bl_status status;
    bl_error error;
    bl_recorder_totals totals;
};

#define RING_DIRECTORY "/dev/shm" /* where POSIX shared memory objects are files on Linux */

/* ---- launcher ------------------------------------------------------------------------------ */

/* Rings of runs whose launcher was killed, and its ranks with it: nobody else would remove them. */
static void sweep_rings(void) {
    const char *prefix = &BL_RING_PREFIX[1];
    const size_t n = strlen(prefix);
    DIR *dir = opendir(RING_DIRECTORY);
    if (dir == NULL)
        return;
    for (struct dirent *entry; (entry = readdir(dir)) != NULL;) {
        char object[sizeof entry->d_name + 1];
        long launcher;
        int rank, end = 0;
        if (strncmp(entry->d_name, prefix, n) != 0 ||
            sscanf(entry->d_name + n, "run.%9ld.%9d%n", &launcher, &rank, &end) != 2 ||
            entry->d_name[n + (size_t)end] != '\0' || launcher <= 0 ||
            kill((pid_t)launcher, 0) == 0 || errno != ESRCH)
            continue;
        snprintf(object, sizeof object, "/%s", entry->d_name);
        shm_unlink(object);
    }
    closedir(dir);
}

static bl_status open_recorder(const char *path, int first_rank, int n_ranks, bl_run_recorder **out,
                               bl_error *err) {
    bl_run_recorder *recorder;
    BL_TRY(BL_CALLOC(recorder, 1, err));
    sweep_rings();
    recorder->first_rank = first_rank;
    recorder->n_ranks = n_ranks;
    recorder->error = BL_ERROR_INIT;
    snprintf(recorder->name, sizeof recorder->name, "run.%ld", (long)getpid());
    recorder->path = strdup(path);
    if (recorder->path == NULL || pipe(recorder->go) != 0) {
        const bl_status st =
            recorder->path == NULL
                ? bl_fail(err, BL_ERR_NOMEM, "out of memory")
                : bl_fail(err, BL_ERR_IO, "cannot make a pipe: %s", strerror(errno));
        free(recorder->path);
        free(recorder);
        return st;
    }
    *out = recorder;
    return BL_OK;
}

bl_status bl_run_recorder_open(const char *path, int n_ranks, bl_run_recorder **out,
                               bl_error *err) {
    return open_recorder(path, 0, n_ranks, out, err);
}

bl_status bl_run_recorder_open_rank(const char *directory, int rank, bl_run_recorder **out,
                                    bl_error *err) {
    char path[4096];
    struct stat info;
    if (mkdir(directory, 0777) != 0 && errno != EEXIST)
        return bl_fail_at(err, BL_ERR_IO, bl_at(directory), "cannot make the directory: %s",
                          strerror(errno));
    if (stat(directory, &info) != 0 || !S_ISDIR(info.st_mode))
        return bl_fail_at(err, BL_ERR_IO, bl_at(directory),
                          "is no directory; ranks that a launcher started record into one, each "
                          "into a file of its own");
    if (snprintf(path, sizeof path, "%s/rank-%05d.000001.blt", directory, rank) >= (int)sizeof path)
        return bl_fail_at(err, BL_ERR_RANGE, bl_at(directory), "the name is too long");
    if (stat(path, &info) == 0)
        return bl_fail_at(err, BL_ERR_STATE, bl_at(path),
                          "an earlier recording is there; name another directory or move it away");
    return open_recorder(path, rank, 1, out, err);
}

void bl_run_recorder_keep_times(bl_run_recorder *recorder) {
    recorder->keeps_times = true;
}

void bl_run_recorder_forked(bl_run_recorder *recorder) {
    if (recorder != NULL)
        close(recorder->go[1]);
}

static void nap(void) {
    const struct timespec pause = {0, 2000000};
    nanosleep(&pause, NULL);
}

/* Find the rings of all ranks; *all is false when the ranks ended first. */
static bl_status attach_all(bl_run_recorder *recorder, bl_recorder *file, bool *all,
                            bl_error *err) {
    *all = false;
    for (int i = 0; i < recorder->n_ranks; i++) {
        char ring[64];
        snprintf(ring, sizeof ring, "%s.%d", recorder->name, recorder->first_rank + i);
        for (;;) {
            bl_error attempt = BL_ERROR_INIT;
            const bl_status st = bl_recorder_attach(file, ring, &attempt);
            if (st >= 0)
                break;
            if (st != BL_ERR_STATE)
                return bl_fail(err, st, "%s", attempt.text);
            if (atomic_load(&recorder->over))
                return BL_OK;
            nap();
        }
    }
    *all = true;
    return BL_OK;
}

static bl_status record(bl_run_recorder *recorder, bl_recorder *file, bool *all, bl_error *err) {
    uint64_t n;
    const char go[1] = {1};
    BL_TRY(attach_all(recorder, file, all, err));
    if (!*all)
        return BL_OK;
    BL_TRY(bl_recorder_poll(file, &n, err)); /* creates the file: it can fail before ranks begin */
    for (int rank = 0; rank < recorder->n_ranks; rank++)
        if (write(recorder->go[1], go, sizeof go) != (ssize_t)sizeof go)
            return bl_fail(err, BL_ERR_IO, "cannot signal rank %d: %s", rank, strerror(errno));
    while (!bl_recorder_is_over(file)) {
        BL_TRY(bl_recorder_poll(file, &n, err));
        if (n == 0)
            nap();
    }
    return BL_OK;
}

static void *recorder_main(void *user) {
    bl_run_recorder *recorder = user;
    bl_error *err = &recorder->error;
    bl_recorder *file = NULL;
    bool all = false;
    bl_status st = bl_recorder_create(recorder->path, &file, err);
    if (st >= 0)
        st = record(recorder, file, &all, err);
    close(recorder->go[1]); /* ranks that still wait see that nobody will come */
    if (st < 0 || !all)
        bl_recorder_abandon(file);
    else
        st = bl_recorder_finish(file, &recorder->totals, err);
    recorder->status = st;
    return NULL;
}

void bl_run_recorder_start(bl_run_recorder *recorder) {
    sigset_t all, before;
    if (recorder == NULL)
        return;
    recorder->started = true;
    sigfillset(&all); /* signals are for the launcher's own thread */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    recorder->running = pthread_create(&recorder->thread, NULL, recorder_main, recorder) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!recorder->running) {
        recorder->status =
            bl_fail(&recorder->error, BL_ERR_NOMEM, "cannot start the recorder's thread");
        close(recorder->go[1]);
    }
}

bl_status bl_run_recorder_close(bl_run_recorder *recorder, bl_recorder_totals *totals,
                                bl_error *err) {
    *totals = (bl_recorder_totals){0};
    if (recorder == NULL)
        return BL_OK;
    atomic_store(&recorder->over, true);
    if (!recorder->started)
        close(recorder->go[1]);
    if (recorder->running)
        pthread_join(recorder->thread, NULL);
    const bl_status st = recorder->status;
    if (st < 0 && err != NULL)
        *err = recorder->error;
    *totals = recorder->totals;
    for (int i = 0; i < recorder->n_ranks; i++) { /* of ranks that died */
        char object[96];
        snprintf(object, sizeof object, BL_RING_PREFIX "%s.%d", recorder->name,
                 recorder->first_rank + i);
        shm_unlink(object);
    }
    close(recorder->go[0]);
    free(recorder->path);
    free(recorder);
    return st;
}

/* ---- rank ---------------------------------------------------------------------------------- */

static bl_status wait_for_recorder(const bl_run_recorder *recorder, bl_error *err) {
    char go;
    ssize_t got;
    do {
        got = read(recorder->go[0], &go, 1);
        if (got < 0 && bl_interrupted())
            return bl_fail(err, BL_ERR_ABORTED, "interrupted before the first step");
    } while (got < 0 && errno == EINTR);
    if (got != 1)
        return bl_fail(err, BL_ERR_PEER, "the recorder of %s is gone", recorder->path);
    return BL_OK;
}

static bl_status begin(void *user, uint64_t step, bl_step_note *mine, bl_error *err) {
    bl_run_tracer *tracer = user;
    int st = tracer->in_step ? bl_trace_step_drop(tracer->tracer) : BL_OK;
    tracer->in_step = true;
    if (st >= 0)
        st = bl_trace_step_begin(tracer->tracer, step, mine->phase, 0);
    return st < 0 ? bl_fail(err, (bl_status)st, "cannot trace step %llu", (unsigned long long)step)
                  : BL_OK;
}

static bl_status push(void *user, uint64_t step, int layer, const int32_t *ids, int n_tokens, int k,
                      bl_error *err) {
    const bl_run_tracer *tracer = user;
    const int st = bl_trace_push(tracer->tracer, layer, ids, (int)sizeof *ids, (size_t)n_tokens,
                                 (size_t)k * sizeof *ids);
    return st < 0 ? bl_fail_at(err, (bl_status)st, bl_at_layer(NULL, layer),
                               "cannot trace step %llu", (unsigned long long)step)
                  : BL_OK;
}

/* A step without tokens on any rank has passed no layer. */
static int push_times(const bl_run_tracer *tracer, const bl_step_result *result) {
    int st = BL_OK;
    for (int layer = 0; result->all_tokens > 0 && layer < tracer->n_timed && st >= 0; layer++) {
        const uint64_t *ns = result->layer_ns + (size_t)layer * BL_N_STAGES;
        bl_trace_stages stages = BL_TRACE_STAGES_INIT;
        stages.route_ns = ns[BL_STAGE_ROUTE];
        stages.permute_ns = ns[BL_STAGE_PERMUTE];
        stages.dispatch_ns = ns[BL_STAGE_DISPATCH];
        stages.experts_ns = ns[BL_STAGE_EXPERTS];
        stages.combine_ns = ns[BL_STAGE_COMBINE];
        stages.unpermute_ns = ns[BL_STAGE_UNPERMUTE];
        st = bl_trace_stage_times(tracer->tracer, layer, &stages);
    }
    return st;
}

static bl_status end(void *user, const bl_step_result *result, bl_error *err) {
    bl_run_tracer *tracer = user;
    int st = push_times(tracer, result);
    if (st >= 0)
        st = bl_trace_step_end(tracer->tracer);
    tracer->in_step = false;
    return st < 0 ? bl_fail(err, (bl_status)st, "cannot trace step %llu",
                            (unsigned long long)result->step)
                  : BL_OK;
}

/* Room for some steps in which every sequence is as long as it can be. */
static size_t ring_bytes(const bl_qwen3_config *c, int max_sequences) {
    size_t bytes = 0;
    if (!bl_size_mul((size_t)max_sequences * (size_t)c->max_positions,
                     (size_t)c->n_layers * (size_t)c->top_k * 2 * STEPS_IN_RING, &bytes))
        return 0; /* the default */
    if (bytes > (size_t)1 << 30)
        bytes = (size_t)1 << 30;
    return bytes > LEAST_RING_BYTES ? bytes : LEAST_RING_BYTES;
}

bl_status bl_run_tracer_open(const bl_run_recorder *recorder, const char *model,
                             const bl_qwen3_config *config, int max_sequences, int rank,
                             int n_ranks, bl_run_tracer *tracer, bl_engine_hooks *hooks,
                             bl_error *err) {
    char ring[64];
    int *layers;
    BL_TRY(BL_CALLOC(layers, config->n_layers, err));
    for (int layer = 0; layer < config->n_layers; layer++)
        layers[layer] = layer;
    bl_trace_options options = BL_TRACE_OPTIONS_INIT;
    options.model = model;
    options.n_experts = config->n_experts;
    options.top_k = config->top_k;
    options.layers = layers;
    options.n_layers = config->n_layers;
    options.rank = rank;
    options.n_ranks = n_ranks;
    options.ring_bytes = ring_bytes(config, max_sequences);
    options.flags = recorder->keeps_times ? BL_TRACE_TIMES : 0;
    tracer->n_timed = recorder->keeps_times ? config->n_layers : 0;
    snprintf(ring, sizeof ring, "%s.%d", recorder->name, rank);
    tracer->tracer = NULL;
    const int st = bl_trace_open(ring, &options, &tracer->tracer);
    free(layers);
    if (st < 0)
        return bl_fail(err, (bl_status)st,
                       "cannot make the trace ring %s (%zu bytes of shared "
                       "memory)",
                       ring, options.ring_bytes);
    BL_TRY(wait_for_recorder(recorder, err));
    *hooks = (bl_engine_hooks){
        .user = tracer, .before_step = begin, .on_route = push, .after_step = end};
    return BL_OK;
}

void bl_run_tracer_close(bl_run_tracer *tracer) {
    bl_trace_close(tracer->tracer);
    tracer->tracer = NULL;
}
