/** @file alloc.h  Functions of the CUDA allocator that are not in the backend's function table. */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_ALLOC_H
#define TS_CUDA_ALLOC_H

#include "backends/cuda/runtime/runtime.h"

TS_BEGIN_DECLS

/** Call before destroying `stream`, which must have no pending work. Another stream may take over
 * its free blocks. Frees of blocks that were recorded on it (ts_cuda_record_stream()) no longer
 * wait for it. */
void ts_cuda_stream_ended(int device, cudaStream_t stream);

TS_END_DECLS
#endif
