#include "runtime/launch_pipe.h"

#include "core/mem.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

enum { FRAME_RESULT = 1, FRAME_END = 2 };

static bool write_all(int fd, const void *data, size_t bytes) {
    const unsigned char *at = data;
    while (bytes > 0) {
        const ssize_t n = write(fd, at, bytes);
        if (n < 0 && errno != EINTR)
            return false;
        if (n > 0) {
            at += n;
            bytes -= (size_t)n;
        }
    }
    return true;
}

static bool write_frame(int fd, uint64_t kind, const void *data, size_t bytes) {
    const bl_frame_head head = {kind, bytes};
    return write_all(fd, &head, sizeof head) && write_all(fd, data, bytes);
}

bool bl_pipe_put_result(int fd, const void *data, size_t bytes) {
    return write_frame(fd, FRAME_RESULT, data, bytes);
}

bool bl_pipe_put_last_words(int fd, const bl_last_words *words) {
    return write_frame(fd, FRAME_END, words, sizeof *words);
}

static bl_status add_result(bl_report *report, const unsigned char *data, size_t bytes) {
    if (bytes > report->max_bytes - report->result_bytes)
        return BL_ERR_RANGE;
    void *items = report->result;
    BL_TRY(bl_grow(&items, &report->capacity, report->result_bytes + bytes, 1, NULL));
    report->result = items;
    memcpy(report->result + report->result_bytes, data, bytes);
    report->result_bytes += bytes;
    return BL_OK;
}

/* Fill `field` of `size` bytes, of which *have are there, from the input. */
static size_t fill(void *field, size_t size, size_t *have, const unsigned char *data,
                   size_t bytes) {
    const size_t n = bytes < size - *have ? bytes : size - *have;
    if (n > 0 && field != NULL)
        memcpy((unsigned char *)field + *have, data, n);
    *have += n;
    return n;
}

bl_status bl_report_feed(bl_report *report, const unsigned char *data, size_t bytes) {
    bl_status st = BL_OK;
    while (bytes > 0) {
        size_t n = fill(&report->head, sizeof report->head, &report->head_bytes, data, bytes);
        data += n;
        bytes -= n;
        if (report->head_bytes < sizeof report->head)
            return st;
        const bool is_end =
            report->head.kind == FRAME_END && report->head.bytes == sizeof report->words;
        n = fill(is_end ? &report->words : NULL, (size_t)report->head.bytes, &report->payload_bytes,
                 data, bytes);
        if (report->head.kind == FRAME_RESULT && n > 0 && st == BL_OK)
            st = add_result(report, data, n);
        data += n;
        bytes -= n;
        if (report->payload_bytes == report->head.bytes) {
            report->has_ended = report->has_ended || is_end;
            report->head_bytes = report->payload_bytes = 0;
        }
    }
    return st;
}
