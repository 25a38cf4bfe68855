/** @file images.h  Tensors of images in tests: channels-last copies, elements, comparison. */
// SPDX-License-Identifier: MIT
#ifndef TESSERA_TESTS_OPS_IMAGES_H
#define TESSERA_TESTS_OPS_IMAGES_H

#include <math.h>

#include "tests/expect.h"

/** A channels-last copy of x, whose sizes are (N, C, H, W). */
static inline ts_tensor *last_of(ts_tensor *x)
{
    return ts_to_channels_last(x);
}

/** Element i, in memory order, of an f32 tensor. */
static inline double at(const ts_tensor *t, int64_t i)
{
    return (double)((const float *)ts_data(t))[i];
}

/** Fails the case unless all elements of a and b differ by at most `tolerance`. */
static inline void assert_close(ts_tensor *a, ts_tensor *b, double tolerance)
{
    double worst = NAN;
    OK(ts_item(ts_max(ts_abs(ts_sub(ts_to(a, TS_F64), ts_to(b, TS_F64)))), &worst));
    ck_assert_double_le(worst, tolerance);
}

#endif
