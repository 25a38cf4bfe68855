/** @file nvtx.h  NVTX (NVIDIA Tools Extension) ranges, which Nsight Systems and similar tools show:
 * the backend's slot profile_range. */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_NVTX_H
#define TS_CUDA_NVTX_H

#include "tessera/backend.h"

TS_BEGIN_DECLS

/** Begins a range of the calling thread, named `name`, in the domain "tessera". If name is NULL,
 *  ends the thread's innermost range. `state` is not used. */
void ts_cuda_range(void *state, const char *name);

TS_END_DECLS
#endif
