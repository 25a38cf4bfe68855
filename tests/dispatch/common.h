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

/** A one-element f32 CPU tensor, owned by the innermost scope. */
static inline ts_tensor *one(void) { return ts_ones(TS_SIZES(1), TS_F32); }

/** A CPU tensor with another backend's key. The dispatcher reads only keys, so it calls that
 * backend. */
static inline ts_tensor *with_key_of(ts_key backend)
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

/** The test kernels that ran, in order: one letter each, added by note(). */
extern char ran[64];
static inline void note(char c)
{
    size_t n = strlen(ran);
    if (n + 1 < sizeof ran) {
        ran[n] = c;
        ran[n + 1] = 0;
    }
}
/** Clears `ran` and calls the op noop. */
static inline ts_status call_noop(ts_tensor *a, ts_tensor *b)
{
    ran[0] = 0;
    return ts_noop(a, b, ts_scalar_int(1));
}

#endif
