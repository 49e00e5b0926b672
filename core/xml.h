/*
 * xml.h: the door to expat.
 *
 * Reads a whole document that is in memory and calls back at each element; nothing else of XML is
 * used. A document type (and with it every entity of its own) is refused, so is nesting beyond
 * BL_XML_MAX_DEPTH; errors name file and line.
 */
#ifndef BL_CORE_XML_H
#define BL_CORE_XML_H

#include "core/status.h"

#include <stddef.h>

#define BL_XML_MAX_DEPTH 64

/* An element as it opens; borrowed for the duration of the call. */
typedef struct bl_xml_element {
    const char *file;
    int64_t line;
    int depth;                     /* 0: the root */
    const char *name;              /* "pci" */
    const char *const *attributes; /* name, value, name, value, ..., NULL */
} bl_xml_element;

/* A negative status stops the reader and is returned. */
typedef bl_status bl_xml_open_fn(const bl_xml_element *element, void *user, bl_error *err);

bl_status bl_xml_parse(const char *text, size_t bytes, const char *file, bl_xml_open_fn *on_open,
                       void *user, bl_error *err);

/* Value of an attribute, or NULL. */
const char *bl_xml_get(const bl_xml_element *element, const char *name);

#endif
