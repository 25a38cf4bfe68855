/** @file view.c  Samples of views. A reference maps each result element to its position in the
 * argument. */
// SPDX-License-Identifier: MIT
#include "conformance/sample.h"

#include <string.h>

static void ref_same(ts_ref *r)
{
    double *y = ref_ret_like(r, 0, &r->a[0]);
    memcpy(y, r->a[0].x, (size_t)r->a[0].numel * sizeof *y);
}

/** Reshapes to argument 1's sizes, one of which may be -1. */
static void ref_reshape(ts_ref *r)
{
    int64_t sizes[TS_MAX_DIMS], known = 1;
    int ndim = r->a[1].ndim;
    for (int d = 0; d < ndim; d++)
        known *= r->a[1].sizes[d] < 0 ? 1 : r->a[1].sizes[d];
    for (int d = 0; d < ndim; d++)
        sizes[d] = r->a[1].sizes[d] < 0 ? r->a[0].numel / known : r->a[1].sizes[d];
    double *y = ref_ret(r, 0, sizes, ndim);
    memcpy(y, r->a[0].x, (size_t)r->a[0].numel * sizeof *y);
}

static void ref_squeeze(ts_ref *r)
{
    int64_t sizes[TS_MAX_DIMS];
    int ndim = 0;
    for (int d = 0; d < r->a[0].ndim; d++) {
        bool named = false;
        for (int i = 0; i < r->a[1].ndim; i++)
            named |= r->a[1].sizes[i] == d || r->a[1].sizes[i] + r->a[0].ndim == d;
        if (!named || r->a[0].sizes[d] != 1)
            sizes[ndim++] = r->a[0].sizes[d];
    }
    double *y = ref_ret(r, 0, sizes, ndim);
    memcpy(y, r->a[0].x, (size_t)r->a[0].numel * sizeof *y);
}

static void ref_unsqueeze(ts_ref *r)
{
    int64_t sizes[TS_MAX_DIMS], at = r->a[1].i < 0 ? r->a[1].i + r->a[0].ndim + 1 : r->a[1].i;
    for (int d = 0, s = 0; d <= r->a[0].ndim; d++)
        sizes[d] = d == at ? 1 : r->a[0].sizes[s++];
    double *y = ref_ret(r, 0, sizes, r->a[0].ndim + 1);
    memcpy(y, r->a[0].x, (size_t)r->a[0].numel * sizeof *y);
}

/** y[i…] = x[sum of i_d · strides_d + offset]. */
static void strided(ts_ref *r, int ret, const int64_t *sizes, const int64_t *strides, int ndim,
                    int64_t offset)
{
    double *y = ref_ret(r, ret, sizes, ndim);
    for (int64_t e = 0; e < r->ret[ret].numel; e++) {
        int64_t rest = e, at = offset;
        for (int d = ndim - 1; d >= 0; d--) {
            at += rest % sizes[d] * strides[d];
            rest /= sizes[d];
        }
        y[e] = r->a[0].x[at];
    }
}

static void steps(const ts_ref_arg *a, int64_t *strides)
{
    int64_t step = 1;
    for (int d = a->ndim - 1; d >= 0; d--) {
        strides[d] = step;
        step *= a->sizes[d];
    }
}

static int64_t place(const ts_ref_arg *a, int64_t dim) { return dim < 0 ? dim + a->ndim : dim; }

static void ref_permute(ts_ref *r)
{
    int64_t own[TS_MAX_DIMS], sizes[TS_MAX_DIMS], strides[TS_MAX_DIMS];
    steps(&r->a[0], own);
    for (int d = 0; d < r->a[0].ndim; d++) {
        int64_t from = place(&r->a[0], r->a[1].sizes[d]);
        sizes[d] = r->a[0].sizes[from];
        strides[d] = own[from];
    }
    strided(r, 0, sizes, strides, r->a[0].ndim, 0);
}

static void ref_transpose(ts_ref *r)
{
    int64_t strides[TS_MAX_DIMS], sizes[TS_MAX_DIMS], a = place(&r->a[0], r->a[1].i),
            b = place(&r->a[0], r->a[2].i);
    steps(&r->a[0], strides);
    memcpy(sizes, r->a[0].sizes, sizeof sizes);
    int64_t size = sizes[a], stride = strides[a];
    sizes[a] = sizes[b];
    strides[a] = strides[b];
    sizes[b] = size;
    strides[b] = stride;
    strided(r, 0, sizes, strides, r->a[0].ndim, 0);
}

static void ref_expand(ts_ref *r)
{
    int64_t own[TS_MAX_DIMS], sizes[TS_MAX_DIMS], strides[TS_MAX_DIMS];
    int n = r->a[1].ndim, shift = n - r->a[0].ndim;
    steps(&r->a[0], own);
    for (int d = 0; d < n; d++) {
        int64_t had = d < shift ? 1 : r->a[0].sizes[d - shift];
        sizes[d] = r->a[1].sizes[d] < 0 ? had : r->a[1].sizes[d];
        strides[d] = d < shift || (had == 1 && sizes[d] != 1) ? 0 : own[d - shift];
    }
    strided(r, 0, sizes, strides, n, 0);
}

/** start and end of slice(…, start, end, step) at arguments i, i + 1,
 * clamped; returns the length. */
static int64_t range(const ts_ref *r, int i, int64_t size, int64_t *start)
{
    int64_t end = r->a[i + 1].i, step = r->a[i + 2].i;
    *start = r->a[i].i;
    *start += *start < 0 ? size : 0;
    end += end < 0 ? size : 0;
    *start = *start < 0 ? 0 : *start > size ? size : *start;
    end = end < *start ? *start : end > size ? size : end;
    return (end - *start + step - 1) / step;
}

static void ref_slice(ts_ref *r)
{
    int64_t strides[TS_MAX_DIMS], sizes[TS_MAX_DIMS], dim = place(&r->a[0], r->a[1].i), start;
    steps(&r->a[0], strides);
    memcpy(sizes, r->a[0].sizes, sizeof sizes);
    sizes[dim] = range(r, 2, sizes[dim], &start);
    start *= strides[dim];
    strides[dim] *= r->a[4].i;
    strided(r, 0, sizes, strides, r->a[0].ndim, start);
}

static void ref_select(ts_ref *r)
{
    int64_t own[TS_MAX_DIMS], strides[TS_MAX_DIMS], sizes[TS_MAX_DIMS],
        dim = place(&r->a[0], r->a[1].i);
    int64_t index = r->a[2].i < 0 ? r->a[2].i + r->a[0].sizes[dim] : r->a[2].i;
    int n = 0;
    steps(&r->a[0], own);
    for (int d = 0; d < r->a[0].ndim; d++)
        if (d != dim) {
            sizes[n] = r->a[0].sizes[d];
            strides[n++] = own[d];
        }
    strided(r, 0, sizes, strides, n, index * own[dim]);
}

/** Result dims: the other dims, then the diagonal with the sum of the two strides. */
static void ref_diagonal(ts_ref *r)
{
    const ts_ref_arg *a = &r->a[0];
    int64_t own[TS_MAX_DIMS], strides[TS_MAX_DIMS], sizes[TS_MAX_DIMS], k = r->a[1].i;
    int64_t p = place(a, r->a[2].i), q = place(a, r->a[3].i), top = k < 0 ? -k : 0,
            left = k > 0 ? k : 0;
    int64_t rows = a->sizes[p] - top, columns = a->sizes[q] - left, n = 0;
    steps(a, own);
    for (int d = 0; d < a->ndim; d++)
        if (d != p && d != q) {
            sizes[n] = a->sizes[d];
            strides[n++] = own[d];
        }
    sizes[n] = rows < columns ? rows : columns;
    sizes[n] = sizes[n] < 0 ? 0 : sizes[n];
    strides[n++] = own[p] + own[q];
    strided(r, 0, sizes, strides, (int)n, top * own[p] + left * own[q]);
}

static void ref_as_strided(ts_ref *r)
{
    strided(r, 0, r->a[1].sizes, r->a[2].sizes, r->a[1].ndim, r->a[3].i);
}

static void ref_parts(ts_ref *r)
{
    int64_t strides[TS_MAX_DIMS], sizes[TS_MAX_DIMS], size = r->a[1].i,
            dim = place(&r->a[0], r->a[2].i);
    int64_t whole = r->a[0].sizes[dim];
    steps(&r->a[0], strides);
    memcpy(sizes, r->a[0].sizes, sizeof sizes);
    for (int i = 0; i == 0 || i * size < whole; i++) {
        sizes[dim] = whole - i * size < size ? whole - i * size : size;
        strided(r, i, sizes, strides, r->a[0].ndim, i * size * strides[dim]);
    }
}

/** Row-major index in a tensor of `sizes` of element e of its slice (start, step, length) along
 * `dim`. */
static int64_t slice_place(const int64_t *sizes, int ndim, int64_t dim, int64_t length,
                           int64_t start, int64_t step, int64_t e)
{
    int64_t at = 0, scale = 1;
    for (int d = ndim - 1; d >= 0; d--) {
        int64_t n = d == dim ? length : sizes[d], k = e % n;
        e /= n;
        at += (d == dim ? start + k * step : k) * scale;
        scale *= sizes[d];
    }
    return at;
}

static void ref_slice_scatter(ts_ref *r)
{
    const ts_ref_arg *a = &r->a[0];
    int64_t dim = place(a, r->a[2].i), start, length = range(r, 3, a->sizes[dim], &start);
    double *y = ref_ret_like(r, 0, a);
    memcpy(y, a->x, (size_t)a->numel * sizeof *y);
    for (int64_t e = 0; e < r->a[1].numel; e++)
        y[slice_place(a->sizes, a->ndim, dim, length, start, r->a[5].i, e)] = r->a[1].x[e];
}

static void ref_slice_backward(ts_ref *r)
{
    const ts_ref_arg *g = &r->a[0], *to = &r->a[1];
    int64_t dim = place(to, r->a[2].i), start, length = range(r, 3, to->sizes[dim], &start);
    double *y = ref_ret(r, 0, to->sizes, to->ndim);
    for (int64_t e = 0; e < g->numel; e++)
        y[slice_place(to->sizes, to->ndim, dim, length, start, r->a[5].i, e)] = g->x[e];
}

/** For an argument of two dims: sets element (i + top, i + left) to grad[i]. */
static void ref_diagonal_backward(ts_ref *r)
{
    int64_t k = r->a[2].i, columns = r->a[1].sizes[1], top = k < 0 ? -k : 0, left = k > 0 ? k : 0;
    double *y = ref_ret(r, 0, r->a[1].sizes, 2);
    for (int64_t i = 0; i < r->a[0].numel; i++)
        y[(i + top) * columns + i + left] = r->a[0].x[i];
}

#define END INT64_MAX

static const ts_sample samples[] = {
    {"alias", "same", {T(SWEEP, 3)}, ref_same, .dtypes = DT_ALL, .grad = true},
    {"detach", "same", {T(SWEEP, 3)}, ref_same, .dtypes = DT_ALL},
    {"view", "merge", {T(2, SWEEP, 3), INTS(2, -1)}, ref_reshape, .dtypes = DT_ALL,
     .no_layouts = true, .no_empty = true,
     .grad = true, .bad = {{1, INTS(4, -1), TS_ERR_SHAPE, "view"},
                           {1, INTS(-1, -1), TS_ERR_SHAPE, "view"}}},
    {"view", "split", {T(SWEEP, 6), INTS(SWEEP, 2, 3)}, ref_reshape, .no_expand = true,
     .no_layouts = true, .grad = true},
    {"reshape", "merge", {T(2, SWEEP, 3), INTS(2, -1)}, ref_reshape, .dtypes = DT_ALL,
     .no_empty = true, .grad = true,
     .bad = {{1, INTS(5, 5), TS_ERR_SHAPE, "reshape"}}},
    {"reshape", "split", {T(SWEEP, 6), INTS(SWEEP, 2, 3)}, ref_reshape, .grad = true},
    {"reshape", "flat", {T(SWEEP, 4), INTS(-1)}, ref_reshape, .grad = true},
    {"reshape", "one element", {T(1, 1), INTS()}, ref_reshape, .grad = true},
    {"permute", "3 dims", {T(2, SWEEP, 3), INTS(2, 0, 1)}, ref_permute, .dtypes = DT_ALL,
     .grad = true,
     .bad = {{1, INTS(0, 1), TS_ERR_INDEX, "dims"}, {1, INTS(0, 0, 1), TS_ERR_INDEX, "dims"},
             {1, INTS(0, 1, 3), TS_ERR_INDEX, "dim"}}},
    {"permute", "negative", {T(SWEEP, 3), INTS(-1, -2)}, ref_permute, .grad = true},
    {"transpose", "ends", {T(2, SWEEP, 3), INT(0), INT(-1)}, ref_transpose, .dtypes = DT_ALL,
     .grad = true,
     .bad = {{1, INT(3), TS_ERR_INDEX, "dim"}}},
    {"expand", "new dim", {T(SWEEP, 1), INTS(2, -1, 4)}, ref_expand, .dtypes = DT_ALL, .grad = true,
     .bad = {{1, INTS(4), TS_ERR_SHAPE, "expand"}, {1, INTS(2, 7, 4), TS_ERR_SHAPE, "expand"}}},
    {"expand", "0-dim", {T(), INTS(SWEEP, 2)}, ref_expand, .grad = true},
    {"squeeze", "one", {T(SWEEP, 1, 3, 1), INTS(1)}, ref_squeeze, .dtypes = DT_ALL, .grad = true,
     .bad = {{1, INTS(4), TS_ERR_INDEX, "dim"}}},
    {"squeeze", "not one", {T(SWEEP, 1, 3), INTS(-1, 1)}, ref_squeeze, .grad = true},
    {"unsqueeze", "front", {T(SWEEP, 3), INT(0)}, ref_unsqueeze, .dtypes = DT_ALL, .grad = true,
     .bad = {{1, INT(3), TS_ERR_INDEX, "dim"}, {1, INT(-4), TS_ERR_INDEX, "dim"}}},
    {"unsqueeze", "end", {T(SWEEP, 3), INT(-1)}, ref_unsqueeze, .grad = true},
    {"slice", "step 2", {T(SWEEP, 7), INT(1), INT(1), INT(END), INT(2)}, ref_slice,
     .dtypes = DT_ALL, .grad = true,
     .bad = {{4, INT(0), TS_ERR_VALUE, "step"}, {1, INT(2), TS_ERR_INDEX, "dim"}}},
    {"slice", "negative", {T(SWEEP, 3), INT(0), INT(-2), INT(-1), INT(1)}, ref_slice, .grad = true},
    {"slice", "nothing", {T(SWEEP, 3), INT(0), INT(50), INT(20), INT(1)}, ref_slice},
    {"select", "middle", {T(2, 5, SWEEP), INT(1), INT(3)}, ref_select, .dtypes = DT_ALL,
     .grad = true,
     .bad = {{2, INT(5), TS_ERR_INDEX, "5"}, {2, INT(-6), TS_ERR_INDEX, "5"},
             {1, INT(3), TS_ERR_INDEX, "dim"}}},
    {"select", "last", {T(SWEEP, 4), INT(-1), INT(-1)}, ref_select, .grad = true},
    {"diagonal", "main", {T(SWEEP, 5), INT(0), INT(0), INT(1)}, ref_diagonal, .dtypes = DT_ALL,
     .grad = true,
     .bad = {{3, INT(0), TS_ERR_INDEX, "dim"}, {2, INT(2), TS_ERR_INDEX, "dim"}}},
    {"diagonal", "above", {T(2, SWEEP, 4), INT(1), INT(1), INT(2)}, ref_diagonal, .grad = true},
    {"diagonal", "below, turned", {T(4, 2, SWEEP), INT(-1), INT(-1), INT(0)}, ref_diagonal,
     .grad = true},
    {"diagonal_backward", "main", {T(3), INTS(3, 5), INT(0), INT(0), INT(1)}, ref_diagonal_backward,
     .grad = true},
    {"diagonal_backward", "above", {T(3), INTS(4, 5), INT(2), INT(0), INT(1)},
     ref_diagonal_backward, .grad = true},
    {"as_strided", "windows", {T(10), INTS(4, 3), INTS(2, 1), INT(1)}, ref_as_strided,
     .dtypes = DT_ALL, .no_layouts = true,
     .grad = true, .bad = {{3, INT(2), TS_ERR_VALUE, "storage"},
                           {2, INTS(2, -1), TS_ERR_VALUE, "storage"},
                           {2, INTS(1), TS_ERR_VALUE, "stride"}}},
    {"split", "two", {T(SWEEP, 4), INT(2), INT(1)}, ref_parts, .dtypes = DT_ALL, .grad = true},
    {"split", "rest", {T(7, SWEEP), INT(2), INT(0)}, ref_parts, .grad = true,
     .bad = {{1, INT(0), TS_ERR_VALUE, "size"}, {2, INT(2), TS_ERR_INDEX, "dim"}}},
    {"slice_scatter", "rows", {T(5, SWEEP), T(2, SWEEP), INT(0), INT(1), INT(5), INT(2)},
     ref_slice_scatter, .dtypes = DT_ALL,
     .grad = true, .bad = {{1, T(3, 3), TS_ERR_SHAPE, "src"}, {5, INT(0), TS_ERR_VALUE, "step"}}},
    {"slice_scatter", "columns", {T(SWEEP, 6), T(SWEEP, 3), INT(-1), INT(-3), INT(END), INT(1)},
     ref_slice_scatter, .grad = true},
    {"slice_backward", "rows", {T(2, SWEEP), INTS(5, SWEEP), INT(0), INT(1), INT(5), INT(2)},
     ref_slice_backward, .grad = true},
    {"slice_backward", "columns", {T(SWEEP, 3), INTS(SWEEP, 6), INT(-1), INT(-3), INT(END), INT(1)},
     ref_slice_backward, .grad = true},
};
TS_SAMPLES(view, samples)
