/**
 * @file convolution.h
 * Convolutions over 1 to 3 spatial dims, with groups, and transposed convolutions, as PyTorch's.
 * Input, weight and bias have one dtype: f64, f32, bf16 or f16. bf16 and f16 are summed in f32, and
 * each sum is rounded once. The result is channels-last, (N, spatial dims, C) in memory, if input
 * or weight is, else contiguous. Errors: TS_ERR_SHAPE, TS_ERR_DTYPE, TS_ERR_DEVICE, TS_ERR_VALUE,
 * TS_ERR_NULL, TS_ERR_MEMORY.
 */
// SPDX-License-Identifier: MIT
#ifndef TESSERA_OPS_CONVOLUTION_H
#define TESSERA_OPS_CONVOLUTION_H

#include "../core.h"

TS_BEGIN_DECLS

/**
 * Options of convolutions; zero is default. Lists have one number per spatial dim, in the order of
 * the tensor's dims; the entries after the last spatial dim must be 0.
 */
typedef struct ts_conv_opts {
    size_t size;               /**< sizeof(ts_conv_opts) */
    int64_t stride[3];         /**< step of the window; 0 means 1 */
    int64_t padding[3];        /**< zeros added at both ends of a dim; for a transposed convolution,
                                    elements removed at both ends of the result */
    int64_t dilation[3];       /**< distance between the window's elements; 0 means 1 */
    int64_t output_padding[3]; /**< transposed convolutions: elements added at the end of the
                                    result; less than the larger of stride and dilation */
    int64_t groups;            /**< number of channel groups, which are convolved separately;
                                    0 means 1 */
    bool same;                 /**< pad so that the result has the input's spatial sizes. If the
                                    total padding of a dim is odd, the end gets one more zero than
                                    the beginning. Needs stride 1 and padding 0; not for transposed
                                    convolutions */
} ts_conv_opts;

/**
 * Convolution over one spatial dim:
 *
 *     y[n, o, p] = bias[o] + sum over c and k of
 *                  weight[o, c, k] * x[n, g + c, p * stride - padding + k * dilation]
 *
 * where x is the input, g the first channel of o's group, and elements outside of x are 0.
 * @param input   (N, C, L), or (C, L) for one sample; the result then has no N either
 * @param weight  (O, C / groups, K)
 * @param bias    (O), or TS_NONE
 * @param opts    NULL for defaults
 * @return (N, O, floor((L + 2 * padding - dilation * (K - 1) - 1) / stride) + 1)
 */
TS_API ts_tensor *ts_conv1d(ts_tensor *input, ts_tensor *weight, ts_tensor *bias,
                            const ts_conv_opts *opts);
/** The same over two dims: (N, C, H, W) or (C, H, W), weight (O, C / groups, KH, KW). */
TS_API ts_tensor *ts_conv2d(ts_tensor *input, ts_tensor *weight, ts_tensor *bias,
                            const ts_conv_opts *opts);
/** The same over three dims: (N, C, D, H, W) or (C, D, H, W), weight (O, C / groups, KD, KH, KW).
 */
TS_API ts_tensor *ts_conv3d(ts_tensor *input, ts_tensor *weight, ts_tensor *bias,
                            const ts_conv_opts *opts);

/**
 * Transposed convolution: the function with which a convolution's backward computes the gradient of
 * the convolution's input from the gradient of its result. Each element of `input` is multiplied by
 * the weight's window, and the products are added to the result.
 * @param input   (N, C, L), or (C, L) for one sample; the result then has no N either
 * @param weight  (C, O / groups, K)
 * @param bias    (O), or TS_NONE
 * @param opts    NULL for defaults
 * @return (N, O, (L - 1) * stride - 2 * padding + dilation * (K - 1) + output_padding + 1)
 */
TS_API ts_tensor *ts_conv_transpose1d(ts_tensor *input, ts_tensor *weight, ts_tensor *bias,
                                      const ts_conv_opts *opts);
/** The same over two dims. */
TS_API ts_tensor *ts_conv_transpose2d(ts_tensor *input, ts_tensor *weight, ts_tensor *bias,
                                      const ts_conv_opts *opts);
/** The same over three dims. */
TS_API ts_tensor *ts_conv_transpose3d(ts_tensor *input, ts_tensor *weight, ts_tensor *bias,
                                      const ts_conv_opts *opts);

TS_END_DECLS
#endif
