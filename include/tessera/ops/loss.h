/**
 * @file loss.h  Options of losses, and the loss with its gradient.
 * What holds for the family stands in generated.h.
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
/** ts_cross_entropy_grad() into self, whose values become the gradient; returns the loss. */
TS_API ts_tensor *ts_cross_entropy_grad_(ts_tensor *self, ts_tensor *target,
                                         const ts_loss_opts *opts);

TS_END_DECLS
#endif
