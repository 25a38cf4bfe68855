/** @file factory.c  Samples of factories and of noop. */
// SPDX-License-Identifier: MIT
#include "conformance/sample.h"

#include <math.h>

static void ref_noop(ts_ref *r) { (void)r; }
static void ref_empty(ts_ref *r) { ref_ret(r, 0, r->a[0].sizes, r->a[0].ndim); }

static void ref_full(ts_ref *r)
{
    double *y = ref_ret(r, 0, r->a[0].sizes, r->a[0].ndim);
    for (int64_t i = 0; i < r->ret[0].numel; i++)
        y[i] = r->a[1].d;
}

static void ref_fill(ts_ref *r)
{
    double *y = ref_ret_like(r, 0, &r->a[0]);
    for (int64_t i = 0; i < r->a[0].numel; i++)
        y[i] = r->a[1].d;
}

/** start + i * step before end; whole dtypes count in whole numbers. */
static void ref_arange(ts_ref *r)
{
    double start = r->a[0].d, step = r->a[2].d;
    int64_t n = (int64_t)ceil((r->a[1].d - start) / step);
    double *y = ref_ret(r, 0, &n, 1);
    bool whole = !ts_dtype_is_float(r->dtype);
    for (int64_t i = 0; i < n; i++)
        y[i] = whole ? trunc(start) + (double)i * trunc(step) : start + (double)i * step;
}

static void ref_linspace(ts_ref *r)
{
    int64_t n = r->a[2].i;
    double start = r->a[0].d, end = r->a[1].d, *y = ref_ret(r, 0, &n, 1);
    for (int64_t i = 0; i < n; i++)
        y[i] = n == 1 ? start : start + (end - start) * ((double)i / (double)(n - 1));
}

static void ref_eye(ts_ref *r)
{
    int64_t sizes[2] = {r->a[0].i, r->a[1].i};
    double *y = ref_ret(r, 0, sizes, 2);
    for (int64_t i = 0; i < sizes[0] && i < sizes[1]; i++)
        y[i * sizes[1] + i] = 1;
}

#define EVERY (DT_ALL | TS_DT(TS_BF16) | TS_DT(TS_F16))
#define TOO_LARGE INTS((int64_t)1 << 33, (int64_t)1 << 33)

static const ts_sample samples[] = {
    {"noop", "any", {T(2, 3), T(SWEEP), FLOAT(1)}, ref_noop, .dtypes = DT_ALL},
    {"empty", "sizes", {INTS(SWEEP, 3), DTYPE_OF_RUN, DEVICE}, ref_empty, .dtypes = EVERY,
     .undefined = true,
     .bad = {{0, INTS(-1), TS_ERR_SHAPE, "sizes >= 0"},
             {0, TOO_LARGE, TS_ERR_SHAPE, "63 bits"},
             {0, INTS((int64_t)1 << 45), TS_ERR_MEMORY, "out of memory"}}},
    {"empty", "0-dim", {INTS(), DTYPE_OF_RUN, DEVICE}, ref_empty, .undefined = true},
    {"full", "whole", {INTS(SWEEP, 3), INT(7), DTYPE_OF_RUN, DEVICE}, ref_full,
     .dtypes = DT_NUMBERS,
     .bad = {{0, INTS(2, -3), TS_ERR_SHAPE, "sizes >= 0"},
             {0, TOO_LARGE, TS_ERR_SHAPE, "63 bits"}}},
    {"full", "real", {INTS(SWEEP), FLOAT(-0.625), DTYPE_OF_RUN, DEVICE}, ref_full,
     .dtypes = DT_FLOATS_ | TS_DT(TS_BF16) | TS_DT(TS_F16)},
    {"full", "bool", {INTS(2, SWEEP), BOOL(true), DTYPE_OF_RUN, DEVICE}, ref_full, .dtypes = EVERY},
    {"full", "0-dim", {INTS(), INT(3), DTYPE_OF_RUN, DEVICE}, ref_full},
    {"fill", "whole", {T(SWEEP, 3), INT(5)}, ref_fill, .dtypes = DT_NUMBERS},
    {"fill", "real", {T(SWEEP, 3), FLOAT(0.1)}, ref_fill},
    {"fill", "bool", {T(SWEEP, 3), BOOL(true)}, ref_fill, .dtypes = EVERY},
    {"fill", "0-dim", {T(), FLOAT(2)}, ref_fill},
    {"arange", "count", {INT(0), INT(SWEEP), INT(1), DTYPE_OF_RUN, DEVICE}, ref_arange,
     .dtypes = DT_NUMBERS,
     .bad = {{2, INT(0), TS_ERR_VALUE, "other than 0"}, {1, INT(-2), TS_ERR_VALUE, "direction"},
             {2, INT(-1), TS_ERR_VALUE, "direction"},
             {2, FLOAT(NAN), TS_ERR_VALUE, "step"}, {0, FLOAT(NAN), TS_ERR_VALUE, "end"},
             {1, FLOAT(INFINITY), TS_ERR_SHAPE, "finite"}}},
    {"arange", "by 3", {INT(-7), INT(SWEEP), INT(3), DTYPE_OF_RUN, DEVICE}, ref_arange,
     .dtypes = DT_NUMBERS},
    {"arange", "down", {INT(40009), INT(SWEEP), INT(-40), DTYPE_OF_RUN, DEVICE}, ref_arange,
     .dtypes = DT_NUMBERS},
    {"arange", "real", {FLOAT(-1.75), INT(SWEEP), FLOAT(0.3), DTYPE_OF_RUN, DEVICE}, ref_arange},
    {"arange", "real, down", {FLOAT(2.5), FLOAT(-9.1), FLOAT(-0.7), DTYPE_OF_RUN, DEVICE},
     ref_arange, .dtypes = DT_FLOATS_ | DT_INTS},
    {"linspace", "up", {FLOAT(-1), FLOAT(2.5), INT(SWEEP), DTYPE_OF_RUN, DEVICE}, ref_linspace,
     .c = 2, .scale = 2.5,
     .bad = {{2, INT(-1), TS_ERR_VALUE, "at least 0"}, {2, INT(INT64_MAX), TS_ERR_SHAPE, "63 bits"},
             {2, INT((int64_t)1 << 45), TS_ERR_MEMORY, "out of memory"}}},
    {"linspace", "down", {FLOAT(1e3), FLOAT(-1e3), INT(SWEEP), DTYPE_OF_RUN, DEVICE}, ref_linspace,
     .c = 2, .scale = 1e3},
    {"eye", "wide", {INT(3), INT(SWEEP), DTYPE_OF_RUN, DEVICE}, ref_eye, .dtypes = EVERY,
     .bad = {{0, INT(-1), TS_ERR_SHAPE, "63 bits"}, {1, INT(INT64_MAX), TS_ERR_SHAPE, "63 bits"},
             {1, INT((int64_t)1 << 45), TS_ERR_MEMORY, "out of memory"}}},
    {"eye", "tall", {INT(SWEEP), INT(5), DTYPE_OF_RUN, DEVICE}, ref_eye},
    {"eye", "square", {INT(SWEEP), INT(SWEEP), DTYPE_OF_RUN, DEVICE}, ref_eye, .many = 401},
};
TS_SAMPLES(factory, samples)
