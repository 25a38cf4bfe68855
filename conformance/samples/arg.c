/** @file arg.c  Samples of minimum, maximum and their indices. */
// SPDX-License-Identifier: MIT
#include "conformance/sample.h"

#include <math.h>

/** Index of the largest of sign * x[0], sign * x[step], ...: the first if several are equal, or the
 * first NaN. */
static int64_t best_of(const double *x, int64_t n, int64_t step, double sign)
{
    int64_t best = 0;
    for (int64_t k = 0; k < n; k++) {
        double a = sign * x[k * step], b = sign * x[best * step];
        if (isnan(a))
            return k;
        if (a > b)
            best = k;
    }
    return best;
}

/** Writes indices to result `at` and, if at is not 0, values to result 0. */
static void extremes(ts_ref *r, double sign, int at)
{
    const ts_ref_arg *a = &r->a[0];
    bool all = r->a[1].tag != TS_TAG_INT, keep = r->a[2].i;
    int64_t outer = 1, n = a->numel, inner = 1, sizes[TS_MAX_DIMS];
    int dim = (int)(r->a[1].i < 0 ? r->a[1].i + a->ndim : r->a[1].i), ndim = 0;
    if (!all)
        ref_split(a, r->a[1].i, &outer, &n, &inner);
    for (int d = 0; d < a->ndim; d++) {
        bool gone = all || d == dim;
        if (!gone || keep)
            sizes[ndim++] = gone ? 1 : a->sizes[d];
    }
    double *values = at ? ref_ret(r, 0, sizes, ndim) : NULL, *places = ref_ret(r, at, sizes, ndim);
    for (int64_t o = 0; o < outer; o++)
        for (int64_t i = 0; i < inner; i++) {
            const double *x = a->x + o * n * inner + i;
            int64_t best = best_of(x, n, inner, sign);
            places[o * inner + i] = (double)best;
            if (values)
                values[o * inner + i] = x[best * inner];
        }
}
static void ref_argmax(ts_ref *r) { extremes(r, 1, 0); }
static void ref_argmin(ts_ref *r) { extremes(r, -1, 0); }
static void ref_max_dim(ts_ref *r) { extremes(r, 1, 1); }
static void ref_min_dim(ts_ref *r) { extremes(r, -1, 1); }

#define PLACE .dtypes = DT_ALL, .out = {OUT(TS_I64)}, .no_empty = true
#define ARG(op, ref)                                                                               \
    {op, "last dim", {T(3, SWEEP), INT(-1), BOOL(false)}, ref, PLACE,                              \
     .bad = {{1, INT(2), TS_ERR_INDEX, "dim"}, {0, T(3, 0), TS_ERR_SHAPE, "one element"}}},        \
    {op, "first dim, kept", {T(SWEEP, 5), INT(0), BOOL(true)}, ref, PLACE},                        \
    {op, "middle", {T(2, 5, SWEEP), INT(1), BOOL(false)}, ref, .dtypes = DT_ALL,                   \
     .out = {OUT(TS_I64)}},                                                                        \
    {op, "all", {T(SWEEP, 2), ABSENT, BOOL(false)}, ref, PLACE,                                    \
     .bad = {{0, T(0, 2), TS_ERR_SHAPE, "one element"}}},                                          \
    {op, "all, kept", {T(SWEEP, 2), ABSENT, BOOL(true)}, ref, PLACE},                              \
    {op, "0-dim", {T(), INT(-1), BOOL(true)}, ref, PLACE},                                         \
    {op, "ties", {T_WHOLE(0, 2, 3, SWEEP), INT(1), BOOL(false)}, ref, PLACE},                      \
    {op, "special", {T_SPECIAL(7, 19), INT(1), BOOL(false)}, ref, .out = {OUT(TS_I64)}},           \
    {op, "special columns", {T_SPECIAL(19, 7), INT(0), BOOL(false)}, ref, .out = {OUT(TS_I64)}}
#define BOTH .dtypes = DT_ALL, .out = {0, OUT(TS_I64)}, .grad_rets = 1
#define EXTREME(op, ref)                                                                           \
    {op, "last dim", {T(3, SWEEP), INT(-1), BOOL(false)}, ref, BOTH, .no_empty = true,             \
     .no_expand = true, .grad = true,                                                              \
     .bad = {{1, INT(2), TS_ERR_INDEX, "dim"}, {0, T(3, 0), TS_ERR_SHAPE, "one element"}}},        \
    {op, "first dim, kept", {T(SWEEP, 5), INT(0), BOOL(true)}, ref, BOTH, .no_empty = true,        \
     .no_expand = true, .grad = true},                                                             \
    {op, "middle", {T(2, 5, SWEEP), INT(1), BOOL(false)}, ref, BOTH, .no_expand = true,            \
     .grad = true},                                                                                \
    {op, "0-dim", {T(), INT(0), BOOL(false)}, ref, BOTH, .grad = true},                            \
    {op, "ties", {T_WHOLE(0, 2, 3, SWEEP), INT(1), BOOL(false)}, ref, BOTH, .no_empty = true},     \
    {op, "special", {T_SPECIAL(7, 19), INT(1), BOOL(false)}, ref, .out = {0, OUT(TS_I64)}},        \
    {op, "special columns", {T_SPECIAL(19, 7), INT(0), BOOL(false)}, ref, .out = {0, OUT(TS_I64)}}

static const ts_sample samples[] = {
    ARG("argmax", ref_argmax),
    ARG("argmin", ref_argmin),
    EXTREME("max_dim", ref_max_dim),
    EXTREME("min_dim", ref_min_dim),
};
TS_SAMPLES(arg, samples)
