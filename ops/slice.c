/** @file slice.c  Parts of a tensor: slices, splits, diagonals, and copies with a part replaced. */
// SPDX-License-Identifier: MIT
#include "include/tessera/check.h"
#include "include/tessera/ops.h"
#include "ops/ops.h"

#include <string.h>

/** A slice after clamping: `length` elements start, start + step, ... of dim. */
typedef struct slice_at {
    int64_t dim, start, step, length;
} slice_at;

/** Reads dim, start, end, step from the arguments arg .. arg + 3. */
static ts_status slice_range(ts_frame *f, int arg, const int64_t *tensor_sizes, int ndim,
                             slice_at *at)
{
    int64_t start = f->args[arg + 1].i, end = f->args[arg + 2].i;
    at->step = f->args[arg + 3].i;
    if (ndim == 0)
        return ts_fail_arg(f, 0, TS_ERR_SHAPE, "expected at least one dim, got a 0-dim tensor");
    TS_TRY(ts_check_dim(f, arg, f->args[arg].i, ndim, &at->dim));
    if (at->step < 1)
        return ts_fail_arg(f, arg + 3, TS_ERR_VALUE, "expected a step of at least 1, got %lld",
                           (long long)at->step);
    int64_t n = tensor_sizes[at->dim];
    start = start < 0 ? ts_max64(start + n, 0) : ts_min64(start, n);
    end = end < 0 ? end + n : ts_min64(end, n);
    at->start = start;
    at->length = end > start ? (end - start - 1) / at->step + 1 : 0;
    if (at->length < 2)
        at->step = 1; /* the step is unused, and strides times a huge step overflow */
    return TS_OK;
}

ts_status ts_infer_slice(ts_frame *f)
{
    const ts_tensor *t = f->args[0].t;
    int64_t sizes[TS_MAX_DIMS], strides[TS_MAX_DIMS];
    slice_at at;
    TS_TRY(slice_range(f, 1, t->sizes, t->ndim, &at));
    memcpy(sizes, t->sizes, sizeof sizes);
    memcpy(strides, t->strides, sizeof strides);
    sizes[at.dim] = at.length;
    strides[at.dim] *= at.step;
    return ts_give_alias(f, 0, sizes, strides, t->ndim,
                         at.length ? at.start * t->strides[at.dim] : 0);
}

ts_status ts_infer_select(ts_frame *f)
{
    const ts_tensor *t = f->args[0].t;
    int64_t sizes[TS_MAX_DIMS], strides[TS_MAX_DIMS], dim, index = f->args[2].i;
    if (t->ndim == 0)
        return ts_fail_arg(f, 0, TS_ERR_SHAPE, "expected at least one dim, got a 0-dim tensor");
    TS_TRY(ts_check_dim(f, 1, f->args[1].i, t->ndim, &dim));
    int64_t n = t->sizes[dim];
    if (index < -n || index >= n)
        return ts_fail_arg(f, 2, TS_ERR_INDEX, "expected an index below %lld in dim %lld, got %lld",
                           (long long)n, (long long)dim, (long long)index);
    index += index < 0 ? n : 0;
    for (int d = 0; d < t->ndim; d++) {
        int to = d - (d > dim);
        if (d == dim)
            continue;
        sizes[to] = t->sizes[d];
        strides[to] = t->strides[d];
    }
    return ts_give_alias(f, 0, sizes, strides, t->ndim - 1, index * t->strides[dim]);
}

/** Computes sizes and strides of a diagonal, which becomes the last dim, and *start, its offset in
 * t in elements. Arguments arg .. arg + 2: offset and the two dims. */
static ts_status diagonal_of(ts_frame *f, int arg, const int64_t *from, const int64_t *from_strides,
                             int ndim, int64_t *sizes, int64_t *strides, int64_t *start)
{
    int64_t a, b, offset = f->args[arg].i;
    if (ndim < 2)
        return ts_fail_arg(f, arg - 1, TS_ERR_SHAPE, "expected at least two dims, got %d", ndim);
    TS_TRY(ts_check_dim(f, arg + 1, f->args[arg + 1].i, ndim, &a));
    TS_TRY(ts_check_dim(f, arg + 2, f->args[arg + 2].i, ndim, &b));
    if (a == b)
        return ts_fail_arg(f, arg + 2, TS_ERR_INDEX,
                           "expected another dim than 'dim1', got %lld for both", (long long)a);
    int n = 0;
    for (int d = 0; d < ndim; d++) {
        if (d == a || d == b)
            continue;
        sizes[n] = from[d];
        strides[n++] = from_strides[d];
    }
    int64_t down = offset < 0 ? -ts_max64(offset, -from[a]) : 0,
            right = offset > 0 ? ts_min64(offset, from[b]) : 0;
    sizes[n] = ts_max64(ts_min64(from[a] - down, from[b] - right), 0);
    strides[n] = from_strides[a] + from_strides[b];
    *start = sizes[n] ? down * from_strides[a] + right * from_strides[b] : 0;
    return TS_OK;
}

ts_status ts_infer_diagonal(ts_frame *f)
{
    const ts_tensor *t = f->args[0].t;
    int64_t sizes[TS_MAX_DIMS], strides[TS_MAX_DIMS], start = 0;
    TS_TRY(diagonal_of(f, 1, t->sizes, t->strides, t->ndim, sizes, strides, &start));
    return ts_give_alias(f, 0, sizes, strides, t->ndim - 1, start);
}

ts_status ts_infer_split(ts_frame *f)
{
    const ts_tensor *t = f->args[0].t;
    int64_t sizes[TS_MAX_DIMS], dim, size = f->args[1].i;
    if (t->ndim == 0)
        return ts_fail_arg(f, 0, TS_ERR_SHAPE, "expected at least one dim, got a 0-dim tensor");
    TS_TRY(ts_check_dim(f, 2, f->args[2].i, t->ndim, &dim));
    int64_t n = t->sizes[dim];
    if (size < 1 || (n - 1) / size >= TS_MAX_RETS)
        return ts_fail_arg(f, 1, TS_ERR_VALUE,
                           "expected a size that makes 1 to %d parts of %lld elements, got %lld",
                           TS_MAX_RETS, (long long)n, (long long)size);
    memcpy(sizes, t->sizes, sizeof sizes);
    ts_status status = TS_OK;
    for (int i = 0; i < TS_MAX_RETS && status == TS_OK; i++) {
        f->rets[i] = ts_value_none();
        if (!(f->want >> i & 1) || (i && i > (n - 1) / size))
            continue;
        sizes[dim] = ts_min64(size, n - i * size);
        status = ts_give_alias(f, i, sizes, t->strides, t->ndim, i * size * t->strides[dim]);
    }
    return status == TS_OK ? status : ts_drop_results(f, status);
}

/* ---------------------------------------------------------------- writing a part of a copy ---- */

/** Passes the slice to the kernel. */
static void plan_part(ts_plan *plan, const slice_at *at)
{
    plan->dim = at->dim;
    plan->start = at->start;
    plan->step = at->step;
}

/** TS_ERR_SHAPE for argument 1, the sizes of the tensor of which argument 0 is a part. */
static TS_COLD ts_status fail_sizes(ts_frame *f, const ts_value *v)
{
    return ts_fail_arg(f, 1, TS_ERR_SHAPE,
                       "expected 1 to %d sizes >= 0 whose bytes fit 63 bits, got %s", TS_MAX_DIMS,
                       TS_LIST_TEXT(v->ints, v->count));
}

ts_status ts_infer_slice_backward(ts_frame *f)
{
    const ts_tensor *g = f->args[0].t;
    const ts_value *v = &f->args[1];
    int64_t sizes[TS_MAX_DIMS], numel, bytes;
    slice_at at;
    if (v->count > TS_MAX_DIMS ||
        !ts_tensor_bytes(v->ints, (int)v->count, ts_dtype_sizes[g->dtype], &numel, &bytes))
        return fail_sizes(f, v);
    TS_TRY(slice_range(f, 2, v->ints, (int)v->count, &at));
    memcpy(sizes, v->ints, v->count * sizeof *sizes);
    sizes[at.dim] = at.length;
    TS_TRY(ts_check_sizes(f, 0, sizes, (int)v->count));
    plan_part(f->plan, &at);
    f->plan->compute = g->dtype;
    f->plan->strided = 1;
    ts_plan_result(f->plan, 0, v->ints, (int)v->count, (ts_dtype)g->dtype, g->storage->device);
    return TS_OK;
}

ts_status ts_infer_slice_scatter(ts_frame *f)
{
    const ts_tensor *t = f->args[0].t;
    int64_t sizes[TS_MAX_DIMS];
    slice_at at;
    TS_TRY(slice_range(f, 2, t->sizes, t->ndim, &at));
    memcpy(sizes, t->sizes, sizeof sizes);
    sizes[at.dim] = at.length;
    TS_TRY(ts_check_sizes(f, 1, sizes, t->ndim));
    TS_TRY(ts_check_one_device(f));
    TS_TRY(ts_check_dtype(f, 1, (ts_dtype)t->dtype));
    plan_part(f->plan, &at);
    f->plan->strided = 3; /* self and src */
    ts_plan_like(f->plan, t);
    return TS_OK;
}

ts_status ts_composite_diagonal_backward(ts_frame *f)
{
    TS_SCOPE;
    const ts_tensor *g = f->args[0].t;
    const ts_value *v = &f->args[1];
    int64_t from[TS_MAX_DIMS], sizes[TS_MAX_DIMS], strides[TS_MAX_DIMS], start, numel, bytes;
    if (v->count > TS_MAX_DIMS ||
        !ts_tensor_bytes(v->ints, (int)v->count, ts_dtype_sizes[g->dtype], &numel, &bytes))
        return fail_sizes(f, v);
    ts_strides_fill(v->ints, (int)v->count, from);
    TS_TRY(diagonal_of(f, 2, v->ints, from, (int)v->count, sizes, strides, &start));
    TS_TRY(ts_check_sizes(f, 0, sizes, (int)v->count - 1));
    ts_tensor *like = ts_empty_on(v->ints, (int)v->count, (ts_dtype)g->dtype, g->storage->device);
    ts_tensor *y = like ? ts_zero_(like) : NULL;
    TS_TRY(y);
    ts_tensor *diagonal = ts_diagonal(y, f->args[2].i, (int)f->args[3].i, (int)f->args[4].i);
    TS_TRY(diagonal);
    TS_TRY(ts_copy_(diagonal, f->args[0].t));
    f->rets[0] = V_T(ts_retain(y));
    return TS_OK;
}

/* -------------------------------------------------------------------------- public forms ---- */

/** Checks t and makes *dim non-negative, for public functions that call other ops; false with an
 *  error. */
static bool dim_of(ts_tensor *t, int *dim, const char *op, const void *site)
{
    return ts_tensor_ok(t, op, "t", site) && ts_dim_ok(dim, t->ndim, op, "dim", site);
}

ts_tensor *ts_narrow(ts_tensor *t, int dim, int64_t start, int64_t length)
{
    const void *site = __builtin_return_address(0);
    if (!dim_of(t, &dim, "narrow", site))
        return NULL;
    int64_t n = t->sizes[dim], first = start < 0 ? start + n : start;
    if (first < 0 || length < 0 || first > n || length > n - first) {
        ts_fail_op(TS_ERR_INDEX, "narrow", site, NULL,
                   "arguments 'start' and 'length': expected a range inside the dim's %lld "
                   "elements, got start %lld and length %lld",
                   (long long)n, (long long)start, (long long)length);
        return NULL;
    }
    return ts_slice(t, dim, first, first + length, 1);
}

/** Writes views of `size` elements of dim each to parts[0 .. nparts); the last may be shorter.
 * After an error all parts are NULL. */
static ts_status split(ts_tensor *t, int64_t size, int dim, ts_tensor **parts, int nparts)
{
    if (nparts > TS_MAX_RETS) {
        for (int i = 0; i < nparts; i++) {
            int64_t start = i * size;
            parts[i] = ts_slice(t, dim, start, i == nparts - 1 ? TS_END : start + size, 1);
            if (!parts[i]) {
                for (int k = 0; k < i; k++)
                    ts_drop(parts[k]);
                memset(parts, 0, (size_t)nparts * sizeof *parts);
                return ts_error_code();
            }
        }
        return TS_OK;
    }
    ts_value args[] = {V_T(t), V_I(size), V_I(dim)};
    ts_tensor **outs[TS_MAX_RETS] = {NULL};
    for (int i = 1; i < nparts; i++)
        outs[i] = &parts[i];
    parts[0] = ts_invoke_many(TS_OP_split, args, TS_N(args), TS_MAX_RETS, outs);
    return TS_STATUS_OF(parts[0]);
}

ts_status ts_split(ts_tensor *t, int64_t size, int dim, ts_tensor **parts, int nparts)
{
    const void *site = __builtin_return_address(0);
    TS_TRY(TS_CHECK_VALUE(nparts, nparts >= 1, "at least 1"));
    TS_TRY(TS_CHECK_LIST(parts, nparts));
    memset(parts, 0, (size_t)nparts * sizeof *parts);
    if (!dim_of(t, &dim, "split", site))
        return ts_error_code();
    int64_t n = t->sizes[dim], makes = size < 1 ? 0 : n ? (n - 1) / size + 1 : 1;
    if (makes != nparts)
        return ts_fail_op(TS_ERR_VALUE, "split", site, NULL,
                          "argument 'size': expected a size that gives nparts = %d for dim %d of "
                          "size %lld, got %lld, which gives %lld",
                          nparts, dim, (long long)n, (long long)size, (long long)makes);
    return split(t, size, dim, parts, nparts);
}

ts_status ts_chunk(ts_tensor *t, int chunks, int dim, ts_tensor **parts, int *nparts)
{
    const void *site = __builtin_return_address(0);
    if (nparts)
        *nparts = 0;
    TS_TRY(TS_CHECK_VALUE(chunks, chunks >= 1, "at least 1"));
    TS_TRY(TS_CHECK_LIST(parts, chunks));
    memset(parts, 0, (size_t)chunks * sizeof *parts);
    if (!dim_of(t, &dim, "chunk", site))
        return ts_error_code();
    int64_t n = t->sizes[dim], size = n ? (n - 1) / chunks + 1 : 1;
    int made = n ? (int)((n - 1) / size + 1) : 1;
    TS_TRY(split(t, size, dim, parts, made));
    if (nparts)
        *nparts = made;
    return TS_OK;
}

ts_status ts_unbind(ts_tensor *t, int dim, ts_tensor **parts, int n)
{
    const void *site = __builtin_return_address(0);
    TS_TRY(TS_CHECK_LIST(parts, n));
    if (n)
        memset(parts, 0, (size_t)n * sizeof *parts);
    if (!dim_of(t, &dim, "unbind", site))
        return ts_error_code();
    if (t->sizes[dim] != n)
        return ts_fail_op(TS_ERR_VALUE, "unbind", site, NULL,
                          "argument 'n': expected the size of dim %d, %lld, got %d", dim,
                          (long long)t->sizes[dim], n);
    for (int i = 0; i < n; i++) {
        parts[i] = ts_select(t, dim, i);
        if (!parts[i]) {
            for (int k = 0; k < i; k++)
                ts_drop(parts[k]);
            memset(parts, 0, (size_t)n * sizeof *parts);
            return ts_error_code();
        }
    }
    return TS_OK;
}

ts_tensor *ts_select_scatter(ts_tensor *self, ts_tensor *src, int dim, int64_t index)
{
    const void *site = __builtin_return_address(0);
    TS_TRY_NULL(TS_CHECK_TENSORS(self, src));
    if (!dim_of(self, &dim, "select_scatter", site))
        return NULL;
    int64_t n = self->sizes[dim];
    if (index < -n || index >= n) {
        ts_fail_op(TS_ERR_INDEX, "select_scatter", site, NULL,
                   "argument 'index': expected an index from %lld to %lld in dim %d, got %lld",
                   (long long)-n, (long long)n - 1, dim, (long long)index);
        return NULL;
    }
    index += index < 0 ? n : 0;
    TS_SCOPE;
    ts_tensor *part = ts_unsqueeze(src, dim);
    return part ? ts_keep(ts_slice_scatter(self, part, dim, index, index + 1, 1)) : NULL;
}
