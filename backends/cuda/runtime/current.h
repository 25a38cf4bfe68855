/** @file current.h  The thread's current device, as a variable that launches read without a call.
 * runtime.c sets it. For C files only, because C++ has no _Thread_local. */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_CURRENT_H
#define TS_CUDA_CURRENT_H

#include "backends/cuda/runtime/runtime.h"

/** The device that the thread's last successful ts_cuda_use() made current. NULL before the first
 * success, after CUDA failed to initialise or select a device, in a forked child, and while
 * ts_cuda_describing(). If the device is lost, its `index` is -1. */
extern _Thread_local ts_cuda_device *ts_cuda_current;

#endif
