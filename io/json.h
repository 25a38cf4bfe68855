/** @file json.h  jansson as this room uses it. */
// SPDX-License-Identifier: MIT
#ifndef TS_IO_JSON_H
#define TS_IO_JSON_H

#include <jansson.h>

#include "core/error.h"

/**
 * Before any other use of jansson: its memory then comes from ts_sys_alloc(), where it is counted
 * and where faults are planted, unless the program has chosen an allocator for jansson already.
 */
void ts_json_ready(void);
/** The error of a parser that began at byte `at` of path: TS_ERR_MEMORY or TS_ERR_FORMAT. */
ts_status ts_json_fail(const char *op, const char *path, const json_error_t *error, int64_t at);
/** Text of a value by ts_sys_alloc(), with its length; NULL with TS_ERR_MEMORY. */
char *ts_json_text(const json_t *value, size_t flags, size_t *bytes);

#endif
