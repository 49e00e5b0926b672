#include "core/csv.h"

#include "core/io.h"
#include "core/mem.h"

#include <csv.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One row is collected as text with terminators, plus the offset of each field. */
/* libcsv's buffer for a field grows by its own 128 bytes at a time, which takes quadratic time. */
#define FIELD_GROWTH ((size_t)1 << 20)

typedef struct reader {
    const char *file;
    int64_t line;     /* line being read */
    int64_t row_line; /* line on which the current row started; 0 between rows */
    size_t row_bytes;
    char *text;
    size_t text_bytes, text_capacity;
    size_t *offset;
    size_t n_fields, offset_capacity;
    const char **fields;
    size_t fields_capacity;
    bl_csv_row_fn *on_row;
    void *user;
    bl_status status;
    bl_error *err;
} reader;

static void on_field(void *bytes, size_t n_bytes, void *user) {
    reader *r = user;
    if (r->status < 0)
        return;
    void *text = r->text, *offset = r->offset;
    r->status = bl_grow(&text, &r->text_capacity, r->text_bytes + n_bytes + 1, 1, r->err);
    r->text = text;
    if (r->status >= 0)
        r->status =
            bl_grow(&offset, &r->offset_capacity, r->n_fields + 1, sizeof *r->offset, r->err);
    r->offset = offset;
    if (r->status < 0)
        return;
    r->offset[r->n_fields++] = r->text_bytes;
    if (n_bytes > 0)
        memcpy(r->text + r->text_bytes, bytes, n_bytes);
    r->text[r->text_bytes + n_bytes] = '\0';
    r->text_bytes += n_bytes + 1;
}

static void on_end_of_row(int terminator, void *user) {
    (void)terminator;
    reader *r = user;
    if (r->status >= 0 && r->n_fields > 0) {
        void *fields = r->fields;
        r->status = bl_grow(&fields, &r->fields_capacity, r->n_fields, sizeof *r->fields, r->err);
        r->fields = fields;
        if (r->status >= 0) {
            for (size_t f = 0; f < r->n_fields; f++)
                r->fields[f] = r->text + r->offset[f];
            const bl_csv_row row = {r->file, r->row_line > 0 ? r->row_line : r->line, r->n_fields,
                                    r->fields};
            r->status = r->on_row(&row, r->user, r->err);
        }
    }
    r->n_fields = 0;
    r->text_bytes = 0;
    r->row_line = 0;
}

static bl_status refuse(reader *r, struct csv_parser *parser) {
    if (r->status < 0)
        return r->status;
    return bl_fail_at(r->err, BL_ERR_PARSE, bl_at_line(r->file, r->row_line), "not valid CSV: %s",
                      csv_strerror(csv_error(parser)));
}

/* Feed one line, or as much of it as is at hand; the bytes of a row are counted so that a file
 * without line ends, or with a quote that nothing closes, cannot take all memory. */
static bl_status feed_piece(reader *r, struct csv_parser *parser, const char *text, size_t bytes) {
    if (r->row_line == 0 && bytes == 1 && *text == '\n')
        return BL_OK; /* an empty line, or the rest of a CR LF */
    if (r->row_line == 0) {
        r->row_line = r->line;
        r->row_bytes = 0;
    }
    r->row_bytes += bytes;
    if (r->row_bytes > BL_CSV_MAX_ROW_BYTES)
        return bl_fail_at(r->err, BL_ERR_RANGE, bl_at_line(r->file, r->row_line),
                          "a row of more than %zu bytes", BL_CSV_MAX_ROW_BYTES);
    if (csv_parse(parser, text, bytes, on_field, on_end_of_row, r) != bytes || r->status < 0)
        return refuse(r, parser);
    return BL_OK;
}

/* Feed line by line so that every row knows where it started. */
static bl_status feed(reader *r, struct csv_parser *parser, FILE *in) {
    char block[1 << 16];
    size_t got;
    bl_status st = BL_OK;
    r->line = 1;
    while (st >= 0 && (got = fread(block, 1, sizeof block, in)) > 0) {
        for (size_t at = 0, bytes; st >= 0 && at < got; at += bytes) {
            const char *end = memchr(block + at, '\n', got - at);
            bytes = end != NULL ? (size_t)(end - block) + 1 - at : got - at;
            st = feed_piece(r, parser, block + at, bytes);
            if (end != NULL)
                r->line++;
        }
    }
    if (st >= 0 && ferror(in))
        st = bl_fail_at(r->err, BL_ERR_IO, bl_at(r->file), "cannot read: %s", strerror(errno));
    if (st >= 0 && (csv_fini(parser, on_field, on_end_of_row, r) != 0 || r->status < 0))
        st = refuse(r, parser);
    return st;
}

bl_status bl_csv_read(const char *path, bl_csv_row_fn *on_row, void *user, bl_error *err) {
    FILE *in = stdin;
    if (strcmp(path, "-") != 0)
        BL_TRY(bl_open_input(path, &in, err));
    reader r = {.file = path, .on_row = on_row, .user = user, .err = err};
    struct csv_parser parser;
    bl_status st;
    if (csv_init(&parser, CSV_STRICT | CSV_STRICT_FINI) != 0) {
        st = bl_fail(err, BL_ERR_NOMEM, "out of memory");
    } else {
        csv_set_blk_size(&parser, FIELD_GROWTH);
        st = feed(&r, &parser, in);
        csv_free(&parser);
    }
    free(r.text);
    free(r.offset);
    free(r.fields);
    if (in != stdin)
        fclose(in);
    return st;
}

static bl_status field_of(const bl_csv_row *row, size_t column, const char **out, bl_error *err) {
    if (column >= row->n_fields)
        return bl_fail_at(err, BL_ERR_PARSE, bl_at_line(row->file, row->line),
                          "the row has %zu fields, field %zu is missing", row->n_fields,
                          column + 1);
    *out = row->fields[column];
    return BL_OK;
}

/* True when only spaces follow. */
static bool ends_here(const char *rest) {
    return rest[strspn(rest, " \t\r")] == '\0';
}

bl_status bl_csv_int(const bl_csv_row *row, size_t column, int64_t min, int64_t max, int64_t *out,
                     bl_error *err) {
    const char *text;
    BL_TRY(field_of(row, column, &text, err));
    char *rest;
    errno = 0;
    const long long number = strtoll(text, &rest, 10);
    if (rest == text || !ends_here(rest))
        return bl_fail_at(err, BL_ERR_PARSE, bl_at_line(row->file, row->line),
                          "field %zu is \"%.40s\", not an integer", column + 1, text);
    if (errno == ERANGE || number < min || number > max)
        return bl_fail_at(err, BL_ERR_RANGE, bl_at_line(row->file, row->line),
                          "field %zu is %.40s, but must be in [%lld, %lld]", column + 1, text,
                          (long long)min, (long long)max);
    *out = number;
    return BL_OK;
}

bl_status bl_csv_real(const bl_csv_row *row, size_t column, double *out, bl_error *err) {
    const char *text;
    BL_TRY(field_of(row, column, &text, err));
    char *rest;
    const double number = strtod(text, &rest);
    if (rest == text || !ends_here(rest) || !isfinite(number))
        return bl_fail_at(err, BL_ERR_PARSE, bl_at_line(row->file, row->line),
                          "field %zu is \"%.40s\", not a finite number", column + 1, text);
    *out = number;
    return BL_OK;
}
