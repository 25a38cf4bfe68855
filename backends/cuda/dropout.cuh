/** @file dropout.cuh  Dropout if the argument or the result is not contiguous; random.cu calls
 * dropout_strided(). An element's random word depends on its index in row-major order, not on its
 * place in memory: element i has word i % 4 of the i / 4-th Philox block of the call. */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_DROPOUT_CUH
#define TS_CUDA_DROPOUT_CUH

#include "backends/cuda/dropout_fn.cuh"
#include "backends/cuda/units.cuh"

namespace ts {

enum {
    DROPOUT_THREADS = 256,
    DROPOUT_UNITS = 2 /* units per thread of dropout_units_kernel() */
};

/** Elements per thread of dropout_runs_kernel(): whole Philox blocks, at least 16 bytes. */
template <class T> constexpr int dropout_count = vec16<T> > 4 ? vec16<T> : 4;

/** Dropout of the four elements x, into y, by the four words of one Philox block; y may be x. The
 * functor has the form that the kernels of random.cu call (draw()). */
struct dropped {
    static constexpr int elements = 4;
    static constexpr bool reads = true;
    fn::dropout_fn fn;
    template <class R>
    __device__ __forceinline__ void of(const philox_block &b, const R *x, R *y, int64_t) const
    {
#pragma unroll
        for (int e = 0; e < 4; e++)
            y[e] = narrow<R>(fn(b.w[e], widen(x[e])));
    }
};

/** Dropout of tensors whose rows consist of groups of dropout_count elements in aligned 16-byte
 * vectors, into a result whose order in memory is row-major. A thread processes a group. */
template <class T, class I>
static __global__ void __launch_bounds__(DROPOUT_THREADS)
    dropout_runs_kernel(const __grid_constant__ walk<I, 2> space, I n, T *to, const T *from,
                        fn::dropout_fn fn, ts_rng_state rng)
{
    constexpr int E = dropout_count<T>, WIDE = E / vec16<T>;
    I group = (I)blockIdx.x * DROPOUT_THREADS + threadIdx.x, first = group * E;
    if (first >= n)
        return;
    int64_t at[2];
    alignas(16) T x[E];
    space.at(first, at);
#pragma unroll
    for (int v = 0; v < WIDE; v++)
        reinterpret_cast<uint4 *>(x)[v] = reinterpret_cast<const uint4 *>(from + at[1])[v];
#pragma unroll
    for (int b = 0; b < E / 4; b++)
        dropped{fn}.of(philox_block(rng.seed, rng.offset + group * (E / 4) + b), x + 4 * b,
                       x + 4 * b, 0);
#pragma unroll
    for (int v = 0; v < WIDE; v++)
        reinterpret_cast<uint4 *>(to + at[0])[v] = reinterpret_cast<uint4 *>(x)[v];
}

/**
 * Dropout for any strides, in the order of the result's memory, so that adjacent threads have
 * adjacent elements.
 *
 * A row is the elements along the last dim: `row` elements, to_step apart in the result and
 * from_step apart in the argument. A unit is the elements of a row whose words are in one Philox
 * block, up to four. For unit i of a row, `space` has the offsets of element 4 i of this row: in
 * the result, in the argument, in row-major order, and in the row. If this element has word k of
 * its block, the unit begins k elements before it. `units` counts the units of all rows.
 */
template <class T, class I>
static __global__ void __launch_bounds__(DROPOUT_THREADS)
    dropout_units_kernel(const __grid_constant__ walk<I, 4> space, I units, int64_t row,
                         int64_t to_step, int64_t from_step, T *to, const T *from,
                         fn::dropout_fn fn, ts_rng_state rng)
{
    constexpr int UNITS = DROPOUT_UNITS;
    I first = (I)blockIdx.x * (DROPOUT_THREADS * UNITS) + threadIdx.x;
    int64_t at[UNITS][4];
    int skip[UNITS]; /* k of the comment above: the unit begins `skip` elements before at[u] */
    unsigned some[UNITS] = {}; /* bit e: element e of the unit exists */
    alignas(16) T x[UNITS][4];
    using word = word_of<vec<T, sizeof(T) == 8 ? 2 : 4>>; /* at most 16 bytes */
    constexpr int WORDS = 4 * sizeof(T) / sizeof(word);
    auto vector = [](const T *p, unsigned some, int64_t step) {
        return some == 15 && step == 1 && (uintptr_t)p % sizeof(word) == 0;
    };
#pragma unroll
    for (int u = 0; u < UNITS; u++) {
        if (first + u * DROPOUT_THREADS >= units)
            continue;
        space.at(first + u * DROPOUT_THREADS, at[u]);
        skip[u] = (int)(at[u][2] & 3);
        const T *p = from + at[u][1] - skip[u] * from_step;
#pragma unroll
        for (int e = 0; e < 4; e++) {
            int64_t place = at[u][3] + e - skip[u];
            some[u] |= (unsigned)(place >= 0 && place < row) << e;
        }
        if (vector(p, some[u], from_step)) {
#pragma unroll
            for (int i = 0; i < WORDS; i++)
                reinterpret_cast<word *>(x[u])[i] = reinterpret_cast<const word *>(p)[i];
            continue;
        }
#pragma unroll
        for (int e = 0; e < 4; e++)
            if (some[u] >> e & 1)
                x[u][e] = p[e * from_step];
    }
#pragma unroll
    for (int u = 0; u < UNITS; u++) {
        if (!some[u])
            continue;
        philox_block b(rng.seed, rng.offset + at[u][2] / 4);
        dropped{fn}.of(b, x[u], x[u], 0);
        T *p = to + at[u][0] - skip[u] * to_step;
        if (vector(p, some[u], to_step)) {
#pragma unroll
            for (int i = 0; i < WORDS; i++)
                reinterpret_cast<word *>(p)[i] = reinterpret_cast<const word *>(x[u])[i];
            continue;
        }
#pragma unroll
        for (int e = 0; e < 4; e++)
            if (some[u] >> e & 1)
                p[e * to_step] = x[u][e];
    }
}

/** Launches dropout_runs_kernel() if it can process the call, else dropout_units_kernel(). In the
 * space, operand 0 is the result and operand 1 the argument; strides are in bytes, innermost dim
 * first. */
template <class T>
static cudaError_t dropout_strided(const ts_space &s, fn::dropout_fn fn, ts_rng_state rng,
                                   cudaStream_t stream)
{
    constexpr int64_t E = dropout_count<T>, item = (int64_t)sizeof(T);
    int dims[TS_MAX_DIMS]; /* by stride in the result, greatest first */
    bool runs = s.sizes[0] % E == 0; /* and row-major order is that of the result's memory */
    for (int i = 0; i < s.ndim; i++) {
        int d = s.ndim - 1 - i, at = i;
        for (; at && s.operand[0].strides[dims[at - 1]] < s.operand[0].strides[d]; at--)
            dims[at] = dims[at - 1];
        dims[at] = d;
        runs = runs && at == i;
    }
    for (int k = 0; k < 2; k++) {
        runs = runs && s.operand[k].strides[0] == item && (uintptr_t)s.operand[k].data % 16 == 0;
        for (int d = 1; d < s.ndim; d++)
            runs = runs && s.operand[k].strides[d] % 16 == 0;
    }
    int64_t sizes[TS_MAX_DIMS], strides[4][TS_MAX_DIMS], number[TS_MAX_DIMS] = {1}, steps[2],
        row = s.sizes[0], skip = row % 4 == 0 ? 0 : row % 2 == 0 ? 2 : 3, /* its largest value */
        each = (row + skip + 3) / 4, units = s.numel / row * each;
    for (int d = 1; d < s.ndim; d++)
        number[d] = number[d - 1] * s.sizes[d - 1];
    for (int k = 0; k < 2; k++)
        steps[k] = s.operand[k].strides[0] / item;
    for (int i = 0; i < s.ndim; i++) {
        int d = dims[i];
        int64_t unit = d == 0 && !runs ? 4 : 1; /* elements per index of this dim */
        sizes[i] = unit > 1 ? each : s.sizes[d];
        for (int k = 0; k < 2; k++)
            strides[k][i] = s.operand[k].strides[d] / item * unit;
        strides[2][i] = number[d] * unit;
        strides[3][i] = unit > 1 ? unit : 0;
    }
    T *to = (T *)s.operand[0].data;
    const T *from = (const T *)s.operand[1].data;
    int64_t share = DROPOUT_THREADS * (runs ? E : DROPOUT_UNITS), n = runs ? s.numel : units;
    unsigned blocks = (unsigned)((n + share - 1) / share);
    return with_numbers(s.numel, [&]<class I>() {
        if (runs)
            dropout_runs_kernel<T, I><<<blocks, DROPOUT_THREADS, 0, stream>>>(
                walk<I, 2>(sizes, s.ndim, {strides[0], strides[1]}), (I)n, to, from, fn, rng);
        else
            dropout_units_kernel<T, I><<<blocks, DROPOUT_THREADS, 0, stream>>>(
                walk<I, 4>(sizes, s.ndim, {strides[0], strides[1], strides[2], strides[3]}), (I)n,
                row, steps[0], steps[1], to, from, fn, rng);
        return cudaPeekAtLastError();
    });
}

} // namespace ts

#endif
