/** @file view.c  Rules of views. */
// SPDX-License-Identifier: MIT
#include "autograd/vjp.h"
#include "include/tessera/ops.h"
#include "ops/rows.h"

static ts_status alias(ts_vjp_call *b) { return ts_give(b, 0, ts_grad_out(b, 0)); }
const ts_vjp ts_vjp_alias = {.rule = alias};

/** For all ops that keep the order of the elements. */
static ts_status reshape(ts_vjp_call *b)
{
    ts_meta m = ts_arg_meta(b, 0);
    return ts_give(b, 0, ts_reshape(ts_grad_out(b, 0), m.sizes, m.ndim));
}
const ts_vjp ts_vjp_reshape = {.rule = reshape};

static ts_status permute(ts_vjp_call *b)
{
    const ts_value *dims = ts_arg(b, 1);
    int n = (int)dims->count;
    int64_t back[TS_MAX_DIMS];
    for (int i = 0; i < n; i++)
        back[dims->ints[i] < 0 ? dims->ints[i] + n : dims->ints[i]] = i;
    return ts_give(b, 0, ts_permute(ts_grad_out(b, 0), back, n));
}
const ts_vjp ts_vjp_permute = {.rule = permute};

static ts_status transpose(ts_vjp_call *b)
{
    return ts_give(b, 0, ts_transpose(ts_grad_out(b, 0), (int)ts_arg(b, 1)->i, (int)ts_arg(b, 2)->i));
}
const ts_vjp ts_vjp_transpose = {.rule = transpose};

static ts_status expand(ts_vjp_call *b) { return ts_give(b, 0, ts_reduce_to(b, 0, ts_grad_out(b, 0))); }
const ts_vjp ts_vjp_expand = {.rule = expand};
