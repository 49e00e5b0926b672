#include "core/base64.h"

#include "core/mem.h"

#include <stdint.h>
#include <stdlib.h>

/* The 6 bits of a character, or -1. */
static int bits_of(char c) {
    if (c >= 'A' && c <= 'Z')
        return c - 'A';
    if (c >= 'a' && c <= 'z')
        return c - 'a' + 26;
    if (c >= '0' && c <= '9')
        return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

/* All groups of four characters, the last one with n_pad characters less. */
static bl_status decode(const char *text, size_t n_chars, size_t n_pad, const char *name,
                        unsigned char *to, bl_error *err) {
    uint32_t group = 0;
    for (size_t i = 0; i < n_chars - n_pad; i++) {
        const int bits = bits_of(text[i]);
        if (bits < 0)
            return bl_fail_at(err, BL_ERR_PARSE, bl_at(name),
                              "no base64: character %zu of %zu is 0x%02x", i + 1, n_chars,
                              (unsigned)(unsigned char)text[i]);
        group = group << 6 | (uint32_t)bits;
        if (i % 4 != 3)
            continue;
        for (int shift = 16; shift >= 0; shift -= 8)
            *to++ = (unsigned char)(group >> shift);
        group = 0;
    }
    if (n_pad == 0)
        return BL_OK;
    group <<= 6 * n_pad;
    if ((group & (n_pad == 2 ? 0xffffu : 0xffu)) != 0)
        return bl_fail_at(err, BL_ERR_PARSE, bl_at(name), "no base64: bits behind the last byte");
    *to++ = (unsigned char)(group >> 16);
    if (n_pad == 1)
        *to = (unsigned char)(group >> 8);
    return BL_OK;
}

bl_status bl_base64_decode(const char *text, size_t n_chars, const char *name,
                           unsigned char **bytes_p, size_t *n_bytes, bl_error *err) {
    if (n_chars % 4 != 0)
        return bl_fail_at(err, BL_ERR_PARSE, bl_at(name),
                          "no base64: %zu characters, which is no multiple of 4", n_chars);
    size_t n_pad = 0;
    while (n_pad < 2 && n_pad < n_chars && text[n_chars - 1 - n_pad] == '=')
        n_pad++;
    unsigned char *bytes = NULL;
    const size_t n = n_chars / 4 * 3 - n_pad;
    BL_TRY(BL_CALLOC(bytes, n, err));
    const bl_status st = decode(text, n_chars, n_pad, name, bytes, err);
    if (st < 0) {
        free(bytes);
        return st;
    }
    *bytes_p = bytes;
    *n_bytes = n;
    return BL_OK;
}

char *bl_base64_encode(const void *bytes, size_t n_bytes) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const unsigned char *at = bytes;
    size_t n_chars;
    if (!bl_size_mul(n_bytes / 3 + 1, 4, &n_chars))
        return NULL;
    char *text = bl_calloc(n_chars + 1, 1), *to = text;
    if (text == NULL)
        return NULL;
    for (size_t i = 0; i < n_bytes; i += 3) {
        const size_t n = n_bytes - i < 3 ? n_bytes - i : 3;
        const uint32_t group = (uint32_t)at[i] << 16 | (n > 1 ? (uint32_t)at[i + 1] << 8 : 0) |
                               (n > 2 ? (uint32_t)at[i + 2] : 0);
        *to++ = digits[group >> 18];
        *to++ = digits[group >> 12 & 63];
        *to++ = n > 1 ? digits[group >> 6 & 63] : '=';
        *to++ = n > 2 ? digits[group & 63] : '=';
    }
    return text;
}
