/** @file cat.c  Samples of cat and stack. */
// SPDX-License-Identifier: MIT
#include "conformance/sample.h"

/** Joins the list along dim. For stack, each member gets a new dim of size 1. */
static void join(ts_ref *r, bool stack)
{
    const ts_ref_arg *first = &r->a[0].list[0];
    int ndim = first->ndim + stack;
    int64_t sizes[TS_MAX_DIMS], outer = 1, inner = 1,
            dim = r->a[1].i < 0 ? r->a[1].i + ndim : r->a[1].i, at = 0;
    for (int d = 0, s = 0; d < ndim; d++) {
        sizes[d] = stack && d == dim ? 1 : first->sizes[s++];
        outer *= d < dim ? sizes[d] : 1;
        inner *= d > dim ? sizes[d] : 1;
    }
    sizes[dim] = 0;
    for (int m = 0; m < r->a[0].count; m++)
        sizes[dim] += stack ? 1 : r->a[0].list[m].sizes[dim];
    double *y = ref_ret(r, 0, sizes, ndim);
    for (int m = 0; m < r->a[0].count; m++) {
        int64_t n = stack ? 1 : r->a[0].list[m].sizes[dim];
        for (int64_t o = 0; o < outer; o++)
            for (int64_t i = 0; i < n * inner; i++)
                y[(o * sizes[dim] + at) * inner + i] = r->a[0].list[m].x[o * n * inner + i];
        at += n;
    }
}

static void ref_cat(ts_ref *r) { join(r, false); }
static void ref_stack(ts_ref *r) { join(r, true); }

static const ts_sample samples[] = {
    {"cat", "rows", {LIST(T(SWEEP, 3), T(2, 3), T(1, 3)), INT(0)}, ref_cat, .dtypes = DT_ALL,
     .grad = true,
     .bad = {{0, LIST(T(2, 3), T(2, 4)), TS_ERR_SHAPE, "cat"},
             {0, LIST(T(2, 3), T(2)), TS_ERR_SHAPE, "cat"}, {1, INT(2), TS_ERR_INDEX, "dim"}}},
    {"cat", "columns", {LIST(T(3, SWEEP), T(3, 4)), INT(-1)}, ref_cat, .grad = true},
    {"cat", "middle", {LIST(T(2, 1, SWEEP), T(2, 3, SWEEP), T(2, 0, SWEEP)), INT(1)}, ref_cat,
     .grad = true},
    {"cat", "one", {LIST(T(SWEEP, 2)), INT(0)}, ref_cat, .grad = true},
    {"cat", "promotion", {LIST(T(2, 2), T_OF(TS_F32, SWEEP, 2)), INT(0)}, ref_cat,
     .dtypes = DT_INTS | TS_DT(TS_F32), .out = {OUT_FLOAT}},
    {"stack", "front", {LIST(T(SWEEP, 3), T(SWEEP, 3)), INT(0)}, ref_stack, .dtypes = DT_ALL,
     .grad = true,
     .bad = {{0, LIST(T(2, 3), T(3, 3)), TS_ERR_SHAPE, "stack"}, {1, INT(3), TS_ERR_INDEX, "dim"}}},
    {"stack", "end", {LIST(T(3, SWEEP), T(3, SWEEP), T(3, SWEEP)), INT(-1)}, ref_stack,
     .grad = true},
    {"stack", "0-dim", {LIST(T(), T(), T()), INT(0)}, ref_stack, .grad = true},
};
TS_SAMPLES(cat, samples)
