/**
 * @file matmul.c  Gradient rules of products of matrices.
 *
 * The rules call linear and linear_backward, which read a transposed operand without a transposed
 * view: x wᵀ is linear(x, w), and aᵀ b is the gradient of linear's weight.
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
RULES(mm, (0, READS(1), ts_linear(g, ARG(1), TS_NONE)), (1, READS(0), transposed_product(X, g)))
/* The same, matrix by matrix. */
RULES(bmm, (0, READS(1), ts_bmm(g, ts_transpose(ARG(1), 1, 2))),
      (1, READS(0), ts_bmm(ts_transpose(X, 1, 2), g)))

static ts_tensor *times(ts_tensor *t, const ts_value *factor)
{
    return ts_value_number(factor) == 1 ? t : (ts_mul_scalar)(t, ts_value_unbox(factor));
}

/* y = beta self + alpha mat1 mat2 */
static ts_status addmm(ts_vjp_call *b)
{
    ts_tensor *g = GRAD(0);
    /* reduces before it multiplies, because self may be a broadcast row */
    GIVE(0, times(ts_rule_reduce_to(b, 0, g), ts_rule_arg(b, 3)));
    if (!NEEDS(1) && !NEEDS(2))
        return TS_OK;
    g = times(g, ts_rule_arg(b, 4));
    GIVE(1, ts_linear(g, ARG(2), TS_NONE));
    GIVE(2, transposed_product(ARG(1), g));
    return TS_OK;
}
const ts_vjp ts_vjp_addmm = {.rule = addmm, .saves = {[1] = READS(2), [2] = READS(1)}};

/* y (…, n) = x (…, k) wᵀ + bias, with upstream gradient g: one call computes all gradients and
 * shares loads */
static ts_status give_linear(ts_vjp_call *b, ts_tensor *g)
{
    bool needs[] = {NEEDS(0), NEEDS(1), NEEDS(2)};
    ts_tensor *grads[3];
    TS_TRY(ts_linear_backward(g, needs[1] ? X : TS_NONE, needs[0] ? ARG(1) : TS_NONE,
                              needs[0] ? &grads[0] : NULL, needs[1] ? &grads[1] : NULL,
                              needs[2] ? &grads[2] : NULL));
    for (int i = 0; i < 3; i++)
        if (needs[i])
            TS_TRY(ts_rule_give(b, i, grads[i]));
    return TS_OK;
}
static ts_status linear(ts_vjp_call *b) { return give_linear(b, GRAD(0)); }
const ts_vjp ts_vjp_linear = {.rule = linear, .saves = {[0] = READS(1), [1] = READS(0)}};

/* Result 1 is the linear result and result 0 its gelu, so the linear result gets the gradients of
 * both. */
static ts_status linear_gelu(ts_vjp_call *b)
{
    ts_tensor *g = GRAD(0), *g_linear = GRAD(1);
    if (g)
        TS_TRY(g = ts_gelu_backward(g, RET(1), INT(3)));
    if (g_linear)
        TS_TRY(g = g ? ts_add(g, g_linear) : g_linear);
    return give_linear(b, g);
}
const ts_vjp ts_vjp_linear_gelu = {.rule = linear_gelu,
                                   .saves = {[0] = READS(1), [1] = READS(0)},
                                   .always = READS_RET(1)};

/*
 * linear_backward returns dx = g w, dw = gᵀ x, db = sum of g over all dims but the last. With the
 * upstream gradients hx, hw, hb of these results, the gradient of g is hx wᵀ + x hwᵀ + hb, that of
 * x is g hw, and that of w is gᵀ hx.
 */
static ts_tensor *gradient_of_g(ts_vjp_call *b, ts_tensor *hx, ts_tensor *hw, ts_tensor *hb)
{
    ts_tensor *bias = hb ? hb : TS_NONE;
    if (!hx && !hw)
        return ts_add(ts_rule_zeros(ts_rule_arg_meta(b, 0)), hb);
    ts_tensor *first = hx ? ts_linear(hx, ARG(2), bias) : NULL;
    if (!hw)
        return first;
    ts_tensor *second = ts_linear(ARG(1), hw, hx ? TS_NONE : bias);
    return hx ? ts_add(first, second) : second;
}

static ts_status linear_backward(ts_vjp_call *b)
{
    ts_tensor *hx = GRAD(0), *hw = GRAD(1), *hb = GRAD(2);
    GIVE(0, gradient_of_g(b, hx, hw, hb));
    if (hw)
        GIVE(1, product(X, hw));
    if (hx)
        GIVE(2, transposed_product(X, hx));
    return TS_OK;
}
const ts_vjp ts_vjp_linear_backward = {
    .rule = linear_backward,
    .saves = {[0] = READS(1) | READS(2), [1] = READS(0), [2] = READS(0)},
};
