/** @file fill.h  Short memsets of a graph as kernels. */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_FILL_H
#define TS_CUDA_FILL_H

#include "backends/cuda/runtime/runtime.h"

TS_BEGIN_DECLS

/** Parameters of a kernel node that does what a memset node does. */
typedef struct ts_cuda_fill {
    struct cudaKernelNodeParams node; /* refers to the fields below: do not copy */
    void *to;
    unsigned value, count; /* of the units, in bytes 1, 2 or 4 */
    void *arguments[3];
} ts_cuda_fill;

/** Sets *fill. False if the memset is long or has several rows. */
bool ts_cuda_fill_of(const struct cudaMemsetParams *set, ts_cuda_fill *fill);

TS_END_DECLS
#endif
