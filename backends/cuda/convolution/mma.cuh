/**
 * @file mma.cuh
 * Implicit products of convolutions on the tensor cores of sm_80 and later, which mma.cu launches:
 * windows times weight, and the gradient of the weight. Each thread copies 16 bytes of a pixel at a
 * time to shared memory, with zeros for pixels outside of the image, several steps ahead of the
 * products. A chunk is 8 channels of a pixel, 16 bytes.
 */
// SPDX-License-Identifier: MIT
#ifndef TS_CUDA_CONVOLUTION_MMA_CUH
#define TS_CUDA_CONVOLUTION_MMA_CUH

#include "backends/cuda/convolution/gemm.cuh"

namespace ts {

enum {
    CONV_THREADS = 256,
    CONV_STAGES = 3, /* steps in shared memory: one in use, the others being copied */
    CONV_TALL = 128, /* windows per tile; for the gradient of the weight, rows per tile */
    CONV_DEEP = 64   /* elements of the sum per step */
};

/** Adds one step's product to a warp's sums d (32 x 8 N): a (32 x CONV_DEEP) times b (CONV_DEEP x
 * 8 N). left(a, i, k) and right(b, j, k) load 16 x 16 tiles of them. */
template <class T, int N, class L, class R>
__device__ __forceinline__ void conv_products(float (&d)[2][N][4], L &&left, R &&right)
{
#pragma unroll
    for (int k = 0; k < CONV_DEEP / 16; k++) {
        uint32_t a[2][4], b[4];
        left(a[0], 0, k);
        left(a[1], 1, k);
#pragma unroll
        for (int j = 0; j < N / 2; j++) {
            right(b, j, k);
#pragma unroll
            for (int i = 0; i < 2; i++) {
                mma<T>(d[i][2 * j], a[i], b[0], b[1]);
                mma<T>(d[i][2 * j + 1], a[i], b[2], b[3]);
            }
        }
    }
}

/** Runs `steps` steps: load(step) starts the copies of a step, multiply(step) uses them. Copies run
 * CONV_STAGES - 1 steps ahead. */
template <class L, class M>
__device__ __forceinline__ void conv_pipeline(int steps, L &&load, M &&multiply)
{
#pragma unroll
    for (int s = 0; s < CONV_STAGES - 1; s++) {
        if (s < steps)
            load(s);
        copies_commit();
    }
    for (int step = 0; step < steps; step++) {
        copies_wait<CONV_STAGES - 2>();
        __syncthreads();
        if (step + CONV_STAGES - 1 < steps)
            load(step + CONV_STAGES - 1);
        copies_commit();
        multiply(step);
    }
    copies_wait<0>();
    __syncthreads();
}

/** Windows times weight: a block computes CONV_TALL windows by WIDE channels of a group, each warp
 * 32 windows by WIDE / 2 channels. A step is the next 8 chunks (conv_tap) of the windows. */
template <class T, int WIDE, bool EPILOGUE>
static __global__ void __launch_bounds__(CONV_THREADS)
    conv_mma_kernel(const __grid_constant__ conv_call c)
{
    constexpr int N = WIDE / 16, LINES = CONV_THREADS / 8, STAGE = (CONV_TALL + WIDE) * 128;
    extern __shared__ char shared[];
    uint32_t base = (shared_address(shared) + 127) & ~127u;
    int tiles = (c.rows + WIDE - 1) / WIDE, first = (int)blockIdx.x / tiles * CONV_TALL,
        feature = (int)blockIdx.x % tiles * WIDE, group = (int)blockIdx.y;
    int line = (int)threadIdx.x / 8, chunk = (int)threadIdx.x % 8;
    auto image_tile = [&](int step) {
        return mma_tile<64>{base + (uint32_t)(step % CONV_STAGES * STAGE)};
    };

    int at[CONV_TALL / LINES][3], depth = c.taps * c.each;
    const T *pixel[CONV_TALL / LINES],
        *image = (const T *)c.image, *weight = (const T *)c.other + (int64_t)group * c.rows * depth;
#pragma unroll
    for (int i = 0; i < CONV_TALL / LINES; i++) {
        int window = first + line + i * LINES;
        conv_place p = place_of(c, window < c.windows ? window : 0);
#pragma unroll
        for (int d = 0; d < 3; d++)
            at[i][d] = p.i[d] * c.axis[d].move + c.axis[d].base;
        pixel[i] = image + pixel_offset(c, p.n, at[i][0], at[i][1], at[i][2]) + group * c.each;
        if (window >= c.windows)
            at[i][0] = INT32_MIN / 2; /* outside with every tap */
    }
    auto load = [&](int step) {
        int q = step * 8 + chunk;
        mma_tile<64> a = image_tile(step), b = a.from(CONV_TALL);
        conv_tap tap(c, q);
        int64_t move = pixel_offset(c, 0, tap.d[0], tap.d[1], tap.d[2]) + tap.channel;
#pragma unroll
        for (int i = 0; i < CONV_TALL / LINES; i++) {
            bool some = tap.some &&
                        is_inside(c, at[i][0] + tap.d[0], at[i][1] + tap.d[1], at[i][2] + tap.d[2]);
            copy16(a.at(line + i * LINES, chunk), some ? pixel[i] + move : image, some);
        }
#pragma unroll
        for (int i = 0; i < WIDE / LINES; i++) {
            int f = feature + line + i * LINES;
            bool some = tap.some && f < c.rows;
            copy16(b.at(line + i * LINES, chunk),
                   some ? weight + (int64_t)f * depth + q * 8 : weight, some);
        }
    };

    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, tall = warp % 4 * 32,
        wide = warp / 4 * (WIDE / 2);
    float sums[2][N][4] = {};
    conv_pipeline((c.taps * c.chunks + 7) / 8, load, [&](int step) {
        mma_tile<64> a = image_tile(step), b = a.from(CONV_TALL);
        conv_products<T>(
            sums, [&](uint32_t(&x)[4], int i, int k) { a.left(x, tall + i * 16, k); },
            [&](uint32_t(&x)[4], int j, int k) { b.right(x, wide + j * 16, k); });
    });

    uint32_t slab = base + (uint32_t)warp * (32 * 128);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        conv_add_bias<T>(c, sums[i], feature + wide, group);
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                int r = i * 16 + half * 8 + lane / 4;
                asm volatile("st.shared.b32 [%0], %1;" ::"r"(slab + r * 128 + ((n ^ r % 8) << 4) +
                                                             lane % 4 * 4),
                             "r"(pack2<T>(sums[i][n][2 * half], sums[i][n][2 * half + 1]))
                             : "memory");
            }
    }
    __syncwarp();
    conv_store_rows<T, 32, WIDE / 2, EPILOGUE, false>(
        c, slab, conv_offset(c, first + tall + lane, group), feature + wide, group);
}

/** The gradient of the weight, y transposed times the windows: a block computes CONV_TALL rows by
 * 128 elements of windows (16 chunks) of a group, summed over one part of `each` windows. A step is
 * the next CONV_DEEP windows. Writes c.to or, with several parts, the sums of each part to
 * c.partial (parts, groups, rows, taps * c.each). */
template <class T>
static __global__ void __launch_bounds__(CONV_THREADS)
    conv_mma_by_kernel(const __grid_constant__ conv_call c, int each)
{
    constexpr int LINES = CONV_THREADS / 16, STAGE = 2 * CONV_DEEP * 256;
    extern __shared__ char shared[];
    uint32_t base = (shared_address(shared) + 127) & ~127u;
    int tiles = (c.taps * c.chunks + 15) / 16, group = (int)blockIdx.y, part = (int)blockIdx.z;
    int row = (int)blockIdx.x / tiles * CONV_TALL, q = (int)blockIdx.x % tiles * 16;
    int begin = part * each, end = min(begin + each, c.windows);
    int line = (int)threadIdx.x / 16, chunk = (int)threadIdx.x % 16;
    auto y_tile = [&](int step) {
        return mma_tile<128>{base + (uint32_t)(step % CONV_STAGES * STAGE)};
    };

    const conv_tap tap(c, q + chunk);
    const T *image = (const T *)c.image, *y = (const T *)c.other;
    bool some_rows = row + chunk * 8 < c.rows;
    int64_t line_step = (int64_t)c.groups * c.rows, y_first = group * c.rows + row + chunk * 8;
    auto load = [&](int step) {
        mma_tile<128> a = y_tile(step), b = a.from(CONV_DEEP);
#pragma unroll
        for (int i = 0; i < CONV_DEEP / LINES; i++) {
            int r = line + i * LINES, window = begin + step * CONV_DEEP + r;
            bool there = window < end, some = there && some_rows;
            copy16(a.at(r, chunk), some ? y + window * line_step + y_first : y, some);
            conv_place p = place_of(c, there ? window : 0);
#pragma unroll
            for (int d = 0; d < 3; d++)
                p.i[d] = p.i[d] * c.axis[d].move + c.axis[d].base + tap.d[d];
            some = there && tap.some && is_inside(c, p.i[0], p.i[1], p.i[2]);
            copy16(b.at(r, chunk),
                   some ? image + pixel_offset(c, p.n, p.i[0], p.i[1], p.i[2]) + group * c.each +
                              tap.channel
                        : image,
                   some);
        }
    };

    int warp = (int)threadIdx.x / 32, tall = warp % 4 * 32, wide = warp / 4 * 64;
    float sums[2][8][4] = {};
    conv_pipeline((end - begin + CONV_DEEP - 1) / CONV_DEEP, load, [&](int step) {
        mma_tile<128> a = y_tile(step), b = a.from(CONV_DEEP);
        conv_products<T>(
            sums,
            [&](uint32_t(&x)[4], int i, int k) { a.left_transposed(x, k * 16, tall / 16 + i); },
            [&](uint32_t(&x)[4], int j, int k) { b.right_transposed(x, k * 16, wide / 16 + j); });
    });
    int column = q * 8 + wide;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int r = row + tall + i * 16 + (int)threadIdx.x % 32 / 4, depth = c.taps * c.each;
        if (gridDim.z == 1) {
            conv_store_weight<T>(c, sums[i], group, r, column, depth - column);
            continue;
        }
#pragma unroll
        for (int n = 0; n < 8; n++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                int f = r + 8 * half, at = column + n * 8 + (int)threadIdx.x % 4 * 2;
                if (f < c.rows && at < depth)
                    *(float2 *)(c.partial +
                                (((int64_t)part * c.groups + group) * c.rows + f) * depth + at) =
                        make_float2(sums[i][n][2 * half], sums[i][n][2 * half + 1]);
            }
    }
}

/** to = the sums of `parts` partial results of 4 * each elements, added in order. A thread adds 4
 * elements. */
template <class T>
static __global__ void __launch_bounds__(CONV_THREADS)
    conv_add_parts_kernel(const float4 *from, vec<T, 4> *to, int parts, int64_t each)
{
    int64_t i = (int64_t)blockIdx.x * CONV_THREADS + threadIdx.x;
    if (i >= each)
        return;
    float sum[4] = {};
#pragma unroll 4
    for (int p = 0; p < parts; p++) {
        float4 x = from[p * each + i];
        sum[0] += x.x, sum[1] += x.y, sum[2] += x.z, sum[3] += x.w;
    }
    to[i] = pack<T, 4>(sum);
}

} // namespace ts

#endif
