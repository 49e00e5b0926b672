/*
 * launch_pipe.h: what a rank tells its launcher, over one pipe.
 *
 * Inside launch.c. Frames: a head, then `bytes` of payload; pieces of the result in any number,
 * then the last words. A rank that dies leaves a pipe without last words. Both ends are one
 * program, so structs travel as they are.
 *
 *     [RESULT, n][n bytes] [RESULT, m][m bytes] ... [END, sizeof][status, error]
 */
#ifndef BL_RUNTIME_LAUNCH_PIPE_H
#define BL_RUNTIME_LAUNCH_PIPE_H

#include "core/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct bl_last_words {
    bl_status status;
    bl_error err;
} bl_last_words;

/* Write to the pipe; false with errno when the launcher does not read any more. */
bool bl_pipe_put_result(int fd, const void *data, size_t bytes);
bool bl_pipe_put_last_words(int fd, const bl_last_words *words);

typedef struct bl_frame_head {
    uint64_t kind, bytes;
} bl_frame_head;

/* What has been read of one rank so far; start from zero with max_bytes set. */
typedef struct bl_report {
    size_t max_bytes;      /* of the result */
    unsigned char *result; /* freed by whoever takes it */
    size_t result_bytes, capacity;
    bool has_ended; /* `words` are complete */
    bl_last_words words;
    bl_frame_head head; /* of the frame being read */
    size_t head_bytes, payload_bytes;
} bl_report;

/* Take the next bytes that came through the pipe. BL_ERR_RANGE when the result exceeds max_bytes,
 * BL_ERR_NOMEM; the report then is of no further use, but can be fed on. */
bl_status bl_report_feed(bl_report *report, const unsigned char *data, size_t bytes);

#endif
