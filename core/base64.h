/*
 * base64.h: bytes out of base64 text and back (RFC 4648, the standard alphabet).
 *
 * Strict: no line breaks, no other characters, padding as it should be. JSON replies carry arrays
 * this way.
 */
#ifndef BL_CORE_BASE64_H
#define BL_CORE_BASE64_H

#include "core/status.h"

#include <stddef.h>

/* *bytes_p is the caller's, freed with free(). `name` is the file, for messages; BL_ERR_PARSE names
 * the character that does not belong. */
bl_status bl_base64_decode(const char *text, size_t n_chars, const char *name,
                           unsigned char **bytes_p, size_t *n_bytes, bl_error *err);

/* The text of n_bytes bytes, ended by a zero; freed with free(). NULL when out of memory. */
char *bl_base64_encode(const void *bytes, size_t n_bytes);

#endif
