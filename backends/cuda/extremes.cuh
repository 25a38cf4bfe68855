/** @file extremes.cuh  The element types of amax, max_dim, argmax and the same ops for minima. A
 * minimum uses the same comparison as a maximum, over elements whose order is reversed (turning in
 * fold.cuh). */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_EXTREMES_CUH
#define TS_CUDA_EXTREMES_CUH

#include "backends/cuda/reduce.cuh"

namespace ts {

/** Calls run.operator()<T>() with the element type of the call's dtype; uint8_t for bool. */
template <class F> ts_status with_ordered(ts_frame *f, F &&run)
{
    switch (ts_kernel_dtype(f)) {
    case TS_F64: return run.template operator()<double>();
    case TS_F32: return run.template operator()<float>();
    case TS_BF16: return run.template operator()<bf16>();
    case TS_F16: return run.template operator()<f16>();
    case TS_I64: return run.template operator()<int64_t>();
    case TS_I32: return run.template operator()<int32_t>();
    default: return run.template operator()<uint8_t>(); /* u8 and bool */
    }
}

} // namespace ts

#endif
