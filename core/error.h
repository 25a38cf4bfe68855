/** @file error.h  How the library's own code makes root failures. */
// SPDX-License-Identifier: MIT
#ifndef TS_CORE_ERROR_H
#define TS_CORE_ERROR_H

#include "core/base.h"

/** The per-thread record. */
struct ts_error {
    ts_status code;
    bool reported; /* the outermost call returned this failure: the next failure replaces it */
    const void *site;
    char op[48];
    char hint[256];
    char message[1200];
};

/** Root failure of an op; the message begins with "op: ". Returns code. */
TS_COLD ts_status ts_fail_op(ts_status code, const char *op, const void *site, const char *hint,
                             const char *format, ...) __attribute__((format(printf, 5, 6)));
/** The record is kept when it holds a failure already,
 * else NULL becomes a root failure of its own. */
TS_COLD ts_status ts_fail_null(const char *op, const void *site, const char *argument);
/** Out of memory for `what`, of `bytes`. */
TS_COLD ts_status ts_fail_memory(const char *what, int64_t bytes);
/** Names the op in a record of a failure that did not know it. Returns the record's code. */
TS_COLD ts_status ts_fail_within(const char *op, const void *site);
/** The status of a callback as the code of the record. A failure without a record gets one:
 *  `what` failed without saying why. */
TS_COLD ts_status ts_fail_callback(ts_status status, const char *op, const void *site,
                                   const char *what);
/** Where a code address lies, as "main+0x1c in prog" or, without a symbol, "prog+0x11c9", which
 *  addr2line takes. Returns buffer. */
const char *ts_format_site(char *buffer, size_t size, const void *site);
/**
 * Writes text to out so that a terminal shows it as it is: bytes that are no UTF-8, control
 * characters (C1 too), tags, and marks that change the direction or are not seen become \xNN. Line
 * feeds and tabs stay with `lines`. What no longer fits is left out. Returns out. What comes from a
 * file or a caller is printed through here: by the record and the log, or by who prints it.
 */
const char *ts_escape(char *out, size_t size, const char *text, bool lines);
/** Reads the topics that TS_LOG names. */
void ts_log_from_environment(void);

#endif
