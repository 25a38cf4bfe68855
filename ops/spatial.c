/** @file spatial.c  Lists of numbers per spatial dim, sliding windows, the channels-last layout. */
// SPDX-License-Identifier: MIT
#include "ops/spatial.h"
#include "core/checked.h"

ts_status ts_spatial_list(ts_frame *f, int arg, int n, int64_t least, int64_t *out)
{
    const ts_value *v = &f->args[arg];
    bool valid = v->count == 1 || v->count == (uint32_t)n;
    for (int d = 0; valid && d < n; d++) {
        out[d] = ts_spatial_number(v, d);
        valid = out[d] >= least && out[d] <= INT32_MAX;
    }
    return valid ? TS_OK
                 : ts_fail_arg(f, arg, TS_ERR_VALUE,
                               "expected %d number%s from %lld to 2147483647%s, got %s", n,
                               n == 1 ? "" : "s", (long long)least,
                               v->count == (uint32_t)n ? "" : ", or one for all spatial dims",
                               TS_LIST_TEXT(v->ints, ts_min64(v->count, TS_MAX_DIMS)));
}

ts_status ts_check_spatial_unused(ts_check_place at, const int64_t *numbers, int n)
{
    for (int i = 0; i < n; i++)
        if (numbers[i])
            return ts_check_refuse(at, "opts", "0 in lists after the last spatial dim",
                                   ts_scalar_int(numbers[i]));
    return TS_OK;
}

int64_t ts_window_count(int64_t size, int64_t kernel, int64_t stride, int64_t dilation,
                        int64_t before, int64_t after, bool ceil)
{
    int64_t extent = dilation * (kernel - 1) + 1, room = ceil ? stride - 1 : 0, range;
    if (!ts_add_size(size, before + after, &range) || range + room < extent ||
        range > INT64_MAX / 2)
        return 0;
    int64_t last = (range - extent + room) / stride;
    /* a window that begins in `after` would see no element */
    return last + (!ceil || last * stride < size + before);
}

bool ts_is_channels_last(const ts_tensor *t)
{
    if (t->ndim < 3 || t->ndim > 2 + TS_MAX_SPATIAL || t->strides[1] == 0)
        return false;
    int64_t least = 0;
    for (int k = 0; k < t->ndim; k++) { /* channels, spatial dims from the last, batch */
        int d = k == 0 ? 1 : k == t->ndim - 1 ? 0 : t->ndim - k;
        if (t->sizes[d] == 0 || t->strides[d] < least)
            return false;
        /* (N, 1, 1, ...) with equal strides fits both layouts and counts as contiguous */
        if (d == 0 && least == t->strides[1])
            return false;
        least = t->strides[d] * (t->sizes[d] > 1 ? t->sizes[d] : 1);
    }
    return true;
}

void ts_plan_channels_last(ts_plan *plan, int i, int ndim)
{
    plan->order[0] = 0;
    for (int d = 2; d < ndim; d++)
        plan->order[d - 1] = (uint8_t)d;
    plan->order[ndim - 1] = 1;
    plan->ordered |= (uint8_t)(1u << i);
}

void ts_plan_layout(ts_frame *f, int like, uint32_t args, uint32_t rets)
{
    if (!ts_is_channels_last(f->args[like].t))
        return;
    for (int i = 0; i < f->nargs; i++)
        if ((args >> i & 1) && f->args[i].tag == TS_TAG_TENSOR)
            f->plan->last |= (uint16_t)(1u << i);
    for (int i = 0; i < f->nrets; i++)
        if (rets >> i & 1)
            ts_plan_channels_last(f->plan, i, f->plan->ret[i].ndim);
}
