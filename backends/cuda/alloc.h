/** @file alloc.h  Calls of the allocator beyond the slots of the backend's struct. */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_ALLOC_H
#define TS_CUDA_ALLOC_H

#include "backends/cuda/runtime.h"

TS_BEGIN_DECLS

/** Called before a stream without pending work is destroyed: its cached blocks become free for
 * other streams, and no block waits for it. */
void ts_cuda_stream_ended(int device, cudaStream_t stream);

TS_END_DECLS
#endif
