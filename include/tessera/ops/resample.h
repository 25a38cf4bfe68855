/**
 * @file resample.h  Padding and resizing of images.
 * Dtypes, layouts and errors are those of the section resample of generated.h, which declares
 * further functions.
 */
// SPDX-License-Identifier: MIT
#ifndef TESSERA_OPS_RESAMPLE_H
#define TESSERA_OPS_RESAMPLE_H

#include "../core.h"

TS_BEGIN_DECLS

/** Values of the elements that ts_pad() adds. */
typedef enum ts_pad_mode {
    TS_PAD_CONSTANT,  /**< the argument `value` */
    TS_PAD_REFLECT,   /**< mirrored at the end element; padding must be below the dim's size */
    TS_PAD_REPLICATE, /**< the end element */
    TS_PAD_CIRCULAR   /**< elements of the other end; padding must be at most the dim's size */
} ts_pad_mode;

/** Methods of ts_interpolate(). in and out: sizes of a dim; o: index in the result. */
typedef enum ts_interpolation {
    TS_NEAREST, /**< element floor(o * in / out) */
    TS_LINEAR,  /**< two neighbours per dim: linear, bilinear or trilinear */
    TS_CUBIC    /**< four neighbours per dim: bicubic; two spatial dims only */
} ts_interpolation;

/** Options of ts_interpolate(). Lists have one number per spatial dim; unused entries are 0. */
typedef struct ts_interpolate_opts {
    size_t size;            /**< sizeof(ts_interpolate_opts) */
    int64_t sizes[3];       /**< spatial sizes of the result; all 0: use scale_factor */
    double scale_factor[3]; /**< out = floor(in * factor). Without align_corners, the input
                                 positions that neighbouring output elements read are 1 / factor
                                 apart. Exception: they are in / out apart, as with `sizes`, if the
                                 size does not change (except with TS_CUBIC) or TS_NEAREST doubles
                                 it. Set either sizes or scale_factor */
    ts_interpolation mode;
    bool align_corners;     /**< true: the centers of the first and last elements are aligned;
                                 false: the edges of the image. Must be false for
                                 TS_NEAREST */
} ts_interpolate_opts;

/**
 * Resizes the spatial dims as PyTorch's interpolate() with antialias=False.
 * @param self  (N, C, L), (N, C, H, W) or (N, C, D, H, W), floating
 * @param opts  not NULL (TS_ERR_NULL)
 * @return (N, C, spatial sizes of the options); NULL with TS_ERR_VALUE if the options do not fit
 *         self's dims or each other
 */
TS_API ts_tensor *ts_interpolate(ts_tensor *self, const ts_interpolate_opts *opts);

/**
 * Adds elements at both ends of the last dims.
 * @param self      any dtype
 * @param padding   numbers of elements (before, after) of the last dim, then of the dim before it,
 *                  and so on: in mode TS_PAD_CONSTANT for any number of dims, else for 1 to 3;
 *                  negative numbers remove elements, which TS_PAD_CIRCULAR then does not repeat
 * @param npadding  count of these numbers, even
 * @param mode      a ts_pad_mode
 * @param value     of the new elements in mode TS_PAD_CONSTANT, converted to self's dtype
 */
TS_API ts_tensor *ts_pad(ts_tensor *self, const int64_t *padding, int npadding, int64_t mode,
                         ts_scalar value);

TS_END_DECLS
#endif
