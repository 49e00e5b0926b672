/*
 * soak_capture KILLS SEED DIR: kill -9, again and again, of an engine that traces or of the recorder
 * that records it, at any moment; each is started again at once. Then everything is read back:
 *
 *     no damaged chunk is accepted, no record is wrong or there twice (tests/support/routing.h),
 *     up to every run (life of an engine) records + dropped <= what was pushed, and in all of them
 *     equal, but for the one step that each may have been ending as it died,
 *     no shared memory is left behind.
 *
 * Prints one line; exits non-zero when anything is wrong. A hang is the caller's timeout's to find.
 */
#include "ballast.h"
#include "tests/support/routing.h"
#include "tracer/recorder.h"
#include "tracer/ring.h"
#include "tracer/stream.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MAX_RUNS = 4096, RECENT = 1 << 20 };

typedef struct shared {
    _Atomic uint64_t ended[MAX_RUNS]; /* steps that an engine has ended, by run */
} shared;

static char ring[64];
static const char *directory;

static void nap_us(long us) {
    const struct timespec pause = {us / 1000000, us % 1000000 * 1000};
    nanosleep(&pause, NULL);
}

/* ---- the two that are killed ----------------------------------------------------------------- */

static void engine(shared *s, uint32_t run) {
    int layers[ROUTING_LAYERS];
    int32_t ids[ROUTING_MAX_TOKENS * ROUTING_K];
    bl_trace_options options = BL_TRACE_OPTIONS_INIT;
    bl_tracer *tracer = NULL;
    for (int l = 0; l < ROUTING_LAYERS; l++)
        layers[l] = routing_layer(l);
    options.model = "soak";
    options.n_experts = ROUTING_EXPERTS;
    options.top_k = ROUTING_K;
    options.layers = layers;
    options.n_layers = ROUTING_LAYERS;
    options.ring_bytes = 1 << 16;
    options.run = run;
    if (bl_trace_open(ring, &options, &tracer) < 0)
        _exit(1);
    for (uint64_t step = 0;; step++) {
        bl_trace_step_begin(tracer, step, BL_PHASE_DECODE, 0);
        for (int l = 0; l < ROUTING_LAYERS; l++) {
            routing_fill(step, layers[l], ids);
            bl_trace_push(tracer, layers[l], ids, 4, routing_tokens(step), 4 * ROUTING_K);
        }
        bl_trace_step_end(tracer);
        atomic_store(&s->ended[run], step + 1);
        if (step % 8 == 0)
            nap_us(50);
    }
}

static bl_status drain_for_ever(bl_recorder *recorder, bool until_over, bl_error *err) {
    for (;;) {
        uint64_t n;
        BL_TRY(bl_recorder_poll(recorder, &n, err));
        const bool over = bl_recorder_is_over(recorder);
        if (!bl_recorder_has(recorder, ring) && bl_recorder_attach(recorder, ring, NULL) != BL_OK &&
            until_over && over)
            return BL_OK;
        if (n == 0)
            nap_us(200);
    }
}

static bl_status record(bool until_over, bl_error *err) {
    bl_recorder_options options = BL_RECORDER_OPTIONS_INIT;
    bl_recorder *recorder = NULL;
    options.directory = directory;
    options.append = true;
    options.rotate_bytes = 1 << 18;
    BL_TRY(bl_recorder_open(&options, &recorder, err));
    for (int tries = 0; bl_recorder_attach(recorder, ring, NULL) < 0; tries++) {
        nap_us(200);
        if (until_over && tries > 100)
            return bl_recorder_finish(recorder, NULL, NULL), BL_OK;
    }
    const bl_status st = drain_for_ever(recorder, until_over, err);
    if (st < 0) {
        bl_recorder_abandon(recorder);
        return st;
    }
    return bl_recorder_finish(recorder, NULL, err);
}

static pid_t start(shared *s, bool is_engine, uint32_t run) {
    const pid_t child = fork();
    if (child != 0)
        return child;
    bl_error err = BL_ERROR_INIT;
    if (is_engine)
        engine(s, run);
    else if (record(false, &err) < 0)
        fprintf(stderr, "recorder: %s\n", err.text);
    _exit(3);
}

/* ---- reading back ---------------------------------------------------------------------------- */

static uint64_t records_of[MAX_RUNS], dropped_of[MAX_RUNS];
static unsigned char seen[RECENT];

static int check_record(const bl_record *r) {
    static uint32_t run = UINT32_MAX;
    if (r->run >= MAX_RUNS)
        return 1;
    dropped_of[r->run] += r->dropped;
    if (r->dropped > 0)
        return 0;
    if (r->run != run)
        memset(seen, 0, sizeof seen);
    run = r->run;
    const size_t at = (size_t)r->step * ROUTING_LAYERS + (size_t)(r->layer - 3) / 4;
    if (at >= RECENT || seen[at]++ || r->n_tokens != routing_tokens(r->step))
        return 1;
    int32_t ids[ROUTING_MAX_TOKENS * ROUTING_K];
    routing_fill(r->step, r->layer, ids);
    records_of[r->run]++;
    return memcmp(ids, r->ids, (size_t)r->n_tokens * ROUTING_K * sizeof *ids) != 0;
}

static int check(const shared *s, uint32_t n_runs) {
    bl_error err = BL_ERROR_INIT;
    bl_stream *stream = NULL;
    uint64_t records = 0, dropped = 0, lost = 0, wrong = 0;
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    bl_status st = bl_stream_open(directory, &stream, &err);
    for (bool got = true; st == BL_OK && got;) {
        bl_record record;
        st = bl_stream_next(stream, &record, &got, &err);
        if (st == BL_OK && got && check_record(&record))
            wrong++;
    }
    if (st < 0) {
        fprintf(stderr, "%s: %s\n", err.file, err.text);
        return 1;
    }
    uint64_t pushed = 0, told = 0;
    for (uint32_t run = 0; run < n_runs; run++) {
        const uint64_t ended = ROUTING_LAYERS * atomic_load(&s->ended[run]);
        records += records_of[run];
        dropped += dropped_of[run];
        pushed += ended;
        told += records_of[run] + dropped_of[run];
        /* What was lost with a ring is told in a later run: by the ring that took its place. */
        if (records_of[run] > ended + ROUTING_LAYERS ||
            told > pushed + ROUTING_LAYERS * (run + 1)) {
            fprintf(stderr, "run %u: more than it pushed\n", run);
            wrong++;
        }
    }
    const uint64_t all = bl_stream_dropped(stream);
    lost = all > dropped ? all - dropped : 0; /* without a step: died with their ring */
    const bool balanced =
        records + all >= pushed && records + all <= pushed + ROUTING_LAYERS * n_runs;
    char object[128];
    struct stat info;
    snprintf(object, sizeof object, BL_RING_DIRECTORY "%s%s", BL_RING_PREFIX, ring);
    const bool leaked = stat(object, &info) == 0;
    printf(
        "%u engines: %llu records pushed, %llu in the trace, %llu dropped in place, %llu lost with "
        "their ring, %llu wrong%s%s\n",
        n_runs, (unsigned long long)pushed, (unsigned long long)records,
        (unsigned long long)dropped, (unsigned long long)lost, (unsigned long long)wrong,
        balanced ? "" : ", NOT BALANCED", leaked ? ", a ring LEAKED" : "");
    bl_stream_free(stream);
    return wrong > 0 || !balanced || leaked;
}

int main(int argc, char **argv) {
    if (argc != 4)
        return 2;
    const int kills = atoi(argv[1]);
    uint64_t random = strtoull(argv[2], NULL, 10);
    directory = argv[3];
    snprintf(ring, sizeof ring, "soak-%ld", (long)getpid());
    FILE *file = tmpfile();
    if (file == NULL || ftruncate(fileno(file), (off_t)sizeof(shared)) != 0)
        return 2;
    shared *s = mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED, fileno(file), 0);
    if (s == MAP_FAILED || kills < 1 || kills >= MAX_RUNS)
        return 2;
    uint32_t run = 0;
    pid_t who[2] = {start(s, true, run++), start(s, false, 0)};
    for (int i = 0; i < kills; i++) {
        random = random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        nap_us((long)(random >> 33) % 40000);
        const int victim = (int)(random >> 62 & 1);
        kill(who[victim], SIGKILL);
        waitpid(who[victim], NULL, 0);
        who[victim] = start(s, victim == 0, victim == 0 ? run++ : 0);
    }
    nap_us(20000);
    for (int i = 0; i < 2; i++) {
        kill(who[i], SIGKILL);
        waitpid(who[i], NULL, 0);
    }
    bl_error err = BL_ERROR_INIT;
    if (record(true, &err) < 0) {
        fprintf(stderr, "the last recorder: %s\n", err.text);
        return 1;
    }
    return check(s, run);
}
