/** @file cast_cache.h  Casts of leaves to the autocast dtype. The AUTOCAST layer keeps them per
 * thread while the thread is in an autocast region, so a parameter is cast once per region. */
// SPDX-License-Identifier: MIT
#ifndef TS_LAYERS_CAST_CACHE_H
#define TS_LAYERS_CAST_CACHE_H

#include "include/tessera/core.h"

/** The cached cast of t to dtype, borrowed; NULL if there is none, if the cast that was cached last
 *  has another dtype, or if t was written since. */
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
