/**
 * @file loss.h  Options of losses, cross entropy over the last dim, and cross entropy that computes
 * its gradient in place. The section loss of generated.h states the dtypes, shapes and errors.
 */
// SPDX-License-Identifier: MIT
#ifndef TESSERA_OPS_LOSS_H
#define TESSERA_OPS_LOSS_H

#include "../core.h"

TS_BEGIN_DECLS

/** How the single losses are combined. cross_entropy and nll_loss (losses over classes) have one
 *  loss per position, that is per class index in target; the others (losses over pairs) have one
 *  loss per element. */
typedef enum ts_reduction {
    TS_REDUCTION_MEAN,     /**< mean over the elements, or over the positions that are not
                                ignored */
    TS_REDUCTION_SUM,      /**< sum of the losses */
    TS_REDUCTION_NONE,     /**< not combined: one loss per position or element */
    TS_REDUCTION_BATCHMEAN /**< kl_div only: the sum divided by the size of the first dim */
} ts_reduction;

/** Options of the _ex forms; zero is default. A loss ignores options that it does not have. */
typedef struct ts_loss_opts {
    size_t size;                 /**< sizeof(ts_loss_opts) */
    ts_reduction reduction;
    const int64_t *ignore_index; /**< positions with this class as target are ignored; NULL: -100 */
    double label_smoothing;      /**< fraction of the target's probability that is spread evenly
                                      over all classes, 0 to 1 */
    const double *beta;          /**< smooth_l1_loss (beta >= 0) and huber_loss (beta > 0) are
                                      quadratic for |self - target| below beta, linear above;
                                      NULL: 1 */
    bool log_target;             /**< kl_div: target contains logarithms of probabilities */
} ts_loss_opts;

/**
 * Mean cross entropy over all positions whose target is not -100, with the classes in the last dim,
 * as in a language model. ts_cross_entropy() has the classes in dim 1.
 * @param self    (..., C), floating
 * @param target  (...), class indices, i64 or i32
 */
TS_API ts_tensor *ts_cross_entropy_last(ts_tensor *self, ts_tensor *target);
/** ts_cross_entropy_last() with reduction, ignore_index and label_smoothing. The result is 0-dim,
 *  or (...) for TS_REDUCTION_NONE. */
TS_API ts_tensor *ts_cross_entropy_last_ex(ts_tensor *self, ts_tensor *target,
                                           const ts_loss_opts *opts);
/** ts_cross_entropy_grad() in place: overwrites the logits in self with the gradient. Unlike
 *  ts_cross_entropy_grad(), returns the loss, f32 for bf16 and f16. */
TS_API ts_tensor *ts_cross_entropy_grad_(ts_tensor *self, ts_tensor *target,
                                         const ts_loss_opts *opts);

TS_END_DECLS
#endif
