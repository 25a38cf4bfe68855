/** @file pool.c  Gradient rules of max pools: a gradient is added at the index of its maximum. */
// SPDX-License-Identifier: MIT
#include "ops/ops.h"
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
