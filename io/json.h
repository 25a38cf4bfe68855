/** @file json.h  jansson as this room uses it. */
// SPDX-License-Identifier: MIT
#ifndef TS_IO_JSON_H
#define TS_IO_JSON_H

#include <jansson.h>

#include "core/error.h"

/**
 * Call before any other use of jansson. Directs jansson's memory to ts_sys_alloc(), which counts it
 * and injects faults, unless the program already set an allocator for jansson.
 */
void ts_json_ready(void);
/**
 * Parses one value. All memory that this can take is had before,
 * in one block: jansson's lexer passes over a buffer that cannot grow and reads beyond it.
 * @param at        byte of path where text begins, for messages
 * @param consumed  receives the bytes that were read; may be NULL
 * @return for ts_json_done(), before the thread's next load;
 *         NULL with TS_ERR_MEMORY or TS_ERR_FORMAT
 */
json_t *ts_json_load(const char *op, const char *path, const char *text, size_t bytes, size_t flags,
                     int64_t at, size_t *consumed);
/** Releases a value of ts_json_load(), or the value that owns it. NULL-safe. */
void ts_json_done(json_t *value);
/** Text of a value by ts_sys_alloc(), with its length; NULL with TS_ERR_MEMORY. */
char *ts_json_text(const json_t *value, size_t flags, size_t *bytes);

#endif
