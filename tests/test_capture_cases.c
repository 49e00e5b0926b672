/* What goes wrong for people who trace, on the live path: engine -> ring -> recorder -> loads. The
 * right values are worked out by hand. */
#include "tests/support/support.h"

#include "ballast.h"
#include "tracer/loads.h"
#include "tracer/recorder.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct rank_of {
    char name[64];
    bl_tracer *tracer;
} rank_of;

/* Ranks of one engine, and a recorder that has attached to those in `recorded` (a bit each). */
typedef struct engine {
    rank_of ranks[4];
    int n_ranks;
    bl_recorder *recorder;
    char directory[512];
} engine;

static engine start(const char *what, const int *layers, int n_layers, int n_experts, int k,
                    int n_ranks, unsigned recorded) {
    bl_error err;
    engine e = {.n_ranks = n_ranks};
    bl_recorder_options how = BL_RECORDER_OPTIONS_INIT;
    snprintf(e.directory, sizeof e.directory, "%s", bl_test_temp(what));
    assert_int_equal(mkdir(e.directory, 0777), 0);
    how.directory = e.directory;
    assert_ok(bl_recorder_open(&how, &e.recorder, &err));
    for (int rank = 0; rank < n_ranks; rank++) {
        bl_trace_options options = BL_TRACE_OPTIONS_INIT;
        options.model = "cases";
        options.n_experts = n_experts;
        options.top_k = k;
        options.layers = layers;
        options.n_layers = n_layers;
        options.rank = rank;
        options.n_ranks = n_ranks;
        options.ring_bytes = 1 << 20;
        snprintf(e.ranks[rank].name, sizeof e.ranks[rank].name, "test-%ld-%s.%d", (long)getpid(),
                 what, rank);
        assert_int_equal(bl_trace_open(e.ranks[rank].name, &options, &e.ranks[rank].tracer), BL_OK);
        if (recorded >> rank & 1)
            assert_ok(bl_recorder_attach(e.recorder, e.ranks[rank].name, &err));
    }
    return e;
}

static void push(engine *e, int rank, int layer, const int32_t *ids, size_t n_tokens, int k) {
    assert_int_equal(bl_trace_push(e->ranks[rank].tracer, layer, ids, 4, n_tokens, 4 * (size_t)k),
                     BL_OK);
}

static void stop(engine *e) {
    bl_error err;
    bl_recorder_totals totals;
    for (int rank = 0; rank < e->n_ranks; rank++)
        bl_trace_close(e->ranks[rank].tracer);
    assert_ok(bl_recorder_finish(e->recorder, &totals, &err));
    assert_int_equal(totals.pushed, totals.written + totals.rejected + totals.dropped);
}

static bl_status read_loads(const engine *e, bl_loads *loads, bl_error *err) {
    const char *path = e->directory;
    const bl_loads_options all = BL_LOADS_OPTIONS_INIT;
    return bl_loads_read(&path, 1, NULL, &all, loads, err);
}

/* vllm #38128: rows [0,1],[2,-1],[-1,-1], of which 2 are valid: counts 1, 1, 1. */
static void rows_with_holes_and_padding(void **state) {
    (void)state;
    bl_error err;
    const int layers[] = {0};
    const int32_t rows[] = {0, 1, 2, -1, -1, -1};
    engine e = start("holes", layers, 1, 4, 2, 1, 1);
    bl_trace_step_begin(e.ranks[0].tracer, 0, BL_PHASE_DECODE, 0);
    push(&e, 0, 0, rows, 2, 2);
    bl_trace_step_end(e.ranks[0].tracer);
    stop(&e);
    bl_loads loads = {0};
    assert_ok(read_loads(&e, &loads, &err));
    const uint64_t want[] = {1, 1, 1, 0};
    assert_memory_equal(bl_loads_row(&loads, 0, 0), want, sizeof want);
    assert_true(loads.usable[0]);
    assert_int_equal(loads.tokens, 2);
    bl_loads_free(&loads);
}

/* vllm #21883: 2 ranks x 10 tokens x k = 2: every layer sums to 40; a layer where a rank pushed only a
 * half of them is named. */
static void every_layer_sums_to_forty(void **state) {
    (void)state;
    bl_error err;
    const int layers[] = {0, 1, 2};
    int32_t ids[20];
    for (int i = 0; i < 20; i++)
        ids[i] = i % 4;
    for (int broken = 0; broken < 2; broken++) {
        engine e = start(broken ? "forty1" : "forty0", layers, 3, 4, 2, 2, 3);
        for (int rank = 0; rank < 2; rank++) {
            bl_trace_step_begin(e.ranks[rank].tracer, 0, BL_PHASE_DECODE, 0);
            for (int l = 0; l < 3; l++)
                push(&e, rank, l, ids, broken && rank == 1 && l == 2 ? 5 : 10, 2);
            bl_trace_step_end(e.ranks[rank].tracer);
        }
        stop(&e);
        bl_loads loads = {0};
        assert_ok(read_loads(&e, &loads, &err));
        for (int l = 0; l < 3; l++) {
            uint64_t sum = 0;
            for (int expert = 0; expert < 4; expert++)
                sum += bl_loads_row(&loads, 0, l)[expert];
            assert_int_equal(sum, broken && l == 2 ? 30 : 40);
            assert_int_equal(loads.usable[l], !(broken && l == 2));
        }
        if (broken)
            bl_test_has(loads.why[2], "rank 1: 5 tokens where other layers saw 10");
        bl_loads_free(&loads);
    }
}

/* sgl #5275: 4 ranks, one is not recorded. */
static void a_rank_that_is_missing(void **state) {
    (void)state;
    bl_error err;
    const int layers[] = {0};
    const int32_t ids[] = {0, 1};
    engine e = start("fourth", layers, 1, 4, 2, 4, 11);
    for (int rank = 0; rank < 4; rank++) {
        bl_trace_step_begin(e.ranks[rank].tracer, 0, BL_PHASE_DECODE, 0);
        push(&e, rank, 0, ids, 1, 2);
        bl_trace_step_end(e.ranks[rank].tracer);
    }
    stop(&e);
    bl_loads loads = {0};
    assert_ok(read_loads(&e, &loads, &err));
    assert_false(loads.complete);
    assert_string_equal(loads.notes, "incomplete: rank 2");
    bl_loads_free(&loads);
}

/* kvcache-ai/sglang #45: 58 layers expected, only layer 0 has counts. */
static void only_the_first_layer_has_counts(void **state) {
    (void)state;
    bl_error err;
    int layers[58];
    const int32_t ids[] = {0, 1};
    for (int l = 0; l < 58; l++)
        layers[l] = l;
    engine e = start("first", layers, 58, 4, 2, 1, 1);
    bl_trace_step_begin(e.ranks[0].tracer, 0, BL_PHASE_DECODE, 0);
    push(&e, 0, 0, ids, 1, 2);
    bl_trace_step_end(e.ranks[0].tracer);
    stop(&e);
    bl_loads loads = {0};
    assert_ok(read_loads(&e, &loads, &err));
    for (int l = 1; l < 58; l++) {
        assert_false(loads.usable[l]);
        bl_test_has(loads.why[l], "no records");
    }
    bl_loads_free(&loads);
}

/* sgl #35766: dummy ranks are no load. A step without tokens is absent, and no traffic at all is an
 * error and not a plan. */
static void steps_that_are_no_load(void **state) {
    (void)state;
    bl_error err;
    const int layers[] = {0};
    const int32_t ids[] = {0, 1, 2, 3, 0, 1};
    for (int idle = 0; idle < 2; idle++) {
        engine e = start(idle ? "idle1" : "idle0", layers, 1, 4, 2, 2, 3);
        for (int rank = 0; rank < 2; rank++) {
            for (uint64_t step = 0; step < 3; step++) {
                const bool dummy = idle || rank == 1;
                bl_trace_step_begin(e.ranks[rank].tracer, step, BL_PHASE_DECODE,
                                    dummy ? BL_STEP_DUMMY : 0);
                push(&e, rank, 0, ids, step == 1 ? 0 : 3, 2);
                bl_trace_step_end(e.ranks[rank].tracer);
            }
        }
        stop(&e);
        bl_loads loads = {0};
        if (idle) {
            assert_fails(read_loads(&e, &loads, &err), BL_ERR_CONSERVATION, "no tokens");
            continue;
        }
        assert_ok(read_loads(&e, &loads, &err));
        assert_int_equal(loads.n_steps, 2);
        const uint64_t want[] = {2, 2, 1, 1};
        assert_memory_equal(bl_loads_row(&loads, 0, 0), want, sizeof want);
        assert_memory_equal(bl_loads_row(&loads, 1, 0), want, sizeof want);
        bl_loads_free(&loads);
    }
}

/* prime-rl #3051: no id is reserved. 256 experts with id 255 and an empty slot beside it; 512; 65 536. */
static void no_id_is_reserved(void **state) {
    (void)state;
    bl_error err;
    const int layers[] = {5};
    static const int sizes[] = {256, 512, 65536};
    for (int i = 0; i < 3; i++) {
        char what[32];
        const int32_t ids[] = {sizes[i] - 1, -1, 0, sizes[i] - 1};
        snprintf(what, sizeof what, "reserved%d", i);
        engine e = start(what, layers, 1, sizes[i], 2, 1, 1);
        bl_trace_step_begin(e.ranks[0].tracer, 0, BL_PHASE_DECODE, 0);
        push(&e, 0, 5, ids, 2, 2);
        bl_trace_step_end(e.ranks[0].tracer);
        stop(&e);
        bl_loads loads = {0};
        assert_ok(read_loads(&e, &loads, &err));
        const uint64_t *row = bl_loads_row(&loads, 0, 0);
        uint64_t sum = 0;
        for (int expert = 0; expert < sizes[i]; expert++)
            sum += row[expert];
        assert_int_equal(row[sizes[i] - 1], 2);
        assert_int_equal(row[0], 1);
        assert_int_equal(sum, 3);
        bl_loads_free(&loads);
    }
}

/* vllm #48622: a target and its draft both have a layer 0: they are two models, and one recorder does
 * not mix them. */
static void two_models_are_kept_apart(void **state) {
    (void)state;
    bl_error err;
    const int layers[] = {0};
    engine e = start("two", layers, 1, 4, 2, 1, 1);
    bl_trace_options options = BL_TRACE_OPTIONS_INIT;
    char name[64];
    bl_tracer *draft = NULL;
    options.model = "draft";
    options.n_experts = 4;
    options.top_k = 2;
    options.layers = layers;
    options.n_layers = 1;
    options.ring_bytes = 4096;
    snprintf(name, sizeof name, "test-%ld-draft", (long)getpid());
    assert_int_equal(bl_trace_open(name, &options, &draft), BL_OK);
    assert_fails(bl_recorder_attach(e.recorder, name, &err), BL_ERR_MODEL, "draft");
    bl_trace_close(draft);
    bl_trace_step_begin(e.ranks[0].tracer, 0, BL_PHASE_DECODE, 0);
    push(&e, 0, 0, (const int32_t[]){0, 1}, 1, 2);
    bl_trace_step_end(e.ranks[0].tracer);
    stop(&e);
}

/* sgl #18587, small: 10 million ids through a ring of 1 MiB whose recorder comes by now and then. */
static void many_ids_through_a_small_ring(void **state) {
    (void)state;
    bl_error err;
    const int layers[] = {0};
    static int32_t ids[1000];
    for (int i = 0; i < 1000; i++)
        ids[i] = i % 4;
    engine e = start("flood", layers, 1, 4, 2, 1, 1);
    for (uint64_t step = 0; step < 10000; step++) {
        uint64_t n;
        bl_trace_step_begin(e.ranks[0].tracer, step, BL_PHASE_DECODE, 0);
        push(&e, 0, 0, ids, 500, 2);
        bl_trace_step_end(e.ranks[0].tracer);
        if (step % 2000 == 0)
            assert_ok(bl_recorder_poll(e.recorder, &n, &err));
    }
    bl_trace_counters counters;
    bl_trace_read_counters(e.ranks[0].tracer, &counters);
    assert_true(counters.dropped > 1000);
    stop(&e);
    bl_loads loads = {0};
    assert_ok(read_loads(&e, &loads, &err));
    assert_int_equal(loads.dropped, counters.dropped);
    assert_int_equal(loads.tokens, counters.kept * 500);
    assert_true(loads.usable[0]);
    bl_loads_free(&loads);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_with_holes_and_padding),
        cmocka_unit_test(every_layer_sums_to_forty),
        cmocka_unit_test(a_rank_that_is_missing),
        cmocka_unit_test(only_the_first_layer_has_counts),
        cmocka_unit_test(steps_that_are_no_load),
        cmocka_unit_test(no_id_is_reserved),
        cmocka_unit_test(two_models_are_kept_apart),
        cmocka_unit_test(many_ids_through_a_small_ring),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
