/** @file json.h  JSON through jansson, with Tessera's allocator and errors. */
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
 * Parses one JSON value. Unless the program set an allocator for jansson, first allocates one block
 * that holds the whole value, because jansson's lexer ignores a failure to grow its buffer and
 * reads beyond the end.
 * @param op        function that error messages name
 * @param path      source that error messages name
 * @param text      `bytes` bytes; need not end with a NUL
 * @param flags     decoding flags of jansson (JSON_...)
 * @param at        byte offset of text in the source, for messages
 * @param consumed  receives the number of bytes read; may be NULL
 * @return the value; release it with ts_json_done() before this thread's next ts_json_load().
 *         NULL with TS_ERR_MEMORY or TS_ERR_FORMAT
 */
json_t *ts_json_load(const char *op, const char *path, const char *text, size_t bytes, size_t flags,
                     int64_t at, size_t *consumed);
/** Drops a reference to `value` and frees the memory block of this thread's last ts_json_load().
 *  `value` is the result of that call, or a container to which the caller added it. NULL frees only
 *  the block. */
void ts_json_done(json_t *value);
/** Serializes a value with jansson's encoding flags. Returns a NUL-terminated text, which the
 *  caller frees with ts_sys_free(), and its length in *bytes; NULL with TS_ERR_MEMORY. */
char *ts_json_text(const json_t *value, size_t flags, size_t *bytes);

#endif
