/* The journal: what was appended is read again, a torn end is cut, damage is named, and a disk that
 * cannot be written says so. */
#include "tests/support/support.h"

#include "core/io.h"
#include "rebalancer/journal.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static const int slots[] = {2, 2};
static const int layers[] = {3, 5};

static bl_placement placement(void) {
    bl_error err;
    bl_placement made;
    assert_ok(bl_placement_create(2, 3, layers, 2, slots, &made, &err));
    bl_placement_fill_contiguous(&made);
    return made;
}

static json_t *wave(int layer, int epoch, int a, int b, int c, int d) {
    return json_pack("{s:s, s:i, s:i, s:i, s:[[i,i],[i,i]]}", "what", "wave", "move", 1, "layer",
                     layer, "epoch", epoch, "slots", a, b, c, d);
}

/* No file may grow beyond `bytes`; -1: as large as they like. */
static void limit_files(long bytes) {
    struct rlimit limit;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    limit.rlim_cur = bytes >= 0 ? (rlim_t)bytes : limit.rlim_max;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

static bl_status settle(bl_journal *journal, uint64_t number, bl_error *err) {
    const struct timespec millisecond = {0, 1000000};
    bl_status st;
    while ((st = bl_journal_check(journal, number, err)) == BL_LIMIT)
        nanosleep(&millisecond, NULL);
    return st;
}

/* A fresh path with three records: begin, two waves. */
static const char *three_records(const char *name) {
    bl_error err;
    bl_journal *journal;
    bl_journal_past past;
    const char *path = bl_test_temp(name);
    unlink(path);
    assert_ok(bl_journal_open(path, NULL, &past, &journal, &err));
    assert_int_equal(past.n_records, 0);
    bl_journal_append(journal, json_pack("{s:s, s:i}", "what", "begin", "move", 1));
    bl_journal_append(journal, wave(3, 1, 2, 0, 1, 0));
    const uint64_t last = bl_journal_append(journal, wave(3, 2, 2, 1, 1, 0));
    assert_int_equal(last, 3);
    assert_int_equal(settle(journal, last, &err), BL_OK);
    bl_journal_close(journal);
    return path;
}

static void test_a_run_goes_on_where_the_last_one_was(void **state) {
    (void)state;
    bl_error err;
    bl_journal *journal, *second;
    bl_journal_past past;
    const char *path = three_records("journal.1");
    bl_placement p = placement();
    assert_ok(bl_journal_open(path, &p, &past, &journal, &err));
    assert_int_equal(past.n_records, 3);
    assert_int_equal(past.n_waves, 2);
    assert_int_equal(past.move, 1);
    assert_false(past.ended);
    assert_int_equal(past.torn_bytes, 0);
    const int32_t want[] = {2, 1, 1, 0};
    assert_memory_equal(p.layers[0].expert, want, sizeof want);
    assert_int_equal(p.layers[1].expert[0], 0);
    assert_fails(bl_journal_open(path, NULL, &past, &second, &err), BL_ERR_STATE,
                 "another run writes this journal");
    bl_journal_append(journal, json_pack("{s:s}", "what", "end"));
    bl_journal_close(journal);
    assert_ok(bl_journal_open(path, NULL, &past, &journal, &err));
    assert_true(past.ended);
    bl_journal_close(journal);
    bl_placement_free(&p);
}

/* Killed, its parent has been told, and its memory is being torn down: its files are still held. */
static void test_a_dying_owner_is_awaited(void **state) {
    (void)state;
    bl_error err;
    bl_journal *journal;
    bl_journal_past past;
    const char *path = three_records("journal.6");
    int ready[2];
    char byte;
    assert_int_equal(pipe(ready), 0);
    const pid_t owner = fork();
    if (owner == 0) {
        if (bl_journal_open(path, NULL, &past, &journal, &err) < 0 || write(ready[1], "", 1) != 1)
            _exit(1);
        nanosleep(&(struct timespec){0, 300000000}, NULL);
        _exit(0);
    }
    assert_int_equal(read(ready[0], &byte, 1), 1);
    assert_fails(bl_journal_open(path, NULL, &past, &journal, &err), BL_ERR_STATE,
                 "another run writes this journal"); /* in the middle of serving: at once */
    assert_ok(bl_journal_succeed(path, NULL, &past, &journal, &err));
    bl_journal_close(journal);
    int how;
    assert_int_equal(waitpid(owner, &how, 0), owner);
    assert_int_equal(how, 0);
    close(ready[0]);
    close(ready[1]);
}

/* However much of the last record is missing, it is cut, and the ones before are there. */
static void test_a_torn_end_is_cut(void **state) {
    (void)state;
    bl_error err;
    char *text;
    size_t bytes;
    const char *whole = three_records("journal.2"), *path = bl_test_temp("journal.3");
    assert_ok(bl_read_file(whole, 1 << 20, &text, &bytes, &err));
    const char *second_end = strchr(strchr(text, '\n') + 1, '\n') + 1;
    const size_t kept = (size_t)(second_end - text);
    for (size_t cut = kept + 1; cut < bytes; cut++) {
        bl_journal *journal;
        bl_journal_past past;
        struct stat info;
        FILE *file = fopen(path, "wb");
        assert_int_equal(fwrite(text, 1, cut, file), cut);
        fclose(file);
        assert_ok(bl_journal_open(path, NULL, &past, &journal, &err));
        assert_int_equal(past.n_records, 2);
        assert_int_equal(past.torn_bytes, cut - kept);
        bl_journal_append(journal, json_pack("{s:s}", "what", "end"));
        bl_journal_close(journal);
        assert_int_equal(stat(path, &info), 0);
        assert_true((size_t)info.st_size > kept);
        assert_ok(bl_journal_open(path, NULL, &past, &journal, &err));
        assert_int_equal(past.n_records, 3);
        assert_true(past.ended);
        bl_journal_close(journal);
    }
    free(text);
}

static void test_damage_is_named(void **state) {
    (void)state;
    bl_error err;
    bl_journal *journal;
    bl_journal_past past;
    const char *path = three_records("journal.4");
    FILE *file = fopen(path, "r+b");
    fseek(file, 30, SEEK_SET);
    fputc('#', file);
    fclose(file);
    assert_fails(bl_journal_open(path, NULL, &past, &journal, &err), BL_ERR_CHECKSUM, "damaged");
    assert_int_equal(err.line, 1);
}

static void test_other_shapes_are_refused(void **state) {
    (void)state;
    bl_error err;
    bl_journal *journal;
    bl_journal_past past;
    const int other_slots[] = {3, 1};
    bl_placement p;
    const char *path = three_records("journal.5");
    assert_ok(bl_placement_create(2, 3, layers, 2, other_slots, &p, &err));
    assert_fails(bl_journal_open(path, &p, &past, &journal, &err), BL_ERR_SHAPE, "other slots");
    p.layers[0].layer = 2;
    assert_fails(bl_journal_open(path, &p, &past, &journal, &err), BL_ERR_SHAPE, "this layer");
    bl_placement_free(&p);
    assert_fails(bl_journal_open("/dev/null", NULL, &past, &journal, &err), BL_ERR_IO, "no file");
}

/* A disk that is full: the record fails, nothing half-written stays, and when there is room again
 * the next record is good. A limit on file sizes plays the disk. */
static void test_a_full_disk(void **state) {
    (void)state;
    bl_error err;
    bl_journal *journal;
    bl_journal_past past;
    const char *path = three_records("journal.6");
    assert_ok(bl_journal_open(path, NULL, &past, &journal, &err));
    struct stat info;
    assert_int_equal(stat(path, &info), 0);
    limit_files(info.st_size + 10);
    const uint64_t failed = bl_journal_append(journal, json_pack("{s:s}", "what", "end"));
    assert_fails(settle(journal, failed, &err), BL_ERR_IO, "no move starts without it");
    limit_files(-1);
    const uint64_t good = bl_journal_append(journal, json_pack("{s:s}", "what", "end"));
    assert_int_equal(settle(journal, good, &err), BL_OK);
    bl_journal_close(journal);
    assert_ok(bl_journal_open(path, NULL, &past, &journal, &err));
    assert_int_equal(past.n_records, 4);
    assert_int_equal(past.torn_bytes, 0);
    bl_journal_close(journal);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_run_goes_on_where_the_last_one_was),
        cmocka_unit_test(test_a_dying_owner_is_awaited),
        cmocka_unit_test(test_a_torn_end_is_cut),
        cmocka_unit_test(test_damage_is_named),
        cmocka_unit_test(test_other_shapes_are_refused),
        cmocka_unit_test(test_a_full_disk),
    };
    return cmocka_run_group_tests_name("journal", tests, NULL, NULL);
}
