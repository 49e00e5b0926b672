/* Live windows: right sums that roll on, read while they are written. */
#include "tests/support/support.h"

#include "ballast.h"
#include "tracer/recorder.h"
#include "tracer/window.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static const int LAYERS[] = {3, 9};

static long test_pid; /* a child's windows have its parent's names */

static const char *window_name(const char *what) {
    static char name[64];
    snprintf(name, sizeof name, "test-%ld-%s", test_pid, what);
    return name;
}

static bl_window *create(const char *what) {
    bl_error err;
    bl_trace_info info;
    bl_window *window = NULL;
    assert_ok(bl_trace_info_create("test", LAYERS, 2, 4, 2, "test", &info, &err));
    assert_ok(bl_window_create(window_name(what), &info, &window, &err));
    bl_trace_info_free(&info);
    return window;
}

static bl_record record_of(uint64_t step, int layer, const int32_t *ids, uint64_t n_tokens) {
    return (bl_record){.step = step,
                       .layer = layer,
                       .phase = BL_PHASE_DECODE,
                       .n_ids = 4,
                       .n_tokens = n_tokens,
                       .k = 2,
                       .ids = ids};
}

static void assert_row(bl_window_view *view, bl_horizon horizon, int phase, int l, uint64_t tokens,
                       const uint64_t *want) {
    bl_error err;
    uint64_t count[4], got;
    assert_ok(bl_window_read(view, horizon, phase, l, count, &got, &err));
    assert_int_equal(got, tokens);
    for (int expert = 0; expert < 4; expert++)
        assert_int_equal(count[expert], want[expert]);
}

static void horizons_roll_on(void **state) {
    (void)state;
    bl_error err;
    bl_window *window = create("roll");
    bl_window_view *view = NULL;
    assert_ok(bl_window_open(window_name("roll"), &view, &err));
    const int32_t ids[] = {0, 1, 0, -1, 2, 0};
    const uint64_t once[] = {3, 1, 1, 0}, twice[] = {6, 2, 2, 0}, none[] = {0, 0, 0, 0};
    bl_record record = record_of(100, 9, ids, 3);
    bl_window_add(window, &record, 1000.2);
    record.phase = BL_PHASE_PREFILL;
    bl_window_add(window, &record, 1000.9);
    record.flags = BL_RECORD_DUMMY;
    bl_window_add(window, &record, 1000.9);
    for (int h = 0; h < BL_N_HORIZONS; h++) {
        assert_row(view, (bl_horizon)h, BL_PHASE_DECODE, 1, 3, once);
        assert_row(view, (bl_horizon)h, -1, 1, 6, twice);
        assert_row(view, (bl_horizon)h, -1, 0, 0, none);
    }
    /* 10 buckets of one second: 1000 is in until 1009 and out at 1010 */
    bl_window_tick(window, 1009.9);
    assert_row(view, BL_HORIZON_SECONDS, -1, 1, 6, twice);
    bl_window_tick(window, 1010.0);
    assert_row(view, BL_HORIZON_SECONDS, -1, 1, 0, none);
    assert_row(view, BL_HORIZON_MINUTES, -1, 1, 6, twice);
    /* 10 buckets of 30 s: 990..1019 is in until 1289 */
    bl_window_tick(window, 1289.9);
    assert_row(view, BL_HORIZON_MINUTES, -1, 1, 6, twice);
    bl_window_tick(window, 1290);
    assert_row(view, BL_HORIZON_MINUTES, -1, 1, 0, none);
    /* 16 buckets of 4 steps: 100..103 is in until 163 */
    record = record_of(163, 9, ids, 3);
    bl_window_add(window, &record, 1290);
    assert_row(view, BL_HORIZON_STEPS, -1, 1, 9, (const uint64_t[]){9, 3, 3, 0});
    record = record_of(164, 9, ids, 3);
    bl_window_add(window, &record, 1290);
    assert_row(view, BL_HORIZON_STEPS, -1, 1, 6, twice);
    /* too late for the steps, in time for the clock; a clock that stands or runs back changes nothing */
    record = record_of(90, 9, ids, 3);
    bl_window_add(window, &record, 1200);
    assert_row(view, BL_HORIZON_STEPS, -1, 1, 6, twice);
    assert_row(view, BL_HORIZON_SECONDS, -1, 1, 9, (const uint64_t[]){9, 3, 3, 0});
    /* a restarted service begins its steps anew */
    record = record_of(0, 9, ids, 3);
    record.run = 1;
    bl_window_add(window, &record, 1290);
    assert_row(view, BL_HORIZON_STEPS, -1, 1, 3, once);
    bl_window_facts facts;
    bl_window_read_facts(view, &facts);
    assert_true(facts.live);
    assert_string_equal(facts.model, "test");
    assert_int_equal(facts.layers[1], 9);
    assert_int_equal(facts.last_step, 0);
    /* far ahead: everything leaves */
    bl_window_tick(window, 1e9);
    assert_row(view, BL_HORIZON_MINUTES, -1, 1, 0, none);
    bl_window_close(window);
    bl_window_read_facts(view, &facts);
    assert_false(facts.live);
    bl_window_view_free(view);
    assert_fails(bl_window_open(window_name("roll"), &view, &err), BL_ERR_STATE, "no live windows");
}

static void counts_and_slots_of_two_maps(void **state) {
    (void)state;
    bl_error err;
    bl_window *window = create("maps");
    bl_window_view *view = NULL;
    assert_ok(bl_window_open(window_name("maps"), &view, &err));
    int begin[] = {0, 2, 4};
    int32_t old_map[] = {0, 1, 2, 3}, new_map[] = {3, 3, -1, 0};
    const uint64_t counts[] = {5, 1, 0, 2};
    bl_layer_placement map = {
        .layer = 3, .epoch = 1, .n_ranks = 2, .n_experts = 4, .begin = begin, .expert = old_map};
    bl_record record = record_of(1, 3, NULL, 4);
    record.counts = counts;
    record.flags = BL_RECORD_PHYSICAL;
    record.epoch = 1;
    bl_window_add(window, &record, 10); /* no map yet */
    assert_ok(bl_window_set_map(window, &map));
    bl_window_add(window, &record, 10);
    map.epoch = 2;
    map.expert = new_map;
    assert_ok(bl_window_set_map(window, &map));
    record.epoch = 2;
    bl_window_add(window, &record, 10);
    record.epoch = 1; /* another rank, which is still at the old one */
    bl_window_add(window, &record, 10);
    assert_row(view, BL_HORIZON_SECONDS, -1, 0, 12, (const uint64_t[]){10 + 2, 2, 0, 4 + 6});
    bl_window_facts facts;
    bl_window_read_facts(view, &facts);
    assert_int_equal(facts.unmapped, 1);
    bl_window_view_free(view);
    bl_window_close(window);
}

static void one_publisher_for_each_name(void **state) {
    (void)state;
    bl_error err;
    bl_trace_info info;
    bl_window *second = NULL;
    bl_window *window = create("one");
    assert_ok(bl_trace_info_create("test", LAYERS, 2, 4, 2, "test", &info, &err));
    assert_fails(bl_window_create(window_name("one"), &info, &second, &err), BL_ERR_STATE,
                 "publishes live windows");
    assert_fails(bl_window_create("a/b", &info, &second, &err), BL_ERR_USAGE, "name");
    bl_window_close(window);
    /* one whose publisher was killed is replaced */
    const pid_t child = fork();
    if (child == 0) {
        create("one");
        _exit(0);
    }
    assert_int_equal(waitpid(child, NULL, 0), child);
    bl_window_view *view = NULL;
    assert_ok(bl_window_open(window_name("one"), &view, &err));
    bl_window_facts facts;
    bl_window_read_facts(view, &facts);
    assert_false(facts.live);
    bl_window_view_free(view);
    assert_ok(bl_window_create(window_name("one"), &info, &second, &err));
    bl_window_close(second);
    bl_trace_info_free(&info);
}

typedef struct shared {
    bl_window *window;
    atomic_bool stop;
} shared;

/* Every record adds one to each of four experts: a row that is torn would show. */
static void *write_records(void *user) {
    shared *s = user;
    const uint64_t counts[] = {1, 1, 1, 1};
    for (uint64_t step = 0; !atomic_load(&s->stop); step++) {
        bl_record record = record_of(step / 50, 3, NULL, 2);
        record.counts = counts;
        bl_window_add(s->window, &record, 1 + (double)step / 5000);
    }
    return NULL;
}

static void readers_see_whole_rows(void **state) {
    (void)state;
    bl_error err;
    shared s = {.window = create("torn")};
    bl_window_view *view = NULL;
    pthread_t thread;
    assert_ok(bl_window_open(window_name("torn"), &view, &err));
    assert_int_equal(pthread_create(&thread, NULL, write_records, &s), 0);
    uint64_t largest = 0;
    for (int i = 0; i < 3000 || largest < 100; i++) {
        uint64_t count[4], tokens;
        assert_ok(
            bl_window_read(view, (bl_horizon)(i % 3), BL_PHASE_DECODE, 0, count, &tokens, &err));
        for (int expert = 1; expert < 4; expert++)
            assert_int_equal(count[expert], count[0]);
        assert_int_equal(tokens, 2 * count[0]);
        largest = count[0] > largest ? count[0] : largest;
    }
    atomic_store(&s.stop, true);
    assert_int_equal(pthread_join(thread, NULL), 0);
    bl_window_view_free(view);
    bl_window_close(s.window);
}

/* From the engine's call to another process's eyes. */
static void a_recorder_publishes(void **state) {
    (void)state;
    bl_error err;
    const char *name = window_name("live");
    bl_trace_options trace = BL_TRACE_OPTIONS_INIT;
    bl_recorder_options options = BL_RECORDER_OPTIONS_INIT;
    bl_tracer *tracer = NULL;
    bl_recorder *recorder = NULL;
    trace.model = "test";
    trace.n_experts = 4;
    trace.top_k = 2;
    trace.layers = LAYERS;
    trace.n_layers = 2;
    trace.ring_bytes = 1 << 16;
    assert_int_equal(bl_trace_open(name, &trace, &tracer), BL_OK);
    options.path = bl_test_temp("live.blt");
    options.live = name;
    assert_ok(bl_recorder_open(&options, &recorder, &err));
    assert_ok(bl_recorder_attach(recorder, name, &err));
    const int32_t ids[] = {0, 1, 0, 3};
    for (uint64_t step = 0; step < 3; step++) {
        bl_trace_step_begin(tracer, step, BL_PHASE_DECODE, 0);
        for (int l = 0; l < 2; l++)
            bl_trace_push(tracer, LAYERS[l], ids, 4, 2, 8);
        bl_trace_step_end(tracer);
    }
    uint64_t n;
    assert_ok(bl_recorder_poll(recorder, &n, &err));
    bl_window_view *view = NULL;
    assert_ok(bl_window_open(name, &view, &err));
    for (int l = 0; l < 2; l++)
        assert_row(view, BL_HORIZON_STEPS, BL_PHASE_DECODE, l, 6, (const uint64_t[]){6, 3, 0, 3});
    bl_window_view_free(view);
    bl_trace_close(tracer);
    assert_ok(bl_recorder_finish(recorder, NULL, &err));
    assert_fails(bl_window_open(name, &view, &err), BL_ERR_STATE, "ballast record --live");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(horizons_roll_on),
        cmocka_unit_test(counts_and_slots_of_two_maps),
        cmocka_unit_test(one_publisher_for_each_name),
        cmocka_unit_test(readers_see_whole_rows),
        cmocka_unit_test(a_recorder_publishes),
    };
    test_pid = (long)getpid();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
