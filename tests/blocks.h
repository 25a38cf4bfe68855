/**
 * @file blocks.h  Choice of a case's allocator. A block must be freed by the allocator that made
 * it, so the choice is made at the start of a case, which has its own process.
 */
// SPDX-License-Identifier: MIT
#ifndef TESSERA_TESTS_BLOCKS_H
#define TESSERA_TESTS_BLOCKS_H

#include "core/alloc.h"
#include "include/tessera/core.h"

static inline bool blocks_from(bool system)
{
    if (ts_memory_get_stats().in_use == 0)
        ts_alloc_system = system;
    return ts_alloc_system == system;
}

/** Every block from malloc, so that each is an allocation that may fail.
 * False when it is too late. */
static inline bool blocks_from_malloc(void) { return blocks_from(true); }
/** The library's own free lists and region, in a build for a sanitizer too.
 * False when it is too late. */
static inline bool blocks_from_heaps(void) { return blocks_from(false); }

#define TOO_LATE "a process that has no blocks yet is needed"

#endif
