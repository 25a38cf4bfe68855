/**
 * @file cost.c  The minimum work of a call, by kind of operator.
 *
 * Each element of an argument counts as read once, also if broadcasting repeats it or if two
 * arguments are the same tensor; each element of a result counts as written once. An argument that
 * the call writes counts as read and written.
 */
// SPDX-License-Identifier: MIT
#include "ops/ops.h"

/** Number of elements of t with distinct addresses. */
static double distinct(const ts_tensor *t)
{
    double n = t->numel > 0;
    for (int d = 0; d < t->ndim; d++)
        n *= t->strides[d] || t->sizes[d] <= 1 ? (double)t->sizes[d] : 1;
    return n;
}

static double bytes_of(const ts_tensor *t)
{
    return distinct(t) * (double)ts_dtype_sizes[t->dtype];
}

/** Bytes and largest number of elements of a value's tensors. */
static double value_bytes(const ts_value *v, double *elements)
{
    double bytes = 0;
    uint32_t count = v->tag == TS_TAG_TENSORS ? v->count : v->tag == TS_TAG_TENSOR;
    for (uint32_t k = 0; k < count; k++) {
        const ts_tensor *t = v->tag == TS_TAG_TENSORS ? v->list[k] : v->t;
        if (t == TS_NONE)
            continue;
        bytes += bytes_of(t);
        *elements = *elements < (double)t->numel ? (double)t->numel : *elements;
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
    double bytes = 0;
    *elements = 0;
    for (int i = 0; i < f->nargs; i++) {
        int passes = !is_repeated(f, i) + (f->table->written >> i & 1);
        bytes += value_bytes(&f->args[i], elements) * passes;
    }
    for (int i = 0; i < f->nrets; i++)
        bytes += value_bytes(&f->rets[i], elements);
    return bytes;
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
    double elements = 0, bytes = 0;
    for (int i = 1; i < f->nargs; i++)
        bytes += value_bytes(&f->args[i], &elements);
    return (ts_work){0, bytes + 2 * value_bytes(&f->rets[0], &elements)};
}
