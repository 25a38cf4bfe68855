/**
 * @file resample.h  Padding and resizing of images.
 * What holds for the family stands in generated.h.
 */
// SPDX-License-Identifier: MIT
#ifndef TESSERA_OPS_RESAMPLE_H
#define TESSERA_OPS_RESAMPLE_H

#include "../core.h"

TS_BEGIN_DECLS

/** What ts_pad() puts around a tensor. */
typedef enum ts_pad_mode {
    TS_PAD_CONSTANT,  /**< a number */
    TS_PAD_REFLECT,   /**< elements mirrored at the end's element; fewer than the dim has */
    TS_PAD_REPLICATE, /**< the end's element */
    TS_PAD_CIRCULAR   /**< elements of the other end; at most as many as the dim has */
} ts_pad_mode;

/** How ts_interpolate() reads between elements. */
typedef enum ts_interpolation {
    TS_NEAREST, /**< element floor(o in / out) */
    TS_LINEAR,  /**< between the two neighbours in each dim: linear, bilinear, trilinear */
    TS_CUBIC    /**< four neighbours in each dim, for two dims only: bicubic */
} ts_interpolation;

/** Options of ts_interpolate(). Lists have a number per spatial dim; those behind the last dim
 *  are 0. */
typedef struct ts_interpolate_opts {
    size_t size;            /**< sizeof(ts_interpolate_opts) */
    int64_t sizes[3];       /**< of the result; all 0: by scale_factor */
    double scale_factor[3]; /**< sizes are floor(in factor), and places are read at o / factor; at
                                 o in / out if the size stays, or TS_NEAREST doubles it */
    ts_interpolation mode;
    bool align_corners;     /**< the first and last elements keep their places, instead of the
                                 edges of the image; not for TS_NEAREST */
} ts_interpolate_opts;

/**
 * Resizes the spatial dims by PyTorch's formulas, without a filter against aliases.
 * @param self  (N, C, L), (N, C, H, W) or (N, C, D, H, W), floating
 */
TS_API ts_tensor *ts_interpolate(ts_tensor *self, const ts_interpolate_opts *opts);

TS_END_DECLS
#endif
