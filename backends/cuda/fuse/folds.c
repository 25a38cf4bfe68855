/**
 * @file folds.c
 * Fused groups with folds: reductions of adjacent dims, such as sums of all
 * elements, means over the first dims and maxima of long rows, with pointwise calls before and
 * after them.
 *
 * The group's kernel computes the elements of the space, each once, and reduces them in the order
 * of the eager kernel. Where blocks share the elements of a result, they store states, and a second
 * kernel merges these and applies the calls on results.
 */
// SPDX-License-Identifier: MIT
#include "backends/cuda/fuse/fuse.h"

#include <string.h>

/** An op and its fold. mean: the fold multiplies by 1 / count. fold_of() has the folds of norm. */
static const struct {
    const char *op, *fold;
    bool mean;
} folds[] = {
    {"sum", "plain_fold<W, op_add, keep>{1, false}", false},
    {"sum_to_size", "plain_fold<W, op_add, keep>{1, false}", false},
    {"mean", "plain_fold<W, op_add, keep>{factor, false}", true},
    {"prod", "plain_fold<W, op_multiply, keep>{1, false}", false},
    {"amax", "extreme_fold<T>{turning<ranked_t<T>>(false)}", false},
    {"amin", "extreme_fold<T>{turning<ranked_t<T>>(true)}", false},
};

/** The fold of a reduction, NULL if there is none; *mean as in folds[]. */
static const char *fold_of(const ts_frame *f, bool *mean)
{
    const char *name = ts_op_name(f->op);
    *mean = false;
    if (strcmp(name, "norm") == 0)
        return f->args[3].d == 1   ? "plain_fold<W, op_add, absolute>{1, false}"
               : f->args[3].d == 2 ? "plain_fold<W, op_add, squared>{1, true}"
                                   : "plain_fold<W, op_largest, absolute>{1, false}";
    for (size_t i = 0; i < sizeof folds / sizeof *folds; i++)
        if (strcmp(folds[i].op, name) == 0) {
            *mean = folds[i].mean;
            return folds[i].fold;
        }
    return NULL;
}

/** Numbers of elements before, in and after the dims of t in `mask`. False if these dims have fewer
 *  than two elements or are not adjacent; dims of size 1 do not count. */
static bool split(const ts_tensor *t, int64_t mask, int64_t *outer, int64_t *count, int64_t *inner)
{
    *outer = *count = *inner = 1;
    for (int d = 0; d < ts_ndim(t); d++) {
        int64_t size = ts_sizes(t)[d];
        if (size == 1)
            continue;
        if (!(mask >> d & 1))
            *(*count == 1 ? outer : inner) *= size;
        else if (*inner != 1)
            return false;
        else
            *count *= size;
    }
    return *count > 1;
}

bool ts_cuda_group_fold(ts_cuda_group *g, ts_cuda_group_call *call, ts_frame *f)
{
    const ts_tensor *x = f->args[0].t;
    ts_dtype dtype = ts_dtype_of(x);
    int64_t outer, count, inner;
    bool mean;
    call->fold = fold_of(f, &mean);
    if (!call->fold || !ts_dtype_is_float(dtype) || dtype != ts_kernel_dtype(f) ||
        dtype != ts_dtype_of(f->rets[0].t) || !ts_is_contiguous(x) ||
        !ts_is_contiguous(f->rets[0].t) || !split(x, ts_kernel_reduced(f), &outer, &count, &inner))
        return false;
    ts_cuda_group_folds d = {.results = (uint64_t)(outer * inner), .inner = (uint64_t)inner,
                             .count = (uint64_t)count};
    if (g->folds && (g->fold_dtype != dtype || g->division.results != d.results ||
                     g->division.inner != d.inner || g->division.count != d.count))
        return false;
    if (!g->folds)
        g->space = x;
    g->folds = true;
    g->fold_dtype = (uint8_t)dtype;
    g->division = d;
    call->factor = mean ? 1.0 / (double)count : 1;
    call->compute = (uint8_t)dtype;
    call->formula.names = call->fold;
    call->formula.operands = 2;
    call->value[1] = (int16_t)ts_cuda_group_value_of(g, x);
    call->value[0] = (int16_t)ts_cuda_group_value_of(g, f->rets[0].t);
    return true;
}

/** True if t is contiguous with as many elements as there are results, or has one. */
static bool is_of_results(const ts_cuda_group *g, const ts_tensor *t)
{
    return ts_is_contiguous(t) &&
           (ts_numel(t) == 1 || ts_numel(t) == (int64_t)g->division.results);
}

/** True if t is contiguous with as many elements as the space, or is broadcast to it. */
static bool is_of_space(const ts_cuda_group *g, const ts_tensor *t)
{
    int shift = ts_ndim(g->space) - ts_ndim(t);
    if (ts_numel(t) == ts_numel(g->space))
        return ts_is_contiguous(t);
    for (int d = 0; d < ts_ndim(t); d++)
        if (shift < 0 || (ts_sizes(t)[d] != 1 && ts_sizes(t)[d] != ts_sizes(g->space)[d + shift]))
            return false;
    return true;
}

bool ts_cuda_group_sort_folds(ts_cuda_group *g)
{
    int64_t numel = ts_numel(g->space);
    for (int i = 0; i < g->nvalues; i++)
        g->values[i].read = g->values[i].written = false;
    for (int c = 0; c < g->ncalls; c++) {
        ts_cuda_group_call *call = &g->calls[c];
        ts_cuda_group_value *result = &g->values[call->value[0]];
        call->late = !call->fold && ts_numel(result->tensor) != numel;
        for (int k = 1; k < call->formula.operands; k++) {
            ts_cuda_group_value *v = call->value[k] < 0 ? NULL : &g->values[call->value[k]];
            if (!v)
                continue;
            if (!(call->late ? is_of_results(g, v->tensor) : is_of_space(g, v->tensor)))
                return false;
            *(call->late ? &v->late : &v->read) |=
                v->data && !(call->late ? v->stored : v->written);
        }
        bool fits = call->fold || call->late
                        ? ts_numel(result->tensor) == (int64_t)g->division.results &&
                              ts_is_contiguous(result->tensor)
                        : is_of_space(g, result->tensor);
        if (!fits || (call->late && call->formula.draws))
            return false;
        *(call->fold || call->late ? &result->stored : &result->written) = result->data != NULL;
    }
    return true;
}

int64_t ts_cuda_group_parts(const ts_cuda_group *g)
{
    int64_t item = g->fold_dtype == TS_F64 ? 8 : 4;
    return g->direct ? 0
                     : item * (int64_t)g->division.results * (int64_t)g->division.shares;
}

/** True if all tensors of the space can be accessed a piece at a time. */
static bool is_wide(const ts_cuda_group *g)
{
    if (g->sizes[0] % g->piece)
        return false;
    for (int i = 0; i < g->nvalues; i++) {
        const ts_cuda_group_value *v = &g->values[i];
        int64_t bytes = (int64_t)v->item * g->piece;
        if (!(v->read || v->written) || v->strides[0] == 0)
            continue;
        if (v->strides[0] != v->item || bytes > 16 || (uintptr_t)v->data % (uint64_t)bytes)
            return false;
        for (int d = 1; d < g->ndim; d++)
            if (v->strides[d] % bytes)
                return false;
    }
    return true;
}

void ts_cuda_group_lay_folds(ts_cuda_group *g)
{
    int item = (int)ts_dtype_size((ts_dtype)g->fold_dtype);
    ts_cuda_group_folds *d = &g->division;
    g->piece = 16 / item < 8 ? 16 / item : 8;
    ts_cuda_divide_folds(d, g->piece, item);
    bool wide = d->vector && is_wide(g);
    g->vector = d->vector;
    g->width = wide ? g->piece : 1;
    g->unroll = wide ? 4 : g->vector || d->beside ? g->piece : 8;
    /* a thread has whole results, or one that its group of threads has reduced */
    g->direct = d->shares == 1 && (!d->beside || d->group == TS_CUDA_GROUP_THREADS);
    for (int i = 0; i < g->nvalues; i++) {
        ts_cuda_group_value *v = &g->values[i];
        if (!v->read && !v->written && v->data)
            v->way = TS_CUDA_ARRAY; /* of results */
        g->direct &= !(v->stored && v->read); /* other blocks may still load it */
    }
    g->blocks = (int64_t)d->blocks * d->shares;
}
