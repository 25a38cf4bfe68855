/** @file dropout_fn.cuh  Elementwise functors of dropout, for eager kernels (random.cu) and fused
 * groups. */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_DROPOUT_FN_CUH
#define TS_CUDA_DROPOUT_FN_CUH

#include "backends/cuda/apply.cuh"
#include "backends/cuda/philox.cuh"

namespace ts::fn {

/** Drops an element with probability p: `word` is the element's random word. */
struct dropout_fn {
    uint32_t below; /* ceil(p * 2^24): an element is dropped if the upper 24 bits of its word are
                       less */
    double factor;  /* multiplies kept elements: 1 / (1 - p), or 0 if p is 1 */
    template <class A> __device__ __forceinline__ A operator()(uint32_t word, A x) const
    {
        return (word >> 8) >= below ? x * (A)factor : (A)0;
    }
};
/** Dropout with the seed and offset of its random words (philox.cuh), for a fused group, whose
 * kernel draws the words and passes one per element. */
struct dropout_at_fn : dropout_fn {
    static constexpr bool draws = true; /* the word is the first argument of operator() */
    uint64_t seed, offset;
};

} // namespace ts::fn

#endif
