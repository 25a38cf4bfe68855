/** @file copy.cu  Copies and conversions between dtypes. */
// SPDX-License-Identifier: MIT
#include "backends/cuda/loops.cuh"

using namespace ts;

/** Calls f.operator()<element type>() for a dtype. */
template <class F> static ts_status with_type(ts_dtype dtype, F &&f)
{
    switch (dtype) {
    case TS_F64: return f.template operator()<double>();
    case TS_F32: return f.template operator()<float>();
    case TS_BF16: return f.template operator()<bf16>();
    case TS_F16: return f.template operator()<f16>();
    case TS_I64: return f.template operator()<int64_t>();
    case TS_I32: return f.template operator()<int32_t>();
    case TS_U8: return f.template operator()<uint8_t>();
    default: return f.template operator()<bool>();
    }
}

/** Elements that keep their bits. */
struct same {
    template <class A> __device__ __forceinline__ A operator()(A x) const { return x; }
};

/** From any dtype to R. A float becomes an integer by truncation, modulo the integer's range. */
template <class R> struct convert {
    template <class A> __device__ __forceinline__ auto operator()(A x) const
    {
        if constexpr (std::is_same_v<R, bool>)
            return x != 0;
        else if constexpr (std::is_same_v<wide_t<R>, float> && std::is_same_v<A, double> && !std::is_same_v<R, float>)
            return odd(x);
        else if constexpr (std::is_floating_point_v<A> && std::is_same_v<R, uint8_t>)
            return (uint8_t)(int64_t)x;
        else
            return (wide_t<R>)x;
    }
    /** A float that rounds to the same half as the double: the last bit says that something was cut. */
    static __device__ __forceinline__ float odd(double x)
    {
        float y = __double2float_rz(x);
        if ((double)y != x && x == x)
            y = __uint_as_float(__float_as_uint(y) | 1);
        return y;
    }
};

static ts_status copy(ts_frame *f)
{
    ts_space space;
    TS_CUDA_TRY(ts_kernel_space(f, &space));
    ts_dtype to = space.operand[0].dtype, from = space.operand[1].dtype;
    if (to == from)
        switch (ts_dtype_size(to)) {
        case 8: return loop_run<same, int64_t, int64_t>(f, space, same{});
        case 4: return loop_run<same, int32_t, int32_t>(f, space, same{});
        case 2: return loop_run<same, int16_t, int16_t>(f, space, same{});
        default: return loop_run<same, int8_t, int8_t>(f, space, same{});
        }
    return with_type(to, [&]<class R>() {
        return with_type(from, [&]<class A>() { return loop_run<convert<R>, R, A>(f, space, convert<R>{}); });
    });
}

TS_CUDA_FAMILY(copy,
    {"copy", copy, 0, true},
    {"to", copy, 0, true},
)
