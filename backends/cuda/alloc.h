/** @file alloc.h  Functions of the CUDA allocator that are not in the backend's function table. */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_ALLOC_H
#define TS_CUDA_ALLOC_H

#include "backends/cuda/runtime.h"

TS_BEGIN_DECLS

/** Call before a stream is destroyed; the stream must have no pending work. Another stream may take
 * over its free blocks. Blocks of other streams that it used are freed without waiting for it. */
void ts_cuda_stream_ended(int device, cudaStream_t stream);

TS_END_DECLS
#endif
