/** @file philox.cuh  The random number generator Philox4x32-10 on the device: the formulas of
 * core/philox.h. A seed has a stream of blocks of four 32-bit words; a draw (a call that draws
 * random numbers) uses the blocks that begin at its offset. */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_PHILOX_CUH
#define TS_CUDA_PHILOX_CUH

#include <stdint.h>

namespace ts {

/** The 64-bit product a b in one instruction. For the C expression, the compiler emits a second
 * instruction that adds 0 to the high word. */
__device__ __forceinline__ uint64_t product(uint32_t a, uint32_t b)
{
    uint64_t p;
    asm("mul.wide.u32 %0, %1, %2;" : "=l"(p) : "r"(a), "r"(b));
    return p;
}

/** A block of four random words. */
struct philox_block {
    uint32_t w[4];

    /** The block at a position of a seed's stream. */
    __device__ __forceinline__ philox_block(uint64_t seed, uint64_t position)
    {
        uint32_t c0 = (uint32_t)position, c1 = (uint32_t)(position >> 32), c2 = 0, c3 = 0;
        uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
#pragma unroll
        for (int round = 0; round < 10; round++) {
            /* product() for only one of the two: with both, some attention kernels spill */
            uint64_t p0 = product(0xD2511F53u, c0), p1 = (uint64_t)0xCD9E8D57u * c2;
            c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
            c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
            c1 = (uint32_t)p1;
            c3 = (uint32_t)p0;
            k0 += 0x9E3779B9u;
            k1 += 0xBB67AE85u;
        }
        w[0] = c0, w[1] = c1, w[2] = c2, w[3] = c3;
    }
    /** The i-th of two 64-bit words. */
    __device__ __forceinline__ uint64_t word64(int i) const
    {
        return (uint64_t)w[2 * i + 1] << 32 | w[2 * i];
    }
};

/** Random bits as a number uniform in [0, 1): the upper 24 bits of a word, or the upper 53 of 64
 * bits. */
__device__ __forceinline__ float philox_f32(uint32_t bits) { return (float)(bits >> 8) * 0x1p-24f; }
__device__ __forceinline__ double philox_f64(uint64_t bits)
{
    return (double)(bits >> 11) * 0x1p-53;
}

/** Element i of a draw of 64-bit elements at `offset`: random bits, or a number in [0, 1). */
__device__ __forceinline__ uint64_t philox_u64(uint64_t seed, uint64_t offset, uint64_t i)
{
    return philox_block(seed, offset + i / 2).word64((int)(i % 2));
}
__device__ __forceinline__ double philox_uniform(uint64_t seed, uint64_t offset, uint64_t i)
{
    return philox_f64(philox_u64(seed, offset, i));
}

} // namespace ts

#endif
