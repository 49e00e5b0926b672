/*
 * Logs of nccl-tests (alltoall_perf, all_gather_perf, ...).
 *
 *     #  Rank  0 Group  0 Pid 4711 on  node1 device  0 [0000:0f:00] NVIDIA H100 80GB HBM3
 *     #       size         count    type   redop    root     time   algbw   busbw  #wrong  ...
 *        1073741824      33554432   float    none      -1   4335.5  247.66  216.71       0 ...
 *
 * `size` is what one rank sends in all (alltoall) or what the operation moves in all, `time` is in
 * microseconds. Columns are counted from the right, as old versions leave redop and root empty.
 * Lines may carry the prefix of a launcher ("0: ", "[1,0]<stdout>:"); other text is passed over.
 *
 * Which operation ran is in new logs only, in a command line, or in the file's name. It is never
 * guessed from the numbers, but checked against them: busbw / algbw is a known function of the
 * number of ranks.
 */
#include "topologies/import_source.h"

#include "core/mem.h"
#include "core/opt.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_TABLES 64
#define MAX_WORDS 32
#define MIN_ROWS 3
#define MIN_LARGEST ((int64_t)1 << 20) /* bytes; below, times are all latency */

const char *const bl_nccl_op_names[] = {"alltoall",   "sendrecv",  "all_gather", "reduce_scatter",
                                        "all_reduce", "broadcast", "reduce",     NULL};
enum { ALLTOALL, SENDRECV, ALL_GATHER, REDUCE_SCATTER, ALL_REDUCE, BROADCAST, REDUCE };

typedef struct row {
    double size, time_s, algbw, busbw;
} row;

typedef struct run_log {
    /* of the chosen table */
    row *rows;
    size_t n_rows, capacity;
    int64_t last_line;
    /* of the ranks listed before it */
    int n_ranks;
    bl_word host[BL_IMPORT_MAX_RANKS];
    bl_word device; /* product name of rank 0 */
    int op;         /* told by the log, or -1 */
} run_log;

/* ---- lines -------------------------------------------------------------------------------- */

/* Behind "0: " or "[1,0]<stdout>:". */
static bl_line without_prefix(bl_line line) {
    const char *at = line.text;
    while (at < line.end && (*at == ' ' || *at == '\t'))
        at++;
    const char *start = at;
    while (at < line.end && isdigit((unsigned char)*at))
        at++;
    if (at == start && at < line.end && *at == '[') {
        const char *tag = memchr(at, '>', (size_t)(line.end - at));
        at = tag != NULL ? tag + 1 : at;
    }
    if (at > start && at < line.end && *at == ':')
        line.text = at + 1;
    return line;
}

static bool is_table_header(const bl_word *words, size_t n) {
    return n > 4 && bl_word_is(words[0], "#") && bl_word_is(words[1], "size") &&
           bl_word_is(words[2], "count") && bl_word_is(words[3], "type");
}

/* "# Rank 0 [Group 0] Pid 1 on HOST device 0 [0x00] NAME"; the name may have blanks. */
static bl_status read_rank(const bl_import *in, const bl_line *line, run_log *l, bl_error *err) {
    bl_word words[MAX_WORDS];
    const bl_where where = bl_at_line(in->file, line->number);
    size_t n = bl_split_words(line, words, MAX_WORDS), on = 3;
    n = n < MAX_WORDS ? n : MAX_WORDS;
    int64_t rank;
    while (on < n && !bl_word_is(words[on], "on"))
        on++;
    if (!bl_word_int(words[2], &rank) || on + 1 >= n)
        return BL_OK; /* other text that starts alike */
    if (rank == 0)
        l->n_ranks = 0;
    if (rank != l->n_ranks)
        return bl_fail_at(err, BL_ERR_PARSE, where, "rank %lld is listed where rank %d should be",
                          (long long)rank, l->n_ranks);
    if (rank >= BL_IMPORT_MAX_RANKS)
        return bl_fail_at(err, BL_ERR_RANGE, where, "more than %d ranks", BL_IMPORT_MAX_RANKS);
    l->host[l->n_ranks++] = words[on + 1];
    if (rank == 0)
        l->device = on + 5 < n
                        ? (bl_word){words[on + 5].text, (size_t)(line->end - words[on + 5].text)}
                        : (bl_word){"", 0};
    return BL_OK;
}

static bool holds(const bl_line *line, const char *text) {
    const size_t length = strlen(text);
    for (const char *at = line->text; at + length <= line->end; at++) {
        if (memcmp(at, text, length) == 0)
            return true;
    }
    return false;
}

/* The one operation that the line names ("all_reduce_perf"); -1 when there are none or several. The
 * last of the names, reduce, is part of another. */
static int op_in_line(const bl_line *line) {
    int found = -1;
    for (int op = 0; bl_nccl_op_names[op] != NULL; op++) {
        char command[32];
        snprintf(command, sizeof command, "%s_perf", bl_nccl_op_names[op]);
        if (!holds(line, command) || (op == REDUCE && found == ALL_REDUCE))
            continue;
        if (found >= 0)
            return -1;
        found = op;
    }
    return found;
}

/* A row of figures; *is_row false for other text. */
static bl_status read_row(const bl_import *in, const bl_line *line, const bl_word *words, size_t n,
                          row *out, bool *is_row, bl_error *err) {
    const bl_where where = bl_at_line(in->file, line->number);
    int64_t size, count, wrong;
    double time_us;
    *is_row = n >= 3 && bl_word_int(words[0], &size) && bl_word_int(words[1], &count) &&
              isalpha((unsigned char)words[2].text[0]);
    if (!*is_row)
        return BL_OK;
    if (n < 11 || n > MAX_WORDS)
        return bl_fail_at(err, BL_ERR_SHAPE, where,
                          "a row with %zu columns: size, count, type and twice time, algbw, busbw, "
                          "errors are needed; is the line cut off?",
                          n);
    const bl_word *figures = words + n - 8;
    char shown[24];
    if (!bl_word_real(figures[0], &time_us) || !bl_word_real(figures[1], &out->algbw) ||
        !bl_word_real(figures[2], &out->busbw))
        return bl_fail_at(err, BL_ERR_PARSE, where, "time, algbw or busbw is no number (time: %s)",
                          bl_word_shown(figures[0], shown, sizeof shown));
    if (bl_word_int(figures[3], &wrong) && wrong > 0)
        return bl_fail_at(err, BL_ERR_PARSE, where,
                          "%lld wrong results: the run is not valid, so its times are not taken",
                          (long long)wrong);
    if (size > 0 && !(time_us > 0))
        return bl_fail_at(err, BL_ERR_RANGE, where, "%lld bytes in no time", (long long)size);
    out->size = (double)size;
    out->time_s = time_us * 1e-6;
    return BL_OK;
}

static bl_status add_row(const row *made, int64_t line, run_log *l, bl_error *err) {
    void *grown = l->rows;
    const bl_status st = bl_grow(&grown, &l->capacity, l->n_rows + 1, sizeof *made, err);
    l->rows = grown;
    BL_TRY(st);
    l->rows[l->n_rows++] = *made;
    l->last_line = line;
    return BL_OK;
}

/* ---- tables ------------------------------------------------------------------------------- */

static bl_status find_tables(const bl_import *in, int64_t *lines, int *n, bl_error *err) {
    bl_line line = {0};
    *n = 0;
    while (bl_import_next_line(in, &line)) {
        const bl_line bare = without_prefix(line);
        bl_word words[MAX_WORDS];
        if (!is_table_header(words, bl_split_words(&bare, words, MAX_WORDS)))
            continue;
        if (*n == MAX_TABLES)
            return bl_fail_at(err, BL_ERR_RANGE, bl_at_line(in->file, line.number),
                              "more than %d tables", MAX_TABLES);
        lines[(*n)++] = line.number;
    }
    if (*n == 0)
        return bl_fail_at(err, BL_ERR_PARSE, bl_at(in->file),
                          "no table of nccl-tests: no header \"# size count type ...\"");
    return BL_OK;
}

/* What stands before the table's header: ranks and command of its run. */
static bl_status read_head(const bl_import *in, const bl_line *line, const bl_word *words, size_t n,
                           run_log *l, bl_error *err) {
    if (is_table_header(words, n))
        l->op = -1; /* of an earlier run */
    if (n > 3 && bl_word_is(words[0], "#") && bl_word_is(words[1], "Rank"))
        return read_rank(in, line, l, err);
    const int op = op_in_line(line);
    l->op = op >= 0 ? op : l->op;
    return BL_OK;
}

static bl_status read_table(const bl_import *in, int64_t header, int64_t next, run_log *l,
                            bl_error *err) {
    bl_line line = {0};
    l->op = -1;
    while (bl_import_next_line(in, &line) && line.number < next) {
        const bl_line bare = without_prefix(line);
        bl_word words[MAX_WORDS];
        const size_t n = bl_split_words(&bare, words, MAX_WORDS);
        if (line.number < header) {
            BL_TRY(read_head(in, &bare, words, n, l, err));
        } else if (line.number > header) {
            row made = {0};
            bool is_row;
            BL_TRY(read_row(in, &bare, words, n, &made, &is_row, err));
            if (is_row && made.size > 0)
                BL_TRY(add_row(&made, line.number, l, err));
        }
    }
    return BL_OK;
}

/* ---- which operation ---------------------------------------------------------------------- */

/* The longest name in the file's own name, blanks and bars left out ("nccl_alltoall.log"). */
static int op_in_name(const char *file) {
    char name[256];
    const char *slash = strrchr(file, '/');
    size_t n = 0, longest = 0;
    int found = -1;
    for (const char *at = slash != NULL ? slash + 1 : file; *at != '\0' && n < sizeof name - 1;
         at++)
        if (*at != '_' && *at != '-')
            name[n++] = (char)tolower((unsigned char)*at);
    name[n] = '\0';
    for (int op = 0; bl_nccl_op_names[op] != NULL; op++) {
        char plain[32];
        size_t length = 0;
        for (const char *at = bl_nccl_op_names[op]; *at != '\0'; at++)
            if (*at != '_')
                plain[length++] = *at;
        plain[length] = '\0';
        if (length > longest && strstr(name, plain) != NULL) {
            longest = length;
            found = op;
        }
    }
    return found;
}

/* busbw / algbw among n ranks: bytes over the busiest port, over `size`. */
static double factor_of(int op, int n) {
    switch (op) {
    case ALLTOALL:
    case ALL_GATHER:
    case REDUCE_SCATTER:
        return (double)(n - 1) / n;
    case ALL_REDUCE:
        return 2.0 * (n - 1) / n;
    default:
        return 1;
    }
}

static bl_status settle_op(bl_import *in, run_log *l, int n, bl_error *err) {
    const char *by = "--op";
    int op = in->options->op;
    if (op < 0) {
        op = l->op;
        by = "the log";
    }
    if (op < 0) {
        op = op_in_name(in->file);
        by = "the file's name";
    }
    if (op < 0)
        return bl_fail_at(err, BL_ERR_USAGE, bl_at(in->file),
                          "the log does not say which operation ran; name it with --op alltoall, "
                          "all_gather, ...");
    const row *best = &l->rows[0];
    for (size_t r = 0; r < l->n_rows; r++)
        best = l->rows[r].algbw > best->algbw ? &l->rows[r] : best;
    const double seen = best->busbw / best->algbw, want = factor_of(op, n);
    if (best->algbw >= 1 && fabs(seen - want) > 0.02)
        return bl_fail_at(err, BL_ERR_USAGE, bl_at_line(in->file, l->last_line),
                          "busbw / algbw is %.3f, but would be %.3f for %s among %d ranks (by %s)",
                          seen, want, bl_nccl_op_names[op], n, by);
    bl_import_note(in, "Operation %s, by %s, among %d ranks.", bl_nccl_op_names[op], by, n);
    l->op = op;
    return BL_OK;
}

/* ---- the fit ------------------------------------------------------------------------------ */

typedef struct fit {
    double a_s, b_s_per_byte; /* time = a + b * size */
    double worst;             /* largest relative error */
    size_t n_rows;            /* that counted */
} fit;

/* Where only the bandwidth is taken, rows count from half of the best algbw on. */
static double least_algbw(const run_log *l) {
    double best = 0;
    for (size_t r = 0; r < l->n_rows; r++)
        best = fmax(best, l->rows[r].algbw);
    return l->op == ALLTOALL || l->op == SENDRECV ? 0 : best / 2;
}

typedef struct sums {
    size_t n;
    double uu, us, ss, u, s; /* of u = 1/t and s = size/t */
    double largest;
} sums;

static sums add_up(const run_log *l, double least) {
    sums sum = {0};
    for (size_t r = 0; r < l->n_rows; r++) {
        const double u = 1 / l->rows[r].time_s, s = l->rows[r].size * u;
        if (l->rows[r].algbw < least)
            continue;
        sum.n++;
        sum.uu += u * u;
        sum.us += u * s;
        sum.ss += s * s;
        sum.u += u;
        sum.s += s;
        sum.largest = fmax(sum.largest, l->rows[r].size);
    }
    return sum;
}

/* Least squares of ((a + b size - t) / t)^2; a is at least 0. */
static bl_status fit_rows(const bl_import *in, const run_log *l, fit *out, bl_error *err) {
    const bl_where where = bl_at_line(in->file, l->last_line);
    const double least = least_algbw(l);
    const sums sum = add_up(l, least);
    if (l->n_rows < MIN_ROWS || sum.largest < (double)MIN_LARGEST)
        return bl_fail_at(
            err, BL_ERR_RANGE, where,
            "%zu sizes up to %.0f bytes do not tell a bandwidth: run over at least %d "
            "sizes, beyond 1 MiB (-b 8 -e 1G -f 2)",
            l->n_rows, sum.largest, MIN_ROWS);
    const double det = sum.uu * sum.ss - sum.us * sum.us;
    double a = det > 0 ? (sum.u * sum.ss - sum.s * sum.us) / det : -1;
    double b = det > 0 ? (sum.s * sum.uu - sum.u * sum.us) / det : 0;
    if (a < 0) {
        a = 0;
        b = sum.s / sum.ss;
    }
    if (!(b > 0) || !isfinite(b))
        return bl_fail_at(err, BL_ERR_RANGE, where,
                          "times do not grow with sizes, so no bandwidth can be told");
    *out = (fit){a, b, 0, sum.n};
    for (size_t r = 0; r < l->n_rows; r++) {
        const double error = fabs((a + b * l->rows[r].size) / l->rows[r].time_s - 1);
        if (l->rows[r].algbw >= least)
            out->worst = fmax(out->worst, error);
    }
    return BL_OK;
}

/* ---- the tree ----------------------------------------------------------------------------- */

static bool same_word(bl_word a, bl_word b) {
    return a.length == b.length && memcmp(a.text, b.text, a.length) == 0;
}

static bl_status build_tree(bl_import *in, const run_log *l, const int *host, int n_hosts,
                            bl_topology *out, bl_error *err) {
    BL_TRY(bl_import_make(in, l->n_ranks, n_hosts > 1 ? 2 : 1, out, err));
    BL_TRY(bl_import_level(in, (const char *const[]){"nvlink", NULL}, &out->levels[1], err));
    BL_TRY(bl_import_set_domains(out, 1, host, err));
    if (n_hosts > 1) {
        BL_TRY(bl_import_network(in, &out->levels[2], err));
        out->levels[2].n_domains = 1;
    }
    BL_TRY(bl_import_set_hosts(out, host, n_hosts, err));
    for (int rank = 0; rank < l->n_ranks; rank++)
        bl_word_shown(l->host[rank], out->host_names[host[rank]], sizeof *out->host_names);
    bl_import_note(in, "GPUs of one host are taken to share one NVLink domain.");
    return BL_OK;
}

/* Without a base: hosts as the log lists them, NVLink inside, a network between. */
static bl_status tree_of_hosts(bl_import *in, const run_log *l, bl_topology *out, bl_error *err) {
    int *host, n_hosts = 0;
    BL_TRY(BL_CALLOC(host, l->n_ranks, err));
    for (int rank = 0; rank < l->n_ranks; rank++) {
        int twin = 0;
        while (twin < rank && !same_word(l->host[rank], l->host[twin]))
            twin++;
        host[rank] = twin < rank ? host[twin] : n_hosts++;
    }
    const bl_status st = build_tree(in, l, host, n_hosts, out, err);
    free(host);
    return st;
}

/* The base's ranks that took part; hosts that the log lists must be the base's. */
static bl_status tree_of_base(bl_import *in, const run_log *l, bl_topology *out, bl_error *err) {
    const int n = l->n_ranks > 0 ? l->n_ranks : in->base.n_ranks;
    if (n > in->base.n_ranks)
        return bl_fail_at(err, BL_ERR_USAGE, bl_at(in->file),
                          "the log has %d ranks, but the base %s has %d", n, in->options->base,
                          in->base.n_ranks);
    for (int a = 0; a < l->n_ranks; a++) {
        for (int b = a + 1; b < l->n_ranks && b < a + 2; b++) {
            if (same_word(l->host[a], l->host[b]) != bl_topology_same_host(&in->base, a, b))
                return bl_fail_at(err, BL_ERR_USAGE, bl_at(in->file),
                                  "ranks %d and %d are on %s by the log, but not by the base %s", a,
                                  b, same_word(l->host[a], l->host[b]) ? "one host" : "two hosts",
                                  in->options->base);
        }
    }
    return bl_topology_take(&in->base, n, out, err);
}

static bl_status make_tree(bl_import *in, const run_log *l, bl_topology *out, bl_error *err) {
    char device[64];
    bool named;
    if (l->n_ranks == 0 && in->options->base == NULL)
        return bl_fail_at(
            err, BL_ERR_USAGE, bl_at(in->file),
            "the log does not list its ranks (\"# Rank 0 ... on HOST\"), so name what "
            "it ran on with --base");
    bl_word_shown(l->device, device, sizeof device);
    BL_TRY(bl_import_open_base(in, device[0] != '\0' ? device : NULL, &named, err));
    return in->options->base != NULL ? tree_of_base(in, l, out, err)
                                     : tree_of_hosts(in, l, out, err);
}

/* The innermost level that holds all ranks: its links are the slowest that are crossed. */
static int outer_level(const bl_topology *t) {
    int level = 1;
    while (level < BL_MAX_LEVELS && t->levels[level].n_domains > 1)
        level++;
    return level;
}

/* Ranks in each domain of a level; 0 when they differ. */
static int even_size(const bl_topology *t, int level) {
    const int n = t->levels[level].n_domains, size = t->n_ranks / n;
    if (size * n != t->n_ranks)
        return 0;
    for (int domain = 0; domain < n; domain++) {
        int members = 0;
        for (int rank = 0; rank < t->n_ranks; rank++)
            members += bl_topology_domain(t, level, rank) == domain;
        if (members != size)
            return 0;
    }
    return size;
}

/* ---- figures ------------------------------------------------------------------------------ */

/* The cost model gives an even exchange of `size` bytes per rank
 *     size / n x (inner peers / their bandwidth + outer peers / B)       at a rank's own port, and
 *     size / n x inner ranks x outer peers / (ports x B)                 at its domain's ports,
 * whichever is longer; B is the one that gives b. */
static bl_status alltoall_bandwidth(const bl_import *in, const bl_topology *t, int level,
                                    const fit *f, double *out, bl_error *err) {
    const int n = t->n_ranks, inner = even_size(t, level - 1);
    if (inner == 0)
        return bl_fail_at(err, BL_ERR_USAGE, bl_at(in->file),
                          "domains of level %s hold different numbers of ranks, so one exchange "
                          "does not tell the bandwidth of %s",
                          t->levels[level - 1].name, t->levels[level].name);
    double inside = 0;
    for (int to = 1; to < n; to++) {
        if (bl_topology_level(t, 0, to) < level)
            inside += 1 / bl_topology_bytes_per_s(t, 0, to) / n;
    }
    const double outer = (double)(n - inner) / n, ports = t->levels[level].ports.value;
    if (f->b_s_per_byte <= inside)
        return bl_fail_at(err, BL_ERR_RANGE, bl_at(in->file),
                          "the exchange is faster than the base lets its inner domains be: measure "
                          "them first, and take that as --base");
    const double own = outer / (f->b_s_per_byte - inside);
    const double shared = inner * outer / (ports * f->b_s_per_byte);
    *out = level > 1 && shared > own ? shared : own;
    return BL_OK;
}

static bl_status bandwidth_of(const bl_import *in, const bl_topology *t, int level, int op,
                              const fit *f, double *out, bl_error *err) {
    if (op == ALLTOALL)
        return alltoall_bandwidth(in, t, level, f, out, err);
    if (level == 1 || op == SENDRECV) {
        *out = factor_of(op, t->n_ranks) / f->b_s_per_byte;
        return BL_OK;
    }
    return bl_fail_at(err, BL_ERR_USAGE, bl_at(in->file),
                      "%s works inside %s domains on its way between them, so it does not tell the "
                      "bandwidth of a port of %s; use alltoall_perf",
                      bl_nccl_op_names[op], t->levels[level - 1].name, t->levels[level].name);
}

/* What the cost model counts for messages in one exchange of rank 0. */
static double message_time(const bl_topology *t) {
    double sum = 0;
    for (int to = 1; to < t->n_ranks; to++)
        sum += t->levels[bl_topology_level(t, 0, to)].message_s.value;
    return sum;
}

static bl_status set_figures(bl_import *in, const run_log *l, const fit *f, const bl_topology *part,
                             int level, bl_level *at, bl_error *err) {
    double bandwidth = 0;
    BL_TRY(bandwidth_of(in, part, level, l->op, f, &bandwidth, err));
    if (in->options->base != NULL && at->out_bytes_per_s.source == BL_DATASHEET &&
        bandwidth > 1.05 * at->out_bytes_per_s.value)
        return bl_fail_at(err, BL_ERR_USAGE, bl_at(in->file),
                          "%s would tell %.4g GB/s for a port of %s, more than its data sheet's "
                          "%.4g in %s: reduced in the switch, or another machine",
                          bl_nccl_op_names[l->op], bandwidth / 1e9, at->name,
                          at->out_bytes_per_s.value / 1e9, in->options->base);
    at->out_bytes_per_s = at->in_bytes_per_s = (bl_figure){bandwidth, BL_MEASURED};
    bl_import_note(in,
                   "Level %s: %.4g GB/s per port and direction from %zu sizes; the fit is within "
                   "%.0f %% of each.",
                   at->name, bandwidth / 1e9, f->n_rows, 100 * f->worst);
    if (l->op != ALLTOALL && l->op != SENDRECV) {
        bl_import_note(in, "Latency stays as it was: %s takes several rounds.",
                       bl_nccl_op_names[l->op]);
        return BL_OK;
    }
    const double messages = l->op == ALLTOALL ? message_time(part) : at->message_s.value;
    at->latency_s = (bl_figure){fmax(0, f->a_s - messages), BL_MEASURED};
    bl_import_note(in,
                   "An exchange of nothing takes %.4g us, of which %.3g are counted as messages.",
                   f->a_s * 1e6, messages * 1e6);
    return BL_OK;
}

/* ---- the whole ---------------------------------------------------------------------------- */

/* The ranks that took part tell the level at which they meet; the rest of a base stays. */
static bl_status measure(bl_import *in, run_log *l, bl_topology *part, bl_topology *out,
                         bl_error *err) {
    fit f = {0};
    BL_TRY(make_tree(in, l, part, err));
    if (part->n_ranks < 2)
        return bl_fail_at(err, BL_ERR_USAGE, bl_at(in->file), "one rank exchanges nothing");
    BL_TRY(settle_op(in, l, part->n_ranks, err));
    BL_TRY(fit_rows(in, l, &f, err));
    const int level = outer_level(part);
    BL_TRY(set_figures(in, l, &f, part, level, &part->levels[level], err));
    const bool whole = in->options->base == NULL || part->n_ranks == in->base.n_ranks;
    BL_TRY(bl_topology_take(whole ? part : &in->base, whole ? part->n_ranks : in->base.n_ranks, out,
                            err));
    const int n_domains = out->levels[level].n_domains;
    out->levels[level] = part->levels[level];
    out->levels[level].n_domains = n_domains;
    return BL_OK;
}

static bl_status read_log(bl_import *in, run_log *l, bl_topology *out, bl_error *err) {
    int64_t lines[MAX_TABLES + 1];
    bl_topology part = {0};
    int n, chosen;
    BL_TRY(find_tables(in, lines, &n, err));
    lines[n] = INT64_MAX;
    BL_TRY(bl_import_choose(in, "tables", n, lines, &chosen, err));
    BL_TRY(read_table(in, lines[chosen], lines[chosen + 1], l, err));
    if (l->n_rows == 0)
        return bl_fail_at(err, BL_ERR_PARSE, bl_at_line(in->file, lines[chosen]),
                          "the table that starts here has no rows");
    const bl_status st = measure(in, l, &part, out, err);
    bl_topology_free(&part);
    return st;
}

bl_status bl_import_nccl_tests(bl_import *in, bl_topology *out, bl_error *err) {
    run_log *l;
    bl_import_strip(in);
    BL_TRY(BL_CALLOC(l, 1, err));
    const bl_status st = read_log(in, l, out, err);
    free(l->rows);
    free(l);
    return st;
}
