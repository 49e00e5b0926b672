/*
 * ballast_status.h: how every Ballast function says how it went.
 *
 * A function that can fail returns a bl_status (public functions return it as an int): 0 for
 * success, a negative number for an error, a positive one for "done, but" (a limit was reached).
 * The numbers are stable; the list below is the only place where they are written.
 */
#ifndef BALLAST_STATUS_H
#define BALLAST_STATUS_H

/* name, number, text */
#define BL_STATUS_MAP(X)                                                   \
    X(LIMIT, 1, "a limit was reached; the best result so far is returned") \
    X(OK, 0, "ok")                                                         \
    X(ERR_USAGE, -1, "wrong usage")                                        \
    X(ERR_NOMEM, -2, "out of memory")                                      \
    X(ERR_IO, -3, "input or output failed")                                \
    X(ERR_PARSE, -4, "malformed input")                                    \
    X(ERR_VERSION, -5, "unknown format or version")                        \
    X(ERR_RANGE, -6, "value out of range")                                 \
    X(ERR_SHAPE, -7, "shapes do not match")                                \
    X(ERR_MODEL, -8, "wrong or unknown model")                             \
    X(ERR_CHECKSUM, -9, "content does not match its checksum")             \
    X(ERR_CONSERVATION, -10, "counts do not add up")                       \
    X(ERR_INFEASIBLE, -11, "no placement can satisfy the rules")           \
    X(ERR_UNSUPPORTED, -12, "not supported here")                          \
    X(ERR_SOLVER, -13, "the solver failed")                                \
    X(ERR_PEER, -14, "a rank was lost")                                    \
    X(ERR_TIMEOUT, -15, "a deadline passed")                               \
    X(ERR_ABORTED, -16, "aborted")                                         \
    X(ERR_STATE, -17, "not possible in this state")                        \
    X(ERR_INTERNAL, -18, "an invariant was broken; please report it")

typedef enum bl_status {
#define BL_STATUS_ENUM(name, number, text) BL_##name = number,
    BL_STATUS_MAP(BL_STATUS_ENUM)
#undef BL_STATUS_ENUM
} bl_status;

#ifdef __cplusplus
extern "C" {
#endif

/* The text of a status, e.g. "out of memory"; never NULL, static storage. */
const char *bl_status_string(int status);

/* The name of a status without its prefix, e.g. "ERR_NOMEM"; never NULL, static storage. */
const char *bl_status_name(int status);

#ifdef __cplusplus
}
#endif
#endif
