/**
 * @file convolution.c  Gradient rules of convolution.
 *
 * A convolution is linear in input and in weight. The second gradients are therefore computed by
 * convolution and convolution_backward, too.
 */
// SPDX-License-Identifier: MIT
#include "autograd/rule.h"
#include "dispatch/invoke.h"
#include "ops/kernel.h"

enum { NUMBERS = 6 }; /* stride, padding, dilation, transposed, output_padding, groups */

/** Copies the NUMBERS arguments of call b starting at argument `at`. */
static void copy_numbers(ts_value *to, ts_vjp_call *b, int at)
{
    for (int i = 0; i < NUMBERS; i++)
        to[i] = *ts_rule_arg(b, at + i);
}

static ts_value sizes_of(const ts_meta *m) { return V_IS(m->sizes, m->ndim); }

/** convolution(input, weight, bias) with the numbers of b, a call of convolution_backward. */
static ts_tensor *convolve(ts_vjp_call *b, ts_tensor *input, ts_tensor *weight, ts_tensor *bias)
{
    ts_value args[3 + NUMBERS] = {V_T(input), V_T(weight), V_OPT(bias)};
    copy_numbers(args + 3, b, 5);
    return ts_invoke(TS_OP_convolution, args, TS_N(args), 1);
}

/**
 * Calls convolution_backward.
 * @param numbers  index in b of the first of the NUMBERS arguments
 * @param grads    addresses for the gradients of input, weight and bias; NULL: not computed. The
 *                 caller's scope owns the gradients
 */
static ts_status gradients(ts_vjp_call *b, int numbers, ts_tensor *grad, ts_tensor *input,
                           ts_tensor *weight, ts_value input_sizes, ts_value weight_sizes,
                           ts_tensor **grads[3])
{
    ts_value args[5 + NUMBERS] = {V_T(grad), V_OPT(input), V_OPT(weight), input_sizes,
                                  weight_sizes};
    ts_value rets[3] = {ts_value_none(), ts_value_none(), ts_value_none()};
    int want = 0;
    for (int i = 0; i < 3; i++)
        want |= (grads[i] != NULL) << i;
    copy_numbers(args + 5, b, numbers);
    TS_TRY(ts_call(TS_OP_convolution_backward, args, TS_N(args), rets, 3, 0, want,
                   __builtin_return_address(0)));
    for (int i = 0; i < 3; i++)
        if (grads[i])
            *grads[i] = ts_scope_adopt(&ts_tls, rets[i].t);
    return TS_OK;
}

static ts_status convolution(ts_vjp_call *b)
{
    ts_meta input = ts_rule_arg_meta(b, 0), weight = ts_rule_arg_meta(b, 1);
    ts_tensor *made[3] = {NULL, NULL, NULL}, **grads[3];
    for (int i = 0; i < 3; i++)
        grads[i] = NEEDS(i) ? &made[i] : NULL;
    ts_tensor *x = grads[1] ? X : TS_NONE;
    TS_TRY(x);
    /* a gradient of other strides, such as a slice that cat gives, is copied here once, not by each
       product; a plan can then give the copy a place in its arena */
    TS_TRY(gradients(b, 3, grads[1] ? ts_rule_in_layout_of(GRAD(0), x) : GRAD(0), x,
                     grads[0] ? ARG(1) : TS_NONE, sizes_of(&input), sizes_of(&weight), grads));
    for (int i = 0; i < 3; i++)
        GIVE(i, made[i]);
    return TS_OK;
}
const ts_vjp ts_vjp_convolution = {.rule = convolution,
                                   .saves = {[0] = READS(1), [1] = READS(0)}};

/** The gradient of `grad` of a convolution_backward call b: convolution(hx, weight) +
 *  convolution(input, hw), plus hb per channel. hx, hw, hb: gradients of the call's results, the
 *  gradients of input, weight and bias; NULL: none arrived. */
static ts_tensor *gradient_of_grad(ts_vjp_call *b, ts_tensor *hx, ts_tensor *hw, ts_tensor *hb)
{
    ts_tensor *bias = hb ? hb : TS_NONE;
    ts_meta grad = ts_rule_arg_meta(b, 0);
    if (!hx && !hw) {
        const int64_t sizes[TS_MAX_DIMS] = {hb->numel, 1, 1, 1};
        return ts_expand(ts_view(hb, sizes, grad.ndim - 1), grad.sizes, grad.ndim);
    }
    ts_tensor *first = hx ? convolve(b, hx, ARG(2), bias) : NULL;
    if (!hw)
        return first;
    ts_tensor *second = convolve(b, ARG(1), hw, hx ? TS_NONE : bias);
    return hx ? ts_add(first, second) : second;
}

static ts_status convolution_backward(ts_vjp_call *b)
{
    ts_tensor *hx = GRAD(0), *hw = GRAD(1), *hb = GRAD(2), *made = NULL;
    const ts_value *input_sizes = ts_rule_arg(b, 3), *weight_sizes = ts_rule_arg(b, 4);
    GIVE(0, gradient_of_grad(b, hx, hw, hb));
    if (hw && NEEDS(1)) {
        TS_TRY(gradients(b, 5, X, TS_NONE, hw, *input_sizes, *weight_sizes,
                         (ts_tensor **[]){&made, NULL, NULL}));
        GIVE(1, made);
    }
    if (hx && NEEDS(2)) {
        TS_TRY(gradients(b, 5, X, hx, TS_NONE, *input_sizes, *weight_sizes,
                         (ts_tensor **[]){NULL, &made, NULL}));
        GIVE(2, made);
    }
    return TS_OK;
}
const ts_vjp ts_vjp_convolution_backward = {
    .rule = convolution_backward,
    .saves = {[0] = READS(1) | READS(2), [1] = READS(0), [2] = READS(0)},
};
