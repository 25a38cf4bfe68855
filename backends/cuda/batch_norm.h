/** @file batch_norm.h  Factors per channel of batch norm with given statistics, for the epilogue of
 *  a convolution (convolution.c). */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_BATCH_NORM_H
#define TS_CUDA_BATCH_NORM_H

#include "backends/cuda/runtime/runtime.h"

TS_BEGIN_DECLS

/** Queues a kernel that computes the factors of a batch_norm or batch_norm_relu of bf16 or f16 with
 *  given statistics. The result before relu is (x - mean) * scale + add.
 *  @param frame    the call of the op; its stream is used
 *  @param factors  device memory: receives the arrays mean, scale and add, one after the other,
 *                  each with an f32 number per channel
 *  Errors: those of ts_cuda_use() and ts_cuda_launched(). */
ts_status ts_cuda_batch_norm_factors(ts_frame *frame, float *factors);

TS_END_DECLS
#endif
