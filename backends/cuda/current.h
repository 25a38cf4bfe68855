/** @file current.h  The thread's device as the launch path reads it, in C alone: without a call. */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_CURRENT_H
#define TS_CUDA_CURRENT_H

#include "backends/cuda/runtime.h"

/** The device of the last cudaSetDevice(); NULL before the thread uses a device. */
extern _Thread_local ts_cuda_device *ts_cuda_current;

#endif
