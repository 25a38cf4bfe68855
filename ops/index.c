/** @file index.c  Shape rules of ops that read or write at indices given as a tensor: embedding,
 * index_select, index_add, gather, scatter, one_hot. plan->dim is the indexed dim. */
// SPDX-License-Identifier: MIT
#include "include/tessera/check.h"
#include "include/tessera/ops.h"
#include "ops/ops.h"

#include <string.h>

/* ------------------------------------------------------------------------------- rules ---- */

static ts_status check_index(ts_frame *f, int arg)
{
    const ts_tensor *t = f->args[arg].t;
    if (t->dtype == TS_I64 || t->dtype == TS_I32)
        return TS_OK;
    return ts_fail_arg_hint(f, arg, TS_ERR_DTYPE, "cast with ts_to()",
                            "expected dtype i64 or i32, got %s", ts_dtype_name((ts_dtype)t->dtype));
}

/** True if reading t with its strides costs less than packing it, for n of its `whole` elements or
 *  lines. An expanded tensor has more elements than its memory, so packing it always costs more. */
static bool saves_packing(const ts_tensor *t, int64_t n, int64_t whole)
{
    bool expanded = false;
    for (int d = 0; d < t->ndim; d++)
        expanded |= t->sizes[d] > 1 && t->strides[d] == 0;
    return expanded || n <= whole;
}

/** Plans result 0 with the sizes of `index` plus a last dim of size `columns`. */
static ts_status plan_rows(ts_frame *f, const ts_tensor *index, int64_t columns, ts_dtype dtype)
{
    int64_t sizes[TS_MAX_DIMS];
    if (index->ndim == TS_MAX_DIMS)
        return ts_fail_arg(f, 1, TS_ERR_SHAPE, "expected fewer than %d dims, got %d", TS_MAX_DIMS,
                           index->ndim);
    memcpy(sizes, index->sizes, index->ndim * sizeof *sizes);
    sizes[index->ndim] = columns;
    ts_plan_result(f->plan, 0, sizes, index->ndim + 1, dtype, index->storage->device);
    return TS_OK;
}

ts_status ts_infer_embedding(ts_frame *f)
{
    const ts_tensor *weight = f->args[0].t;
    TS_TRY(ts_check_ndim(f, 0, 2));
    TS_TRY(check_index(f, 1));
    TS_TRY(ts_check_one_device(f));
    if (f->args[2].i < -1 || f->args[2].i >= weight->sizes[0])
        return ts_fail_arg(f, 2, TS_ERR_INDEX, "expected -1 or a row below %lld, got %lld",
                           (long long)weight->sizes[0], (long long)f->args[2].i);
    f->plan->compute = (ts_dtype)weight->dtype;
    f->plan->dim = 0;
    return plan_rows(f, f->args[1].t, weight->sizes[1], (ts_dtype)weight->dtype);
}

ts_status ts_infer_embedding_backward(ts_frame *f)
{
    const ts_tensor *g = f->args[0].t, *index = f->args[1].t;
    int64_t sizes[2] = {f->args[2].i, 0};
    TS_TRY(check_index(f, 1));
    TS_TRY(ts_check_one_device(f));
    TS_TRY(ts_check_ndim(f, 0, index->ndim + 1));
    for (int d = 0; d < index->ndim; d++)
        if (g->sizes[d] != index->sizes[d])
            return ts_fail_arg(f, 0, TS_ERR_SHAPE,
                               "expected the size of 'index' in dim %d, %lld, got %lld", d,
                               (long long)index->sizes[d], (long long)g->sizes[d]);
    if (sizes[0] < 0)
        return ts_fail_arg(f, 2, TS_ERR_VALUE, "expected at least 0, got %lld",
                           (long long)sizes[0]);
    sizes[1] = g->sizes[index->ndim];
    f->plan->compute = (ts_dtype)g->dtype;
    ts_plan_result(f->plan, 0, sizes, 2, (ts_dtype)g->dtype, g->device);
    return TS_OK;
}

/** Checks dim and index, a list of positions along dim of self; computes the sizes of the
 * selection. */
static ts_status positions_along(ts_frame *f, int64_t *dim, int64_t *sizes)
{
    const ts_tensor *t = f->args[0].t, *index = f->args[2].t;
    TS_TRY(ts_check_dim(f, 1, f->args[1].i, t->ndim, dim));
    TS_TRY(check_index(f, 2));
    if (index->ndim > 1)
        return ts_fail_arg(f, 2, TS_ERR_SHAPE, "expected at most one dim, got %d", index->ndim);
    if (t->ndim == 0 && index->numel != 1)
        return ts_fail_arg(f, 2, TS_ERR_SHAPE, "expected one index into a 0-dim tensor, got %lld",
                           (long long)index->numel);
    memcpy(sizes, t->sizes, TS_MAX_DIMS * sizeof *sizes);
    if (t->ndim)
        sizes[*dim] = index->numel;
    return TS_OK;
}

ts_status ts_infer_index_select(ts_frame *f)
{
    const ts_tensor *t = f->args[0].t, *index = f->args[2].t;
    int64_t sizes[TS_MAX_DIMS], dim;
    TS_TRY(positions_along(f, &dim, sizes));
    TS_TRY(ts_check_one_device(f));
    f->plan->compute = (ts_dtype)t->dtype;
    f->plan->dim = dim;
    f->plan->strided = saves_packing(t, index->numel, t->ndim ? t->sizes[dim] : 1);
    ts_plan_result(f->plan, 0, sizes, t->ndim, (ts_dtype)t->dtype, t->device);
    return TS_OK;
}

ts_status ts_infer_index_add(ts_frame *f)
{
    const ts_tensor *t = f->args[0].t;
    int64_t sizes[TS_MAX_DIMS], dim;
    TS_TRY(positions_along(f, &dim, sizes));
    TS_TRY(ts_check_dtype(f, 3, (ts_dtype)t->dtype));
    TS_TRY(ts_check_one_device(f));
    TS_TRY(ts_check_sizes(f, 3, sizes, t->ndim));
    f->plan->dim = dim;
    f->plan->operands = 1; /* bit 0: the result may be self */
    ts_plan_like(f->plan, t);
    return TS_OK;
}

/** Common shape rule of gather and the scatters: args are self, dim, index, ... */
static ts_status check_lines(ts_frame *f)
{
    const ts_tensor *t = f->args[0].t, *index = f->args[2].t;
    TS_TRY(ts_check_dim(f, 1, f->args[1].i, t->ndim, &f->plan->dim));
    TS_TRY(check_index(f, 2));
    TS_TRY(ts_check_one_device(f));
    TS_TRY(ts_check_ndim(f, 2, t->ndim));
    for (int d = 0; d < t->ndim && index->numel; d++)
        if (d != f->plan->dim && index->sizes[d] > t->sizes[d])
            return ts_fail_arg(f, 2, TS_ERR_SHAPE,
                               "expected sizes of at most %s in all dims but %lld, got %s",
                               TS_SIZES_TEXT(t), (long long)f->plan->dim, TS_SIZES_TEXT(index));
    f->plan->compute = (ts_dtype)t->dtype;
    return TS_OK;
}

ts_status ts_infer_gather(ts_frame *f)
{
    const ts_tensor *t = f->args[0].t, *index = f->args[2].t;
    TS_TRY(check_lines(f));
    f->plan->strided = saves_packing(t, index->numel, t->numel);
    ts_plan_result(f->plan, 0, index->sizes, index->ndim, (ts_dtype)t->dtype, t->storage->device);
    return TS_OK;
}

ts_status ts_infer_scatter(ts_frame *f)
{
    const ts_tensor *t = f->args[0].t, *index = f->args[2].t;
    TS_TRY(check_lines(f));
    if (f->args[3].tag == TS_TAG_TENSOR) {
        const ts_tensor *src = f->args[3].t;
        TS_TRY(ts_check_dtype(f, 3, (ts_dtype)t->dtype));
        TS_TRY(ts_check_ndim(f, 3, t->ndim));
        for (int d = 0; d < t->ndim && index->numel; d++)
            if (src->sizes[d] < index->sizes[d])
                return ts_fail_arg(f, 3, TS_ERR_SHAPE,
                                   "expected sizes of at least those of 'index', %s, got %s",
                                   TS_SIZES_TEXT(index), TS_SIZES_TEXT(src));
    }
    f->plan->operands = 1; /* bit 0: the result may be self */
    ts_plan_result_like(f->plan, 0, t, (ts_dtype)t->dtype);
    return TS_OK;
}

ts_status ts_infer_one_hot(ts_frame *f)
{
    TS_TRY(check_index(f, 0));
    if (f->args[1].i < 1)
        return ts_fail_arg(f, 1, TS_ERR_VALUE, "expected at least 1, got %lld",
                           (long long)f->args[1].i);
    f->plan->compute = TS_I64;
    return plan_rows(f, f->args[0].t, f->args[1].i, TS_I64);
}

/* -------------------------------------------------------------------------- public forms ---- */

ts_tensor *ts_take_along_dim(ts_tensor *self, ts_tensor *index, int dim)
{
    const void *site = __builtin_return_address(0);
    const char *op = "take_along_dim";
    TS_TRY_NULL(TS_CHECK_TENSORS(self, index));
    int n = self->ndim, nboth = 0;
    int64_t a[TS_MAX_DIMS], b[TS_MAX_DIMS], both[TS_MAX_DIMS];
    if (index->ndim != n) {
        ts_fail_op(TS_ERR_SHAPE, op, site, NULL,
                   "argument 'index': expected %d dims as argument 'self', got %d", n, index->ndim);
        return NULL;
    }
    if (!ts_dim_ok(&dim, n, op, "dim", site))
        return NULL;
    memcpy(a, self->sizes, sizeof a);
    memcpy(b, index->sizes, sizeof b);
    a[dim] = b[dim] = 1;
    if (!ts_broadcast(a, n, b, n, both, &nboth)) {
        ts_fail_op(
            TS_ERR_SHAPE, op, site, NULL,
            "argument 'index': expected sizes that broadcast with %s in all dims but %d, got %s",
            TS_SIZES_TEXT(self), dim, TS_SIZES_TEXT(index));
        return NULL;
    }
    TS_SCOPE;
    both[dim] = self->sizes[dim];
    ts_tensor *x = ts_expand(self, both, n);
    both[dim] = index->sizes[dim];
    ts_tensor *i = ts_expand(index, both, n);
    return x && i ? ts_keep(ts_gather(x, dim, i)) : NULL;
}
