/**
 * @file transpose.cuh
 * Copies whose source is contiguous along another dim than the destination: tiles of 64 x 64 elements turn
 * in shared memory, so that both sides are touched in whole lines. Bytes: each element read and written once.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_TRANSPOSE_CUH
#define TS_CUDA_TRANSPOSE_CUH

#include "backends/cuda/units.cuh"

namespace ts {

enum { TURN = 64, TURN_THREADS = 256, TURN_ROUNDS = TURN * TURN / TURN_THREADS, TURN_LEAST = 16 };

/** Steps count elements. The destination is contiguous along a, the source along b. */
struct turned {
    uint32_t a, b; /* sizes */
    int64_t to_step, from_step; /* of b in the destination, of a in the source */
    split<uint32_t> across_a, across_b; /* tiles */
    walk<uint32_t, 2> rest;
};

template <class E> __global__ void __launch_bounds__(TURN_THREADS) turn_kernel(const __grid_constant__ turned t, E *to, const E *from)
{
    constexpr int pad = sizeof(E) < 4 ? 4 / (int)sizeof(E) : 1; /* rows begin a bank apart */
    __shared__ E tile[TURN][TURN + pad];
    uint32_t i = t.across_b.of(blockIdx.x), j = t.across_a.of(i);
    uint32_t b = (blockIdx.x - i * t.across_b.d) * TURN, a = (i - j * t.across_a.d) * TURN;
    int x = threadIdx.x % TURN, y = threadIdx.x / TURN;
    int64_t at[2];
    t.rest.at(j, at);
    const E *source = from + at[1] + a * t.from_step + b;
    E v[TURN_ROUNDS];
#pragma unroll
    for (int r = 0; r < TURN_ROUNDS; r++) {
        int row = y + r * (TURN_THREADS / TURN);
        if (a + row < t.a && b + x < t.b)
            v[r] = source[row * t.from_step + x];
    }
#pragma unroll
    for (int r = 0; r < TURN_ROUNDS; r++)
        tile[y + r * (TURN_THREADS / TURN)][x] = v[r];
    __syncthreads();
    E *target = to + at[0] + b * t.to_step + a;
#pragma unroll
    for (int r = 0; r < TURN_ROUNDS; r++) {
        int row = y + r * (TURN_THREADS / TURN);
        if (b + row < t.b && a + x < t.a)
            target[row * t.to_step + x] = tile[x][row];
    }
}

/** Dims a and b of a copy that turns; false for others. */
inline bool turns(const ts_space &s, int *a, int *b)
{
    int64_t item = (int64_t)ts_dtype_size(s.operand[0].dtype), most = ((int64_t)1 << 31) - 1;
    *a = *b = -1;
    if (s.numel / (TURN * TURN / 16) > most || s.operand[1].host)
        return false;
    for (int d = 0; d < s.ndim; d++) {
        *a = s.operand[0].strides[d] == item ? d : *a;
        *b = s.operand[1].strides[d] == item ? d : *b;
    }
    return *a >= 0 && *b >= 0 && *a != *b && s.sizes[*a] >= TURN_LEAST && s.sizes[*b] >= TURN_LEAST && s.sizes[*a] <= most &&
           s.sizes[*b] <= most;
}

template <class E> ts_status turn(ts_frame *f, const ts_space &s, int a, int b)
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
    int64_t across_a = (s.sizes[a] + TURN - 1) / TURN, across_b = (s.sizes[b] + TURN - 1) / TURN;
    tiles *= across_a * across_b;
    const int64_t *const strides[2] = {to, from};
    turned t = {(uint32_t)s.sizes[a], (uint32_t)s.sizes[b], s.operand[0].strides[b] / item, s.operand[1].strides[a] / item,
                split<uint32_t>(across_a), split<uint32_t>(across_b), walk<uint32_t, 2>(sizes, n, strides)};
    return on_device(f, [&](const call &c) {
        turn_kernel<E><<<(unsigned)tiles, TURN_THREADS, 0, c.stream>>>(t, (E *)s.operand[0].data, (const E *)s.operand[1].data);
        return cudaPeekAtLastError();
    });
}

} // namespace ts

#endif
