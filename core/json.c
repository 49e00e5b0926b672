#include "core/json.h"

#include "core/io.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

bl_status bl_json_parse(const char *text, size_t bytes, const char *name, json_t **root_p,
                        bl_error *err) {
    json_error_t why;
    json_t *root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &why);
    if (bytes == 0)
        return bl_fail_at(err, BL_ERR_PARSE, bl_at(name), "is empty");
    if (root == NULL)
        return bl_fail_at(err, BL_ERR_PARSE, bl_at_line(name, why.line), "column %d: %s",
                          why.column, why.text);
    *root_p = root;
    return BL_OK;
}

bl_status bl_json_load(const char *path, json_t **root_p, bl_error *err) {
    char *text = NULL;
    size_t bytes = 0;
    BL_TRY(bl_read_file(path, BL_JSON_MAX_BYTES, &text, &bytes, err));
    const bl_status st = bl_json_parse(text, bytes, path, root_p, err);
    free(text);
    return st;
}

static const char *type_name(const json_t *value) {
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return "an array";
    case JSON_STRING:
        return "a string";
    case JSON_INTEGER:
        return "an integer";
    case JSON_REAL:
        return "a real number";
    case JSON_TRUE:
    case JSON_FALSE:
        return "a boolean";
    default:
        return "null";
    }
}

/* The value of a key, or NULL when it is absent or null. */
static const json_t *present(const json_t *object, const char *key) {
    const json_t *value = json_object_get(object, key);
    return value == NULL || json_is_null(value) ? NULL : value;
}

static bl_status missing(const char *key, const char *file, bl_error *err) {
    return bl_fail_at(err, BL_ERR_PARSE, bl_at(file), "key \"%s\" is missing", key);
}

static bl_status wrong_type(const json_t *value, const char *key, const char *wanted,
                            const char *file, bl_error *err) {
    return bl_fail_at(err, BL_ERR_PARSE, bl_at(file), "\"%s\" must be %s, not %s", key, wanted,
                      type_name(value));
}

static bl_status int_of(const json_t *value, const char *key, int64_t min, int64_t max,
                        const char *file, int64_t *out, bl_error *err) {
    if (!json_is_integer(value))
        return wrong_type(value, key, "an integer", file, err);
    const int64_t number = json_integer_value(value);
    if (number < min || number > max)
        return bl_fail_at(err, BL_ERR_RANGE, bl_at(file),
                          "\"%s\" is %lld, but must be in [%lld, %lld]", key, (long long)number,
                          (long long)min, (long long)max);
    *out = number;
    return BL_OK;
}

static bl_status real_of(const json_t *value, const char *key, double min, double max,
                         const char *file, double *out, bl_error *err) {
    if (!json_is_number(value))
        return wrong_type(value, key, "a number", file, err);
    const double number = json_number_value(value);
    if (!(number >= min && number <= max))
        return bl_fail_at(err, BL_ERR_RANGE, bl_at(file), "\"%s\" is %g, but must be in [%g, %g]",
                          key, number, min, max);
    *out = number;
    return BL_OK;
}

bl_status bl_json_int(const json_t *object, const char *key, int64_t min, int64_t max,
                      const char *file, int64_t *out, bl_error *err) {
    const json_t *value = present(object, key);
    return value == NULL ? missing(key, file, err) : int_of(value, key, min, max, file, out, err);
}

bl_status bl_json_int_or(const json_t *object, const char *key, int64_t min, int64_t max,
                         int64_t fallback, const char *file, int64_t *out, bl_error *err) {
    const json_t *value = present(object, key);
    if (value != NULL)
        return int_of(value, key, min, max, file, out, err);
    *out = fallback;
    return BL_OK;
}

bl_status bl_json_real(const json_t *object, const char *key, double min, double max,
                       const char *file, double *out, bl_error *err) {
    const json_t *value = present(object, key);
    return value == NULL ? missing(key, file, err) : real_of(value, key, min, max, file, out, err);
}

bl_status bl_json_real_or(const json_t *object, const char *key, double min, double max,
                          double fallback, const char *file, double *out, bl_error *err) {
    const json_t *value = present(object, key);
    if (value != NULL)
        return real_of(value, key, min, max, file, out, err);
    *out = fallback;
    return BL_OK;
}

bl_status bl_json_bool_or(const json_t *object, const char *key, bool fallback, const char *file,
                          bool *out, bl_error *err) {
    const json_t *value = present(object, key);
    if (value != NULL && !json_is_boolean(value))
        return wrong_type(value, key, "true or false", file, err);
    *out = value != NULL ? json_is_true(value) : fallback;
    return BL_OK;
}

bl_status bl_json_string(const json_t *object, const char *key, const char *file, const char **out,
                         bl_error *err) {
    const json_t *value = present(object, key);
    return value == NULL ? missing(key, file, err)
                         : bl_json_string_or(object, key, "", file, out, err);
}

bl_status bl_json_string_or(const json_t *object, const char *key, const char *fallback,
                            const char *file, const char **out, bl_error *err) {
    const json_t *value = present(object, key);
    if (value != NULL && !json_is_string(value))
        return wrong_type(value, key, "a string", file, err);
    *out = value != NULL ? json_string_value(value) : fallback;
    return BL_OK;
}

bl_status bl_json_array(const json_t *object, const char *key, const char *file, const json_t **out,
                        bl_error *err) {
    const json_t *value = present(object, key);
    if (value == NULL)
        return missing(key, file, err);
    if (!json_is_array(value))
        return wrong_type(value, key, "an array", file, err);
    *out = value;
    return BL_OK;
}

bl_status bl_json_object(const json_t *object, const char *key, const char *file,
                         const json_t **out, bl_error *err) {
    const json_t *value = present(object, key);
    if (value == NULL)
        return missing(key, file, err);
    if (!json_is_object(value))
        return wrong_type(value, key, "an object", file, err);
    *out = value;
    return BL_OK;
}

json_t *bl_json_text(const char *text) {
    json_t *whole = json_string(text);
    char *plain = whole == NULL ? strdup(text) : NULL;
    if (plain == NULL)
        return whole;
    for (char *at = plain; *at != '\0'; at++)
        *at = (unsigned char)*at < 0x80 ? *at : '?';
    whole = json_string(plain);
    free(plain);
    return whole;
}

bl_status bl_json_write(const char *path, const json_t *root, int indent, bl_error *err) {
    bl_file file;
    BL_TRY(bl_file_create(&file, path, err));
    const size_t flags = JSON_ENCODE_ANY | JSON_REAL_PRECISION(12) |
                         (indent > 0 ? JSON_INDENT((size_t)indent) : JSON_COMPACT);
    if (json_dumpf(root, file.stream, flags) != 0 || fputc('\n', file.stream) == EOF) {
        const int why = errno;
        bl_file_discard(&file);
        return bl_fail_at(err, BL_ERR_IO, bl_at(path), "cannot write: %s",
                          why != 0 ? strerror(why) : "not representable as JSON");
    }
    return bl_file_commit(&file, err);
}
