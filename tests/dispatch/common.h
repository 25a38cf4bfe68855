/** @file common.h  Common functions of the dispatcher's tests. */
// SPDX-License-Identifier: MIT
#ifndef TESTS_DISPATCH_COMMON_H
#define TESTS_DISPATCH_COMMON_H

#include "core/tensor.h"
#include "dispatch/op.h"
#include "tests/expect.h"

#include <stdlib.h>
#include <time.h>

static inline double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/** One-element CPU tensor of the innermost scope (the thread's root scope,
 * where a test opens none). */
static inline ts_tensor *one(void) { return ts_ones(TS_SIZES(1), TS_F32); }

/** A tensor that pretends to live on another backend: the dispatcher looks at keys only. */
static inline ts_tensor *pretend(ts_key backend)
{
    ts_tensor *t = one();
    t->keys = TS_KEYSET(backend);
    return t;
}

/** Value of a one-element tensor. */
static inline double value(ts_tensor *t)
{
    double v = 0;
    OK(ts_item(t, &v));
    return v;
}

/** Order in which kernels of the tests ran: one letter each. */
extern char ran[64];
static inline void note(char c)
{
    size_t n = strlen(ran);
    if (n + 1 < sizeof ran) {
        ran[n] = c;
        ran[n + 1] = 0;
    }
}
static inline ts_status call_noop(ts_tensor *a, ts_tensor *b)
{
    ran[0] = 0;
    return ts_noop(a, b, ts_scalar_int(1));
}

#endif
