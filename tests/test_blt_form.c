/* How ids lie in the trace file: by layer, in parts, as sets; and files of version 1. */
#include "tests/support/traces.h"

#include "core/io.h"
#include "core/rng.h"
#include "tracer/stream.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define MAX_SLOTS 4096

/* A record with ids of its own. */
typedef struct made {
    bl_record record;
    int32_t ids[MAX_SLOTS];
    uint16_t weights[MAX_SLOTS];
} made;

static void draw(bl_rng *rng, made *m, uint64_t step, int layer, int n_ids, int k,
                 uint64_t n_tokens, bool empties, bool weights) {
    m->record = bl_test_record(step, layer, 0, n_ids, k, n_tokens, m->ids);
    m->record.weights = weights ? m->weights : NULL;
    for (uint64_t t = 0; t < n_tokens; t++) {
        int32_t *row = m->ids + t * (uint64_t)k;
        for (int i = 0; i < k; i++) {
            bool again = true;
            while (again) {
                row[i] = (int32_t)bl_rng_below(rng, (uint32_t)n_ids);
                again = false;
                for (int j = 0; j < i; j++)
                    again = again || row[j] == row[i];
            }
            m->weights[t * (uint64_t)k + (uint64_t)i] = (uint16_t)row[i]; /* tells its id */
        }
        if (empties && bl_rng_below(rng, 3) == 0)
            row[bl_rng_below(rng, (uint32_t)k)] = BL_EMPTY_SLOT;
    }
}

static int compare_ids(const void *a, const void *b) {
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b; /* -1 is the largest */
    return (x > y) - (x < y);
}

static void check(const bl_record *got, made *m, bool sets) {
    const size_t k = (size_t)m->record.k, slots = (size_t)m->record.n_tokens * k;
    assert_int_equal(got->layer, m->record.layer);
    assert_int_equal(got->n_tokens, m->record.n_tokens);
    assert_int_equal((got->flags & BL_RECORD_SETS) != 0, sets);
    for (size_t row = 0; sets && row < slots; row += k)
        qsort(m->ids + row, k, sizeof *m->ids, compare_ids);
    for (size_t i = 0; i < slots; i++) {
        assert_int_equal(got->ids[i], m->ids[i]);
        if (got->weights != NULL && got->ids[i] != BL_EMPTY_SLOT)
            assert_int_equal(got->weights[i], (uint16_t)got->ids[i]); /* went along */
    }
    assert_int_equal(got->weights != NULL, m->record.weights != NULL);
}

/* Names are printed: a file cannot steer a terminal through them. */
static void names_are_printable(void **state) {
    (void)state;
    bl_error err;
    bl_blt_reader *reader;
    bl_trace_info info = bl_test_info(1, (const int[]){2}, 4, 2);
    snprintf(info.model, sizeof info.model, "a\x1b[31m\nb");
    bl_test_close(bl_test_create(bl_test_temp("names.blt"), &info));
    assert_ok(bl_blt_open(bl_test_temp("names.blt"), &reader, &err));
    assert_string_equal(bl_blt_info(reader)->model, "a?[31m?b");
    bl_blt_reader_free(reader);
    bl_trace_info_free(&info);
}

/* Layers in turn, records of all sizes, with and without empties and weights. */
static void round_trip(int n_ids, int k, bool sets) {
    enum { RECORDS = 60 };
    bl_error err;
    const int layers[] = {2, 3, 9};
    made *records = calloc(RECORDS, sizeof *records);
    assert_non_null(records);
    bl_trace_info info = bl_test_info(3, layers, n_ids, k);
    const char *path = bl_test_temp("form.blt");
    bl_blt_writer *writer = bl_test_create(path, &info);
    bl_blt_as_sets(writer, sets);
    bl_rng rng;
    bl_rng_seed(&rng, (uint64_t)n_ids);
    for (int i = 0; i < RECORDS; i++) {
        draw(&rng, &records[i], (uint64_t)(i / 3), layers[i % 3], n_ids, k,
             bl_rng_below(&rng, (uint32_t)(MAX_SLOTS / k)), i % 4 == 1, i % 5 == 2);
        bl_test_put(writer, records[i].record);
        if (i % 21 == 20)
            assert_ok(bl_blt_flush(writer, &err));
    }
    bl_test_close(writer);
    bl_blt_reader *reader;
    assert_ok(bl_blt_open(path, &reader, &err));
    for (int i = 0; i < RECORDS; i++) {
        bl_record got;
        bool any;
        assert_ok(bl_blt_next(reader, &got, &any, &err));
        assert_true(any);
        check(&got, &records[i], sets);
    }
    bl_blt_reader_free(reader);
    bl_trace_info_free(&info);
    free(records);
}

static void ids_by_layer(void **state) {
    (void)state;
    round_trip(4, 2, false);
    round_trip(256, 8, false);
    round_trip(257, 8, false);
    round_trip(65536, 4, false);
}

static void rows_as_sets(void **state) {
    (void)state;
    round_trip(4, 2, true);
    round_trip(256, 8, true);
    round_trip(300, 5, true);
    round_trip(65536, 4, true);
}

/* Slots of more than 65536 take four bytes: one here, three there. */
static void four_bytes_of_slots(void **state) {
    (void)state;
    enum { SLOTS = 70000 };
    bl_error err;
    bl_placement placement;
    const char *path = bl_test_temp("slots.blt");
    const int32_t slots[] = {0, 69999, 65536, 255, 256, 66000};
    bl_trace_info info = bl_test_info(1, (int[]){5}, 4, 2);
    assert_ok(bl_placement_create(1, 4, (int[]){5}, 1, (int[]){SLOTS}, &placement, &err));
    for (int slot = 0; slot < SLOTS; slot++)
        placement.layers[0].expert[slot] = slot % 4;
    for (int sets = 0; sets < 2; sets++) {
        bl_blt_writer *writer = bl_test_create(path, &info);
        bl_blt_as_sets(writer, sets == 1);
        assert_ok(bl_blt_write_map(writer, &placement.layers[0], &err));
        bl_record record = bl_test_record(0, 5, 0, SLOTS, 2, 3, slots);
        record.flags = BL_RECORD_PHYSICAL;
        bl_test_put(writer, record);
        bl_test_close(writer);
        bl_blt_reader *reader;
        bool any;
        assert_ok(bl_blt_open(path, &reader, &err));
        assert_ok(bl_blt_next(reader, &record, &any, &err));
        const int32_t wanted[2][6] = {{0, 69999, 65536, 255, 256, 66000},
                                      {0, 69999, 255, 65536, 256, 66000}};
        assert_memory_equal(record.ids, wanted[sets], sizeof wanted[0]);
        bl_blt_reader_free(reader);
    }
    bl_placement_free(&placement);
    bl_trace_info_free(&info);
}

/* Each layer has favourites of its own: a code for each is worth more than one for all. Entropy of
 * the picks is 5 bits each, where one code for all layers would need 8. */
static void a_code_for_each_layer(void **state) {
    (void)state;
    enum { LAYERS = 8, TOKENS = 512, STEPS = 32, K = 8 };
    static int32_t ids[TOKENS * K];
    int layers[LAYERS];
    for (int l = 0; l < LAYERS; l++)
        layers[l] = l;
    bl_trace_info info = bl_test_info(LAYERS, layers, 256, K);
    const char *path = bl_test_temp("layers.blt");
    bl_blt_writer *writer = bl_test_create(path, &info);
    bl_rng rng;
    bl_rng_seed(&rng, 1);
    for (uint64_t step = 0; step < STEPS; step++) {
        for (int l = 0; l < LAYERS; l++) {
            for (int t = 0; t < TOKENS; t++) {
                for (int i = 0; i < K; i++) /* one of four of its own at each place */
                    ids[t * K + i] = l * 32 + i * 4 + (int32_t)bl_rng_below(&rng, 4);
            }
            bl_test_put(writer, bl_test_record(step, l, 0, 256, K, TOKENS, ids));
        }
    }
    bl_test_close(writer);
    bl_error err;
    char *bytes;
    size_t n;
    assert_ok(bl_read_file(path, 1 << 26, &bytes, &n, &err));
    free(bytes);
    const double per_row = (double)n / (LAYERS * TOKENS * STEPS);
    if (per_row > 5.2)
        fail_msg("%.3f bytes for 40 bits", per_row);
    bl_trace_info_free(&info);
}

/* Two ranks in three parts each: what belongs to a step comes together, in ascending order, also the
 * second time. */
static void parts_step_by_step(void **state) {
    (void)state;
    enum { RANKS = 2, PARTS = 3, STEPS = 30 };
    bl_error err;
    bl_stream *stream;
    char dir[256], path[300];
    snprintf(dir, sizeof dir, "%s", bl_test_temp("parts"));
    assert_int_equal(mkdir(dir, 0700), 0);
    for (int rank = 0; rank < RANKS; rank++) {
        for (int part = 1; part <= PARTS; part++) {
            bl_trace_info info = bl_test_info(1, (int[]){0}, 4, 1);
            info.part = part;
            assert_ok(bl_trace_info_set_ranks(&info, RANKS, &rank, 1, &err));
            snprintf(path, sizeof path, "%s/%d-%d.blt", dir, PARTS - part, rank);
            bl_blt_writer *writer = bl_test_create(path, &info);
            for (uint64_t step = 0; step < STEPS / PARTS; step++) {
                const uint64_t number = (uint64_t)(part - 1) * (STEPS / PARTS) + step;
                for (int again = 0; again < 2; again++)
                    bl_test_put(writer, bl_test_record(number, 0, rank, 4, 1, 1,
                                                       (int32_t[]){(int32_t)(number % 4)}));
            }
            bl_test_close(writer);
            bl_trace_info_free(&info);
        }
    }
    assert_ok(bl_stream_open(dir, &stream, &err));
    for (int pass = 0; pass < 2; pass++) {
        for (int i = 0; i < RANKS * STEPS * 2; i++) {
            bl_record record;
            bool any;
            assert_ok(bl_stream_next(stream, &record, &any, &err));
            assert_true(any);
            assert_int_equal(record.step, i / (2 * RANKS));
            assert_int_equal(record.rank, i / 2 % RANKS);
            assert_int_equal(record.ids[0], record.step % 4);
        }
        bl_stream_rewind(stream);
    }
    bl_stream_free(stream);
}

/* ---- version 1 ------------------------------------------------------------------------------ */

static uint64_t sum_of(const char *path, uint64_t *n_records) {
    bl_error err;
    bl_stream *stream = NULL;
    uint64_t sum = 0;
    *n_records = 0;
    assert_ok(bl_stream_open(path, &stream, &err));
    for (;;) {
        bl_record record;
        bool any;
        assert_ok(bl_stream_next(stream, &record, &any, &err));
        if (!any)
            break;
        ++*n_records;
        for (uint64_t i = 0; i < record.n_tokens * (uint64_t)record.k; i++)
            sum =
                sum * 31 + (uint64_t)(record.ids[i] + 2) + (uint64_t)record.layer + record.step * 7;
    }
    bl_stream_free(stream);
    return sum;
}

/* Files of the past are read as they were: sums taken by the program that wrote them. */
static void version_1_is_read(void **state) {
    (void)state;
    uint64_t n;
    assert_true(sum_of("tests/data/trace_v1_wide.blt", &n) == UINT64_C(14223390706346498311));
    assert_int_equal(n, 16);
    assert_true(sum_of("tests/data/trace_v1_empties.blt", &n) == UINT64_C(86148071491));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ids_by_layer),          cmocka_unit_test(names_are_printable),
        cmocka_unit_test(rows_as_sets),          cmocka_unit_test(four_bytes_of_slots),
        cmocka_unit_test(a_code_for_each_layer), cmocka_unit_test(parts_step_by_step),
        cmocka_unit_test(version_1_is_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
