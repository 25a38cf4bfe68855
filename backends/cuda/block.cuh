/** @file block.cuh  Prefix sums over the threads of a warp or block, in a fixed order; scans, masks
 * and index kernels use them (scan.cu, mask.cu, index.cu). */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_BLOCK_CUH
#define TS_CUDA_BLOCK_CUH

namespace ts {

/** Sum of x over the lanes up to and including this one. All lanes of the warp must call. */
template <class A> __device__ __forceinline__ A warp_inclusive(A x)
{
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int by = 1; by < 32; by *= 2) {
        A below = __shfl_up_sync(0xffffffffu, x, by);
        if (lane >= by)
            x += below;
    }
    return x;
}

/** Returns the sum of x over the threads before this one and sets *total to the sum over all
 * threads. The block has THREADS threads, a multiple of 32, which must all call. x must be an
 * integer: it is subtracted from a sum that includes it, which would be rounded for floats. */
template <int THREADS, class A> __device__ __forceinline__ A block_exclusive(A x, A *total)
{
    constexpr int warps = THREADS / 32;
    __shared__ A sums[warps];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    A upto = warp_inclusive(x);
    __syncthreads(); /* an earlier call's sums have been read */
    if (lane == 31)
        sums[warp] = upto;
    __syncthreads();
    A before = 0, all = 0;
#pragma unroll
    for (int w = 0; w < warps; w++) {
        before += w < warp ? sums[w] : 0;
        all += sums[w];
    }
    *total = all;
    return before + (upto - x);
}

} // namespace ts

#endif
