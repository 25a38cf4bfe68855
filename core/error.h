/** @file error.h  Internal functions that write the calling thread's error record. */
// SPDX-License-Identifier: MIT
#ifndef TS_CORE_ERROR_H
#define TS_CORE_ERROR_H

#include "core/base.h"
#include "include/tessera/check.h"

/** The error record of a thread: its last failure. */
struct ts_error {
    ts_status code;
    bool located;  /* the message ends with a location, see ts_error_within() */
    bool reported; /* the outermost call has returned this failure, so if a later call fails without
                      a record, the dispatcher records a new failure */
    bool kept;     /* no failure replaces this one, see ts_error_keep() */
    unsigned count; /* failures so far, also those that did not replace a kept one, modulo 2^32 */
    const void *site;
    char op[48];
    char hint[256];
    char message[1200];
};

/** Records a failure of `op` in place of an older one, unless that is kept (ts_error_keep()); the
 *  message begins with "op: ". op (no prefix), site and hint may be NULL. Returns the record's
 *  code: that of a kept failure, else `code`, or TS_ERR_INTERNAL if code is TS_OK. */
TS_COLD ts_status ts_fail_op(ts_status code, const char *op, const void *site, const char *hint,
                             const char *format, ...) __attribute__((format(printf, 5, 6)));
/** Keeps a recorded failure until it is cleared, printed, or its message is read: later failures do
 *  not replace it. Functions that return a size, count or dtype call it if they have none because a
 *  call failed, since an error of a call with this number is a consequence. */
TS_COLD void ts_error_keep(void);
/** Error for a NULL argument: keeps a recorded failure, which caused the NULL; otherwise records
 *  TS_ERR_NULL for `argument`. Returns the record's code. */
TS_COLD ts_status ts_fail_null(const char *op, const void *site, const char *argument);
/** Checks the argument `call` of a public function: a frame or call that the library passed to a
 *  callback, which passes it on. TS_ERR_NULL if it is NULL. name: the parameter's name in the
 *  header. The status is a constant on both paths, so the compiler can move the error path out of
 *  line. */
#define TS_CHECK_LENT(call, name)                                                                  \
    (TS_LIKELY((call) != NULL)                                                                     \
         ? (ts_status)TS_OK                                                                        \
         : (ts_check_null(TS_CHECK_HERE, name, 0, false), (ts_status)TS_ERR_NULL))
/** Adds op and call site to a record without an op. Returns the record's code. */
TS_COLD ts_status ts_fail_within(const char *op, const void *site);
/** Status of the callback named `what`: TS_OK, or the recorded code if the callback failed. If it
 *  failed without a record, records `status` with "WHAT failed without recording an error". */
TS_COLD ts_status ts_fail_callback(ts_status status, const char *op, const void *site,
                                   const char *what);
/** Writes the symbol of a code address to buffer, such as "main+0x1c in prog". Without a symbol,
 *  writes file and address for addr2line, such as "prog+0x11c9"; "?" for NULL and for an address
 *  outside of the loaded files. Returns buffer. */
const char *ts_format_site(char *buffer, size_t size, const void *site);
/**
 * Writes text to out so that a terminal does not interpret it: the bytes of invalid UTF-8, control
 * characters (C0 and C1), Unicode tags, invisible marks and marks that change the direction become
 * \xNN. With `lines`, line feeds and tabs stay. Text that does not fit is cut. Returns out. Print
 * texts from files and callers through this function.
 */
const char *ts_escape(char *out, size_t size, const char *text, bool lines);
/** Reads the topics of the log from the environment variable TS_LOG. */
void ts_log_from_environment(void);

#endif
