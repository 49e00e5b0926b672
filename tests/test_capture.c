/* The engine's side: weights, times, maps, counts only, sampling, old headers, forks. */
#include "tests/support/support.h"

#include "ballast.h"
#include "core/half.h"
#include "tracer/loads.h"
#include "tracer/recorder.h"
#include "tracer/ring.h"
#include "tracer/stream.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static const int LAYERS[] = {3, 7};
static const int32_t golden[] = {0, 2, 0, 2, 0, 1, 1, 3};

static bl_trace_options options_for(int n_experts, unsigned flags) {
    bl_trace_options options = BL_TRACE_OPTIONS_INIT;
    options.model = "test";
    options.n_experts = n_experts;
    options.top_k = 2;
    options.layers = LAYERS;
    options.n_layers = 2;
    options.ring_bytes = 1 << 16;
    options.flags = flags;
    return options;
}

static const char *ring_name(const char *what) {
    static char name[64];
    snprintf(name, sizeof name, "test-%ld-%s", (long)getpid(), what);
    return name;
}

static bl_tracer *open_tracer(const char *what, const bl_trace_options *options) {
    bl_tracer *tracer = NULL;
    assert_int_equal(bl_trace_open(ring_name(what), options, &tracer), BL_OK);
    return tracer;
}

static bl_recorder *open_recorder(const char *what, const char *file) {
    bl_error err;
    bl_recorder *recorder = NULL;
    assert_ok(bl_recorder_create(bl_test_temp(file), &recorder, &err));
    assert_ok(bl_recorder_attach(recorder, ring_name(what), &err));
    return recorder;
}

/* Close both and hand back the file as a stream. */
static bl_stream *finish(bl_tracer *tracer, bl_recorder *recorder, const char *file,
                         bl_recorder_totals *totals) {
    bl_error err;
    bl_stream *stream = NULL;
    bl_trace_close(tracer);
    assert_ok(bl_recorder_finish(recorder, totals, &err));
    assert_int_equal(totals->pushed,
                     totals->written + totals->rejected + totals->dropped + totals->skipped);
    assert_ok(bl_stream_open(bl_test_temp(file), &stream, &err));
    return stream;
}

static bl_record next(bl_stream *stream) {
    bl_error err;
    bl_record record;
    bool got;
    assert_ok(bl_stream_next(stream, &record, &got, &err));
    assert_true(got);
    return record;
}

static void assert_end(bl_stream *stream) {
    bl_error err;
    bl_record record;
    bool got;
    assert_ok(bl_stream_next(stream, &record, &got, &err));
    assert_false(got);
    bl_stream_free(stream);
}

/* 0.25 and 0.75 are binary16 numbers; a float is rounded to the nearest, ties to even. */
static void weights_travel_with_ids(void **state) {
    (void)state;
    const bl_trace_options options = options_for(4, 0);
    bl_tracer *tracer = open_tracer("weights", &options);
    bl_recorder *recorder = open_recorder("weights", "weights.blt");
    const float real[] = {0.25f, 0.75f, 99, 1.0f / 3, 2.0f / 3, 99}; /* rows of 2 in a row of 3 */
    const uint16_t half[] = {0x3400, 0x3a00, 0x3c00, 0x0000};
    bl_trace_rows rows = BL_TRACE_ROWS_INIT;
    rows.ids = golden;
    rows.n_tokens = 2;
    rows.row_bytes = 8;
    rows.weights = real;
    rows.weight_bytes = 4;
    rows.weight_row_bytes = 12;
    bl_trace_step_begin(tracer, 5, BL_PHASE_DECODE, 0);
    assert_int_equal(bl_trace_push_rows(tracer, 3, &rows), BL_OK);
    rows.weights = half;
    rows.weight_bytes = 2;
    rows.weight_row_bytes = 4;
    assert_int_equal(bl_trace_push_rows(tracer, 7, &rows), BL_OK);
    rows.weight_bytes = 8;
    assert_int_equal(bl_trace_push_rows(tracer, 7, &rows), BL_ERR_USAGE);
    rows.weight_bytes = 4;
    assert_int_equal(bl_trace_push_rows(tracer, 7, &rows), BL_ERR_SHAPE);
    bl_trace_step_end(tracer);
    bl_recorder_totals totals;
    bl_stream *stream = finish(tracer, recorder, "weights.blt", &totals);
    bl_record record = next(stream);
    const uint16_t want[] = {0x3400, 0x3a00, 0x3555, 0x3955};
    assert_memory_equal(record.weights, want, sizeof want);
    assert_memory_equal(record.ids, golden, 16);
    record = next(stream);
    assert_memory_equal(record.weights, half, sizeof half);
    assert_end(stream);
}

/* The rounding inside the engine's library and core/half.h agree on all kinds of numbers. */
static void floats_become_the_nearest_halves(void **state) {
    (void)state;
    enum { N = 1 << 12 };
    const bl_trace_options options = options_for(4, 0);
    float *values = calloc(N, sizeof *values);
    int32_t *ids = calloc(N, sizeof *ids);
    assert_true(values != NULL && ids != NULL);
    uint32_t bits = 12345;
    for (int i = 0; i < N; i++) {
        bits = bits * 1664525u + 1013904223u;
        memcpy(&values[i], &bits, sizeof bits);
        if (i % 3 == 0) /* where halves have most of their numbers, subnormal ones included */
            values[i] = ldexpf((float)(int32_t)(bits >> 9), -(int)(bits % 48));
        if (isnan(values[i]))
            values[i] = 1;
        ids[i] = i % 2;
    }
    bl_tracer *tracer = open_tracer("halves", &options);
    bl_recorder *recorder = open_recorder("halves", "halves.blt");
    bl_trace_rows rows = BL_TRACE_ROWS_INIT;
    rows.ids = ids;
    rows.n_tokens = N / 2;
    rows.row_bytes = 8;
    rows.weights = values;
    rows.weight_bytes = 4;
    rows.weight_row_bytes = 8;
    bl_trace_step_begin(tracer, 0, BL_PHASE_DECODE, 0);
    assert_int_equal(bl_trace_push_rows(tracer, 3, &rows), BL_OK);
    bl_trace_step_end(tracer);
    bl_recorder_totals totals;
    bl_stream *stream = finish(tracer, recorder, "halves.blt", &totals);
    const bl_record record = next(stream);
    for (int i = 0; i < N; i++) {
        if (record.weights[i] != bl_half_from_real((double)values[i]))
            fail_msg("%a became %04x", (double)values[i], record.weights[i]);
    }
    assert_end(stream);
    free(values);
    free(ids);
}

static void stage_times_go_to_their_layer(void **state) {
    (void)state;
    for (int counts = 0; counts < 2; counts++) {
        const bl_trace_options options =
            options_for(4, BL_TRACE_TIMES | (counts ? BL_TRACE_COUNTS : 0));
        bl_tracer *tracer = open_tracer("times", &options);
        bl_recorder *recorder = open_recorder("times", "times.blt");
        bl_trace_stages stages = BL_TRACE_STAGES_INIT;
        stages.route_ns = 10;
        stages.experts_ns = 400;
        stages.unpermute_ns = 6;
        bl_trace_step_begin(tracer, 0, BL_PHASE_DECODE, 0);
        assert_int_equal(bl_trace_stage_times(tracer, 3, &stages), BL_ERR_STATE);
        bl_trace_push(tracer, 3, golden, 4, 4, 8);
        bl_trace_push(tracer, 7, golden, 4, 4, 8);
        assert_int_equal(bl_trace_stage_times(tracer, 3, &stages), BL_OK); /* after the fact */
        bl_trace_step_end(tracer);
        assert_int_equal(bl_trace_stage_times(tracer, 3, &stages), BL_ERR_STATE);
        bl_recorder_totals totals;
        bl_stream *stream = finish(tracer, recorder, "times.blt", &totals);
        bl_record record = next(stream);
        assert_int_equal(record.layer, 3);
        const uint64_t want[BL_N_STAGES] = {10, 0, 0, 400, 0, 6};
        assert_memory_equal(record.stage_ns, want, sizeof want);
        record = next(stream);
        assert_null(record.stage_ns); /* none was told */
        assert_end(stream);
    }
    const bl_trace_options options = options_for(4, 0);
    bl_tracer *tracer = open_tracer("times", &options);
    const bl_trace_stages stages = BL_TRACE_STAGES_INIT;
    bl_trace_step_begin(tracer, 0, BL_PHASE_DECODE, 0);
    bl_trace_push(tracer, 3, golden, 4, 4, 8);
    assert_int_equal(bl_trace_stage_times(tracer, 3, &stages), BL_ERR_STATE); /* not asked for */
    bl_trace_close(tracer);
}

static int set_map(bl_tracer *tracer, int layer, uint64_t epoch, int n_slots,
                   const int32_t *expert) {
    bl_trace_map map = BL_TRACE_MAP_INIT;
    map.layer = layer;
    map.epoch = epoch;
    map.n_ranks = 2;
    map.n_slots = n_slots;
    map.expert = expert;
    return bl_trace_set_map(tracer, &map);
}

/* vllm #33013: a trace across a rebalance, each record under its own epoch's map. */
static void each_record_under_its_own_map(void **state) {
    (void)state;
    bl_error err;
    const bl_trace_options options = options_for(4, BL_TRACE_PHYSICAL);
    bl_tracer *tracer = open_tracer("maps", &options);
    bl_recorder *recorder = open_recorder("maps", "maps.blt");
    const int32_t before[] = {0, 1, 2, 3, 0, 1}, after[] = {3, 2, 1, 0, 3, 2};
    const int32_t slots[] = {0, 5, 4, 3}; /* before: 0 1 / 0 3; after: 3 2 / 3 0 */
    bl_trace_step_begin(tracer, 0, BL_PHASE_DECODE, 0);
    assert_int_equal(bl_trace_push(tracer, 3, slots, 4, 2, 8), BL_ERR_STATE); /* no map yet */
    bl_trace_step_end(tracer);
    for (int l = 0; l < 2; l++)
        assert_int_equal(set_map(tracer, LAYERS[l], 1, 6, before), BL_OK);
    for (uint64_t step = 1; step < 4; step++) {
        if (step == 2) { /* one layer moves, the other stays */
            assert_int_equal(set_map(tracer, 3, 1, 6, after), BL_ERR_STATE);
            assert_int_equal(set_map(tracer, 3, 2, 6, after), BL_OK);
        }
        bl_trace_step_begin(tracer, step, BL_PHASE_DECODE, 0);
        assert_int_equal(set_map(tracer, 3, 9, 6, after), BL_ERR_STATE); /* within a step */
        for (int l = 0; l < 2; l++)
            assert_int_equal(bl_trace_push(tracer, LAYERS[l], slots, 4, 2, 8), BL_OK);
        bl_trace_step_end(tracer);
        uint64_t n;
        assert_ok(bl_recorder_poll(recorder, &n, &err));
    }
    bl_recorder_totals totals;
    bl_stream *stream = finish(tracer, recorder, "maps.blt", &totals);
    const int32_t old_ids[] = {0, 1, 0, 3}, new_ids[] = {3, 2, 3, 0};
    for (uint64_t step = 1; step < 4; step++) {
        for (int l = 0; l < 2; l++) {
            const bl_record record = next(stream);
            const bool moved = l == 0 && step > 1;
            assert_int_equal(record.step, step);
            assert_int_equal(record.epoch, moved ? 2 : 1);
            assert_int_equal(record.n_ids, 4);
            assert_memory_equal(record.ids, moved ? new_ids : old_ids, sizeof old_ids);
        }
    }
    assert_end(stream);
}

static void impossible_maps_are_refused(void **state) {
    (void)state;
    const bl_trace_options options = options_for(4, BL_TRACE_PHYSICAL);
    bl_tracer *tracer = open_tracer("badmaps", &options);
    const int32_t good[] = {0, 1, 2, 3, 0, -1}, bad[] = {0, 1, 2, 4, 0, 1};
    const int uneven[] = {2, 3};
    bl_trace_map map = BL_TRACE_MAP_INIT;
    assert_int_equal(set_map(tracer, 3, 1, 6, bad), BL_ERR_RANGE);
    assert_int_equal(set_map(tracer, 4, 1, 6, good), BL_ERR_RANGE);
    assert_int_equal(set_map(tracer, 3, 1, 5, good), BL_ERR_SHAPE);
    assert_int_equal(set_map(tracer, 3, 1, 6, NULL), BL_ERR_USAGE);
    map.layer = 3;
    map.n_ranks = 2;
    map.n_slots = 5;
    map.expert = good;
    map.slots_of_rank = uneven;
    assert_int_equal(bl_trace_set_map(tracer, &map), BL_OK);
    map.n_slots = 6;
    map.epoch = 1;
    assert_int_equal(bl_trace_set_map(tracer, &map), BL_ERR_SHAPE);
    bl_trace_close(tracer);
}

/* Counts only: what ids would have given, micro-batches added up, empties known. Counts above 255 and
 * above 65535 as well. */
static void counts_are_what_ids_would_give(void **state) {
    (void)state;
    bl_error err;
    enum { MANY = 70000 };
    const bl_trace_options options = options_for(4, BL_TRACE_COUNTS);
    bl_tracer *tracer = open_tracer("counts", &options);
    bl_recorder *recorder = open_recorder("counts", "counts.blt");
    int32_t *many = calloc(2 * MANY, sizeof *many);
    assert_non_null(many);
    for (int i = 0; i < MANY; i++)
        many[2 * i + 1] = 1 + i % 3;
    const int16_t holes[] = {0, 1, 2, -1, -1, -1};
    bl_trace_step_begin(tracer, 0, BL_PHASE_PREFILL, 0);
    for (int l = 0; l < 2; l++) {
        assert_int_equal(bl_trace_push(tracer, LAYERS[l], golden, 4, 4, 8), BL_OK);
        assert_int_equal(bl_trace_push(tracer, LAYERS[l], holes, 2, 3, 4), BL_OK);
    }
    bl_trace_step_end(tracer);
    for (uint64_t step = 1; step < 3; step++) {
        bl_trace_step_begin(tracer, step, BL_PHASE_PREFILL, 0);
        for (int l = 0; l < 2; l++)
            bl_trace_push(tracer, LAYERS[l], many, 4, step == 1 ? 600 : MANY, 8);
        bl_trace_step_end(tracer);
    }
    bl_recorder_totals totals;
    bl_stream *stream = finish(tracer, recorder, "counts.blt", &totals);
    assert_int_equal(totals.pushed, 6);
    const uint64_t want[3][4] = {{4, 3, 3, 1}, {600, 200, 200, 200}, {MANY, 23334, 23333, 23333}};
    for (int step = 0; step < 3; step++) {
        for (int l = 0; l < 2; l++) {
            const bl_record record = next(stream);
            assert_null(record.ids);
            assert_memory_equal(record.counts, want[step], sizeof want[step]);
            assert_int_equal(record.n_tokens, step == 0 ? 7 : step == 1 ? 600 : MANY);
            assert_int_equal(record.n_empty, step == 0 ? 3 : 0);
        }
    }
    assert_end(stream);
    const char *path = bl_test_temp("counts.blt");
    const bl_loads_options all = BL_LOADS_OPTIONS_INIT;
    bl_loads loads = {0};
    assert_ok(bl_loads_read(&path, 1, NULL, &all, &loads, &err));
    assert_true(loads.usable[0] && loads.usable[1]);
    assert_memory_equal(bl_loads_row(&loads, 2, 1), want[2], sizeof want[2]);
    bl_loads_free(&loads);
    free(many);
}

/* An id that is no expert spoils its layer by name, in counts as in ids. */
static void counts_with_a_bad_id_are_rejected(void **state) {
    (void)state;
    const bl_trace_options options = options_for(4, BL_TRACE_COUNTS);
    bl_tracer *tracer = open_tracer("badcount", &options);
    bl_recorder *recorder = open_recorder("badcount", "badcount.blt");
    const int32_t bad[] = {0, 9};
    bl_trace_step_begin(tracer, 0, BL_PHASE_DECODE, 0);
    bl_trace_push(tracer, 3, bad, 4, 1, 8);
    bl_trace_push(tracer, 7, golden, 4, 1, 8);
    bl_trace_step_end(tracer);
    bl_recorder_totals totals;
    bl_stream *stream = finish(tracer, recorder, "badcount.blt", &totals);
    assert_int_equal(totals.rejected, 1);
    bl_test_has(totals.why_rejected, "id 9 is not a logical expert below 4");
    assert_int_equal(next(stream).layer, 7);
    assert_end(stream);
}

/* Whole steps in bursts, by number: 1 of 3 in runs of 2 keeps 0 1, 6 7, 12 13, ... */
static void sampling_keeps_whole_steps(void **state) {
    (void)state;
    bl_trace_options options = options_for(4, 0);
    options.sample_every = 3;
    options.sample_burst = 2;
    bl_tracer *tracer = open_tracer("sample", &options);
    bl_recorder *recorder = open_recorder("sample", "sample.blt");
    for (uint64_t step = 0; step < 15; step++) {
        bl_trace_step_begin(tracer, step, BL_PHASE_DECODE, 0);
        for (int l = 0; l < 2; l++)
            bl_trace_push(tracer, LAYERS[l], golden, 4, 4, 8);
        bl_trace_step_end(tracer);
    }
    bl_trace_counters counters;
    bl_trace_read_counters(tracer, &counters);
    assert_int_equal(counters.pushed, 30);
    assert_int_equal(counters.kept, 12);
    assert_int_equal(counters.skipped, 18);
    bl_recorder_totals totals;
    bl_stream *stream = finish(tracer, recorder, "sample.blt", &totals);
    const uint64_t want[] = {0, 1, 6, 7, 12, 13};
    for (int i = 0; i < 6; i++) {
        assert_int_equal(next(stream).step, want[i]);
        assert_int_equal(next(stream).step, want[i]);
    }
    assert_end(stream);
}

/* From outside, while the engine runs: ids, then counts of every second step, then ids again. */
static void modes_are_switched_while_it_runs(void **state) {
    (void)state;
    bl_error err;
    const bl_trace_options options = options_for(4, 0);
    bl_tracer *tracer = open_tracer("switch", &options);
    bl_recorder *recorder = open_recorder("switch", "switch.blt");
    for (uint64_t step = 0; step < 12; step++) {
        if (step == 4)
            assert_ok(bl_ring_set_control(ring_name("switch"),
                                          bl_control_word(2, 1, BL_MODE_COUNTS), &err));
        if (step == 8)
            assert_ok(
                bl_ring_set_control(ring_name("switch"), bl_control_word(1, 1, BL_MODE_IDS), &err));
        bl_trace_step_begin(tracer, step, BL_PHASE_DECODE, 0);
        for (int l = 0; l < 2; l++)
            bl_trace_push(tracer, LAYERS[l], golden, 4, 4, 8);
        bl_trace_step_end(tracer);
    }
    bl_recorder_totals totals;
    bl_stream *stream = finish(tracer, recorder, "switch.blt", &totals);
    assert_int_equal(totals.skipped, 4);
    const uint64_t counts[] = {3, 2, 2, 1};
    for (uint64_t step = 0; step < 12; step++) {
        if (step == 5 || step == 7)
            continue;
        for (int l = 0; l < 2; l++) {
            const bl_record record = next(stream);
            assert_int_equal(record.step, step);
            if (step >= 4 && step < 8)
                assert_memory_equal(record.counts, counts, sizeof counts);
            else
                assert_memory_equal(record.ids, golden, sizeof golden);
        }
    }
    assert_end(stream);
    assert_fails(bl_ring_set_control(ring_name("switch"), 0, &err), BL_ERR_STATE, "no ring");
}

/* An engine built against the first header passes a shorter struct; one of the future a longer one. */
static void structs_of_other_versions(void **state) {
    (void)state;
    struct {
        bl_trace_options options;
        char later[64];
    } future = {.options = options_for(4, BL_TRACE_COUNTS)};
    bl_trace_options first = options_for(4, BL_TRACE_COUNTS);
    bl_tracer *tracer = NULL;
    first.size = offsetof(bl_trace_options, source_domain);
    memset(&first.source_domain, 0xff, sizeof first - first.size); /* not ours to read */
    assert_int_equal(bl_trace_open(ring_name("old"), &first, &tracer), BL_OK);
    bl_trace_close(tracer);
    first.size--;
    assert_int_equal(bl_trace_open(ring_name("old"), &first, &tracer), BL_ERR_USAGE);
    future.options.size = sizeof future;
    assert_int_equal(bl_trace_open(ring_name("new"), &future.options, &tracer), BL_OK);
    bl_trace_close(tracer);
    future.options.flags = 1u << 30;
    assert_int_equal(bl_trace_open(ring_name("new"), &future.options, &tracer), BL_ERR_RANGE);
}

/* A child that inherited the tracer may close it; the parent goes on. */
static void a_forked_child_closes(void **state) {
    (void)state;
    const bl_trace_options options = options_for(4, 0);
    bl_tracer *tracer = open_tracer("fork", &options);
    bl_recorder *recorder = open_recorder("fork", "fork.blt");
    const pid_t child = fork();
    if (child == 0) {
        bl_trace_close(tracer);
        _exit(0);
    }
    int how = 1;
    assert_int_equal(waitpid(child, &how, 0), child);
    assert_int_equal(how, 0);
    bl_trace_step_begin(tracer, 0, BL_PHASE_DECODE, 0);
    assert_int_equal(bl_trace_push(tracer, 3, golden, 4, 4, 8), BL_OK);
    bl_trace_step_end(tracer);
    bl_recorder_totals totals;
    bl_stream *stream = finish(tracer, recorder, "fork.blt", &totals);
    assert_int_equal(totals.written, 1);
    next(stream);
    assert_end(stream);
}

/* Forked within a step: what the child may not do is refused, and its close leaves the parent's step and
 * counters alone. */
static void a_child_forked_within_a_step(void **state) {
    (void)state;
    const bl_trace_options options = options_for(4, 0);
    bl_tracer *tracer = open_tracer("forkstep", &options);
    bl_recorder *recorder = open_recorder("forkstep", "forkstep.blt");
    bl_trace_step_begin(tracer, 0, BL_PHASE_DECODE, 0);
    assert_int_equal(bl_trace_push(tracer, 3, golden, 4, 4, 8), BL_OK);
    const pid_t child = fork();
    if (child == 0) {
        const bl_trace_map map = BL_TRACE_MAP_INIT;
        const int refused = bl_trace_step_begin(tracer, 1, BL_PHASE_DECODE, 0) == BL_ERR_STATE &&
                            bl_trace_set_map(tracer, &map) == BL_ERR_STATE;
        bl_trace_close(tracer);
        _exit(!refused);
    }
    int how = 1;
    assert_int_equal(waitpid(child, &how, 0), child);
    assert_int_equal(how, 0);
    bl_trace_counters counters;
    assert_int_equal(bl_trace_read_counters(tracer, &counters), BL_OK);
    assert_int_equal(counters.pushed, 0); /* the child has ended no step */
    assert_int_equal(bl_trace_push(tracer, 7, golden, 4, 4, 8), BL_OK);
    assert_int_equal(bl_trace_step_end(tracer), BL_OK);
    bl_recorder_totals totals;
    bl_stream *stream = finish(tracer, recorder, "forkstep.blt", &totals);
    assert_int_equal(totals.pushed, 2);
    assert_int_equal(totals.written, 2);
    assert_int_equal(next(stream).layer, 3);
    assert_int_equal(next(stream).layer, 7);
    assert_end(stream);
}

/* A child that outlives an engine's fork (a server that puts itself into the background) traces no more. */
static void a_child_cannot_go_on(void **state) {
    (void)state;
    const bl_trace_options options = options_for(4, 0);
    bl_tracer *tracer = open_tracer("forkgo", &options);
    const pid_t child = fork();
    if (child == 0)
        _exit(bl_trace_step_begin(tracer, 0, BL_PHASE_DECODE, 0) != BL_ERR_STATE);
    int how = 1;
    assert_int_equal(waitpid(child, &how, 0), child);
    assert_int_equal(how, 0);
    assert_int_equal(bl_trace_step_begin(tracer, 0, BL_PHASE_DECODE, 0), BL_OK);
    bl_trace_close(tracer);
}

/* What would end the recording of a whole host, or overflow, is refused by the call that says it. */
static void options_out_of_range(void **state) {
    (void)state;
    char longest[129];
    memset(longest, 'm', sizeof longest);
    longest[128] = '\0';
    const char *const refused[] = {longest,    "a\nb",     "\x7f",         "\xff",
                                   "\xc0\x80", "\xe2\x82", "\xed\xa0\x80", "\xf4\x90\x80\x80"};
    bl_tracer *tracer = NULL;
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        bl_trace_options options = options_for(4, 0);
        options.model = refused[i];
        assert_int_equal(bl_trace_open(ring_name("range"), &options, &tracer), BL_ERR_RANGE);
    }
    const char *const fine[] = {"", longest + 1, "mod\xc3\xa8le \xe2\x82\xac \xf0\x9f\x90\x8b"};
    for (size_t i = 0; i < sizeof fine / sizeof *fine; i++) {
        bl_trace_options options = options_for(4, 0);
        options.model = fine[i];
        assert_int_equal(bl_trace_open(ring_name("range"), &options, &tracer), BL_OK);
        bl_trace_close(tracer);
    }
    bl_trace_options wrong[4];
    for (int i = 0; i < 4; i++)
        wrong[i] = options_for(4, 0);
    wrong[0].n_ranks = 65537;
    wrong[1].source_domain = -2;
    wrong[2].run = UINT32_MAX;
    wrong[3].sample_burst = 1u << 24;
    for (int i = 0; i < 4; i++)
        assert_int_equal(bl_trace_open(ring_name("range"), &wrong[i], &tracer), BL_ERR_RANGE);
}

static void arguments_out_of_range(void **state) {
    (void)state;
    const bl_trace_options options = options_for(4, 0);
    bl_tracer *tracer = open_tracer("args", &options);
    assert_int_equal(bl_trace_read_counters(tracer, NULL), BL_ERR_USAGE);
    assert_int_equal(bl_trace_read_counters(NULL, NULL), BL_ERR_USAGE);
    assert_int_equal(bl_trace_step_begin(tracer, UINT64_MAX, BL_PHASE_DECODE, 0), BL_ERR_RANGE);
    assert_int_equal(bl_trace_step_begin(tracer, UINT64_MAX - 1, BL_PHASE_DECODE, 0), BL_OK);
    assert_int_equal(bl_trace_push(tracer, 3, golden, 4, 2, SIZE_MAX), BL_ERR_RANGE);
    assert_int_equal(bl_trace_push(tracer, 3, golden, 4, SIZE_MAX, 8), BL_ERR_RANGE);
    bl_trace_rows rows = BL_TRACE_ROWS_INIT;
    rows.ids = rows.weights = golden;
    rows.n_tokens = 2;
    rows.row_bytes = 8;
    rows.weight_row_bytes = SIZE_MAX - 3;
    assert_int_equal(bl_trace_push_rows(tracer, 3, &rows), BL_ERR_RANGE);
    assert_int_equal(bl_trace_step_end(tracer), BL_OK);
    bl_trace_close(tracer);
}

/* Where every drop was: rank 0, layers 3 and 7, steps 2 to 5 and 8. */
static void every_drop_has_its_place(void **state) {
    (void)state;
    bl_error err;
    bl_trace_options options = options_for(4, 0);
    options.ring_bytes = 4096;
    bl_tracer *tracer = open_tracer("place", &options);
    bl_recorder *recorder = open_recorder("place", "place.blt");
    static int32_t ids[4000];
    for (int i = 0; i < 4000; i++)
        ids[i] = i % 4;
    for (uint64_t step = 0; step < 9; step++) {
        const bool large = (step >= 2 && step <= 5) || step == 8;
        uint64_t n;
        bl_trace_step_begin(tracer, step, BL_PHASE_DECODE, 0);
        for (int l = 0; l < 2; l++)
            bl_trace_push(tracer, LAYERS[l], ids, 4, large ? 2000 : 4, 8);
        if (step == 3) /* a micro-batch more */
            bl_trace_push(tracer, 7, ids, 4, 4, 8);
        bl_trace_step_end(tracer);
        assert_ok(bl_recorder_poll(recorder, &n, &err));
    }
    bl_recorder_totals totals;
    bl_stream *stream = finish(tracer, recorder, "place.blt", &totals);
    assert_int_equal(totals.dropped, 11);
    const struct {
        uint64_t step;
        int layer;
        uint64_t dropped;
    } want[] = {{0, 3, 0}, {0, 7, 0}, {1, 3, 0}, {1, 7, 0}, {5, 3, 4}, {5, 7, 5},
                {6, 3, 0}, {6, 7, 0}, {7, 3, 0}, {7, 7, 0}, {8, 3, 1}, {8, 7, 1}};
    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++) {
        const bl_record record = next(stream);
        assert_int_equal(record.step, want[i].step);
        assert_int_equal(record.layer, want[i].layer);
        assert_int_equal(record.dropped, want[i].dropped);
        assert_int_equal(record.n_tokens, want[i].dropped > 0 ? 0 : 4);
    }
    assert_int_equal(bl_stream_dropped(stream), 11);
    assert_end(stream);
}

/* Counters may be read by any thread while another one traces. */
static void *read_counters(void *user) {
    const bl_tracer *tracer = user;
    bl_trace_counters counters = {0};
    while (counters.pushed < 4000)
        bl_trace_read_counters(tracer, &counters);
    return NULL;
}

static void counters_from_another_thread(void **state) {
    (void)state;
    const bl_trace_options options = options_for(4, 0);
    bl_tracer *tracer = open_tracer("counters", &options);
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, read_counters, tracer), 0);
    for (uint64_t step = 0; step < 2000; step++) {
        bl_trace_step_begin(tracer, step, BL_PHASE_DECODE, 0);
        for (int l = 0; l < 2; l++)
            bl_trace_push(tracer, LAYERS[l], golden, 4, 4, 8);
        bl_trace_step_end(tracer);
    }
    assert_int_equal(pthread_join(thread, NULL), 0);
    bl_trace_counters counters;
    bl_trace_read_counters(tracer, &counters);
    assert_int_equal(counters.pushed, counters.kept + counters.dropped);
    bl_trace_close(tracer);
}

static void nothing_happens_without_a_tracer(void **state) {
    (void)state;
    const bl_trace_rows rows = BL_TRACE_ROWS_INIT;
    const bl_trace_stages stages = BL_TRACE_STAGES_INIT;
    const bl_trace_map map = BL_TRACE_MAP_INIT;
    bl_trace_counters counters;
    assert_int_equal(bl_trace_step_begin(NULL, 0, 0, 0), BL_OK);
    assert_int_equal(bl_trace_push(NULL, 0, NULL, 0, 0, 0), BL_OK);
    assert_int_equal(bl_trace_push_rows(NULL, 0, &rows), BL_OK);
    assert_int_equal(bl_trace_stage_times(NULL, 0, &stages), BL_OK);
    assert_int_equal(bl_trace_set_map(NULL, &map), BL_OK);
    assert_int_equal(bl_trace_step_end(NULL), BL_OK);
    assert_int_equal(bl_trace_read_counters(NULL, &counters), BL_OK);
    assert_int_equal(counters.pushed, 0);
    bl_trace_close(NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(weights_travel_with_ids),
        cmocka_unit_test(floats_become_the_nearest_halves),
        cmocka_unit_test(stage_times_go_to_their_layer),
        cmocka_unit_test(each_record_under_its_own_map),
        cmocka_unit_test(impossible_maps_are_refused),
        cmocka_unit_test(counts_are_what_ids_would_give),
        cmocka_unit_test(counts_with_a_bad_id_are_rejected),
        cmocka_unit_test(sampling_keeps_whole_steps),
        cmocka_unit_test(modes_are_switched_while_it_runs),
        cmocka_unit_test(structs_of_other_versions),
        cmocka_unit_test(a_forked_child_closes),
        cmocka_unit_test(a_child_forked_within_a_step),
        cmocka_unit_test(a_child_cannot_go_on),
        cmocka_unit_test(options_out_of_range),
        cmocka_unit_test(arguments_out_of_range),
        cmocka_unit_test(every_drop_has_its_place),
        cmocka_unit_test(counters_from_another_thread),
        cmocka_unit_test(nothing_happens_without_a_tracer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
