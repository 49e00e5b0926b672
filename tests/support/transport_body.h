/*
 * transport_body.h: for tests whose cases are bodies of ranks: checks that return an error instead of
 * ending the process, and messages with content that can be told from any other.
 */
#ifndef BL_TESTS_TRANSPORT_BODY_H
#define BL_TESTS_TRANSPORT_BODY_H

#include "runtime/transport.h"

#define WAIT_S 60.0 /* for what must come; generous, because machines stall */
#define MIB ((size_t)1 << 20)

#define REQUIRE(condition)                                                                     \
    do {                                                                                       \
        if (!(condition))                                                                      \
            return bl_fail(err, BL_ERR_INTERNAL, "%s:%d: %s", __FILE__, __LINE__, #condition); \
    } while (0)

/* The call, which writes its error to `seen`, must fail with `code` and a message that holds `part`. */
#define REQUIRE_FAILS(call, code, part)                                                        \
    do {                                                                                       \
        bl_error seen = BL_ERROR_INIT;                                                         \
        const bl_status st_ = (call);                                                          \
        if (st_ != (code) || strstr(seen.text, (part)) == NULL)                                \
            return bl_fail(err, BL_ERR_INTERNAL, "%s:%d: %s: got %s (%s)", __FILE__, __LINE__, \
                           #call, bl_status_name(st_), seen.text);                             \
    } while (0)

/* Content that depends on sender, mark and size; freed by the caller. */
unsigned char *bl_test_content(int from, uint64_t mark, size_t bytes);

/* Send such a message, and write over the buffer at once: it is the sender's again. */
bl_status bl_test_send(bl_transport *t, int peer, bl_channel channel, uint64_t mark, size_t bytes,
                       bl_error *err);

/* Receive one and compare. */
bl_status bl_test_receive(bl_transport *t, int peer, bl_channel channel, uint64_t mark,
                          size_t bytes, bl_error *err);
bl_status bl_test_check(const bl_message *message, int from, uint64_t mark, size_t bytes,
                        bl_error *err);

/* Return when all ranks have come this far. */
bl_status bl_test_meet(bl_transport *t, uint64_t mark, bl_error *err);

#endif
