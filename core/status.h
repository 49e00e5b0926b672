/*
 * status.h: errors that carry their cause.
 *
 * Every function that can fail takes a nullable `bl_error *` as its last argument and returns a
 * bl_status. Whoever detects the fault calls bl_fail() (or bl_fail_at() when it knows the place in
 * the input) and returns what that returns; callers only forward with BL_TRY(). The first error
 * wins: a later bl_fail() on an error that is already set changes nothing, so cleanup code may fail
 * again without hiding the cause.
 *
 *     if (id >= n_experts)
 *         return bl_fail_at(err, BL_ERR_RANGE, bl_at_expert(path, layer, id),
 *                           "expert %d is not below %d", id, n_experts);
 *
 * A message names what was seen, why it is refused and, where there is one, the way out. It is one
 * line, without a full stop, without the program's name: the command line adds those.
 */
#ifndef BL_CORE_STATUS_H
#define BL_CORE_STATUS_H

#include "ballast_status.h"

#include <stdint.h>

/* A place in an input. Absent parts are NULL or -1. */
typedef struct bl_where {
    const char *file; /* path, borrowed for the call only */
    int64_t line;     /* 1-based */
    int64_t byte;     /* 0-based offset */
    int layer;        /* decoder-layer id */
    int expert;       /* logical expert */
} bl_where;

static inline bl_where bl_at(const char *file) {
    return (bl_where){file, -1, -1, -1, -1};
}
static inline bl_where bl_at_line(const char *file, int64_t line) {
    return (bl_where){file, line, -1, -1, -1};
}
static inline bl_where bl_at_byte(const char *file, int64_t byte) {
    return (bl_where){file, -1, byte, -1, -1};
}
static inline bl_where bl_at_layer(const char *file, int layer) {
    return (bl_where){file, -1, -1, layer, -1};
}
static inline bl_where bl_at_expert(const char *file, int layer, int expert) {
    return (bl_where){file, -1, -1, layer, expert};
}

typedef struct bl_error {
    bl_status code;
    char text[512]; /* cause and value seen; "" when code is BL_OK */
    char file[256]; /* input file, "" when there is none */
    int64_t line, byte;
    int layer, expert; /* as in bl_where, -1 when absent */
} bl_error;

#define BL_ERROR_INIT ((bl_error){BL_OK, "", "", -1, -1, -1, -1})

#if defined(__GNUC__)
#define BL_PRINTF(format_at, args_at) __attribute__((format(printf, format_at, args_at)))
#else
#define BL_PRINTF(format_at, args_at)
#endif

/* Record an error unless one is recorded already; returns `code`. `err` may be NULL. */
bl_status bl_fail(bl_error *err, bl_status code, const char *format, ...) BL_PRINTF(3, 4);
bl_status bl_fail_at(bl_error *err, bl_status code, bl_where where, const char *format, ...)
    BL_PRINTF(4, 5);

/* Name the input file of an error that was recorded without one (readers of nested parts). */
void bl_error_set_file(bl_error *err, const char *file);

/* Write "FILE: line 3: layer 17: expert 5: text" into `out`, always terminated. */
void bl_error_format(const bl_error *err, char *out, uint64_t out_bytes);

/* Make text one line that steers no terminal, whatever names and excerpts of an input it holds: '?' for
 * every control character. Messages are made so here; names by whoever reads them. */
void bl_flatten(char *text);

/* Forward an error to the caller. */
#define BL_TRY(call)                         \
    do {                                     \
        const bl_status bl_try_st_ = (call); \
        if (bl_try_st_ < 0)                  \
            return bl_try_st_;               \
    } while (0)

/* Forward an error after undoing: sets `st` and jumps. */
#define BL_TRY_GOTO(st, call, label) \
    do {                             \
        (st) = (call);               \
        if ((st) < 0)                \
            goto label;              \
    } while (0)

#endif
