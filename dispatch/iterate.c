/** @file iterate.c  Iteration spaces of pointwise ops: broadcasting, collapsed dims, numbers. */
// SPDX-License-Identifier: MIT
#include "core/convert.h"
#include "dispatch/op.h"

#include <string.h>

void ts_scalar_store(const ts_value *number, ts_dtype dtype, void *element)
{
    if (TS_CHECK_POINTERS(number, element) != TS_OK)
        return;
    bool real = number->tag == TS_TAG_FLOAT;
    double d = real ? number->d : (double)number->i;
    /* for bf16 and f16: f32 rounded to odd, so that the second rounding gives the right half */
    float single = real ? ts_odd_f32(number->d) : ts_odd_f32_of(number->i);
    int64_t i;
    switch (dtype) {
    case TS_F64: memcpy(element, &d, 8); break;
    case TS_F32: *(float *)element = (float)d; break;
    case TS_BF16: *(uint16_t *)element = ts_f32_to_bf16(single); break;
    case TS_F16: *(uint16_t *)element = ts_f32_to_f16(single); break;
    case TS_I64:
        i = real ? ts_trunc_i64(d) : number->i;
        memcpy(element, &i, 8);
        break;
    case TS_I32: *(int32_t *)element = real ? ts_trunc_i32(d) : (int32_t)number->i; break;
    case TS_U8: *(uint8_t *)element = (uint8_t)(real ? ts_trunc_i64(d) : number->i); break;
    default: *(uint8_t *)element = real ? d != 0 : number->i != 0;
    }
}

ts_value ts_scalar_load(const void *element, ts_dtype dtype)
{
    double d;
    int64_t i;
    switch (dtype) {
    case TS_F64: memcpy(&d, element, 8); return ts_value_float(d);
    case TS_F32: return ts_value_float(*(const float *)element);
    case TS_BF16: return ts_value_float(ts_bf16_to_f32(*(const uint16_t *)element));
    case TS_F16: return ts_value_float(ts_f16_to_f32(*(const uint16_t *)element));
    case TS_I64: memcpy(&i, element, 8); return ts_value_int(i);
    case TS_I32: return ts_value_int(*(const int32_t *)element);
    default: return ts_value_int(*(const uint8_t *)element);
    }
}

/** 1 if dim d is outside of dim e in memory, -1 if inside, 0 if no operand decides. */
static int compare_strides(const ts_iter *it, int operands, int d, int e)
{
    for (int k = 0; k < operands; k++) {
        int64_t outer = it->strides[d][k], inner = it->strides[e][k];
        if (outer && inner && outer != inner)
            return outer > inner ? 1 : -1;
    }
    return 0;
}

bool ts_iter_order(const ts_iter *it, int ndim, int operands, uint8_t *order)
{
    bool moved = false;
    for (int d = 0; d < ndim; d++) {
        int at = d;
        for (int e = d; e-- > 0;) {
            int sign = compare_strides(it, operands, d, order[e]);
            if (sign < 0)
                break;
            at = sign > 0 ? e : at;
        }
        memmove(order + at + 1, order + at, (size_t)(d - at));
        order[at] = (uint8_t)d;
        moved |= at != d;
    }
    return moved;
}

void ts_iter_strides(ts_iter *it, int k, const ts_tensor *t, int ndim, int item)
{
    for (int d = 0, s = t->ndim - ndim; d < ndim; d++, s++)
        it->strides[d][k] = s < 0 || t->sizes[s] == 1 ? 0 : t->strides[s] * item;
}

void ts_iter_collapse(ts_iter *it, const int64_t *sizes, int ndim, bool in_order)
{
    int n = 0;
    int64_t steps[TS_MAX_DIMS][TS_MAX_OPERANDS];
    uint8_t order[TS_MAX_DIMS];
    if (!in_order)
        ts_iter_order(it, ndim, 1, order);
    for (int at = ndim - 1; at >= 0; at--) {
        int d = in_order ? at : order[at];
        if (sizes[d] == 1)
            continue;
        bool merge = n > 0;
        for (int k = 0; merge && k < it->operands; k++)
            merge = it->strides[d][k] == steps[n - 1][k] * it->sizes[n - 1];
        if (merge) {
            it->sizes[n - 1] *= sizes[d];
            continue;
        }
        it->sizes[n] = sizes[d];
        memcpy(steps[n++], it->strides[d], sizeof *steps);
    }
    if (n == 0) { /* one element */
        it->sizes[0] = 1;
        memset(steps[n++], 0, sizeof *steps);
    }
    it->ndim = n;
    memcpy(it->strides, steps, (size_t)n * sizeof *steps);
}

void ts_plan_iterate(ts_frame *f)
{
    ts_plan *plan = f->plan;
    ts_iter *it = &plan->iter;
    const ts_tensor *result = f->rets[0].t, *tensors[TS_MAX_OPERANDS];
    bool flat = result->flags & TS_TENSOR_CONTIGUOUS;
    int n = 1;
    tensors[0] = result;
    it->numel = result->numel;
    it->data[0] = result->data;
    it->strides[0][0] = ts_dtype_sizes[result->dtype];
    for (unsigned left = plan->operands; left; left &= left - 1) {
        const ts_value *v = &f->args[__builtin_ctz(left)];
        if (v->tag == TS_TAG_NONE)
            continue;
        const ts_tensor *t = tensors[n] = v->tag == TS_TAG_TENSOR ? v->t : NULL;
        if (!t) {
            ts_scalar_store(v, plan->compute, &plan->scalars[n]);
            it->data[n] = (char *)&plan->scalars[n];
        } else {
            it->data[n] = t->data;
            flat = flat && (t->numel == 1 || ((t->flags & TS_TENSOR_CONTIGUOUS) &&
                                              t->numel == result->numel));
        }
        it->strides[0][n++] = t && t->numel != 1 ? ts_dtype_sizes[t->dtype] : 0;
    }
    it->operands = n;
    if (TS_LIKELY(flat)) {
        it->ndim = 1;
        it->sizes[0] = it->numel;
        return;
    }
    plan->ragged = true;
    for (int k = 0; k < n; k++)
        if (tensors[k]) {
            it->items[k] = ts_dtype_sizes[tensors[k]->dtype];
            ts_iter_strides(it, k, tensors[k], result->ndim, it->items[k]);
        } else {
            for (int d = 0; d < result->ndim; d++)
                it->strides[d][k] = 0;
        }
    /* loops write memory in order, whatever the result's strides */
    ts_iter_collapse(it, result->sizes, result->ndim,
                     result->flags & TS_TENSOR_CONTIGUOUS ||
                         plan->pointwise == TS_POINTWISE_IN_ORDER);
}
