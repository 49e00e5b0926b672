/*
 * Lines and words of files that people copied out of terminals.
 */
#include "topologies/import_source.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Behind an escape sequence at `at` ("ESC [ ... letter"). */
static const char *skip_escape(const char *at, const char *end) {
    at++;
    if (at < end && *at == '[') {
        at++;
        while (at < end && *at >= ' ' && *at < '@')
            at++;
        if (at < end && *at >= '@' && *at <= '~')
            at++;
    }
    return at;
}

void bl_import_strip(bl_import *in) {
    const char *from = in->text, *end = in->text + in->bytes;
    char *to = in->text;
    while (from < end) {
        if (*from == '\x1b')
            from = skip_escape(from, end);
        else if (*from == '\r')
            from++;
        else
            *to++ = *from++;
    }
    *to = '\0';
    in->bytes = (size_t)(to - in->text);
}

bool bl_import_next_line(const bl_import *in, bl_line *line) {
    const char *end = in->text + in->bytes;
    const char *start = line->number == 0 ? in->text : line->end + 1;
    if (start >= end)
        return false;
    const char *newline = memchr(start, '\n', (size_t)(end - start));
    line->text = start;
    line->end = newline != NULL ? newline : end;
    line->number++;
    return true;
}

static bool is_blank(char c) {
    return c == ' ' || c == '\t' || c == '\v' || c == '\f';
}

bool bl_next_word(const char **at, const char *end, bl_word *out) {
    while (*at < end && is_blank(**at))
        (*at)++;
    const char *start = *at;
    while (*at < end && !is_blank(**at))
        (*at)++;
    *out = (bl_word){start, (size_t)(*at - start)};
    return out->length > 0;
}

size_t bl_split_words(const bl_line *line, bl_word *words, size_t room) {
    const char *at = line->text;
    bl_word word;
    size_t n = 0;
    for (; bl_next_word(&at, line->end, &word); n++) {
        if (n < room)
            words[n] = word;
    }
    return n;
}

bool bl_word_is(bl_word word, const char *text) {
    return word.length == strlen(text) && memcmp(word.text, text, word.length) == 0;
}

bool bl_word_int(bl_word word, int64_t *out) {
    char text[24];
    if (word.length == 0 || word.length >= sizeof text || word.text[0] < '0' || word.text[0] > '9')
        return false;
    memcpy(text, word.text, word.length);
    text[word.length] = '\0';
    char *end;
    errno = 0;
    const long long value = strtoll(text, &end, 10);
    if (*end != '\0' || errno != 0)
        return false;
    *out = value;
    return true;
}

bool bl_word_real(bl_word word, double *out) {
    char text[48];
    if (word.length == 0 || word.length >= sizeof text || word.text[0] < '0' || word.text[0] > '9')
        return false;
    memcpy(text, word.text, word.length);
    text[word.length] = '\0';
    char *end;
    const double value = strtod(text, &end);
    if (*end != '\0' || !isfinite(value))
        return false;
    *out = value;
    return true;
}

const char *bl_word_shown(bl_word word, char *out, size_t room) {
    const size_t length = word.length < room ? word.length : room - 1;
    for (size_t i = 0; i < length; i++)
        out[i] = word.text[i] >= ' ' && word.text[i] <= '~' ? word.text[i] : '?';
    out[length] = '\0';
    return out;
}

bl_status bl_import_choose(const bl_import *in, const char *what, int n_parts,
                           const int64_t *first_lines, int *chosen, bl_error *err) {
    const int part = in->options->part;
    if (part > n_parts)
        return bl_fail_at(err, BL_ERR_USAGE, bl_at(in->file),
                          "part %d is wanted, but the file holds %d %s", part, n_parts, what);
    if (part == 0 && n_parts > 1) {
        char lines[64];
        size_t used = 0;
        for (int p = 0; p < n_parts && p < 3; p++)
            used += (size_t)snprintf(lines + used, sizeof lines - used, "%s%lld", p > 0 ? ", " : "",
                                     (long long)first_lines[p]);
        return bl_fail_at(err, BL_ERR_USAGE, bl_at_line(in->file, first_lines[1]),
                          "the file holds %d %s (lines %s%s); choose with --part N", n_parts, what,
                          lines, n_parts > 3 ? ", ..." : "");
    }
    *chosen = part > 0 ? part - 1 : 0;
    return BL_OK;
}
