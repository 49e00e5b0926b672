/*
 * Logs of nvbandwidth.
 *
 *     Running device_to_device_memcpy_write_ce.
 *     memcpy CE GPU(row) -> GPU(column) bandwidth (GB/s)
 *                0         1
 *      0       N/A    391.20
 *      1    392.11       N/A
 *
 *     SUM device_to_device_memcpy_write_ce 783.31
 *
 * The arrow says which way the bytes went. Only bandwidth between GPUs in one direction is taken:
 * copies by the copy engine before copies by kernels, writes before reads. Tests between host and
 * device, in both directions at once, or of load latency tell nothing that a topology holds.
 */
#include "topologies/import_source.h"

#include "core/mem.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MAX_GPUS 1024
#define SHOWN_RUNS 3 /* lines that a message about several runs names */

/* In order of preference. */
static const char *const tests[] = {
    "device_to_device_memcpy_write_ce", "device_to_device_memcpy_read_ce",
    "device_to_device_memcpy_write_sm", "device_to_device_memcpy_read_sm"};
#define N_TESTS (int)(sizeof tests / sizeof *tests)

typedef struct matrix {
    int n;
    double *bytes_per_s; /* [n][n], row = sender; NaN: not measured */
} matrix;

/* "Running NAME." or "Running NAME" */
static bool runs(const bl_line *line, const char *name) {
    bl_word words[3];
    if (bl_split_words(line, words, 3) != 2 || !bl_word_is(words[0], "Running"))
        return false;
    bl_word test = words[1];
    test.length -= test.text[test.length - 1] == '.';
    return bl_word_is(test, name);
}

/* ---- one matrix --------------------------------------------------------------------------- */

/* "memcpy CE GPU(row) -> GPU(column) bandwidth (GB/s)"; *transposed: the column sends. */
static bl_status read_title(const bl_import *in, const bl_line *line, bool *transposed,
                            bl_error *err) {
    bl_word words[8];
    const size_t n = bl_split_words(line, words, 8);
    for (size_t w = 1; w + 1 < n && w + 1 < 8; w++) {
        const bool out = bl_word_is(words[w], "->"), back = bl_word_is(words[w], "<-");
        if ((out || back) && bl_word_is(words[w - 1], "GPU(row)") &&
            bl_word_is(words[w + 1], "GPU(column)") && n > 1 &&
            bl_word_is(words[(n < 8 ? n : 8) - 1], "(GB/s)")) {
            *transposed = back;
            return BL_OK;
        }
    }
    return bl_fail_at(err, BL_ERR_PARSE, bl_at_line(in->file, line->number),
                      "expected \"... GPU(row) -> GPU(column) bandwidth (GB/s)\"");
}

static bl_status read_columns(const bl_import *in, const bl_line *line, matrix *m, bl_error *err) {
    const char *at = line->text;
    bl_word word;
    int64_t number;
    while (bl_next_word(&at, line->end, &word)) {
        if (!bl_word_int(word, &number) || number != m->n)
            return bl_fail_at(err, BL_ERR_PARSE, bl_at_line(in->file, line->number),
                              "columns must be numbered 0, 1, 2, ...");
        if (++m->n > MAX_GPUS)
            return bl_fail_at(err, BL_ERR_RANGE, bl_at_line(in->file, line->number),
                              "more than %d GPUs", MAX_GPUS);
    }
    return bl_import_make_pairs(m->n, &m->bytes_per_s, err);
}

static bl_status read_row(const bl_import *in, const bl_line *line, int row, bool transposed,
                          matrix *m, bl_error *err) {
    const bl_where where = bl_at_line(in->file, line->number);
    const char *at = line->text;
    bl_word word;
    int64_t number;
    if (!bl_next_word(&at, line->end, &word) || !bl_word_int(word, &number) || number != row)
        return bl_fail_at(err, BL_ERR_SHAPE, where, "row %d of %d is not here", row, m->n);
    for (int column = 0; column < m->n; column++) {
        char shown[24];
        double gb;
        if (!bl_next_word(&at, line->end, &word))
            return bl_fail_at(err, BL_ERR_SHAPE, where, "row %d has %d cells for %d columns", row,
                              column, m->n);
        if (bl_word_is(word, "N/A"))
            continue;
        if (!bl_word_real(word, &gb) || !(gb > 0 && gb < 1e6))
            return bl_fail_at(err, BL_ERR_PARSE, where, "row %d: \"%s\" is no bandwidth in GB/s",
                              row, bl_word_shown(word, shown, sizeof shown));
        const int from = transposed ? column : row, to = transposed ? row : column;
        if (row != column)
            m->bytes_per_s[(size_t)from * (size_t)m->n + (size_t)to] = gb * 1e9;
    }
    return BL_OK;
}

static bl_status cut_off(const bl_import *in, const bl_line *line, bl_error *err) {
    return bl_fail_at(err, BL_ERR_SHAPE, bl_at_line(in->file, line->number),
                      "the matrix ends here before it is whole");
}

static bl_status read_matrix(const bl_import *in, bl_line line, matrix *m, bl_error *err) {
    bool transposed = false;
    if (!bl_import_next_line(in, &line))
        return cut_off(in, &line, err);
    BL_TRY(read_title(in, &line, &transposed, err));
    if (!bl_import_next_line(in, &line))
        return cut_off(in, &line, err);
    BL_TRY(read_columns(in, &line, m, err));
    for (int row = 0; row < m->n; row++) {
        if (!bl_import_next_line(in, &line))
            return cut_off(in, &line, err);
        BL_TRY(read_row(in, &line, row, transposed, m, err));
    }
    if (m->n < 2)
        return bl_fail_at(err, BL_ERR_SHAPE, bl_at_line(in->file, line.number),
                          "%d GPU%s: no pair was measured", m->n, m->n == 1 ? "" : "s");
    return BL_OK;
}

/* ---- figures ------------------------------------------------------------------------------ */

static int compare_reals(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* A level's figure is the median of the pairs that meet at it. */
static bl_status set_levels(bl_import *in, const matrix *m, bl_topology *out, bl_error *err) {
    double *values;
    BL_TRY(BL_CALLOC(values, (size_t)m->n * (size_t)m->n, err));
    for (int level = 1; level <= out->n_levels; level++) {
        size_t n = 0;
        for (int from = 0; from < m->n; from++) {
            for (int to = 0; to < m->n; to++) {
                const double value = m->bytes_per_s[(size_t)from * (size_t)m->n + (size_t)to];
                if (from != to && bl_topology_level(out, from, to) == level && !isnan(value))
                    values[n++] = value;
            }
        }
        if (n == 0)
            continue;
        qsort(values, n, sizeof *values, compare_reals);
        bl_level *at = &out->levels[level];
        at->out_bytes_per_s = at->in_bytes_per_s = (bl_figure){
            n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2, BL_MEASURED};
        bl_import_note(in,
                       "Level %s: %.4g to %.4g GB/s over %zu pairs, their median is its figure.",
                       at->name, values[0] / 1e9, values[n - 1] / 1e9, n);
    }
    free(values);
    return BL_OK;
}

static bl_status set_pairs(const matrix *m, bl_topology *out, bl_error *err) {
    const size_t n = (size_t)out->n_ranks;
    if (out->pair_bytes_per_s == NULL)
        BL_TRY(bl_import_make_pairs((int)n, &out->pair_bytes_per_s, err));
    out->pair_bytes_source = BL_MEASURED;
    for (size_t from = 0; from < (size_t)m->n; from++) {
        for (size_t to = 0; to < (size_t)m->n; to++) {
            const double value = m->bytes_per_s[from * (size_t)m->n + to];
            if (!isnan(value))
                out->pair_bytes_per_s[from * n + to] = value;
        }
    }
    return BL_OK;
}

/* "Device 0: NVIDIA H100 80GB HBM3 (00000009:01:00)": the name between. */
static bool device_name(const bl_import *in, char *out, size_t room) {
    bl_line line = {0};
    while (bl_import_next_line(in, &line)) {
        static const char start[] = "Device 0: ";
        const size_t skip = sizeof start - 1;
        if ((size_t)(line.end - line.text) <= skip || memcmp(line.text, start, skip) != 0)
            continue;
        const char *end = line.end;
        while (end > line.text + skip && *(end - 1) != '(')
            end--;
        end = end > line.text + skip ? end - 1 : line.end;
        while (end > line.text + skip && *(end - 1) == ' ')
            end--;
        bl_word_shown((bl_word){line.text + skip, (size_t)(end - line.text) - skip}, out, room);
        return true;
    }
    return false;
}

/* The base, of which the first ranks were measured; without one a single domain. */
static bl_status make_tree(bl_import *in, const matrix *m, bl_topology *out, bl_error *err) {
    char device[64];
    bool named;
    const bool told = device_name(in, device, sizeof device);
    BL_TRY(bl_import_open_base(in, told ? device : NULL, &named, err));
    if (in->options->base != NULL) {
        if (m->n > in->base.n_ranks)
            return bl_fail_at(err, BL_ERR_USAGE, bl_at(in->file),
                              "%d GPUs, but the base %s has %d ranks", m->n, in->options->base,
                              in->base.n_ranks);
        return bl_topology_take(&in->base, in->base.n_ranks, out, err);
    }
    BL_TRY(bl_import_make(in, m->n, 1, out, err));
    return bl_import_level(in, (const char *const[]){"nvlink", NULL}, &out->levels[1], err);
}

static bl_status use_matrix(bl_import *in, const matrix *m, const char *test, bl_topology *out,
                            bl_error *err) {
    BL_TRY(make_tree(in, m, out, err));
    out->levels[out->n_levels].n_domains = 1;
    bl_import_note(in, "Pairs of %d GPUs as %s measured them.", m->n, test);
    BL_TRY(set_levels(in, m, out, err));
    return set_pairs(m, out, err);
}

/* ---- the whole ---------------------------------------------------------------------------- */

static bl_status refuse(const bl_import *in, bl_error *err) {
    bl_line line = {0};
    int n = 0;
    while (bl_import_next_line(in, &line)) {
        bl_word words[2];
        n += bl_split_words(&line, words, 2) >= 2 && bl_word_is(words[0], "Running");
    }
    if (n == 0)
        return bl_fail_at(err, BL_ERR_PARSE, bl_at(in->file),
                          "not a log of nvbandwidth: no line \"Running ...\"");
    return bl_fail_at(err, BL_ERR_UNSUPPORTED, bl_at(in->file),
                      "%d tests of nvbandwidth, but none between GPUs: of %s and its like there is "
                      "no matrix (they are waived where there is one GPU)",
                      n, tests[0]);
}

bl_status bl_import_nvbandwidth(bl_import *in, bl_topology *out, bl_error *err) {
    bl_line found = {0};
    int64_t lines[SHOWN_RUNS];
    int n = 0, chosen, test = 0;
    bl_import_strip(in);
    for (; test < N_TESTS && n == 0; test++) {
        bl_line line = {0};
        while (bl_import_next_line(in, &line)) {
            if (!runs(&line, tests[test]))
                continue;
            if (n < SHOWN_RUNS)
                lines[n] = line.number;
            if (++n == (in->options->part > 0 ? in->options->part : 1))
                found = line;
        }
    }
    if (n == 0)
        return refuse(in, err);
    BL_TRY(bl_import_choose(in, "runs", n, lines, &chosen, err));
    matrix m = {0};
    bl_status st = read_matrix(in, found, &m, err);
    if (st >= 0)
        st = use_matrix(in, &m, tests[test - 1], out, err);
    free(m.bytes_per_s);
    return st;
}
