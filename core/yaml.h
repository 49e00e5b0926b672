/*
 * yaml.h: the door to libyaml.
 *
 * Some engines keep their settings in YAML. Such a file is read into the same tree as JSON, so that
 * the getters of core/json.h and the readers behind them serve both. Only what JSON can say is
 * accepted: one document of mappings, sequences, strings, whole decimal numbers, true, false and
 * null. Refused, by line: anchors, aliases, tags, merge keys ("<<"), keys given twice or that are
 * no scalars, a second document, and numbers that readers of YAML disagree about (010, 1_000, 0x10,
 * 1:30) or that are not whole. A key is always text: 3 and "3" are the same key.
 */
#ifndef BL_CORE_YAML_H
#define BL_CORE_YAML_H

#include "core/json.h"

/* Placement files of the largest models are below 1 MB. */
#define BL_YAML_MAX_BYTES ((size_t)64 << 20)

/* Read a document from memory; `name` is used in messages. The root is the caller's, freed with
 * json_decref(). */
bl_status bl_yaml_parse(const char *text, size_t bytes, const char *name, json_t **root_p,
                        bl_error *err);

#endif
