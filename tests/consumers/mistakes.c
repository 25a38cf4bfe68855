/* Four wrong arguments of macros. The test checks that the compiler reports each exactly once. */
/* SPDX-License-Identifier: MIT */
#include <tessera/tessera.h>

static inline ts_status one(ts_tensor *x)
{
    TS_TRY(ts_add(x));
    return TS_OK;
}
static inline ts_tensor *two(ts_tensor *x)
{
    TS_TRY_NULL(ts_sum(x, 1));
    return x;
}
static inline ts_tensor *three(ts_tensor *x) { return ts_add_scalar(x, nowhere); }
static inline ts_tensor *four(ts_tensor *x) { return ts_mul_scalar(x, ts_ndim()); }
