/** @file extremes.cuh  Maximum and minimum with the same comparison: for a minimum the order of
 * elements is reversed. */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_EXTREMES_CUH
#define TS_CUDA_EXTREMES_CUH

#include "backends/cuda/reduce.cuh"

namespace ts {

/** Calls run.operator()<T>() for an element type that orders elements of the call's dtype. */
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
