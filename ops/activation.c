/** @file activation.c  Activation functions and their fused gradients. */
// SPDX-License-Identifier: MIT
#include "ops/parts.h"

/** Floating dtypes only: PyTorch has no integer form of these. */
ts_status ts_infer_activation(ts_frame *f)
{
    TS_TRY(ts_check_float(f, 0));
    return ts_infer_pointwise(f, 1, TS_DTYPE_NONE, false);
}

/** The forms of an activation: new result, in place, destination first;
 * `...` are further values. */
#define FORMS(name, op, params, ...)                                 \
    ts_tensor *ts_##name params(ts_tensor *self)                     \
    {                                                                \
        return TS_INVOKE(TS_OP_##op, V_T(self) __VA_ARGS__);         \
    }                                                                \
    ts_tensor *ts_##name##_ params(ts_tensor *self)                  \
    {                                                                \
        return TS_INVOKE_OUT(self, TS_OP_##op, V_T(self) __VA_ARGS__); \
    }                                                                \
    ts_tensor *ts_##name##_out params(ts_tensor *out, ts_tensor *self) \
    {                                                                \
        return TS_INVOKE_OUT(out, TS_OP_##op, V_T(self) __VA_ARGS__); \
    }
#define NO_MORE(...) (__VA_ARGS__)
#define SLOPE(...) (__VA_ARGS__, double slope)
#define ALPHA(...) (__VA_ARGS__, double alpha)
#define SOFT(...) (__VA_ARGS__, double beta, double threshold)

FORMS(relu, relu, NO_MORE)
FORMS(sigmoid, sigmoid, NO_MORE)
FORMS(tanh, tanh, NO_MORE)
FORMS(log_sigmoid, log_sigmoid, NO_MORE)
FORMS(silu, silu, NO_MORE)
FORMS(mish, mish, NO_MORE)
FORMS(gelu, gelu, NO_MORE, , V_B(false))
FORMS(gelu_tanh, gelu, NO_MORE, , V_B(true))
FORMS(leaky_relu, leaky_relu, SLOPE, , V_F(slope))
FORMS(elu, elu, ALPHA, , V_F(alpha))
FORMS(softplus, softplus, SOFT, , V_F(beta), V_F(threshold))

ts_tensor *ts_threshold_backward(ts_tensor *grad, ts_tensor *result, double threshold)
{
    return TS_INVOKE(TS_OP_threshold_backward, V_T(grad), V_T(result), V_F(threshold));
}
ts_tensor *ts_leaky_relu_backward(ts_tensor *grad, ts_tensor *self, double slope)
{
    return TS_INVOKE(TS_OP_leaky_relu_backward, V_T(grad), V_T(self), V_F(slope));
}
ts_tensor *ts_elu_backward(ts_tensor *grad, ts_tensor *self, double alpha)
{
    return TS_INVOKE(TS_OP_elu_backward, V_T(grad), V_T(self), V_F(alpha));
}
ts_tensor *ts_sigmoid_backward(ts_tensor *grad, ts_tensor *result)
{
    return TS_INVOKE(TS_OP_sigmoid_backward, V_T(grad), V_T(result));
}
ts_tensor *ts_tanh_backward(ts_tensor *grad, ts_tensor *result)
{
    return TS_INVOKE(TS_OP_tanh_backward, V_T(grad), V_T(result));
}
ts_tensor *ts_gelu_backward(ts_tensor *grad, ts_tensor *self, bool tanh_form)
{
    return TS_INVOKE(TS_OP_gelu_backward, V_T(grad), V_T(self), V_B(tanh_form));
}
ts_tensor *ts_silu_backward(ts_tensor *grad, ts_tensor *self)
{
    return TS_INVOKE(TS_OP_silu_backward, V_T(grad), V_T(self));
}
ts_tensor *ts_softplus_backward(ts_tensor *grad, ts_tensor *self, double beta, double threshold)
{
    return TS_INVOKE(TS_OP_softplus_backward, V_T(grad), V_T(self), V_F(beta), V_F(threshold));
}

/* -------------------------------------------------- by parts, for gradients of gradients ---- */

/** Argument i in the dtype to compute in. */
static ts_tensor *operand(const ts_frame *f, int i)
{
    return ts_as(f->args[i].t, ts_parts_dtype(f->plan->compute));
}

/** Hands y to the frame. */
static ts_status result(ts_frame *f, ts_tensor *y) { return ts_parts_give(f, &y, 1); }

ts_status ts_composite_mish(ts_frame *f)
{
    TS_SCOPE;
    ts_tensor *x = operand(f, 0);
    return result(f, ts_mul(x, ts_tanh(ts_softplus(x, 1, 20))));
}

ts_status ts_composite_elu_backward(ts_frame *f)
{
    TS_SCOPE;
    ts_tensor *g = operand(f, 0), *x = operand(f, 1);
    /* e^min(x, 0): the branch that is not taken must stay finite in its own gradient */
    ts_tensor *low = ts_mul_scalar(ts_exp(ts_clamp_max(x, 0)), f->args[2].d);
    return result(f, ts_mul(g, ts_masked_fill_scalar(low, ts_gt_scalar(x, 0), 1)));
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
    ts_tensor *g = operand(f, 0), *x = operand(f, 1), *s = ts_sigmoid(x);
    ts_tensor *slope = ts_mul(s, ts_add_scalar(ts_mul(x, ts_rsub_scalar(s, 1)), 1));
    return result(f, ts_mul(g, slope));
}

ts_status ts_composite_softplus_backward(ts_frame *f)
{
    TS_SCOPE;
    ts_tensor *g = operand(f, 0), *bx = ts_mul_scalar(operand(f, 1), f->args[2].d);
    return result(
        f, ts_mul(g, ts_masked_fill_scalar(ts_sigmoid(bx), ts_gt_scalar(bx, f->args[3].d), 1)));
}
