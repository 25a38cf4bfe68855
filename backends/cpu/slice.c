/** @file slice.c  slice_scatter and slice_backward: a copy of a tensor, or zeros, of which one
 * slice is replaced. plan->dim, start and step describe the slice. */
// SPDX-License-Identifier: MIT
#include "backends/cpu/copy.h"
#include "ops/kernel.h"

/** Copies src into the slice of out. */
static void put(const ts_plan *plan, ts_tensor *out, const ts_tensor *src)
{
    int64_t strides[TS_MAX_DIMS];
    memcpy(strides, out->strides, sizeof strides);
    char *to = out->data + plan->start * strides[plan->dim] * ts_dtype_sizes[out->dtype];
    strides[plan->dim] *= plan->step;
    TS_V(ts_cpu_copy_part)(to, strides, (ts_dtype)out->dtype, src->data, src->strides,
                           (ts_dtype)src->dtype, src->sizes, src->ndim);
}

/** Positions start, start + step, ... along dim that the slice does not cover. */
typedef struct rest {
    int64_t start, length, step;
} rest;

/** Returns part i of the positions along dim outside the slice: the positions before the slice, the
 * positions after it, then one part per gap of the step. A part may have length 0. */
static rest rest_of(const ts_plan *plan, int64_t n, int64_t length, int64_t i)
{
    int64_t start = plan->start, step = plan->step,
            end = start + (length ? (length - 1) * step + 1 : 0);
    if (i == 0)
        return (rest){0, start, 1};
    if (i == 1)
        return (rest){end, n - end, 1};
    int64_t gap = i - 1; /* between the slice's elements */
    return (rest){start + gap, length - 1, step};
}

/** Copies `keep` (zeros if NULL) to the elements of out outside the slice, which has `length`
 * elements along its dim. May also write elements of the slice, so call put() afterwards. */
static void fill_rest(const ts_plan *plan, ts_tensor *out, const ts_tensor *keep, int64_t length)
{
    static const char zeros[8];
    int64_t dim = plan->dim, none[TS_MAX_DIMS] = {0}, parts = length > 1 ? plan->step + 1 : 2;
    int64_t item = ts_dtype_sizes[out->dtype];
    if (plan->step > 1 && (!keep || keep->data != out->data)) {
        /* copies all elements in long runs; put() then overwrites those of the slice */
        TS_V(ts_cpu_copy_part)(out->data, out->strides, (ts_dtype)out->dtype,
                               keep ? keep->data : zeros, keep ? keep->strides : none,
                               (ts_dtype)out->dtype, out->sizes, out->ndim);
        return;
    }
    for (int64_t i = 0; i < parts; i++) {
        rest r = rest_of(plan, out->sizes[dim], length, i);
        int64_t sizes[TS_MAX_DIMS], to[TS_MAX_DIMS], from[TS_MAX_DIMS];
        memcpy(sizes, out->sizes, sizeof sizes);
        memcpy(to, out->strides, sizeof to);
        memcpy(from, keep ? keep->strides : none, sizeof from);
        sizes[dim] = r.length;
        to[dim] *= r.step;
        const char *source = keep ? keep->data + r.start * from[dim] * item : zeros;
        from[dim] *= r.step;
        TS_V(ts_cpu_copy_part)(out->data + r.start * out->strides[dim] * item, to,
                               (ts_dtype)out->dtype, source, from, (ts_dtype)out->dtype, sizes,
                               out->ndim);
    }
}

static ts_status slice_backward(ts_frame *f)
{
    const ts_tensor *g = f->args[0].t;
    ts_tensor *out = f->rets[0].t;
    fill_rest(f->plan, out, NULL, g->sizes[f->plan->dim]);
    put(f->plan, out, g);
    return TS_OK;
}

static ts_status slice_scatter(ts_frame *f)
{
    const ts_tensor *src = f->args[1].t;
    ts_tensor *out = f->rets[0].t;
    fill_rest(f->plan, out, f->args[0].t, src->sizes[f->plan->dim]);
    put(f->plan, out, src);
    return TS_OK;
}

TS_CPU_FAMILY(slice,
    {TS_OP_slice_backward, slice_backward, {0, 1}},
    {TS_OP_slice_scatter, slice_scatter, {0, 1}})
