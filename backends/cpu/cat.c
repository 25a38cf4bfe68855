/** @file cat.c  cat and stack: copies each member to its part of the result. */
// SPDX-License-Identifier: MIT
#include "backends/cpu/copy.h"
#include "ops/kernel.h"

/** Copies t to the part of out that begins at `to`. strides: those of the part's dims. */
static void copy_member(ts_tensor *out, char *to, const int64_t *strides, const ts_tensor *t)
{
    TS_V(ts_cpu_copy_part)(to, strides, (ts_dtype)out->dtype, t->data, t->strides,
                           (ts_dtype)t->dtype, t->sizes, t->ndim);
}

static ts_status cat(ts_frame *f)
{
    const ts_value *list = &f->args[0];
    ts_tensor *out = f->rets[0].t;
    int64_t dim = f->plan->dim, step = out->strides[dim] * ts_dtype_sizes[out->dtype];
    char *to = out->data;
    for (uint32_t i = 0; i < list->count; i++) {
        const ts_tensor *t = list->list[i];
        if (t->ndim != out->ndim || !t->numel)
            continue; /* an empty member, which may have one dim, as in PyTorch */
        copy_member(out, to, out->strides, t);
        to += t->sizes[dim] * step;
    }
    return TS_OK;
}

static ts_status stack(ts_frame *f)
{
    const ts_value *list = &f->args[0];
    ts_tensor *out = f->rets[0].t;
    int64_t strides[TS_MAX_DIMS], dim = f->plan->dim,
            step = out->strides[dim] * ts_dtype_sizes[out->dtype];
    for (int d = 0; d + 1 < out->ndim; d++)
        strides[d] = out->strides[d + (d >= dim)];
    for (uint32_t i = 0; i < list->count; i++)
        copy_member(out, out->data + i * step, strides, list->list[i]);
    return TS_OK;
}

TS_CPU_FAMILY(cat,
    {TS_OP_cat, cat, {0, 1}},
    {TS_OP_stack, stack, {0, 1}})
