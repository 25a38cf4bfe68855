/** @file cat.c  Shape rules of cat and stack. plan->dim is the dim along which they join. */
// SPDX-License-Identifier: MIT
#include "include/tessera/ops.h"
#include "ops/ops.h"
#include "ops/spatial.h"

#include <string.h>

/** An empty 1-dim tensor is ignored, as in PyTorch. */
static bool skipped(const ts_tensor *t) { return t->ndim == 1 && t->sizes[0] == 0; }

/** Common checks of cat and stack. *like: the member with the expected sizes, which is the first,
 * or with `skip` the first that is not skipped(). *dtype: the promoted dtype of all members. */
static ts_status check_members(ts_frame *f, bool skip, const ts_tensor **like, ts_dtype *dtype)
{
    const ts_value *v = &f->args[0];
    if (v->count == 0)
        return ts_fail_arg(f, 0, TS_ERR_VALUE, "expected at least one tensor, got an empty list");
    TS_TRY(ts_check_one_device(f));
    *like = v->list[0];
    *dtype = (ts_dtype)v->list[0]->dtype;
    for (uint32_t i = 0; i < v->count; i++) {
        *dtype = ts_dtype_promote(*dtype, (ts_dtype)v->list[i]->dtype);
        if (skip && skipped(*like))
            *like = v->list[i];
    }
    return TS_OK;
}

ts_status ts_infer_cat(ts_frame *f)
{
    const ts_value *v = &f->args[0];
    const ts_tensor *like;
    ts_dtype dtype;
    int64_t sizes[TS_MAX_DIMS], total = 0, dim;
    TS_TRY(check_members(f, true, &like, &dtype));
    if (like->ndim == 0)
        return ts_fail_arg_hint(f, 0, TS_ERR_SHAPE, "use ts_stack()",
                                "expected tensors with dims, got a 0-dim tensor");
    TS_TRY(ts_check_dim(f, 1, f->args[1].i, like->ndim, &dim));
    memcpy(sizes, like->sizes, sizeof sizes);
    for (uint32_t i = 0; i < v->count; i++) {
        const ts_tensor *t = v->list[i];
        if (skipped(t))
            continue;
        bool fits = t->ndim == like->ndim;
        for (int d = 0; fits && d < like->ndim; d++)
            fits = d == dim || t->sizes[d] == like->sizes[d];
        if (!fits || !ts_add_size(total, t->sizes[dim], &total))
            return ts_fail_member(f, 0, i, TS_ERR_SHAPE, NULL,
                                  "expected sizes %s in all dims but %lld, got %s",
                                  TS_SIZES_TEXT(like), (long long)dim, TS_SIZES_TEXT(t));
    }
    sizes[dim] = total;
    f->plan->compute = dtype;
    f->plan->dim = dim;
    ts_plan_result(f->plan, 0, sizes, like->ndim, dtype, like->storage->device);
    /* Channels-last if all members are. PyTorch does so for 4 and 5 dims only; here results of
     * convolutions over one dim, which have 3 dims, can be channels-last too. */
    bool last = like->ndim >= 3;
    for (uint32_t i = 0; i < v->count && last; i++)
        last = skipped(v->list[i]) || ts_is_channels_last(v->list[i]);
    if (last)
        ts_plan_channels_last(f->plan, 0, like->ndim);
    return TS_OK;
}

/** Plans the layout that PyTorch gives to a stack of channels-last images of 4 or 5 dims: that of
 *  their cat along `dim`, in which the new dim precedes dim `dim` of the images in memory. */
static void keep_images(ts_frame *f, int dim, int ndim)
{
    static const uint8_t images[2][5] = {{0, 2, 3, 1}, {0, 2, 3, 4, 1}};
    const ts_value *v = &f->args[0];
    uint8_t *to = f->plan->order;
    bool last = ndim >= 4 && dim < ndim;
    for (uint32_t i = 0; i < v->count && last; i++)
        last = ts_is_channels_last(v->list[i]);
    for (int k = 0; k < ndim && last; k++) {
        int d = images[ndim - 4][k];
        if (d == dim)
            *to++ = (uint8_t)dim;
        *to++ = (uint8_t)(d + (d >= dim));
    }
    f->plan->ordered |= last;
}

ts_status ts_infer_stack(ts_frame *f)
{
    const ts_value *v = &f->args[0];
    const ts_tensor *like;
    ts_dtype dtype;
    int64_t sizes[TS_MAX_DIMS], dim;
    TS_TRY(check_members(f, false, &like, &dtype));
    if (like->ndim == TS_MAX_DIMS)
        return ts_fail_arg(f, 0, TS_ERR_SHAPE, "expected tensors of fewer than %d dims, got %d",
                           TS_MAX_DIMS, like->ndim);
    TS_TRY(ts_check_dim(f, 1, f->args[1].i, like->ndim + 1, &dim));
    for (uint32_t i = 1; i < v->count; i++) {
        const ts_tensor *t = v->list[i];
        if (t->ndim != like->ndim || memcmp(t->sizes, like->sizes, t->ndim * sizeof *t->sizes) != 0)
            return ts_fail_member(f, 0, i, TS_ERR_SHAPE, NULL, "expected sizes %s, got %s",
                                  TS_SIZES_TEXT(like), TS_SIZES_TEXT(t));
    }
    for (int d = 0; d <= like->ndim; d++)
        sizes[d] = d == dim ? v->count : like->sizes[d - (d > dim)];
    f->plan->compute = dtype;
    f->plan->dim = dim;
    ts_plan_result(f->plan, 0, sizes, like->ndim + 1, dtype, like->storage->device);
    keep_images(f, (int)dim, like->ndim);
    return TS_OK;
}
