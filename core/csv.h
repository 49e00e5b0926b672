/*
 * csv.h: the door to libcsv.
 *
 * Reads a comma-separated file row by row (RFC 4180 quoting; memory is bounded by the longest row)
 * and hands each row to a callback with its line number. Numbers are converted with the checked
 * helpers below, so that "12x" or an overflow is an error with file and line, never a zero.
 */
#ifndef BL_CORE_CSV_H
#define BL_CORE_CSV_H

#include "core/status.h"

#include <stddef.h>

/* A longer row is an error. */
#define BL_CSV_MAX_ROW_BYTES ((size_t)64 << 20)

typedef struct bl_csv_row {
    const char *file;          /* for messages */
    int64_t line;              /* 1-based line on which the row starts */
    size_t n_fields;           /* fields[0 .. n_fields - 1], terminated strings */
    const char *const *fields; /* borrowed for the duration of the callback */
} bl_csv_row;

/* Called for each row that is not empty; a negative status stops the reader and is returned. */
typedef bl_status bl_csv_row_fn(const bl_csv_row *row, void *user, bl_error *err);

bl_status bl_csv_read(const char *path, bl_csv_row_fn *on_row, void *user, bl_error *err);

/* Field `column` as a number in [min, max]; BL_ERR_PARSE or BL_ERR_RANGE with file and line. */
bl_status bl_csv_int(const bl_csv_row *row, size_t column, int64_t min, int64_t max, int64_t *out,
                     bl_error *err);
bl_status bl_csv_real(const bl_csv_row *row, size_t column, double *out, bl_error *err);

#endif
