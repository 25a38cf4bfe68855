/** @file nvtx.h  NVTX ranges for NVIDIA's tools: the backend's slot profile_range. */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_NVTX_H
#define TS_CUDA_NVTX_H

#include "tessera/backend.h"

TS_BEGIN_DECLS

/** Begins a range of the calling thread in the domain "tessera". If name is NULL, ends the thread's
 *  innermost range. */
void ts_cuda_range(void *state, const char *name);

TS_END_DECLS
#endif
