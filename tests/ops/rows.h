/** @file rows.h  Numbers, tensors and comparisons for the tests of reductions, softmax, norms and
 * losses. */
// SPDX-License-Identifier: MIT
#ifndef TESSERA_TESTS_ROWS_H
#define TESSERA_TESTS_ROWS_H

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/tensor.h"
#include "include/tessera/tessera.h"
#include "tests/harness.h"

/** Element i of the sequence `seed`: pseudorandom, uniform in [-2, 2). */
static inline double number(uint64_t seed, int64_t i)
{
    uint64_t x = seed * 0x9e3779b97f4a7c15u + (uint64_t)i * 0xd1b54a32d192ed03u;
    x ^= x >> 29;
    x *= 0xbf58476d1ce4e5b9u;
    x ^= x >> 32;
    return (double)(x >> 40) * 0x1p-22 - 2;
}

/** A tensor of numbers in f32 or f64. */
static inline ts_tensor *numbers(uint64_t seed, const int64_t *sizes, int ndim, ts_dtype dtype)
{
    ck_assert(dtype == TS_F64 || dtype == TS_F32);
    ts_tensor *t = ts_empty(sizes, ndim, dtype);
    ck_assert_ptr_nonnull(t);
    for (int64_t i = 0; i < t->numel; i++) {
        if (dtype == TS_F64)
            ((double *)t->data)[i] = number(seed, i);
        else
            ((float *)t->data)[i] = (float)number(seed, i);
    }
    return t;
}

/** Element i of a contiguous CPU tensor of any dtype but bf16 and f16. */
static inline double element(const ts_tensor *t, int64_t i)
{
    ck_assert_ptr_nonnull(t);
    ck_assert(ts_is_contiguous(t));
    switch (t->dtype) {
    case TS_F64: return ((const double *)t->data)[i];
    case TS_F32: return ((const float *)t->data)[i];
    case TS_I64: return (double)((const int64_t *)t->data)[i];
    case TS_I32: return ((const int32_t *)t->data)[i];
    default: return ((const uint8_t *)t->data)[i];
    }
}

static inline double epsilon(const ts_tensor *t) { return t->dtype == TS_F64 ? 0x1p-52 : 0x1p-23; }

/** Fails the case unless element i of t is within c eps max(|want|, scale) of `want`. NaN equals
 *  NaN. */
static inline void assert_near(const ts_tensor *t, int64_t i, double want, double c, double scale)
{
    double got = element(t, i);
    if (got == want || (isnan(got) && isnan(want)))
        return;
    double bound = c * epsilon(t) * fmax(fabs(want), scale);
    ck_assert_msg(fabs(got - want) <= bound, "element %lld: got %.17g, want %.17g within %g",
                  (long long)i, got, want, bound);
}

static inline bool same_bits(const ts_tensor *a, const ts_tensor *b)
{
    return a->numel == b->numel &&
           memcmp(a->data, b->data, (size_t)a->numel * ts_dtype_sizes[a->dtype]) == 0;
}

/** A view with the dims in the order given; belongs to the scope. */
static inline ts_tensor *permuted(ts_tensor *t, const int *order)
{
    int64_t sizes[TS_MAX_DIMS], strides[TS_MAX_DIMS];
    for (int d = 0; d < t->ndim; d++) {
        sizes[d] = t->sizes[order[d]];
        strides[d] = t->strides[order[d]];
    }
    ts_tensor *alias = ts_tensor_alias(ts_thread_self(), t, sizes, strides, t->ndim, 0);
    ck_assert_ptr_nonnull(alias);
    return ts_adopt(alias);
}

/**
 * Compares the gradient of loss(x) with central differences. x: a contiguous f64 tensor on the CPU;
 * the function makes it require grad. loss(x) returns one element.
 */
static inline void assert_gradient(ts_tensor *x, ts_tensor *(*loss)(ts_tensor *x, void *payload),
                                   void *payload)
{
    const double h = 1e-6;
    ck_assert_int_eq(x->dtype, TS_F64);
    ck_assert_ptr_nonnull(ts_set_requires_grad(x, true));
    ts_zero_grad(x);
    {
        TS_SCOPE;
        ts_tensor *y = loss(x, payload);
        ck_assert_msg(y != NULL, "%s", ts_error_message());
        ck_assert_msg(ts_backward(y) == TS_OK, "%s", ts_error_message());
    }
    ts_tensor *grad = ts_grad(x);
    ck_assert(grad != TS_NONE);
    for (int64_t i = 0; i < x->numel; i++) {
        TS_SCOPE;
        double *at = (double *)x->data + i, saved = *at, up, down;
        *at = saved + h;
        ck_assert_int_eq(ts_item(loss(x, payload), &up), TS_OK);
        *at = saved - h;
        ck_assert_int_eq(ts_item(loss(x, payload), &down), TS_OK);
        *at = saved;
        double want = (up - down) / (2 * h), got = element(grad, i);
        ck_assert_msg(fabs(got - want) <= 1e-5 + 1e-3 * fabs(want),
                      "gradient %lld: got %.12g, differences say %.12g", (long long)i, got, want);
    }
}

/** sum(y * numbers): a loss whose gradient differs from element to element. */
static inline ts_tensor *weighted_sum(ts_tensor *y)
{
    return y ? ts_sum(ts_mul(y, numbers(99, y->sizes, y->ndim, (ts_dtype)y->dtype))) : NULL;
}

#endif
