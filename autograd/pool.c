/** @file pool.c  Gradient rules of max pools: a gradient is added at the index of its maximum. */
// SPDX-License-Identifier: MIT
#include "ops/ops.h"
#include "ops/spatial.h"
#include "autograd/rule.h"

/** Gives argument 0 its gradient by max_pool_backward over n spatial dims. window: arguments 1 to 4
 * are kernel, stride, padding and dilation; false for adaptive pools, which have none. */
static ts_status to_indices(ts_vjp_call *b, int n, bool window)
{
    ts_meta m = ts_rule_arg_meta(b, 0);
    ts_value none = {.tag = TS_TAG_INTS};
    ts_value args[7] = {ts_value_tensor(GRAD(0)), ts_value_tensor(RET(1)),
                        {.tag = TS_TAG_INTS, .count = (uint32_t)n,
                         .ints = (int64_t *)m.sizes + m.ndim - n}};
    for (int i = 0; i < 4; i++)
        args[3 + i] = window ? *ts_rule_arg(b, 1 + i) : none;
    TS_TRY(args[1].t);
    args[0].t = ts_rule_in_layout_of(args[0].t, args[1].t);
    TS_TRY(args[0].t);
    return ts_rule_give(b, 0, ts_invoke(TS_OP_max_pool_backward, args, 7, 1));
}

static ts_status max_pool(ts_vjp_call *b)
{
    return to_indices(b, (int)ts_rule_arg(b, 1)->count, true);
}
const ts_vjp ts_vjp_max_pool = {.rule = max_pool, .always = READS_RET(1)};

static ts_status adaptive_max_pool(ts_vjp_call *b)
{
    return to_indices(b, (int)ts_rule_arg(b, 1)->count, false);
}
const ts_vjp ts_vjp_adaptive_max_pool = {.rule = adaptive_max_pool, .always = READS_RET(1)};

/** The gradient that other users of self have given is added in the same kernel. */
static ts_status max_pool_taps(ts_vjp_call *b)
{
    ts_meta m = ts_rule_arg_meta(b, 0);
    ts_tensor *taps = RET(1), *g = GRAD(0), *added;
    TS_TRY(taps);
    if (!g)
        return TS_OK;
    TS_TRY(g = ts_rule_in_layout_of(g, taps));
    int n = (int)ts_rule_arg(b, 1)->count;
    added = ts_rule_take(b, 0, g);
    ts_value args[8] = {ts_value_tensor(g), ts_value_tensor(taps),
                        added ? ts_value_tensor(added) : ts_value_none(),
                        {.tag = TS_TAG_INTS, .count = (uint32_t)n,
                         .ints = (int64_t *)m.sizes + m.ndim - n}};
    for (int i = 0; i < 4; i++)
        args[4 + i] = *ts_rule_arg(b, 1 + i);
    return ts_rule_give(b, 0, ts_invoke(TS_OP_max_pool_taps_backward, args, 8, 1));
}
const ts_vjp ts_vjp_max_pool_taps = {.rule = max_pool_taps, .always = READS_RET(1)};

/** The elements of h at the taps: for each tap, the part of the padded h that this tap of all
 *  windows reads, where it is the maximum. */
static ts_tensor *at_taps(ts_vjp_call *b, ts_tensor *h, ts_tensor *taps)
{
    const ts_value *lists[] = {ts_rule_arg(b, 4), ts_rule_arg(b, 5), ts_rule_arg(b, 6),
                               ts_rule_arg(b, 7)};
    int n = (int)ts_rule_arg(b, 3)->count, lead = h->ndim - n;
    int64_t numbers[4][TS_MAX_SPATIAL], pads[2 * TS_MAX_SPATIAL], all = 1;
    for (int d = 0; d < n; d++) {
        for (int k = 0; k < 4; k++)
            numbers[k][d] = ts_spatial_number(lists[k], d);
        int64_t kernel = numbers[0][d], last = (taps->sizes[lead + d] - 1) * numbers[1][d] +
                                               numbers[3][d] * (kernel - 1) + 1 - numbers[2][d];
        pads[2 * (n - 1 - d)] = numbers[2][d];
        pads[2 * (n - 1 - d) + 1] = ts_max64(last - h->sizes[lead + d], 0);
        all *= kernel;
    }
    ts_tensor *padded = ts_pad(h, pads, 2 * n, TS_PAD_CONSTANT, ts_scalar_int(0)), *sum = NULL;
    for (int64_t tap = 0; tap < all; tap++) {
        ts_tensor *part = padded;
        int64_t rest = tap;
        for (int d = n - 1; d >= 0; rest /= numbers[0][d--]) {
            int64_t first = rest % numbers[0][d] * numbers[3][d];
            part = ts_slice(part, lead + d, first,
                            first + (taps->sizes[lead + d] - 1) * numbers[1][d] + 1, numbers[1][d]);
        }
        part = ts_masked_fill_scalar(part, ts_ne_scalar(taps, tap), 0);
        sum = sum ? ts_add(sum, part) : part;
        TS_TRY_NULL(sum);
    }
    return sum;
}

static ts_status max_pool_taps_backward(ts_vjp_call *b)
{
    ts_tensor *h = GRAD(0);
    if (NEEDS(0)) {
        ts_tensor *taps = ARG(1);
        TS_TRY(taps);
        GIVE(0, taps->numel ? at_taps(b, h, taps)
                            : ts_zeros_like(ts_to(taps, (ts_dtype)h->dtype)));
    }
    GIVE(2, h);
    return TS_OK;
}
const ts_vjp ts_vjp_max_pool_taps_backward = {.rule = max_pool_taps_backward,
                                              .saves = {[0] = READS(1)}};

/** Gathers the elements of g at the indices, with the spatial dims flattened. */
static ts_status max_pool_backward(ts_vjp_call *b)
{
    ts_tensor *g = GRAD(0), *indices = ARG(1);
    TS_TRY(indices);
    int n = (int)ts_rule_arg(b, 2)->count, lead = indices->ndim - n;
    int64_t sizes[TS_MAX_DIMS];
    for (int d = 0; d < lead; d++)
        sizes[d] = indices->sizes[d];
    sizes[lead] = -1;
    if (!indices->numel) /* without elements, ts_reshape() cannot compute the size -1 */
        return ts_rule_give(b, 0, ts_zeros_like(ts_to(indices, (ts_dtype)g->dtype)));
    ts_tensor *found = ts_gather(ts_reshape(g, sizes, lead + 1), lead,
                                 ts_reshape(indices, sizes, lead + 1));
    return ts_rule_give(b, 0, ts_view(found, indices->sizes, indices->ndim));
}
const ts_vjp ts_vjp_max_pool_backward = {.rule = max_pool_backward, .always = READS(1)};
