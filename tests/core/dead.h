/** @file dead.h  Skips cases that read freed tensor headers where such a read is not safe. */
// SPDX-License-Identifier: MIT
#ifndef TS_TESTS_CORE_DEAD_H
#define TS_TESTS_CORE_DEAD_H

#include "core/alloc.h"
#include "core/tensor.h"
#include "tests/harness.h"

#ifdef __SANITIZE_ADDRESS__
#define NEEDS_HEAP TS_SKIP("each header is a block of its own here, and the sanitizer sees its use")
#else
#define NEEDS_HEAP                                                                                 \
    if (ts_alloc_system && !ts_scopes_watched)                                                     \
    TS_SKIP("TS_ALLOC=system gives headers to malloc")
#endif

#endif
