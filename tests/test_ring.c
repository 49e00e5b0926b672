/* The live path: engine -> ring -> recorder -> file. Nothing is lost uncounted, and nothing waits.
 */
#include "tests/support/support.h"

#include "ballast.h"
#include "tracer/loads.h"
#include "tracer/recorder.h"
#include "tracer/ring.h"
#include "tracer/trace.h"

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static const int LAYERS[] = {3, 4, 9};
static const int32_t golden[] = {0, 2, 0, 2, 0, 1, 1, 3};

static const char *ring_name(const char *what, int rank) {
    static char names[4][64];
    static unsigned at;
    char *name = names[at++ % 4];
    snprintf(name, sizeof names[0], "test-%ld-%s.%d", (long)getpid(), what, rank);
    return name;
}

static bl_tracer *open_tracer(const char *name, int rank, int n_ranks, int n_experts,
                              size_t ring_bytes) {
    bl_trace_options options = BL_TRACE_OPTIONS_INIT;
    options.model = "test";
    options.n_experts = n_experts;
    options.top_k = 2;
    options.layers = LAYERS;
    options.n_layers = 3;
    options.rank = rank;
    options.n_ranks = n_ranks;
    options.ring_bytes = ring_bytes;
    bl_tracer *tracer = NULL;
    const int st = bl_trace_open(name, &options, &tracer);
    if (st < 0)
        fail_msg("bl_trace_open: %s", bl_status_string(st));
    return tracer;
}

static void push_step(bl_tracer *tracer, uint64_t step, const int32_t *ids, size_t n_tokens) {
    assert_int_equal(bl_trace_step_begin(tracer, step, BL_PHASE_DECODE, 0), BL_OK);
    for (int l = 0; l < 3; l++)
        assert_int_equal(bl_trace_push(tracer, LAYERS[l], ids, sizeof *ids, n_tokens, 8), BL_OK);
    assert_int_equal(bl_trace_step_end(tracer), BL_OK);
}

static bl_loads read_loads(const char *path) {
    bl_error err;
    bl_loads loads = {0};
    const bl_loads_options options = BL_LOADS_OPTIONS_INIT;
    assert_ok(bl_loads_read(&path, 1, NULL, &options, &loads, &err));
    return loads;
}

static void assert_row(const bl_loads *loads, size_t step, int layer_index, const uint64_t *want) {
    for (int expert = 0; expert < loads->n_experts; expert++)
        assert_int_equal(bl_loads_row(loads, step, layer_index)[expert], want[expert]);
}

static void two_ranks_into_one_file(void **state) {
    (void)state;
    bl_error err;
    const char *path = bl_test_temp("live.blt");
    bl_tracer *tracers[2];
    bl_recorder *recorder;
    assert_ok(bl_recorder_create(path, &recorder, &err));
    for (int rank = 0; rank < 2; rank++) {
        const char *name = ring_name("two", rank);
        assert_fails(bl_recorder_attach(recorder, name, &err), BL_ERR_STATE, "no ring");
        tracers[rank] = open_tracer(name, rank, 3, 4, 0);
        assert_ok(bl_recorder_attach(recorder, name, &err));
    }
    uint64_t n = 0;
    for (uint64_t step = 0; step < 5; step++) {
        push_step(tracers[0], step, golden, 4);
        push_step(tracers[1], step, golden, step == 3 ? 0 : 2);
        assert_ok(bl_recorder_poll(recorder, &n, &err));
        assert_int_equal(n, 6);
    }
    assert_ok(bl_recorder_poll(recorder, &n, &err));
    assert_int_equal(n, 0);
    assert_false(bl_recorder_is_over(recorder));
    bl_trace_close(tracers[0]);
    bl_trace_close(tracers[1]);
    assert_true(bl_recorder_is_over(recorder));
    bl_recorder_totals totals;
    assert_ok(bl_recorder_finish(recorder, &totals, &err));
    assert_int_equal(totals.pushed, 30);
    assert_int_equal(totals.written, 30);
    assert_int_equal(totals.dropped + totals.rejected, 0);
    bl_loads loads = read_loads(path);
    assert_int_equal(loads.n_steps, 5);
    assert_int_equal(loads.tokens, 5 * 4 + 4 * 2);
    bl_test_has(loads.notes, "incomplete: rank 2");
    for (int l = 0; l < 3; l++) {
        assert_true(loads.usable[l]);
        assert_row(&loads, 0, l, (const uint64_t[]){5, 2, 4, 1});
        assert_row(&loads, 3, l, (const uint64_t[]){3, 2, 2, 1});
    }
    bl_loads_free(&loads);
}

/* A ring too small for the traffic drops whole steps, so that what is kept conserves, and counts
 * them. */
static void a_full_ring_drops_whole_steps(void **state) {
    (void)state;
    bl_error err;
    const char *path = bl_test_temp("full.blt"), *name = ring_name("full", 0);
    bl_tracer *tracer = open_tracer(name, 0, 1, 4, 4096);
    bl_recorder *recorder;
    assert_ok(bl_recorder_create(path, &recorder, &err));
    assert_ok(bl_recorder_attach(recorder, name, &err));
    int32_t ids[400];
    for (int i = 0; i < 400; i++)
        ids[i] = i % 4;
    for (uint64_t step = 0; step < 100; step++) {
        uint64_t n;
        push_step(tracer, step, ids, step % 7 * 30);
        if (step % 10 == 9)
            assert_ok(bl_recorder_poll(recorder, &n, &err));
    }
    bl_trace_counters counters;
    bl_trace_read_counters(tracer, &counters);
    assert_int_equal(counters.pushed, 300);
    assert_int_equal(counters.pushed, counters.kept + counters.dropped);
    assert_true(counters.dropped > 0 && counters.kept > 0);
    assert_int_equal(counters.dropped % 3, 0);
    bl_trace_close(tracer);
    bl_recorder_totals totals;
    assert_ok(bl_recorder_finish(recorder, &totals, &err));
    assert_int_equal(totals.written, counters.kept);
    assert_int_equal(totals.dropped, counters.dropped);
    bl_loads loads = read_loads(path);
    assert_int_equal(loads.dropped, counters.dropped);
    for (int l = 0; l < 3; l++)
        assert_true(loads.usable[l]);
    bl_loads_free(&loads);
}

/* One step that no ring of this size can hold is dropped, and the next one is kept. */
static void a_step_larger_than_the_ring(void **state) {
    (void)state;
    bl_error err;
    const char *path = bl_test_temp("huge.blt"), *name = ring_name("huge", 0);
    bl_tracer *tracer = open_tracer(name, 0, 1, 4, 4096);
    int32_t *ids = calloc(8000, sizeof *ids);
    assert_non_null(ids);
    for (int i = 0; i < 8000; i++)
        ids[i] = i % 4;
    push_step(tracer, 0, ids, 4000);
    push_step(tracer, 1, golden, 4);
    bl_trace_counters counters;
    bl_trace_read_counters(tracer, &counters);
    assert_int_equal(counters.dropped, 3);
    assert_int_equal(counters.kept, 3);
    bl_recorder *recorder;
    assert_ok(bl_recorder_create(path, &recorder, &err));
    assert_ok(bl_recorder_attach(recorder, name, &err));
    bl_trace_close(tracer);
    assert_ok(bl_recorder_finish(recorder, NULL, &err));
    bl_loads loads = read_loads(path);
    assert_int_equal(loads.n_steps, 1);
    assert_int_equal(loads.dropped, 3);
    assert_row(&loads, 0, 2, (const uint64_t[]){3, 2, 2, 1});
    bl_loads_free(&loads);
    free(ids);
}

/* The same routing as u8, i16, i32, i64 and as a strided view, with an empty slot. */
static void all_widths_and_strides(void **state) {
    (void)state;
    bl_error err;
    const char *path = bl_test_temp("widths.blt"), *name = ring_name("widths", 0);
    bl_tracer *tracer = open_tracer(name, 0, 1, 512, 0);
    const uint8_t one[] = {0, 255, 7, 3};
    const int16_t two[] = {0, 511, 7, -1};
    const int32_t four[] = {0, 511, 99, 99, 7, -1, 99, 99}; /* rows of 2 in a row of 4 */
    const int64_t eight[] = {0, 511, 7, -1};
    bl_trace_step_begin(tracer, 0, BL_PHASE_PREFILL, 0);
    for (int l = 0; l < 3; l++)
        assert_int_equal(bl_trace_push(tracer, LAYERS[l], one, 1, 2, 2), BL_OK);
    bl_trace_step_end(tracer);
    bl_trace_step_begin(tracer, 1, BL_PHASE_PREFILL, 0);
    assert_int_equal(bl_trace_push(tracer, 3, two, 2, 2, 4), BL_OK);
    assert_int_equal(bl_trace_push(tracer, 4, four, 4, 2, 16), BL_OK);
    assert_int_equal(bl_trace_push(tracer, 9, eight, 8, 2, 16), BL_OK);
    bl_trace_step_end(tracer);
    bl_recorder *recorder;
    assert_ok(bl_recorder_create(path, &recorder, &err));
    assert_ok(bl_recorder_attach(recorder, name, &err));
    bl_trace_close(tracer);
    assert_ok(bl_recorder_finish(recorder, NULL, &err));
    bl_loads loads = read_loads(path);
    for (int l = 0; l < 3; l++) {
        assert_true(loads.usable[l]);
        const uint64_t *row = bl_loads_row(&loads, 1, l);
        assert_int_equal(row[0], 1);
        assert_int_equal(row[511], 1);
        assert_int_equal(row[7], 1);
        assert_int_equal(row[99] + row[255], 0);
        assert_int_equal(bl_loads_row(&loads, 0, l)[255], 1);
    }
    bl_loads_free(&loads);
}

/* Ids that are no experts are counted and named; the layer is unusable, the recording goes on. */
static void bad_ids_are_rejected_by_name(void **state) {
    (void)state;
    bl_error err;
    const char *path = bl_test_temp("bad.blt"), *name = ring_name("bad", 0);
    bl_tracer *tracer = open_tracer(name, 0, 1, 4, 0);
    const int32_t out_of_range[] = {0, 1, 4, 5}, twice[] = {2, 1, 3, 3, 1, 1};
    bl_trace_step_begin(tracer, 17, BL_PHASE_DECODE, 0);
    bl_trace_push(tracer, 3, out_of_range, 4, 2, 8);
    bl_trace_push(tracer, 4, golden, 4, 2, 8);
    bl_trace_push(tracer, 9, golden, 4, 2, 8);
    bl_trace_step_end(tracer);
    bl_trace_step_begin(tracer, 18, BL_PHASE_DECODE, 0);
    bl_trace_push(tracer, 3, twice, 4, 3, 8); /* k = 2: equal ids are no data, not an error */
    bl_trace_push(tracer, 4, golden, 4, 3, 8);
    bl_trace_push(tracer, 9, golden, 4, 3, 8);
    bl_trace_step_end(tracer);
    bl_recorder *recorder;
    assert_ok(bl_recorder_create(path, &recorder, &err));
    assert_ok(bl_recorder_attach(recorder, name, &err));
    bl_trace_close(tracer);
    bl_recorder_totals totals;
    assert_ok(bl_recorder_finish(recorder, &totals, &err));
    assert_int_equal(totals.rejected, 1);
    assert_int_equal(totals.pushed, totals.written + totals.rejected + totals.dropped);
    bl_test_has(totals.why_rejected, "layer 3");
    bl_test_has(totals.why_rejected, "id 4 is not a logical expert below 4");
    bl_loads loads = read_loads(path);
    assert_false(loads.usable[0]);
    assert_true(loads.usable[1]);
    assert_row(&loads, 1, 0, (const uint64_t[]){0, 1, 1, 0});
    bl_loads_free(&loads);
}

static void dummy_steps_are_no_load(void **state) {
    (void)state;
    bl_error err;
    const char *path = bl_test_temp("dummy.blt"), *name = ring_name("dummy", 0);
    bl_tracer *tracer = open_tracer(name, 0, 1, 4, 0);
    push_step(tracer, 0, golden, 4);
    bl_trace_step_begin(tracer, 1, BL_PHASE_IDLE, BL_STEP_DUMMY);
    bl_trace_push(tracer, 3, golden, 4, 4, 8);
    bl_trace_step_end(tracer);
    bl_recorder *recorder;
    assert_ok(bl_recorder_create(path, &recorder, &err));
    assert_ok(bl_recorder_attach(recorder, name, &err));
    bl_trace_close(tracer);
    assert_ok(bl_recorder_finish(recorder, NULL, &err));
    bl_loads loads = read_loads(path);
    assert_int_equal(loads.n_steps, 1);
    assert_int_equal(loads.tokens, 4);
    bl_loads_free(&loads);
}

/* An engine that dies in a step: what was published is recorded, and its ring is cleaned up. */
static void a_dead_engine_leaves_whole_steps(void **state) {
    (void)state;
    bl_error err;
    const char *path = bl_test_temp("dead.blt"), *name = ring_name("dead", 0);
    int ready[2], go[2];
    assert_int_equal(pipe(ready), 0);
    assert_int_equal(pipe(go), 0);
    const pid_t child = fork();
    if (child == 0) {
        char byte = 0;
        bl_tracer *tracer = open_tracer(name, 0, 1, 4, 0);
        for (uint64_t step = 0; step < 3; step++)
            push_step(tracer, step, golden, 4);
        bl_trace_step_begin(tracer, 3, BL_PHASE_DECODE, 0);
        bl_trace_push(tracer, 3, golden, 4, 4, 8);
        if (write(ready[1], &byte, 1) == 1 && read(go[0], &byte, 1) == 1)
            raise(SIGKILL);
        _exit(1);
    }
    char byte = 0;
    assert_int_equal(read(ready[0], &byte, 1), 1);
    bl_recorder *recorder;
    assert_ok(bl_recorder_create(path, &recorder, &err));
    assert_ok(bl_recorder_attach(recorder, name, &err));
    assert_int_equal(write(go[1], &byte, 1), 1);
    assert_int_equal(waitpid(child, NULL, 0), child);
    assert_false(bl_recorder_is_over(recorder)); /* not drained yet */
    uint64_t n;
    assert_ok(bl_recorder_poll(recorder, &n, &err));
    assert_int_equal(n, 9);
    assert_true(bl_recorder_is_over(recorder));
    assert_ok(bl_recorder_finish(recorder, NULL, &err));
    bl_loads loads = read_loads(path);
    assert_int_equal(loads.n_steps, 3);
    assert_true(loads.usable[0]);
    bl_loads_free(&loads);
    char object[128];
    snprintf(object, sizeof object, BL_RING_PREFIX "%s", name);
    assert_true(shm_open(object, O_RDWR, 0) < 0);
    for (int i = 0; i < 2; i++) {
        close(ready[i]);
        close(go[i]);
    }
}

static void names_owners_and_readers(void **state) {
    (void)state;
    bl_error err;
    const char *name = ring_name("owner", 0);
    bl_trace_options options = BL_TRACE_OPTIONS_INIT;
    bl_tracer *tracer = NULL, *second = NULL;
    assert_int_equal(bl_trace_open("no/slash", &options, &tracer), BL_ERR_USAGE);
    options.layers = LAYERS;
    assert_int_equal(bl_trace_open(name, &options, &tracer), BL_ERR_RANGE);
    options.n_layers = 3;
    options.n_experts = 4;
    options.top_k = 2;
    assert_int_equal(bl_trace_open("no/slash", &options, &tracer), BL_ERR_USAGE);
    assert_int_equal(bl_trace_open("", &options, &tracer), BL_ERR_USAGE);
    assert_int_equal(bl_trace_open(name, &options, &tracer), BL_OK);
    assert_int_equal(bl_trace_open(name, &options, &second), BL_ERR_STATE);
    bl_recorder *one, *two;
    assert_ok(bl_recorder_create(bl_test_temp("one.blt"), &one, &err));
    assert_ok(bl_recorder_create(bl_test_temp("two.blt"), &two, &err));
    assert_ok(bl_recorder_attach(one, name, &err));
    assert_fails(bl_recorder_attach(two, name, &err), BL_ERR_STATE, "reads the ring");
    uint64_t n;
    assert_fails(bl_recorder_poll(two, &n, &err), BL_ERR_STATE, "no ring");
    assert_ok(bl_recorder_poll(one, &n, &err));
    assert_fails(bl_recorder_attach(one, name, &err), BL_ERR_STATE, "before recording begins");
    bl_recorder_abandon(one);
    bl_recorder_abandon(two);
    bl_trace_close(tracer);
    assert_int_equal(bl_trace_open(name, &options, &tracer), BL_OK); /* the name is free again */
    bl_trace_close(tracer);
}

static void wrong_calls_are_statuses(void **state) {
    (void)state;
    bl_tracer *tracer = open_tracer(ring_name("calls", 0), 0, 1, 4, 0);
    assert_int_equal(bl_trace_push(tracer, 3, golden, 4, 4, 8), BL_ERR_STATE);
    assert_int_equal(bl_trace_step_end(tracer), BL_ERR_STATE);
    assert_int_equal(bl_trace_step_begin(tracer, 0, 99, 0), BL_ERR_RANGE);
    assert_int_equal(bl_trace_step_begin(tracer, 0, BL_PHASE_DECODE, 8), BL_ERR_RANGE);
    assert_int_equal(bl_trace_step_begin(tracer, 0, BL_PHASE_DECODE, 0), BL_OK);
    assert_int_equal(bl_trace_step_begin(tracer, 1, BL_PHASE_DECODE, 0), BL_ERR_STATE);
    assert_int_equal(bl_trace_push(tracer, 5, golden, 4, 4, 8), BL_ERR_RANGE);
    assert_int_equal(bl_trace_push(tracer, 3, golden, 3, 4, 8), BL_ERR_USAGE);
    assert_int_equal(bl_trace_push(tracer, 3, golden, 4, 4, 7), BL_ERR_SHAPE);
    assert_int_equal(bl_trace_push(tracer, 3, NULL, 4, 4, 8), BL_ERR_SHAPE);
    bl_trace_close(tracer);
    assert_int_equal(bl_trace_push(NULL, 3, golden, 4, 4, 8), BL_OK);
    assert_int_equal(bl_trace_step_begin(NULL, 0, 0, 0), BL_OK);
    assert_int_equal(bl_trace_step_end(NULL), BL_OK);
    bl_trace_close(NULL);
}

static void rings_of_different_models_do_not_mix(void **state) {
    (void)state;
    bl_error err;
    const char *a = ring_name("mix", 0), *b = ring_name("mix", 1);
    bl_tracer *one = open_tracer(a, 0, 2, 4, 0), *two = open_tracer(b, 1, 2, 8, 0);
    bl_recorder *recorder;
    assert_ok(bl_recorder_create(bl_test_temp("mix.blt"), &recorder, &err));
    assert_ok(bl_recorder_attach(recorder, a, &err));
    assert_fails(bl_recorder_attach(recorder, b, &err), BL_ERR_MODEL, "top-2 of 8");
    bl_recorder_abandon(recorder);
    bl_trace_close(one);
    bl_trace_close(two);
}

/* ---- threads ------------------------------------------------------------------------------- */

enum { THREAD_STEPS = 3000, ENTRY_MAX = 40 };

typedef struct shared {
    bl_ring *ring;
    uint64_t published, refused; /* steps */
    _Atomic bool done;
} shared;

/* Steps of 1 to 4 entries of different sizes, filled with the step's number. */
static void *produce(void *user) {
    shared *s = user;
    for (uint64_t step = 0; step < THREAD_STEPS; step++) {
        bool fits = true;
        for (uint64_t i = 0; fits && i <= step % 4; i++) {
            const size_t words = (step + i) % ENTRY_MAX;
            const size_t bytes = sizeof(bl_ring_entry) + words * 8;
            unsigned char *at = bl_pack_reserve(&s->ring->pack, bytes);
            fits = at != NULL;
            if (!fits)
                break;
            const bl_ring_entry entry = {.bytes = (uint32_t)bytes,
                                         .kind = BL_RING_RECORD,
                                         .step = step,
                                         .n_tokens = (uint32_t)i};
            memcpy(at, &entry, sizeof entry);
            for (size_t w = 0; w < words; w++)
                memcpy(at + sizeof entry + 8 * w, &step, 8);
            s->ring->pack.write += bytes;
        }
        if (fits) {
            bl_pack_publish(&s->ring->pack);
            s->published++;
        } else {
            bl_pack_rewind(&s->ring->pack);
            s->refused++;
            sched_yield();
        }
    }
    atomic_store(&s->done, true);
    return NULL;
}

/* Every published step arrives whole and in order, for a ring of a few steps only. Both sides use
 * one mapping, so the thread sanitizer sees their accesses meet. */
static void a_producer_thread_and_a_consumer(void **state) {
    (void)state;
    bl_error err;
    bl_ring ring;
    bl_ring_shape *shape = calloc(1, sizeof *shape);
    assert_non_null(shape);
    assert_ok(bl_ring_create(ring_name("thread", 0), shape, 4096, &ring, &err));
    shared s = {.ring = &ring};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, produce, &s), 0);
    uint64_t steps = 0, last = UINT64_MAX, expected = 0;
    for (;;) {
        const bool done = atomic_load(&s.done);
        bl_ring_entry entry;
        const unsigned char *body;
        assert_ok(bl_ring_peek(&ring, &entry, &body, &err));
        if (body == NULL) {
            if (done)
                break;
            sched_yield();
            continue;
        }
        if (entry.n_tokens == 0) {
            assert_int_equal(expected, last == UINT64_MAX ? 0 : last % 4 + 1);
            assert_true(last == UINT64_MAX || entry.step > last);
            last = entry.step;
            expected = 0;
            steps++;
        }
        assert_int_equal(entry.step, last);
        assert_int_equal(entry.n_tokens, expected++);
        const size_t words = (entry.bytes - sizeof entry) / 8;
        assert_int_equal(words, (entry.step + entry.n_tokens) % ENTRY_MAX);
        for (size_t w = 0; w < words; w++)
            assert_memory_equal(body + 8 * w, &entry.step, 8);
        bl_ring_pop(&ring, &entry);
        bl_ring_release(&ring);
    }
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(steps, s.published);
    assert_int_equal(s.published + s.refused, THREAD_STEPS);
    assert_true(s.published > 0);
    bl_ring_close(&ring);
    free(shape);
}

static void *trace_in_a_thread(void *user) {
    bl_tracer *tracer = user;
    for (uint64_t step = 0; step < 2000; step++) {
        bl_trace_step_begin(tracer, step, BL_PHASE_DECODE, 0);
        for (int l = 0; l < 3; l++)
            bl_trace_push(tracer, LAYERS[l], golden, sizeof *golden, 4, 8);
        bl_trace_step_end(tracer);
    }
    bl_trace_close(tracer);
    return NULL;
}

static void a_tracing_thread_and_a_recorder(void **state) {
    (void)state;
    bl_error err;
    const char *path = bl_test_temp("threads.blt"), *name = ring_name("record", 0);
    bl_tracer *tracer = open_tracer(name, 0, 1, 4, 8192);
    bl_recorder *recorder;
    assert_ok(bl_recorder_create(path, &recorder, &err));
    assert_ok(bl_recorder_attach(recorder, name, &err));
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, trace_in_a_thread, tracer), 0);
    while (!bl_recorder_is_over(recorder)) {
        uint64_t n;
        assert_ok(bl_recorder_poll(recorder, &n, &err));
        if (n == 0)
            sched_yield();
    }
    assert_int_equal(pthread_join(thread, NULL), 0);
    bl_recorder_totals totals;
    assert_ok(bl_recorder_finish(recorder, &totals, &err));
    assert_int_equal(totals.pushed, 6000);
    assert_int_equal(totals.pushed, totals.written + totals.dropped);
    bl_loads loads = read_loads(path);
    assert_int_equal(loads.n_steps * 3, totals.written);
    assert_int_equal(loads.dropped, totals.dropped);
    assert_true(loads.usable[0] && loads.usable[1] && loads.usable[2]);
    bl_loads_free(&loads);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_ranks_into_one_file),
        cmocka_unit_test(a_full_ring_drops_whole_steps),
        cmocka_unit_test(a_step_larger_than_the_ring),
        cmocka_unit_test(all_widths_and_strides),
        cmocka_unit_test(bad_ids_are_rejected_by_name),
        cmocka_unit_test(dummy_steps_are_no_load),
        cmocka_unit_test(a_dead_engine_leaves_whole_steps),
        cmocka_unit_test(names_owners_and_readers),
        cmocka_unit_test(wrong_calls_are_statuses),
        cmocka_unit_test(rings_of_different_models_do_not_mix),
        cmocka_unit_test(a_producer_thread_and_a_consumer),
        cmocka_unit_test(a_tracing_thread_and_a_recorder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
