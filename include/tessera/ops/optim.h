/**
 * @file optim.h
 * Update rules over lists of tensors: one call, one pass over memory, no dispatch per tensor.
 *
 * Lists are arrays of n floating tensors on one device; grads[i] and the states of i have the sizes
 * and dtype of tensor i, except that the state of a bf16 or f16 tensor may be f32, and the gradient
 * of an f32 tensor bf16 or f16. Arithmetic is f64 for f64, else f32, rounded once when stored.
 * An empty list does nothing. Written tensors must not be expanded, nor share memory with
 * another member. Parameters require grad, so steps run under TS_NO_GRAD. Errors: TS_ERR_VALUE,
 * TS_ERR_SHAPE, TS_ERR_DTYPE, TS_ERR_DEVICE, TS_ERR_AUTOGRAD; nothing is written.
 */
// SPDX-License-Identifier: MIT
#ifndef TESSERA_OPS_OPTIM_H
#define TESSERA_OPS_OPTIM_H

#include "../core.h"

TS_BEGIN_DECLS

/**
 * Device-side skip flag: a step is skipped without a host sync. All members are read. Tensors are
 * f32 on the device of the parameters.
 */
typedef struct ts_step_guard {
    ts_tensor *found;           /**< one element, from ts_unscale_(): if it is not 0, the step only
                                     adds 1 to the members of skipped; TS_NONE: no step is
                                     skipped */
    ts_tensor *const *skipped;  /**< with found: n tensors of one element, the number
                                     of skipped steps among steps[i] */
} ts_step_guard;

/** Numbers of an Adam step; all are read. */
typedef struct ts_adamw_rule {
    double lr;           /**< >= 0 */
    double beta1, beta2; /**< in [0, 1); usual: 0.9, 0.999 */
    double eps;          /**< >= 0; usual: 1e-8 */
    double weight_decay; /**< >= 0 */
    bool decoupled;      /**< true, AdamW: p *= 1 - lr * weight_decay;
                              false, Adam: g += weight_decay * p */
    const ts_step_guard *guard;   /**< NULL: no step is skipped */
    ts_tensor *const *grad_scale; /**< NULL: 1; else one f32 element on the device of the tensors:
                                       g is the gradient times this factor, in the arithmetic of
                                       the step; the gradient itself is not written */
} ts_adamw_rule;

/**
 * Adam (Kingma, Ba, 2015) and AdamW (Loshchilov, Hutter, 2019), t = steps[i] less skipped steps:
 *   m = beta1 m + (1 - beta1) g,  v = beta2 v + (1 - beta2) g^2,
 *   p -= lr / (1 - beta1^t) * m / (sqrt(v) / sqrt(1 - beta2^t) + eps)
 * @param exp_avg, exp_avg_sq  m and v, zero before the first step
 * @param steps  n numbers of steps: that of tensor i, this step included
 */
TS_API ts_status ts_adamw_(ts_tensor *const *params, ts_tensor *const *grads,
                           ts_tensor *const *exp_avg, ts_tensor *const *exp_avg_sq,
                           const int64_t *steps, int64_t n, const ts_adamw_rule *rule);

/** Numbers of an SGD step; all are read. */
typedef struct ts_sgd_rule {
    double lr;           /**< >= 0 */
    double momentum;     /**< >= 0 */
    double dampening;    /**< 0 with nesterov */
    double weight_decay; /**< >= 0; added to the gradient */
    bool nesterov;       /**< needs momentum > 0 */
    const ts_step_guard *guard;
    ts_tensor *const *grad_scale; /**< both as in ts_adamw_rule */
} ts_sgd_rule;

/**
 * Gradient descent, as torch.optim.SGD: g += weight_decay p; with momentum b = g at step 1, then
 * b = momentum b + (1 - dampening) g, and g = b, or g + momentum b with nesterov; p -= lr g.
 * @param momentum_buffers  b; NULL without momentum
 */
TS_API ts_status ts_sgd_(ts_tensor *const *params, ts_tensor *const *grads,
                         ts_tensor *const *momentum_buffers, const int64_t *steps, int64_t n,
                         const ts_sgd_rule *rule);

/** sqrt of the sum of the squares of all elements, 0-dim; f64 if a tensor is f64, else f32.
 *  Sums in f64 over fixed blocks. No gradient flows through it. */
TS_API ts_tensor *ts_global_norm(ts_tensor *const *tensors, int64_t n);

/** Multiplies each tensor by a number. */
TS_API ts_status ts_scale_(ts_tensor *const *tensors, int64_t n, ts_scalar factor);
/** Multiplies each tensor by the one element of the floating `factor`. */
TS_API ts_status ts_scale_by_(ts_tensor *const *tensors, int64_t n, ts_tensor *factor);
/** Multiplies each tensor by a number, as ts_scale_(), in one pass. Returns a 0-dim f32: 1 if a
 *  product is infinite or NaN, else 0. See nn/amp.h. */
TS_API ts_tensor *ts_unscale_(ts_tensor *const *tensors, int64_t n, ts_scalar factor);
/** ts_unscale_() with the one element of the floating `factor`. */
TS_API ts_tensor *ts_unscale_by_(ts_tensor *const *tensors, int64_t n, ts_tensor *factor);
/** Multiplies each tensor by min(1, max_norm / (norm + 1e-6)), with the norm of
 *  ts_global_norm(). */
TS_API ts_status ts_clip_norm_(ts_tensor *const *tensors, int64_t n, ts_tensor *norm,
                               double max_norm);

#ifndef __cplusplus
#define ts_scale_(tensors, n, factor) ts_scale_(tensors, n, TS_SCALAR(factor))
#define ts_unscale_(tensors, n, factor) ts_unscale_(tensors, n, TS_SCALAR(factor))
#endif

TS_END_DECLS
#endif
