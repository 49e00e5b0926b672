/* The trace file: what goes in comes out, whatever is cut or damaged is said, and loads add up. */
#include "tests/support/support.h"

#include "core/io.h"
#include "tests/support/traces.h"
#include "tracer/stream.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void golden_by_hand(void **state) {
    (void)state;
    const char *path = bl_test_temp("golden.blt");
    bl_test_write_golden(path);
    bl_loads loads = bl_test_loads(path);
    assert_int_equal(loads.n_steps, 1);
    assert_int_equal(loads.layers[0], 3);
    assert_int_equal(loads.tokens, 4);
    assert_true(loads.usable[0]);
    assert_true(loads.complete);
    assert_false(loads.composed);
    bl_test_row(&loads, 0, 0, (const uint64_t[]){3, 2, 2, 1});
    bl_loads_free(&loads);
}

/* Padding and empty slots are in nobody's load; a dummy rank is recorded and not counted. */
static void padding_and_dummy_are_no_load(void **state) {
    (void)state;
    bl_trace_info info = bl_test_info(1, (int[]){0}, 3, 2);
    const char *path = bl_test_temp("padding.blt");
    bl_blt_writer *writer = bl_test_create(path, &info);
    const int32_t rows[] = {0, 1, 2, -1, -1, -1};
    bl_test_put(writer, bl_test_record(0, 0, 0, 3, 2, 2, rows)); /* 2 of 3 rows are valid */
    bl_record dummy = bl_test_record(0, 0, 1, 3, 2, 2, rows);
    dummy.flags = BL_RECORD_DUMMY;
    bl_test_put(writer, dummy);
    bl_test_put(writer, bl_test_record(0, 0, 2, 3, 2, 0, NULL)); /* no tokens: in step, no load */
    bl_test_close(writer);
    bl_loads loads = bl_test_loads(path);
    bl_test_row(&loads, 0, 0, (const uint64_t[]){1, 1, 1});
    assert_int_equal(loads.tokens, 2);
    assert_true(loads.usable[0]);
    bl_loads_free(&loads);
    bl_trace_info_free(&info);
}

/* k equal ids come from zero-filled memory, never from a router. */
static void equal_ids_are_no_data(void **state) {
    (void)state;
    bl_trace_info info = bl_test_info(1, (int[]){0}, 4, 2);
    const char *path = bl_test_temp("zerotrap.blt");
    bl_blt_writer *writer = bl_test_create(path, &info);
    const int32_t rows[] = {0, 0, 1, 2, 3, 3};
    bl_test_put(writer, bl_test_record(0, 0, 0, 4, 2, 3, rows));
    bl_test_close(writer);
    bl_loads loads = bl_test_loads(path);
    bl_test_row(&loads, 0, 0, (const uint64_t[]){0, 1, 1, 0});
    assert_true(loads.usable[0]);
    bl_loads_free(&loads);
    bl_trace_info_free(&info);
}

static void ids_out_of_range_or_twice_are_refused(void **state) {
    (void)state;
    bl_error err;
    bl_trace_info info = bl_test_info(1, (int[]){17}, 4, 2);
    const char *path = bl_test_temp("range.blt");
    bl_blt_writer *writer = bl_test_create(path, &info);
    const int32_t physical[] = {4, 5};
    bl_record record = bl_test_record(0, 17, 0, 4, 2, 1, physical);
    assert_fails(bl_blt_write(writer, &record, &err), BL_ERR_RANGE, "id 4 is not a logical expert");
    assert_int_equal(err.layer, 17);
    bl_trace_info wide = bl_test_info(1, (int[]){17}, 4, 3);
    const int32_t twice[] = {1, 2, 1};
    record = bl_test_record(0, 17, 0, 4, 3, 1, twice);
    assert_fails(bl_blt_write(writer, &record, &err), BL_ERR_RANGE, "expert 1 twice");
    record = bl_test_record(0, 16, 0, 4, 2, 1, bl_test_golden);
    assert_fails(bl_blt_write(writer, &record, &err), BL_ERR_RANGE, "not an MoE layer");
    record = bl_test_record(0, 17, 0, 5, 2, 1, bl_test_golden);
    assert_fails(bl_blt_write(writer, &record, &err), BL_ERR_RANGE, "4 experts");
    bl_test_put(writer, bl_test_record(0, 17, 0, 4, 2, 4, bl_test_golden)); /* the writer goes on */
    bl_test_close(writer);
    bl_loads loads = bl_test_loads(path);
    bl_test_row(&loads, 0, 0, (const uint64_t[]){3, 2, 2, 1});
    bl_loads_free(&loads);
    bl_trace_info_free(&info);
    bl_trace_info_free(&wide);
}

/* Random rows come back bit by bit for any width of ids, with weights, times and empties. */
static void round_trip(int n_experts, int k) {
    bl_error err;
    enum { TOKENS = 50, RECORDS = 20 };
    bl_trace_info info = bl_test_info(2, (int[]){1, 5}, n_experts, k);
    const char *path = bl_test_temp("round.blt");
    const size_t slots = (size_t)TOKENS * (size_t)k;
    int32_t *ids = calloc(slots * RECORDS, sizeof *ids);
    uint16_t *weights = calloc(slots, sizeof *weights);
    assert_non_null(ids);
    assert_non_null(weights);
    uint64_t state = 7;
    for (size_t i = 0; i < slots * RECORDS; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        const int at = (int)(i % (size_t)k);
        ids[i] =
            (int32_t)(((state >> 33) % (unsigned)(n_experts / k)) * (unsigned)k + (unsigned)at);
        if ((state >> 20) % 11 == 0)
            ids[i] = -1;
        if (i % 97 == 0)
            ids[i] = n_experts - k + at; /* the highest ids appear */
        weights[i % slots] = (uint16_t)i;
    }
    const uint64_t times[BL_N_STAGES] = {1, 2, 3, 1ull << 40, 5, 6};
    bl_blt_writer *writer = bl_test_create(path, &info);
    for (int i = 0; i < RECORDS; i++) {
        bl_record record = bl_test_record((uint64_t)i / 2, i % 2 ? 5 : 1, 0, n_experts, k, TOKENS,
                                          ids + (size_t)i * slots);
        record.weights = i % 3 == 0 ? weights : NULL;
        record.stage_ns = i % 4 == 0 ? times : NULL;
        record.dropped = (uint64_t)i;
        record.run = 9;
        record.epoch = 77;
        bl_test_put(writer, record);
    }
    bl_test_close(writer);
    bl_blt_reader *reader;
    assert_ok(bl_blt_open(path, &reader, &err));
    for (int i = 0; i < RECORDS; i++) {
        bl_record got;
        bool more;
        assert_ok(bl_blt_next(reader, &got, &more, &err));
        assert_true(more);
        assert_int_equal(got.step, i / 2);
        assert_int_equal(got.layer, i % 2 ? 5 : 1);
        assert_int_equal(got.run, 9);
        assert_int_equal(got.epoch, 77);
        assert_int_equal(got.dropped, i);
        assert_int_equal(got.n_tokens, TOKENS);
        assert_memory_equal(got.ids, ids + (size_t)i * slots, slots * sizeof *ids);
        assert_int_equal(got.weights != NULL, i % 3 == 0);
        assert_int_equal(got.stage_ns != NULL, i % 4 == 0);
        if (got.weights != NULL)
            assert_memory_equal(got.weights, weights, slots * sizeof *weights);
        if (got.stage_ns != NULL)
            assert_memory_equal(got.stage_ns, times, sizeof times);
    }
    bl_record got;
    bool more;
    assert_ok(bl_blt_next(reader, &got, &more, &err));
    assert_false(more);
    assert_int_equal(bl_blt_dropped(reader), RECORDS * (RECORDS - 1) / 2);
    bl_blt_reader_free(reader);
    free(ids);
    free(weights);
    bl_trace_info_free(&info);
}

static void round_trips_at_all_widths(void **state) {
    (void)state;
    round_trip(64, 6);
    round_trip(256, 8); /* 255 is an expert, not a mark */
    round_trip(512, 8);
    round_trip(65536, 8);
    round_trip(4, 1);
}

/* 300 steps make several chunks; the reader holds one at a time and skips those it does not need.
 */
static void many_chunks_and_step_filter(void **state) {
    (void)state;
    bl_error err;
    enum { STEPS = 300, TOKENS = 1000 };
    bl_trace_info info = bl_test_info(1, (int[]){0}, 256, 8);
    const char *path = bl_test_temp("many.blt");
    int32_t *ids = calloc((size_t)TOKENS * 8, sizeof *ids);
    assert_non_null(ids);
    for (int i = 0; i < TOKENS * 8; i++)
        ids[i] = (int32_t)((i * 7 + i / 8 * 13) % 256);
    bl_blt_writer *writer = bl_test_create(path, &info);
    for (int step = 0; step < STEPS; step++)
        bl_test_put(writer, bl_test_record((uint64_t)step + 1000, 0, 0, 256, 8, TOKENS, ids));
    bl_test_close(writer);
    bl_loads loads = {0};
    bl_loads_options options = BL_LOADS_OPTIONS_INIT;
    options.first_step = 100;
    options.end_step = 110;
    options.except_first = 103;
    options.except_end = 105;
    assert_ok(bl_loads_read(&path, 1, NULL, &options, &loads, &err));
    assert_int_equal(loads.n_steps, 8);
    assert_int_equal(loads.trace_steps, STEPS);
    assert_int_equal(loads.step_id[2], 102);
    assert_int_equal(loads.step_id[3], 105);
    assert_int_equal(loads.tokens, 8 * TOKENS);
    bl_loads_free(&loads);
    options.phase = BL_PHASE_PREFILL;
    assert_fails(bl_loads_read(&path, 1, NULL, &options, &loads, &err), BL_ERR_RANGE, "phase");
    free(ids);
    bl_trace_info_free(&info);
}

/* One record too large for a chunk is split and comes back as several of one key. */
static void a_large_record_is_split(void **state) {
    (void)state;
    bl_error err;
    enum { TOKENS = 300000 };
    bl_trace_info info = bl_test_info(2, (int[]){0, 1}, 16, 4);
    const char *path = bl_test_temp("large.blt");
    int32_t *ids = calloc((size_t)TOKENS * 4, sizeof *ids);
    assert_non_null(ids);
    for (int i = 0; i < TOKENS * 4; i++)
        ids[i] = (int32_t)(i % 16);
    bl_blt_writer *writer = bl_test_create(path, &info);
    bl_test_put(writer, bl_test_record(0, 0, 0, 16, 4, TOKENS, ids));
    bl_test_put(writer, bl_test_record(0, 1, 0, 16, 4, TOKENS, ids));
    bl_test_close(writer);
    bl_blt_reader *reader;
    assert_ok(bl_blt_open(path, &reader, &err));
    size_t records = 0;
    for (;;) {
        bl_record got;
        bool more;
        assert_ok(bl_blt_next(reader, &got, &more, &err));
        if (!more)
            break;
        records++;
    }
    assert_int_equal(records, 4);
    bl_blt_reader_free(reader);
    bl_loads loads = bl_test_loads(path);
    assert_int_equal(loads.tokens, TOKENS);
    assert_true(loads.usable[0] && loads.usable[1]);
    for (int expert = 0; expert < 16; expert++)
        assert_int_equal(bl_loads_row(&loads, 0, 1)[expert], TOKENS / 4);
    bl_loads_free(&loads);
    free(ids);
    bl_trace_info_free(&info);
}

/* ---- maps ---------------------------------------------------------------------------------- */

static void write_map(bl_blt_writer *writer, uint64_t epoch, int32_t *expert) {
    bl_error err;
    const bl_layer_placement map = {.layer = 0,
                                    .epoch = epoch,
                                    .n_ranks = 2,
                                    .n_experts = 4,
                                    .begin = (int[]){0, 3, 6},
                                    .expert = expert};
    assert_ok(bl_blt_write_map(writer, &map, &err));
}

/* A trace across a rebalance: the same slots mean other experts before and after. */
static void each_record_under_its_own_map(void **state) {
    (void)state;
    bl_trace_info info = bl_test_info(1, (int[]){0}, 4, 2);
    const char *path = bl_test_temp("epochs.blt");
    bl_blt_writer *writer = bl_test_create(path, &info);
    const int32_t slots[] = {0, 5, 3, 1};
    write_map(writer, 0, (int32_t[]){0, 1, 2, 3, 0, 1});
    bl_record record = bl_test_record(0, 0, 0, 6, 2, 2, slots);
    record.flags = BL_RECORD_PHYSICAL;
    bl_test_put(writer, record); /* experts 0 1 3 1 */
    write_map(writer, 1, (int32_t[]){3, 2, 1, 0, 1, 2});
    record.step = 1;
    record.epoch = 1;
    bl_test_put(writer, record); /* experts 3 2 0 2 */
    record.step = 2;
    record.epoch = 0; /* a late record of the old epoch */
    bl_test_put(writer, record);
    bl_test_close(writer);
    bl_loads loads = bl_test_loads(path);
    assert_int_equal(loads.n_steps, 3);
    bl_test_row(&loads, 0, 0, (const uint64_t[]){1, 2, 0, 1});
    bl_test_row(&loads, 1, 0, (const uint64_t[]){1, 0, 2, 1});
    bl_test_row(&loads, 2, 0, (const uint64_t[]){1, 2, 0, 1});
    bl_loads_free(&loads);
    bl_trace_info_free(&info);
}

static void converting_twice_is_an_error(void **state) {
    (void)state;
    bl_error err;
    bl_trace_info info = bl_test_info(1, (int[]){0}, 4, 2);
    const char *path = bl_test_temp("twice.blt");
    bl_blt_writer *writer = bl_test_create(path, &info);
    const int32_t slots[] = {0, 5};
    write_map(writer, 0, (int32_t[]){0, 1, 2, 3, 0, 1});
    bl_record record = bl_test_record(0, 0, 0, 6, 2, 1, slots);
    record.flags = BL_RECORD_PHYSICAL;
    bl_test_put(writer, record);
    record.epoch = 8;
    bl_test_put(writer, record);
    bl_test_put(writer, bl_test_record(0, 0, 0, 4, 2, 4, bl_test_golden));
    bl_test_close(writer);
    bl_blt_reader *reader;
    bl_record got;
    bool more;
    assert_ok(bl_blt_open(path, &reader, &err));
    assert_ok(bl_blt_next(reader, &got, &more, &err));
    assert_ok(bl_blt_to_logical(reader, &got, &err));
    assert_int_equal(got.ids[1], 1);
    assert_int_equal(got.n_ids, 4);
    assert_fails(bl_blt_to_logical(reader, &got, &err), BL_ERR_STATE, "twice");
    assert_ok(bl_blt_next(reader, &got, &more, &err));
    assert_fails(bl_blt_to_logical(reader, &got, &err), BL_ERR_STATE, "epoch 8");
    assert_ok(bl_blt_next(reader, &got, &more, &err));
    assert_fails(bl_blt_to_logical(reader, &got, &err), BL_ERR_STATE, "logical already");
    bl_blt_reader_free(reader);
    bl_trace_info_free(&info);
}

/* ---- damage -------------------------------------------------------------------------------- */

/* Steps 0..5 of two layers and two ranks, a chunk for each step, with a map and counts in between.
 */
static void write_small(const char *path) {
    bl_error err;
    bl_trace_info info = bl_test_info(2, (int[]){0, 1}, 4, 2);
    assert_ok(bl_trace_info_set_ranks(&info, 2, (int[]){0, 1}, 2, &err));
    bl_blt_writer *writer = bl_test_create(path, &info);
    const uint64_t counts[] = {2, 2, 3, 1};
    for (uint64_t step = 0; step < 6; step++) {
        for (int rank = 0; rank < 2; rank++) {
            for (int layer = 0; layer < 2; layer++) {
                bl_record record = bl_test_record(step, layer, rank, 4, 2, 4, bl_test_golden);
                if (step == 3) {
                    record.ids = NULL;
                    record.counts = counts;
                }
                bl_test_put(writer, record);
            }
        }
        if (step == 2)
            write_map(writer, step, (int32_t[]){0, 1, 2, 3, 0, 1});
        assert_ok(bl_blt_flush(writer, &err));
    }
    bl_test_close(writer);
    bl_trace_info_free(&info);
}

static bool is_prefix(const bl_loads *part, const bl_loads *whole) {
    const size_t step_cells = (size_t)whole->n_layers * (size_t)whole->n_experts;
    return part->n_steps <= whole->n_steps && part->usable[0] && part->usable[1] &&
           memcmp(part->count, whole->count, part->n_steps * step_cells * sizeof *part->count) == 0;
}

static bl_status try_loads(const char *path, bl_loads *loads, bl_error *err) {
    const bl_loads_options options = BL_LOADS_OPTIONS_INIT;
    *err = BL_ERROR_INIT;
    *loads = (bl_loads){0};
    return bl_loads_read(&path, 1, NULL, &options, loads, err);
}

/* A fresh file without bl_write_file()'s fsync: writing thousands of files to the disk, or over each
 * other, would take most of the time. */
static void put_file(const char *path, const char *bytes, size_t n) {
    unlink(path);
    FILE *out = fopen(path, "wb");
    assert_non_null(out);
    assert_int_equal(fwrite(bytes, 1, n, out), n);
    assert_int_equal(fclose(out), 0);
}

/* Cut anywhere: refused with a message, or the whole chunks before the cut and a note that says so.
 */
static void every_truncation(void **state) {
    (void)state;
    bl_error err;
    const char *path = bl_test_temp("whole.blt");
    write_small(path);
    bl_loads whole = bl_test_loads(path);
    assert_int_equal(whole.n_steps, 6);
    char *bytes = NULL;
    size_t n = 0;
    assert_ok(bl_read_file(path, 1 << 20, &bytes, &n, &err));
    size_t most_steps = 0, refused = 0;
    for (size_t cut = 0; cut < n; cut++) {
        const char *cut_path = bl_test_temp("cut.blt");
        put_file(cut_path, bytes, cut);
        bl_loads part;
        if (try_loads(cut_path, &part, &err) < 0) {
            assert_true(err.text[0] != '\0');
            refused++;
            continue;
        }
        assert_false(part.complete);
        bl_test_has(part.notes, "not closed: cut at byte");
        assert_true(is_prefix(&part, &whole));
        assert_true(part.n_steps >= most_steps); /* never less for a longer file */
        most_steps = part.n_steps;
        bl_loads_free(&part);
    }
    assert_int_equal(most_steps, 6);
    assert_true(refused > 0 && refused < n / 2);
    free(bytes);
    bl_loads_free(&whole);
}

/* Any single byte changed: an error, or a note, or the very same counts. */
static void every_damaged_byte(void **state) {
    (void)state;
    bl_error err;
    const char *path = bl_test_temp("whole2.blt");
    write_small(path);
    bl_loads whole = bl_test_loads(path);
    char *bytes = NULL;
    size_t n = 0, refused = 0;
    assert_ok(bl_read_file(path, 1 << 20, &bytes, &n, &err));
    for (size_t at = 0; at < n; at++) {
        for (int change = 0; change < 3; change++) {
            const char kept = bytes[at];
            bytes[at] = (char)(change == 0 ? kept ^ 1 : change == 1 ? kept ^ 0x80 : ~kept);
            const char *damaged = bl_test_temp("damaged.blt");
            put_file(damaged, bytes, n);
            bytes[at] = kept;
            bl_loads part;
            if (try_loads(damaged, &part, &err) < 0) {
                refused++;
                continue;
            }
            assert_false(part.complete);
            bl_test_has(part.notes, "cut at byte");
            assert_true(is_prefix(&part, &whole));
            bl_loads_free(&part);
        }
    }
    assert_true(refused > n); /* almost all are errors */
    free(bytes);
    bl_loads_free(&whole);
}

/* After a power loss the file may have its length but not its last bytes. */
static void a_tail_of_zeros_is_cut(void **state) {
    (void)state;
    bl_error err;
    const char *path = bl_test_temp("zeros.blt");
    write_small(path);
    char *bytes = NULL;
    size_t n = 0;
    assert_ok(bl_read_file(path, 1 << 20, &bytes, &n, &err));
    memset(bytes + n / 2, 0, n - n / 2);
    assert_ok(bl_write_file(path, bytes, n, &err));
    bl_loads part = bl_test_loads(path);
    assert_true(part.n_steps >= 1 && part.n_steps < 6);
    assert_false(part.complete);
    bl_loads_free(&part);
    free(bytes);
}

static void other_files_are_refused(void **state) {
    (void)state;
    bl_test_loads_fail(bl_test_write("text.blt", "hello, this is no trace at all"), BL_ERR_PARSE,
                       "not a .blt trace");
    bl_test_loads_fail(bl_test_write("short.blt", "x"), BL_ERR_PARSE, "too short");
    bl_test_loads_fail(bl_test_temp("missing.blt"), BL_ERR_IO, "cannot open");
    bl_error err;
    const char *path = bl_test_temp("version.blt");
    bl_test_write_golden(path);
    char *bytes = NULL;
    size_t n = 0;
    assert_ok(bl_read_file(path, 1 << 20, &bytes, &n, &err));
    bytes[8] = 3;
    assert_ok(bl_write_file(path, bytes, n, &err));
    bl_test_loads_fail(path, BL_ERR_VERSION,
                       "version 3 of the trace format; this program reads versions 1 to 2");
    free(bytes);
}

/* A step larger than a chunk whose tail is lost must not count as a step with missing layers. */
static void half_a_step_is_left_out(void **state) {
    (void)state;
    bl_error err;
    enum { LAYERS = 40, TOKENS = 100000 };
    int layers[LAYERS];
    for (int l = 0; l < LAYERS; l++)
        layers[l] = l;
    bl_trace_info info = bl_test_info(LAYERS, layers, 16, 4);
    int32_t *ids = calloc((size_t)TOKENS * 4, sizeof *ids);
    assert_non_null(ids);
    for (int i = 0; i < TOKENS * 4; i++)
        ids[i] = (int32_t)(i % 16);
    const char *path = bl_test_temp("half.blt");
    bl_blt_writer *writer = bl_test_create(path, &info);
    for (int l = 0; l < LAYERS; l++)
        bl_test_put(writer, bl_test_record(0, l, 0, 16, 4, 4, ids));
    for (int l = 0; l < LAYERS; l++)
        bl_test_put(writer, bl_test_record(1, l, 0, 16, 4, TOKENS, ids));
    bl_test_close(writer);
    char *bytes = NULL;
    size_t n = 0;
    assert_ok(bl_read_file(path, 1 << 26, &bytes, &n, &err));
    assert_ok(bl_write_file(path, bytes, n - 600, &err)); /* index and the last chunk's end */
    bl_loads part = bl_test_loads(path);
    assert_int_equal(part.n_steps, 1);
    assert_int_equal(part.tokens, 4);
    for (int l = 0; l < LAYERS; l++)
        assert_true(part.usable[l]);
    bl_loads_free(&part);
    free(bytes);
    free(ids);
    bl_trace_info_free(&info);
}

static void the_same_records_give_the_same_bytes(void **state) {
    (void)state;
    bl_error err;
    const char *a = bl_test_temp("same1.blt"), *b = bl_test_temp("same2.blt");
    write_small(a);
    write_small(b);
    char *x, *y;
    size_t n, m;
    assert_ok(bl_read_file(a, 1 << 20, &x, &n, &err));
    assert_ok(bl_read_file(b, 1 << 20, &y, &m, &err));
    assert_int_equal(n, m);
    assert_memory_equal(x, y, n);
    free(x);
    free(y);
}

static void a_full_disk_is_an_error(void **state) {
    (void)state;
    if (access("/dev/full", W_OK) != 0)
        skip();
    bl_error err;
    bl_trace_info info = bl_test_info(1, (int[]){0}, 4, 2);
    bl_blt_writer *writer = NULL;
    assert_fails(bl_blt_create("/dev/full", &info, true, &writer, &err), BL_ERR_IO,
                 "No space left");
    assert_ok(bl_blt_create("/dev/full", &info, false, &writer, &err));
    bl_test_put(writer, bl_test_record(0, 0, 0, 4, 2, 4, bl_test_golden));
    assert_fails(bl_blt_close(writer, &err), BL_ERR_IO, "No space left");
    bl_trace_info_free(&info);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_by_hand),
        cmocka_unit_test(padding_and_dummy_are_no_load),
        cmocka_unit_test(equal_ids_are_no_data),
        cmocka_unit_test(ids_out_of_range_or_twice_are_refused),
        cmocka_unit_test(round_trips_at_all_widths),
        cmocka_unit_test(many_chunks_and_step_filter),
        cmocka_unit_test(a_large_record_is_split),
        cmocka_unit_test(each_record_under_its_own_map),
        cmocka_unit_test(converting_twice_is_an_error),
        cmocka_unit_test(every_truncation),
        cmocka_unit_test(every_damaged_byte),
        cmocka_unit_test(a_tail_of_zeros_is_cut),
        cmocka_unit_test(other_files_are_refused),
        cmocka_unit_test(half_a_step_is_left_out),
        cmocka_unit_test(the_same_records_give_the_same_bytes),
        cmocka_unit_test(a_full_disk_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
