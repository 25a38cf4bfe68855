/** @file common.h  Common functions of the autograd tests. */
// SPDX-License-Identifier: MIT
#ifndef TESTS_AUTOGRAD_COMMON_H
#define TESTS_AUTOGRAD_COMMON_H

#include "autograd/node.h"
#include "tests/dispatch/common.h"

/** A leaf of one f64 element. */
static inline ts_tensor *leaf(double v)
{
    return ts_set_requires_grad(ts_full(TS_SIZES(1), ts_scalar_float(v), TS_F64), true);
}

/** Standard normal values that require grad, from the thread's generator. */
static inline ts_tensor *parameter(int64_t rows, int64_t columns)
{
    return ts_set_requires_grad(ts_normal(TS_SIZES(rows, columns), 0, 1, TS_F64), true);
}

/** Largest absolute difference of two tensors of the same sizes. */
static inline double distance(ts_tensor *a, ts_tensor *b)
{
    TS_SCOPE;
    TS_NO_GRAD;
    return value(ts_max(ts_abs(ts_sub(a, b))));
}

/** The forward and the backward of a ts_function that squares its input. */
static inline ts_status square_forward(ts_function_call *call, void *ctx, ts_tensor *const *in,
                                       int n, ts_tensor **out, int m)
{
    (void)ctx, (void)m;
    out[0] = ts_mul(in[0], in[0]);
    return ts_function_save(call, in, n);
}
static inline ts_status square_backward(ts_function_call *call, void *ctx, ts_tensor *const *g,
                                        int m, ts_tensor **out, int n)
{
    (void)ctx, (void)m, (void)n;
    out[0] = ts_mul_scalar(ts_mul(g[0], ts_function_saved_tensor(call, 0)), 2);
    return TS_STATUS_OF(out[0]);
}

#endif
