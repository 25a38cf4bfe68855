/**
 * @file blocks.h  Functions that select the allocator of a test case: malloc or the library's own.
 * A case calls one of them at its start, before the process has allocated a block, because a block
 * must be freed by the allocator that made it.
 */
// SPDX-License-Identifier: MIT
#ifndef TESSERA_TESTS_BLOCKS_H
#define TESSERA_TESTS_BLOCKS_H

#include "core/alloc.h"
#include "include/tessera/core.h"

/** Selects malloc (`system`) or the library's allocator. False if the process has blocks of the
 * other one. */
static inline bool blocks_from(bool system)
{
    if (ts_memory_get_stats().in_use == 0)
        ts_alloc_system = system;
    return ts_alloc_system == system;
}

/** Selects malloc for every block, so that each allocation can fail. False if the process already
 * has blocks of the other allocator. */
static inline bool blocks_from_malloc(void) { return blocks_from(true); }
/** Selects the library's own free lists and region, also in a sanitizer build. False if the process
 * already has blocks of malloc. */
static inline bool blocks_from_heaps(void) { return blocks_from(false); }

#define TOO_LATE "a process that has no blocks yet is needed"

#endif
