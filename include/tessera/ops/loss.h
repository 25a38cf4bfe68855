/**
 * @file loss.h
 * Losses. `ts_f(self, target)` is the mean; `_ex` takes options; `_backward` is what the gradient
 * rules call. Losses over classes take logits (C) or (N, C, d1, ...) and class indices (i64, i32)
 * of sizes () or (N, d1, ...); ts_cross_entropy_last() takes the classes in the last dim. Losses
 * over pairs take two tensors of the same sizes.
 * Errors: TS_ERR_SHAPE, TS_ERR_DTYPE, TS_ERR_INDEX (a class out of range, with its position),
 * TS_ERR_VALUE (an option), TS_ERR_DEVICE, TS_ERR_MEMORY.
 */
// SPDX-License-Identifier: MIT
#ifndef TESSERA_OPS_LOSS_H
#define TESSERA_OPS_LOSS_H

#include "../core.h"

TS_BEGIN_DECLS

/** What becomes of the losses of positions or elements. */
typedef enum ts_reduction {
    TS_REDUCTION_MEAN,     /**< over the elements, or the positions that are not ignored */
    TS_REDUCTION_SUM,
    TS_REDUCTION_NONE,     /**< one loss each */
    TS_REDUCTION_BATCHMEAN /**< kl_div only: sum over the size of the first dim */
} ts_reduction;

/** Options of the _ex forms; zero is default. A loss reads those that it has. */
typedef struct ts_loss_opts {
    size_t size;                 /**< sizeof(ts_loss_opts) */
    ts_reduction reduction;
    const int64_t *ignore_index; /**< class whose positions count nothing; NULL: -100 */
    double label_smoothing;      /**< share of the target spread evenly over all classes, 0 to 1 */
    const double *beta;          /**< where smooth_l1_loss and huber_loss turn linear; NULL: 1 */
    bool log_target;             /**< kl_div: target holds logarithms */
} ts_loss_opts;

/** -log softmax(self)[target]: the mean over positions. NaN when all are ignored. */
TS_API ts_tensor *ts_cross_entropy(ts_tensor *self, ts_tensor *target);
/** The same with reduction, ignore_index, label_smoothing. */
TS_API ts_tensor *ts_cross_entropy_ex(ts_tensor *self, ts_tensor *target, const ts_loss_opts *opts);
/**
 * The cross entropy of logits whose last dim is the classes, as those of a language model: the mean
 * over all positions. ts_cross_entropy() has the classes in dim 1.
 * @param self    (..., C)
 * @param target  (...), class indices
 */
TS_API ts_tensor *ts_cross_entropy_last(ts_tensor *self, ts_tensor *target);
/** The same with reduction, ignore_index, label_smoothing; (...) for TS_REDUCTION_NONE. */
TS_API ts_tensor *ts_cross_entropy_last_ex(ts_tensor *self, ts_tensor *target,
                                           const ts_loss_opts *opts);
/**
 * (softmax(self) - smoothed target) * grad, over the positions that count for a mean.
 * @param grad  () or, for TS_REDUCTION_NONE, the sizes of target
 * @param lse   log(sum(exp(self))) over classes, sizes of target, f32 for halves:
 *              the forward op's second result
 */
TS_API ts_tensor *ts_cross_entropy_backward(ts_tensor *grad, ts_tensor *self, ts_tensor *target,
                                            ts_tensor *lse, ts_reduction reduction,
                                            int64_t ignore_index, double label_smoothing);

/**
 * The gradient of cross_entropy by self, for an incoming gradient of 1 (of ones for
 * TS_REDUCTION_NONE), and the loss: what a training step without recording needs of logits that are
 * read but once. Itself not differentiable.
 * @param opts  reduction, ignore_index, label_smoothing; NULL: the mean
 * @param loss  receives the loss, f32 for halves; may be NULL
 */
TS_API ts_tensor *ts_cross_entropy_grad(ts_tensor *self, ts_tensor *target,
                                        const ts_loss_opts *opts, ts_tensor **loss);
/** The same into self, whose values become the gradient; returns the loss. */
TS_API ts_tensor *ts_cross_entropy_grad_(ts_tensor *self, ts_tensor *target,
                                         const ts_loss_opts *opts);

/** -self[target], self holding log-probabilities: the mean over positions. */
TS_API ts_tensor *ts_nll_loss(ts_tensor *self, ts_tensor *target);
/** The same with reduction and ignore_index. */
TS_API ts_tensor *ts_nll_loss_ex(ts_tensor *self, ts_tensor *target, const ts_loss_opts *opts);
/** Gradient of ts_nll_loss_ex() for self, which gives only its sizes. */
TS_API ts_tensor *ts_nll_loss_backward(ts_tensor *grad, ts_tensor *self, ts_tensor *target,
                                       ts_reduction reduction, int64_t ignore_index);

/** Forms of a loss over pairs; dtarget receives the target's gradient and may be NULL. */
#define TS_DECLARE_PAIR_LOSS(name)                                                                 \
    TS_API ts_tensor *ts_##name(ts_tensor *self, ts_tensor *target);                               \
    TS_API ts_tensor *ts_##name##_ex(ts_tensor *self, ts_tensor *target,                           \
                                     const ts_loss_opts *opts);                                    \
    TS_API ts_tensor *ts_##name##_backward(ts_tensor *grad, ts_tensor *self, ts_tensor *target,    \
                                           ts_reduction reduction, ts_tensor **dtarget);

/** (x - t)^2 */
TS_DECLARE_PAIR_LOSS(mse_loss)
/** |x - t| */
TS_DECLARE_PAIR_LOSS(l1_loss)
/** log(1 + e^x) - x t: cross entropy of sigmoid(x) with probability t. */
TS_DECLARE_PAIR_LOSS(binary_cross_entropy_with_logits)

/** d^2 / (2 beta) for |d| < beta, else |d| - beta / 2; d = x - t. */
TS_API ts_tensor *ts_smooth_l1_loss(ts_tensor *self, ts_tensor *target);
TS_API ts_tensor *ts_smooth_l1_loss_ex(ts_tensor *self, ts_tensor *target,
                                       const ts_loss_opts *opts);
TS_API ts_tensor *ts_smooth_l1_loss_backward(ts_tensor *grad, ts_tensor *self, ts_tensor *target,
                                             ts_reduction reduction, double beta,
                                             ts_tensor **dtarget);
/** d^2 / 2 for |d| <= beta, else beta (|d| - beta / 2); d = x - t (Huber 1964). */
TS_API ts_tensor *ts_huber_loss(ts_tensor *self, ts_tensor *target);
TS_API ts_tensor *ts_huber_loss_ex(ts_tensor *self, ts_tensor *target, const ts_loss_opts *opts);
TS_API ts_tensor *ts_huber_loss_backward(ts_tensor *grad, ts_tensor *self, ts_tensor *target,
                                         ts_reduction reduction, double beta, ts_tensor **dtarget);
/** t (log t - x), x a log-probability, 0 at t = 0; with log_target e^t (t - x). */
TS_API ts_tensor *ts_kl_div(ts_tensor *self, ts_tensor *target);
TS_API ts_tensor *ts_kl_div_ex(ts_tensor *self, ts_tensor *target, const ts_loss_opts *opts);
TS_API ts_tensor *ts_kl_div_backward(ts_tensor *grad, ts_tensor *self, ts_tensor *target,
                                     ts_reduction reduction, bool log_target, ts_tensor **dtarget);

TS_END_DECLS
#endif
