#include "core/yaml.h"

#include <stdlib.h>
#include <string.h>
#include <yaml.h>

#define MAX_DEPTH 16
#define MAX_DIGITS 18 /* of a whole number: always fits 64 bits */

typedef struct reader {
    yaml_parser_t parser;
    yaml_event_t event; /* the one being looked at; zeroed when there is none */
    const char *name;
    bl_error *err;
} reader;

static bl_status refuse(reader *r, bl_status code, const char *what) {
    return bl_fail_at(r->err, code, bl_at_line(r->name, (int64_t)r->event.start_mark.line + 1),
                      "%s", what);
}

static bl_status advance(reader *r) {
    yaml_event_delete(&r->event);
    if (yaml_parser_parse(&r->parser, &r->event))
        return BL_OK;
    if (r->parser.error == YAML_MEMORY_ERROR)
        return bl_fail(r->err, BL_ERR_NOMEM, "out of memory");
    return bl_fail_at(r->err, BL_ERR_PARSE,
                      bl_at_line(r->name, (int64_t)r->parser.problem_mark.line + 1), "not YAML: %s",
                      r->parser.problem != NULL ? r->parser.problem : "unreadable");
}

/* ---- scalars ----------------------------------------------------------------------------------*/

static bool is_whole_number(const char *text, size_t length) {
    const size_t sign = text[0] == '-';
    const size_t digits = strspn(text + sign, "0123456789");
    return digits > 0 && digits <= MAX_DIGITS && sign + digits == length &&
           (text[sign] != '0' || (digits == 1 && sign == 0));
}

/* Starts like a number: whatever it is, it is not meant as text. */
static bool is_numeric(const char *text) {
    const size_t at = strspn(text, "+-.");
    return at <= 2 && text[at] >= '0' && text[at] <= '9';
}

/* The scalar at hand as text without a terminator inside; what JSON has no word for is refused. */
static bl_status scalar_text(reader *r, const char **text_p, size_t *length_p) {
    const char *text = (const char *)r->event.data.scalar.value;
    const size_t length = r->event.data.scalar.length;
    if (r->event.data.scalar.anchor != NULL || r->event.data.scalar.tag != NULL)
        return refuse(r, BL_ERR_UNSUPPORTED, "anchors and tags are not read");
    if (strlen(text) != length)
        return refuse(r, BL_ERR_PARSE, "text with a zero byte in it");
    *text_p = text;
    *length_p = length;
    return BL_OK;
}

static bl_status read_scalar(reader *r, json_t **out) {
    const char *text;
    size_t length;
    BL_TRY(scalar_text(r, &text, &length));
    if (r->event.data.scalar.style != YAML_PLAIN_SCALAR_STYLE)
        *out = json_stringn(text, length);
    else if (is_whole_number(text, length))
        *out = json_integer(strtoll(text, NULL, 10));
    else if (is_numeric(text))
        return bl_fail_at(r->err, BL_ERR_PARSE,
                          bl_at_line(r->name, (int64_t)r->event.start_mark.line + 1),
                          "\"%.40s\" is not a whole number in plain decimals", text);
    else if (length == 0 || strcmp(text, "~") == 0 || strcmp(text, "null") == 0)
        *out = json_null();
    else if (strcmp(text, "true") == 0 || strcmp(text, "false") == 0)
        *out = json_boolean(text[0] == 't');
    else
        *out = json_stringn(text, length);
    return *out != NULL ? BL_OK : bl_fail(r->err, BL_ERR_NOMEM, "out of memory");
}

/* ---- the tree ---------------------------------------------------------------------------------*/

static bl_status read_node(reader *r, int depth, json_t **out);

static bl_status read_items(reader *r, int depth, json_t *array) {
    for (;;) {
        BL_TRY(advance(r));
        if (r->event.type == YAML_SEQUENCE_END_EVENT)
            return BL_OK;
        json_t *item = NULL;
        BL_TRY(read_node(r, depth + 1, &item));
        if (json_array_append_new(array, item) != 0)
            return bl_fail(r->err, BL_ERR_NOMEM, "out of memory");
    }
}

/* The key at hand, checked, as a copy for the caller to free. */
static bl_status read_key(reader *r, const json_t *object, char **key_p) {
    const char *text;
    size_t length;
    if (r->event.type != YAML_SCALAR_EVENT)
        return refuse(r, BL_ERR_UNSUPPORTED, "a key must be a single word or number");
    BL_TRY(scalar_text(r, &text, &length));
    if (strcmp(text, "<<") == 0)
        return refuse(r, BL_ERR_UNSUPPORTED, "merge keys are not read");
    if (json_object_get(object, text) != NULL)
        return bl_fail_at(r->err, BL_ERR_PARSE,
                          bl_at_line(r->name, (int64_t)r->event.start_mark.line + 1),
                          "key \"%.80s\" is given twice", text);
    *key_p = malloc(length + 1);
    if (*key_p == NULL)
        return bl_fail(r->err, BL_ERR_NOMEM, "out of memory");
    memcpy(*key_p, text, length + 1);
    return BL_OK;
}

static bl_status read_pairs(reader *r, int depth, json_t *object) {
    for (;;) {
        char *key;
        json_t *value = NULL;
        BL_TRY(advance(r));
        if (r->event.type == YAML_MAPPING_END_EVENT)
            return BL_OK;
        BL_TRY(read_key(r, object, &key));
        bl_status st = advance(r);
        if (st >= 0)
            st = read_node(r, depth + 1, &value);
        if (st >= 0 && json_object_set_new(object, key, value) != 0)
            st = bl_fail(r->err, BL_ERR_NOMEM, "out of memory");
        free(key);
        if (st < 0)
            return st;
    }
}

/* The node that starts at the event at hand; ends at its last event. */
static bl_status read_node(reader *r, int depth, json_t **out) {
    const yaml_event_t *event = &r->event;
    const bool mapping = event->type == YAML_MAPPING_START_EVENT;
    if (event->type == YAML_SCALAR_EVENT)
        return read_scalar(r, out);
    if (event->type == YAML_ALIAS_EVENT)
        return refuse(r, BL_ERR_UNSUPPORTED, "aliases are not read");
    const yaml_char_t *anchor =
        mapping ? event->data.mapping_start.anchor : event->data.sequence_start.anchor;
    const yaml_char_t *tag =
        mapping ? event->data.mapping_start.tag : event->data.sequence_start.tag;
    if (anchor != NULL || tag != NULL)
        return refuse(r, BL_ERR_UNSUPPORTED, "anchors and tags are not read");
    if (depth >= MAX_DEPTH)
        return refuse(r, BL_ERR_UNSUPPORTED, "nested too deeply");
    json_t *made = mapping ? json_object() : json_array();
    if (made == NULL)
        return bl_fail(r->err, BL_ERR_NOMEM, "out of memory");
    const bl_status st = mapping ? read_pairs(r, depth, made) : read_items(r, depth, made);
    if (st < 0) {
        json_decref(made);
        return st;
    }
    *out = made;
    return BL_OK;
}

static bl_status read_document(reader *r, json_t **out) {
    BL_TRY(advance(r)); /* start of the stream */
    BL_TRY(advance(r));
    if (r->event.type != YAML_DOCUMENT_START_EVENT)
        return bl_fail_at(r->err, BL_ERR_PARSE, bl_at(r->name), "the file is empty");
    json_t *root = NULL;
    BL_TRY(advance(r));
    BL_TRY(read_node(r, 0, &root));
    bl_status st = advance(r); /* end of the document */
    if (st >= 0)
        st = advance(r);
    if (st >= 0 && r->event.type != YAML_STREAM_END_EVENT)
        st = refuse(r, BL_ERR_UNSUPPORTED, "a second document in the file");
    if (st < 0) {
        json_decref(root);
        return st;
    }
    *out = root;
    return BL_OK;
}

bl_status bl_yaml_parse(const char *text, size_t bytes, const char *name, json_t **root_p,
                        bl_error *err) {
    reader r = {.name = name, .err = err};
    if (bytes > BL_YAML_MAX_BYTES)
        return bl_fail_at(err, BL_ERR_UNSUPPORTED, bl_at(name), "a YAML file of %zu bytes", bytes);
    if (!yaml_parser_initialize(&r.parser))
        return bl_fail(err, BL_ERR_NOMEM, "out of memory");
    yaml_parser_set_encoding(&r.parser, YAML_UTF8_ENCODING);
    yaml_parser_set_input_string(&r.parser, (const unsigned char *)text, bytes);
    const bl_status st = read_document(&r, root_p);
    yaml_event_delete(&r.event);
    yaml_parser_delete(&r.parser);
    return st;
}
