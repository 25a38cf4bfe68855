/** @file cast_cache.h  Casts of leaves that a thread keeps while it is in an autocast region. */
// SPDX-License-Identifier: MIT
#ifndef TS_LAYERS_CAST_CACHE_H
#define TS_LAYERS_CAST_CACHE_H

#include "include/tessera/core.h"

/** The cast of t to dtype, borrowed; NULL if the newest cast has another dtype, if there is none,
 *  or if t was written since. */
ts_tensor *ts_cast_cache_find(const ts_tensor *t, ts_dtype dtype);
/** Caches a cast of t in place of an older one; takes references to t and the cast. Does nothing if
 *  out of memory. */
void ts_cast_cache_put(ts_tensor *t, ts_tensor *cast);
/** Number of casts kept. */
int64_t ts_cast_cache_count(void);
/** Releases all casts of the thread. */
void ts_cast_cache_clear(void);
/** Installs the cleanup at a thread's end. */
void ts_cast_cache_install(void);
/** Registers the calling thread, so that its end releases its casts even inside a region. */
void ts_cast_cache_watch(void);

#endif
