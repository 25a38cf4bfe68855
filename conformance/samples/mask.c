/** @file mask.c  Samples of triangles and masks. */
// SPDX-License-Identifier: MIT
#include "conformance/sample.h"

/** Keeps column c of row r where sign * (c - r - diagonal) <= 0. */
static void triangle(ts_ref *r, int sign)
{
    const ts_ref_arg *a = &r->a[0];
    int64_t rows = a->sizes[a->ndim - 2], columns = a->sizes[a->ndim - 1];
    double *y = ref_ret_like(r, 0, a);
    for (int64_t e = 0; e < a->numel; e++)
        if (sign * (e % columns - e / columns % rows - r->a[1].i) <= 0)
            y[e] = a->x[e];
}
static void ref_tril(ts_ref *r) { triangle(r, 1); }
static void ref_triu(ts_ref *r) { triangle(r, -1); }

static void ref_nonzero(ts_ref *r)
{
    const ts_ref_arg *a = &r->a[0];
    int64_t n = 0, at = 0;
    for (int64_t e = 0; e < a->numel; e++)
        n += a->x[e] != 0;
    double *y = ref_ret(r, 0, (int64_t[]){n, a->ndim}, 2);
    for (int64_t e = 0; e < a->numel; e++) {
        int64_t below = a->numel, rest = e;
        for (int d = 0; a->x[e] != 0 && d < a->ndim; d++) {
            below /= a->sizes[d];
            y[at++] = (double)(rest / below);
            rest %= below;
        }
    }
}

/** Sizes of self and mask, broadcast; returns the number of elements. */
static int64_t broadcast_sizes(const ts_ref *r, int64_t *sizes, int *ndim)
{
    const ts_ref_arg *a = &r->a[0], *m = &r->a[1];
    *ndim = a->ndim > m->ndim ? a->ndim : m->ndim;
    for (int d = 0; d < *ndim; d++) {
        int i = d - (*ndim - a->ndim), k = d - (*ndim - m->ndim);
        sizes[d] = i < 0 || (k >= 0 && a->sizes[i] == 1) ? m->sizes[k] : a->sizes[i];
    }
    return ref_numel(sizes, *ndim);
}

static void ref_masked_select(ts_ref *r)
{
    int64_t sizes[TS_MAX_DIMS], total = 0, at = 0;
    int ndim;
    int64_t n = broadcast_sizes(r, sizes, &ndim);
    for (int64_t e = 0; e < n; e++)
        total += ref_at(&r->a[1], sizes, ndim, e) != 0;
    double *y = ref_ret(r, 0, &total, 1);
    for (int64_t e = 0; e < n; e++)
        if (ref_at(&r->a[1], sizes, ndim, e) != 0)
            y[at++] = ref_at(&r->a[0], sizes, ndim, e);
}

static void ref_masked_scatter(ts_ref *r)
{
    int64_t sizes[TS_MAX_DIMS], next = 0;
    int ndim;
    int64_t n = broadcast_sizes(r, sizes, &ndim);
    double *y = ref_ret(r, 0, sizes, ndim);
    for (int64_t e = 0; e < n; e++) {
        bool chosen = ref_at(&r->a[1], sizes, ndim, e) != 0;
        y[e] = chosen ? r->a[2].x[next++] : ref_at(&r->a[0], sizes, ndim, e);
    }
}

#define EVERY (DT_ALL | TS_DT(TS_BF16) | TS_DT(TS_F16))
#define MASK(...) T_OF(TS_BOOL, __VA_ARGS__)
#define TRIANGLES(op, ref)                                                                         \
    {op, "main", {T(SWEEP, 5), INT(0)}, ref, .dtypes = EVERY, .grad = true, .inplace = true,       \
     .bad = {{0, T(3), TS_ERR_SHAPE, "two dims"}, {0, T(), TS_ERR_SHAPE, "two dims"}}},            \
    {op, "above", {T(2, 4, SWEEP), INT(2)}, ref, .grad = true, .inplace = true},                   \
    {op, "below", {T(3, SWEEP, 4), INT(-1)}, ref, .grad = true, .inplace = true},                  \
    {op, "special", {T_SPECIAL(SWEEP, 9), INT(1)}, ref, .inplace = true},                          \
    {op, "far above", {T(SWEEP, 3), INT(INT64_MAX - 4096)}, ref, .many = 1001},                    \
    {op, "far below", {T(SWEEP, 3), INT(INT64_MIN / 2)}, ref, .many = 1001}

static const ts_sample samples[] = {
    TRIANGLES("tril", ref_tril),
    TRIANGLES("triu", ref_triu),

    {"nonzero", "matrix", {T_WHOLE(-1, 2, SWEEP, 3)}, ref_nonzero, .dtypes = EVERY,
     .out = {OUT(TS_I64)}, .no_meta = true},
    {"nonzero", "3 dims", {T_WHOLE(-1, 2, 2, SWEEP, 3)}, ref_nonzero, .out = {OUT(TS_I64)},
     .no_meta = true},
    {"nonzero", "special", {T_SPECIAL(SWEEP)}, ref_nonzero, .out = {OUT(TS_I64)}, .no_meta = true},
    {"nonzero", "0-dim", {T()}, ref_nonzero, .out = {OUT(TS_I64)}, .no_meta = true},

    {"masked_select", "same", {T(SWEEP, 3), MASK(SWEEP, 3)}, ref_masked_select, .dtypes = EVERY,
     .no_meta = true, .grad = true,
     .bad = {{1, T_OF(TS_U8, 3, 3), TS_ERR_DTYPE, "bool"},
             {1, MASK(2, 3), TS_ERR_SHAPE, "broadcast"}}},
    {"masked_select", "broadcast mask", {T(2, SWEEP, 3), MASK(SWEEP, 1)}, ref_masked_select,
     .no_meta = true, .grad = true},
    {"masked_select", "broadcast self", {T(1, 3), MASK(SWEEP, 3)}, ref_masked_select,
     .no_meta = true, .grad = true},
    {"masked_select", "0-dim", {T(), MASK()}, ref_masked_select, .no_meta = true, .grad = true},

    {"masked_scatter", "same", {T(SWEEP, 3), MASK(SWEEP, 3), T(SWEEP, 3)}, ref_masked_scatter,
     .dtypes = EVERY, .grad = true,
     .inplace = true, .by_values = true,
     .bad = {{1, T_OF(TS_U8, 3, 3), TS_ERR_DTYPE, "bool"},
             {1, MASK(2, 3), TS_ERR_SHAPE, "broadcast"},
             {2, T_OF(TS_I64, 3, 3), TS_ERR_DTYPE, "dtype"}, {2, T(0), TS_ERR_SHAPE, "at least"}}},
    {"masked_scatter", "broadcast mask", {T(2, SWEEP, 3), MASK(SWEEP, 1), T(7, SWEEP)},
     ref_masked_scatter, .grad = true,
     .inplace = true},
    {"masked_scatter", "broadcast self", {T(3), MASK(SWEEP, 3), T(SWEEP, 5)}, ref_masked_scatter,
     .grad = true},
    {"masked_scatter", "0-dim", {T(), MASK(), T(2)}, ref_masked_scatter, .grad = true,
     .inplace = true},
};
TS_SAMPLES(mask, samples)
