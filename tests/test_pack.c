/* What the packing kernels do, thread by thread on the CPU (tracer/pack.h): valid tokens, steps,
 * phases and epochs come from a block that changes between replays of launches whose arguments do not;
 * what arrives is what a router picked, or is counted. */
#include "tests/support/support.h"

#include "tracer/capture.h"
#include "tracer/recorder.h"
#include "tracer/stream.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { N_LAYERS = 2, K = 2, MAX_TOKENS = 64 };
static const int LAYERS[N_LAYERS] = {3, 7};

static const char *ring_name(const char *what) {
    static char name[64];
    snprintf(name, sizeof name, "test-%ld-%s", (long)getpid(), what);
    return name;
}

static bl_tracer *open_tracer(const char *what, int n_experts, size_t bytes) {
    bl_trace_options options = BL_TRACE_OPTIONS_INIT;
    bl_tracer *tracer = NULL;
    options.model = "test";
    options.n_experts = n_experts;
    options.top_k = K;
    options.layers = LAYERS;
    options.n_layers = N_LAYERS;
    options.ring_bytes = bytes;
    assert_int_equal(bl_trace_open(ring_name(what), &options, &tracer), BL_OK);
    return tracer;
}

static bl_pack_device device_for(bl_tracer *tracer) {
    bl_ring_memory *m = tracer->ring.memory;
    static uint32_t counts[512]; /* device memory is not zeroed */
    memset(counts, 0xee, sizeof counts);
    return (bl_pack_device){.ring = tracer->ring.pack,
                            .drops = &m->drops,
                            .counters = &m->counters,
                            .control = &m->control,
                            .counts = counts,
                            .n_layers = N_LAYERS,
                            .n_ids = tracer->n_experts,
                            .k = K,
                            .width = bl_capture_width(tracer->n_experts)};
}

/* One captured push: everything but `block` and the contents of `ids` is as it was at capture. The
 * slots are visited backwards, since threads have no order. */
static void replay_push(bl_pack_device *d, const bl_pack_block *block, int layer, const void *ids,
                        int id_bytes, uint32_t max_tokens, uint64_t row_bytes) {
    bl_pack_begin_layer(d, block, max_tokens);
    if (d->entry == NULL) {
        bl_pack_end_layer(d, block, layer);
        return;
    }
    const uint64_t slots = (uint64_t)d->n_tokens * (uint64_t)d->k;
    for (int id = 0; d->counting && id < d->n_ids; id++)
        d->counts[id] = 0;
    for (uint64_t slot = slots; slot-- > 0;) {
        int64_t id = 0;
        const int what = d->counting ? bl_pack_counted(d, slot, ids, id_bytes, row_bytes, &id)
                                     : bl_pack_slot(d, slot, ids, id_bytes, row_bytes);
        if (d->counting && what == 0)
            d->counts[id]++;
        d->n_empty += what == 1;
        if (what == 2) {
            d->has_bad = 1;
            d->bad_id = bl_pack_id((const unsigned char *)ids + slot / K * row_bytes +
                                       slot % K * (uint64_t)id_bytes,
                                   id_bytes);
        }
    }
    for (int id = 0; d->counting && id < d->n_ids; id++)
        bl_pack_store_count(d, (uint64_t)id);
    for (uint64_t at = 0; !d->counting && d->n_empty > 0 && at < (slots + 7) / 8; at++)
        bl_pack_bitmap_byte(d, at, ids, id_bytes, row_bytes);
    bl_pack_end_layer(d, block, layer);
}

static void replay_step(bl_pack_device *d, const bl_pack_block *block, const int32_t *ids) {
    bl_pack_begin_step(d, block);
    for (int l = 0; l < N_LAYERS; l++)
        replay_push(d, block, LAYERS[l], ids, 4, MAX_TOKENS, 4 * K);
    bl_pack_end_step(d);
}

static bl_stream *record_all(bl_tracer *tracer, const char *what, bl_recorder_totals *totals) {
    bl_error err;
    bl_recorder *recorder = NULL;
    bl_stream *stream = NULL;
    assert_ok(bl_recorder_create(bl_test_temp(what), &recorder, &err));
    assert_ok(bl_recorder_attach(recorder, ring_name(what), &err));
    bl_trace_close(tracer);
    assert_ok(bl_recorder_finish(recorder, totals, &err));
    assert_int_equal(totals->pushed,
                     totals->written + totals->rejected + totals->dropped + totals->skipped);
    assert_ok(bl_stream_open(bl_test_temp(what), &stream, &err));
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

static void fill(int32_t *ids, uint64_t step, int n_experts) {
    for (int token = 0; token < MAX_TOKENS; token++) {
        ids[K * token] = (int32_t)((step * 31 + (uint64_t)token) % (uint64_t)n_experts);
        ids[K * token + 1] = (ids[K * token] + 1) % n_experts;
    }
}

/* A replayed graph: 1, 64, 0, 17 ... valid tokens of a buffer of 64, rows behind them stale. */
static void a_replay_sees_the_block_and_not_its_capture(void **state) {
    (void)state;
    static const uint32_t tokens[] = {1, 64, 0, 17, 8, 63};
    for (int n_experts = 256; n_experts <= 512; n_experts *= 2) {
        bl_tracer *tracer = open_tracer("replay", n_experts, 1 << 16);
        bl_pack_device d = device_for(tracer);
        int32_t ids[MAX_TOKENS * K];
        for (uint64_t i = 0; i < 6; i++) {
            fill(ids, i, n_experts);
            const bl_pack_block block = {.step = 10 + i,
                                         .epoch = i / 2,
                                         .n_tokens = tokens[i],
                                         .phase = i % 2 ? BL_PHASE_DECODE : BL_PHASE_PREFILL,
                                         .flags = i == 4 ? BL_STEP_DUMMY : 0};
            replay_step(&d, &block, ids);
        }
        bl_recorder_totals totals;
        bl_stream *stream = record_all(tracer, "replay", &totals);
        assert_int_equal(totals.written, 12);
        for (uint64_t i = 0; i < 6; i++) {
            fill(ids, i, n_experts);
            for (int l = 0; l < N_LAYERS; l++) {
                const bl_record record = next(stream);
                assert_int_equal(record.step, 10 + i);
                assert_int_equal(record.layer, LAYERS[l]);
                assert_int_equal(record.epoch, i / 2);
                assert_int_equal(record.phase, i % 2 ? BL_PHASE_DECODE : BL_PHASE_PREFILL);
                assert_int_equal(record.flags, i == 4 ? BL_RECORD_DUMMY : 0);
                assert_int_equal(record.n_tokens, tokens[i]);
                if (tokens[i] > 0)
                    assert_memory_equal(record.ids, ids, tokens[i] * K * sizeof *ids);
            }
        }
        bl_stream_free(stream);
    }
}

/* Empty slots, an id that is no expert, and a count beyond the buffer. */
static void what_is_unusual_is_told(void **state) {
    (void)state;
    bl_tracer *tracer = open_tracer("unusual", 256, 1 << 16);
    bl_pack_device d = device_for(tracer);
    const int64_t ids[] = {0, 255, 7, -1, -1, -1, 9, 8, 1, 2}, bad[] = {1, 256};
    bl_pack_block block = {.step = 1, .n_tokens = 5, .phase = BL_PHASE_DECODE};
    bl_pack_begin_step(&d, &block);
    replay_push(&d, &block, 3, ids, 8, 5, 8 * K);
    replay_push(&d, &block, 7, ids, 8, 4, 8 * K); /* 5 tokens in a buffer of 4 */
    bl_pack_end_step(&d);
    block.step = 2;
    block.n_tokens = 1;
    bl_pack_begin_step(&d, &block);
    replay_push(&d, &block, 3, bad, 8, 5, 8 * K);
    bl_pack_end_step(&d);
    bl_recorder_totals totals;
    bl_stream *stream = record_all(tracer, "unusual", &totals);
    assert_int_equal(totals.rejected, 2);
    bl_test_has(totals.why_rejected, "id 5 is not");
    const bl_record record = next(stream);
    const int32_t want[] = {0, 255, 7, -1, -1, -1, 9, 8, 1, 2};
    assert_int_equal(record.n_empty, 3);
    assert_memory_equal(record.ids, want, sizeof want);
    bl_stream_free(stream);
}

/* Switched from outside while a graph is replayed: step 0 as ids, 1 and 2 as counts, 3 as ids. An id that is
 * no expert makes its record a rejected one. */
static void counts_are_what_ids_would_give(void **state) {
    (void)state;
    bl_tracer *tracer = open_tracer("counts", 256, 1 << 16);
    bl_pack_device d = device_for(tracer);
    const int32_t ids[] = {0, 255, 7, -1, 0, 9, 255, 0}, bad[] = {1, 256, 0, 2, 0, 2, 0, 2};
    for (uint64_t step = 0; step < 4; step++) {
        const bl_pack_block block = {.step = step, .n_tokens = 4, .phase = BL_PHASE_DECODE};
        BL_PACK_STORE(d.control,
                      bl_control_word(1, 1, step == 1 || step == 2 ? BL_MODE_COUNTS : BL_MODE_IDS));
        bl_pack_begin_step(&d, &block);
        replay_push(&d, &block, 3, ids, 4, 5, 4 * K);
        replay_push(&d, &block, 7, step == 2 ? bad : ids, 4, 5, 4 * K);
        bl_pack_end_step(&d);
    }
    bl_recorder_totals totals;
    bl_stream *stream = record_all(tracer, "counts", &totals);
    assert_int_equal(totals.written, 7);
    assert_int_equal(totals.rejected, 1);
    bl_test_has(totals.why_rejected, "id 256 is not");
    for (int i = 0; i < 7; i++) {
        const bl_record record = next(stream);
        const int step = i < 5 ? i / 2 : 3;
        assert_int_equal(record.step, step);
        assert_int_equal(record.layer, i == 6 || (i < 5 && i % 2 == 1) ? 7 : 3);
        assert_int_equal(record.n_tokens, 4);
        assert_int_equal(record.n_empty, 1);
        if (step == 0 || step == 3) {
            assert_memory_equal(record.ids, ids, sizeof ids);
            continue;
        }
        assert_null(record.ids);
        for (int id = 0; id < 256; id++)
            assert_int_equal(record.counts[id], id == 0 ? 3 : id == 255 ? 2 : id == 7 || id == 9);
    }
    bl_stream_free(stream);
}

/* A small ring: laps with fillers, whole steps dropped and placed, sampling honoured. */
static void a_full_ring_counts_on_the_device_too(void **state) {
    (void)state;
    bl_error err;
    bl_tracer *tracer = open_tracer("wrap", 256, 4096);
    bl_pack_device d = device_for(tracer);
    bl_recorder *recorder = NULL;
    int32_t ids[MAX_TOKENS * K];
    assert_ok(bl_recorder_create(bl_test_temp("wrap"), &recorder, &err));
    assert_ok(bl_recorder_attach(recorder, ring_name("wrap"), &err));
    BL_PACK_STORE(d.control, bl_control_word(2, 3, BL_MODE_IDS));
    for (uint64_t step = 0; step < 600; step++) {
        const bl_pack_block block = {.step = step,
                                     .n_tokens = (uint32_t)(step * 7 % (MAX_TOKENS + 1)),
                                     .phase = BL_PHASE_DECODE};
        uint64_t n;
        fill(ids, step, 256);
        replay_step(&d, &block, ids);
        if (step % 25 == 24)
            assert_ok(bl_recorder_poll(recorder, &n, &err));
    }
    bl_trace_close(tracer);
    bl_recorder_totals totals;
    bl_stream *stream = NULL;
    assert_ok(bl_recorder_finish(recorder, &totals, &err));
    assert_int_equal(totals.pushed, 1200);
    assert_int_equal(totals.skipped, 600);
    assert_true(totals.dropped > 0 && totals.written > 0);
    assert_int_equal(totals.written + totals.dropped, 600);
    assert_ok(bl_stream_open(bl_test_temp("wrap"), &stream, &err));
    uint64_t records = 0, dropped = 0;
    for (;;) {
        bl_record record;
        bool got;
        assert_ok(bl_stream_next(stream, &record, &got, &err));
        if (!got)
            break;
        dropped += record.dropped;
        if (record.dropped > 0)
            continue;
        records++;
        assert_int_equal(record.step / 3 % 2, 0);
        fill(ids, record.step, 256);
        assert_int_equal(record.n_tokens, record.step * 7 % (MAX_TOKENS + 1));
        if (record.n_tokens > 0)
            assert_memory_equal(record.ids, ids, record.n_tokens * K * sizeof *ids);
    }
    assert_int_equal(records, totals.written);
    assert_int_equal(dropped, totals.dropped);
    bl_stream_free(stream);
}

/* The library of this build has no CUDA: the calls say so and change nothing. */
static void without_cuda_the_calls_say_so(void **state) {
    (void)state;
    bl_tracer *tracer = open_tracer("none", 256, 4096);
    bl_trace_cuda_block *block = NULL;
    const int st = bl_trace_cuda_open(tracer, &block);
    if (st == BL_OK)
        bl_trace_cuda_close(tracer);
    else
        assert_int_equal(st, BL_ERR_UNSUPPORTED);
    assert_int_equal(bl_trace_step_begin(tracer, 0, BL_PHASE_DECODE, 0), BL_OK);
    bl_trace_close(tracer);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_replay_sees_the_block_and_not_its_capture),
        cmocka_unit_test(what_is_unusual_is_told),
        cmocka_unit_test(counts_are_what_ids_would_give),
        cmocka_unit_test(a_full_ring_counts_on_the_device_too),
        cmocka_unit_test(without_cuda_the_calls_say_so),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
