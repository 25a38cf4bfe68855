/** @file current.h  The thread's current device, which the launch path reads without a call. For C
 * files only. */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_CURRENT_H
#define TS_CUDA_CURRENT_H

#include "backends/cuda/runtime/runtime.h"

/** The device that the thread's last ts_cuda_use() made current. NULL if no call has succeeded yet
 * or the last call failed, and while ts_cuda_describing(). */
extern _Thread_local ts_cuda_device *ts_cuda_current;

#endif
