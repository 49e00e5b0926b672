/*
 * support.h: what test programs share: cmocka, checks on statuses, test data, temporary files.
 */
#ifndef BL_TESTS_SUPPORT_H
#define BL_TESTS_SUPPORT_H

#include "core/status.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

/* The call must succeed; prints the error's text otherwise. Needs `bl_error err` in scope. */
#define assert_ok(call)                                                   \
    do {                                                                  \
        err = BL_ERROR_INIT;                                              \
        const bl_status st_ = (call);                                     \
        if (st_ < 0)                                                      \
            fail_msg("%s: %s: %s", #call, bl_status_name(st_), err.text); \
    } while (0)

/* The call must fail with `code` and a message that holds `part`. Needs `bl_error err` in scope. */
#define assert_fails(call, want, part)                                                   \
    do {                                                                                 \
        err = BL_ERROR_INIT;                                                             \
        const bl_status st_ = (call);                                                    \
        if (st_ != (want))                                                               \
            fail_msg("%s: got %s (%s), wanted %s", #call, bl_status_name(st_), err.text, \
                     bl_status_name(want));                                              \
        bl_test_has(err.text, (part));                                                   \
    } while (0)

/* Fails the test unless `text` contains `part`. */
void bl_test_has(const char *text, const char *part);

/* Path of a file of the shared test data (BALLAST_TEST_DATA, default ../shared/data), or skip() the
 * running test when it is not there. Static storage, overwritten after 8 calls. */
const char *bl_test_data(const char *relative);

/* A path in a directory of this test run, removed at exit. Static storage as above. */
const char *bl_test_temp(const char *name);

/* Write text to bl_test_temp(name) and return that path. */
const char *bl_test_write(const char *name, const char *text);

#endif
