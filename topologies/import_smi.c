/*
 * `nvidia-smi topo -m`: a matrix of how devices are joined.
 *
 *             GPU0  GPU1  NIC0  CPU Affinity  NUMA Affinity
 *     GPU0     X    NV18  PXB   0-55          0
 *     GPU1    NV18   X    NODE  0-55          0
 *     NIC0    PXB   NODE   X
 *
 * Copies come with tabs or blanks, with terminal colours, inside reports with other text around,
 * with or without rows of adapters, with adapters called NIC0 or mlx5_0. What counts is the header
 * (the first line of a matrix, whose words are device names up to "CPU" or "NUMA") and below it
 * one row for each GPU.
 */
#include "topologies/import_source.h"

#include "core/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_DEVICES 4096
#define MAX_MATRICES 64

typedef struct matrix {
    int64_t line;   /* of the header */
    size_t n;       /* columns */
    bl_word *names; /* [n], in the text */
    int *gpu;       /* [n] number among GPUs, -1: an adapter */
    int n_gpus;
    int64_t *row_line;  /* [n_gpus]; 0: not seen yet */
    unsigned char *how; /* [n_gpus][n] bl_link */
    int *nvlinks;       /* [n_gpus][n] */
} matrix;

static void free_matrix(matrix *m) {
    free(m->names);
    free(m->gpu);
    free(m->row_line);
    free(m->how);
    free(m->nvlinks);
}

static bool is_gpu(bl_word word) {
    int64_t number;
    return word.length > 3 && memcmp(word.text, "GPU", 3) == 0 &&
           bl_word_int((bl_word){word.text + 3, word.length - 3}, &number);
}

/* NV# with its number, or one of the words of the legend (old drivers: SOC, PSB). */
static bool parse_link(bl_word word, unsigned char *how, int *nvlinks) {
    static const struct {
        const char *word;
        bl_link how;
    } words[] = {{"X", BL_LINK_SELF},     {"PIX", BL_LINK_SWITCH}, {"PXB", BL_LINK_SWITCH},
                 {"PSB", BL_LINK_SWITCH}, {"PHB", BL_LINK_SOCKET}, {"NODE", BL_LINK_SOCKET},
                 {"SYS", BL_LINK_NODE},   {"SOC", BL_LINK_NODE}};
    int64_t number;
    *nvlinks = 0;
    for (size_t w = 0; w < sizeof words / sizeof *words; w++) {
        if (bl_word_is(word, words[w].word)) {
            *how = (unsigned char)words[w].how;
            return true;
        }
    }
    if (word.length < 3 || memcmp(word.text, "NV", 2) != 0 ||
        !bl_word_int((bl_word){word.text + 2, word.length - 2}, &number) || number < 1 ||
        number > 1000)
        return false;
    *how = BL_LINK_NVLINK;
    *nvlinks = (int)number;
    return true;
}

/* A header starts with a GPU's name, which another device's name or "CPU" may follow; inside a
 * matrix it is also indented. */
static bool is_header(const bl_line *line, bool inside) {
    bl_word words[2];
    unsigned char how;
    int nvlinks;
    const size_t n = bl_split_words(line, words, 2);
    if (n == 0 || !is_gpu(words[0]) || (inside && *line->text != ' ' && *line->text != '\t'))
        return false;
    if (n == 1 || bl_word_is(words[1], "CPU") || bl_word_is(words[1], "NUMA"))
        return true;
    const char last = words[1].text[words[1].length - 1];
    return last >= '0' && last <= '9' && !parse_link(words[1], &how, &nvlinks);
}

/* ---- one matrix --------------------------------------------------------------------------- */

static bl_status read_header(const bl_import *in, const bl_line *line, matrix *m, bl_error *err) {
    const char *at = line->text;
    bl_word word;
    const size_t n_words = bl_split_words(line, &word, 1);
    m->line = line->number;
    if (n_words > MAX_DEVICES)
        return bl_fail_at(err, BL_ERR_RANGE, bl_at_line(in->file, line->number),
                          "%zu columns, but at most %d are read", n_words, MAX_DEVICES);
    BL_TRY(BL_CALLOC(m->names, n_words, err));
    BL_TRY(BL_CALLOC(m->gpu, n_words, err));
    while (bl_next_word(&at, line->end, &word)) {
        if (bl_word_is(word, "CPU") || bl_word_is(word, "NUMA") || bl_word_is(word, "GPU"))
            break;
        for (size_t other = 0; other < m->n; other++) {
            if (m->names[other].length == word.length &&
                memcmp(m->names[other].text, word.text, word.length) == 0)
                return bl_fail_at(err, BL_ERR_PARSE, bl_at_line(in->file, line->number),
                                  "column %.*s is there twice",
                                  word.length < 32 ? (int)word.length : 32, word.text);
        }
        m->gpu[m->n] = is_gpu(word) ? m->n_gpus++ : -1;
        m->names[m->n++] = word;
    }
    BL_TRY(BL_CALLOC(m->row_line, m->n_gpus, err));
    BL_TRY(BL_CALLOC(m->how, (size_t)m->n_gpus * m->n, err));
    return BL_CALLOC(m->nvlinks, (size_t)m->n_gpus * m->n, err);
}

static bl_status read_row(const bl_import *in, const bl_line *line, const char *at, int column,
                          matrix *m, bl_error *err) {
    const bl_where where = bl_at_line(in->file, line->number);
    const int gpu = m->gpu[column];
    char shown[24], name[24];
    bl_word_shown(m->names[column], name, sizeof name);
    if (m->row_line[gpu] != 0)
        return bl_fail_at(err, BL_ERR_PARSE, where, "row %s is there twice, first in line %lld",
                          name, (long long)m->row_line[gpu]);
    m->row_line[gpu] = line->number;
    for (size_t c = 0; c < m->n; c++) {
        const size_t cell = (size_t)gpu * m->n + c;
        bl_word word;
        if (!bl_next_word(&at, line->end, &word))
            return bl_fail_at(err, BL_ERR_SHAPE, where, "row %s has %zu cells for %zu columns",
                              name, c, m->n);
        if (!parse_link(word, &m->how[cell], &m->nvlinks[cell]))
            return bl_fail_at(err, BL_ERR_PARSE, where,
                              "row %s: \"%s\" is none of X, NV#, PIX, PXB, PHB, NODE, SYS", name,
                              bl_word_shown(word, shown, sizeof shown));
        if ((m->how[cell] == BL_LINK_SELF) != ((int)c == column))
            return bl_fail_at(err, BL_ERR_PARSE, where,
                              "row %s: the X must be in the row's own column and nowhere else",
                              name);
    }
    return BL_OK;
}

/* Rows up to the first line that does not start with a device of the matrix. */
static bl_status read_rows(const bl_import *in, bl_line line, matrix *m, bl_error *err) {
    while (bl_import_next_line(in, &line) && !is_header(&line, true)) {
        const char *at = line.text;
        bl_word name;
        size_t column = 0;
        if (!bl_next_word(&at, line.end, &name))
            break;
        while (column < m->n && !(m->names[column].length == name.length &&
                                  memcmp(m->names[column].text, name.text, name.length) == 0))
            column++;
        if (column == m->n)
            break;
        if (m->gpu[column] >= 0)
            BL_TRY(read_row(in, &line, at, (int)column, m, err));
    }
    for (size_t c = 0; c < m->n; c++) {
        char name[24];
        if (m->gpu[c] >= 0 && m->row_line[m->gpu[c]] == 0)
            return bl_fail_at(err, BL_ERR_SHAPE, bl_at_line(in->file, m->line),
                              "the matrix that starts here has no row for %s",
                              bl_word_shown(m->names[c], name, sizeof name));
    }
    return BL_OK;
}

/* ---- what it says ------------------------------------------------------------------------- */

static bl_status join_gpus(const bl_import *in, const matrix *m, bl_links *links, bl_error *err) {
    for (size_t a = 0; a < m->n; a++) {
        for (size_t b = 0; b < a; b++) {
            const int x = m->gpu[a], y = m->gpu[b];
            if (x < 0 || y < 0)
                continue;
            const size_t one = (size_t)x * m->n + b, other = (size_t)y * m->n + a;
            if (m->how[one] != m->how[other] || m->nvlinks[one] != m->nvlinks[other])
                return bl_fail_at(err, BL_ERR_PARSE, bl_at_line(in->file, m->row_line[x]),
                                  "GPUs %d and %d are joined otherwise than in line %lld", y, x,
                                  (long long)m->row_line[y]);
            bl_links_join(links, x, y, (bl_link)m->how[one], m->nvlinks[one]);
        }
    }
    return BL_OK;
}

/* Adapters that serve the GPUs: those behind a PCIe switch with one; else those on a socket with
 * one; else all. */
static int near_adapters(const matrix *m) {
    for (int limit = BL_LINK_SWITCH; limit <= BL_LINK_NODE; limit++) {
        int n = 0;
        for (size_t c = 0; c < m->n; c++) {
            bool near = false;
            for (int gpu = 0; gpu < m->n_gpus; gpu++)
                near = near || m->how[(size_t)gpu * m->n + c] <= limit;
            n += m->gpu[c] < 0 && near;
        }
        if (n > 0)
            return n;
    }
    return 0;
}

static bool has_nvlink_level(const bl_topology *topology) {
    return strcmp(topology->levels[1].name, "nvlink") == 0;
}

static bl_status use_matrix(bl_import *in, const matrix *m, bl_links *links, bl_topology *out,
                            bl_error *err) {
    bool named, nvlinks = false;
    BL_TRY(bl_import_open_base(in, NULL, &named, err));
    BL_TRY(join_gpus(in, m, links, err));
    for (size_t i = 0; i < (size_t)links->n * (size_t)links->n; i++)
        nvlinks = nvlinks || links->nvlinks[i] > 0;
    if (!nvlinks && named && has_nvlink_level(&in->base) && m->n_gpus > 1)
        return bl_fail_at(err, BL_ERR_USAGE, bl_at_line(in->file, m->line),
                          "no NVLink in this matrix, but the base %s has it: nvidia-smi topo -mp "
                          "leaves NVLink out, use -m, or a base without",
                          in->options->base);
    in->n_adapters = near_adapters(m);
    bl_import_note(in, "%d GPUs and %d adapters, in the order of the matrix; %s.", m->n_gpus,
                   (int)m->n - m->n_gpus,
                   nvlinks ? "with NVLink" : "no NVLink (topo -mp would not show it)");
    return bl_import_links(in, links, named, out, err);
}

static bl_status read_chosen(bl_import *in, const bl_line *header, bl_topology *out,
                             bl_error *err) {
    matrix m = {0};
    bl_links links = {0};
    bl_status st = read_header(in, header, &m, err);
    if (st >= 0)
        st = read_rows(in, *header, &m, err);
    if (st >= 0)
        st = bl_links_create(m.n_gpus, &links, err);
    if (st >= 0)
        st = use_matrix(in, &m, &links, out, err);
    bl_links_free(&links);
    free_matrix(&m);
    return st;
}

bl_status bl_import_nvidia_smi(bl_import *in, bl_topology *out, bl_error *err) {
    bl_line headers[MAX_MATRICES], line = {0};
    int64_t lines[MAX_MATRICES];
    int n = 0, chosen;
    bool inside = false;
    bl_import_strip(in);
    while (bl_import_next_line(in, &line)) {
        bl_word word;
        const bool header = is_header(&line, inside);
        inside = header || (inside && bl_split_words(&line, &word, 1) > 0);
        if (!header)
            continue;
        if (n == MAX_MATRICES)
            return bl_fail_at(err, BL_ERR_RANGE, bl_at_line(in->file, line.number),
                              "more than %d matrices", MAX_MATRICES);
        headers[n] = line;
        lines[n++] = line.number;
    }
    if (n == 0)
        return bl_fail_at(err, BL_ERR_PARSE, bl_at(in->file),
                          "no matrix of nvidia-smi topo -m: no line that names GPU0, GPU1, ... "
                          "above rows of X, NV#, PIX, PXB, PHB, NODE, SYS");
    BL_TRY(bl_import_choose(in, "matrices", n, lines, &chosen, err));
    return read_chosen(in, &headers[chosen], out, err);
}
