/**
 * @file naive_convolution.h
 * The plainest convolution on a GPU, for comparison: one thread per element of the result. Kernels
 * have an odd size, stride 1 and a padding that keeps the sizes of the image.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_BENCH_NAIVE_CONVOLUTION_H
#define TS_BENCH_NAIVE_CONVOLUTION_H

/** x is (batch, side, side, channels), y (batch, side, side, features) and the weight (features,
 *  taps, taps, channels): dense arrays of bf16. */
typedef struct naive_shape {
    int batch, channels, side, features, taps;
} naive_shape;

#ifdef __cplusplus
extern "C" {
#endif

/** Queues y = convolution of x and weight on a CUDA stream. Returns a cudaError_t. */
int naive_images(const naive_shape *shape, const void *x, const void *weight, void *y,
                 void *stream);

/** Queues weight = the gradient of the weight; y is the gradient of the result. Each sum over the
 *  positions is divided among `parts` threads; a second kernel adds their sums, which are stored in
 *  partial: parts * features * taps * taps * channels floats. Returns a cudaError_t. */
int naive_weight(const naive_shape *shape, const void *x, const void *y, int parts, float *partial,
                 void *weight, void *stream);

#ifdef __cplusplus
}
#endif
#endif
