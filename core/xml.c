#include "core/xml.h"

#include <expat.h>
#include <limits.h>
#include <string.h>

typedef struct reader {
    XML_Parser parser;
    const char *file;
    int depth;
    bl_xml_open_fn *on_open;
    void *user;
    bl_status status;
    bl_error *err;
} reader;

static int64_t line_of(const reader *r) {
    return (int64_t)XML_GetCurrentLineNumber(r->parser);
}

static void stop(reader *r, bl_status status) {
    r->status = status;
    XML_StopParser(r->parser, XML_FALSE);
}

static void XMLCALL on_start(void *user, const XML_Char *name, const XML_Char **attributes) {
    reader *r = user;
    if (r->status < 0)
        return;
    const bl_xml_element element = {r->file, line_of(r), r->depth, name,
                                    (const char *const *)attributes};
    if (r->depth == BL_XML_MAX_DEPTH) {
        stop(r, bl_fail_at(r->err, BL_ERR_RANGE, bl_at_line(r->file, element.line),
                           "elements are nested more than %d deep", BL_XML_MAX_DEPTH));
        return;
    }
    r->depth++;
    const bl_status status = r->on_open(&element, r->user, r->err);
    if (status < 0)
        stop(r, status);
}

static void XMLCALL on_end(void *user, const XML_Char *name) {
    (void)name;
    ((reader *)user)->depth--;
}

static void XMLCALL on_doctype(void *user, const XML_Char *name, const XML_Char *system_id,
                               const XML_Char *public_id, int has_subset) {
    (void)name, (void)system_id, (void)public_id, (void)has_subset;
    reader *r = user;
    if (r->status >= 0)
        stop(r, bl_fail_at(r->err, BL_ERR_UNSUPPORTED, bl_at_line(r->file, line_of(r)),
                           "a document type (<!DOCTYPE) is not read"));
}

bl_status bl_xml_parse(const char *text, size_t bytes, const char *file, bl_xml_open_fn *on_open,
                       void *user, bl_error *err) {
    if (bytes > INT_MAX)
        return bl_fail_at(err, BL_ERR_RANGE, bl_at(file), "larger than %d bytes", INT_MAX);
    reader r = {.parser = XML_ParserCreate(NULL),
                .file = file,
                .on_open = on_open,
                .user = user,
                .err = err};
    if (r.parser == NULL)
        return bl_fail(err, BL_ERR_NOMEM, "out of memory");
    XML_SetUserData(r.parser, &r);
    XML_SetElementHandler(r.parser, on_start, on_end);
    XML_SetStartDoctypeDeclHandler(r.parser, on_doctype);
    if (XML_Parse(r.parser, text, (int)bytes, XML_TRUE) != XML_STATUS_OK && r.status >= 0)
        r.status = bl_fail_at(err, BL_ERR_PARSE, bl_at_line(file, line_of(&r)), "not XML: %s",
                              XML_ErrorString(XML_GetErrorCode(r.parser)));
    XML_ParserFree(r.parser);
    return r.status;
}

const char *bl_xml_get(const bl_xml_element *element, const char *name) {
    for (const char *const *at = element->attributes; *at != NULL; at += 2) {
        if (strcmp(at[0], name) == 0)
            return at[1];
    }
    return NULL;
}
