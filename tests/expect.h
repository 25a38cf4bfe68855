/** @file expect.h  Calls that must succeed or fail, and checks of error texts. */
// SPDX-License-Identifier: MIT
#ifndef TESSERA_TESTS_EXPECT_H
#define TESSERA_TESTS_EXPECT_H

#include "include/tessera/tessera.h"
#include "tests/harness.h"

#include <string.h>

/** Fails the case if the expression returns a failed status or NULL. */
#define OK(expr)                                                                                   \
    do {                                                                                           \
        if (TS_STATUS_OF(expr) != TS_OK)                                                           \
            ck_abort_msg("%s: %s %s", #expr, ts_status_name(ts_error_code()), ts_error_message()); \
    } while (0)
/** Fails the case unless the expression fails with this code. */
#define FAILS(code, expr)                                                                          \
    do {                                                                                           \
        ts_error_clear();                                                                          \
        ck_assert_msg(TS_STATUS_OF(expr) == (code), "%s: expected %s, got %s: %s", #expr,          \
                      ts_status_name(code), ts_status_name(ts_error_code()), ts_error_message());  \
    } while (0)
/** Fails the case unless the recorded error message contains `text`. */
#define SAYS(text)                                                                                 \
    ck_assert_msg(strstr(ts_error_message(), text), "'%s' is not in: %s", text, ts_error_message())

/** Checks that a call returned NULL with this code and a message that contains `part`; clears the
 *  error. */
static inline void expect_error(const void *result, ts_status code, const char *part)
{
    ck_assert_ptr_null(result);
    ck_assert_int_eq(ts_error_code(), code);
    SAYS(part);
    ts_error_clear();
}

#endif
