/**
 * @file transpose.cuh  Copies whose source is contiguous along another dim than the destination,
 * without conversion; copy.cu calls transpose_copy(). The kernels transpose tiles in shared memory,
 * so that adjacent threads access adjacent elements of both sides. A tile has 64 x 64 elements, or
 * 128 x 128 for elements of 1 byte that are copied as words. Each element is read and written once.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_TRANSPOSE_CUH
#define TS_CUDA_TRANSPOSE_CUH

#include "backends/cuda/units.cuh"

namespace ts {

enum { TRANSPOSE_SIDE = 64, /* of a tile, in elements */
       TRANSPOSE_THREADS = 256,
       TRANSPOSE_ROUNDS = TRANSPOSE_SIDE * TRANSPOSE_SIDE / TRANSPOSE_THREADS, /* elements of a
                                                                                  thread */
       TRANSPOSE_LEAST = 20 /* minimum size of both dims for which is_transposition() is true */ };

/** A transposing copy. The destination is contiguous along dim a, the source along dim b. Strides
 * are in elements. */
struct transposition {
    uint32_t a, b; /* sizes of dims a and b */
    int64_t to_step, from_step; /* stride of b in the destination, of a in the source */
    split<uint32_t> across_a, across_b; /* number of tiles along a and along b */
    bool a_first; /* true: blocks are numbered along dim a first, because it has fewer tiles than b;
                     tiles that share cache lines then run at about the same time */
    walk<uint32_t, 2> rest;             /* the other dims */

    /** Sets the origin of a block's tile of side x side and returns its index of the other dims. */
    __device__ __forceinline__ uint32_t tile(uint32_t side, uint32_t *at_a, uint32_t *at_b) const
    {
        const split<uint32_t> &inner = a_first ? across_a : across_b,
                              &outer = a_first ? across_b : across_a;
        uint32_t i = inner.of(blockIdx.x), j = outer.of(i), x = blockIdx.x - i * inner.d,
                 y = i - j * outer.d;
        *at_a = (a_first ? x : y) * side;
        *at_b = (a_first ? y : x) * side;
        return j;
    }
};

/** Transposes tiles of TRANSPOSE_SIDE x TRANSPOSE_SIDE elements; one block per tile. */
template <class E>
__global__ void __launch_bounds__(TRANSPOSE_THREADS)
    transpose_kernel(const __grid_constant__ transposition t, E *to, const E *from)
{
    constexpr int pad = sizeof(E) < 4 ? 4 / (int)sizeof(E) : 1; /* rows begin a bank apart */
    __shared__ E tile[TRANSPOSE_SIDE][TRANSPOSE_SIDE + pad];
    uint32_t a, b, j = t.tile(TRANSPOSE_SIDE, &a, &b);
    int x = threadIdx.x % TRANSPOSE_SIDE, y = threadIdx.x / TRANSPOSE_SIDE;
    int64_t at[2];
    t.rest.at(j, at);
    const E *source = from + at[1] + a * t.from_step + b;
    E v[TRANSPOSE_ROUNDS];
#pragma unroll
    for (int r = 0; r < TRANSPOSE_ROUNDS; r++) {
        int row = y + r * (TRANSPOSE_THREADS / TRANSPOSE_SIDE);
        if (a + row < t.a && b + x < t.b)
            v[r] = source[row * t.from_step + x];
    }
#pragma unroll
    for (int r = 0; r < TRANSPOSE_ROUNDS; r++)
        tile[y + r * (TRANSPOSE_THREADS / TRANSPOSE_SIDE)][x] = v[r];
    __syncthreads();
    E *target = to + at[0] + b * t.to_step + a;
#pragma unroll
    for (int r = 0; r < TRANSPOSE_ROUNDS; r++) {
        int row = y + r * (TRANSPOSE_THREADS / TRANSPOSE_SIDE);
        if (b + row < t.b && a + x < t.a)
            target[row * t.to_step + x] = tile[x][row];
    }
}

/* If addresses, sizes and strides are multiples of 4 bytes, elements of 1 and 2 bytes are copied as
 * 4-byte words of P elements: a thread loads P words, one from each of P consecutive indices along
 * a, transposes the P x P elements in registers, and gets P words of the destination. */

/** Transposes 2 x 2 elements of 2 bytes, or 4 x 4 elements of 1 byte. */
template <int P> __device__ __forceinline__ void transpose_words(uint32_t (&w)[P])
{
    if constexpr (P == 2) {
        uint32_t low = __byte_perm(w[0], w[1], 0x5410);
        w[1] = __byte_perm(w[0], w[1], 0x7632);
        w[0] = low;
    } else {
        uint32_t a = __byte_perm(w[0], w[1], 0x5140), b = __byte_perm(w[2], w[3], 0x5140);
        uint32_t c = __byte_perm(w[0], w[1], 0x7362), d = __byte_perm(w[2], w[3], 0x7362);
        w[0] = __byte_perm(a, b, 0x5410);
        w[1] = __byte_perm(a, b, 0x7632);
        w[2] = __byte_perm(c, d, 0x5410);
        w[3] = __byte_perm(c, d, 0x7632);
    }
}

/** Transposes tiles of 32 x 32 blocks of P x P elements. Sizes and strides of t are in elements and
 * must be multiples of P. */
template <int P>
__global__ void __launch_bounds__(TRANSPOSE_THREADS)
    transpose_words_kernel(const __grid_constant__ transposition t, uint32_t *to,
                           const uint32_t *from)
{
    constexpr int rounds = 32 * 32 / TRANSPOSE_THREADS, rows = TRANSPOSE_THREADS / 32;
    __shared__ uint32_t tile[P][32][33]; /* [word of the block][index along b][index along a] */
    /* a, b: in blocks of P x P elements */
    uint32_t a, b, j = t.tile(32, &a, &b);
    uint32_t x = threadIdx.x % 32, y = threadIdx.x / 32, end_a = t.a / P, end_b = t.b / P;
    int64_t at[2], from_step = t.from_step / P, to_step = t.to_step / P; /* in words */
    t.rest.at(j, at);
    uint32_t w[rounds][P];
#pragma unroll
    for (int r = 0; r < rounds; r++)
#pragma unroll
        for (int p = 0; p < P; p++)
            if (a + y + r * rows < end_a && b + x < end_b)
                w[r][p] =
                    from[at[1] / P + ((int64_t)(a + y + r * rows) * P + p) * from_step + b + x];
#pragma unroll
    for (int r = 0; r < rounds; r++) {
        transpose_words<P>(w[r]);
#pragma unroll
        for (int p = 0; p < P; p++)
            tile[p][x][y + r * rows] = w[r][p];
    }
    __syncthreads();
#pragma unroll
    for (int r = 0; r < rounds; r++)
#pragma unroll
        for (int p = 0; p < P; p++)
            if (b + y + r * rows < end_b && a + x < end_a)
                to[at[0] / P + ((int64_t)(b + y + r * rows) * P + p) * to_step + a + x] =
                    tile[p][y + r * rows][x];
}

/** True if a copy should be a transposition; if so, sets *a and *b to the dims along which the
 * destination and the source are contiguous. */
inline bool is_transposition(const ts_space &s, int *a, int *b)
{
    int64_t item = (int64_t)ts_dtype_size(s.operand[0].dtype), most = ((int64_t)1 << 31) - 1;
    *a = *b = -1;
    if (s.numel / (TRANSPOSE_SIDE * TRANSPOSE_SIDE / 16) > most || s.operand[1].host)
        return false;
    for (int d = 0; d < s.ndim; d++) {
        *a = s.operand[0].strides[d] == item ? d : *a;
        *b = s.operand[1].strides[d] == item ? d : *b;
    }
    return *a >= 0 && *b >= 0 && *a != *b && s.sizes[*a] >= TRANSPOSE_LEAST &&
           s.sizes[*b] >= TRANSPOSE_LEAST && s.sizes[*a] <= most && s.sizes[*b] <= most;
}

/** Copies operand 1 of s to operand 0; is_transposition() chose the dims a and b. E: a type of the
 * element's size. */
template <class E> ts_status transpose_copy(ts_frame *f, const ts_space &s, int a, int b)
{
    int64_t sizes[TS_MAX_DIMS], to[TS_MAX_DIMS], from[TS_MAX_DIMS], item = sizeof(E), tiles = 1;
    int n = 0;
    for (int d = s.ndim - 1; d >= 0; d--)
        if (d != a && d != b) {
            sizes[n] = s.sizes[d];
            to[n] = s.operand[0].strides[d] / item;
            from[n++] = s.operand[1].strides[d] / item;
            tiles *= s.sizes[d];
        }
    constexpr int P = sizeof(E) < 4 ? 4 / (int)sizeof(E) : 1;
    uint64_t bits = (uint64_t)(s.sizes[a] | s.sizes[b]) * item; /* for unit_of() */
    for (int k = 0; k < 2; k++) {
        bits |= (uint64_t)(uintptr_t)s.operand[k].data | (uint64_t)s.operand[k].strides[k ? a : b];
        for (int d = 0; d < n; d++)
            bits |= (uint64_t)((k ? from : to)[d] * item);
    }
    bool words = P > 1 && unit_of(bits) >= 4;
    int64_t side = words ? 32 * P : TRANSPOSE_SIDE, across_a = (s.sizes[a] + side - 1) / side,
            across_b = (s.sizes[b] + side - 1) / side;
    tiles *= across_a * across_b;
    const int64_t *const strides[2] = {to, from};
    transposition t = {(uint32_t)s.sizes[a], (uint32_t)s.sizes[b], s.operand[0].strides[b] / item,
                s.operand[1].strides[a] / item,
                split<uint32_t>(across_a), split<uint32_t>(across_b), across_a < across_b,
                walk<uint32_t, 2>(sizes, n, strides)};
    return on_device(f, [&](const call &c) {
        if constexpr (P > 1)
            if (words) {
                transpose_words_kernel<P><<<(unsigned)tiles, TRANSPOSE_THREADS, 0, c.stream>>>(
                    t, (uint32_t *)s.operand[0].data, (const uint32_t *)s.operand[1].data);
                return cudaPeekAtLastError();
            }
        transpose_kernel<E><<<(unsigned)tiles, TRANSPOSE_THREADS, 0, c.stream>>>(
            t, (E *)s.operand[0].data, (const E *)s.operand[1].data);
        return cudaPeekAtLastError();
    });
}

} // namespace ts

#endif
