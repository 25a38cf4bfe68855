/**
 * @file rtc.cuh  The declarations from C++ and CUDA headers that the functors need, for NVRTC,
 * CUDA's compiler at run time.
 *
 * Fused groups are compiled on the user's machine, which may have no headers. The source that NVRTC
 * compiles begins with the text of this file; then come the functors' headers, whose #include lines
 * are removed, and the generated kernel. nvcc never reads this file.
 */
// SPDX-License-Identifier: MIT
typedef signed char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef long int64_t;
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long uint64_t;
typedef unsigned long uintptr_t;
#define INFINITY __int_as_float(0x7f800000)

namespace std {
template <class A, class B> constexpr bool is_same_v = false;
template <class A> constexpr bool is_same_v<A, A> = true;
template <class A>
constexpr bool is_floating_point_v = is_same_v<A, float> || is_same_v<A, double>;
template <class A>
constexpr bool is_integral_v =
    is_same_v<A, bool> || is_same_v<A, int8_t> || is_same_v<A, uint8_t> || is_same_v<A, int16_t> ||
    is_same_v<A, uint16_t> || is_same_v<A, int32_t> || is_same_v<A, uint32_t> ||
    is_same_v<A, int64_t> || is_same_v<A, uint64_t>;
template <class A> constexpr bool is_signed_v = A(-1) < A(0);
template <bool C, class A, class B> struct conditional {
    using type = A;
};
template <class A, class B> struct conditional<false, A, B> {
    using type = B;
};
template <bool C, class A, class B> using conditional_t = typename conditional<C, A, B>::type;
} // namespace std

/* bf16 and f16, rounded as by cuda_bf16.h and cuda_fp16.h. Even one number is converted as a pair
 * with 0: on sm_90, the instruction for a single number has an eighth of the rate. */
struct __nv_bfloat16 {
    unsigned short bits;
};
struct __half {
    unsigned short bits;
};
struct __nv_bfloat162 {
    unsigned int bits;
};
struct __half2 {
    unsigned int bits;
};
__device__ __forceinline__ float __bfloat162float(__nv_bfloat16 x)
{
    return __uint_as_float((unsigned)x.bits << 16);
}
__device__ __forceinline__ __nv_bfloat162 __floats2bfloat162_rn(float low, float high)
{
    __nv_bfloat162 y;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y.bits) : "f"(high), "f"(low));
    return y;
}
__device__ __forceinline__ __nv_bfloat16 __float2bfloat16_rn(float x)
{
    return __nv_bfloat16{(unsigned short)__floats2bfloat162_rn(x, 0).bits};
}
__device__ __forceinline__ float __half2float(__half x)
{
    float y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
    return y;
}
__device__ __forceinline__ __half2 __floats2half2_rn(float low, float high)
{
    __half2 y;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(y.bits) : "f"(high), "f"(low));
    return y;
}
__device__ __forceinline__ __half __float2half_rn(float x)
{
    return __half{(unsigned short)__floats2half2_rn(x, 0).bits};
}
