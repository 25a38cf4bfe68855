/** @file read_once.cuh  L2 cache hints for data that a kernel reads once; kernels over rows
 * (rows.cuh, row_stream.cuh), pointwise kernels (loops.cuh) and fused groups use them. */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_READ_ONCE_CUH
#define TS_CUDA_READ_ONCE_CUH

#include "backends/cuda/types.cuh"

namespace ts {

/** Bytes of the L2 cache, per architecture: of one of the two dies of a B200 for sm_100 and later,
 * of H100 and H200 for sm_90, of A100 for older GPUs. Others of sm_80 to sm_89 have 2 to 96 MiB. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
constexpr int64_t l2_bytes = 64 << 20;
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
constexpr int64_t l2_bytes = 50 << 20;
#else
constexpr int64_t l2_bytes = 40 << 20;
#endif

/**
 * 16-byte loads from a tensor of `bytes` bytes, for kernels that read it once and write a result of
 * the same size. A tensor larger than the L2 cache gets the evict-last hint, which makes such
 * kernels up to 4 % faster (docs/decisions.md). A tensor that fits gets evict-first if `drop`, so
 * that the results stay in the cache for the next kernel, else evict-normal.
 */
struct read_once {
    uint64_t policy; /* L2 cache policy, an operand of load instructions */

    __device__ __forceinline__ explicit read_once(int64_t bytes, bool drop = true)
    {
        uint64_t first, normal, last;
        asm("createpolicy.fractional.L2::evict_first.b64 %0;" : "=l"(first));
        asm("createpolicy.fractional.L2::evict_normal.b64 %0;" : "=l"(normal));
        asm("createpolicy.fractional.L2::evict_last.b64 %0;" : "=l"(last));
        policy = bytes > l2_bytes ? last : drop ? first : normal;
    }
    template <class V> __device__ __forceinline__ V operator()(const V *p) const
    {
        static_assert(sizeof(V) == 16, "a 16-byte vector");
        uint4 w;
        asm volatile("ld.global.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
                     : "=r"(w.x), "=r"(w.y), "=r"(w.z), "=r"(w.w)
                     : "l"(p), "l"(policy));
        return from_word<V>(w);
    }
};

} // namespace ts

#endif
