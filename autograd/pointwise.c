/** @file pointwise.c  Rules of binary arithmetic. */
// SPDX-License-Identifier: MIT
#include "autograd/vjp.h"
#include "include/tessera/ops.h"
#include "ops/rows.h"

static ts_status add(ts_vjp_call *b)
{
    ts_tensor *g = ts_grad_out(b, 0);
    if (ts_needs(b, 0))
        TS_TRY(ts_give(b, 0, ts_reduce_to(b, 0, g)));
    if (ts_needs(b, 1))
        TS_TRY(ts_give(b, 1, ts_reduce_to(b, 1, g)));
    return TS_OK;
}
const ts_vjp ts_vjp_add = {.rule = add};

static ts_status sub(ts_vjp_call *b)
{
    ts_tensor *g = ts_grad_out(b, 0);
    if (ts_needs(b, 0))
        TS_TRY(ts_give(b, 0, ts_reduce_to(b, 0, g)));
    if (ts_needs(b, 1))
        TS_TRY(ts_give(b, 1, ts_reduce_to(b, 1, ts_mul_scalar(g, -1))));
    return TS_OK;
}
const ts_vjp ts_vjp_sub = {.rule = sub};

/** g * argument i, which may be a plain number. */
static ts_tensor *times(ts_vjp_call *b, ts_tensor *g, int i)
{
    const ts_value *v = ts_arg(b, i);
    if (v->tag == TS_TAG_TENSOR)
        return ts_mul(g, ts_saved_arg(b, i));
    return v->tag == TS_TAG_FLOAT ? ts_mul_scalar(g, v->d) : ts_mul_scalar(g, v->i);
}

static ts_status mul(ts_vjp_call *b)
{
    ts_tensor *g = ts_grad_out(b, 0);
    for (int i = 0; i < 2; i++)
        if (ts_needs(b, i))
            TS_TRY(ts_give(b, i, ts_reduce_to(b, i, times(b, g, 1 - i))));
    return TS_OK;
}
const ts_vjp ts_vjp_mul = {.rule = mul, .saves = {[0] = TS_SAVE_ARG(1), [1] = TS_SAVE_ARG(0)}};
