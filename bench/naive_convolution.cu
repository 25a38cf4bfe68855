/** @file naive_convolution.cu  The kernels of naive_convolution.h. */
// SPDX-License-Identifier: MIT
#include "bench/naive_convolution.h"

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

namespace {

using bf16 = __nv_bfloat16;
enum { THREADS = 256 };

/** A thread sums the window of one position for one feature. */
__global__ void images_kernel(naive_shape s, const bf16 *x, const bf16 *weight, bf16 *y)
{
    long long i = (long long)blockIdx.x * THREADS + threadIdx.x,
              all = (long long)s.batch * s.side * s.side * s.features;
    if (i >= all)
        return;
    int feature = (int)(i % s.features), column = (int)(i / s.features % s.side),
        row = (int)(i / s.features / s.side % s.side);
    long long image = i / s.features / s.side / s.side;
    float sum = 0;
    for (int j1 = 0; j1 < s.taps; j1++)
        for (int j2 = 0; j2 < s.taps; j2++) {
            int r = row + j1 - s.taps / 2, c = column + j2 - s.taps / 2;
            if (r < 0 || r >= s.side || c < 0 || c >= s.side)
                continue;
            const bf16 *pixel = x + ((image * s.side + r) * s.side + c) * s.channels,
                       *tap = weight + ((feature * s.taps + j1) * s.taps + j2) * s.channels;
            for (int k = 0; k < s.channels; k++)
                sum += __bfloat162float(pixel[k]) * __bfloat162float(tap[k]);
        }
    y[i] = __float2bfloat16(sum);
}

/** A thread sums a part of the positions, blockIdx.y, for one element of the weight. */
__global__ void weight_kernel(naive_shape s, const bf16 *x, const bf16 *y, float *partial)
{
    int i = (int)(blockIdx.x * THREADS + threadIdx.x),
        all = s.features * s.taps * s.taps * s.channels;
    if (i >= all)
        return;
    int channel = i % s.channels, tap = i / s.channels % (s.taps * s.taps),
        feature = i / s.channels / (s.taps * s.taps), down = tap / s.taps - s.taps / 2,
        right = tap % s.taps - s.taps / 2;
    long long rows = (long long)s.batch * s.side, first = rows * blockIdx.y / gridDim.y,
              end = rows * (blockIdx.y + 1) / gridDim.y;
    float sum = 0;
    for (long long row = first; row < end; row++) {
        int r = (int)(row % s.side) + down;
        if (r < 0 || r >= s.side)
            continue;
        for (int column = 0; column < s.side; column++) {
            int c = column + right;
            if (c >= 0 && c < s.side)
                sum += __bfloat162float(x[((row + down) * s.side + c) * s.channels + channel]) *
                       __bfloat162float(y[(row * s.side + column) * s.features + feature]);
        }
    }
    partial[(long long)blockIdx.y * all + i] = sum;
}

__global__ void merge_kernel(int all, int parts, const float *partial, bf16 *weight)
{
    int i = (int)(blockIdx.x * THREADS + threadIdx.x);
    if (i >= all)
        return;
    float sum = 0;
    for (int part = 0; part < parts; part++)
        sum += partial[(long long)part * all + i];
    weight[i] = __float2bfloat16(sum);
}

unsigned blocks_of(long long threads) { return (unsigned)((threads + THREADS - 1) / THREADS); }

} // namespace

int naive_images(const naive_shape *s, const void *x, const void *weight, void *y, void *stream)
{
    long long all = (long long)s->batch * s->side * s->side * s->features;
    images_kernel<<<blocks_of(all), THREADS, 0, (cudaStream_t)stream>>>(
        *s, (const bf16 *)x, (const bf16 *)weight, (bf16 *)y);
    return cudaGetLastError();
}

int naive_weight(const naive_shape *s, const void *x, const void *y, int parts, float *partial,
                 void *weight, void *stream)
{
    int all = s->features * s->taps * s->taps * s->channels;
    weight_kernel<<<dim3(blocks_of(all), (unsigned)parts), THREADS, 0, (cudaStream_t)stream>>>(
        *s, (const bf16 *)x, (const bf16 *)y, partial);
    merge_kernel<<<blocks_of(all), THREADS, 0, (cudaStream_t)stream>>>(all, parts, partial,
                                                                       (bf16 *)weight);
    return cudaGetLastError();
}
