/** @file reduce_extremes.cu  Extremes over dims, and whether all or any are true. */
// SPDX-License-Identifier: MIT
#include "backends/cuda/extremes.cuh"
#include "backends/cuda/reduce_plain.cuh"

using namespace ts;

static ts_status extreme(ts_frame *f, bool smallest)
{
    return with_ordered(f, [&]<class T>() {
        return reduce<T>(f, extreme_fold<T>{turning<ranked_t<T>>(smallest)});
    });
}
ts_status ts::reduce_amax(ts_frame *f) { return extreme(f, false); }
ts_status ts::reduce_amin(ts_frame *f) { return extreme(f, true); }

/** Logical any or all over elements stored as words X: an element is true if it has a bit of
 * `counts`. */
template <class X> struct truth_fold {
    using state = uint32_t;
    X counts; /* mask of significant bits: without the sign bit for floats, as -0 is false */
    bool all;

    __device__ __forceinline__ state none() const { return 0; }
    __device__ __forceinline__ state merge(state a, state b) const { return a | b; }
    template <int N> __device__ __forceinline__ void take(state &s, const X (&x)[N]) const
    {
#pragma unroll
        for (int e = 0; e < N; e++)
            s |= ((x[e] & counts) != 0) != all;
    }
    __device__ __forceinline__ bool finish(state s) const { return (s != 0) != all; }
};

static ts_status truth(ts_frame *f, bool all)
{
    ts_dtype dtype = ts_kernel_dtype(f);
    int64_t size = (int64_t)ts_dtype_size(dtype);
    uint64_t counts = UINT64_MAX >> (64 - 8 * size + ts_dtype_is_float(dtype));
    switch (size) {
    case 8: return reduce<uint64_t, bool>(f, truth_fold<uint64_t>{counts, all});
    case 4: return reduce<uint32_t, bool>(f, truth_fold<uint32_t>{(uint32_t)counts, all});
    case 2: return reduce<uint16_t, bool>(f, truth_fold<uint16_t>{(uint16_t)counts, all});
    default: return reduce<uint8_t, bool>(f, truth_fold<uint8_t>{(uint8_t)counts, all});
    }
}
ts_status ts::reduce_all(ts_frame *f) { return truth(f, true); }
ts_status ts::reduce_any(ts_frame *f) { return truth(f, false); }
