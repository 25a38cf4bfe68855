/** @file expect.h  Calls that must succeed or fail, and checks of error texts. */
// SPDX-License-Identifier: MIT
#ifndef TESSERA_TESTS_EXPECT_H
#define TESSERA_TESTS_EXPECT_H

#include "include/tessera/tessera.h"
#include "tests/harness.h"

#include <string.h>

/** A status or a pointer that must be no failure. */
#define OK(expr)                                                                                   \
    do {                                                                                           \
        if (TS_STATUS_OF(expr) != TS_OK)                                                           \
            ck_abort_msg("%s: %s %s", #expr, ts_status_name(ts_error_code()), ts_error_message()); \
    } while (0)
/** One that must fail with this code. */
#define FAILS(code, expr)                                                                          \
    do {                                                                                           \
        ts_error_clear();                                                                          \
        ck_assert_msg(TS_STATUS_OF(expr) == (code), "%s: expected %s, got %s: %s", #expr,          \
                      ts_status_name(code), ts_status_name(ts_error_code()), ts_error_message());  \
    } while (0)
/** A part of the text of the failure on record. */
#define SAYS(text)                                                                                 \
    ck_assert_msg(strstr(ts_error_message(), text), "'%s' is not in: %s", text, ts_error_message())

/** NULL from a call that failed with this code and text. */
static inline void expect_error(const void *result, ts_status code, const char *part)
{
    ck_assert_ptr_null(result);
    ck_assert_int_eq(ts_error_code(), code);
    SAYS(part);
    ts_error_clear();
}

#endif
