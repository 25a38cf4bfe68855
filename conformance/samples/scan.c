/** @file scan.c  Samples of cumulative sums. */
// SPDX-License-Identifier: MIT
#include "conformance/sample.h"

#include <math.h>

static void ref_cumsum(ts_ref *r)
{
    const ts_ref_arg *a = &r->a[0];
    int64_t outer, n, inner;
    double *y = ref_ret_like(r, 0, a);
    r->scale[0] = ref_scratch(r, a->numel);
    ref_split(a, r->a[1].i, &outer, &n, &inner);
    for (int64_t o = 0; o < outer; o++)
        for (int64_t i = 0; i < inner; i++)
            for (int64_t k = 0; k < n; k++) {
                /* long double: a sum in double depends on the order of the additions */
                long double sum = 0;
                for (int64_t j = r->a[2].i ? k : 0; j < (r->a[2].i ? n : k + 1); j++) {
                    double x = a->x[(o * n + j) * inner + i];
                    sum += x;
                    r->scale[0][(o * n + k) * inner + i] += fabs(x);
                }
                y[(o * n + k) * inner + i] = (double)sum;
            }
}

/* The factor c of the tolerance is 2, because the rounding errors of successive sums do not cancel
 * if all elements are equal (expanded). */
#define SUM .c = 2, .depth = SWEEP, .grad = true, .many = 1009
static const ts_sample samples[] = {
    {"cumsum", "last dim", {T(3, SWEEP), INT(-1), BOOL(false)}, ref_cumsum, SUM, .inplace = true,
     .bad = {{1, INT(2), TS_ERR_INDEX, "dim"}, {1, INT(-3), TS_ERR_INDEX, "dim"}}},
    {"cumsum", "first dim", {T(SWEEP, 5), INT(0), BOOL(false)}, ref_cumsum, SUM, .inplace = true},
    {"cumsum", "middle", {T(2, SWEEP, 3), INT(1), BOOL(false)}, ref_cumsum, SUM, .inplace = true},
    {"cumsum", "columns", {T(3, 4, SWEEP), INT(1), BOOL(false)}, ref_cumsum, SUM},
    {"cumsum", "reversed", {T(3, SWEEP), INT(1), BOOL(true)}, ref_cumsum, SUM, .inplace = true},
    {"cumsum", "columns reversed", {T(3, SWEEP, 2), INT(1), BOOL(true)}, ref_cumsum, SUM,
     .inplace = true},
    {"cumsum", "0-dim", {T(), INT(0), BOOL(false)}, ref_cumsum, SUM},
    {"cumsum", "integers", {T(3, SWEEP), INT(1), BOOL(false)}, ref_cumsum,
     .dtypes = DT_INTS | TS_DT(TS_BOOL), .out = {OUT_INT},
     .many = 1009},
};
TS_SAMPLES(scan, samples)
