/* The recorder into a directory: parts, kills, full disks, restarts. After each the ledger balances
 * and what is there is right: the content of every record follows from its step. */
#include "tests/support/support.h"

#include "ballast.h"
#include "tracer/blt.h"
#include "tracer/recorder.h"
#include "tracer/ring.h"
#include "tracer/stream.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { N_LAYERS = 2, N_EXPERTS = 256, K = 8, MAX_STEPS = 4000 };
static const int LAYERS[N_LAYERS] = {3, 7};

static const char *ring_name(const char *what) {
    static char names[4][64];
    static unsigned at;
    char *name = names[at++ % 4];
    snprintf(name, sizeof names[0], "test-%ld-%s", (long)getpid(), what);
    return name;
}

static char *directory(const char *what) {
    static char path[4][512];
    static unsigned at;
    char *out = path[at++ % 4];
    snprintf(out, sizeof path[0], "%s", bl_test_temp(what));
    assert_int_equal(mkdir(out, 0777), 0);
    return out;
}

/* ---- an engine whose every id follows from step, layer and place ---------------------------- */

static size_t tokens_of(uint64_t step) {
    return (size_t)(step * 7 % 13);
}

static int32_t id_of(uint64_t step, int layer, size_t token, int j) {
    uint64_t x = step * 1000003u + (uint64_t)layer * 8191u + token;
    x = (x ^ (x >> 31)) * UINT64_C(0x9e3779b97f4a7c15);
    return (int32_t)((x >> 40) + (uint64_t)j * 31u) % N_EXPERTS; /* 8 different ones: 31 is odd */
}

static bl_tracer *open_rank(const char *name, size_t ring_bytes, int rank, int n_ranks) {
    bl_trace_options options = BL_TRACE_OPTIONS_INIT;
    options.model = "test";
    options.n_experts = N_EXPERTS;
    options.top_k = K;
    options.layers = LAYERS;
    options.n_layers = N_LAYERS;
    options.ring_bytes = ring_bytes;
    options.source_domain = 5;
    options.rank = rank;
    options.n_ranks = n_ranks;
    bl_tracer *tracer = NULL;
    const int st = bl_trace_open(name, &options, &tracer);
    if (st < 0)
        fail_msg("bl_trace_open: %s", bl_status_string(st));
    return tracer;
}

static bl_tracer *open_tracer(const char *name, size_t ring_bytes) {
    return open_rank(name, ring_bytes, 0, 1);
}

static void push_step(bl_tracer *tracer, uint64_t step) {
    int32_t ids[13 * K];
    bl_trace_step_begin(tracer, step, BL_PHASE_DECODE, 0);
    for (int l = 0; l < N_LAYERS; l++) {
        for (size_t token = 0; token < tokens_of(step); token++) {
            for (int j = 0; j < K; j++)
                ids[token * K + (size_t)j] = id_of(step, LAYERS[l], token, j);
        }
        bl_trace_push(tracer, LAYERS[l], ids, 4, tokens_of(step), K * 4);
    }
    bl_trace_step_end(tracer);
}

/* ---- what a directory holds ----------------------------------------------------------------- */

typedef struct contents {
    uint64_t records, dropped;
    uint64_t first, last; /* step */
    bool complete;
    char notes[1024];
} contents;

/* Reads all of it and checks every id, and that no (run, step, layer) is there twice. */
static contents read_all(const char *path) {
    bl_error err;
    bl_stream *stream = NULL;
    contents c = {.first = UINT64_MAX};
    static unsigned char seen[2][MAX_STEPS][N_LAYERS];
    memset(seen, 0, sizeof seen);
    assert_ok(bl_stream_open(path, &stream, &err));
    for (;;) {
        bl_record record;
        bool got;
        assert_ok(bl_stream_next(stream, &record, &got, &err));
        if (!got)
            break;
        if (record.dropped > 0 && record.n_tokens == 0)
            continue;
        assert_true(record.run < 2 && record.step < MAX_STEPS);
        const int l = record.layer == LAYERS[0] ? 0 : 1;
        assert_int_equal(record.layer, LAYERS[l]);
        if (seen[record.run][record.step][l]++)
            fail_msg("step %d of run %d is there twice", (int)record.step, (int)record.run);
        assert_int_equal(record.n_tokens, tokens_of(record.step));
        for (size_t i = 0; i < record.n_tokens * K; i++)
            assert_int_equal(record.ids[i], id_of(record.step, record.layer, i / K, (int)(i % K)));
        c.records++;
        c.first = record.step < c.first ? record.step : c.first;
        c.last = record.step > c.last ? record.step : c.last;
    }
    c.dropped = bl_stream_dropped(stream);
    c.complete = bl_stream_is_complete(stream);
    snprintf(c.notes, sizeof c.notes, "%s", bl_stream_notes(stream));
    bl_stream_free(stream);
    return c;
}

static int n_files(const char *path) {
    int n = 0;
    DIR *dir = opendir(path);
    assert_non_null(dir);
    for (struct dirent *entry; (entry = readdir(dir)) != NULL;)
        n += entry->d_name[0] != '.';
    closedir(dir);
    return n;
}

static bool ring_exists(const char *name) {
    char object[128];
    snprintf(object, sizeof object, BL_RING_PREFIX "%s", name);
    const int fd = shm_open(object, O_RDONLY, 0);
    if (fd >= 0)
        close(fd);
    return fd >= 0;
}

static bl_recorder *open_recorder(bl_recorder_options options, const char *dir, const char *ring) {
    bl_error err;
    bl_recorder *recorder = NULL;
    options.directory = dir;
    assert_ok(bl_recorder_open(&options, &recorder, &err));
    assert_ok(bl_recorder_attach(recorder, ring, &err));
    return recorder;
}

static void poll_once(bl_recorder *recorder) {
    bl_error err;
    uint64_t n;
    assert_ok(bl_recorder_poll(recorder, &n, &err));
}

static void assert_balances(const bl_recorder_totals *t) {
    assert_int_equal(t->pushed, t->earlier + t->written + t->rejected + t->dropped + t->skipped);
}

static double fake_now;
static double fake_clock(void *user) {
    (void)user;
    return fake_now;
}

/* ---- parts ---------------------------------------------------------------------------------- */

static void parts_by_size(void **state) {
    (void)state;
    bl_error err;
    for (int keep = 0; keep <= 2; keep += 2) {
        bl_recorder_options options = BL_RECORDER_OPTIONS_INIT;
        options.rotate_bytes = 4096;
        options.keep = keep;
        options.fsync = keep ? BL_FSYNC_ROTATE : BL_FSYNC_CHUNK;
        const char *dir = directory(keep ? "kept" : "parts"), *name = ring_name("parts");
        bl_tracer *tracer = open_tracer(name, 1 << 16);
        bl_recorder *recorder = open_recorder(options, dir, name);
        for (uint64_t step = 0; step < 3000; step++) {
            push_step(tracer, step);
            if (step % 20 == 19)
                poll_once(recorder);
        }
        bl_trace_close(tracer);
        bl_recorder_totals totals;
        assert_ok(bl_recorder_finish(recorder, &totals, &err));
        assert_balances(&totals);
        assert_int_equal(totals.written, 6000);
        assert_true(totals.files > 3);
        const contents c = read_all(dir);
        assert_true(c.complete);
        assert_int_equal(c.last, 2999);
        if (keep == 0) {
            assert_int_equal(c.records, 6000);
            assert_string_equal(c.notes, "");
        } else {
            assert_true(n_files(dir) <= keep + 1);
            assert_true(c.first > 0);
            bl_test_has(c.notes, "rank 0 begins with part");
        }
    }
}

/* More parts than a process may have files open. */
static void many_parts(void **state) {
    (void)state;
    bl_error err;
    const char *dir = directory("many"), *name = ring_name("many");
    struct rlimit before, low;
    bl_recorder_options options = BL_RECORDER_OPTIONS_INIT;
    options.clock = fake_clock;
    options.rotate_s = 1;
    fake_now = 0;
    bl_tracer *tracer = open_tracer(name, 1 << 16);
    bl_recorder *recorder = open_recorder(options, dir, name);
    for (uint64_t step = 0; step < 100; step++) {
        push_step(tracer, step);
        fake_now += 2;
        poll_once(recorder);
    }
    bl_trace_close(tracer);
    assert_ok(bl_recorder_finish(recorder, NULL, &err));
    assert_true(n_files(dir) > 90);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    low = before;
    low.rlim_cur = 32;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0);
    const contents c = read_all(dir);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    assert_int_equal(c.records, 200);
    assert_true(c.complete);
}

/* Each part alone is a whole trace; without one in the middle the directory says which. */
static void a_missing_part_is_named(void **state) {
    (void)state;
    char path[600];
    bl_error err;
    const char *name = ring_name("missing");
    const char *dir = directory("missing");
    bl_recorder_options options = BL_RECORDER_OPTIONS_INIT;
    options.rotate_bytes = 4096;
    bl_tracer *tracer = open_tracer(name, 1 << 16);
    bl_recorder *recorder = open_recorder(options, dir, name);
    for (uint64_t step = 0; step < 3000; step++) {
        push_step(tracer, step);
        if (step % 20 == 19)
            poll_once(recorder);
    }
    bl_trace_close(tracer);
    assert_ok(bl_recorder_finish(recorder, NULL, &err));
    snprintf(path, sizeof path, "%s/rank-00000.000002.blt", dir);
    const contents part = read_all(path);
    bl_blt_reader *reader;
    assert_ok(bl_blt_open(path, &reader, &err));
    assert_int_equal(bl_blt_info(reader)->part, 2);
    assert_int_equal(bl_blt_info(reader)->domain, 5);
    bl_blt_reader_free(reader);
    assert_int_equal(unlink(path), 0);
    const contents rest = read_all(dir);
    assert_false(rest.complete);
    bl_test_has(rest.notes, "incomplete: rank 0, part 2");
    assert_int_equal(rest.records + part.records, 6000);
    snprintf(path, sizeof path, "%s/copy.blt", dir);
    char from[600];
    bl_stream *stream = NULL;
    snprintf(from, sizeof from, "%s/rank-00000.000001.blt", dir);
    assert_int_equal(link(from, path), 0);
    assert_fails(bl_stream_open(dir, &stream, &err), BL_ERR_STATE,
                 "two files hold part 1 of rank 0");
}

/* Parts by age; a clock that jumps ahead closes one part, one that jumps back none, and neither
 * loses or doubles anything. */
static void a_clock_that_jumps(void **state) {
    (void)state;
    bl_error err;
    const char *dir = directory("clock"), *name = ring_name("clock");
    bl_recorder_options options = BL_RECORDER_OPTIONS_INIT;
    options.rotate_s = 60;
    options.clock = fake_clock;
    bl_tracer *tracer = open_tracer(name, 1 << 16);
    fake_now = 1000;
    bl_recorder *recorder = open_recorder(options, dir, name);
    const struct {
        double now;
        int parts;
    } when[] = {{1000, 1}, {1030, 1}, {1061, 2},    {1070, 2},    {1e9, 3},
                {5, 3},    {-1e9, 3}, {1e9 + 2, 3}, {1e9 + 61, 4}};
    for (size_t i = 0; i < sizeof when / sizeof when[0]; i++) {
        bl_recorder_totals totals;
        fake_now = when[i].now;
        push_step(tracer, i + 1);
        poll_once(recorder);
        poll_once(recorder);
        bl_recorder_read_totals(recorder, &totals);
        assert_int_equal(totals.files, when[i].parts);
    }
    bl_trace_close(tracer);
    bl_recorder_totals totals;
    assert_ok(bl_recorder_finish(recorder, &totals, &err));
    assert_balances(&totals);
    assert_int_equal(read_all(dir).records, 2 * sizeof when / sizeof when[0]);
}

/* ---- recorders that come and go --------------------------------------------------------------- */

/* A successor goes on where the first was, in the same directory; nothing is lost or doubled. */
static void a_successor_goes_on(void **state) {
    (void)state;
    bl_error err;
    const char *dir = directory("successor"), *other = directory("other");
    const char *name = ring_name("successor");
    bl_recorder_options options = BL_RECORDER_OPTIONS_INIT;
    bl_tracer *tracer = open_tracer(name, 1 << 16);
    bl_recorder_totals totals;
    for (int round = 0; round < 5; round++) {
        bl_recorder *recorder = open_recorder(options, dir, name);
        for (uint64_t step = 0; step < 100; step++) {
            push_step(tracer, (uint64_t)round * 100 + step);
            if (step % 30 == 29)
                poll_once(recorder);
        }
        if (round < 4) {
            bl_recorder_abandon(recorder); /* what it read and did not write is read again */
            continue;
        }
        bl_trace_close(tracer);
        assert_ok(bl_recorder_finish(recorder, &totals, &err));
    }
    assert_balances(&totals);
    assert_int_equal(totals.earlier + totals.written, 1000);
    const contents c = read_all(dir);
    assert_int_equal(c.records, 1000);
    assert_true(c.complete);
    /* Somebody else's recording is not gone on with. */
    tracer = open_tracer(name, 1 << 16);
    bl_recorder *recorder = NULL;
    options.directory = dir;
    assert_ok(bl_recorder_open(&options, &recorder, &err));
    assert_fails(bl_recorder_attach(recorder, name, &err), BL_ERR_STATE, "earlier recording");
    assert_true(bl_recorder_has_earlier(recorder));
    bl_recorder_abandon(recorder);
    options.directory = other;
    assert_ok(bl_recorder_open(&options, &recorder, &err));
    assert_ok(bl_recorder_attach(recorder, name, &err));
    bl_recorder_abandon(recorder);
    bl_trace_close(tracer);
}

/* Killed within a commit, before and after the chunk was whole (tracer/ring.h). */
static void a_recorder_killed_within_a_commit(void **state) {
    (void)state;
    bl_error err;
    for (int whole = 0; whole < 2; whole++) {
        const char *dir = directory(whole ? "commit1" : "commit0"), *name = ring_name("commit");
        char file[600];
        bl_tracer *tracer = open_tracer(name, 1 << 16);
        bl_ring ring;
        bl_ring_shape *shape = calloc(1, sizeof *shape);
        assert_non_null(shape);
        push_step(tracer, 1);
        push_step(tracer, 2);
        assert_ok(bl_ring_attach(name, &ring, shape, &err));
        snprintf(file, sizeof file, "%s/rank-00000.000001.blt", dir);
        bl_trace_info info;
        bl_blt_writer *writer;
        const int rank = 0;
        assert_ok(
            bl_trace_info_create("test", LAYERS, N_LAYERS, N_EXPERTS, K, "record", &info, &err));
        assert_ok(bl_trace_info_set_ranks(&info, 1, &rank, 1, &err));
        info.part = 1;
        assert_ok(bl_blt_create(file, &info, true, &writer, &err));
        const uint64_t from = bl_blt_bytes(writer);
        for (int i = 0; i < 4; i++) {
            bl_ring_entry entry;
            const unsigned char *body;
            int32_t ids[13 * K];
            assert_ok(bl_ring_peek(&ring, &entry, &body, &err));
            assert_non_null(body);
            for (size_t slot = 0; slot < entry.n_tokens * K; slot++)
                ids[slot] = body[slot];
            const bl_record record = {.step = entry.step,
                                      .layer = entry.layer,
                                      .phase = BL_PHASE_DECODE,
                                      .n_ids = N_EXPERTS,
                                      .n_tokens = entry.n_tokens,
                                      .k = K,
                                      .ids = ids};
            assert_ok(bl_blt_write(writer, &record, &err));
            bl_ring_pop(&ring, &entry);
        }
        const bl_ring_ledger ledger = {.records = 4};
        bl_ring_begin_commit(&ring, file, from, &ledger);
        assert_ok(bl_blt_flush(writer, &err));
        bl_blt_abandon(writer);
        if (!whole) {
            struct stat now;
            assert_int_equal(stat(file, &now), 0);
            assert_int_equal(truncate(file, now.st_size - 1), 0);
        }
        ring.read = atomic_load(&ring.memory->tail); /* as a killed process leaves it */
        bl_ring_detach(&ring, false);
        bl_trace_info_free(&info);
        free(shape);
        push_step(tracer, 3);
        bl_recorder *recorder = open_recorder(BL_RECORDER_OPTIONS_INIT, dir, name);
        bl_trace_close(tracer);
        bl_recorder_totals totals;
        assert_ok(bl_recorder_finish(recorder, &totals, &err));
        assert_balances(&totals);
        assert_int_equal(totals.earlier, whole ? 4 : 0);
        assert_int_equal(read_all(dir).records, 6);
    }
}

static void wait_for_byte(int fd) {
    char byte;
    assert_int_equal(read(fd, &byte, 1), 1);
}

/* A recorder is really killed, twenty times, at any moment, while the engine goes on. */
static void killed_recorders(void **state) {
    (void)state;
    bl_error err;
    const char *dir = directory("kills"), *name = ring_name("kills");
    bl_tracer *tracer = open_tracer(name, 1 << 16);
    uint64_t step = 0;
    for (int round = 0; round < 20; round++) {
        int ready[2];
        assert_int_equal(pipe(ready), 0);
        const pid_t child = fork();
        if (child == 0) {
            bl_recorder_options options = BL_RECORDER_OPTIONS_INIT;
            bl_recorder *recorder = NULL;
            options.directory = dir;
            options.rotate_bytes = 5000;
            uint64_t n = 0;
            if (bl_recorder_open(&options, &recorder, &err) < 0 ||
                bl_recorder_attach(recorder, name, &err) < 0 || write(ready[1], "", 1) != 1)
                _exit(1);
            while (bl_recorder_poll(recorder, &n, &err) == BL_OK)
                ;
            _exit(2);
        }
        close(ready[1]);
        wait_for_byte(ready[0]);
        for (int i = 0; i < 100 + round * 3; i++)
            push_step(tracer, step++);
        kill(child, SIGKILL);
        int how;
        assert_int_equal(waitpid(child, &how, 0), child);
        assert_true(WIFSIGNALED(how));
        close(ready[0]);
    }
    bl_recorder *recorder = open_recorder(BL_RECORDER_OPTIONS_INIT, dir, name);
    bl_trace_counters counters;
    bl_trace_read_counters(tracer, &counters);
    bl_trace_close(tracer);
    bl_recorder_totals totals;
    assert_ok(bl_recorder_finish(recorder, &totals, &err));
    assert_balances(&totals);
    const contents c = read_all(dir);
    assert_int_equal(counters.pushed, 2 * step);
    assert_int_equal(c.records, counters.kept);
    assert_int_equal(c.dropped, counters.dropped);
    assert_int_equal(c.records + c.dropped, 2 * step);
    assert_false(ring_exists(name));
}

/* ---- engines that die and come back ----------------------------------------------------------- */

/* An engine that is killed: all that it published is kept, its ring is removed, and the one that
 * comes after it under the same name is another run. */
static void an_engine_killed_and_restarted(void **state) {
    (void)state;
    bl_error err;
    const char *dir = directory("restart"), *name = ring_name("restart");
    bl_recorder *recorder = NULL;
    uint64_t kept = 0;
    fake_now = 0;
    bl_recorder_options options = BL_RECORDER_OPTIONS_INIT;
    options.directory = dir;
    options.clock = fake_clock;
    assert_ok(bl_recorder_open(&options, &recorder, &err));
    for (int round = 0; round < 2; round++) {
        int ready[2];
        assert_int_equal(pipe(ready), 0);
        const pid_t child = fork();
        if (child == 0) {
            bl_tracer *tracer = open_tracer(name, 1 << 20);
            for (uint64_t step = 0; step < 50; step++)
                push_step(tracer, step);
            bl_trace_step_begin(tracer, 50, BL_PHASE_DECODE, 0); /* dies in this one */
            if (write(ready[1], "", 1) == 1)
                pause();
            _exit(1);
        }
        wait_for_byte(ready[0]);
        assert_false(bl_recorder_has(recorder, name));
        assert_ok(bl_recorder_attach(recorder, name, &err));
        assert_true(bl_recorder_has(recorder, name));
        kill(child, SIGKILL);
        assert_int_equal(waitpid(child, NULL, 0), child);
        fake_now += 1;
        poll_once(recorder);
        assert_true(bl_recorder_is_over(recorder));
        kept += 100;
        bl_recorder_totals totals;
        bl_recorder_read_totals(recorder, &totals);
        assert_int_equal(totals.written, kept);
        assert_balances(&totals);
        close(ready[0]);
        close(ready[1]);
    }
    assert_ok(bl_recorder_finish(recorder, NULL, &err));
    const contents c = read_all(dir); /* checks that no (run, step) is there twice */
    assert_int_equal(c.records, 200);
    assert_false(ring_exists(name));
}

static bl_ring_memory *map_ring(const char *name, size_t *bytes) {
    char object[128];
    struct stat info;
    snprintf(object, sizeof object, BL_RING_PREFIX "%s", name);
    const int fd = shm_open(object, O_RDWR, 0);
    assert_true(fd >= 0 && fstat(fd, &info) == 0);
    *bytes = (size_t)info.st_size;
    bl_ring_memory *memory = mmap(NULL, *bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    assert_true(memory != MAP_FAILED);
    return memory;
}

/* A process id that is in use again: it is the start time that tells. */
static void a_stale_ring_under_a_living_pid(void **state) {
    (void)state;
    bl_error err;
    const char *name = ring_name("stale");
    size_t bytes;
    const pid_t child = fork();
    if (child == 0) {
        bl_tracer *tracer = open_tracer(name, 1 << 16);
        push_step(tracer, 1);
        _exit(0);
    }
    assert_int_equal(waitpid(child, NULL, 0), child);
    bl_ring_memory *memory = map_ring(name, &bytes);
    const uint64_t me = bl_ring_who_am_i();
    assert_true(bl_ring_who_is_alive(me));
    assert_true(me >> 32 != 0);
    memory->producer = me + ((uint64_t)1 << 32); /* our pid, another start */
    assert_false(bl_ring_who_is_alive(memory->producer));
    bl_recorder *recorder = open_recorder(BL_RECORDER_OPTIONS_INIT, directory("stale"), name);
    poll_once(recorder);
    assert_true(bl_recorder_is_over(recorder)); /* what it had is kept */
    bl_recorder_totals totals;
    assert_ok(bl_recorder_finish(recorder, &totals, &err));
    assert_int_equal(totals.written, 2);
    munmap(memory, bytes);
    assert_false(ring_exists(name));
    /* Nobody recorded it: the next engine replaces it. */
    const pid_t second = fork();
    if (second == 0) {
        bl_tracer *tracer = open_tracer(name, 1 << 16);
        push_step(tracer, 1);
        _exit(0);
    }
    assert_int_equal(waitpid(second, NULL, 0), second);
    assert_true(ring_exists(name));
    bl_tracer *tracer = open_tracer(name, 1 << 16);
    bl_trace_close(tracer);
    assert_false(ring_exists(name));
}

/* Another process may write anything into its ring: that ring is given up by name, the rest goes on. */
static void a_ring_full_of_nonsense(void **state) {
    (void)state;
    bl_error err;
    const char *dir = directory("nonsense"), *name[2] = {ring_name("bad"), ring_name("good")};
    bl_recorder_options options = BL_RECORDER_OPTIONS_INIT;
    bl_recorder *recorder = NULL;
    bl_tracer *tracer[2];
    size_t bytes;
    options.directory = dir;
    assert_ok(bl_recorder_open(&options, &recorder, &err));
    for (int rank = 0; rank < 2; rank++) {
        tracer[rank] = open_rank(name[rank], 1 << 16, rank, 2);
        assert_ok(bl_recorder_attach(recorder, name[rank], &err));
        push_step(tracer[rank], 1);
    }
    poll_once(recorder);
    bl_ring_memory *memory = map_ring(name[0], &bytes);
    const uint64_t at = atomic_load(&memory->head);
    push_step(tracer[0], 2);
    memset((unsigned char *)memory + memory->data_offset + at, 0x5a, 64);
    push_step(tracer[1], 2);
    poll_once(recorder);
    push_step(tracer[1], 3);
    assert_true(bl_recorder_has(recorder, name[0])); /* not to be attached again */
    assert_false(bl_recorder_is_over(recorder));
    bl_trace_close(tracer[1]);
    bl_recorder_totals totals;
    assert_ok(bl_recorder_finish(recorder, &totals, &err));
    assert_int_equal(totals.written, 2 + 6);
    assert_int_equal(totals.rejected, 1);
    bl_test_has(totals.why_rejected, "makes no sense; nothing more is read from it");
    bl_trace_close(tracer[0]);
    munmap(memory, bytes);
}

/* ---- full disks ------------------------------------------------------------------------------- */

/* A write fails in the middle of a chunk (here by a limit on a file's size): the part is cut back to
 * its last whole chunk, the next one takes over, and the rings have lost nothing. */
static void a_write_that_fails(void **state) {
    (void)state;
    bl_error err;
    const char *dir = directory("limit"), *name = ring_name("limit");
    struct rlimit before, low;
    bl_recorder_options options = BL_RECORDER_OPTIONS_INIT;
    options.clock = fake_clock;
    fake_now = 0;
    bl_tracer *tracer = open_tracer(name, 1 << 20);
    bl_recorder *recorder = open_recorder(options, dir, name);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    low = before;
    low.rlim_cur = 5000;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &low), 0);
    uint64_t step = 0;
    bool held = false;
    for (int i = 0; i < 100; i++) {
        bl_recorder_totals totals;
        for (int j = 0; j < 10; j++)
            push_step(tracer, step++);
        fake_now += 1.01;
        poll_once(recorder);
        bl_recorder_read_totals(recorder, &totals);
        held = held || totals.n_held > 0;
    }
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    bl_trace_close(tracer);
    fake_now += 2;
    poll_once(recorder);
    bl_recorder_totals totals;
    assert_ok(bl_recorder_finish(recorder, &totals, &err));
    assert_true(held);
    bl_test_has(totals.why_held, "cannot write");
    assert_balances(&totals);
    const contents c = read_all(dir);
    assert_int_equal(c.records + c.dropped, 2 * step);
    assert_int_equal(c.dropped, totals.dropped);
    assert_true(n_files(dir) > 1);
}

/* Less room than asked for: nothing is written, the ring does the dropping, and once the recorder is
 * told that there is room, all that the ring holds is there. */
static void a_guard_for_free_space(void **state) {
    (void)state;
    bl_error err;
    const char *dir = directory("guard"), *name = ring_name("guard");
    int ready[2];
    assert_int_equal(pipe(ready), 0);
    const pid_t child = fork();
    if (child == 0) {
        bl_tracer *tracer = open_tracer(name, 8192);
        for (uint64_t step = 0; step < 100; step++)
            push_step(tracer, step);
        if (write(ready[1], "", 1) == 1)
            pause();
        _exit(1);
    }
    wait_for_byte(ready[0]);
    bl_recorder_options options = BL_RECORDER_OPTIONS_INIT;
    options.min_free_bytes = INT64_MAX / 2;
    bl_recorder *recorder = open_recorder(options, dir, name);
    poll_once(recorder);
    assert_false(bl_recorder_is_over(recorder));
    assert_false(bl_recorder_is_stuck(recorder));
    bl_recorder_totals totals;
    bl_recorder_read_totals(recorder, &totals);
    assert_int_equal(totals.n_held, 1);
    assert_int_equal(totals.written, 0);
    assert_true(totals.dropped > 0 && totals.fullest > 0.5);
    kill(child, SIGKILL);
    assert_int_equal(waitpid(child, NULL, 0), child);
    assert_fails(bl_recorder_finish(recorder, NULL, &err), BL_ERR_IO, "--min-free");
    assert_true(ring_exists(name)); /* for whoever comes with more room */
    assert_int_equal(n_files(dir), 0);
    recorder = open_recorder(BL_RECORDER_OPTIONS_INIT, dir, name);
    assert_ok(bl_recorder_finish(recorder, &totals, &err));
    assert_balances(&totals);
    assert_int_equal(totals.pushed, 200);
    const contents c = read_all(dir);
    assert_int_equal(c.records + c.dropped, 200);
    assert_false(ring_exists(name));
    close(ready[0]);
    close(ready[1]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_by_size),
        cmocka_unit_test(many_parts),
        cmocka_unit_test(a_missing_part_is_named),
        cmocka_unit_test(a_clock_that_jumps),
        cmocka_unit_test(a_successor_goes_on),
        cmocka_unit_test(a_recorder_killed_within_a_commit),
        cmocka_unit_test(killed_recorders),
        cmocka_unit_test(an_engine_killed_and_restarted),
        cmocka_unit_test(a_stale_ring_under_a_living_pid),
        cmocka_unit_test(a_ring_full_of_nonsense),
        cmocka_unit_test(a_write_that_fails),
        cmocka_unit_test(a_guard_for_free_space),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
