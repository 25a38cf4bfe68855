/** @file fill.h  Replaces short memset nodes of a CUDA graph by kernel nodes (capture.c). */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_FILL_H
#define TS_CUDA_FILL_H

#include "backends/cuda/runtime/runtime.h"

TS_BEGIN_DECLS

/** Parameters of a kernel node that fills memory as a memset node does. */
typedef struct ts_cuda_fill {
    struct cudaKernelNodeParams node; /* points to the fields below, so the struct must not be
                                         copied */
    void *to;
    unsigned value, count; /* of each unit, and number of units; a unit has 1, 2 or 4 bytes */
    void *arguments[3];
} ts_cuda_fill;

/** Sets *fill to the kernel for the memset `set`. Returns false if the memset is empty, has more
 *  than 64 KiB or several rows. */
bool ts_cuda_fill_of(const struct cudaMemsetParams *set, ts_cuda_fill *fill);

TS_END_DECLS
#endif
