/** @file statistics.cuh  Saved statistics (mean, rstd = 1 / standard deviation, log-sum-exp) as
 * arguments of backward kernels in norm.cu and loss.cu, which read them in f32 or f64. */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_STATISTICS_CUH
#define TS_CUDA_STATISTICS_CUH

#include "tessera/kernel.h"
#include "tessera/ops.h"

namespace ts {

/** Returns the tensor in v, or an f32 copy of a tensor of bf16 or f16. The current scope owns the
 * copy. NULL with an error if the copy fails. */
inline ts_tensor *statistics(const ts_value &v)
{
    ts_dtype dtype = ts_dtype_of(v.t);
    return ts_dtype_is_half(dtype) ? ts_to(v.t, TS_F32) : v.t;
}

} // namespace ts

#endif
