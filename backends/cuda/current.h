/** @file current.h  The thread's current device, which the launch path reads without a call. For C
 * files only. */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_CURRENT_H
#define TS_CUDA_CURRENT_H

#include "backends/cuda/runtime.h"

/** The device of the last cudaSetDevice(); NULL before the thread uses a device. */
extern _Thread_local ts_cuda_device *ts_cuda_current;

#endif
