/** @file statistics.cuh  Means, deviations and logarithms of sums
 * that a forward kernel left for its gradient. */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_STATISTICS_CUH
#define TS_CUDA_STATISTICS_CUH

#include "tessera/kernel.h"
#include "tessera/ops.h"

namespace ts {

/** Beside halves they are f32; given as halves they are cast,
 * and belong to the scope. NULL with an error. */
inline ts_tensor *statistics(const ts_value &v)
{
    ts_dtype dtype = ts_dtype_of(v.t);
    return ts_dtype_is_half(dtype) ? ts_to(v.t, TS_F32) : v.t;
}

} // namespace ts

#endif
