/** @file image.cuh  Images, which are tensors (N, C, ...): tests for channels-last and for 16-byte
 * vectors; loads of vectors. */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_IMAGE_CUH
#define TS_CUDA_IMAGE_CUH

#include "backends/cuda/frame.cuh"
#include "backends/cuda/units.cuh"

namespace ts {

/** ts_is_dense_last() (core/tensor.h), which backends cannot call: true if t has three dims or more
 * and is dense with C innermost in memory. */
inline bool dense_last(const ts_tensor *t)
{
    int n = ts_ndim(t);
    const int64_t *sizes = ts_sizes(t), *strides = ts_strides(t);
    if (n < 3 || strides[1] != 1)
        return false;
    int64_t step = sizes[1];
    for (int d = n - 1; d >= 2; d--) {
        if (strides[d] != step)
            return false;
        step *= sizes[d];
    }
    return sizes[0] == 1 || strides[0] == step;
}

/** True if dense_last() is true for all tensors; values that are not tensors are ignored. */
inline bool all_last(std::initializer_list<const ts_value *> values)
{
    for (const ts_value *v : values)
        if (v->tag == TS_TAG_TENSOR && !dense_last(v->t))
            return false;
    return true;
}

/** True if the tensors of the call r are (N, C, ...) in channels-last; values that are not tensors
 *  are ignored. Strides alone do not decide, because those of (C, H, W) with dims of size 1 may be
 *  equal to those of a channels-last (N, C, L); therefore r.planes, which is N * C (or C without
 *  N), is compared with the sizes. */
inline bool all_last_images(const ts_resampling &r, std::initializer_list<const ts_value *> values)
{
    for (const ts_value *v : values)
        if (v->tag == TS_TAG_TENSOR &&
            !(dense_last(v->t) && ts_size(v->t, 0) * ts_size(v->t, 1) == r.planes))
            return false;
    return true;
}

/** True if runs of n elements at these addresses can be accessed in vectors of 16 bytes. */
template <class T> bool in_vectors(int64_t n, std::initializer_list<const void *> data)
{
    uint64_t bits = (uint64_t)n * sizeof(T);
    for (const void *p : data)
        bits |= (uint64_t)(uintptr_t)p;
    return bits % 16 == 0;
}

/** Loads one element, or vec16<T> elements at a multiple of 16 bytes, as wide numbers. The compiler
 * would split the load of a vec into one per element; __ldg() is one access. No thread may write
 * the elements during the kernel. */
template <class T, int V> __device__ __forceinline__ void load_wide(wide_t<T> (&x)[V], const T *p)
{
    static_assert(V == 1 || V == vec16<T>, "an access of 16 bytes");
    if constexpr (V == vec16<T>) {
        uint4 word = __ldg(reinterpret_cast<const uint4 *>(p));
        unpack<T, V>(from_word<vec<T, V>>(word), x);
    } else {
        x[0] = widen(*p);
    }
}

} // namespace ts

#endif
