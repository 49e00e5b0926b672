/* The common ground: errors, sizes, options, JSON, CSV, npy, files. */
#include "tests/support/support.h"

#include "core/base64.h"
#include "core/csv.h"
#include "core/half.h"
#include "core/hash.h"
#include "core/io.h"
#include "core/json.h"
#include "core/mem.h"
#include "core/npy.h"
#include "core/opt.h"
#include "core/rng.h"

#include <math.h>
#include <dirent.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static void first_error_wins(void **state) {
    (void)state;
    bl_error err = BL_ERROR_INIT;
    assert_int_equal(bl_fail_at(&err, BL_ERR_RANGE, bl_at_expert("p.json", 17, 5), "no %s", "slot"),
                     BL_ERR_RANGE);
    bl_fail(&err, BL_ERR_IO, "hides the cause");
    char text[256];
    bl_error_format(&err, text, sizeof text);
    assert_string_equal(text, "p.json: layer 17: expert 5: no slot");
    assert_int_equal(bl_fail(NULL, BL_ERR_IO, "nobody listens"), BL_ERR_IO);
    assert_string_equal(bl_status_name(BL_ERR_PEER), "ERR_PEER");
    assert_string_equal(bl_status_string(-12345), "unknown status");
}

static void messages_are_one_line(void **state) {
    (void)state;
    bl_error err = BL_ERROR_INIT;
    bl_fail(&err, BL_ERR_PARSE, "tensor %s", "a\nb\x1b[0m \xc3\xa9");
    assert_string_equal(err.text, "tensor a?b?[0m \xc3\xa9");
}

static void sizes_are_checked(void **state) {
    (void)state;
    size_t out = 7;
    assert_true(bl_size_mul(3, 5, &out) && out == 15);
    assert_false(bl_size_mul(SIZE_MAX / 2, 3, &out) || bl_size_add(SIZE_MAX, 1, &out));
    assert_int_equal(out, 15);
    bl_arena *arena = bl_arena_new(64);
    assert_null(bl_arena_calloc(arena, SIZE_MAX, 2));
    char *a = bl_arena_calloc(arena, 10, 1), *b = bl_arena_calloc(arena, 1000, 1);
    assert_true(a != NULL && b != NULL && (uintptr_t)b % 16 == 0 && b[999] == 0);
    memset(a, 1, 10);
    memset(b, 2, 1000);
    assert_int_equal(a[9], 1);
    bl_arena_free(arena);
}

static void rng_is_reproducible(void **state) {
    (void)state;
    /* Reference: splitmix64 with seed 0 starts 0xe220a8397b1dcdaf (Vigna's test vector). */
    uint64_t seed = 0;
    assert_true(bl_splitmix64(&seed) == UINT64_C(0xe220a8397b1dcdaf));
    bl_rng rng;
    bl_rng_seed(&rng, 42);
    double sum = 0;
    for (int i = 0; i < 10000; i++) {
        assert_in_range(bl_rng_below(&rng, 10), 0, 9);
        sum += bl_rng_unit(&rng);
    }
    assert_true(fabs(sum / 10000 - 0.5) < 0.02);
}

typedef struct demo_opts {
    const char *out;
    int64_t n, bytes;
    double wait;
    bool json;
    int rule;
    bl_opt_range steps;
    bl_opt_list files;
} demo_opts;

static const char *const rules[] = {"even", "nearest", NULL};
static const bl_opt demo_options[] = {
    {"output", 'o', BL_OPT_STRING, offsetof(demo_opts, out), .metavar = "FILE", .required = true,
     .help = "where to"},
    {"number", 'n', BL_OPT_INT, offsetof(demo_opts, n), .metavar = "N", .min = 1, .max = 8,
     .help = "how many"},
    {"bytes", 0, BL_OPT_BYTES, offsetof(demo_opts, bytes), .metavar = "B", .help = "size"},
    {"wait", 0, BL_OPT_DURATION, offsetof(demo_opts, wait), .metavar = "T", .help = "time"},
    {"json", 0, BL_OPT_FLAG, offsetof(demo_opts, json), .help = "in JSON"},
    {"rule", 0, BL_OPT_CHOICE, offsetof(demo_opts, rule), .choices = rules, .help = "rule"},
    {"steps", 0, BL_OPT_RANGE, offsetof(demo_opts, steps), .metavar = "A:B", .help = "steps"},
    {"file", 0, BL_OPT_LIST, offsetof(demo_opts, files), .metavar = "F", .help = "files"},
    {0}};
static const bl_verb demo = {.name = "demo",
                             .arguments = "ARG",
                             .summary = "A demo",
                             .options = demo_options,
                             .options_bytes = sizeof(demo_opts),
                             .min_args = 0,
                             .max_args = 2};

static bl_status parse_line(const char *line, demo_opts *opts, int *n_args, bl_error *err) {
    static char copy[512];
    char *argv[32];
    int argc = 0;
    snprintf(copy, sizeof copy, "%s", line);
    for (char *word = strtok(copy, " "); word != NULL; word = strtok(NULL, " "))
        argv[argc++] = word;
    bool help;
    memset(opts, 0, sizeof *opts);
    return bl_opt_parse(&demo, opts, argc, argv, n_args, &help, err);
}

static void options_are_parsed(void **state) {
    (void)state;
    bl_error err;
    demo_opts opts;
    int n_args;
    assert_ok(parse_line("a --output=x -n3 --bytes 64M --wait 250ms --json --rule nearest "
                         "--steps 2:9 --file p --file q -- --b",
                         &opts, &n_args, &err));
    assert_int_equal(n_args, 2);
    assert_string_equal(opts.out, "x");
    assert_int_equal(opts.n, 3);
    assert_int_equal(opts.bytes, 64 << 20);
    assert_true(fabs(opts.wait - 0.25) < 1e-12);
    assert_true(opts.json && opts.rule == 1 && opts.steps.first == 2 && opts.steps.end == 9);
    assert_true(opts.files.n == 2 && strcmp(opts.files.items[1], "q") == 0);
    assert_ok(parse_line("-o x --steps 5:", &opts, &n_args, &err));
    assert_true(opts.steps.first == 5 && opts.steps.end == INT64_MAX);
}

static void wrong_options_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *line, *says;
    } cases[] = {{"", "--output is missing"},
                 {"-o x --otput y", "did you mean --output?"},
                 {"-o x -n 9", "must be in [1, 8]"},
                 {"-o x -n 3x", "a whole number"},
                 {"-o x -n 99999999999999999999", "a whole number"},
                 {"-o x --bytes 3Q", "a size"},
                 {"-o x --bytes nan", "a size"},
                 {"-o x --wait 5parsec", "a duration"},
                 {"-o x --rule evn", "did you mean even?"},
                 {"-o x --steps 5:5", "half-open"},
                 {"-o x --steps -1:5", "half-open"},
                 {"-o x --json=1", "takes no value"},
                 {"-o x -n 1 -n 2", "given twice"},
                 {"-o", "wants a value"},
                 {"-o x a b c", "unexpected argument \"c\""}};
    bl_error err;
    demo_opts opts;
    int n_args;
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++)
        assert_fails(parse_line(cases[c].line, &opts, &n_args, &err), BL_ERR_USAGE, cases[c].says);
}

static void json_is_strict(void **state) {
    (void)state;
    bl_error err;
    json_t *root = NULL;
    assert_fails(bl_json_parse("{\"a\":1,\n\"a\":2}", 14, "t", &root, &err), BL_ERR_PARSE,
                 "duplicate");
    assert_int_equal(err.line, 2);
    assert_fails(bl_json_parse("{\"a\":1} x", 9, "t", &root, &err), BL_ERR_PARSE, "end of file");
    assert_fails(bl_json_parse("{\"a\":NaN}", 9, "t", &root, &err), BL_ERR_PARSE, "NaN");
    const char *text = "{\"n\":5,\"x\":2.5,\"s\":\"v\",\"z\":null}";
    assert_ok(bl_json_parse(text, strlen(text), "t", &root, &err));
    int64_t n;
    double x;
    const char *s;
    assert_ok(bl_json_int(root, "n", 0, 5, "t", &n, &err));
    assert_int_equal(n, 5);
    assert_ok(bl_json_real(root, "n", 0, 9, "t", &x, &err));
    assert_ok(bl_json_int_or(root, "z", 0, 9, 4, "t", &n, &err));
    assert_int_equal(n, 4);
    assert_fails(bl_json_int(root, "x", 0, 9, "t", &n, &err), BL_ERR_PARSE, "not a real");
    assert_fails(bl_json_int(root, "n", 0, 4, "t", &n, &err), BL_ERR_RANGE, "[0, 4]");
    assert_fails(bl_json_string(root, "q", "t", &s, &err), BL_ERR_PARSE, "\"q\" is missing");
    json_decref(root);
}

typedef struct csv_seen {
    int rows;
    int64_t line, sum;
    char last[64];
} csv_seen;

static bl_status on_row(const bl_csv_row *row, void *user, bl_error *err) {
    csv_seen *seen = user;
    int64_t number;
    BL_TRY(bl_csv_int(row, 0, 0, 100, &number, err));
    seen->rows++;
    seen->line = row->line;
    seen->sum += number;
    snprintf(seen->last, sizeof seen->last, "%s", row->n_fields > 1 ? row->fields[1] : "");
    return BL_OK;
}

static void csv_rows_have_lines(void **state) {
    (void)state;
    bl_error err;
    csv_seen seen = {0};
    assert_ok(bl_csv_read(bl_test_write("a.csv", "1,\"x,\n\"\"y\"\"\"\n\n2,b\r\n 3 ,c"), on_row,
                          &seen, &err));
    assert_int_equal(seen.rows, 3);
    assert_int_equal(seen.sum, 6);
    assert_int_equal(seen.line, 5);
    assert_fails(bl_csv_read(bl_test_write("b.csv", "1,a\n2x,b\n"), on_row, &seen, &err),
                 BL_ERR_PARSE, "\"2x\", not an integer");
    assert_int_equal(err.line, 2);
    assert_fails(bl_csv_read(bl_test_write("c.csv", "101\n"), on_row, &seen, &err), BL_ERR_RANGE,
                 "[0, 100]");
    assert_fails(bl_csv_read(bl_test_write("d.csv", "1,\"open\n"), on_row, &seen, &err),
                 BL_ERR_PARSE, "not valid CSV");
    assert_int_equal(err.line, 1); /* where the row starts that nothing closes */
    assert_fails(bl_csv_read(bl_test_temp("none.csv"), on_row, &seen, &err), BL_ERR_IO, "No such");
}

/* Endless input ends with a word and not with all memory taken. */
static void endless_files_are_refused(void **state) {
    (void)state;
    bl_error err;
    bl_npy npy;
    char *text;
    size_t bytes;
    csv_seen seen = {0};
    if (access("/dev/zero", R_OK) == 0) {
        assert_fails(bl_read_file("/dev/zero", 100, &text, &bytes, &err), BL_ERR_IO, "a device");
        assert_fails(bl_npy_load("/dev/zero", &npy, &err), BL_ERR_IO, "a device");
        assert_fails(bl_csv_read("/dev/zero", on_row, &seen, &err), BL_ERR_IO, "a device");
        assert_ok(bl_read_file("/dev/null", 100, &text, &bytes, &err));
        assert_int_equal(bytes, 0);
        free(text);
    }
    const char *path = bl_test_write("long.csv", "1,x\n2,");
    FILE *out = fopen(path, "ab");
    assert_non_null(out);
    assert_int_equal(fseeko(out, 0, SEEK_END), 0);
    static const char LINE[1 << 16] = {'x'};
    for (size_t at = 0; at <= BL_CSV_MAX_ROW_BYTES; at += sizeof LINE)
        assert_int_equal(fwrite(LINE, 1, sizeof LINE, out), sizeof LINE);
    fclose(out);
    assert_fails(bl_csv_read(path, on_row, &seen, &err), BL_ERR_RANGE, "a row of more than");
    assert_int_equal(err.line, 2);
    unlink(path);
    /* lines stay right where a block ends between CR and LF */
    text = calloc(1, (1 << 16) + 8);
    memset(text, ' ', (1 << 16) - 1);
    text[0] = '7';
    strcpy(text + (1 << 16) - 1, "\r\n8,b\n");
    seen = (csv_seen){0};
    assert_ok(bl_csv_read(bl_test_write("edge.csv", text), on_row, &seen, &err));
    assert_int_equal(seen.rows, 2);
    assert_int_equal(seen.line, 2);
    free(text);
}

static void npy_round_trip(void **state) {
    (void)state;
    bl_error err;
    const int32_t data[6] = {1, -2, 3, INT32_MIN, 5, INT32_MAX};
    const size_t shape[2] = {2, 3};
    const char *path = bl_test_temp("a.npy");
    assert_ok(bl_npy_write(path, "<i4", shape, 2, data, &err));
    bl_npy npy;
    assert_ok(bl_npy_load(path, &npy, &err));
    assert_true(npy.kind == 'i' && npy.n_dims == 2 && npy.shape[0] == 2 && npy.shape[1] == 3);
    for (size_t i = 0; i < 6; i++)
        assert_int_equal(bl_npy_int(&npy, i), data[i]);
    assert_true(((uintptr_t)(npy.data - (unsigned char *)npy.owner)) % 64 == 0);
    bl_npy_free(&npy);
}

static void npy_images_are_checked(void **state) {
    (void)state;
    static const struct {
        const char *header;
        size_t data_bytes;
        bl_status code;
        const char *says;
    } cases[] = {
        {"{'descr': '<f2', 'fortran_order': False, 'shape': (3,), }", 6, BL_OK, ""},
        {"{'descr': '|u1', 'fortran_order': False, 'shape': (), }", 1, BL_OK, ""},
        {"{'descr': '<f2', 'fortran_order': False, 'shape': (3,), }", 5, BL_ERR_SHAPE, "5 bytes"},
        {"{'descr': '>f4', 'fortran_order': False, 'shape': (1,), }", 4, BL_ERR_UNSUPPORTED,
         "big-endian"},
        {"{'descr': '|O8', 'fortran_order': False, 'shape': (1,), }", 8, BL_ERR_UNSUPPORTED, "O8"},
        {"{'descr': [('a', '<i4')], 'fortran_order': False, 'shape': (1,), }", 4,
         BL_ERR_UNSUPPORTED, "plain numbers"},
        {"{'descr': '<i4', 'fortran_order': True, 'shape': (1,), }", 4, BL_ERR_UNSUPPORTED,
         "C order"},
        {"{'descr': '<i4', 'fortran_order': False, 'shape': (99999999999,99999999999), }", 4,
         BL_ERR_RANGE, "overflows"},
        {"{'descr': '<i4', 'fortran_order': False, 'shape': (1,", 4, BL_ERR_PARSE, "malformed"},
        {"{'fortran_order': False, 'shape': (1,), }", 4, BL_ERR_UNSUPPORTED, "missing"}};
    bl_error err;
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        unsigned char image[256] = "\x93NUMPY\1\0";
        const size_t length = strlen(cases[c].header);
        image[8] = (unsigned char)length;
        memcpy(image + 10, cases[c].header, length);
        image[10 + length + 1] = 0x3c; /* second byte of the first item: 1.0 as f2 */
        bl_npy npy;
        err = BL_ERROR_INIT;
        const bl_status st =
            bl_npy_parse(image, 10 + length + cases[c].data_bytes, "t.npy", &npy, &err);
        assert_int_equal(st, cases[c].code);
        if (st < 0)
            bl_test_has(err.text, cases[c].says);
        else if (npy.kind == 'f')
            assert_true(bl_npy_real(&npy, 0) == 1.0);
    }
    bl_npy npy;
    assert_fails(bl_npy_parse("\x93NUMPY\1\0\377\377", 10, "t", &npy, &err), BL_ERR_PARSE,
                 "cut off");
    assert_fails(bl_npy_parse("\x93NUMPY\7\0\0\0", 10, "t", &npy, &err), BL_ERR_VERSION,
                 "version 7");
}

static void files_are_whole_or_absent(void **state) {
    (void)state;
    bl_error err;
    const char *path = bl_test_write("whole", "old");
    bl_file file;
    assert_ok(bl_file_create(&file, path, &err));
    fputs("half", file.stream);
    bl_file_discard(&file);
    char *text;
    size_t bytes;
    assert_ok(bl_read_file(path, 100, &text, &bytes, &err));
    assert_string_equal(text, "old");
    free(text);
    assert_fails(bl_write_file("/dev/full", "x", 1, &err), BL_ERR_IO, "No space");
    assert_fails(bl_write_file("/nowhere/at/all", "x", 1, &err), BL_ERR_IO, "cannot create");
    assert_fails(bl_read_file(path, 2, &text, &bytes, &err), BL_ERR_RANGE, "larger than 2");
    const char *const inputs[] = {NULL, "-", "/nowhere", path};
    char other[512];
    const char *name = strrchr(path, '/');
    snprintf(other, sizeof other, "%.*s/.%s", (int)(name - path), path, name);
    assert_ok(bl_check_output(path, inputs, 3, &err));
    assert_ok(bl_check_output("/dev/null", (const char *const[]){"/dev/null"}, 1, &err));
    assert_fails(bl_check_output(path, inputs, 4, &err), BL_ERR_USAGE, "would be lost");
    assert_fails(bl_check_output(other, inputs, 4, &err), BL_ERR_USAGE, "would be lost");
    assert_fails(bl_check_output("", inputs, 4, &err), BL_ERR_USAGE, "is empty");
    assert_fails(bl_read_file("/", 2, &text, &bytes, &err), BL_ERR_IO, "directory");
}

static void outputs_spare_what_is_read(void **state) {
    (void)state;
    bl_error err;
    char folder[512], member[600], link_name[512], fresh[600];
    snprintf(folder, sizeof folder, "%s", bl_test_temp("folder"));
    snprintf(member, sizeof member, "%s/rank0.blt", folder);
    snprintf(fresh, sizeof fresh, "%s/new.json", folder);
    snprintf(link_name, sizeof link_name, "%s", bl_test_temp("outside"));
    assert_int_equal(mkdir(folder, 0700), 0);
    assert_ok(bl_write_file(member, "x", 1, &err));
    assert_int_equal(link(member, link_name), 0);
    const char *const inputs[] = {folder};
    assert_fails(bl_check_output(member, inputs, 1, &err), BL_ERR_USAGE, "would be lost");
    assert_fails(bl_check_output(link_name, inputs, 1, &err), BL_ERR_USAGE, "would be lost");
    assert_ok(bl_check_output(fresh, inputs, 1, &err));
    unlink(link_name);
    unlink(member);
    rmdir(folder);
}

static int count_files(const char *folder) {
    DIR *dir = opendir(folder);
    int n = 0;
    assert_non_null(dir);
    while (readdir(dir) != NULL)
        n++;
    closedir(dir);
    return n - 2;
}

/* Writers of one path: kill -9 in the middle leaves nothing, and those that commit do so whole. */
static void writers_may_be_killed(void **state) {
    (void)state;
    enum { WRITERS = 6, BYTES = 1 << 16 };
    bl_error err;
    char folder[512], path[600];
    snprintf(folder, sizeof folder, "%s", bl_test_temp("writers"));
    snprintf(path, sizeof path, "%s/out", folder);
    assert_int_equal(mkdir(folder, 0700), 0);
    bl_file probe;
    assert_ok(bl_file_create(&probe, path, &err));
    const bool nameless = probe.nameless;
    bl_file_discard(&probe);
    pid_t writers[WRITERS];
    for (int i = 0; i < WRITERS; i++) {
        writers[i] = fork();
        if (writers[i] != 0)
            continue;
        bl_file file;
        if (bl_file_create(&file, path, NULL) < 0)
            _exit(1);
        for (int n = 0; n < BYTES; n++)
            fputc('a' + i, file.stream);
        fflush(file.stream);
        if (i == 0)
            raise(SIGKILL);
        _exit(bl_file_commit(&file, NULL) < 0);
    }
    for (int i = 0; i < WRITERS; i++) {
        int status;
        waitpid(writers[i], &status, 0);
        assert_true(i == 0 ? WIFSIGNALED(status) : WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    char *text;
    size_t bytes;
    assert_ok(bl_read_file(path, BYTES, &text, &bytes, &err));
    assert_int_equal(bytes, BYTES);
    for (int n = 1; n < BYTES; n++)
        assert_int_equal(text[n], text[0]);
    assert_true(text[0] > 'a');
    free(text);
    assert_int_equal(count_files(folder), nameless ? 1 : 2);
    unlink(path);
    rmdir(folder);
}

static void digests_are_stable(void **state) {
    (void)state;
    /* xxh3-128 of the empty input and xxh3-64 of it, as the xxHash project publishes them. */
    assert_string_equal(bl_digest_of("", 0).hex, "99aa06d3014798d86001c324468d497f");
    assert_true(bl_hash64("", 0) == UINT64_C(0x2d06800538d394c2));
    bl_hasher *hasher = bl_hasher_new();
    bl_hasher_add(hasher, "ab", 2);
    bl_hasher_add(hasher, "c", 1);
    assert_string_equal(bl_hasher_finish(hasher).hex, bl_digest_of("abc", 3).hex);
    static unsigned char many[10000]; /* longer than what a state holds back */
    for (size_t i = 0; i < sizeof many; i++)
        many[i] = (unsigned char)(i * i);
    hasher = bl_hasher_new();
    for (size_t at = 0; at < sizeof many; at += 625)
        bl_hasher_add(hasher, many + at, 625);
    assert_true(bl_hasher_finish64(hasher) == bl_hash64(many, sizeof many));
}

/* The test vectors of RFC 4648, and what is no base64. */
static void base64_is_strict(void **state) {
    (void)state;
    bl_error err;
    static const char *const good[][2] = {{"", ""},
                                          {"Zg==", "f"},
                                          {"Zm8=", "fo"},
                                          {"Zm9v", "foo"},
                                          {"Zm9vYg==", "foob"},
                                          {"Zm9vYmE=", "fooba"},
                                          {"+/+/", "\xfb\xff\xbf"}};
    static const char *const wrong[][2] = {
        {"Zg=", "no multiple of 4"},  {"Zg", "no multiple of 4"},  {"====", "character 1 of 4"},
        {"Z===", "character 2 of 4"}, {"Zg==Zg==", "character 3"}, {"Zm9\n", "0x0a"},
        {"Zh==", "bits behind"},      {"Zm9=", "bits behind"},     {"Zm-_", "character 3"}};
    unsigned char *bytes = NULL;
    size_t n = 99;
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        assert_ok(bl_base64_decode(good[i][0], strlen(good[i][0]), "x", &bytes, &n, &err));
        assert_int_equal(n, strlen(good[i][1]));
        assert_memory_equal(bytes, good[i][1], n);
        free(bytes);
    }
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        assert_fails(bl_base64_decode(wrong[i][0], strlen(wrong[i][0]), "x", &bytes, &n, &err),
                     BL_ERR_PARSE, wrong[i][1]);
}

/* All 65536 halves come back; between two neighbours the nearer one, in the middle the even one. */
static void halves_are_nearest(void **state) {
    (void)state;
    for (unsigned bits = 0; bits < 0x10000; bits++) {
        const double value = bl_half_to_real((uint16_t)bits);
        if (isnan(value))
            assert_true(isnan(bl_half_to_real(bl_half_from_real(value))));
        else
            assert_int_equal(bl_half_from_real(value), bits);
    }
    for (unsigned bits = 0; bits < 0x7bff; bits++) {
        const double low = bl_half_to_real((uint16_t)bits),
                     high = bl_half_to_real((uint16_t)(bits + 1)), middle = low + (high - low) / 2;
        assert_int_equal(bl_half_from_real(nextafter(middle, 0)), bits);
        assert_int_equal(bl_half_from_real(middle), bits + (bits & 1));
        assert_int_equal(bl_half_from_real(nextafter(middle, 1e9)), bits + 1);
    }
    assert_int_equal(bl_half_from_real(1), 0x3c00);
    assert_int_equal(bl_half_from_real(-2), 0xc000);
    assert_int_equal(bl_half_from_real(65504), 0x7bff);
    assert_int_equal(bl_half_from_real(65519.9), 0x7bff);
    assert_int_equal(bl_half_from_real(65520), 0x7c00);
    assert_int_equal(bl_half_from_real(-1e300), 0xfc00);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(first_error_wins),
        cmocka_unit_test(messages_are_one_line),
        cmocka_unit_test(sizes_are_checked),
        cmocka_unit_test(rng_is_reproducible),
        cmocka_unit_test(options_are_parsed),
        cmocka_unit_test(wrong_options_are_refused),
        cmocka_unit_test(json_is_strict),
        cmocka_unit_test(csv_rows_have_lines),
        cmocka_unit_test(endless_files_are_refused),
        cmocka_unit_test(npy_round_trip),
        cmocka_unit_test(npy_images_are_checked),
        cmocka_unit_test(base64_is_strict),
        cmocka_unit_test(files_are_whole_or_absent),
        cmocka_unit_test(outputs_spare_what_is_read),
        cmocka_unit_test(writers_may_be_killed),
        cmocka_unit_test(digests_are_stable),
        cmocka_unit_test(halves_are_nearest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
