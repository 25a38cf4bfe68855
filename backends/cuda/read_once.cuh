/** @file read_once.cuh  How long the second-level cache keeps what a kernel reads once. */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_READ_ONCE_CUH
#define TS_CUDA_READ_ONCE_CUH

#include "backends/cuda/types.cuh"

namespace ts {

/** Bytes of the second-level cache: of GB100, of H100 and H200, and of A100. Others of sm_80 to
 * sm_89 have 6 to 72 MiB. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
constexpr int64_t l2_bytes = 64 << 20;
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
constexpr int64_t l2_bytes = 50 << 20;
#else
constexpr int64_t l2_bytes = 40 << 20;
#endif

/**
 * Loads from a tensor of so many bytes, of which a kernel reads each once and writes one for it.
 * What is read of a tensor that the cache does not hold is to leave it last: then reads drop what
 * was read, and no longer wait for lines that have to be written before they can be dropped, which
 * is 1 to 4 % of the time (an observation: docs/performance.md). Of one that the cache holds it is
 * to leave first where `drop`, so that what is written stays for those who need it next; else
 * nothing is said.
 */
struct read_once {
    uint64_t policy;

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
