/** @file sort.cu  The sort of pairs: CUB's radix sort over as many bits as the largest key has. */
// SPDX-License-Identifier: MIT
#include "backends/cuda/sort.cuh"

/* CUB includes <iostream>, whose static initialiser needs libstdc++. This library is not linked
 * with libstdc++, so the guard of libstdc++'s <iostream> is set here. */
#define _GLIBCXX_IOSTREAM 1
#define CCCL_DISABLE_NVTX /* the backend makes ranges itself (runtime/nvtx.c) */
#include <istream>
#include <ostream>

#include <cub/device/device_radix_sort.cuh>

namespace ts {

/** Sorts, or sets `bytes` to the bytes of scratch memory if `scratch` is NULL. */
template <class I>
static cudaError_t sort_pairs(sorter<I> &s, void *scratch, size_t &bytes, uint64_t largest,
                              cudaStream_t stream)
{
    cub::DoubleBuffer<I> keys(s.keys[0], s.keys[1]), positions(s.positions[0], s.positions[1]);
    int bits = largest ? 64 - __builtin_clzll(largest) : 1;
    cudaError_t e = cub::DeviceRadixSort::SortPairs(scratch, bytes, keys, positions, (I)s.n, 0,
                                                    bits, stream);
    s.now = keys.selector;
    return e;
}

/** Bytes for CUB; they do not depend on the keys. */
template <class I> static size_t scratch_bytes(int64_t n)
{
    sorter<I> s(nullptr, n);
    size_t bytes = 0;
    sort_pairs(s, nullptr, bytes, (uint64_t)(I)-1, nullptr);
    return bytes;
}

template <class I> int64_t sorter<I>::bytes(int64_t n)
{
    return 4 * n * (int64_t)sizeof(I) + (int64_t)scratch_bytes<I>(n);
}

template <class I> cudaError_t sorter<I>::run(uint64_t largest, cudaStream_t stream)
{
    size_t bytes = scratch_bytes<I>(n);
    return n ? sort_pairs(*this, keys[0] + 4 * n, bytes, largest, stream) : cudaSuccess;
}

template struct sorter<uint32_t>;
template struct sorter<uint64_t>;

} // namespace ts
