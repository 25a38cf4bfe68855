/**
 * @file depthwise_weight_rows.cuh
 * Gradients of depthwise weights of K x K taps with stride S, for depthwise_weight.cu. A thread has
 * V channels of ROWS_COLUMNS adjacent columns of the gradient of y and moves down its rows. It
 * keeps the sums of all taps and the last rows of the gradient in registers, and multiplies a row
 * of pixels by all rows of the gradient whose windows contain these pixels, so it reads each pixel
 * and each element of the gradient once. The block copies both to shared memory some rows ahead.
 *
 * Rows and columns of the gradient outside of a piece (rows_axis) are zeros. If a pixel that such a
 * zero multiplies is infinite or NaN, gradients of some taps of its channel are NaN.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_DEPTHWISE_WEIGHT_ROWS_CUH
#define TS_CUDA_DEPTHWISE_WEIGHT_ROWS_CUH

#include "backends/cuda/convolution/depthwise_rows.cuh"

namespace ts {

/** A tile is one piece of columns of a phase, one piece of rows of a phase, in one plane. Tiles are
 * numbered by piece of columns (fastest), phase of columns, piece of rows, phase of rows, plane. A
 * part is a range of tiles. */
struct weigh_rows_call {
    rows_axis h, w; /* rows and columns; start, step and to_size are not used */
    int channels, sets, tiles, parts; /* sets: number of sets of ROWS_LANES * V channels */
};

/** Channels of a thread, V: more taps leave registers for fewer channels. */
constexpr int weigh_rows_channels(int taps) { return taps == 3 ? 2 : 1; }

/** Block (set of channels, part) of ROWS_LANES times 2, 4 or 8 threads. Writes the sums of the part
 * to `to` (parts, taps, channels). gradient: of y. COPY: bytes of a copy, 16 or 4. */
template <class T, int K, int S, int COPY>
static __global__ void __launch_bounds__(ROWS_LANES *ROWS_STRIPS, K == 7 ? 1 : 2)
    weigh_rows_kernel(const __grid_constant__ weigh_rows_call q, const T *__restrict__ image,
                      const T *__restrict__ gradient, float *__restrict__ to)
{
    constexpr int V = weigh_rows_channels(K);
    using piece = word_of<vec<T, V>>;
    using pixel = rows_pixel<T, V, COPY>;
    constexpr int P = ROWS_COLUMNS, SEEN = (P - 1) * S + K, SET = ROWS_LANES * V,
                  EACH = COPY / (int)sizeof(T), STEPS = 2 / S,
                  RING = S == 1 ? K + 1 : (K + 1) / 2; /* rows of the gradient in registers */
    extern __shared__ __align__(16) unsigned char weigh_memory[];
    const rows_axis &h = q.h, &w = q.w;
    int lane = threadIdx.x % ROWS_LANES, strip = threadIdx.x / ROWS_LANES,
        strips = blockDim.x / ROWS_LANES, pixels = (strips * P - 1) * S + K,
        set = (int)(blockIdx.x % (unsigned)q.sets) * SET,
        part = (int)(blockIdx.x / (unsigned)q.sets),
        tile = (int)((int64_t)q.tiles * part / q.parts),
        tiles = (int)((int64_t)q.tiles * (part + 1) / q.parts) - tile,
        pairs = (S * h.length + K - S + 1) / 2; /* of rows of pixels, in each tile */

    /* Copies of pairs of rows. A thread copies the same bytes of each row of a tile. */
    constexpr int SLOTS = (((2 * P - 1) * S + K) * pixel::COPIES + 63) / 64,
                  GRADS = (P * pixel::COPIES + ROWS_LANES - 1) / ROWS_LANES;
    int slot_from[SLOTS], slot_there[SLOTS], grad_from[GRADS], grad_there[GRADS];
    uint32_t memory = shared_address(weigh_memory), row = (uint32_t)(pixels * pixel::BYTES),
             grad_row = (uint32_t)(strips * P * pixel::BYTES), stage = 2 * row + STEPS * grad_row,
             filling = 0, reading = 0;
    int64_t line_step = (int64_t)h.every * w.size * q.channels,
            grad_step = (int64_t)h.every * w.count * q.channels;
    const T *line = image, *grad = gradient;
    int left = tiles * pairs, pair = pairs, y = 0, rows = 0; /* of the tile that is copied next */
    unsigned inside = 0; /* two bits per stage: rows of pixels that are in the image */
    int number = 0;      /* of the stage */
    auto open = [&] {
        unsigned rest = (unsigned)tile++;
        auto next = [&](int n) {
            unsigned whole = rest / (unsigned)n;
            int index = (int)(rest - whole * (unsigned)n);
            rest = whole;
            return index;
        };
        int first = next(w.pieces) * w.length, x_phase = next(w.every),
            top = next(h.pieces) * h.length, y_phase = next(h.every), plane = (int)rest;
        rows = min(h.length, (h.count - y_phase + h.every - 1) / h.every - top);
        int columns = (w.count - x_phase + w.every - 1) / w.every - first,
            x = x_phase * S + w.base + first * S * w.every;
        y = y_phase * S + h.base + top * S * h.every;
        line = image + (((int64_t)plane * h.size + y) * w.size + x) * q.channels + set;
        grad = gradient + (((int64_t)plane * h.count + y_phase + top * h.every) * w.count +
                           x_phase + first * w.every) * q.channels + set;
#pragma unroll
        for (int k = 0; k < SLOTS; k++) {
            int e = (int)(threadIdx.x + k * blockDim.x), i = e / pixel::COPIES,
                c = e % pixel::COPIES * EACH, at = x + i * w.every;
            bool there = at >= 0 && at < w.size && set + c < q.channels;
            slot_there[k] = e >= pixels * pixel::COPIES ? -1 : there ? COPY : 0;
            slot_from[k] = there ? (i * w.every * q.channels + c) * (int)sizeof(T) : 0;
        }
#pragma unroll
        for (int k = 0; k < GRADS; k++) {
            int e = (int)(threadIdx.x + k * blockDim.x), i = e / pixel::COPIES,
                c = e % pixel::COPIES * EACH;
            bool there = i < columns && set + c < q.channels;
            grad_there[k] = e >= strips * P * pixel::COPIES ? -1 : there ? COPY : 0;
            grad_from[k] = there ? (i * w.every * q.channels + c) * (int)sizeof(T) : 0;
        }
        pair = 0;
    };
    auto copy_rows = [&] {
        if (left-- > 0) {
            if (pair == pairs)
                open();
            unsigned bits = 0;
#pragma unroll
            for (int r = 0; r < 2; r++, y += h.every, line += line_step) {
                if (y < 0 || y >= h.size)
                    continue;
                bits |= 1u << r;
#pragma unroll
                for (int k = 0; k < SLOTS; k++)
                    if (slot_there[k] >= 0)
                        rows_copy<COPY>(memory + filling + (uint32_t)r * row +
                                          (threadIdx.x + k * blockDim.x) * COPY,
                                      (const char *)line + slot_from[k], slot_there[k]);
            }
#pragma unroll
            for (int r = 0; r < STEPS; r++, grad += grad_step) {
                bool there = pair * STEPS + r < rows;
#pragma unroll
                for (int k = 0; k < GRADS; k++)
                    if (grad_there[k] >= 0)
                        rows_copy<COPY>(memory + filling + 2 * row + (uint32_t)r * grad_row +
                                          (threadIdx.x + k * blockDim.x) * COPY,
                                      there ? (const char *)grad + grad_from[k]
                                            : (const char *)gradient,
                                      there ? grad_there[k] : 0);
            }
            pair++;
            inside = (inside & ~(3u << 2 * number)) | bits << 2 * number;
            number = number == ROWS_STAGES - 1 ? 0 : number + 1;
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
        filling = filling == stage * (ROWS_STAGES - 1) ? 0 : filling + stage;
    };
    int steps = left, now = 0;
#pragma unroll 1
    for (int k = 0; k < ROWS_STAGES - 1; k++)
        copy_rows();

    float sum[K][K][V] = {}, gs[RING][P][V] = {};
    uint32_t offset = (uint32_t)(lane * V * (int)sizeof(T)),
             my_pixels = memory + (uint32_t)(strip * P * S * pixel::BYTES) + offset,
             my_grads = memory + 2 * row + (uint32_t)(strip * P * pixel::BYTES) + offset;
#pragma unroll 1
    for (int i = 0; i < steps; i++) {
        asm volatile("cp.async.wait_group %0;" ::"n"(ROWS_STAGES - 2) : "memory");
        __syncthreads();
        unsigned bits = inside >> 2 * now;
        now = now == ROWS_STAGES - 1 ? 0 : now + 1;
        copy_rows();
        /* gs[0] is the last row: row i of a tile if S is 2, else row 2 i + 1 */
#pragma unroll
        for (int m = RING - 1; m >= 0; m--)
#pragma unroll
            for (int p = 0; p < P; p++)
                if (m >= STEPS) {
#pragma unroll
                    for (int v = 0; v < V; v++)
                        gs[m][p][v] = gs[m >= STEPS ? m - STEPS : 0][p][v];
                } else {
                    unpack<T, V>(from_word<vec<T, V>>(rows_load<piece>(
                                     my_grads + reading + (uint32_t)(STEPS - 1 - m) * grad_row +
                                     (uint32_t)(p * pixel::BYTES))), gs[m][p]);
                }
#pragma unroll
        for (int r = 0; r < 2; r++) {
            if (!(bits >> r & 1))
                continue;
            float xs[SEEN][V];
#pragma unroll
            for (int k = 0; k < SEEN; k++)
                unpack<T, V>(from_word<vec<T, V>>(rows_load<piece>(
                                 my_pixels + reading + (uint32_t)r * row +
                                 (uint32_t)(k * pixel::BYTES))), xs[k]);
#pragma unroll
            for (int j = S == 1 ? 0 : r; j < K; j += S) {
                int m = S == 1 ? 1 - r + j : j / 2;
#pragma unroll
                for (int p = 0; p < P; p++)
#pragma unroll
                    for (int k = 0; k < K; k++)
#pragma unroll
                        for (int v = 0; v < V; v++)
                            sum[j][k][v] += xs[p * S + k][v] * gs[m < RING ? m : 0][p][v];
            }
        }
        reading = reading == stage * (ROWS_STAGES - 1) ? 0 : reading + stage;
    }

    /* the sums of the strips, row of taps by row of taps */
    float *shared = reinterpret_cast<float *>(weigh_memory);
#pragma unroll
    for (int j = 0; j < K; j++) {
        __syncthreads();
#pragma unroll
        for (int k = 0; k < K; k++)
#pragma unroll
            for (int v = 0; v < V; v++)
                shared[(strip * K + k) * SET + lane * V + v] = sum[j][k][v];
        __syncthreads();
        for (int e = (int)threadIdx.x; e < K * SET; e += (int)blockDim.x) {
            int k = e / SET, c = set + e % SET;
            float whole = shared[e];
            for (int s = 1; s < strips; s++)
                whole += shared[s * K * SET + e];
            if (c < q.channels)
                to[((int64_t)part * K * K + j * K + k) * q.channels + c] = whole;
        }
    }
}

} // namespace ts

#endif
