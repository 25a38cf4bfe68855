/** @file resample.c  Gradient rules of padding, resizing and average pooling. These ops are linear:
 * the rule of an op calls its _backward op, the transposed op, and the rule of the _backward op
 * calls the op. */
// SPDX-License-Identifier: MIT
#include "ops/ops.h"
#include "autograd/rule.h"

/** Argument i, a list or a number. */
static const ts_value *list(ts_vjp_call *b, int i) { return ts_rule_arg(b, i); }
/** The last `n` sizes of argument 0. */
#define LAST(n) ts_rule_arg_meta(b, 0).sizes + ts_rule_arg_meta(b, 0).ndim - (n)

/** Calls `op`; NULL if args[0] is NULL or the call fails. */
static ts_tensor *call(int op, const ts_value *args, int nargs)
{
    return args[0].t ? ts_invoke(op, args, nargs, 1) : NULL;
}

/** Gives argument 0 its gradient by `op`, the transposed op. The arguments of op are the gradient;
 *  if n > 0, the last n sizes of argument 0; and the call's arguments from `from` to nargs - 1. */
static ts_status transposed(ts_vjp_call *b, int op, int n, int from, int nargs)
{
    ts_value args[TS_MAX_ARGS] = {ts_value_tensor(ts_rule_in_format_of(b, 0, GRAD(0)))};
    int at = 1;
    if (n) {
        args[at++] = (ts_value){.tag = TS_TAG_INTS, .count = (uint32_t)n,
                                .ints = (int64_t *)(LAST(n))};
    }
    for (int i = from; i < nargs; i++)
        args[at++] = *list(b, i);
    return ts_rule_give(b, 0, call(op, args, at));
}

static ts_status avg_pool(ts_vjp_call *b)
{
    return transposed(b, TS_OP_avg_pool_backward, (int)list(b, 1)->count, 1, 7);
}
const ts_vjp ts_vjp_avg_pool = {.rule = avg_pool};

static ts_status avg_pool_backward(ts_vjp_call *b)
{
    return transposed(b, TS_OP_avg_pool, 0, 2, 8);
}
const ts_vjp ts_vjp_avg_pool_backward = {.rule = avg_pool_backward};

static ts_status adaptive_avg_pool(ts_vjp_call *b)
{
    return transposed(b, TS_OP_adaptive_avg_pool_backward, (int)list(b, 1)->count, 0, 0);
}
const ts_vjp ts_vjp_adaptive_avg_pool = {.rule = adaptive_avg_pool};

static ts_status adaptive_avg_pool_backward(ts_vjp_call *b)
{
    return transposed(b, TS_OP_adaptive_avg_pool, (int)list(b, 1)->count, 0, 0);
}
const ts_vjp ts_vjp_adaptive_avg_pool_backward = {.rule = adaptive_avg_pool_backward};

static ts_status interpolate(ts_vjp_call *b)
{
    return transposed(b, TS_OP_interpolate_backward, (int)list(b, 1)->count, 2, 7);
}
const ts_vjp ts_vjp_interpolate = {.rule = interpolate};

static ts_status interpolate_backward(ts_vjp_call *b)
{
    return transposed(b, TS_OP_interpolate, (int)list(b, 1)->count, 2, 7);
}
const ts_vjp ts_vjp_interpolate_backward = {.rule = interpolate_backward};

static ts_status pad(ts_vjp_call *b) { return transposed(b, TS_OP_pad_backward, 0, 1, 3); }
const ts_vjp ts_vjp_pad = {.rule = pad};

static ts_status pad_backward(ts_vjp_call *b)
{
    ts_value args[] = {ts_value_tensor(GRAD(0)), *list(b, 1), *list(b, 2), ts_value_int(0)};
    return ts_rule_give(b, 0, call(TS_OP_pad, args, 4));
}
const ts_vjp ts_vjp_pad_backward = {.rule = pad_backward};
