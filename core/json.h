/*
 * json.h: the door to jansson.
 *
 * Everything that reads or writes JSON includes this file and no other. Reading is strict: one
 * document, no duplicate keys, errors with file and line; the getters below turn a missing key, a
 * wrong type or a value out of range into one clear message. Writing builds a json_t with jansson's
 * own calls (json_pack, json_object_set_new, ...) and hands it to bl_json_write().
 *
 * Ownership is jansson's: a getter's result is borrowed from its parent; the root is the caller's,
 * freed with json_decref().
 */
#ifndef BL_CORE_JSON_H
#define BL_CORE_JSON_H

#include "core/status.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

/* No JSON file that Ballast reads is larger than this (a load matrix of 100 layers x 1000 experts
 * is under 2 MB; a vLLM reply of 100 000 tokens under 200 MB). */
#define BL_JSON_MAX_BYTES ((size_t)1 << 30)

/* Read a document from a file ("-": standard input) or from memory; `name` is used in messages. */
bl_status bl_json_load(const char *path, json_t **root_p, bl_error *err);
bl_status bl_json_parse(const char *text, size_t bytes, const char *name, json_t **root_p,
                        bl_error *err);

/* Typed getters. `file` is used in messages. A key that is absent, null or of another type is
 * BL_ERR_PARSE, a number outside [min, max] BL_ERR_RANGE. The _or variants take a default for an
 * absent or null key and still refuse a wrong type. Outputs are written on success only. */
bl_status bl_json_int(const json_t *object, const char *key, int64_t min, int64_t max,
                      const char *file, int64_t *out, bl_error *err);
bl_status bl_json_int_or(const json_t *object, const char *key, int64_t min, int64_t max,
                         int64_t fallback, const char *file, int64_t *out, bl_error *err);
bl_status bl_json_real(const json_t *object, const char *key, double min, double max,
                       const char *file, double *out, bl_error *err);
bl_status bl_json_real_or(const json_t *object, const char *key, double min, double max,
                          double fallback, const char *file, double *out, bl_error *err);
bl_status bl_json_bool_or(const json_t *object, const char *key, bool fallback, const char *file,
                          bool *out, bl_error *err);
/* *out is borrowed from `object`. */
bl_status bl_json_string(const json_t *object, const char *key, const char *file, const char **out,
                         bl_error *err);
bl_status bl_json_string_or(const json_t *object, const char *key, const char *fallback,
                            const char *file, const char **out, bl_error *err);
bl_status bl_json_array(const json_t *object, const char *key, const char *file, const json_t **out,
                        bl_error *err);
bl_status bl_json_object(const json_t *object, const char *key, const char *file,
                         const json_t **out, bl_error *err);

/* A string of JSON from text that need not be UTF-8, as names of files need not: then '?' stands for
 * every byte that is not ASCII. NULL without memory. */
json_t *bl_json_text(const char *text);

/* Write a document and a newline to `path` ("-": standard output), atomically (core/io.h). Keys
 * keep the order of insertion, so the same content gives the same bytes. `indent` 0 is one line. */
bl_status bl_json_write(const char *path, const json_t *root, int indent, bl_error *err);

#endif
