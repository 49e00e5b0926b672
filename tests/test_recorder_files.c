/*
 * What happens to a recording when somebody else is at its directory: files removed, names taken, other
 * models, parts that hold nothing; and rings whose memory was written over.
 */
#include "tests/support/support.h"

#include "ballast.h"
#include "core/progress.h"
#include "tracer/recorder.h"
#include "tracer/ring.h"
#include "tracer/stream.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static const int LAYERS[] = {3};
static const int32_t IDS[] = {0, 1, 2, 3};

static const char *ring_name(const char *what) {
    static char name[64];
    static long own; /* also in a child */
    own = own != 0 ? own : (long)getpid();
    snprintf(name, sizeof name, "test-files-%ld-%s", own, what);
    return name;
}

static const char *directory(const char *what) {
    static char path[512];
    snprintf(path, sizeof path, "%s", bl_test_temp(what));
    mkdir(path, 0777);
    return path;
}

static const char *part(const char *dir, int number) {
    static char path[600];
    snprintf(path, sizeof path, "%s/rank-00000.%06d.blt", dir, number);
    return path;
}

static bl_tracer *open_tracer(const char *what, const char *model) {
    bl_trace_options options = BL_TRACE_OPTIONS_INIT;
    bl_tracer *tracer = NULL;
    options.model = model;
    options.n_experts = 4;
    options.top_k = 2;
    options.layers = LAYERS;
    options.n_layers = 1;
    options.ring_bytes = 1 << 16;
    assert_int_equal(bl_trace_open(ring_name(what), &options, &tracer), BL_OK);
    return tracer;
}

static void push_step(bl_tracer *tracer, uint64_t step) {
    assert_int_equal(bl_trace_step_begin(tracer, step, BL_PHASE_DECODE, 0), BL_OK);
    assert_int_equal(bl_trace_push(tracer, 3, IDS, 4, 2, 8), BL_OK);
    assert_int_equal(bl_trace_step_end(tracer), BL_OK);
}

static double fake_now;
static double fake_clock(void *user) {
    (void)user;
    return fake_now;
}

static bl_recorder_options options_for(const char *dir) {
    bl_recorder_options options = BL_RECORDER_OPTIONS_INIT;
    fake_now = 1;
    options.directory = dir;
    options.clock = fake_clock;
    return options;
}

static bl_recorder *open_recorder(const bl_recorder_options *options, const char *what) {
    bl_error err;
    bl_recorder *recorder = NULL;
    assert_ok(bl_recorder_open(options, &recorder, &err));
    assert_ok(bl_recorder_attach(recorder, ring_name(what), &err));
    return recorder;
}

/* Seconds pass, and what came is written. */
static void commit(bl_recorder *recorder) {
    bl_error err;
    uint64_t n;
    for (int i = 0; i < 3; i++) {
        fake_now += 2;
        assert_ok(bl_recorder_poll(recorder, &n, &err));
    }
}

static bl_recorder_totals finish(bl_tracer *tracer, bl_recorder *recorder) {
    bl_error err;
    bl_recorder_totals totals;
    bl_trace_close(tracer);
    assert_ok(bl_recorder_finish(recorder, &totals, &err));
    assert_int_equal(totals.pushed,
                     totals.written + totals.rejected + totals.dropped + totals.skipped);
    return totals;
}

static int n_records(const char *path) {
    bl_error err;
    bl_stream *stream = NULL;
    bool got = true;
    int n = 0;
    assert_ok(bl_stream_open(path, &stream, &err));
    while (got) {
        bl_record record;
        assert_ok(bl_stream_next(stream, &record, &got, &err));
        n += got;
    }
    bl_stream_free(stream);
    return n;
}

/* Records 0 and 1 vanish with the file that held them, by somebody's hand; 2 and 3 are kept. */
static void a_file_removed_while_it_is_written(void **state) {
    (void)state;
    const char *dir = directory("removed");
    bl_tracer *tracer = open_tracer("removed", "m");
    const bl_recorder_options options = options_for(dir);
    bl_recorder *recorder = open_recorder(&options, "removed");
    push_step(tracer, 0);
    push_step(tracer, 1);
    commit(recorder);
    assert_int_equal(n_records(dir), 2);
    assert_int_equal(unlink(part(dir, 1)), 0);
    push_step(tracer, 2);
    commit(recorder);
    push_step(tracer, 3);
    const bl_recorder_totals totals = finish(tracer, recorder);
    assert_int_equal(totals.removed, 1);
    assert_int_equal(totals.dropped, 0);
    assert_int_equal(n_records(dir), 2);
}

/* The same with its directory: nothing is written until there is one again, and the ring keeps it. */
static void a_directory_removed_while_it_is_written(void **state) {
    (void)state;
    const char *dir = directory("rmdir");
    bl_tracer *tracer = open_tracer("rmdir", "m");
    const bl_recorder_options options = options_for(dir);
    bl_recorder *recorder = open_recorder(&options, "rmdir");
    push_step(tracer, 0);
    commit(recorder);
    assert_int_equal(unlink(part(dir, 1)), 0);
    assert_int_equal(rmdir(dir), 0);
    push_step(tracer, 1);
    commit(recorder);
    bl_recorder_totals totals;
    bl_recorder_read_totals(recorder, &totals);
    assert_int_equal(totals.n_held, 1);
    bl_test_has(totals.why_held, "No such file");
    assert_int_equal(mkdir(dir, 0777), 0);
    commit(recorder);
    totals = finish(tracer, recorder);
    assert_int_equal(totals.removed, 1);
    assert_int_equal(n_records(dir), 1);
}

/* A file that has come meanwhile under the next part's name is somebody else's. */
static void a_name_that_is_taken(void **state) {
    (void)state;
    const char *dir = directory("taken");
    bl_tracer *tracer = open_tracer("taken", "m");
    bl_recorder_options options = options_for(dir);
    options.rotate_s = 1;
    bl_recorder *recorder = open_recorder(&options, "taken");
    push_step(tracer, 0);
    uint64_t n;
    bl_error err;
    assert_ok(bl_recorder_poll(recorder, &n, &err));
    FILE *other = fopen(part(dir, 2), "w");
    assert_non_null(other);
    fputs("other", other);
    fclose(other);
    commit(recorder);
    push_step(tracer, 1);
    finish(tracer, recorder);
    char text[8] = "";
    other = fopen(part(dir, 2), "r");
    assert_non_null(other);
    assert_non_null(fgets(text, sizeof text, other));
    fclose(other);
    assert_string_equal(text, "other");
    assert_int_equal(unlink(part(dir, 2)), 0);
    assert_int_equal(n_records(dir), 2);
}

/* An idle engine makes no new parts, so that those that hold something are not removed for them. One closed
 * part is kept beside the open one. */
static void parts_that_hold_nothing(void **state) {
    (void)state;
    const char *dir = directory("idle");
    bl_tracer *tracer = open_tracer("idle", "m");
    bl_recorder_options options = options_for(dir);
    options.rotate_s = 1;
    options.keep = 1;
    bl_recorder *recorder = open_recorder(&options, "idle");
    for (uint64_t step = 0; step < 3; step++) {
        push_step(tracer, step);
        commit(recorder);
    }
    for (int i = 0; i < 20; i++)
        commit(recorder);
    const bl_recorder_totals totals = finish(tracer, recorder);
    assert_int_equal(totals.files, 4);
    assert_int_equal(access(part(dir, 2), F_OK), -1);
    assert_int_equal(n_records(part(dir, 3)), 1);
    assert_int_equal(n_records(dir), 1);
}

/* A limit on the size of files is waited out like a full disk, and kills nobody. */
static void a_limit_on_file_sizes(void **state) {
    (void)state;
    const char *dir = directory("limit");
    struct rlimit before, low;
    bl_tracer *tracer = open_tracer("limit", "m");
    const bl_recorder_options options = options_for(dir);
    bl_recorder *recorder = open_recorder(&options, "limit");
    push_step(tracer, 0);
    commit(recorder);
    struct stat info;
    assert_int_equal(stat(part(dir, 1), &info), 0);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    low = before;
    low.rlim_cur = (rlim_t)info.st_size + 8; /* not room enough for another chunk */
    bl_interrupts_install();
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &low), 0);
    push_step(tracer, 1);
    uint64_t n;
    fake_now += 2;
    const bl_status st = bl_recorder_poll(recorder, &n, NULL);
    bl_recorder_totals totals;
    bl_recorder_read_totals(recorder, &totals);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_int_equal(st, BL_OK);
    assert_int_equal(totals.n_held, 1);
    bl_test_has(totals.why_held, "File too large");
    commit(recorder);
    totals = finish(tracer, recorder);
    assert_int_equal(totals.written, 2);
    assert_int_equal(n_records(dir), 2);
}

/* A directory is one trace: another model is not appended to it. */
static void another_model_is_not_appended(void **state) {
    (void)state;
    bl_error err;
    const char *dir = directory("models");
    bl_tracer *tracer = open_tracer("models", "one");
    bl_recorder_options options = options_for(dir);
    options.append = true;
    bl_recorder *recorder = open_recorder(&options, "models");
    push_step(tracer, 0);
    finish(tracer, recorder);
    tracer = open_tracer("models", "two");
    push_step(tracer, 0);
    assert_ok(bl_recorder_open(&options, &recorder, &err));
    assert_fails(bl_recorder_attach(recorder, ring_name("models"), &err), BL_ERR_MODEL, "\"two\"");
    bl_recorder_abandon(recorder);
    bl_trace_close(tracer);
    tracer = open_tracer("models", "one");
    push_step(tracer, 0);
    recorder = open_recorder(&options, "models");
    finish(tracer, recorder);
    assert_int_equal(n_records(dir), 2);
}

/* Positions between entries, and names that no file can hold: given up, nothing read outside. */
static void a_ring_that_was_written_over(void **state) {
    (void)state;
    bl_error err;
    bl_ring ring;
    bl_ring_shape *shape = malloc(sizeof *shape);
    const unsigned char *body;
    bl_ring_entry entry;
    bl_tracer *tracer = open_tracer("over", "m");
    push_step(tracer, 0);
    assert_ok(bl_ring_attach(ring_name("over"), &ring, shape, &err));
    const uint64_t end = ring.capacity;
    atomic_store(&ring.memory->tail, end - 4); /* 4 bytes before the end of the mapping */
    atomic_store(&ring.memory->head, end + 4);
    bl_ring_unread(&ring);
    assert_fails(bl_ring_peek(&ring, &entry, &body, &err), BL_ERR_PARSE, "makes no sense");
    memcpy(ring.memory->shape.model, "\xff", 2);
    bl_ring_detach(&ring, false);
    assert_fails(bl_ring_attach(ring_name("over"), &ring, shape, &err), BL_ERR_PARSE,
                 "impossible model");
    bl_trace_close(tracer);
    free(shape);
}

/* Engines that died before a recorder came: what went with their rings has its layer, and its place in front
 * of what the living one pushes. The second one adds what it dropped itself. */
static void what_died_with_its_ring_has_a_place(void **state) {
    (void)state;
    bl_error err;
    static const int32_t many[20000] = {0};
    ring_name("dead"); /* the name is the parent's */
    for (int life = 0; life < 2; life++) {
        const pid_t child = fork();
        if (child == 0) {
            bl_tracer *tracer = open_tracer("dead", "m");
            for (uint64_t step = 0; step < 3; step++)
                push_step(tracer, step);
            bl_trace_step_begin(tracer, 3, BL_PHASE_DECODE, 0); /* larger than the ring: dropped */
            bl_trace_push(tracer, 3, many, 1, 40000, 2);
            bl_trace_step_end(tracer);
            _exit(0);
        }
        int how = 1;
        assert_int_equal(waitpid(child, &how, 0), child);
        assert_int_equal(how, 0);
    }
    bl_tracer *tracer = open_tracer("dead", "m");
    bl_trace_counters counters;
    assert_int_equal(bl_trace_read_counters(tracer, &counters), BL_OK);
    assert_int_equal(counters.pushed, 8);
    assert_int_equal(counters.dropped, 8);
    const char *dir = directory("dead");
    const bl_recorder_options options = options_for(dir);
    bl_recorder *recorder = open_recorder(&options, "dead");
    push_step(tracer, 10);
    const bl_recorder_totals totals = finish(tracer, recorder);
    assert_int_equal(totals.written, 1);
    assert_int_equal(totals.dropped, 8);
    bl_stream *stream = NULL;
    bl_record record;
    bool got;
    assert_ok(bl_stream_open(dir, &stream, &err));
    assert_ok(bl_stream_next(stream, &record, &got, &err));
    assert_true(got);
    assert_int_equal(record.step, 0);
    assert_int_equal(record.layer, 3);
    assert_int_equal(record.dropped, 8);
    assert_int_equal(record.n_tokens, 0);
    assert_ok(bl_stream_next(stream, &record, &got, &err));
    assert_true(got);
    assert_int_equal(record.step, 10);
    bl_stream_free(stream);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_file_removed_while_it_is_written),
        cmocka_unit_test(a_directory_removed_while_it_is_written),
        cmocka_unit_test(a_name_that_is_taken),
        cmocka_unit_test(parts_that_hold_nothing),
        cmocka_unit_test(a_limit_on_file_sizes),
        cmocka_unit_test(another_model_is_not_appended),
        cmocka_unit_test(a_ring_that_was_written_over),
        cmocka_unit_test(what_died_with_its_ring_has_a_place),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
