/** @file batch_norm.h  Batch norm with given statistics as factors of channels. */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_BATCH_NORM_H
#define TS_CUDA_BATCH_NORM_H

#include "backends/cuda/runtime/runtime.h"

TS_BEGIN_DECLS

/** Queues the factors of a batch_norm or batch_norm_relu of bf16 or f16 with given statistics:
 *  mean, scale and add, each an f32 number per channel. Without relu, the result is
 *  (x - mean) * scale + add. Error: TS_ERR_DEVICE. */
ts_status ts_cuda_batch_norm_factors(ts_frame *frame, float *factors);

TS_END_DECLS
#endif
