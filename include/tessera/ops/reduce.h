/**
 * @file reduce.h
 * Reductions. `ts_f(t)` is over all elements; `_dims` over a list of dims (negative ones count from
 * the end, an empty list means all), `_dim` over one; keepdim leaves reduced dims with size 1;
 * `_out` writes to a tensor of the exact result sizes and dtype. Sums are folded in fixed
 * blocks: their bits do not depend on the number of threads, their error grows with the logarithm
 * of the length. Errors: TS_ERR_INDEX (dim out of range), TS_ERR_VALUE (a dim twice),
 * TS_ERR_DTYPE, TS_ERR_SHAPE (nothing to reduce where no neutral value exists, or `out` does
 * not fit), TS_ERR_MEMORY.
 */
// SPDX-License-Identifier: MIT
#ifndef TESSERA_OPS_REDUCE_H
#define TESSERA_OPS_REDUCE_H

#include "../core.h"

TS_BEGIN_DECLS

/** The four forms of a reduction. */
#define TS_DECLARE_REDUCTION(name)                                                                 \
    TS_API ts_tensor *ts_##name(ts_tensor *self);                                                  \
    TS_API ts_tensor *ts_##name##_dims(ts_tensor *self, const int64_t *dims, int ndims,            \
                                       bool keepdim);                                              \
    TS_API ts_tensor *ts_##name##_dim(ts_tensor *self, int dim, bool keepdim);                     \
    TS_API ts_tensor *ts_##name##_out(ts_tensor *out, ts_tensor *self, const int64_t *dims,        \
                                      int ndims, bool keepdim);

/** Sum; integers and bool in i64. 0 over nothing. */
TS_DECLARE_REDUCTION(sum)
/** Mean of a floating tensor. NaN over nothing. */
TS_DECLARE_REDUCTION(mean)
/** Product; integers and bool in i64. 1 over nothing. */
TS_DECLARE_REDUCTION(prod)
/** Largest element; NaN wins. Its gradient is shared evenly among equal ones. */
TS_DECLARE_REDUCTION(amax)
/** Smallest element; NaN wins. */
TS_DECLARE_REDUCTION(amin)
/** True where no element is zero, as bool. */
TS_DECLARE_REDUCTION(all)
/** True where some element is not zero, as bool. */
TS_DECLARE_REDUCTION(any)
/** log(sum(exp(x))), safe for large values; -Inf over nothing or only -Inf. */
TS_DECLARE_REDUCTION(logsumexp)

/** ts_amax() over all elements. */
TS_API ts_tensor *ts_max(ts_tensor *self);
/** ts_amin() over all elements. */
TS_API ts_tensor *ts_min(ts_tensor *self);

/** The forms of a variance: ts_f(t) is over all elements with correction 1. */
#define TS_DECLARE_VARIANCE(name)                                                                  \
    TS_API ts_tensor *ts_##name(ts_tensor *self);                                                  \
    TS_API ts_tensor *ts_##name##_dims(ts_tensor *self, const int64_t *dims, int ndims,            \
                                       double correction, bool keepdim);                           \
    TS_API ts_tensor *ts_##name##_dim(ts_tensor *self, int dim, double correction, bool keepdim);  \
    TS_API ts_tensor *ts_##name##_out(ts_tensor *out, ts_tensor *self, const int64_t *dims,        \
                                      int ndims, double correction, bool keepdim);

/** Sum of squared deviations from the mean, over max(0, n - correction). Two passes. */
TS_DECLARE_VARIANCE(var)
/** Square root of the variance. */
TS_DECLARE_VARIANCE(std)

/** Euclidean norm of all elements. */
TS_API ts_tensor *ts_norm(ts_tensor *self);
/** (sum |x|^p)^(1/p) for p = 1 or 2; for p = INFINITY the largest |x|. */
TS_API ts_tensor *ts_norm_dims(ts_tensor *self, double p, const int64_t *dims, int ndims,
                               bool keepdim);
/** The same into `out`. */
TS_API ts_tensor *ts_norm_out(ts_tensor *out, ts_tensor *self, double p, const int64_t *dims,
                              int ndims, bool keepdim);

/** Sums t over the dims that broadcasting from `sizes` would have added or stretched. */
TS_API ts_tensor *ts_sum_to_size(ts_tensor *t, const int64_t *sizes, int ndim);

/**
 * A view of a reduction's result t over what was reduced: sizes are the reduced tensor's, dims
 * those of the reduction (none: all), whether they were kept in t or not. The gradient of a sum.
 */
TS_API ts_tensor *ts_unreduce(ts_tensor *t, const int64_t *sizes, int ndim, const int64_t *dims,
                              int ndims);

TS_END_DECLS
#endif
