/*
 * operator.h: what the verbs of an operator (apply, status, abort) share.
 */
#ifndef BL_CLI_OPERATOR_H
#define BL_CLI_OPERATOR_H

#include "rebalancer/control.h"

/* The cluster answers once per step; a step may be long. */
#define BL_OPERATOR_WAIT_S 60.0

/* `path` may be NULL: the default. */
bl_status bl_operator_connect(const char *path, bl_control_client *out, bl_error *err);

/* One request {"op": op}; *answer_p is a new reference. */
bl_status bl_operator_ask(const char *path, const char *op, json_t **answer_p, bl_error *err);

/* The text at `key`, "" when it is absent or no text; borrowed. */
const char *bl_text_of(const json_t *object, const char *key);

#endif
