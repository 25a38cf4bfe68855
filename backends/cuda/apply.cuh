/** @file apply.cuh  Code that eager kernels and fused groups share: division by a number that is
 * fixed during the kernel, operands that are numbers, and the application of a functor to one
 * element (apply_fn()). */
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

/** Division by a divisor known on the host, without a division instruction: n / d for n < 2^31,
 *  d > 0. */
struct divisor : ts_cuda_divisor {
    divisor() = default;
    explicit divisor(uint32_t by) : ts_cuda_divisor(ts_cuda_divisor_of(by)) {}
    __device__ __forceinline__ uint32_t of(uint32_t n) const
    {
        return (__umulhi(n, magic) + n) >> shift;
    }
};

/** Returns an operand that is a number. Launches and ts_cuda_formula (fuse/describe.h) store it in
 *  a double: the first sizeof(T) bytes of `bits` are the T. */
template <class T> __device__ __forceinline__ T bits_as(double bits)
{
    T x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/** Returns a float that rounds to the same bf16 or f16 number as the double does: truncates the
 *  double, and sets the last bit if the truncation was inexact (round to odd). */
__device__ __forceinline__ float float_beside(double x)
{
    float y = __double2float_rz(x);
    if ((double)y != x && x == x)
        y = __uint_as_float(__float_as_uint(y) | 1);
    return y;
}

/** True if a host number that takes the place of an operand of type T is passed in f32: T is bf16
 * or f16, and there are at least two operands. Otherwise the number is passed as a T. N counts the
 * result and the operands. */
template <class T, int N> constexpr bool number_is_wide = is_half<T> &&N > 2;

/** Applies fn to x, one element of each operand. Returns the result in wide_t<R>; the caller rounds
 *  it to R. If R is bf16 or f16 and fn has a faster formula that is exact enough for R, near() or
 *  near_as<R>(), applies the faster formula. */
template <class R, class F, class... A>
__device__ __forceinline__ wide_t<R> apply_fn(const F &fn, A... x)
{
    if constexpr (sizeof(R) == 2 && requires { fn.near(x...); })
        return fn.near(x...);
    else if constexpr (is_half<R> && requires { fn.template near_as<R>(x...); })
        return fn.template near_as<R>(x...);
    else
        return static_cast<wide_t<R>>(fn(x...));
}

} // namespace ts

#endif
