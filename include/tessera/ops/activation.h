/**
 * @file activation.h
 * Activation functions. The result has self's sizes; sigmoid and tanh give f32 for integers, relu
 * keeps integers, the others want a floating dtype. In-place and _out forms need the result's
 * dtype, shape and device. Errors: TS_ERR_DTYPE, TS_ERR_SHAPE, TS_ERR_MEMORY.
 *
 * The _backward ops are the fused gradients: grad times the derivative at self (or,
 * where the name of the argument says so, computed from the result).
 */
// SPDX-License-Identifier: MIT
#ifndef TESSERA_OPS_ACTIVATION_H
#define TESSERA_OPS_ACTIVATION_H

#include "../core.h"
#include "unary.h"

TS_BEGIN_DECLS

/** max(self, 0); NaN stays. The gradient reads the result,
 * so self may be overwritten (ts_relu_). */
TS_DECLARE_UNARY(relu)
/** 1 / (1 + e^-self). */
TS_DECLARE_UNARY(sigmoid)
/** Hyperbolic tangent. */
TS_DECLARE_UNARY(tanh)
/** log(sigmoid(self)). */
TS_DECLARE_UNARY(log_sigmoid)
/** self * sigmoid(self), also called swish. */
TS_DECLARE_UNARY(silu)
/** self * tanh(softplus(self)). No gradient in place. */
TS_DECLARE_UNARY(mish)
/** self * Phi(self), Phi the normal distribution function (Hendrycks and Gimpel, 2016). */
TS_DECLARE_UNARY(gelu)
/** Approximation of gelu: 0.5 self (1 + tanh(sqrt(2/pi) (self + 0.044715 self^3))). */
TS_DECLARE_UNARY(gelu_tanh)

/** self where positive, else slope * self (PyTorch's default slope: 0.01). */
TS_API ts_tensor *ts_leaky_relu(ts_tensor *self, double slope);
TS_API ts_tensor *ts_leaky_relu_(ts_tensor *self, double slope);
TS_API ts_tensor *ts_leaky_relu_out(ts_tensor *out, ts_tensor *self, double slope);
/** self where positive, else alpha * (e^self - 1) (PyTorch's default alpha: 1). */
TS_API ts_tensor *ts_elu(ts_tensor *self, double alpha);
TS_API ts_tensor *ts_elu_(ts_tensor *self, double alpha);
TS_API ts_tensor *ts_elu_out(ts_tensor *out, ts_tensor *self, double alpha);
/** log(1 + e^(beta self)) / beta, and self where beta * self > threshold
 * (PyTorch's defaults: 1, 20). */
TS_API ts_tensor *ts_softplus(ts_tensor *self, double beta, double threshold);
TS_API ts_tensor *ts_softplus_(ts_tensor *self, double beta, double threshold);
TS_API ts_tensor *ts_softplus_out(ts_tensor *out, ts_tensor *self, double beta, double threshold);

/** grad where result > threshold, else 0: relu's gradient with threshold 0. */
TS_API ts_tensor *ts_threshold_backward(ts_tensor *grad, ts_tensor *result, double threshold);
/** grad where self > 0, else slope * grad. */
TS_API ts_tensor *ts_leaky_relu_backward(ts_tensor *grad, ts_tensor *self, double slope);
/** grad where self > 0, else grad * alpha * e^self. */
TS_API ts_tensor *ts_elu_backward(ts_tensor *grad, ts_tensor *self, double alpha);
/** grad * result * (1 - result). */
TS_API ts_tensor *ts_sigmoid_backward(ts_tensor *grad, ts_tensor *result);
/** grad * (1 - result^2). */
TS_API ts_tensor *ts_tanh_backward(ts_tensor *grad, ts_tensor *result);
/** grad times the derivative of gelu, or of its tanh form. */
TS_API ts_tensor *ts_gelu_backward(ts_tensor *grad, ts_tensor *self, bool tanh_form);
/** grad times the derivative of silu. */
TS_API ts_tensor *ts_silu_backward(ts_tensor *grad, ts_tensor *self);
/** grad * sigmoid(beta self), and grad where beta * self > threshold. */
TS_API ts_tensor *ts_softplus_backward(ts_tensor *grad, ts_tensor *self, double beta,
                                       double threshold);

TS_END_DECLS
#endif
