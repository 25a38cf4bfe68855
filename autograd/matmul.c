/**
 * @file matmul.c  Rules of products of matrices.
 *
 * linear and linear_backward take transposed operands without views of them, so the rules of all
 * products are written with these two: x wᵀ is linear(x, w), aᵀ b is the second gradient of linear.
 */
// SPDX-License-Identifier: MIT
#include "autograd/rule.h"

/** aᵀ b: a (…, n), b (…, k) to (n, k). */
static ts_tensor *transposed_product(ts_tensor *a, ts_tensor *b)
{
    ts_tensor *y = NULL;
    return ts_linear_backward(a, b, TS_NONE, NULL, &y, NULL) == TS_OK ? y : NULL;
}

/** a b: a (…, n), b (n, k) to (…, k). */
static ts_tensor *product(ts_tensor *a, ts_tensor *b)
{
    ts_tensor *y = NULL;
    return ts_linear_backward(a, TS_NONE, b, &y, NULL, NULL) == TS_OK ? y : NULL;
}

/* y (m, n) = a (m, k) b (k, n): da = g bᵀ, db = aᵀ g */
static ts_status mm(ts_vjp_call *b)
{
    ts_tensor *g = ts_rule_grad(b, 0);
    GIVE(0, ts_linear(g, ts_rule_saved_arg(b, 1), TS_NONE));
    GIVE(1, transposed_product(ts_rule_saved_arg(b, 0), g));
    return TS_OK;
}
const ts_vjp ts_vjp_mm = {.rule = mm, .saves = {[0] = TS_SAVE_ARG(1), [1] = TS_SAVE_ARG(0)}};

/* The same, matrix by matrix. */
static ts_status bmm(ts_vjp_call *b)
{
    ts_tensor *g = ts_rule_grad(b, 0);
    GIVE(0, ts_bmm(g, ts_transpose(ts_rule_saved_arg(b, 1), 1, 2)));
    GIVE(1, ts_bmm(ts_transpose(ts_rule_saved_arg(b, 0), 1, 2), g));
    return TS_OK;
}
const ts_vjp ts_vjp_bmm = {.rule = bmm, .saves = {[0] = TS_SAVE_ARG(1), [1] = TS_SAVE_ARG(0)}};

/* y = beta self + alpha mat1 mat2 */
static ts_status addmm(ts_vjp_call *b)
{
    ts_tensor *g = ts_rule_grad(b, 0);
    const ts_value *beta = ts_rule_arg(b, 3), *alpha = ts_rule_arg(b, 4);
    if (ts_rule_needs(b, 0)) {
        ts_tensor *sum = ts_rule_reduce_to(b, 0, g); /* first: self may be a row */
        TS_TRY(ts_rule_give(
            b, 0, ts_value_number(beta) == 1 ? sum : (ts_mul_scalar)(sum, ts_value_unbox(beta))));
    }
    if (!ts_rule_needs(b, 1) && !ts_rule_needs(b, 2))
        return TS_OK;
    if (ts_value_number(alpha) != 1)
        g = (ts_mul_scalar)(g, ts_value_unbox(alpha));
    GIVE(1, ts_linear(g, ts_rule_saved_arg(b, 2), TS_NONE));
    GIVE(2, transposed_product(ts_rule_saved_arg(b, 1), g));
    return TS_OK;
}
const ts_vjp ts_vjp_addmm = {.rule = addmm, .saves = {[1] = TS_SAVE_ARG(2), [2] = TS_SAVE_ARG(1)}};

/* y (…, n) = x (…, k) wᵀ + bias, whose gradient is g: all gradients in one call,
 * which shares what it reads */
static ts_status give_linear(ts_vjp_call *b, ts_tensor *g)
{
    bool needs[] = {ts_rule_needs(b, 0), ts_rule_needs(b, 1), ts_rule_needs(b, 2)};
    ts_tensor *x = needs[1] ? ts_rule_saved_arg(b, 0) : TS_NONE,
              *w = needs[0] ? ts_rule_saved_arg(b, 1) : TS_NONE;
    ts_tensor *grads[3];
    TS_TRY(ts_linear_backward(g, x, w, needs[0] ? &grads[0] : NULL, needs[1] ? &grads[1] : NULL,
                              needs[2] ? &grads[2] : NULL));
    for (int i = 0; i < 3; i++)
        if (needs[i])
            TS_TRY(ts_rule_give(b, i, grads[i]));
    return TS_OK;
}
static ts_status linear(ts_vjp_call *b) { return give_linear(b, ts_rule_grad(b, 0)); }
const ts_vjp ts_vjp_linear = {.rule = linear,
                              .saves = {[0] = TS_SAVE_ARG(1), [1] = TS_SAVE_ARG(0)}};

/* Of gelu first; to its gradient comes that of the linear part, when somebody uses it too. */
static ts_status linear_gelu(ts_vjp_call *b)
{
    ts_tensor *g = ts_rule_grad(b, 0), *g_linear = ts_rule_grad(b, 1);
    if (g)
        g = ts_gelu_backward(g, ts_rule_saved_ret(b, 1), ts_rule_arg(b, 3)->i);
    if (g_linear)
        g = ts_rule_grad(b, 0) ? ts_add(g, g_linear) : g_linear;
    TS_TRY(g);
    return give_linear(b, g);
}
const ts_vjp ts_vjp_linear_gelu = {.rule = linear_gelu,
                                   .saves = {[0] = TS_SAVE_ARG(1), [1] = TS_SAVE_ARG(0)},
                                   .always = TS_SAVE_RET(1),
                                   .want = 2};

/*
 * dx = g w, dw = gᵀ x, db = sum of g over all but its last dim. With gradients hx, hw, hb of these:
 * of g: hx wᵀ + x hwᵀ + hb; of x: g hw; of w: gᵀ hx
 */
static ts_status linear_backward(ts_vjp_call *b)
{
    ts_tensor *hx = ts_rule_grad(b, 0), *hw = ts_rule_grad(b, 1), *hb = ts_rule_grad(b, 2);
    if (ts_rule_needs(b, 0)) {
        ts_tensor *sum = NULL, *bias = hb ? hb : TS_NONE;
        if (hx)
            TS_TRY(sum = ts_linear(hx, ts_rule_saved_arg(b, 2), bias));
        if (hw) {
            ts_tensor *part = ts_linear(ts_rule_saved_arg(b, 1), hw, hx ? TS_NONE : bias);
            TS_TRY(sum = sum ? ts_add(sum, part) : part);
        }
        if (!sum) {
            ts_meta g = ts_rule_arg_meta(b, 0);
            sum = ts_add(ts_zero_(ts_empty_on(g.sizes, g.ndim, g.dtype, g.device)), hb);
        }
        TS_TRY(ts_rule_give(b, 0, sum));
    }
    if (hw && ts_rule_needs(b, 1))
        TS_TRY(ts_rule_give(b, 1, product(ts_rule_saved_arg(b, 0), hw)));
    if (hx && ts_rule_needs(b, 2))
        TS_TRY(ts_rule_give(b, 2, transposed_product(ts_rule_saved_arg(b, 0), hx)));
    return TS_OK;
}
const ts_vjp ts_vjp_linear_backward = {
    .rule = linear_backward,
    .saves = {[0] = TS_SAVE_ARG(1) | TS_SAVE_ARG(2), [1] = TS_SAVE_ARG(0), [2] = TS_SAVE_ARG(0)},
};
