/** @file reduce_extremes.cu  Extremes over dims, and whether all or any are true. */
// SPDX-License-Identifier: MIT
#include "backends/cuda/reduce_plain.cuh"

using namespace ts;

ts_status ts::reduce_amax(ts_frame *f) { return whole<op_largest>(f); }
ts_status ts::reduce_amin(ts_frame *f) { return whole<op_smallest>(f); }

/** Of words X, without the bits that do not count: of all the smallest,
 * of any the bits together. */
template <class X, bool ALL> struct truth_fold {
    using state = std::conditional_t<sizeof(X) == 8, uint64_t, uint32_t>;
    X counts; /* not the sign of a float */

    __device__ __forceinline__ state none() const { return ALL ? (state)-1 : 0; }
    __device__ __forceinline__ state merge(state a, state b) const
    {
        return ALL ? (a < b ? a : b) : a | b;
    }
    template <int N> __device__ __forceinline__ void take(state &s, const X (&x)[N]) const
    {
#pragma unroll
        for (int e = 0; e < N; e++)
            s = merge(s, x[e] & counts);
    }
    __device__ __forceinline__ bool finish(state s) const { return s != 0; }
};

template <bool ALL> static ts_status truth(ts_frame *f)
{
    ts_dtype dtype = ts_kernel_dtype(f);
    int64_t size = (int64_t)ts_dtype_size(dtype);
    uint64_t counts = UINT64_MAX >> (64 - 8 * size + ts_dtype_is_float(dtype));
    switch (size) {
    case 8: return reduce<uint64_t, bool>(f, truth_fold<uint64_t, ALL>{counts});
    case 4: return reduce<uint32_t, bool>(f, truth_fold<uint32_t, ALL>{(uint32_t)counts});
    case 2: return reduce<uint16_t, bool>(f, truth_fold<uint16_t, ALL>{(uint16_t)counts});
    default: return reduce<uint8_t, bool>(f, truth_fold<uint8_t, ALL>{(uint8_t)counts});
    }
}
ts_status ts::reduce_all(ts_frame *f) { return truth<true>(f); }
ts_status ts::reduce_any(ts_frame *f) { return truth<false>(f); }
