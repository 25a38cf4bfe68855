/**
 * @file cost.c  The minimum work of a call, by kind of operator.
 *
 * Each element of an argument counts as read once, also if broadcasting repeats it or if two
 * arguments are the same tensor; each element of a result counts as written once. An argument that
 * the call writes counts as read and written.
 */
// SPDX-License-Identifier: MIT
#include "ops/ops.h"

/** Bytes of t's elements with distinct addresses. */
static int64_t bytes_of(const ts_tensor *t)
{
    int64_t n = t->numel;
    if (!(t->flags & TS_TENSOR_CONTIGUOUS)) {
        n = t->numel > 0;
        for (int d = 0; d < t->ndim; d++)
            n *= t->strides[d] || t->sizes[d] <= 1 ? t->sizes[d] : 1;
    }
    return n * ts_dtype_sizes[t->dtype];
}

/** Bytes of a value's tensors; raises *elements to their largest number of elements. */
TS_INLINE int64_t value_bytes(const ts_value *v, int64_t *elements)
{
    if (TS_LIKELY(v->tag == TS_TAG_TENSOR)) {
        if (v->t == TS_NONE)
            return 0;
        *elements = ts_max64(*elements, v->t->numel);
        return bytes_of(v->t);
    }
    int64_t bytes = 0;
    for (uint32_t k = 0; v->tag == TS_TAG_TENSORS && k < v->count; k++) {
        if (v->list[k] == TS_NONE)
            continue;
        *elements = ts_max64(*elements, v->list[k]->numel);
        bytes += bytes_of(v->list[k]);
    }
    return bytes;
}

/** True if argument i is a tensor with the same elements as an earlier argument. */
static bool is_repeated(const ts_frame *f, int i)
{
    const ts_tensor *t = f->args[i].t;
    if (f->args[i].tag != TS_TAG_TENSOR || !t->data)
        return false;
    for (int k = 0; k < i; k++) {
        const ts_tensor *other = f->args[k].t;
        if (f->args[k].tag == TS_TAG_TENSOR && other->data == t->data &&
            other->numel == t->numel && other->dtype == t->dtype)
            return true;
    }
    return false;
}

double ts_cost_bytes(const ts_frame *f, double *elements)
{
    int64_t bytes = 0, most = 0;
    for (int i = 0; i < f->nargs; i++) {
        int passes = !is_repeated(f, i) + (f->table->written >> i & 1);
        bytes += value_bytes(&f->args[i], &most) * passes;
    }
    for (int i = 0; i < f->nrets; i++)
        bytes += value_bytes(&f->rets[i], &most);
    *elements = (double)most;
    return (double)bytes;
}

ts_work ts_cost_alias(const ts_frame *f)
{
    (void)f;
    return (ts_work){0, 0};
}

ts_work ts_cost_each(const ts_frame *f)
{
    double elements, bytes = ts_cost_bytes(f, &elements);
    return (ts_work){(double)f->table->info->each * elements, bytes};
}

/** The op reads only as many elements of the first argument as the result has. */
ts_work ts_cost_gathered(const ts_frame *f)
{
    int64_t elements = 0, bytes = 0;
    for (int i = 1; i < f->nargs; i++)
        bytes += value_bytes(&f->args[i], &elements);
    return (ts_work){0, (double)(bytes + 2 * value_bytes(&f->rets[0], &elements))};
}
