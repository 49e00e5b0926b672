/* What tracing costs: nanoseconds per id inside the engine, and the share of a core that the recorder
 * takes for 58 layers x top-8 x 20 000 tokens/s of one rank.
 *
 * The push is timed in steps of 58 layers x 128 tokens x top-8 of 256, int32 ids with a skew like that
 * of real routers, into a ring that is emptied between repeats and never full. The recorder is given
 * the same steps, in one thread, and its own CPU time is counted. Output, one line per figure:
 * name,value,unit,n,min,median,max where value is the median of n repeats. With the argument `push`
 * only pushes, PUSH_STEPS steps, for an instruction counter; with `flood N SECONDS` it pushes
 * N ids in so long into a ring called bench-flood and prints what was kept and dropped, for a recorder
 * beside it:
 *
 *     valgrind --tool=callgrind --toggle-collect=bl_trace_push build/release/tests/bench/bench_capture push
 */
#include "ballast.h"
#include "core/progress.h"
#include "tracer/recorder.h"
#include "tracer/ring.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { LAYERS = 58, TOKENS = 128, K = 8, EXPERTS = 256, REPEATS = 15, STEPS = 60, PUSH_STEPS = 20 };
#define IDS_PER_STEP ((double)LAYERS * TOKENS * K)
#define IDS_PER_S (58.0 * 8 * 20000) /* of the target */

static int layer_ids[LAYERS];
static int32_t ids[LAYERS][TOKENS * K];

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void print(const char *name, const char *unit, double *values, int n) {
    qsort(values, (size_t)n, sizeof *values, by_value);
    printf("%s,%.4f,%s,%d,%.4f,%.4f,%.4f\n", name, values[n / 2], unit, n, values[0], values[n / 2],
           values[n - 1]);
    fflush(stdout);
}

/* Fresh ids: distinct, low ones (after a shuffle that depends on the layer) more often than high ones. */
static void make_ids(void) {
    static uint64_t x = 88172645463325252u;
    for (int layer = 0; layer < LAYERS; layer++) {
        for (int token = 0; token < TOKENS; token++) {
            int32_t *row = &ids[layer][token * K];
            for (int j = 0; j < K;) {
                x ^= x << 13, x ^= x >> 7, x ^= x << 17;
                const double u = (double)(x >> 11) * 0x1p-53;
                const int32_t id = ((int32_t)(u * u * EXPERTS) * 37 + layer * 91) % EXPERTS;
                int seen = 0;
                while (seen < j && row[seen] != id)
                    seen++;
                row[j] = id;
                j += seen == j;
            }
        }
    }
}

static bl_tracer *open_tracer(const char *name, unsigned flags) {
    bl_trace_options options = BL_TRACE_OPTIONS_INIT;
    bl_tracer *tracer = NULL;
    options.model = "bench";
    options.n_experts = EXPERTS;
    options.top_k = K;
    options.layers = layer_ids;
    options.n_layers = LAYERS;
    options.flags = flags;
    if (bl_trace_open(name, &options, &tracer) != BL_OK) {
        fprintf(stderr, "bench_capture: no ring\n");
        exit(1);
    }
    return tracer;
}

static void push_step(bl_tracer *tracer, uint64_t step) {
    bl_trace_step_begin(tracer, step, BL_PHASE_DECODE, 0);
    for (int l = 0; l < LAYERS; l++)
        bl_trace_push(tracer, layer_ids[l], ids[l], 4, TOKENS, 4 * K);
    bl_trace_step_end(tracer);
}

static void bench_push(const char *what, unsigned flags) {
    char name[64];
    double ns[REPEATS];
    bl_ring ring;
    bl_ring_shape *shape = calloc(1, sizeof *shape);
    snprintf(name, sizeof name, "bench-%ld", (long)getpid());
    bl_tracer *tracer = open_tracer(name, flags);
    if (shape == NULL || bl_ring_attach(name, &ring, shape, NULL) < 0)
        exit(1);
    uint64_t step = 0;
    for (int repeat = -2; repeat < REPEATS; repeat++) {
        const double start = bl_now_s();
        for (int i = 0; i < STEPS; i++)
            push_step(tracer, step++);
        if (repeat >= 0)
            ns[repeat] = (bl_now_s() - start) * 1e9 / (STEPS * IDS_PER_STEP);
        ring.read = atomic_load(&ring.memory->head); /* emptied, unread */
        bl_ring_release(&ring);
    }
    bl_trace_counters counters;
    bl_trace_read_counters(tracer, &counters);
    bl_ring_detach(&ring, true);
    bl_trace_close(tracer);
    free(shape);
    print(what, "ns/id", ns, REPEATS);
    if (counters.dropped > 0)
        printf("%s.dropped,%llu,records,1,,,\n", what, (unsigned long long)counters.dropped);
}

static double cpu_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static void bench_recorder(const char *what, const char *live, unsigned flags) {
    char name[64], path[128];
    double share[REPEATS];
    bl_recorder_options options = BL_RECORDER_OPTIONS_INIT;
    bl_recorder *recorder = NULL;
    snprintf(name, sizeof name, "bench-%ld", (long)getpid());
    snprintf(path, sizeof path, "/tmp/bench-%ld.blt", (long)getpid());
    options.path = path;
    options.live = live;
    bl_tracer *tracer = open_tracer(name, flags);
    if (bl_recorder_open(&options, &recorder, NULL) < 0 ||
        bl_recorder_attach(recorder, name, NULL) < 0)
        exit(1);
    uint64_t step = 0, n = 0, records = 0;
    for (int repeat = -1; repeat < REPEATS; repeat++) {
        for (int i = 0; i < STEPS; i++) {
            make_ids();
            push_step(tracer, step++);
        }
        const double start = cpu_s();
        for (int i = 0; i < 3; i++) {
            if (bl_recorder_poll(recorder, &n, NULL) < 0)
                exit(1);
            records += n;
        }
        if (repeat >= 0)
            share[repeat] = (cpu_s() - start) / (STEPS * IDS_PER_STEP) * IDS_PER_S * 100;
    }
    bl_trace_close(tracer);
    bl_recorder_totals totals;
    if (bl_recorder_finish(recorder, &totals, NULL) < 0)
        exit(1);
    unlink(path);
    print(what, "% of a core", share, REPEATS);
    printf("%s.dropped,%llu,records,1,,,\n", what, (unsigned long long)totals.dropped);
    printf("%s.bytes,%.3f,bytes per token and layer,1,,,\n", what,
           (double)totals.bytes / ((double)records * TOKENS));
}

static int only_push(void) {
    bl_tracer *tracer = open_tracer("bench-push", 0);
    for (uint64_t step = 0; step < PUSH_STEPS; step++)
        push_step(tracer, step);
    bl_trace_close(tracer);
    printf("%.0f ids\n", PUSH_STEPS * IDS_PER_STEP);
    return 0;
}

static int flood(double n_ids, double seconds_asked) {
    bl_trace_counters counters;
    bl_tracer *tracer = open_tracer("bench-flood", 0);
    sleep(2); /* for the recorder to come */
    const double start = bl_now_s();
    for (uint64_t step = 0; (double)step * IDS_PER_STEP < n_ids; step++) {
        if (step % 64 == 0)
            make_ids();
        push_step(tracer, step);
        const double early =
            start + seconds_asked * (double)step * IDS_PER_STEP / n_ids - bl_now_s();
        if (early > 1e-4)
            nanosleep(&(struct timespec){0, (long)(fmin(early, 0.5) * 1e9)}, NULL);
    }
    const double seconds = bl_now_s() - start;
    bl_trace_read_counters(tracer, &counters);
    bl_trace_close(tracer);
    printf("pushed %llu, kept %llu, dropped %llu records in %.1f s\n",
           (unsigned long long)counters.pushed, (unsigned long long)counters.kept,
           (unsigned long long)counters.dropped, seconds);
    return 0;
}

int main(int argc, char **argv) {
    char live[64];
    for (int l = 0; l < LAYERS; l++)
        layer_ids[l] = 3 + l;
    make_ids();
    if (argc > 1 && strcmp(argv[1], "push") == 0)
        return only_push();
    if (argc > 3 && strcmp(argv[1], "flood") == 0)
        return flood(strtod(argv[2], NULL), strtod(argv[3], NULL));
    snprintf(live, sizeof live, "bench-%ld", (long)getpid());
    bench_push("capture.push.ids", 0);
    bench_push("capture.push.ids_with_times", BL_TRACE_TIMES);
    bench_push("capture.push.counts", BL_TRACE_COUNTS);
    bench_recorder("capture.recorder", NULL, 0);
    bench_recorder("capture.recorder.live_windows", live, 0);
    bench_recorder("capture.recorder.counts", NULL, BL_TRACE_COUNTS);
    return 0;
}
