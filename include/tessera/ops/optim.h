/**
 * @file optim.h
 * Update rules of optimizers, and other functions over lists of tensors. A call visits the
 * dispatcher once for the whole list and passes over memory once. nn/optimizer.h calls these
 * functions.
 *
 * Lists are arrays of n floating tensors on one device. grads[i] and the states of params[i] have
 * the sizes and dtype of params[i], with two exceptions: the state of a bf16 or f16 parameter may
 * be f32, and the gradient of an f32 parameter may be bf16 or f16. Arithmetic is f64 for f64, else
 * f32; results are rounded once when stored. For n = 0 the functions write nothing. A written
 * tensor must not share memory with another member of the lists. The functions do not check this;
 * if memory is shared, the values are unspecified. Writing a leaf that requires grad needs
 * TS_NO_GRAD. Errors: TS_ERR_NULL, TS_ERR_VALUE (n, a number, an expanded tensor to write),
 * TS_ERR_SHAPE, TS_ERR_DTYPE, TS_ERR_DEVICE, TS_ERR_AUTOGRAD, TS_ERR_MEMORY; nothing is then
 * written.
 */
// SPDX-License-Identifier: MIT
#ifndef TESSERA_OPS_OPTIM_H
#define TESSERA_OPS_OPTIM_H

#include "../core.h"

TS_BEGIN_DECLS

/**
 * A flag on the device that skips a step, so that the host need not wait. Tensors are f32 on the
 * device of the parameters. A caller sets both fields.
 */
typedef struct ts_step_guard {
    ts_tensor *found;           /**< flag of one element, such as the result of ts_unscale_(). If it
                                     is not 0, the step only adds 1 to each member of skipped.
                                     TS_NONE: no flag */
    ts_tensor *const *skipped;  /**< n tensors of one element; tensor i counts the skipped steps
                                     among the steps[i] steps of parameter i. NULL if found is
                                     TS_NONE */
} ts_step_guard;

/** Numbers of an Adam step. No field has a default. */
typedef struct ts_adamw_rule {
    double lr;           /**< >= 0 */
    double beta1, beta2; /**< in [0, 1); usual: 0.9, 0.999 */
    double eps;          /**< >= 0; usual: 1e-8 */
    double weight_decay; /**< >= 0 */
    bool decoupled;      /**< true, AdamW: p *= 1 - lr * weight_decay;
                              false, Adam: g += weight_decay * p */
    const ts_step_guard *guard;   /**< NULL: no step is skipped */
    ts_tensor *const *grad_scale; /**< points to a tensor handle; the step multiplies the gradients
                                       by this tensor, one f32 element on the device of the
                                       parameters. NULL: 1. The gradients themselves are not
                                       written */
} ts_adamw_rule;

/**
 * One step of Adam (Kingma, Ba, 2015) or AdamW (Loshchilov, Hutter, 2019). With g the gradient
 * times grad_scale, and t = steps[i] less the skipped steps:
 *   m = beta1 m + (1 - beta1) g,  v = beta2 v + (1 - beta2) g^2,
 *   p -= lr / (1 - beta1^t) * m / (sqrt(v) / sqrt(1 - beta2^t) + eps)
 * @param exp_avg, exp_avg_sq  m and v, zero before the first step
 * @param steps  n step counts >= 1; steps[i] is that of parameter i, this step included
 */
TS_API ts_status ts_adamw_(ts_tensor *const *params, ts_tensor *const *grads,
                           ts_tensor *const *exp_avg, ts_tensor *const *exp_avg_sq,
                           const int64_t *steps, int64_t n, const ts_adamw_rule *rule);

/** Numbers of an SGD step. No field has a default. */
typedef struct ts_sgd_rule {
    double lr;           /**< >= 0 */
    double momentum;     /**< >= 0 */
    double dampening;    /**< finite; must be 0 with nesterov */
    double weight_decay; /**< >= 0; g += weight_decay * p */
    bool nesterov;       /**< needs momentum > 0 */
    const ts_step_guard *guard;   /**< as in ts_adamw_rule */
    ts_tensor *const *grad_scale; /**< as in ts_adamw_rule */
} ts_sgd_rule;

/**
 * One step of gradient descent, as torch.optim.SGD. With g the gradient times grad_scale, and
 * t = steps[i] less the skipped steps:
 *   g += weight_decay p
 *   with momentum: b = g if t = 1, else b = momentum b + (1 - dampening) g;
 *                  then g = b, or g += momentum b with nesterov
 *   p -= lr g
 * @param momentum_buffers  b; not read if momentum is 0, and may then be NULL
 * @param steps  as for ts_adamw_()
 */
TS_API ts_status ts_sgd_(ts_tensor *const *params, ts_tensor *const *grads,
                         ts_tensor *const *momentum_buffers, const int64_t *steps, int64_t n,
                         const ts_sgd_rule *rule);

/** The 2-norm of all elements of all tensors together: a 0-dim tensor, f64 if a tensor is f64, else
 *  f32; 0 for n = 0. Sums in f64 over fixed blocks, so the bits do not depend on the number of
 *  threads. Not differentiable. */
TS_API ts_tensor *ts_global_norm(ts_tensor *const *tensors, int64_t n);

/** Multiplies each tensor by a number, in place. */
TS_API ts_status ts_scale_(ts_tensor *const *tensors, int64_t n, ts_scalar factor);
/** Like ts_scale_(); factor is a floating tensor of one element. */
TS_API ts_status ts_scale_by_(ts_tensor *const *tensors, int64_t n, ts_tensor *factor);
/** Like ts_scale_(), and in the same pass checks the products. Returns a 0-dim f32 tensor: 1 if a
 *  product is infinite or NaN, else 0. Used for gradient scaling (nn/amp.h). */
TS_API ts_tensor *ts_unscale_(ts_tensor *const *tensors, int64_t n, ts_scalar factor);
/** Like ts_unscale_(); factor is a floating tensor of one element. */
TS_API ts_tensor *ts_unscale_by_(ts_tensor *const *tensors, int64_t n, ts_tensor *factor);
/** Multiplies each tensor by min(1, max_norm / (norm + 1e-6)), in place.
 *  @param norm      one floating element, such as the result of ts_global_norm()
 *  @param max_norm  >= 0 */
TS_API ts_status ts_clip_norm_(ts_tensor *const *tensors, int64_t n, ts_tensor *norm,
                               double max_norm);

#ifndef __cplusplus
#define ts_scale_(tensors, n, factor) ts_scale_(tensors, n, TS_SCALAR(factor))
#define ts_unscale_(tensors, n, factor) ts_unscale_(tensors, n, TS_SCALAR(factor))
#endif

TS_END_DECLS
#endif
