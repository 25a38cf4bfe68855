/** @file factory.c  Samples of factories, and of the op that does nothing. */
// SPDX-License-Identifier: MIT
#include "tests/samples/sample.h"

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

#define EVERY (DT_ALL | TS_DT(TS_BF16) | TS_DT(TS_F16))
#define TOO_LARGE INTS((int64_t)1 << 33, (int64_t)1 << 33)

static const ts_sample samples[] = {
    {"noop", "any", {T(2, 3), T(SWEEP), FLOAT(1)}, ref_noop, .dtypes = DT_ALL},
    {"empty", "sizes", {INTS(SWEEP, 3), DTYPE_OF_RUN, DEVICE}, ref_empty, .dtypes = EVERY, .undefined = true,
     .bad = {{0, INTS(-1), TS_ERR_SHAPE, "sizes >= 0"},
             {0, TOO_LARGE, TS_ERR_SHAPE, "63 bits"},
             {0, INTS((int64_t)1 << 45), TS_ERR_MEMORY, "out of memory"}}},
    {"empty", "0-dim", {INTS(), DTYPE_OF_RUN, DEVICE}, ref_empty, .undefined = true},
    {"full", "whole", {INTS(SWEEP, 3), INT(7), DTYPE_OF_RUN, DEVICE}, ref_full, .dtypes = DT_NUMBERS,
     .bad = {{0, INTS(2, -3), TS_ERR_SHAPE, "sizes >= 0"}, {0, TOO_LARGE, TS_ERR_SHAPE, "63 bits"}}},
    {"full", "real", {INTS(SWEEP), FLOAT(-0.625), DTYPE_OF_RUN, DEVICE}, ref_full,
     .dtypes = DT_FLOATS_ | TS_DT(TS_BF16) | TS_DT(TS_F16)},
    {"full", "bool", {INTS(2, SWEEP), BOOL(true), DTYPE_OF_RUN, DEVICE}, ref_full, .dtypes = EVERY},
    {"full", "0-dim", {INTS(), INT(3), DTYPE_OF_RUN, DEVICE}, ref_full},
    {"fill", "whole", {T(SWEEP, 3), INT(5)}, ref_fill, .dtypes = DT_NUMBERS},
    {"fill", "real", {T(SWEEP, 3), FLOAT(0.1)}, ref_fill},
    {"fill", "bool", {T(SWEEP, 3), BOOL(true)}, ref_fill, .dtypes = EVERY},
    {"fill", "0-dim", {T(), FLOAT(2)}, ref_fill},
};
TS_SAMPLES(factory, samples)
