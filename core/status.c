#include "core/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

const char *bl_status_string(int status) {
    switch (status) {
#define BL_STATUS_CASE(name, number, text) \
    case number:                           \
        return text;
        BL_STATUS_MAP(BL_STATUS_CASE)
#undef BL_STATUS_CASE
    default:
        return "unknown status";
    }
}

const char *bl_status_name(int status) {
    switch (status) {
#define BL_STATUS_CASE(name, number, text) \
    case number:                           \
        return #name;
        BL_STATUS_MAP(BL_STATUS_CASE)
#undef BL_STATUS_CASE
    default:
        return "UNKNOWN";
    }
}

void bl_flatten(char *text) {
    for (; *text != '\0'; text++) {
        if ((unsigned char)*text < 0x20 || *text == 0x7f)
            *text = '?';
    }
}

static void record(bl_error *err, bl_status code, bl_where where, const char *format, va_list args)
    BL_PRINTF(4, 0);

static void record(bl_error *err, bl_status code, bl_where where, const char *format,
                   va_list args) {
    if (err == NULL || err->code < 0)
        return;
    *err = (bl_error){.code = code,
                      .line = where.line,
                      .byte = where.byte,
                      .layer = where.layer,
                      .expert = where.expert};
    vsnprintf(err->text, sizeof err->text, format, args);
    bl_flatten(err->text);
    if (where.file != NULL)
        snprintf(err->file, sizeof err->file, "%s", where.file);
}

bl_status bl_fail(bl_error *err, bl_status code, const char *format, ...) {
    va_list args;
    va_start(args, format);
    record(err, code, bl_at(NULL), format, args);
    va_end(args);
    return code;
}

bl_status bl_fail_at(bl_error *err, bl_status code, bl_where where, const char *format, ...) {
    va_list args;
    va_start(args, format);
    record(err, code, where, format, args);
    va_end(args);
    return code;
}

void bl_error_set_file(bl_error *err, const char *file) {
    if (err != NULL && err->code < 0 && err->file[0] == '\0' && file != NULL)
        snprintf(err->file, sizeof err->file, "%s", file);
}

void bl_error_format(const bl_error *err, char *out, uint64_t out_bytes) {
    char line[32] = "", byte[32] = "", layer[32] = "", expert[32] = "";
    if (err->line >= 0)
        snprintf(line, sizeof line, "line %lld: ", (long long)err->line);
    if (err->byte >= 0)
        snprintf(byte, sizeof byte, "byte %lld: ", (long long)err->byte);
    if (err->layer >= 0)
        snprintf(layer, sizeof layer, "layer %d: ", err->layer);
    if (err->expert >= 0)
        snprintf(expert, sizeof expert, "expert %d: ", err->expert);
    /* "expert 5 has no slot" says it already. */
    const size_t said = strcspn(expert, ":");
    if (said > 0 && strncmp(err->text, expert, said) == 0 && err->text[said] == ' ')
        expert[0] = '\0';
    snprintf(out, (size_t)out_bytes, "%s%s%s%s%s%s%s", err->file, err->file[0] ? ": " : "", line,
             byte, layer, expert, err->text[0] ? err->text : bl_status_string(err->code));
    bl_flatten(out);
}
