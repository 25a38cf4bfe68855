/**
 * @file few.h
 * Convolutions and products of bf16 and f16 with fewer than 8 channels or features. The kernels
 * read such operands as they are; other kernels require copies padded to 8. Sums are in f32, in an
 * order that depends only on the shape.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_FEW_H
#define TS_CUDA_FEW_H

#include "backends/cuda/convolution/gemm.h"
#include "backends/cuda/product/gemm.h"

TS_BEGIN_DECLS

/** A convolution whose image has fewer than 8 channels ("images" below), or the gradient of its
 *  weight. */
typedef struct ts_cuda_few {
    ts_cuda_windows windows; /* `first` and `count` are not used */
    int64_t all;             /* number of windows */
    int64_t rows;            /* channels of the other image: of `to`, or of `other` */
    /* Element (row, channel, taps j1, j2 of the last two dims) of the weight is at
     * weight[row * step[0] + channel * step[1] + j1 * step[2] + j2 * step[3]]. */
    void *weight;
    int64_t step[4];
    const void *bias;                /* (rows), or NULL; images only */
    const ts_cuda_conv_after *after; /* epilogue, or NULL; images only */
    void *to;    /* images: receives (all, rows), dense */
    const void *other; /* gradient of the weight: (all, rows), dense */
} ts_cuda_few;

/**
 * True if the kernels support this convolution:
 * - elements of 2 bytes, one group, 1 to 7 channels, rows a multiple of 8 up to 2^20;
 * - at most two spatial dims, at most 256 elements per window, fewer than 2^31 windows;
 * - windows that are written to adjacent positions;
 * - strides, distances of taps and offsets of at most 2^20 pixels, and sizes below 2^28;
 * - `to`, `other` and after->added at multiples of 16 bytes;
 * - tiles of the image that fit in shared memory.
 * False with TS_CUDA_CONV=cudnn or matrix. ts_cuda_few_multiply() and ts_cuda_few_weigh() require
 * true; their errors are TS_ERR_DEVICE and TS_ERR_MEMORY.
 */
bool ts_cuda_few_fits(const ts_cuda_few *call);

/** Queues the products of all windows with the weight, plus bias, with the calls of `after`, into
 *  `to`, in the frame's dtype. */
ts_status ts_cuda_few_multiply(ts_frame *frame, const ts_cuda_few *call);

/** Queues the gradient of the weight, `other` transposed times the windows, into `weight`, in the
 *  frame's dtype. */
ts_status ts_cuda_few_weigh(ts_frame *frame, const ts_cuda_few *call);

/** True if ts_cuda_few_columns() computes c = a b: halves, one batch, fewer than 8 columns of c, at
 *  least 16,384 rows (with fewer, cuBLASLt takes less time), an inner size of at most 1,024 and a
 *  multiple of 8, dense rows of a and c, dense columns of b, rows of a and columns of b that are
 *  multiples of 16 bytes apart, and no epilogue except a bias. The answer depends on dtype, sizes,
 *  strides and epilogue only. */
bool ts_cuda_few_columns_fit(ts_dtype dtype, const ts_cuda_matrix *a, const ts_cuda_matrix *b,
                             const ts_cuda_matrix *c, int64_t batches,
                             const ts_cuda_epilogue *then);

/** Queues c = a b, plus bias (one element per column of c) unless it is NULL. a and b must be
 *  16-byte aligned. Error: TS_ERR_DEVICE. */
ts_status ts_cuda_few_columns(ts_frame *frame, const ts_cuda_matrix *a, const ts_cuda_matrix *b,
                              const ts_cuda_matrix *c, const void *bias);

TS_END_DECLS
#endif
