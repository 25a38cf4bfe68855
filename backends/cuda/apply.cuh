/** @file apply.cuh  A function applied to one element, in eager kernels and in fused groups alike.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_APPLY_CUH
#define TS_CUDA_APPLY_CUH

#include "backends/cuda/divisor.h"
#include "backends/cuda/types.cuh"

namespace ts {

/** Functions of elements: the functors that eager kernels and fused groups apply. */
namespace fn
{
template <class T> constexpr bool real = std::is_floating_point_v<T>;
}

/** Division by a number that is known before: n / d for n < 2^31, d > 0. */
struct divisor : ts_cuda_divisor {
    divisor() = default;
    explicit divisor(uint32_t by) : ts_cuda_divisor(ts_cuda_divisor_of(by)) {}
    __device__ __forceinline__ uint32_t of(uint32_t n) const
    {
        return (__umulhi(n, magic) + n) >> shift;
    }
};

template <class T> __device__ __forceinline__ T bits_as(double bits)
{
    T x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/** A float that rounds to the same half as the double: the last bit says that something was cut. */
__device__ __forceinline__ float float_beside(double x)
{
    float y = __double2float_rz(x);
    if ((double)y != x && x == x)
        y = __uint_as_float(__float_as_uint(y) | 1);
    return y;
}

/** Whether a number among the operands T is f32: true beside halves. A single operand is always an
 * element. */
template <class T, int N> constexpr bool number_is_wide = is_half<T> &&N > 2;

/** fn of one element of each operand, for a result of R. */
template <class R, class F, class... A>
__device__ __forceinline__ wide_t<R> apply_fn(const F &fn, A... x)
{
    if constexpr (sizeof(R) == 2 && requires { fn.near(x...); })
        return fn.near(x...);
    else
        return static_cast<wide_t<R>>(fn(x...));
}

} // namespace ts

#endif
