/** @file sort.cuh  A stable sort of keys with positions. Equal keys keep their order, so the result
 * does not depend on scheduling. */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_SORT_CUH
#define TS_CUDA_SORT_CUH

#include "backends/cuda/frame.cuh"

namespace ts {

/** A sort of n pairs of uint32_t or uint64_t in caller-owned scratch memory of bytes(n) bytes: two
 * buffers of pairs, and memory of CUB's radix sort (sort.cu). */
template <class I> struct sorter {
    I *keys[2], *places[2];
    int64_t n;
    int now; /* index of the buffer that holds the pairs */

    static int64_t bytes(int64_t n);
    sorter(void *scratch, int64_t count) : n(count), now(0)
    {
        for (int k = 0; k < 2; k++) {
            keys[k] = (I *)scratch + 2 * k * count;
            places[k] = keys[k] + count;
        }
    }
    /** Sorts the pairs in keys[0] and places[0], whose keys are at most `largest`. The result is in
     * keys[now] and places[now]. */
    cudaError_t run(uint64_t largest, cudaStream_t stream);
};

} // namespace ts

#endif
