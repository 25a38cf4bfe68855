/** @file copy.cuh  Strided copies for the kernels of other families, such as cat.cu and slice.cu;
 * copy.cu defines them. */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_COPY_CUH
#define TS_CUDA_COPY_CUH

#include "backends/cuda/frame.cuh"

namespace ts {

/** Address, strides and dtype of a tensor. Strides are in elements, outermost dim first. */
struct layout {
    void *data;
    const int64_t *strides;
    ts_dtype dtype;
};

/* Both functions queue the copy on the current stream of the frame's device and convert between
 * dtypes with the rounding of ts_to(). Errors: those of ts_cuda_use() and ts_cuda_launched().
 * While ts_cuda_describing(), they queue nothing (fuse/describe.h). */

/** Copies operand 1 of an iteration space (tessera/kernel.h) to operand 0. Operand 1 may be a
 * number on the host. Both operands may have any strides. */
ts_status copy_space(ts_frame *f, const ts_space &space);
/** Copies a tensor of shape `sizes`, outermost dim first, from `from` to `to`. `from` may have
 * strides of 0. Without elements, does nothing. */
ts_status copy_part(ts_frame *f, const layout &to, const layout &from, const int64_t *sizes,
                    int ndim);

} // namespace ts

#endif
