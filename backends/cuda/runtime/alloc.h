/** @file alloc.h  The function of the CUDA allocator (alloc.c) that is not in the backend's
 * function table; backend.c calls it. */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_ALLOC_H
#define TS_CUDA_ALLOC_H

#include "backends/cuda/runtime/runtime.h"

TS_BEGIN_DECLS

/** Removes a stream from the allocator's records. Call it before destroying `stream`, which must
 * have no pending work. Afterwards another stream may take over the free blocks of `stream`, and
 * blocks that ts_cuda_record_stream() recorded on it are freed without waiting for it. */
void ts_cuda_stream_ended(int device, cudaStream_t stream);

TS_END_DECLS
#endif
