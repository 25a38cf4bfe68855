/** @file activation.c  Activation functions and their fused gradients. */
// SPDX-License-Identifier: MIT
#include "ops/parts.h"

/** Floating dtypes only, as in PyTorch. */
ts_status ts_infer_activation(ts_frame *f)
{
    TS_TRY(ts_check_float(f, 0));
    return ts_infer_pointwise(f, 1, TS_DTYPE_NONE, false);
}

/* -------------------------------------------------- by parts, for gradients of gradients ---- */

/** Argument i, cast to f32 if the compute dtype is bf16 or f16. */
static ts_tensor *operand(const ts_frame *f, int i)
{
    return ts_as(f->args[i].t, ts_widened_dtype(f->plan->compute));
}

/** Stores y as result 0 of the frame. */
static ts_status result(ts_frame *f, ts_tensor *y) { return ts_parts_give(f, &y, 1); }

ts_status ts_composite_mish(ts_frame *f)
{
    TS_SCOPE;
    ts_tensor *x = operand(f, 0);
    return result(f, ts_mul(x, ts_tanh(ts_softplus(x, 1, 20))));
}

/** The slope of mish is t + x s (1 - t^2) with t = tanh(softplus(x)) and s = sigmoid(x). */
ts_status ts_composite_mish_backward(ts_frame *f)
{
    TS_SCOPE;
    ts_tensor *g = operand(f, 0), *x = operand(f, 1), *t = ts_tanh(ts_softplus(x, 1, 20));
    ts_tensor *bend = ts_tanh_backward(ts_mul(x, ts_logistic(x)), t);
    return result(f, ts_mul(g, ts_add(t, bend)));
}

ts_status ts_composite_elu_backward(ts_frame *f)
{
    TS_SCOPE;
    ts_tensor *g = operand(f, 0), *x = operand(f, 1);
    /* e^min(x, 0): the clamp keeps the gradient of the branch x > 0 finite. alpha multiplies g and
     * not the power, which loses digits if it is denormal */
    ts_tensor *low = ts_mul_scalar(g, f->args[2].d);
    return result(f, ts_mul(ts_where(ts_gt_scalar(x, 0), g, low), ts_exp(ts_clamp_max(x, 0))));
}

ts_status ts_composite_gelu_backward(ts_frame *f)
{
    TS_SCOPE;
    ts_tensor *g = operand(f, 0), *x = operand(f, 1), *slope;
    if (f->args[2].i) { /* 0.5 x (1 + t), t = tanh(k (x + c x^3)) */
        const double k = 0.79788456080286535588, c = 0.044715;
        ts_tensor *xx = ts_square(x);
        ts_tensor *t = ts_tanh(ts_mul(x, ts_add_scalar(ts_mul_scalar(xx, k * c), k)));
        ts_tensor *dy = ts_add_scalar(ts_mul_scalar(xx, 3 * k * c), k);
        ts_tensor *right = ts_mul(ts_mul(x, dy), ts_rsub_scalar(ts_square(t), 1));
        slope = ts_mul_scalar(ts_add(ts_add_scalar(t, 1), right), 0.5);
    } else { /* Phi(x) + x phi(x) */
        ts_tensor *cdf = ts_mul_scalar(ts_erfc(ts_mul_scalar(x, -0.70710678118654752440)), 0.5);
        ts_tensor *pdf =
            ts_mul_scalar(ts_exp(ts_mul_scalar(ts_square(x), -0.5)), 0.39894228040143267794);
        slope = ts_add(cdf, ts_mul(x, pdf));
    }
    return result(f, ts_mul(g, slope));
}

ts_status ts_composite_silu_backward(ts_frame *f)
{
    TS_SCOPE;
    ts_tensor *g = operand(f, 0), *x = operand(f, 1), *rest = ts_logistic(ts_neg(x));
    ts_tensor *slope = ts_mul(ts_logistic(x), ts_add_scalar(ts_mul(x, rest), 1));
    return result(f, ts_mul(g, slope));
}

ts_status ts_composite_softplus_backward(ts_frame *f)
{
    TS_SCOPE;
    ts_tensor *g = operand(f, 0), *bx = ts_mul_scalar(operand(f, 1), f->args[2].d);
    return result(
        f, ts_mul(g, ts_masked_fill_scalar(ts_logistic(bx), ts_gt_scalar(bx, f->args[3].d), 1)));
}
