/** @file alloc.h  What the allocator is told beside the slots of the backend's struct. */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_ALLOC_H
#define TS_CUDA_ALLOC_H

#include "backends/cuda/runtime.h"

TS_BEGIN_DECLS

/** A stream whose work is done is to be destroyed: what was kept for it serves the next one,
 * and no block waits for it. */
void ts_cuda_stream_ended(int device, cudaStream_t stream);

TS_END_DECLS
#endif
