/**
 * @file units.cuh
 * Kernels that copy data without arithmetic, and divisions of indices for many kernels. Elements of
 * any dtype are copied as units of 1 to 16 bytes; a functor returns the unit at each index of a
 * contiguous result (fill_units()). Indices have 32 bits if they fit, so that divisions become
 * multiplications; otherwise 64.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_UNITS_CUH
#define TS_CUDA_UNITS_CUH

#include "backends/cuda/loops.cuh"

namespace ts {

/** The largest unit, 1 to 16 bytes, that divides all addresses and lengths in bytes whose bitwise
 * OR is `bits`. */
inline int unit_of(uint64_t bits)
{
    bits |= 16;
    return (int)(bits & -bits);
}

/** Calls f.operator()<type>() for the type of a unit of 1, 2, 4, 8 or 16 bytes. */
template <class F> auto with_unit(int bytes, F &&f)
{
    switch (bytes) {
    case 16: return f.template operator()<uint4>();
    case 8: return f.template operator()<uint2>();
    case 4: return f.template operator()<uint32_t>();
    case 2: return f.template operator()<uint16_t>();
    default: return f.template operator()<uint8_t>();
    }
}

/** Stride of a dim of a contiguous tensor in elements, computed from the sizes, because the stored
 * strides of dims of size 1 are arbitrary. */
inline int64_t elements_behind(const ts_tensor *t, int dim)
{
    int64_t n = 1;
    for (int d = dim + 1; d < ts_ndim(t); d++)
        n *= ts_size(t, d);
    return n;
}

/** Division of indices of type I by a size known on the host: of(n) is n / size, d the size. A size
 * that is 0 or does not fit I becomes 1. Both occur only in empty spaces, where nothing is divided.
 */
template <class I> struct split;
template <> struct split<uint32_t> : divisor {
    split() = default;
    explicit split(int64_t by) : divisor((uint32_t)(by > 0 && by <= UINT32_MAX ? by : 1)) {}
};
template <> struct split<uint64_t> {
    uint64_t d;
    split() = default;
    explicit split(int64_t by) : d((uint64_t)(by > 0 ? by : 1)) {}
    __device__ __forceinline__ uint64_t of(uint64_t n) const { return n / d; }
};

/** Calls f.operator()<I>() with uint32_t or uint64_t: the type in which indices below `count`, and
 * the intermediate sums of split, do not overflow. */
template <class F> auto with_numbers(int64_t count, F &&f)
{
    return count < (int64_t)1 << 31 ? f.template operator()<uint32_t>()
                                    : f.template operator()<uint64_t>();
}

/** Divides a space of N dims of size at least 1, outermost first, into contiguous boxes of fewer
 * than 2^31 elements and calls f(from, sizes) for each, where `from` is the box's first index. For
 * kernels with 32-bit indices: the caller moves their pointers. */
template <int N, class F> void for_boxes(const int64_t (&dims)[N], F &&f)
{
    int cut = N - 1; /* the dim that is divided; boxes have one index of each dim before it */
    int64_t inner = 1, from[N] = {}, sizes[N];
    while (cut > 0 && dims[cut] <= INT32_MAX / inner)
        inner *= dims[cut--];
    for (int d = 0; d < N; d++)
        sizes[d] = d < cut ? 1 : dims[d];
    for (int64_t step = INT32_MAX / inner; from[0] < dims[0];) {
        int64_t left = dims[cut] - from[cut];
        sizes[cut] = left < step ? left : step;
        f(from, sizes);
        from[cut] += sizes[cut];
        for (int d = cut; d > 0 && from[d] == dims[d]; d--) {
            from[d] = 0;
            from[d - 1]++;
        }
    }
}

enum { UNITS_THREADS = 256, UNITS_UNROLL = 4, /* threads of a block, units of a thread */
       UNITS_BLOCK = UNITS_THREADS * UNITS_UNROLL };

inline unsigned units_blocks(int64_t n) { return (unsigned)((n + UNITS_BLOCK - 1) / UNITS_BLOCK); }

/** out[i] = fn(i). A thread starts the loads of four units before it stores the first. */
template <class U, class I, class F>
__global__ void __launch_bounds__(UNITS_THREADS)
    units_kernel(U *out, I n, const __grid_constant__ F fn)
{
    I first = (I)blockIdx.x * UNITS_BLOCK + threadIdx.x;
    U x[UNITS_UNROLL];
#pragma unroll
    for (int u = 0; u < UNITS_UNROLL; u++)
        if (first + u * UNITS_THREADS < n)
            x[u] = fn(first + u * UNITS_THREADS);
#pragma unroll
    for (int u = 0; u < UNITS_UNROLL; u++)
        if (first + u * UNITS_THREADS < n)
            out[first + u * UNITS_THREADS] = x[u];
}

/** Launches units_kernel() for n units of U, indexed by I; returns the error of the launch. */
template <class U, class I, class F>
cudaError_t fill_units(void *out, int64_t n, const F &fn, cudaStream_t stream)
{
    if (n)
        units_kernel<U, I, F><<<units_blocks(n), UNITS_THREADS, 0, stream>>>((U *)out, (I)n, fn);
    return cudaPeekAtLastError();
}

/** Offsets of an element of a space in N tensors, by its index; dims are innermost first. */
template <class I, int N> struct walk {
    int ndim;
    split<I> sizes[TS_MAX_DIMS];
    int64_t steps[N][TS_MAX_DIMS];

    /** Takes n sizes and strides, outermost dim first. Omits dims of size 1 and merges adjacent
     * dims that are contiguous in all tensors. */
    walk(const int64_t *dims, int n, const int64_t *const (&strides)[N]) : ndim(0)
    {
        int64_t before = 1;
        for (int d = n - 1; d >= 0; d--) {
            if (dims[d] == 1)
                continue;
            bool even = ndim > 0;
            for (int k = 0; even && k < N; k++)
                even = strides[k][d] == steps[k][ndim - 1] * before;
            if (even) {
                before *= dims[d];
                sizes[ndim - 1] = split<I>(before);
                continue;
            }
            before = dims[d];
            sizes[ndim] = split<I>(before);
            for (int k = 0; k < N; k++)
                steps[k][ndim] = strides[k][d];
            ndim++;
        }
        if (!ndim) { /* one element */
            sizes[0] = split<I>(1);
            for (int k = 0; k < N; k++)
                steps[k][0] = 0;
            ndim = 1;
        }
    }
    /** Sets offset[k] to the offset of element i in tensor k, in the unit of the strides. */
    __device__ __forceinline__ void at(I i, int64_t (&offset)[N]) const
    {
#pragma unroll
        for (int k = 0; k < N; k++)
            offset[k] = 0;
#pragma unroll 1
        for (int d = 0; d < ndim - 1; d++) {
            I q = sizes[d].of(i), r = i - q * sizes[d].d;
#pragma unroll
            for (int k = 0; k < N; k++)
                offset[k] += (int64_t)r * steps[k][d];
            i = q;
        }
#pragma unroll
        for (int k = 0; k < N; k++)
            offset[k] += (int64_t)i * steps[k][ndim - 1];
    }
};

} // namespace ts

#endif
