/** @file nvtx.h  Ranges of the host for NVIDIA's tools, for the slot profile_range. */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_NVTX_H
#define TS_CUDA_NVTX_H

#include "tessera/backend.h"

TS_BEGIN_DECLS

/** Begins a range of the calling thread in the domain "tessera"; name NULL: ends the innermost. */
void ts_cuda_range(void *state, const char *name);

TS_END_DECLS
#endif
